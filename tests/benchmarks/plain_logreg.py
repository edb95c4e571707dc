"""The classifier loop as the original toolkit runs it, written again in plain PyTorch: baseline and oracle.

Faithful in what costs time: a shuffled gather by advanced indexing per step, ``torch.optim.SGD``, top-1 and
top-5 with ``topk`` and three ``.item()`` per step, the whole validation (or test) set in batches after every
epoch, and a prediction vector kept per epoch.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

Set = tuple[torch.Tensor, torch.Tensor]


def feature_sets(
    n_train: int, n_test: int, dim: int, n_classes: int, device: torch.device | None = None
) -> list[Any]:
    """Return clustered, l2-normalized features on the host, drawn on the device, as hard as real ones."""
    from cog.features.feature_files import FeatureSet

    generator, sets = torch.Generator(device or "cpu").manual_seed(0), []
    centers = torch.randn(n_classes, dim, device=device, generator=generator)
    for n, split in ((n_train, "train"), (n_test, "test")):
        x, y = torch.empty(n, dim), torch.arange(n) % n_classes
        for part, labels in zip(x.split(65_536), y.split(65_536), strict=True):
            rows = torch.randn(part.shape, device=device, generator=generator)
            rows.add_(centers[labels.to(device)], alpha=4.5 / dim**0.5)
            part.copy_(torch.nn.functional.normalize(rows))
        sets.append(FeatureSet(x, y, f"bench_net_data_{split}"))
    return sets


def network(sizes: Sequence[int], activation: type[torch.nn.Module]) -> torch.nn.Sequential:
    """Return linear layers with activations between them."""
    linear = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    between = [layer for one in linear[:-1] for layer in (one, activation())]
    return torch.nn.Sequential(*between, linear[-1])


def accuracies(logits: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Return top-1 and top-5 in percent, as one-element tensors."""
    best = logits.topk(min(5, logits.shape[1]), 1, True, True)[1].t()
    correct = best.eq(y.view(1, -1).expand_as(best))
    return [correct[:k].reshape(-1).float().sum(0, keepdim=True) * (100.0 / len(y)) for k in (1, 5)]


def fit(
    model: torch.nn.Module,
    train: Set,
    test: Set,
    *,
    lr: float,
    wd: float,
    n_epochs: int = 100,
    batch_size: int = 1024,
    momentum: float = 0.9,
    next_order: Callable[[int], torch.Tensor] = torch.randperm,
) -> dict[str, list[float]]:
    """Train a linear layer or a network in place, and score it on the test set after every epoch.

    Features are float32 ``(n, d)``, labels int64 ``(n,)``, on one device; ``next_order`` gives that of
    an epoch. Returns logs per epoch, which stop at the first loss that is not finite.
    """
    names = [f"{part}/{name}" for part in ("train", "test") for name in ("loss", "top1", "top5")]
    logs: dict[str, list[float]] = {name: [] for name in names}
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=wd)
    predictions = []
    everything = torch.arange(len(test[1]), device=test[1].device)
    for epoch in range(n_epochs):
        order = next_order(len(train[1])).to(train[1].device)
        scores = _pass(model, train, order, batch_size, optimizer)[0]
        if not scores:
            return logs
        with torch.no_grad():
            tested, predicted = _pass(model, test, everything, batch_size, None)
        predictions.append(predicted.cpu())
        for name, value in zip(names, [*scores, *tested], strict=True):
            logs[name].append(value)
        for group in optimizer.param_groups:
            group["lr"] = lr * 0.5 * (1.0 + math.cos(math.pi * epoch / n_epochs))
    return logs


def _pass(
    model: torch.nn.Module, rows: Set, order: torch.Tensor, batch_size: int, optimizer: torch.optim.SGD | None
) -> tuple[list[float], torch.Tensor]:
    """Return mean loss, top-1 and top-5 (empty: a loss is not finite), and the predictions."""
    sums, predictions = [0.0, 0.0, 0.0], torch.full((len(order),), -1, dtype=torch.int32, device=order.device)
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        x, y = rows[0][batch], rows[1][batch]
        logits = model(x)
        loss = torch.nn.functional.cross_entropy(logits, y)
        if optimizer is None:
            predictions[start : start + len(y)] = logits.argmax(1)
        elif not torch.isfinite(loss):
            return [], predictions
        values = (loss, *accuracies(logits, y))
        sums = [total + value.item() * len(y) for total, value in zip(sums, values, strict=True)]
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [total / len(order) for total in sums], predictions
