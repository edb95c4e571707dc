"""Classifiers in training: the state of an SGD step and the step itself, in plain torch operations for any device.

A learner holds K classifiers that see the same batches. :meth:`Learner.load` puts a batch into buffers that are made
once (fresh ones of this size would be mapped and cleared by the system in every step), and a function of
:meth:`Learner.make_step` does one update from there. That function has its views of the buffers already: making them
takes as long as the operations on a small batch. It reads and writes tensors that stay where they are and never waits
for the host, so that it can be captured in a CUDA graph (:mod:`cog.logreg.graphs`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from cog.logreg import metrics
from cog.logreg.matrix import Data
from cog.logreg.settings import Settings
from cog.logreg.sgd import Layer, Tensors, TrainSpec, build_module, initial_layers, sgd_step

#: An incomplete batch is filled up when that adds at most this share to the rows of an epoch.
_MOST_FILL = 0.05


class Learner:
    """K classifiers in training, and the buffers of a batch.

    Args:
        data: the data set.
        spec: the classifiers to train.
        settings: settings of the run.
        record: whether to sum up loss and hits of the batches, for K = 1.

    Attributes:
        state: all that the next step depends on, by name.
        lr: float32 ``(K,)``, learning rates of the present epoch.
        sums: loss, top-1 and top-5 hits of the epoch so far; None unless ``record``.
        form: how results.json names the arithmetic.
    """

    form: str
    _x: torch.Tensor  # rows of the batch

    def __init__(self, data: Data, spec: TrainSpec, settings: Settings, *, record: bool) -> None:
        assert not record or len(spec.pairs) == 1
        self._data, self._spec, self._settings = data, spec, settings
        self.device, self._size = data.features.device, min(settings.batch_size, len(spec.rows))
        self.state: dict[str, torch.Tensor] = {}
        self.lr = torch.zeros(len(spec.pairs), device=self.device)
        self._rates = self.lr.unbind()
        self.sums = metrics.new_sums(self.device) if record else None
        self._y = torch.zeros(self._size, dtype=torch.int64, device=self.device)

    def _new_batch(self) -> torch.Tensor:
        """Return room for the features of a batch, in the working precision."""
        features = self._data.features
        return torch.zeros(self._size, features.dim, dtype=features.dtype, device=self.device)

    def _filled(self, b: int) -> int:
        """Return the rows that the products of a step on ``b`` rows have; those beyond ``b`` get no gradient.

        With products of one shape only, their bits more often do not depend on the number of threads, so that runs can
        share the processors (:mod:`cog.logreg.parallel`).
        """
        return self._size if self._size - b <= _MOST_FILL * len(self._spec.rows) else b

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
        b = len(rows)
        self._data.features.batch(rows, out=self._x[:b])
        torch.index_select(self._data.targets, 0, rows.to(self.device, non_blocking=True), out=self._y[:b])

    def make_step(self, b: int) -> Callable[[], None]:
        """Return the function that updates all classifiers on the ``b`` rows in place."""
        raise NotImplementedError

    def layers(self, k: int) -> list[Layer]:
        """Return weight and bias of each layer of a classifier; the tensors change with the next step."""
        raise NotImplementedError

    def is_finite(self) -> list[bool]:
        """Return whether the weights of each classifier are finite; waits for the device."""
        totals = [
            torch.stack([tensor.sum() for layer in self.layers(k) for tensor in layer]).sum()
            for k in range(len(self._spec.pairs))
        ]
        return torch.isfinite(torch.stack(totals)).tolist()

    def _record(self, logits: torch.Tensor, y: torch.Tensor) -> None:
        if self.sums is not None:
            metrics.add_batch(self.sums, logits, y)

    def _update(
        self,
        k: int,
        parameters: Tensors,
        gradients: Tensors,
        velocities: Tensors,
    ) -> None:
        wd, momentum = self._spec.pairs[k][1], self._settings.momentum
        sgd_step(parameters, gradients, velocities, lr=self._rates[k], wd=wd, momentum=momentum)


class SoftmaxLearner(Learner):
    """K logistic regressions, with the gradient of the cross-entropy written out: softmax minus one-hot."""

    def __init__(self, data: Data, spec: TrainSpec, settings: Settings, *, record: bool) -> None:
        super().__init__(data, spec, settings, record=record)
        self._k, self._c = len(spec.pairs), len(data.labels)
        self._logits = torch.zeros(self._size, self._k, self._c, device=self.device)
        self._true = torch.zeros(self._size, self._k, dtype=torch.int64, device=self.device)
        self._minus_one = torch.full((self._size * self._k, 1), -1.0, device=self.device)
        (layer,) = initial_layers([data.features.dim, self._c], spec.init_seed)
        self._start(*(tensor.to(self.device) for tensor in layer))

    def _start(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """Make state and buffers; all classifiers begin with ``weight`` ``(C, d)`` and ``bias`` ``(C,)``."""
        raise NotImplementedError

    def _passes(self, logits: torch.Tensor, b: int) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return the parts of a step before and after the softmax, for batches of ``b`` rows.

        The first one writes the ``logits`` ``(size, K, C)``, size >= ``b``. The second one finds the gradient of the
        sum of the losses by them in their place, and updates the classifiers by the mean.
        """
        raise NotImplementedError

    def make_step(self, b: int) -> Callable[[], None]:
        """See :meth:`Learner.make_step`."""
        logits = self._logits[: self._filled(b)]
        forward, backward = self._passes(logits, b)
        rows, fill = logits[:b].view(-1, self._c), logits[b:]  # a row per image and classifier
        y, true, minus_one = self._y[:b], self._true[:b], self._minus_one[: b * self._k]
        y_column, true_column = y[:, None], true.view(-1, 1)

        def step() -> None:
            forward()
            self._record(rows, y)
            torch.softmax(rows, 1, out=rows)
            true.copy_(y_column)
            rows.scatter_add_(1, true_column, minus_one)
            fill.zero_()
            backward()

        return step


class LinearLearner(SoftmaxLearner):
    """Logistic regression on the features.

    The K classifiers lie one below the other in one matrix ``(K C, d)``: a batch takes one product for all logits and
    one for all gradients, which is faster than K small ones.
    """

    form = "dense"

    def _start(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self._x = self._new_batch()
        self.state = {"weight": weight.repeat(self._k, 1), "bias": bias.repeat(self._k)}
        self._by_weight, self._by_bias = map(torch.zeros_like, self.state.values())
        self.state["velocity"], self.state["bias_velocity"] = map(torch.zeros_like, self.state.values())
        # What the products take and give: the float32 tensors themselves, or copies in the working precision.
        exact = self.state["weight"], self._by_weight, self._logits.view(self._size, -1)
        self._weight, self._gradient, self._product = (tensor.to(self._x.dtype) for tensor in exact)
        self._low = self._x.dtype != torch.float32

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that a step changes."""
        return [*super().tensors, *([self._weight] if self._low else [])]

    def resume(self, state: dict[str, torch.Tensor]) -> None:
        """Go on from a saved :attr:`state`."""
        super().resume(state)
        self._weight.copy_(self.state["weight"])

    def _passes(self, logits: torch.Tensor, b: int) -> tuple[Callable[[], None], Callable[[], None]]:
        state, by_weight, by_bias = self.state, self._by_weight, self._by_bias
        low, weight, gradient, bias = self._low, self._weight, self._gradient, state["bias"]
        x, product, logits = self._x[: len(logits)], self._product[: len(logits)], logits.flatten(1)
        weight_t, product_t = weight.T, product.T
        parameters, gradients, velocities = (
            [*zip(*(tensor.split(self._c) for tensor in pair), strict=True)]
            for pair in (
                (state["weight"], bias),
                (by_weight, by_bias),
                (state["velocity"], state["bias_velocity"]),
            )
        )

        def forward() -> None:
            if low:  # one operation on mixed types would make a float32 copy first
                logits.copy_(torch.mm(x, weight_t, out=product)).add_(bias)
            else:
                torch.addmm(bias, x, weight_t, out=logits)

        def backward() -> None:
            if low:
                product.copy_(logits)
            torch.addmm(gradient, product_t, x, beta=0, alpha=1 / b, out=gradient)
            if low:
                by_weight.copy_(gradient)
            torch.sum(logits, 0, out=by_bias).mul_(1 / b)
            for k in range(self._k):
                self._update(k, parameters[k], gradients[k], velocities[k])
            if low:
                weight.copy_(state["weight"])

        return forward, backward

    def layers(self, k: int) -> list[Layer]:
        """See :meth:`Learner.layers`."""
        part = slice(k * self._c, (k + 1) * self._c)
        return [(self.state["weight"][part], self.state["bias"][part])]


class MlpLearner(Learner):
    """A multi-layer perceptron (``CLF.TYPE mlp`` and ``mlp_noact``): one ``torch.nn.Sequential`` under autograd.

    The first version of the paper (supplement C.3) trains two hidden layers of 2048 units on the unnormalized features,
    with ReLU and, as a control, without any activation. With bfloat16 features a step is under autocast.
    """

    form = "mlp"

    def __init__(self, data: Data, spec: TrainSpec, settings: Settings, *, record: bool) -> None:
        super().__init__(data, spec, settings, record=record)
        assert len(spec.pairs) == 1
        sizes = settings.layer_sizes(data.features.dim, len(data.labels))
        self._module = build_module(sizes, relu=settings.has_relu).to_empty(device=self.device)
        self._parameters = list(self._module.parameters())
        self._velocities = [torch.zeros_like(parameter.data) for parameter in self._parameters]
        initial = [tensor for layer in initial_layers(sizes, spec.init_seed) for tensor in layer]
        for i, (parameter, values) in enumerate(zip(self._parameters, initial, strict=True)):
            self.state[f"parameter{i}"] = parameter.data.copy_(values)
        self.state |= {f"velocity{i}": velocity for i, velocity in enumerate(self._velocities)}
        self._x = self._new_batch()

    def make_step(self, b: int) -> Callable[[], None]:
        """See :meth:`Learner.make_step`."""
        x, y = self._x[: self._filled(b)], self._y[:b]
        low = x.dtype != torch.float32
        parameters = [parameter.data for parameter in self._parameters]

        def step() -> None:
            with torch.enable_grad():
                # Without its cache: cast weights must not outlive the step, whose graph may be replayed.
                with torch.autocast(self.device.type, torch.bfloat16, enabled=low, cache_enabled=False):
                    logits = self._module(x)
                logits = logits[:b].float()
                loss = torch.nn.functional.cross_entropy(logits, y)
                gradients = torch.autograd.grad(loss, self._parameters)
            self._record(logits.detach(), y)
            self._update(0, parameters, [gradient.contiguous() for gradient in gradients], self._velocities)

        return step

    def layers(self, k: int) -> list[Layer]:
        """See :meth:`Learner.layers`."""
        parameters = [parameter.data for parameter in self._parameters]
        return list(zip(parameters[::2], parameters[1::2], strict=True))
