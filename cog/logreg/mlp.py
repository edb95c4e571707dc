"""Layers of classifiers, and the training of multi-layer perceptrons.

The first version of the paper (supplement C.3) trains two hidden layers of 2048 units on unnormalized
features, with ReLU (``CLF.TYPE mlp``) and, as a control, without any activation (``mlp_noact``).
"""

import itertools
import math

import torch
from torch import Tensor
from torch.nn import functional

from cog.logreg import metrics
from cog.logreg.features import Features
from cog.logreg.settings import Settings

#: Weight ``(h, d)`` and bias ``(h,)`` of a layer, float32.
Layer = tuple[Tensor, Tensor]


def initial_layers(sizes: list[int], seed: int) -> list[Layer]:
    """Draw weights and biases, uniform within 1 / sqrt(d), for widths ``[d, h, ..., C]``.

    The values are those of a ``Sequential`` of ``torch.nn.Linear`` layers after ``torch.manual_seed(seed)``.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        bound = weight_bound = 1 / math.sqrt(fan_in)
        if len(sizes) > 2:  # the same up to rounding: kaiming_uniform with a = sqrt(5)
            weight_bound = math.sqrt(3.0) * (math.sqrt(2.0 / (1 + 5)) / math.sqrt(fan_in))
        weight = torch.empty(fan_out, fan_in).uniform_(-weight_bound, weight_bound, generator=generator)
        layers.append((weight, torch.empty(fan_out).uniform_(-bound, bound, generator=generator)))
    return layers


def state_dict(layers: list[Layer]) -> dict[str, Tensor]:
    """Return copies of the parameters on the CPU, named as in ``Linear`` or in a ``Sequential``."""
    prefixes = [f"{2 * i}." if len(layers) > 1 else "" for i in range(len(layers))]
    names = [f"{prefix}{name}" for prefix in prefixes for name in ("weight", "bias")]
    return dict(zip(names, (values.clone().cpu() for layer in layers for values in layer), strict=True))


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return float32 logits of features ``(b, d)``, whose type is that of the product."""
    if x.dtype == torch.float32:
        return torch.addmm(bias, x, weight.T)
    return torch.mm(x, weight.to(x.dtype).T).float().add_(bias)


class Mlp:
    """One MLP in training from ``layers`` on, with the interface of ``step.Classifiers`` for S = K = 1."""

    def __init__(
        self, features: Features, layers: list[Layer], wd: float, settings: Settings, batch: int, record: bool
    ) -> None:
        self._features, self._wd, self._batch, self._momentum = features, wd, batch, settings.momentum
        self._relu = settings.classifier == "mlp"
        values = [tensor.to(features.device) for layer in layers for tensor in layer]
        self._layers = list(zip(values[::2], values[1::2], strict=True))
        self._velocities = [torch.zeros_like(tensor) for tensor in values]
        self.state = {str(i): tensor.detach() for i, tensor in enumerate([*values, *self._velocities])}
        self._parameters = [tensor.requires_grad_() for tensor in values]
        self.sums = metrics.new_sums(1, features.device) if record else None

    def resume(self, state: dict[str, Tensor]) -> None:
        """Continue from a saved ``state``."""
        for name, tensor in self.state.items():
            tensor.copy_(state[name])

    def epoch(self, rows: Tensor, y: Tensor, lr: Tensor) -> None:
        """Do the steps of an epoch on rows and labels ``(1, n)`` with a learning rate ``(1, 1)``."""
        rate, cast = float(lr), self._features.dtype != torch.float32
        if self.sums is not None:
            self.sums.zero_()
        for part, labels in zip(rows[0].split(self._batch), y[0].split(self._batch), strict=True):
            x = self._features.rows(part)
            with torch.enable_grad():
                with torch.autocast(x.device.type, torch.bfloat16, enabled=cast):
                    for i, layer in enumerate(self._layers):
                        x = functional.linear(x.relu() if i and self._relu else x, *layer)
                gradients = torch.autograd.grad(functional.cross_entropy(x.float(), labels), self._parameters)
            if self.sums is not None:
                metrics.add_batch(self.sums[0], x.detach().float(), labels)
            for values, gradient, velocity in zip(self._parameters, gradients, self._velocities, strict=True):
                velocity.mul_(self._momentum).add_(gradient).add_(values, alpha=self._wd)
                values.sub_(velocity, alpha=rate)

    def layers(self, s: int, k: int) -> list[Layer]:
        """Return weight and bias of each layer; the tensors change with the next step."""
        return [(weight.detach(), bias.detach()) for weight, bias in self._layers]

    def is_finite(self) -> list[list[bool]]:
        """Return whether the parameters are finite, ``(1, 1)``; waits for the device."""
        return [[math.isfinite(float(torch.stack([values.sum() for values in self._parameters]).sum()))]]

    def logits(self, x: Tensor, seed: int | None = None) -> Tensor:
        """Return float32 logits ``(b, 1, C)`` of features ``(b, d)``, whose type is that of the products."""
        for weight, bias in self._layers[:-1]:
            x = torch.addmm(bias.to(x.dtype), x, weight.to(x.dtype).T)
            x = x.relu_() if self._relu else x
        return linear(x, *self._layers[-1])[:, None]
