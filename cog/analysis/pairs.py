"""Alignment and uniformity (Wang and Isola, ICML 2020; v1 of the paper, Sec. 4.3.2), over all pairs, exactly.

With f(x) the l2-normalised features, and images of the same class as positive pairs (as in v1)::

    alignment  = mean over positive pairs of |f(x) - f(y)|^alpha                        smaller: more compact classes
    uniformity = log of the mean over all pairs of exp(-t |f(x) - f(y)|^2)              smaller: more uniform

Both are as Wang and Isola define them, so uniformity is negative (0 when all features are equal). v1 prints positive
numbers (1.8 to 3.1): the same with the opposite sign. Pairs are unordered and of two different images.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from cog.analysis.rows import Rows

#: Rows and columns of a block of pairs: 16 MB of float32 distances.
_BLOCK = 2048


@dataclass(frozen=True)
class Alignment:
    """Result of :func:`alignment`.

    Attributes:
        value: the mean over all positive pairs; None when there is none.
        n_pairs: positive pairs.
        n_single: classes with one image, which make no pair.
        per_class: mean over the pairs of each class, by label; None for a class without pairs.
    """

    value: float | None
    n_pairs: int
    n_single: int
    per_class: dict[int, float | None]


def alignment(
    rows: Rows, y: torch.Tensor, *, alpha: float = 2.0, on_block: Callable[[], None] = lambda: None
) -> Alignment:
    """Measure how close images of a class are, in float64.

    Args:
        rows: ``(n, d)``, l2-normalised.
        y: int64 ``(n,)``, classes.
        alpha: exponent of the distances.
        on_block: called after every class or block of a large class; may raise to end the work.
    """
    total, n_pairs, n_single = 0.0, 0, 0
    per_class: dict[int, float | None] = {}
    order = torch.argsort(y, stable=True)
    labels, counts = torch.unique_consecutive(y[order], return_counts=True)
    for label, members in zip(labels.tolist(), order.split(counts.tolist()), strict=True):
        count = len(members)
        n_single += count == 1
        own = 0.0
        for i in range(0, count, _BLOCK):
            a = rows.take(members[i : i + _BLOCK]).double()
            for j in range(i, count, _BLOCK):
                b = a if i == j else rows.take(members[j : j + _BLOCK]).double()
                powers = torch.cdist(a, b).pow_(alpha)
                own += float((powers.triu_(1) if i == j else powers).sum())
            on_block()
        pairs = count * (count - 1) // 2
        per_class[label] = own / pairs if pairs else None
        total += own
        n_pairs += pairs
    return Alignment(total / n_pairs if n_pairs else None, n_pairs, n_single, per_class)


def n_blocks(n: int) -> int:
    """Return how many blocks of pairs of ``n`` rows :func:`uniformity` works on."""
    m = -(-n // _BLOCK)
    return m * (m + 1) // 2


def uniformity(rows: Rows, *, t: float = 2.0, on_block: Callable[[], None] = lambda: None) -> float | None:
    """Measure how evenly features fill the sphere; distances in float32, sums in float64.

    Args:
        rows: ``(n, d)``, l2-normalised, and best centred (see :class:`cog.analysis.rows.Rows`).
        t: factor of the squared distances.
        on_block: called after every block of pairs; may raise to end the work.

    Returns:
        The logarithm, or None when there is no pair.
    """
    if rows.n < 2:
        return None
    squares = rows.squares
    logs: list[float] = []  # logarithm of the sum of each block: exp(-t d^2) may be too small for any float
    for i in range(0, rows.n, _BLOCK):
        a = rows.slice(i, min(i + _BLOCK, rows.n))
        for j in range(i, rows.n, _BLOCK):
            b = a if i == j else rows.slice(j, min(j + _BLOCK, rows.n))
            exponents = torch.addmm(squares[j : j + len(b)], a, b.T, beta=-t, alpha=2.0 * t)
            exponents.sub_(t * squares[i : i + len(a), None]).clamp_(max=0.0)
            if i == j:
                below = torch.ones_like(exponents, dtype=torch.bool).tril_()
                exponents.masked_fill_(below, -torch.inf)
            largest = float(exponents.max())
            if largest > -math.inf:
                total = float(exponents.sub_(largest).exp_().sum(dtype=torch.float64))
                logs.append(largest + math.log(total))
            on_block()
    top = max(logs)
    n_pairs = rows.n * (rows.n - 1) // 2
    return top + math.log(math.fsum(math.exp(value - top) for value in logs)) - math.log(n_pairs)
