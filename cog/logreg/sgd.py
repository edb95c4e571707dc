"""Training by mini-batch SGD: input and output, initial weights, schedule."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch

from cog.runtime.random_streams import cpu_generator

#: Weight ``(h, d)`` and bias ``(h,)`` of a layer, float32.
Layer = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, eq=False)
class TrainSpec:
    """Classifiers to train in lockstep: they see the same batches and start from the same weights.

    Attributes:
        rows: rows to train on, int64 ``(n,)``.
        pairs: base learning rate and weight decay (l2 penalty on weights and biases, as in ``torch.optim.SGD``) of each
            of the K classifiers.
        init_seed: seed of the initial weights.
        order_seed: seed of the order of the samples.
        record: whether the test set is scored after every epoch for the logs; only in the final training, with K = 1.
    """

    rows: torch.Tensor
    pairs: list[tuple[float, float]]
    init_seed: int
    order_seed: int
    record: bool = False


@dataclass(eq=False)
class TrainedClassifier:
    """A trained classifier.

    Attributes:
        layers: weight and bias of each layer, float32, in order; one layer for logistic regression.
        relu: whether hidden layers have an activation.
        diverged: whether training stopped because a weight was no longer finite.
        logs: one value per epoch, see :func:`cog.logreg.metrics.new_logs`; None unless they were recorded.
        predictions: classes predicted for the test set after the last epoch, int64 ``(m,)``; None without logs.
        seconds: duration in seconds; the share of one classifier when several were trained together.
        replayed: whether steps were replayed from CUDA graphs.
    """

    layers: list[Layer]
    relu: bool = True
    diverged: bool = False
    logs: dict[str, list[float]] | None = None
    predictions: torch.Tensor | None = None
    seconds: float = 0.0
    replayed: bool = False

    @property
    def weight(self) -> torch.Tensor:
        """Weight of the last layer, ``(C, h)``."""
        return self.layers[-1][0]

    @property
    def bias(self) -> torch.Tensor:
        """Bias of the last layer, ``(C,)``."""
        return self.layers[-1][1]

    @property
    def sizes(self) -> list[int]:
        """Widths from the features to the logits, ``[d, h, ..., C]``."""
        return [self.layers[0][0].shape[1], *(len(bias) for _, bias in self.layers)]

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32 logits ``(b, C)`` of features ``(b, d)``; products are taken in the type of the features."""
        low = x.dtype != torch.float32
        for weight, bias in self.layers[:-1]:
            x = torch.addmm(bias.to(x.dtype), x, weight.to(x.dtype).T)
            if self.relu:
                x.relu_()
        if low:
            return torch.mm(x, self.weight.to(x.dtype).T).float().add_(self.bias)
        return torch.addmm(self.bias, x, self.weight.T)

    def module(self) -> torch.nn.Module:
        """Return a torch module of this architecture, without memory for its parameters."""
        return build_module(self.sizes, relu=self.relu)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the parameters on the CPU, under the names of :meth:`module`."""
        parameters = [parameter.cpu() for layer in self.layers for parameter in layer]
        return dict(zip(self.module().state_dict(), parameters, strict=True))


def build_module(sizes: list[int], *, relu: bool) -> torch.nn.Module:
    """Return a module without memory: ``Linear``, or ``Sequential`` with hidden layers, for ``[d, h, ..., C]``."""
    with torch.device("meta"):
        linears = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
        between = torch.nn.ReLU if relu else torch.nn.Identity
        hidden = [module for linear in linears[:-1] for module in (linear, between())]
        return torch.nn.Sequential(*hidden, linears[-1]) if hidden else linears[0]


def initial_layers(sizes: list[int], seed: int) -> list[Layer]:
    """Draw weights and biases for widths ``[d, h, ..., C]`` as ``torch.nn.Linear`` does: uniform within 1 / sqrt(d).

    One generator draws all values, layer by layer and weight before bias, which gives the values of a
    ``torch.nn.Sequential`` of ``Linear`` layers after ``torch.manual_seed(seed)``.
    """
    generator = cpu_generator(seed)
    layers = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        bound = 1 / math.sqrt(fan_in)
        # nn.Linear: kaiming_uniform with a = sqrt(5), so 1 / sqrt(fan_in) up to the rounding of this expression
        weight_bound = (
            bound if len(sizes) == 2 else math.sqrt(3.0) * (math.sqrt(2.0 / (1 + 5)) / math.sqrt(fan_in))
        )
        weight = torch.empty(fan_out, fan_in).uniform_(-weight_bound, weight_bound, generator=generator)
        layers.append((weight, torch.empty(fan_out).uniform_(-bound, bound, generator=generator)))
    return layers


def learning_rate(base: float, epoch: int, n_epochs: int) -> float:
    """Return the learning rate during an epoch.

    The rate follows a cosine decay that is stepped after each epoch with the index of the finished epoch, as in the
    original toolkit: epochs 0 and 1 both run at the base rate, and the last epoch runs above zero.
    """
    return logged_rate(base, max(epoch - 1, 0), n_epochs)


def logged_rate(base: float, epoch: int, n_epochs: int) -> float:
    """Return the learning rate in the logs of an epoch: the rate set after the epoch, as in the original toolkit."""
    return base * 0.5 * (1.0 + math.cos(math.pi * epoch / n_epochs))
