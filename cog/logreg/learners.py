"""Classifiers in training: the state of an SGD step and the step itself, in plain torch operations for any device.

A learner holds K classifiers that see the same batches. :meth:`load` puts a batch into buffers that are made once
(fresh ones of this size would be mapped and cleared by the system in every step), :meth:`step` does one update from
there. A step reads and writes tensors that stay where they are and never waits for the host, so that it can be captured
in a CUDA graph (:mod:`cog.logreg.graphs`).
"""

from __future__ import annotations

import torch

from cog.logreg import metrics
from cog.logreg.matrix import FeatureMatrix
from cog.logreg.sgd import Layer, SgdConfig, TrainSpec, initial_layers, sgd_step

#: An incomplete batch is filled up when that adds at most this share to the rows of an epoch.
_MOST_FILL = 0.05


class Learner:
    """K classifiers in training, and the buffers of a batch.

    Args:
        features: training features.
        y: int64 ``(n,)``, on the device of the batches.
        spec: what to train.
        config: what all trainings share.
        record: whether to sum up loss and hits of the batches, for K = 1.
        may_wait: whether the host may look at results during a step.

    Attributes:
        state: all that the next step depends on, by name.
        lr: float32 ``(K,)``, learning rates of the present epoch.
        sums: loss, top-1 and top-5 hits of the epoch so far; None unless ``record``.
        form: how results.json names the arithmetic.
    """

    form = "dense"

    def __init__(
        self,
        features: FeatureMatrix,
        y: torch.Tensor,
        spec: TrainSpec,
        config: SgdConfig,
        *,
        record: bool,
        may_wait: bool,
    ) -> None:
        assert not record or len(spec.pairs) == 1
        self.config, self.pairs, self._features, self._y, self._may_wait = (
            config,
            spec.pairs,
            features,
            y,
            may_wait,
        )
        self._n_rows = len(spec.rows)
        self.device, self.size = features.device, min(config.batch_size, len(spec.rows))
        self.state: dict[str, torch.Tensor] = {}
        self.lr = torch.zeros(len(spec.pairs), device=self.device)
        self.sums = metrics.new_sums(self.device) if record else None
        self._y_batch = torch.zeros(self.size, dtype=torch.int64, device=self.device)

    def _filled(self, b: int) -> int:
        """Return the rows that the products of a step on ``b`` rows have; those beyond ``b`` get no gradient.

        With products of one shape only, their bits more often do not depend on the number of threads, which is what
        lets runs share the processors (:mod:`cog.logreg.parallel`).
        """
        return self.size if self.size - b <= _MOST_FILL * self._n_rows else b

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that a step changes."""
        return [*self.state.values(), *([] if self.sums is None else [self.sums])]

    def resume(self, state: dict[str, torch.Tensor]) -> None:
        """Go on from a saved :attr:`state`."""
        for name, tensor in self.state.items():
            tensor.copy_(state[name])

    def begin_epoch(self, rates: torch.Tensor) -> None:
        """Set the learning rates ``(K,)`` of an epoch."""
        self.lr.copy_(rates)
        if self.sums is not None:
            self.sums.zero_()

    def load(self, rows: torch.Tensor) -> None:
        """Put the next batch into place; ``rows`` int64 ``(b,)`` on the features' index device."""
        raise NotImplementedError

    def step(self, b: int) -> None:
        """Update all classifiers on the ``b`` rows in place."""
        raise NotImplementedError

    def layers(self, k: int) -> list[Layer]:
        """Return weight and bias of each layer of a classifier; the tensors change with the next step."""
        raise NotImplementedError

    def is_finite(self) -> list[bool]:
        """Return whether each classifier still is; waits for the device."""
        totals = [
            torch.stack([tensor.sum() for layer in self.layers(k) for tensor in layer]).sum()
            for k in range(len(self.pairs))
        ]
        return torch.isfinite(torch.stack(totals)).tolist()

    def _record(self, logits: torch.Tensor, y: torch.Tensor) -> None:
        if self.sums is not None:
            metrics.add_batch(self.sums, logits, y, may_wait=self._may_wait)

    def _update(
        self,
        k: int,
        parameters: list[torch.Tensor],
        gradients: list[torch.Tensor],
        velocities: list[torch.Tensor],
    ) -> None:
        sgd_step(
            parameters,
            gradients,
            velocities,
            lr=self.lr[k],
            wd=self.pairs[k][1],
            momentum=self.config.momentum,
        )


class LinearLearner(Learner):
    """Logistic regression: softmax minus one-hot is written out.

    The K classifiers lie one below the other in one matrix ``(K C, d)``: a batch takes one product for all logits and
    one for all gradients, which is faster than K small ones.
    """

    def __init__(
        self, features: FeatureMatrix, y: torch.Tensor, spec: TrainSpec, config: SgdConfig, **options: bool
    ) -> None:
        super().__init__(features, y, spec, config, **options)
        self._k, self._c = len(spec.pairs), config.n_classes
        ((weight, bias),) = initial_layers([features.dim, self._c], spec.init_seed)
        self._start(weight.to(self.device), bias.to(self.device))
        self._logits = torch.empty(self.size * self._k * self._c, device=self.device)
        self._minus_one = torch.full((self.size * self._k,), -1.0, device=self.device)
        last = len(spec.rows) % self.size or self.size
        self._origins = {b: self._origin(b) for b in {self.size, self._filled(last)}}

    def _start(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self.state = {
            "weight": weight.repeat(self._k, 1),
            "bias": bias.repeat(self._k),
            "velocity": torch.zeros(self._k * self._c, weight.shape[1], device=self.device),
            "bias_velocity": torch.zeros(self._k * self._c, device=self.device),
        }
        dtype, shape = self._features.dtype, self.state["weight"].shape
        self._x = torch.zeros(self.size, weight.shape[1], dtype=dtype, device=self.device)
        self._gradient = torch.empty(shape, device=self.device)
        self._low = dtype != torch.float32
        if self._low:
            self._low_weight = self.state["weight"].to(dtype)
            self._low_logits = torch.empty(self.size, shape[0], dtype=dtype, device=self.device)
            self._low_gradient = torch.empty(shape, dtype=dtype, device=self.device)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that a step changes."""
        return [*super().tensors, *([self._low_weight] if self._low else [])]

    def resume(self, state: dict[str, torch.Tensor]) -> None:
        """Go on from a saved :attr:`state`."""
        super().resume(state)
        if self._low:
            self._low_weight.copy_(self.state["weight"])

    def load(self, rows: torch.Tensor) -> None:
        """See :meth:`Learner.load`."""
        b = len(rows)
        self._features.batch(rows, out=self._x[:b])
        torch.index_select(self._y, 0, rows.to(self.device, non_blocking=True), out=self._y_batch[:b])

    def _origin(self, b: int) -> torch.Tensor:
        """Return where the logits of each (sample, classifier) of a batch begin, ``(b, K)``."""
        return (torch.arange(b * self._k, device=self.device) * self._c).view(b, self._k)

    def _shape(self, b: int) -> tuple[int, int, int]:
        """Shape of the logits."""
        return b, self._k, self._c

    def step(self, b: int) -> None:
        """See :meth:`Learner.step`."""
        size = self._filled(b)
        logits = self._logits[: size * self._k * self._c].view(self._shape(size))
        flat = logits.view(-1, self._c)
        self._forward(size, logits)
        self._record(flat[:b], self._y_batch[:b])
        torch.softmax(flat, 1, out=flat)
        self._subtract_targets(flat, size)
        flat.mul_(1 / b)
        if size > b:
            logits[b:].zero_()
        self._backward(size, logits)

    def _subtract_targets(self, probabilities: torch.Tensor, b: int) -> None:
        positions = (self._origins[b] + self._y_batch[:b, None]).view(-1)
        probabilities.view(-1).index_add_(0, positions, self._minus_one[: len(positions)])

    def _forward(self, b: int, logits: torch.Tensor) -> None:
        """Write the logits of the batch."""
        out, x, bias = logits.view(b, -1), self._x[:b], self.state["bias"]
        if not self._low:
            torch.addmm(bias, x, self.state["weight"].T, out=out)
            return
        low = torch.mm(x, self._low_weight.T, out=self._low_logits[:b])
        out.copy_(low).add_(bias)  # one operation on mixed types would make a float32 copy first

    def _backward(self, b: int, gradient: torch.Tensor) -> None:
        """Update, given the gradient of the mean loss by the logits."""
        x, by_logits = self._x[:b], gradient.view(b, -1)
        if self._low:
            low = self._low_logits[:b].copy_(by_logits)
            self._gradient.copy_(torch.mm(low.T, x, out=self._low_gradient))
        else:
            torch.mm(by_logits.T, x, out=self._gradient)
        by_bias = by_logits.sum(0)
        state = self.state
        parts = zip(
            *(
                tensor.split(self._c)
                for tensor in (
                    state["weight"], state["bias"], self._gradient, by_bias, state["velocity"], state["bias_velocity"],
                )
            ),
            strict=True,
        )  # fmt: skip
        for k, (weight, bias, by_weight, by_own_bias, velocity, bias_velocity) in enumerate(parts):
            self._update(k, [weight, bias], [by_weight, by_own_bias], [velocity, bias_velocity])
        if self._low:
            self._low_weight.copy_(state["weight"])

    def layers(self, k: int) -> list[Layer]:
        """See :meth:`Learner.layers`."""
        part = slice(k * self._c, (k + 1) * self._c)
        return [(self.state["weight"][part], self.state["bias"][part])]
