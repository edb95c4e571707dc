"""What a training run by mini-batch SGD is given, what it returns, and its schedule and start."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

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
        weight: float32 ``(C, d)``; of an MLP, of its last layer.
        bias: float32 ``(C,)``.
        diverged: whether training stopped because a weight was no longer finite.
        history: per-epoch values, when a test set was given.
        predictions: int64 ``(m,)``, classes predicted for the test set after the last epoch.
        stopped: whether training was stopped early on purpose (pruning).
        seconds: duration; of runs that were trained together, each one's share.
        hidden: weight float32 ``(h, d)`` and bias ``(h,)`` of each hidden layer of an MLP, in order.
        activation: between the layers of an MLP: ``relu`` or ``identity``.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    diverged: bool
    history: History | None = None
    predictions: torch.Tensor | None = None
    stopped: bool = False
    seconds: float = 0.0
    hidden: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    activation: str = ""

    @property
    def feature_dim(self) -> int:
        """Width of the input."""
        return (self.hidden[0][0] if self.hidden else self.weight).shape[1]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the parameters on the CPU, under the names of :meth:`module`."""
        layers = [*self.hidden, (self.weight, self.bias)]
        prefixes = [f"{2 * i}." for i in range(len(layers))] if self.hidden else [""]
        return {
            f"{prefix}{name}": parameter.cpu()
            for prefix, layer in zip(prefixes, layers, strict=True)
            for name, parameter in zip(("weight", "bias"), layer, strict=True)
        }

    def module(self) -> torch.nn.Module:
        """Return a torch module of this architecture, without memory: ``Linear``, or a ``Sequential`` of them."""
        with torch.device("meta"):
            last = torch.nn.Linear(self.weight.shape[1], len(self.weight))
            if not self.hidden:
                return last
            between = torch.nn.ReLU if self.activation == "relu" else torch.nn.Identity
            layers = [
                one
                for weight, _ in self.hidden
                for one in (torch.nn.Linear(weight.shape[1], len(weight)), between())
            ]
            return torch.nn.Sequential(*layers, last)


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
