"""Loss and accuracy of a linear classifier."""

from __future__ import annotations

from dataclasses import dataclass

import torch

#: Rows scored at once: bounds the memory for logits (16384 x 1000 float32 is 66 MB).
_CHUNK = 16384


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
    lower_index = torch.arange(logits.shape[1], device=y.device) < y[:, None]
    before = (logits > target) | ((logits == target) & lower_index)
    return before.sum(1).where(torch.isfinite(target[:, 0]), logits.shape[1])


def score(
    x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[Score, torch.Tensor]:
    """Score a classifier in float32, in chunks.

    Args:
        x: float32 ``(n, d)``, on any device.
        y: int64 ``(n,)``, on any device.
        rows: int64, the rows to score; None scores all.
        weight: float32 ``(C, d)``; the computation runs on its device.
        bias: float32 ``(C,)``.

    Returns:
        The score, and the predicted classes as int64 on the CPU.
    """
    device = weight.device
    n = len(y) if rows is None else len(rows)
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    predictions = []
    for start in range(0, n, _CHUNK):
        part: slice | torch.Tensor = (
            slice(start, start + _CHUNK) if rows is None else rows[start : start + _CHUNK]
        )
        labels = y[part].to(device)
        logits = torch.addmm(bias, x[part].to(device), weight.T)
        rank = true_class_rank(logits, labels)
        sums[0] += torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        sums[1] += (rank < 1).sum()
        sums[2] += (rank < 5).sum()
        predictions.append(logits.argmax(1).cpu())
    loss, top1, top5 = (sums / n).tolist()
    return Score(loss, 100 * top1, 100 * top5), torch.cat(predictions)
