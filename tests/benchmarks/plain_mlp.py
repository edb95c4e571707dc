"""An MLP trained by autograd and ``torch.optim.SGD``: the engine's oracle."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch


def network(sizes: Sequence[int], activation: type[torch.nn.Module], *, seed: int) -> torch.nn.Sequential:
    """Linear layers with activations between them, as torch initializes them after ``manual_seed``."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        linear = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    between = [layer for one in linear[:-1] for layer in (one, activation())]
    return torch.nn.Sequential(*between, linear[-1])


def fit(
    model: torch.nn.Module,
    train: tuple[torch.Tensor, torch.Tensor],
    test: tuple[torch.Tensor, torch.Tensor] | None,
    *,
    lr: float,
    wd: float,
    n_epochs: int,
    next_order: Callable[[int], torch.Tensor],
    batch_size: int = 1024,
    momentum: float = 0.9,
) -> dict[str, list[float]]:
    """Train, with the schedule of the original toolkit (stepped after each epoch by that epoch's index).

    Args:
        model: changed in place.
        train: float32 ``(n, d)`` and int64 ``(n,)``.
        test: the same, scored after every epoch; None: not at all.
        lr: base learning rate.
        wd: weight decay.
        n_epochs: passes over the training set.
        next_order: gives the order of the samples of an epoch.
        batch_size: samples per step.
        momentum: of SGD.

    Returns:
        Per epoch: training loss, and loss and accuracies (percent) on the test set.
    """
    x, y = train
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=wd)
    criterion = torch.nn.CrossEntropyLoss()
    logs: dict[str, list[float]] = {"train/loss": [], "test/loss": [], "test/top1": []}
    for epoch in range(n_epochs):
        order = next_order(len(x))
        total = 0.0
        for batch in order.split(batch_size):
            loss = criterion(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        for group in optimizer.param_groups:
            group["lr"] = lr * 0.5 * (1.0 + math.cos(math.pi * epoch / n_epochs))
        logs["train/loss"].append(total / len(x))
        if test is not None:
            with torch.no_grad():
                logits = model(test[0])
                logs["test/loss"].append(criterion(logits, test[1]).item())
                logs["test/top1"].append(100.0 * (logits.argmax(1) == test[1]).float().mean().item())
    return logs
