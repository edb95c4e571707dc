"""Loss and accuracy of classifiers."""

from collections.abc import Callable

import torch
from torch import Tensor

from cog.logreg.features import Features

#: Largest number of rows, and of logits, at once: on a CPU they stay in the cache; a GPU needs more work.
_CPU_CHUNK, _GPU_CHUNK = (1024, 1 << 20), (16_384, 1 << 27)

#: Mean cross-entropy in nats, top-1 and top-5 (the true class is among the min(5, C) best) in percent.
Scores = tuple[float, float, float]
#: One value per epoch, under the names of the contract's ``logs.pkl``.
Logs = dict[str, list[float]]


def new_logs() -> Logs:
    """Return empty logs."""
    names = ("train/loss", "train/top1", "train/top5", "test/loss", "test/top1", "test/top5", "lr")
    return {name: [] for name in names}


def append_epoch(logs: Logs, train: Scores, test: Scores, lr: float) -> None:
    """Add an epoch to the logs."""
    for values, value in zip(logs.values(), (*train, *test, lr), strict=True):
        values.append(value)


def describe_last_epoch(logs: Logs, n_epochs: int) -> str:
    """Return a line about the last epoch in the logs of a training with ``n_epochs`` epochs."""
    shown = ", ".join(f"{name} {values[-1]:.4g}" for name, values in logs.items())
    return f"epoch {len(logs['lr'])} of {n_epochs}: {shown}"


def true_class_rank(logits: Tensor, y: Tensor) -> Tensor:
    """Return the number of classes that are ranked before the true one, int64 ``(n,)`` in 0..C.

    Among equal logits the lower class index comes first, as with ``argmax``: counting ties as correct would
    report 100 % if all logits are equal. A true class with a logit that is not finite is ranked last.
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


def _tied_before(logits: Tensor, target: Tensor, y: Tensor) -> Tensor:
    """Return the number of classes with a lower index and the same logit as the true class."""
    lower_index = torch.arange(logits.shape[-1], device=y.device) < y[..., None]
    return ((logits == target) & lower_index).sum(-1).float()


def new_sums(n: int, device: torch.device) -> Tensor:
    """Return zeros ``(n, 3)`` for sums over many rows: loss, top-1 and top-5 hits."""
    return torch.zeros(n, 3, dtype=torch.float64, device=device)


def add_batch(sums: Tensor, logits: Tensor, y: Tensor) -> None:
    """Add loss, top-1 and top-5 hits of logits ``(b, C)`` and classes ``(b,)`` to ``sums`` ``(3,)``."""
    rank = true_class_rank(logits, y)
    sums[0] += torch.nn.functional.cross_entropy(logits, y, reduction="sum")
    sums[1] += (rank < 1).sum()
    sums[2] += (rank < 5).sum()


def add_scores(sums: Tensor, logits: Tensor, bias: Tensor, y: Tensor, share: Tensor) -> None:
    """Do the same for S classifiers in a form that a compiler fuses.

    Shapes: sums ``(S, 3)``, logits without the bias ``(S, B, C)``, bias ``(S, 1, C)``, classes ``(S, B)``,
    share ``(B,)``; rows with a share of 0 do not count.
    """
    z = logits.float() + bias
    target = z.gather(2, y[..., None])
    before = (z > target).sum(-1).float() + _tied_before(z, target, y)
    rank = before.where(torch.isfinite(target[..., 0]), float(logits.shape[-1]))
    scores = torch.logsumexp(z, -1) - target[..., 0], (rank < 1).float(), (rank < 5).float()
    sums.add_(torch.stack(scores, -1).where((share > 0)[:, None], 0.0).sum(1, dtype=sums.dtype))


def to_scores(sums: list[float], n: int) -> Scores:
    """Return the means over ``n`` rows of the sums of :func:`add_batch`."""
    loss, top1, top5 = (value / n for value in sums)
    return loss, 100 * top1, 100 * top5


def evaluate(
    features: Features, y: Tensor, rows: Tensor, logits_of: Callable[[Tensor], Tensor], *, exact: bool = True
) -> tuple[list[list[float]], Tensor]:
    """Return sums of loss, top-1 and top-5 hits ``(M, 3)`` on ``rows``, and predicted classes ``(M, m)``.

    ``logits_of`` maps features ``(b, d)`` to the float32 logits ``(b, M, C)`` of M classifiers: features in
    float32, or (not ``exact``, for curves) in the type of the training.
    """
    rows = rows.to(features.place)
    _, n_classifiers, c = logits_of(features.rows(rows[:1], exact=exact)).shape
    sums, predictions = new_sums(n_classifiers, y.device), []
    most_rows, values = _CPU_CHUNK if y.device.type == "cpu" else _GPU_CHUNK
    for part in rows.split(max(64, min(most_rows, values // (n_classifiers * c)))):
        logits, labels = logits_of(features.rows(part, exact=exact)), y[part.to(y.device)]
        for i in range(n_classifiers):
            add_batch(sums[i], logits[:, i], labels)
        predictions.append(logits.argmax(2))
    return sums.tolist(), torch.cat(predictions).T
