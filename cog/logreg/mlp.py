"""Layers of classifiers, and the training of multi-layer perceptrons.

The first version of the paper (supplement C.3) trains two hidden layers of 2048 units on the unnormalized features,
with ReLU (``CLF.TYPE mlp``) and, as a control, without any activation (``mlp_noact``).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch

from cog.logreg import metrics
from cog.logreg.features import Features
from cog.runtime.seeds import cpu_generator

#: Weight ``(h, d)`` and bias ``(h,)`` of a layer, float32.
Layer = tuple[torch.Tensor, torch.Tensor]


@dataclass(eq=False)
class TrainedClassifier:
    """A trained classifier.

    Attributes:
        layers: weight and bias of each layer, float32, in order; one layer for logistic regression.
        relu: whether hidden layers have an activation.
        diverged: whether a weight was no longer finite at the end of the training.
        logs: one value per epoch, see :func:`cog.logreg.metrics.new_logs`; None unless they were recorded.
        predictions: classes predicted for the test set after the last epoch, int64 ``(m,)``; None without logs.
        seconds: duration in seconds; the share of one classifier when several were trained together.
    """

    layers: list[Layer]
    relu: bool = True
    diverged: bool = False
    logs: dict[str, list[float]] | None = None
    predictions: torch.Tensor | None = None
    seconds: float = 0.0

    @property
    def sizes(self) -> list[int]:
        """Widths from the features to the logits, ``[d, h, ..., C]``."""
        return [self.layers[0][0].shape[1], *(len(bias) for _, bias in self.layers)]

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32 logits ``(b, C)`` of features ``(b, d)``; products are taken in the type of the features."""
        for weight, bias in self.layers[:-1]:
            x = torch.addmm(bias.to(x.dtype), x, weight.to(x.dtype).T)
            if self.relu:
                x.relu_()
        weight, bias = self.layers[-1]
        if x.dtype != torch.float32:
            return torch.mm(x, weight.to(x.dtype).T).float().add_(bias)
        return torch.addmm(bias, x, weight.T)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the parameters on the CPU, under the names of ``torch.nn.Linear`` or of the Sequential of an MLP."""
        names = build_module(self.sizes, relu=self.relu).state_dict()
        return dict(zip(names, (values.cpu() for layer in self.layers for values in layer), strict=True))


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


class Mlp:
    """One MLP in training, with the interface of :class:`cog.logreg.step.Classifiers` for S = K = 1.

    Args:
        features: training features ``(n, d)``; a step on bfloat16 ones uses autocast.
        sizes: widths ``[d, h, ..., C]``.
        relu: whether hidden layers have an activation.
        batch: rows of a batch.
        momentum: momentum of SGD.
        record: whether :attr:`sums` are computed.
    """

    def __init__(
        self,
        features: Features,
        sizes: list[int],
        *,
        relu: bool,
        batch: int,
        momentum: float,
        record: bool = False,
    ) -> None:
        self._features, self._batch, self._relu, self._momentum = features, batch, relu, momentum
        self._module = build_module(sizes, relu=relu).to_empty(device=features.device)
        self._velocities = [torch.zeros_like(p, requires_grad=False) for p in self._module.parameters()]
        self._wd = 0.0
        zeros = torch.zeros(1, 3, dtype=metrics.sum_dtype(features.device), device=features.device)
        self.sums = zeros if record else None

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """Tensors that the next step depends on, by name."""
        velocities = {f"velocity{i}": velocity for i, velocity in enumerate(self._velocities)}
        return self._module.state_dict() | velocities

    def begin(self, layers: list[Layer], wd: torch.Tensor) -> None:
        """Put the network at the start of a training."""
        self._wd = float(wd)
        initial = [values for layer in layers for values in layer]
        with torch.no_grad():
            for parameter, values in zip(self._module.parameters(), initial, strict=True):
                parameter.copy_(values)
            for velocity in self._velocities:
                velocity.zero_()

    def resume(self, state: dict[str, torch.Tensor]) -> None:
        """Continue from a saved :attr:`state`."""
        for name, tensor in self.state.items():
            tensor.copy_(state[name])

    def epoch(self, rows: torch.Tensor, y: torch.Tensor, lr: torch.Tensor) -> None:
        """Do the steps of an epoch on rows and labels ``(1, n)`` with a learning rate ``(1, 1)``."""
        parameters, rate = list(self._module.parameters()), float(lr)
        if self.sums is not None:
            self.sums.zero_()
        for part, labels in zip(rows[0].split(self._batch), y[0].split(self._batch), strict=True):
            x = self._features.rows(part)
            with torch.enable_grad():
                with torch.autocast(x.device.type, torch.bfloat16, enabled=x.dtype != torch.float32):
                    logits = self._module(x)
                loss = torch.nn.functional.cross_entropy(logits.float(), labels)
                gradients = torch.autograd.grad(loss, parameters)
            if self.sums is not None:
                metrics.add_batch(self.sums[0], logits.detach().float(), labels)
            for parameter, gradient, velocity in zip(parameters, gradients, self._velocities, strict=True):
                velocity.mul_(self._momentum).add_(gradient).add_(parameter, alpha=self._wd)
                parameter.sub_(velocity, alpha=rate)

    def layers(self, s: int = 0, k: int = 0) -> list[Layer]:
        """Return weight and bias of each layer; the tensors change with the next step."""
        values = [parameter.detach() for parameter in self._module.parameters()]
        return list(zip(values[::2], values[1::2], strict=True))

    def is_finite(self) -> list[list[bool]]:
        """Return whether the parameters are finite, ``(1, 1)``; waits for the device."""
        sums = [values.sum() for layer in self.layers() for values in layer]
        return [[math.isfinite(float(torch.stack(sums).sum()))]]

    def logits(self, x: torch.Tensor, seed: int | None = None) -> torch.Tensor:
        """Return float32 logits ``(b, 1, C)`` of features ``(b, d)``."""
        return TrainedClassifier(self.layers(), self._relu).logits(x)[:, None]
