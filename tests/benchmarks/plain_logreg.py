"""The classifier loop as the original toolkit runs it, written again in plain PyTorch: baseline of the benchmarks, and
oracle of the tests (of networks, too).

Faithful in what costs time: a shuffled gather by advanced indexing per step, ``nn.Linear``, ``CrossEntropyLoss``,
``torch.optim.SGD``, top-1 and top-5 with ``topk`` and three ``.item()`` per step, the whole validation (or test)
set in batches after every epoch, a prediction vector kept per epoch, and copies of the training and validation
rows for the search.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch


def network(
    sizes: Sequence[int], activation: type[torch.nn.Module] = torch.nn.ReLU, *, seed: int
) -> torch.nn.Sequential:
    """Linear layers with activations between them, as torch initializes them after ``manual_seed``."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        linear = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    between = [layer for one in linear[:-1] for layer in (one, activation())]
    return torch.nn.Sequential(*between, linear[-1])


def accuracy(logits: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Top-1 and top-5 in percent, as one-element tensors."""
    best = logits.topk(min(5, logits.shape[1]), 1, True, True)[1].t()
    correct = best.eq(y.view(1, -1).expand_as(best))
    return tuple(correct[:k].reshape(-1).float().sum(0, keepdim=True) * (100.0 / len(y)) for k in (1, 5))  # type: ignore[return-value]


def fit(
    model: torch.nn.Module,
    train: tuple[torch.Tensor, torch.Tensor],
    test: tuple[torch.Tensor, torch.Tensor],
    *,
    lr: float,
    wd: float,
    n_epochs: int = 100,
    batch_size: int = 1024,
    momentum: float = 0.9,
    next_order: Callable[[int], torch.Tensor] = torch.randperm,
) -> dict[str, list[float]]:
    """Train one classifier.

    Args:
        model: a linear layer or a network, changed in place.
        train: features float32 ``(n, d)`` and labels int64 ``(n,)``, on the device to compute on.
        test: the same, scored after every epoch.
        lr: base learning rate, cosine decay.
        wd: weight decay.
        n_epochs: epochs to train.
        batch_size: samples per step.
        momentum: of SGD.
        next_order: gives the order of the samples of an epoch.

    Returns:
        Per-epoch logs (they stop at the first loss that is not finite).
    """
    x, y = train
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=wd)
    logs: dict[str, list[float]] = {
        f"{s}/{k}": [] for s in ("train", "test") for k in ("loss", "top1", "top5")
    }
    predictions = []
    for epoch in range(n_epochs):
        order = next_order(len(y)).to(x.device)
        sums = [0.0, 0.0, 0.0]
        for start in range(0, len(y), batch_size):
            batch = order[start : start + batch_size]
            features, labels = x[batch], y[batch]
            logits = model(features)
            loss = criterion(logits, labels)
            if not torch.isfinite(loss):
                return logs
            top1, top5 = accuracy(logits, labels)
            sums = [s + v.item() * len(labels) for s, v in zip(sums, (loss, top1, top5), strict=True)]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        _log(logs, "train", sums, len(y))
        predictions.append(_validate(model, criterion, test, batch_size, logs))
        for group in optimizer.param_groups:
            group["lr"] = lr * 0.5 * (1.0 + math.cos(math.pi * epoch / n_epochs))
    return logs


def _validate(
    model: torch.nn.Module,
    criterion: torch.nn.Module,
    test: tuple[torch.Tensor, torch.Tensor],
    batch_size: int,
    logs: dict[str, list[float]],
) -> torch.Tensor:
    x, y = test
    sums = [0.0, 0.0, 0.0]
    predictions = torch.full((len(y),), -1, dtype=torch.int32, device=x.device)
    with torch.no_grad():
        everything = torch.arange(len(y), device=x.device)
        for start in range(0, len(y), batch_size):
            batch = everything[start : start + batch_size]
            features, labels = x[batch], y[batch]
            logits = model(features)
            loss = criterion(logits, labels)
            predictions[start : start + len(labels)] = logits.argmax(1)
            top1, top5 = accuracy(logits, labels)
            sums = [s + v.item() * len(labels) for s, v in zip(sums, (loss, top1, top5), strict=True)]
    _log(logs, "test", sums, len(y))
    return predictions.cpu()


def _log(logs: dict[str, list[float]], split: str, sums: list[float], n: int) -> None:
    for key, value in zip(("loss", "top1", "top5"), sums, strict=True):
        logs[f"{split}/{key}"].append(value / n)
