"""Alignment and uniformity (Wang and Isola, ICML 2020; v1 of the paper, Sec. 4.3.2), over all pairs, exactly.

With f(x) the l2-normalized features, and images of the same class as positive pairs (as in v1)::

    alignment  = mean over positive pairs of |f(x) - f(y)|^alpha                        smaller: more compact classes
    uniformity = log of the mean over all pairs of exp(-t |f(x) - f(y)|^2)              smaller: more uniform

Both are as Wang and Isola define them, so uniformity is negative (0 when all features are equal). v1 prints positive
numbers (1.8 to 3.1): the same quantity with the opposite sign. Pairs are unordered, and of two different images.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from cog.analysis.base import ModelData, Outcome, analysis, blocks, mean_row, n_zero_rows, resident
from cog.results.metric_info import Metric, declare
from cog.results.relative import RATIO_TO_IN1K

if TYPE_CHECKING:
    import torch

#: Number of rows, and of columns, of a block of pairs: 16 MB of float32 distances.
_BLOCK = 2048

#: alpha and t of the formulas: the values of Wang and Isola, and of v1.
ALPHA = T = 2.0

# Label of each metric, and its direction.
_METRICS = {
    "alignment": ("alignment, distance of images of a class", -1),
    "uniformity": ("uniformity, of all images", 0),
    "uniformity_v1": ("uniformity with the sign of the paper's first version", 0),
    "alignment_by_uniformity": ("alignment divided by uniformity (with v1's sign)", -1),
}


def _metric(_: str, quantity: str) -> Metric | None:
    base = quantity.removesuffix(f"_{RATIO_TO_IN1K}")
    if base not in _METRICS:
        return None
    label, better = _METRICS[base]
    ratio = base != quantity
    return Metric(
        group="alignment",
        label=f"{base.replace('_', ' ')}, relative to the model's own on IN-1K" if ratio else label,
        better=0 if ratio else better,
        order=(4, ratio, list(_METRICS).index(base)),
    )


declare("alignment", _metric)


@analysis("alignment", "alignment and uniformity of the test features", splits=("test",))
def alignment_and_uniformity(data: ModelData, device: torch.device, stage: Path) -> Outcome:
    """Compute alignment, uniformity and their quotient; None where there are no pairs."""
    test = data.load("test")
    x, mean = resident(test.x, device), mean_row(test.x, device)
    aligned, n_pairs = alignment(x, test.y, mean=mean, device=device)
    uniform = uniformity(x, mean=mean, device=device)
    counts = test.y.unique(return_counts=True)[1]
    details = {
        "positive_pairs": n_pairs,
        "classes_of_one_image": int((counts == 1).sum()),
        "classes": len(counts),
        "rows": {"test": len(test)},
        "dim": x.shape[1],
        "zero_vectors": n_zero_rows(test),
    }
    values = {
        "alignment": aligned,
        "uniformity": uniform,
        "uniformity_v1": None if uniform is None else -uniform,
        "alignment_by_uniformity": aligned / -uniform if aligned is not None and uniform else None,
    }
    return Outcome(values, details=details)


def alignment(
    x: torch.Tensor, y: torch.Tensor, *, mean: torch.Tensor, device: torch.device, alpha: float = ALPHA
) -> tuple[float | None, int]:
    """Return the alignment of features, computed in float64, and the number of positive pairs; None without pairs.

    Args:
        x: features, l2-normalized, float32 ``(n, d)``.
        y: class of each row, int64 ``(n,)``.
        mean: vector that is subtracted from the rows, ``(d,)`` on ``device``.
        device: device of the computation.
        alpha: exponent of the distances.
    """
    import torch

    total, n_pairs = 0.0, 0
    order = torch.argsort(y, stable=True)
    for members in order.split(torch.unique_consecutive(y[order], return_counts=True)[1].tolist()):
        rows = x[members.to(x.device)]
        for i, a in blocks(rows, device, shift=mean, size=_BLOCK):
            for j, b in blocks(rows[i:], device, shift=mean, size=_BLOCK):
                powers = torch.cdist(a.double(), b.double()).pow_(alpha)
                total += float((powers.triu_(1) if j == 0 else powers).sum())
        n_pairs += len(members) * (len(members) - 1) // 2
    return (total / n_pairs if n_pairs else None), n_pairs


def uniformity(x: torch.Tensor, *, mean: torch.Tensor, device: torch.device, t: float = T) -> float | None:
    """Return the uniformity of features; distances are float32, sums float64; None without pairs.

    Args:
        x: features, l2-normalized, float32 ``(n, d)``.
        mean: vector that is subtracted from the rows, ``(d,)`` on ``device``.
        device: device of the computation.
        t: factor of the squared distances.
    """
    import torch

    if len(x) < 2:
        return None
    logs: list[float] = []  # logarithm of the sum of each block: exp(-t d^2) itself may underflow
    for i, a in blocks(x, device, shift=mean, size=_BLOCK):
        for j, b in blocks(x[i:], device, shift=mean, size=_BLOCK):
            exponents = torch.addmm(b.square().sum(dim=1), a, b.T, beta=-t, alpha=2.0 * t)
            exponents.sub_(t * a.square().sum(dim=1, keepdim=True)).clamp_(max=0.0)
            if j == 0:
                exponents.masked_fill_(torch.ones_like(exponents, dtype=torch.bool).tril_(), -torch.inf)
            largest = float(exponents.max())
            if largest > -math.inf:
                logs.append(
                    largest + math.log(float(exponents.sub_(largest).exp_().sum(dtype=torch.float64)))
                )
    top = max(logs)
    n_pairs = len(x) * (len(x) - 1) // 2
    return top + math.log(math.fsum(math.exp(value - top) for value in logs)) - math.log(n_pairs)
