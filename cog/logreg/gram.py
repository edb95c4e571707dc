"""Training in the span of the rows, when these are fewer than half the feature dimension (few-shot).

Every gradient of the weights is a combination of the training rows, so after any number of SGD steps
``W = s * W0 + A^T X`` with a scalar ``s`` (weight decay shrinks the initial weights ``W0``) and coefficients ``A``
``(n, C)``. The logits of all rows are ``s * X W0^T + (X X^T) A``: with the Gram matrix ``X X^T`` computed once, a step
on ``b`` rows takes ``2 b n C`` operations instead of ``4 b d C``. Momentum and weight decay act on ``(s, A)`` as they
do on ``W``. One image per class, 1000 classes and d = 2048: 4 times fewer, in full float32 whatever CLF.PRECISION is.
"""

from __future__ import annotations

import torch

from cog.logreg.learners import LinearLearner
from cog.logreg.matrix import FeatureMatrix
from cog.logreg.sgd import Layer, SgdConfig, TrainSpec


def applies(n_rows: int, dim: int) -> bool:
    """Return whether training on ``n_rows`` rows of ``dim`` features is done here: a function of the shape alone."""
    return 2 * n_rows <= dim


class GramLearner(LinearLearner):
    """Logistic regression in the span of the rows, always in float32; logits are ``(K, b, C)``."""

    form = "span"

    def __init__(
        self, features: FeatureMatrix, y: torch.Tensor, spec: TrainSpec, config: SgdConfig, **options: bool
    ) -> None:
        rows = spec.rows.to(features.index_device)
        self._rows = features.exact(rows)
        self._gram = self._rows @ self._rows.T
        # A batch of all rows needs no gathering: their order makes no difference to the sum over them.
        self._whole = len(rows) <= config.batch_size
        self._position = torch.empty(features.n, dtype=torch.int64, device=features.device)
        self._position[rows.to(features.device)] = torch.arange(len(rows), device=features.device)
        super().__init__(features, y, spec, config, **options)
        self._low = False
        if self._whole:
            self._y_batch.copy_(y[rows.to(features.device)])

    def _start(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        k, n, c, device = self._k, len(self._rows), self._c, self.device
        self._initial, self._initial_logits = weight, self._rows @ weight.T
        self.state = {
            "coefficients": torch.zeros(k, n, c, device=device),
            "bias": bias.repeat(k, 1),
            "scale": torch.ones(k, device=device),
            "velocity": torch.zeros(k, n, c, device=device),
            "bias_velocity": torch.zeros(k, c, device=device),
            "scale_velocity": torch.zeros(k, device=device),
        }
        self._low = False
        # The initial weights have no gradient but that of weight decay.
        self._zero = torch.zeros((), device=device)
        self._batch = torch.arange(n, device=device)[: self.size].clone()
        self._x, self._x_initial = self._gram, self._initial_logits
        if not self._whole:
            self._x, self._x_initial = (
                self._gram[: self.size].clone(),
                self._initial_logits[: self.size].clone(),
            )
            self._spread = torch.zeros(n, c, device=device)

    def load(self, rows: torch.Tensor) -> None:
        """See :meth:`Learner.load`."""
        if self._whole:
            return
        b, rows = len(rows), rows.to(self.device)
        batch = torch.index_select(self._position, 0, rows, out=self._batch[:b])
        torch.index_select(self._gram, 0, batch, out=self._x[:b])
        torch.index_select(self._initial_logits, 0, batch, out=self._x_initial[:b])
        torch.index_select(self._y, 0, rows, out=self._y_batch[:b])

    def _filled(self, b: int) -> int:
        return b

    def _shape(self, b: int) -> tuple[int, int, int]:
        return self._k, b, self._c

    def _origin(self, b: int) -> torch.Tensor:
        return (torch.arange(self._k * b, device=self.device) * self._c).view(self._k, b)

    def _subtract_targets(self, probabilities: torch.Tensor, b: int) -> None:
        positions = (self._origins[b] + self._y_batch[:b]).view(-1)
        probabilities.view(-1).index_add_(0, positions, self._minus_one[: len(positions)])

    def _forward(self, b: int, logits: torch.Tensor) -> None:
        for k in range(self._k):
            torch.mm(self._x[:b], self.state["coefficients"][k], out=logits[k])
        logits.addcmul_(self._x_initial[:b], self.state["scale"][:, None, None]).add_(
            self.state["bias"][:, None]
        )

    def _backward(self, b: int, gradient: torch.Tensor) -> None:
        by_bias, state = gradient.sum(1), self.state
        for k in range(self._k):
            by_coefficients = gradient[k]
            if not self._whole:
                by_coefficients = self._spread.zero_().index_copy_(0, self._batch[:b], gradient[k])
            self._update(
                k,
                [state["coefficients"][k], state["bias"][k], state["scale"][k]],
                [by_coefficients, by_bias[k], self._zero],
                [state["velocity"][k], state["bias_velocity"][k], state["scale_velocity"][k]],
            )

    def layers(self, k: int) -> list[Layer]:
        """See :meth:`Learner.layers`; the weight ``(C, d)`` is put together anew."""
        weight = torch.addmm(
            self._initial * self.state["scale"][k], self.state["coefficients"][k].T, self._rows
        )
        return [(weight, self.state["bias"][k])]

    def is_finite(self) -> list[bool]:
        """See :meth:`Learner.is_finite`."""
        state = self.state
        return torch.isfinite(
            state["coefficients"].sum((1, 2)) + state["bias"].sum(1) + state["scale"]
        ).tolist()
