"""Loss and accuracy of a linear classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from cog.logreg.matrix import FeatureMatrix

#: Rows scored at once. On a CPU the logits stay in the cache (1024 x 1000 float32 is 4 MB); a GPU wants more work
#: between two waits.
_CHUNK = {"cpu": 1024, "cuda": 16384}


def _chunk(device: torch.device) -> int:
    return _CHUNK.get(device.type, _CHUNK["cpu"])


@dataclass(frozen=True)
class Score:
    """Of a classifier on one set.

    Attributes:
        loss: mean cross-entropy, in nats.
        top1: accuracy in percent.
        top5: accuracy in percent; the true class among the min(5, C) best.
    """

    loss: float
    top1: float
    top5: float


def true_class_rank(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return how many classes are ranked before the true one.

    Among equal logits the lower class index comes first, as ``argmax`` has it: counting ties as correct
    would report 100 % for a classifier whose logits are all equal. A true-class logit that is not finite is
    ranked last.

    Args:
        logits: float ``(n, C)``.
        y: int64 ``(n,)``.

    Returns:
        int64 ``(n,)`` in 0..C.
    """
    target = logits.gather(1, y[:, None])
    before = (logits > target).sum(1)
    tied = ((logits == target).sum(1) > 1).nonzero()[:, 0]
    if len(tied):  # rare, so that looking for them is cheaper than ranking by index everywhere
        lower_index = torch.arange(logits.shape[1], device=y.device) < y[tied, None]
        before[tied] += ((logits[tied] == target[tied]) & lower_index).sum(1)
    return before.where(torch.isfinite(target[:, 0]), logits.shape[1])


def score(
    x: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    operands: torch.dtype = torch.float32,
) -> tuple[Score, torch.Tensor]:
    """Score a classifier in chunks.

    Args:
        x: float32 ``(n, d)``, on any device.
        y: int64 ``(n,)``, on any device.
        weight: float32 ``(C, d)``; the computation runs on its device.
        bias: float32 ``(C,)``.
        operands: type that features and weights are rounded to before they are multiplied. Anything but float32 is for
            curves, not for results: the logits come out rounded, too.

    Returns:
        The score, and the predicted classes as int64 on the CPU.
    """
    rounded = weight.to(operands)

    def logits(x: torch.Tensor) -> torch.Tensor:
        if operands == torch.float32:
            return torch.addmm(bias, x, weight.T)
        return torch.mm(x.to(operands), rounded.T).float().add_(bias)

    return score_logits(x, y, logits, device=weight.device)


def score_logits(
    x: torch.Tensor,
    y: torch.Tensor,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    *,
    device: torch.device,
) -> tuple[Score, torch.Tensor]:
    """Score any classifier in chunks; arguments and result as of :func:`score`.

    Args:
        x: float32 ``(n, d)``, on any device.
        y: int64 ``(n,)``, on any device.
        logits_of: returns float32 ``(b, C)`` for ``(b, d)``, both on ``device``.
        device: where to compute.
    """
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    predictions = []
    size = _chunk(device)
    for x_part, y_part in zip(x.split(size), y.split(size), strict=True):
        labels = y_part.to(device)
        logits = logits_of(x_part.to(device))
        rank = true_class_rank(logits, labels)
        sums[0] += torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        sums[1] += (rank < 1).sum()
        sums[2] += (rank < 5).sum()
        predictions.append(logits.argmax(1).cpu())
    loss, top1, top5 = (sums / len(y)).tolist()
    return Score(loss, 100 * top1, 100 * top5), torch.cat(predictions)


def top1_of_many(
    features: FeatureMatrix,
    y: torch.Tensor,
    rows: torch.Tensor,
    classifiers: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> list[float]:
    """Score several classifiers on the same rows; each chunk of features is gathered once.

    Args:
        features: ``(n, d)``, on the classifiers' device.
        y: int64 ``(n,)``, on that device.
        rows: int64, on that device: the rows to score.
        classifiers: weight float32 ``(C, d)`` and bias ``(C,)`` of each.

    Returns:
        Top-1 accuracy in percent, equal to that of :func:`score`.
    """
    return top1_of_logits(
        features,
        y,
        rows,
        [
            lambda x, weight=weight, bias=bias: torch.addmm(bias, x, weight.T)  # type: ignore[misc]
            for weight, bias in classifiers
        ],
    )


def top1_of_logits(
    features: FeatureMatrix,
    y: torch.Tensor,
    rows: torch.Tensor,
    classifiers: Sequence[Callable[[torch.Tensor], torch.Tensor]],
) -> list[float]:
    """Return what :func:`top1_of_many` does, for classifiers given as functions from features to logits."""
    hits = torch.zeros(len(classifiers), dtype=torch.int64, device=y.device)
    for part in rows.split(_chunk(y.device)):
        x, labels = features.exact(part), y[part]
        for index, logits_of in enumerate(classifiers):
            hits[index] += is_top1(logits_of(x), labels).sum()
    return [100 * count / len(rows) for count in hits.tolist()]


def is_top1(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Whether ``true_class_rank`` is 0, without ranking: bool ``(n,)``."""
    target = logits.gather(1, y[:, None])[:, 0]
    return (logits.argmax(1) == y) & torch.isfinite(target)
