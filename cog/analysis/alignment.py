"""Alignment and uniformity (Wang and Isola, ICML 2020; v1 of the paper, Sec. 4.3.2), over all pairs, exactly.

With f(x) the l2-normalized features, and images of the same class as positive pairs (as in v1)::

    alignment  = mean over positive pairs of |f(x) - f(y)|^alpha                        smaller: more compact classes
    uniformity = log of the mean over all pairs of exp(-t |f(x) - f(y)|^2)              smaller: more uniform

Both are as Wang and Isola define them, so uniformity is negative (0 when all features are equal). v1 prints positive
numbers (1.8 to 3.1): the same quantity with the opposite sign. Pairs are unordered, and of two different images.
"""

from __future__ import annotations

import math

import torch

from cog.analysis.base import Data, analysis, resident
from cog.results.analysis_records import Number

#: Number of rows, and of columns, of a block of pairs: 16 MB of float32 distances.
_BLOCK = 2048

#: alpha and t of the formulas: the values of Wang and Isola, and of v1.
ALPHA = T = 2.0


@analysis("alignment", "alignment and uniformity of the test features", splits=("test",))
def alignment_and_uniformity(data: Data) -> dict[str, Number]:
    """Return alignment, uniformity and their quotient; None where there are no pairs."""
    test = data.load("test")
    x, mean = resident(test.x, data.device), data.mean_row(test.x)
    aligned = alignment(data, x, test.y, mean=mean)
    uniform = uniformity(data, x, mean=mean)
    return {
        "alignment": aligned,
        "uniformity": uniform,
        "uniformity_v1": None if uniform is None else -uniform,
        "alignment_by_uniformity": aligned / -uniform if aligned is not None and uniform else None,
    }


def alignment(
    data: Data, x: torch.Tensor, y: torch.Tensor, *, mean: torch.Tensor, alpha: float = ALPHA
) -> float | None:
    """Return the alignment of features ``(n, d)`` of classes ``(n,)``, computed in float64; None without pairs.

    ``mean``, a vector, is subtracted from the rows.
    """
    total, n_pairs = 0.0, 0
    order = torch.argsort(y, stable=True)
    for members in order.split(torch.unique_consecutive(y[order], return_counts=True)[1].tolist()):
        rows = x[members.to(x.device)]
        for i, a in data.blocks(rows, shift=mean, size=_BLOCK):
            for j, b in data.blocks(rows[i:], shift=mean, size=_BLOCK):
                powers = torch.cdist(a.double(), b.double()).pow_(alpha)
                total += float((powers.triu_(1) if j == 0 else powers).sum())
        n_pairs += len(members) * (len(members) - 1) // 2
    return total / n_pairs if n_pairs else None


def uniformity(data: Data, x: torch.Tensor, *, mean: torch.Tensor, t: float = T) -> float | None:
    """Return the uniformity of features ``(n, d)``; distances are float32, sums float64; None without pairs.

    ``mean``, a vector, is subtracted from the rows.
    """
    if len(x) < 2:
        return None
    logs = []  # logarithm of the sum of each block: exp(-t d^2) itself may underflow
    for i, a in data.blocks(x, shift=mean, size=_BLOCK):
        for j, b in data.blocks(x[i:], shift=mean, size=_BLOCK):
            exponents = torch.addmm(b.square().sum(dim=1), a, b.T, beta=-t, alpha=2.0 * t)
            exponents.sub_(t * a.square().sum(dim=1, keepdim=True)).clamp_(max=0.0)
            if j == 0:
                exponents.masked_fill_(torch.ones_like(exponents, dtype=torch.bool).tril_(), -torch.inf)
            largest = float(exponents.max())
            if largest > -math.inf:  # not of a single row
                total = exponents.sub_(largest).exp_().sum(dtype=torch.float64)
                logs.append(largest + math.log(float(total)))
    top = max(logs)
    n_pairs = len(x) * (len(x) - 1) // 2
    return top + math.log(math.fsum(math.exp(value - top) for value in logs)) - math.log(n_pairs)
