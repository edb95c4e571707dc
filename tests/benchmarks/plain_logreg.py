"""The classifier loop as the original toolkit runs it, written again in plain PyTorch: the benchmarks' baseline.

Faithful in what costs time: a shuffled gather by advanced indexing per step, ``nn.Linear``, ``CrossEntropyLoss``,
``torch.optim.SGD``, top-1 and top-5 with ``topk`` and three ``.item()`` per step, the whole validation (or test)
set in batches after every epoch, a prediction vector kept per epoch, and copies of the training and validation
rows for the search.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch


def accuracy(logits: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Top-1 and top-5 in percent, as one-element tensors."""
    best = logits.topk(min(5, logits.shape[1]), 1, True, True)[1].t()
    correct = best.eq(y.view(1, -1).expand_as(best))
    return tuple(correct[:k].reshape(-1).float().sum(0, keepdim=True) * (100.0 / len(y)) for k in (1, 5))  # type: ignore[return-value]


def fit(
    train: tuple[torch.Tensor, torch.Tensor],
    test: tuple[torch.Tensor, torch.Tensor],
    *,
    n_classes: int,
    lr: float,
    wd: float,
    n_epochs: int = 100,
    batch_size: int = 1024,
    momentum: float = 0.9,
    initial: tuple[torch.Tensor, torch.Tensor] | None = None,
    next_order: Callable[[int], torch.Tensor] = torch.randperm,
) -> tuple[torch.nn.Linear, dict[str, list[float]]]:
    """Train one classifier.

    Args:
        train: features float32 ``(n, d)`` and labels int64 ``(n,)``, on the device to compute on.
        test: the same, scored after every epoch.
        n_classes: C.
        lr: base learning rate, cosine decay.
        wd: weight decay.
        n_epochs: epochs to train.
        batch_size: samples per step.
        momentum: of SGD.
        initial: weight and bias to start from; default: those ``nn.Linear`` draws.
        next_order: gives the order of the samples of an epoch.

    Returns:
        The classifier, and per-epoch logs (it stops at the first loss that is not finite).
    """
    x, y = train
    model = torch.nn.Linear(x.shape[1], n_classes).to(x.device)
    if initial is not None:
        with torch.no_grad():
            model.weight.copy_(initial[0])
            model.bias.copy_(initial[1])
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
                return model, logs
            top1, top5 = accuracy(logits, labels)
            sums = [s + v.item() * len(labels) for s, v in zip(sums, (loss, top1, top5), strict=True)]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        _log(logs, "train", sums, len(y))
        predictions.append(_validate(model, criterion, test, batch_size, logs))
        for group in optimizer.param_groups:
            group["lr"] = lr * 0.5 * (1.0 + math.cos(math.pi * epoch / n_epochs))
    return model, logs


def _validate(
    model: torch.nn.Linear,
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
