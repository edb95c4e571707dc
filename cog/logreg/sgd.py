"""Training a linear classifier by mini-batch SGD, in plain PyTorch.

This is the reference: short enough to check against the protocol by reading. Anything faster implements
:class:`Trainer` and must agree with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from cog.logreg import metrics
from cog.randomness import cpu_generator


@dataclass(frozen=True, eq=False)
class Run:
    """One training run over some rows of a feature matrix.

    Attributes:
        rows: int64 ``(n,)``, the rows to train on.
        lr: base learning rate.
        wd: weight decay (l2 penalty, on weights and biases as in ``torch.optim.SGD``).
        init_seed: of the initial weights.
        order_seed: of the order of the samples.
    """

    rows: torch.Tensor
    lr: float
    wd: float
    init_seed: int
    order_seed: int


@dataclass(frozen=True)
class Recipe:
    """What all runs of a study share.

    Attributes:
        n_classes: C.
        n_epochs: passes over the rows of a run.
        batch_size: samples per step; the last step of an epoch takes what is left.
        momentum: of SGD.
    """

    n_classes: int
    n_epochs: int
    batch_size: int
    momentum: float


@dataclass
class History:
    """One value per epoch, under the names of the contract's ``logs.pkl``; accuracies in percent."""

    logs: dict[str, list[float]] = field(
        default_factory=lambda: {
            key: []
            for key in (
                "train/loss", "train/top1", "train/top5", "test/loss", "test/top1", "test/top5", "lr",
            )
        }
    )  # fmt: skip

    def append(self, train: metrics.Score, test: metrics.Score, lr: float) -> None:
        """Add one epoch."""
        for split, score in (("train", train), ("test", test)):
            self.logs[f"{split}/loss"].append(score.loss)
            self.logs[f"{split}/top1"].append(score.top1)
            self.logs[f"{split}/top5"].append(score.top5)
        self.logs["lr"].append(lr)


@dataclass(eq=False)
class Fit:
    """A trained classifier.

    Attributes:
        weight: float32 ``(C, d)``.
        bias: float32 ``(C,)``.
        diverged: whether training stopped because a weight was no longer finite.
        history: per-epoch values, when a test set was given.
        predictions: int64 ``(m,)``, classes predicted for the test set after the last epoch.
        stopped: whether training was stopped early on purpose (pruning).
        seconds: duration; of runs that were trained together, each one's share.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    diverged: bool
    history: History | None = None
    predictions: torch.Tensor | None = None
    stopped: bool = False
    seconds: float = 0.0


class Trainer(Protocol):
    """Trains classifiers on rows of one feature matrix.

    Attributes:
        device: where it computes; the features are put there when they fit.
    """

    device: torch.device

    def fit(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        run: Run,
        recipe: Recipe,
        *,
        test: tuple[torch.Tensor, torch.Tensor] | None = None,
        on_epoch: Callable[[int, History], None] | None = None,
    ) -> Fit:
        """Train one classifier.

        Args:
            x: float32 ``(n, d)``; on the trainer's device, or on the CPU when it does not fit there.
            y: int64 ``(n,)`` in 0..C-1, on the device of ``x``.
            run: rows and hyper-parameters.
            recipe: what all runs share.
            test: features and labels to score after every epoch; also makes the history.
            on_epoch: called after every epoch when there is a test set.

        Returns:
            The classifier after the last epoch.
        """
        ...


def learning_rate(base: float, epoch: int, n_epochs: int) -> float:
    """Return the learning rate during an epoch.

    Cosine decay that is stepped after each epoch with the index of the epoch just finished, as in the
    original toolkit: epochs 0 and 1 both run at the base rate, and the last one above zero.
    """
    return _cosine(base, max(epoch - 1, 0), n_epochs)


def logged_rate(base: float, epoch: int, n_epochs: int) -> float:
    """Return what the logs call the rate of an epoch: the one set after it, as in the original toolkit."""
    return _cosine(base, epoch, n_epochs)


def _cosine(base: float, step: int, n_epochs: int) -> float:
    return base * 0.5 * (1.0 + math.cos(math.pi * step / n_epochs))


def initial_classifier(n_classes: int, dim: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw weight ``(C, d)`` and bias ``(C,)`` as ``torch.nn.Linear`` does: uniform within 1 / sqrt(d)."""
    generator = cpu_generator(seed)
    bound = 1 / math.sqrt(dim)
    weight = torch.empty(n_classes, dim).uniform_(-bound, bound, generator=generator)
    bias = torch.empty(n_classes).uniform_(-bound, bound, generator=generator)
    return weight, bias


class SgdTrainer:
    """The reference :class:`Trainer`: one run after the other, on one device.

    Equals ``torch.nn.Linear`` trained with ``torch.optim.SGD`` and ``CrossEntropyLoss`` (paper Sec. 4.1 and
    supplement B.3); the gradient of the softmax is written out, which is as short and spares the autograd
    graph.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    @torch.no_grad()
    def fit(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        run: Run,
        recipe: Recipe,
        *,
        test: tuple[torch.Tensor, torch.Tensor] | None = None,
        on_epoch: Callable[[int, History], None] | None = None,
    ) -> Fit:
        """See :meth:`Trainer.fit`."""
        device, momentum = self.device, recipe.momentum
        weight, bias = (t.to(device) for t in initial_classifier(recipe.n_classes, x.shape[1], run.init_seed))
        weight_velocity, bias_velocity = torch.zeros_like(weight), torch.zeros_like(bias)
        order_generator = cpu_generator(run.order_seed)
        history = History() if test is not None else None
        predictions = None
        rows = run.rows.to(x.device)
        n = len(rows)
        for epoch in range(recipe.n_epochs):
            lr = learning_rate(run.lr, epoch, recipe.n_epochs)
            order = torch.randperm(n, generator=order_generator).to(x.device)
            sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, top-1, top-5 over the epoch
            for start in range(0, n, recipe.batch_size):
                batch = rows[order[start : start + recipe.batch_size]]
                xb, yb = x[batch].to(device), y[batch].to(device)
                log_p = torch.log_softmax(torch.addmm(bias, xb, weight.T), dim=1)  # (b, C)
                if history is not None:
                    _add_batch(sums, log_p, yb)
                gradient = log_p.exp()
                gradient[torch.arange(len(yb), device=device), yb] -= 1
                gradient /= len(yb)
                _step(weight, weight_velocity, gradient.T @ xb, lr=lr, wd=run.wd, momentum=momentum)
                _step(bias, bias_velocity, gradient.sum(0), lr=lr, wd=run.wd, momentum=momentum)
            finite = bool(torch.isfinite(weight.sum() + bias.sum()))
            if history is not None and test is not None:
                loss, top1, top5 = (sums / n).tolist()
                score, predictions = metrics.score(*test, None, weight, bias)
                rate = logged_rate(run.lr, epoch, recipe.n_epochs)
                history.append(metrics.Score(loss, 100 * top1, 100 * top5), score, rate)
                if on_epoch is not None:
                    on_epoch(epoch, history)
            if not finite:
                return Fit(weight, bias, diverged=True, history=history, predictions=predictions)
        return Fit(weight, bias, diverged=False, history=history, predictions=predictions)


def _add_batch(sums: torch.Tensor, log_p: torch.Tensor, y: torch.Tensor) -> None:
    rank = metrics.true_class_rank(log_p, y)
    sums[0] -= log_p.gather(1, y[:, None]).sum()
    sums[1] += (rank < 1).sum()
    sums[2] += (rank < 5).sum()


def _step(
    parameter: torch.Tensor,
    velocity: torch.Tensor,
    gradient: torch.Tensor,
    *,
    lr: float,
    wd: float,
    momentum: float,
) -> None:
    """One update of ``torch.optim.SGD``: decay goes into the gradient, momentum without dampening."""
    velocity.mul_(momentum).add_(gradient).add_(parameter, alpha=wd)
    parameter.add_(velocity, alpha=-lr)
