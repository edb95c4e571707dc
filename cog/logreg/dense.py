"""Training in the weights themselves: the usual way, with float32 or bfloat16 operands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cog.logreg.matrix import FeatureMatrix
from cog.logreg.sgd import Recipe, Run, initial_classifier


class DenseRows:
    """What runs over the same rows share: each batch is gathered once, into memory that is made once.

    Fresh buffers of this size would be mapped and cleared by the kernel in every step.
    """

    def __init__(self, features: FeatureMatrix, rows: torch.Tensor, recipe: Recipe) -> None:
        self._features, self._rows = features, rows
        self.low = features.dtype != torch.float32
        size, shape = min(recipe.batch_size, len(rows)), (recipe.n_classes, features.dim)
        self._x = torch.empty(size, features.dim, dtype=features.dtype)
        self.gradient = torch.empty(shape)
        if self.low:
            self.low_logits = torch.empty(size, recipe.n_classes, dtype=features.dtype)
            self.low_logit_gradient = torch.empty_like(self.low_logits)
            self.low_gradient = torch.empty(shape, dtype=features.dtype)

    def arrange(self, order: torch.Tensor) -> torch.Tensor:
        """Return the order in which an epoch takes the rows."""
        return order

    def take(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the features ``(b, d)`` at ``positions`` (int64) of the rows."""
        return self._features.batch(self._rows[positions], out=self._x[: len(positions)])

    def start(self, run: Run, recipe: Recipe) -> DenseRun:
        """Return the initial state of a run."""
        return DenseRun(self, run, recipe)


class DenseRun:
    """The state of one run.

    Attributes:
        weight: float32 ``(C, d)``, changes with every step.
        bias: float32 ``(C,)``, likewise.
    """

    def __init__(self, rows: DenseRows, run: Run, recipe: Recipe) -> None:
        self._rows, self._wd, self._momentum = rows, run.wd, recipe.momentum
        self.weight, self.bias = initial_classifier(recipe.n_classes, rows.gradient.shape[1], run.init_seed)
        self._velocity, self._bias_velocity = torch.zeros_like(self.weight), torch.zeros_like(self.bias)
        self._low = self.weight.to(torch.bfloat16) if rows.low else None

    def logits(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Compute the logits ``(b, C)`` of a batch in float32."""
        if self._low is None:
            torch.addmm(self.bias, x, self.weight.T, out=out)
        else:
            low = self._rows.low_logits[: len(x)]
            torch.mm(x, self._low.T, out=low)
            out.copy_(low).add_(self.bias)  # one operation on mixed types would make a float32 copy first

    def step(self, x: torch.Tensor, logit_gradient: torch.Tensor, *, lr: float) -> None:
        """Update on a batch, given the gradient ``(b, C)`` of its mean loss by the logits."""
        rows, gradient = self._rows, self._rows.gradient
        if self._low is None:
            torch.mm(logit_gradient.T, x, out=gradient)
        else:
            low = rows.low_logit_gradient[: len(x)]
            low.copy_(logit_gradient)
            torch.mm(low.T, x, out=rows.low_gradient)
            gradient.copy_(rows.low_gradient)
        sgd_step(
            [self.weight, self.bias],
            [gradient, logit_gradient.sum(0)],
            [self._velocity, self._bias_velocity],
            lr=lr,
            wd=self._wd,
            momentum=self._momentum,
        )
        if self._low is not None:
            self._low.copy_(self.weight)

    def is_finite(self) -> bool:
        """Whether the classifier still is."""
        return bool(torch.isfinite(self.weight.sum() + self.bias.sum()))

    def values(self) -> dict[str, Any]:
        """Return what the next step depends on; changes with it."""
        return {
            "weight": self.weight,
            "bias": self.bias,
            "velocity": self._velocity,
            "bias_velocity": self._bias_velocity,
        }

    def resume(self, values: Mapping[str, Any]) -> None:
        """Go on from what :meth:`values` returned."""
        for name, tensor in self.values().items():
            tensor.copy_(values[name])
        if self._low is not None:
            self._low.copy_(self.weight)


def sgd_step(
    parameters: list[torch.Tensor],
    gradients: list[torch.Tensor],
    velocities: list[torch.Tensor],
    *,
    lr: float,
    wd: float,
    momentum: float,
) -> None:
    """One update of ``torch.optim.SGD``, in one pass over the memory.

    Decay goes into the gradient, momentum without dampening; all three lists are changed in place. The call is the
    one that ``torch.optim.SGD(fused=True)`` makes; the optimiser object around it would cost more than the update.
    """
    # Without momentum it wants no velocities; they stay what they were, zero.
    torch._fused_sgd_(
        parameters, gradients, velocities if momentum else [], weight_decay=wd, momentum=momentum, lr=lr, dampening=0.0,
        nesterov=False, maximize=False, is_first_step=False,
    )  # fmt: skip
