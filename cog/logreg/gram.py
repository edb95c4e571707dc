"""Training in the span of the rows, when these are fewer than half the feature dimension (few-shot).

Every gradient of the weights is a combination of the training rows, so after any number of SGD steps
``W = s * W0 + A^T X`` with a scalar ``s`` (weight decay shrinks the initial weights ``W0``) and coefficients ``A``
``(n, C)``. The logits of all rows are ``s * X W0^T + (X X^T) A``: with the Gram matrix ``X X^T`` computed once, a step
on ``b`` rows takes ``2 b n C`` operations instead of ``4 b d C``. Momentum and weight decay act on ``(s, A)`` as they
do on ``W``. One image per class, 1000 classes and d = 2048: 4 times fewer, in full float32 whatever CLF.PRECISION is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from cog.logreg.dense import sgd_step
from cog.logreg.matrix import FeatureMatrix
from cog.logreg.sgd import Recipe, Run, initial_classifier


def applies(n_rows: int, dim: int) -> bool:
    """Whether training on ``n_rows`` rows of ``dim`` features is done here: a function of the shape alone."""
    return 2 * n_rows <= dim


class SpanRows:
    """What runs over the same rows share: their features ``(n, d)`` and Gram matrix ``(n, n)``, in float32."""

    def __init__(self, features: FeatureMatrix, rows: torch.Tensor, recipe: Recipe) -> None:
        self.x = features.exact(rows)
        self._gram = self.x @ self.x.T
        # A batch of all rows needs no gathering: their order makes no difference to the sum over them.
        self.whole = len(rows) <= recipe.batch_size
        self._initial: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self._positions = torch.arange(len(rows))

    def arrange(self, order: torch.Tensor) -> torch.Tensor:
        """Return the order in which an epoch takes the rows."""
        return self._positions if self.whole else order

    def take(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the rows ``(b, n)`` of the Gram matrix at ``positions`` (int64)."""
        self._positions = positions
        return self._gram if self.whole else self._gram[positions]

    def start(self, run: Run, recipe: Recipe) -> SpanRun:
        """Return the initial state of a run."""
        return SpanRun(self, run, recipe)

    def initial(self, recipe: Recipe, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return initial weight and bias, and the logits ``(n, C)`` that this weight gives all rows."""
        if seed not in self._initial:
            weight, bias = initial_classifier(recipe.n_classes, self.x.shape[1], seed)
            self._initial[seed] = weight, bias, self.x @ weight.T
        return self._initial[seed]

    def of_batch(self, values: torch.Tensor) -> torch.Tensor:
        """Return the rows of ``values`` ``(n, C)`` that belong to the batch taken last."""
        return values if self.whole else values[self._positions]

    def spread(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return ``gradient`` ``(b, C)`` of the batch taken last as rows among zeros ``(n, C)``."""
        if self.whole:
            return gradient
        everywhere = torch.zeros(len(self.x), gradient.shape[1])
        return everywhere.index_copy_(0, self._positions, gradient)


class SpanRun:
    """The state of one run.

    Attributes:
        bias: float32 ``(C,)``, changes with every step.
    """

    def __init__(self, rows: SpanRows, run: Run, recipe: Recipe) -> None:
        self._rows, self._wd, self._momentum = rows, run.wd, recipe.momentum
        self._initial, bias, self._initial_logits = rows.initial(recipe, run.init_seed)
        self.bias = bias.clone()
        self._coefficients = torch.zeros_like(self._initial_logits)
        self._velocity, self._bias_velocity = torch.zeros_like(self._coefficients), torch.zeros_like(bias)
        self._scale, self._scale_velocity = 1.0, 0.0

    @property
    def weight(self) -> torch.Tensor:
        """The weights, float32 ``(C, d)``, put together anew at each access."""
        return torch.addmm(self._initial, self._coefficients.T, self._rows.x, beta=self._scale)

    def logits(self, gram: torch.Tensor, out: torch.Tensor) -> None:
        """Compute the logits ``(b, C)`` of the batch taken last."""
        torch.mm(gram, self._coefficients, out=out)
        out.add_(self._rows.of_batch(self._initial_logits), alpha=self._scale).add_(self.bias)

    def step(self, gram: torch.Tensor, logit_gradient: torch.Tensor, *, lr: float) -> None:
        """Update on a batch, given the gradient ``(b, C)`` of its mean loss by the logits."""
        sgd_step(
            [self._coefficients, self.bias],
            [self._rows.spread(logit_gradient), logit_gradient.sum(0)],
            [self._velocity, self._bias_velocity],
            lr=lr,
            wd=self._wd,
            momentum=self._momentum,
        )
        # The initial weights have no gradient but that of weight decay.
        self._scale_velocity = self._momentum * self._scale_velocity + self._wd * self._scale
        self._scale -= lr * self._scale_velocity
        if (
            abs(self._scale) > torch.finfo(torch.float32).max
        ):  # as the weights would have done; torch refuses it
            self._scale = math.nan

    def is_finite(self) -> bool:
        """Whether the classifier still is."""
        return bool(torch.isfinite(self._coefficients.sum() + self.bias.sum() + self._scale))

    def values(self) -> dict[str, Any]:
        """Return what the next step depends on; tensors change with it."""
        return {
            "coefficients": self._coefficients,
            "bias": self.bias,
            "velocity": self._velocity,
            "bias_velocity": self._bias_velocity,
            "scale": self._scale,
            "scale_velocity": self._scale_velocity,
        }

    def resume(self, values: Mapping[str, Any]) -> None:
        """Go on from what :meth:`values` returned."""
        for name, value in self.values().items():
            if isinstance(value, torch.Tensor):
                value.copy_(values[name])
        self._scale, self._scale_velocity = values["scale"], values["scale_velocity"]
