"""Loss and accuracy of classifiers."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cog.logreg.features import Features

#: Largest number of rows, and of logits, that are computed at once. On a CPU they stay in the cache (1024 x 1000
#: float32 is 4 MB); a GPU needs more work between two waits.
_CPU_CHUNK, _GPU_CHUNK = (1024, 1 << 20), (16_384, 1 << 27)

#: Mean cross-entropy in nats, top-1 and top-5 accuracy in percent. Top-5: the true class is among the min(5, C) best.
Scores = tuple[float, float, float]

#: One value per epoch, under the names of the contract's ``logs.pkl``.
Logs = dict[str, list[float]]


def new_logs() -> Logs:
    """Return empty logs; accuracies are in percent."""
    names = ("train/loss", "train/top1", "train/top5", "test/loss", "test/top1", "test/top5", "lr")
    return {name: [] for name in names}


def append_epoch(logs: Logs, train: Scores, test: Scores, lr: float) -> None:
    """Add an epoch to the logs."""
    for values, value in zip(logs.values(), (*train, *test, lr), strict=True):
        values.append(value)


def describe_last_epoch(logs: Logs, n_epochs: int) -> str:
    """Return a line about the last epoch in the logs of a training with ``n_epochs`` epochs."""
    last = {name: values[-1] for name, values in logs.items()}
    return (
        f"epoch {len(logs['lr'])} of {n_epochs}: train loss {last['train/loss']:.4f}, train top-1 "
        f"{last['train/top1']:.2f}, test loss {last['test/loss']:.4f}, test top-1 {last['test/top1']:.2f}, "
        f"top-5 {last['test/top5']:.2f}"
    )


def true_class_rank(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the number of classes that are ranked before the true one, int64 ``(n,)`` in 0..C.

    Among equal logits the lower class index comes first, as with ``argmax``: counting ties as correct would report
    100 % for a classifier with all logits equal. A true class with a logit that is not finite is ranked last.

    Args:
        logits: floating-point ``(n, C)``.
        y: int64 ``(n,)``.
    """
    target = logits.gather(1, y[:, None])
    # Sums of float32 are several times faster than sums of bool, and exact up to 2^24.
    mask = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    before = torch.gt(logits, target, out=mask).sum(1)
    if logits.device.type == "cpu":
        tied = (torch.ge(logits, target, out=mask).sum(1) > before + 1).nonzero()[:, 0]
        if len(tied):  # ties are rare: finding them is cheaper than ranking by index everywhere
            before[tied] += _tied_before(logits[tied], target[tied], y[tied])
    else:  # without waiting for the device
        before += _tied_before(logits, target, y)
    return before.long().where(torch.isfinite(target[:, 0]), logits.shape[1])


def _tied_before(logits: torch.Tensor, target: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the number of classes with a lower index and the same logit as the true class."""
    lower_index = torch.arange(logits.shape[-1], device=y.device) < y[..., None]
    return ((logits == target) & lower_index).sum(-1).float()


def new_sums(n: int, device: torch.device) -> torch.Tensor:
    """Return zeros ``(n, 3)`` for sums over many rows: loss, top-1 and top-5 hits."""
    return torch.zeros(n, 3, dtype=torch.float64, device=device)


def add_batch(sums: torch.Tensor, logits: torch.Tensor, y: torch.Tensor) -> None:
    """Add loss, top-1 and top-5 hits of a batch, logits ``(b, C)`` and classes ``(b,)``, to ``sums`` ``(3,)``."""
    rank = true_class_rank(logits, y)
    sums[0] += torch.nn.functional.cross_entropy(logits, y, reduction="sum")
    sums[1] += (rank < 1).sum()
    sums[2] += (rank < 5).sum()


def add_scores(
    sums: torch.Tensor, logits: torch.Tensor, bias: torch.Tensor, y: torch.Tensor, share: torch.Tensor
) -> None:
    """Do the same for S classifiers in a form that a compiler fuses.

    Args:
        sums: ``(S, 3)``.
        logits: without the bias, ``(S, B, C)``.
        bias: ``(S, 1, C)``.
        y: classes, int64 ``(S, B)``.
        share: ``(B,)``; rows with 0 do not count.
    """
    z = logits.float() + bias
    target = z.gather(2, y[..., None])
    before = (z > target).sum(-1).float() + _tied_before(z, target, y)
    target = target[..., 0]
    rank = before.where(torch.isfinite(target), float(logits.shape[-1]))
    scores = torch.stack([torch.logsumexp(z, -1) - target, (rank < 1).float(), (rank < 5).float()], -1)
    sums.add_(scores.where((share > 0)[:, None], 0.0).sum(1, dtype=sums.dtype))


def to_scores(sums: list[float], n: int) -> Scores:
    """Return the means over ``n`` rows of the sums of :func:`add_batch`."""
    loss, top1, top5 = (value / n for value in sums)
    return loss, 100 * top1, 100 * top5


def evaluate(
    features: Features,
    y: torch.Tensor,
    rows: torch.Tensor,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    shape: tuple[int, int],
    *,
    exact: bool = True,
) -> tuple[list[list[float]], torch.Tensor]:
    """Score M classifiers on rows, in chunks.

    Args:
        features: features ``(n, d)``.
        y: labels, int64 ``(n,)``, on the device.
        rows: rows to score, int64 ``(m,)``.
        logits_of: function from features ``(b, d)`` to the float32 logits of the classifiers, ``(b, M, C)``.
        shape: M and C.
        exact: whether to use float32 features; False: those in the type of the training, for curves.

    Returns:
        Sums of loss, top-1 and top-5 hits ``(M, 3)``, and the predicted classes, int64 ``(M, m)``.
    """
    sums, predictions = new_sums(shape[0], y.device), []
    most_rows, values = _CPU_CHUNK if y.device.type == "cpu" else _GPU_CHUNK
    for part in rows.to(features.place).split(max(64, min(most_rows, values // (shape[0] * shape[1])))):
        logits, labels = logits_of(features.rows(part, exact=exact)), y[part.to(y.device)]
        for m in range(shape[0]):
            add_batch(sums[m], logits[:, m], labels)
        predictions.append(logits.argmax(2))
    return sums.tolist(), torch.cat(predictions).T
