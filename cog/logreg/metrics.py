"""Loss and accuracy of a classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from cog.runtime.device import has_float64

if TYPE_CHECKING:
    from cog.logreg.matrix import FeatureMatrix

#: Rows scored at once. On a CPU the logits stay in the cache (1024 x 1000 float32 is 4 MB); a GPU needs more work
#: between two waits.
CPU_CHUNK, GPU_CHUNK = 1024, 16384

#: Function from features ``(b, d)`` to float32 logits ``(b, C)``.
Logits = Callable[[torch.Tensor], torch.Tensor]

#: One value per epoch, under the names of the contract's ``logs.pkl``.
Logs = dict[str, list[float]]


@dataclass(frozen=True)
class Evaluation:
    """Loss and accuracies of a classifier on one set.

    Attributes:
        loss: mean cross-entropy, in nats.
        top1: accuracy in percent.
        top5: share of rows with the true class among the min(5, C) best, in percent.
    """

    loss: float
    top1: float
    top5: float


def new_logs() -> Logs:
    """Return empty logs; accuracies are in percent."""
    names = ("train/loss", "train/top1", "train/top5", "test/loss", "test/top1", "test/top5", "lr")
    return {name: [] for name in names}


def append_epoch(logs: Logs, train: Evaluation, test: Evaluation, lr: float) -> None:
    """Add an epoch to the logs."""
    for split, evaluation in (("train", train), ("test", test)):
        for name in ("loss", "top1", "top5"):
            logs[f"{split}/{name}"].append(getattr(evaluation, name))
    logs["lr"].append(lr)


def describe_last_epoch(logs: Logs, n_epochs: int) -> str:
    """Return a line about the last epoch in the logs of a training with ``n_epochs`` epochs."""
    done, last = len(logs["lr"]), {name: values[-1] for name, values in logs.items()}
    return (
        f"epoch {done} of {n_epochs} ({100 * done // n_epochs} %): train loss {last['train/loss']:.4f}, train top-1 "
        f"{last['train/top1']:.2f}, test loss {last['test/loss']:.4f}, test top-1 {last['test/top1']:.2f}, top-5 "
        f"{last['test/top5']:.2f}"
    )


def _may_wait(device: torch.device) -> bool:
    """Return whether the host may read a result during a step: a captured step forbids it, and it slows a GPU down."""
    return device.type == "cpu"


def true_class_rank(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the number of classes that are ranked before the true one.

    Among equal logits the lower class index comes first, as with ``argmax``: counting ties as correct would report
    100 % for a classifier with all logits equal. A true class with a logit that is not finite is ranked last.

    Args:
        logits: floating-point ``(n, C)``.
        y: int64 ``(n,)``.

    Returns:
        int64 ``(n,)`` in 0..C.
    """
    target = logits.gather(1, y[:, None])
    # Sums of float32 are several times faster than sums of bool, and exact up to 2^24.
    mask = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    before = torch.gt(logits, target, out=mask).sum(1)
    if _may_wait(logits.device):
        tied = (torch.ge(logits, target, out=mask).sum(1) > before + 1).nonzero()[:, 0]
        if len(tied):  # ties are rare: finding them is cheaper than ranking by index everywhere
            before[tied] += _tied_before(logits[tied], target[tied], y[tied])
    else:
        before += _tied_before(logits, target, y)
    return before.long().where(torch.isfinite(target[:, 0]), logits.shape[1])


def _tied_before(logits: torch.Tensor, target: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the number of classes with a lower index and the same logit as the true class."""
    lower_index = torch.arange(logits.shape[1], device=y.device) < y[:, None]
    return ((logits == target) & lower_index).sum(1).float()


def new_sums(device: torch.device) -> torch.Tensor:
    """Return zeros ``(3,)`` for :func:`add_batch`."""
    return torch.zeros(3, dtype=torch.float64 if has_float64(device) else torch.float32, device=device)


def add_batch(sums: torch.Tensor, logits: torch.Tensor, y: torch.Tensor) -> None:
    """Add loss, top-1 and top-5 hits of a batch, logits ``(b, C)`` and classes ``(b,)``, to ``sums`` ``(3,)``."""
    rank = true_class_rank(logits, y)
    sums[0] += torch.nn.functional.cross_entropy(logits, y, reduction="sum")
    sums[1] += (rank < 1).sum()
    sums[2] += (rank < 5).sum()


def to_evaluation(sums: torch.Tensor, n: int) -> Evaluation:
    """Return the means over ``n`` rows; waits for the device."""
    loss, top1, top5 = (sums / n).tolist()
    return Evaluation(loss, 100 * top1, 100 * top5)


def evaluate(
    features: FeatureMatrix, y: torch.Tensor, logits_of: Logits, *, exact: bool = True
) -> tuple[Evaluation, torch.Tensor | None]:
    """Evaluate a classifier on all rows, in chunks.

    Args:
        features: features ``(n, d)``.
        y: labels, int64 ``(n,)``, on the device of the features.
        logits_of: the classifier.
        exact: whether to use the float32 features; False: those in the working precision, for curves.

    Returns:
        The evaluation and, when exact, the predicted classes as int64 on the CPU.
    """
    sums = new_sums(y.device)
    predictions = []
    for start, stop, new in _chunks(len(y), y.device):
        logits, labels = logits_of(features.part(start, stop, exact=exact))[new - start :], y[new:stop]
        add_batch(sums, logits, labels)
        if exact:
            predictions.append(logits.argmax(1))
    return to_evaluation(sums, len(y)), torch.cat(predictions).cpu() if exact else None


def validate(
    features: FeatureMatrix,
    y: torch.Tensor,
    rows: torch.Tensor,
    classifiers: Sequence[Logits],
) -> list[float]:
    """Score several classifiers on the same rows; each chunk of features is gathered once.

    Args:
        features: features ``(n, d)``.
        y: labels, int64 ``(n,)``, on the device of the features.
        rows: rows to score, int64 ``(m,)``, on the CPU.
        classifiers: the classifiers.

    Returns:
        For each classifier the top-1 accuracy in percent, equal to that of :func:`evaluate`.
    """
    hits = torch.zeros(len(classifiers), dtype=torch.int64, device=y.device)
    for start, stop, new in _chunks(len(rows), y.device):
        part = rows[start:stop].to(features.index_device)
        x, labels = features.exact(part), y[part.to(y.device)][new - start :]
        for index, logits_of in enumerate(classifiers):
            logits = logits_of(x)[new - start :]
            hits[index] += (true_class_rank(logits, labels) < 1).sum()
    return [100 * count / len(rows) for count in hits.tolist()]


def _chunks(n: int, device: torch.device) -> list[tuple[int, int, int]]:
    """Return start, stop and the first new row of chunks of one size; the last chunk may overlap the one before it."""
    size = min(n, CPU_CHUNK if device.type == "cpu" else GPU_CHUNK)
    return [(min(start, n - size), min(start, n - size) + size, start) for start in range(0, n, size)]
