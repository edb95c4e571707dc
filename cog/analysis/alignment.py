"""Alignment and uniformity (Wang and Isola, ICML 2020; v1 of the paper, Sec. 4.3.2), over all pairs, exactly.

With f(x) the l2-normalized features, and images of the same class as positive pairs (as in v1)::

    alignment  = mean over positive pairs of |f(x) - f(y)|^alpha                        smaller: more compact classes
    uniformity = log of the mean over all pairs of exp(-t |f(x) - f(y)|^2)              smaller: more uniform

Both are as Wang and Isola define them, so uniformity is negative (0 when all features are equal). v1 prints positive
numbers (1.8 to 3.1): the same quantity with the opposite sign. Pairs are unordered, and of two different images.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cog.analysis.rows import FeatureRows, count_zero_rows
from cog.analysis.task import AnalysisContext, AnalysisOutcome, feature_analysis
from cog.results.metric_info import Metric, declare
from cog.results.relative import RATIO_TO_IN1K
from cog.runtime import signals
from cog.runtime.csv_text import write_csv
from cog.runtime.progress import Progress

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

#: File with the alignment of each class, beside results.json.
CLASSES_FILE = "alignment_per_class.csv"

#: alpha and t of the formulas: the values of Wang and Isola, and of v1.
ALPHA = T = 2.0

#: Number of rows, and of columns, of a block of pairs: 16 MB of float32 distances.
_BLOCK = 2048


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


def _compute(settings: dict[str, Any], job: AnalysisContext) -> AnalysisOutcome:
    test = job.load("test")
    rows = FeatureRows(test, job.device, centered=True)

    def on_block() -> None:
        signals.check(f"nothing of {job.label}alignment is saved; it is started over")

    aligned = alignment(rows, test.y, alpha=settings["alpha"], on_block=on_block)
    with Progress(n_blocks(rows.n), f"{job.label}uniformity", unit="blocks of pairs") as progress:

        def on_pairs() -> None:
            progress.update()
            on_block()

        uniform = uniformity(rows, t=settings["t"], on_block=on_pairs)
    if aligned.value is None:
        logger.warning("%severy class has a single test image: there is no alignment", job.label)
    write_csv(job.stage / CLASSES_FILE, ("label", "alignment"), aligned.per_class.items())
    return AnalysisOutcome(
        {
            "alignment": aligned.value,
            "uniformity": uniform,
            "uniformity_v1": None if uniform is None else -uniform,
            "alignment_by_uniformity": aligned.value / -uniform
            if aligned.value is not None and uniform
            else None,
        },
        details={
            "positive_pairs": aligned.n_pairs,
            "classes_of_one_image": aligned.n_single,
            "classes": len(aligned.per_class),
            "rows": {"test": len(test)},
            "dim": rows.dim,
            "zero_vectors": count_zero_rows(test),
            "files": [CLASSES_FILE],
        },
    )


@dataclass(frozen=True)
class Alignment:
    """Result of :func:`alignment`.

    Attributes:
        value: mean over all positive pairs; None without pairs.
        n_pairs: number of positive pairs.
        n_single: number of classes with one image, which have no pairs.
        per_class: mean over the pairs of each class, by label; None for a class without pairs.
    """

    value: float | None
    n_pairs: int
    n_single: int
    per_class: dict[int, float | None]


def alignment(
    rows: FeatureRows, y: torch.Tensor, *, alpha: float = 2.0, on_block: Callable[[], None] = lambda: None
) -> Alignment:
    """Return the alignment of the features of each class, computed in float64.

    Args:
        rows: features, l2-normalized, ``(n, d)``.
        y: class of each row, int64 ``(n,)``.
        alpha: exponent of the distances.
        on_block: called after every class or block of a large class; may raise to end the work.
    """
    import torch

    total, n_pairs, n_single = 0.0, 0, 0
    per_class: dict[int, float | None] = {}
    order = torch.argsort(y, stable=True)
    labels, counts = torch.unique_consecutive(y[order], return_counts=True)
    for label, members in zip(labels.tolist(), order.split(counts.tolist()), strict=True):
        count = len(members)
        n_single += count == 1
        class_total = 0.0
        for i in range(0, count, _BLOCK):
            a = rows.take(members[i : i + _BLOCK]).double()
            for j in range(i, count, _BLOCK):
                b = a if i == j else rows.take(members[j : j + _BLOCK]).double()
                powers = torch.cdist(a, b).pow_(alpha)
                class_total += float((powers.triu_(1) if i == j else powers).sum())
            on_block()
        pairs = count * (count - 1) // 2
        per_class[label] = class_total / pairs if pairs else None
        total += class_total
        n_pairs += pairs
    return Alignment(total / n_pairs if n_pairs else None, n_pairs, n_single, per_class)


def n_blocks(n: int) -> int:
    """Return the number of blocks of pairs in :func:`uniformity` of ``n`` rows."""
    m = -(-n // _BLOCK)
    return m * (m + 1) // 2


def uniformity(
    rows: FeatureRows, *, t: float = 2.0, on_block: Callable[[], None] = lambda: None
) -> float | None:
    """Return the uniformity of features on the sphere; distances are float32, sums float64.

    Args:
        rows: features, l2-normalized, ``(n, d)``; centered rows are best (see :class:`cog.analysis.rows.FeatureRows`).
        t: factor of the squared distances.
        on_block: called after every block of pairs; may raise to end the work.

    Returns:
        The logarithm; None without pairs.
    """
    import torch

    if rows.n < 2:
        return None
    squares = rows.squares
    logs: list[float] = []  # logarithm of the sum of each block: exp(-t d^2) itself may underflow
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


ANALYSIS = feature_analysis(
    "alignment",
    "alignment and uniformity of the test features",
    _compute,
    settings=lambda _: {"alpha": ALPHA, "t": T},
    splits=("test",),
)
