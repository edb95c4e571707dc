"""Classifiers in training: the state of an SGD step and the step itself, in plain torch operations for any device.

A learner holds K classifiers that see the same batches. :meth:`Learner.load` puts a batch into buffers that are
allocated once (the system would map and clear new buffers of this size in every step), and a step does one update from
these buffers. It reads and writes tensors at fixed addresses and never waits for the host, so that it can be captured
in a CUDA graph (:mod:`cog.logreg.graphs`). :meth:`Learner.make_step` makes its views (slices, transposes) once per size
of a batch: there are about 20, and on a CPU a step of 100 classes would take a third longer with new ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from cog.logreg import metrics
from cog.logreg.matrix import Data
from cog.logreg.settings import Settings
from cog.logreg.sgd import Layer, TrainSpec, build_module, initial_layers

Step = Callable[[], None]

#: An incomplete batch is filled up when that adds at most this share to the rows of an epoch.
_MOST_FILL = 0.05


class Learner:
    """K classifiers in training, and the buffers of a batch.

    Args:
        data: the data set.
        spec: the classifiers to train.
        settings: settings of the run.

    Attributes:
        state: tensors that the next step depends on, by name.
        lr: learning rates of the current epoch, float32 ``(K,)``.
        sums: loss, top-1 and top-5 hits of the epoch so far; None unless they are recorded.
        form: name of the arithmetic in results.json.
    """

    form: str
    _x: torch.Tensor  # rows of the batch

    def __init__(self, data: Data, spec: TrainSpec, settings: Settings) -> None:
        assert not spec.record or len(spec.pairs) == 1
        self._data, self._spec, self._settings = data, spec, settings
        self.device, self._size = data.features.device, min(settings.batch_size, len(spec.rows))
        self.state: dict[str, torch.Tensor] = {}
        self.lr = torch.zeros(len(spec.pairs), device=self.device)
        self._rates = self.lr.unbind()
        self.sums = metrics.new_sums(self.device) if spec.record else None
        self._y = torch.zeros(self._size, dtype=torch.int64, device=self.device)

    def _new_batch(self) -> torch.Tensor:
        """Return a buffer for the features of a batch, in the working precision."""
        features = self._data.features
        return torch.zeros(self._size, features.dim, dtype=features.dtype, device=self.device)

    def _filled(self, b: int) -> int:
        """Return the number of rows in the products of a step on ``b`` rows; rows beyond ``b`` have no gradient.

        The bits of products of a single shape depend less often on the number of threads, so that runs can share the
        processors (:mod:`cog.logreg.parallel`).
        """
        return self._size if self._size - b <= _MOST_FILL * len(self._spec.rows) else b

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors that a step changes and a later one reads."""
        return [*self.state.values(), *([] if self.sums is None else [self.sums])]

    def resume(self, state: dict[str, torch.Tensor]) -> None:
        """Continue from a saved :attr:`state`."""
        for name, tensor in self.state.items():
            tensor.copy_(state[name])

    def begin_epoch(self, rates: torch.Tensor) -> None:
        """Set the learning rates ``(K,)`` of an epoch."""
        self.lr.copy_(rates)
        if self.sums is not None:
            self.sums.zero_()

    def load(self, rows: torch.Tensor) -> None:
        """Copy the next batch into the buffers; ``rows``: int64 ``(b,)``, on the index device of the features."""
        b = len(rows)
        self._data.features.batch(rows, out=self._x[:b])
        torch.index_select(self._data.targets, 0, rows.to(self.device, non_blocking=True), out=self._y[:b])

    def make_step(self, b: int) -> Step:
        """Return the function that updates all classifiers in place on a batch of ``b`` rows in the buffers."""
        raise NotImplementedError

    def layers(self, k: int) -> list[Layer]:
        """Return weight and bias of each layer of classifier ``k``; the tensors change with the next step."""
        raise NotImplementedError

    def is_finite(self) -> list[bool]:
        """Return whether the weights of each classifier are finite; waits for the device."""
        n = len(self._spec.pairs)
        sums = [tensor.sum() for k in range(n) for layer in self.layers(k) for tensor in layer]
        return list(map(math.isfinite, torch.stack(sums).view(n, -1).sum(1).tolist()))

    def _record(self, logits: torch.Tensor, y: torch.Tensor) -> None:
        if self.sums is not None:
            metrics.add_batch(self.sums, logits, y)

    def _update(
        self,
        k: int,
        parameters: list[torch.Tensor],
        gradients: list[torch.Tensor],
        velocities: list[torch.Tensor],
    ) -> None:
        """Do one update of ``torch.optim.SGD`` in place: decay goes into the gradient, momentum without dampening.

        The tensors are contiguous and float32; velocities are not changed without momentum. The learning rate is read
        from a tensor, so that a captured step has its current value.
        """
        lr, wd, momentum = self._rates[k], self._spec.pairs[k][1], self._settings.momentum
        if lr.device.type in ("cpu", "cuda"):
            # The call of torch.optim.SGD(fused=True): one pass over the memory.
            torch._fused_sgd_(
                parameters, gradients, velocities if momentum else [], weight_decay=wd, momentum=momentum, lr=lr,
                dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
            )  # fmt: skip
            return
        for parameter, gradient, velocity in zip(parameters, gradients, velocities, strict=True):
            velocity.mul_(momentum).add_(gradient).add_(parameter, alpha=wd)
            parameter.addcmul_(velocity, lr, value=-1.0)


class SoftmaxLearner(Learner):
    """K logistic regressions, with the gradient of the cross-entropy written out: softmax minus one-hot.

    Logits have the shape ``(b, K, C)``, or ``(K, b, C)`` unless ``batch_first``.
    """

    batch_first = True

    def __init__(self, data: Data, spec: TrainSpec, settings: Settings) -> None:
        super().__init__(data, spec, settings)
        self._k, self._c = len(spec.pairs), len(data.labels)
        self._logits = torch.empty(self._size * self._k * self._c, device=self.device)
        (layer,) = initial_layers([data.features.dim, self._c], spec.init_seed)
        self._start(*(tensor.to(self.device) for tensor in layer))

    def _start(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """Allocate state and buffers; all classifiers begin with ``weight`` ``(C, d)`` and ``bias`` ``(C,)``."""
        raise NotImplementedError

    def _forward(self, b: int, logits: torch.Tensor) -> Step:
        """Return the function that writes the logits of the batch into ``logits``."""
        raise NotImplementedError

    def _backward(self, b: int, gradient: torch.Tensor) -> Step:
        """Return the function that updates the classifiers from ``gradient``, of the mean loss by the logits."""
        raise NotImplementedError

    def make_step(self, b: int) -> Step:
        """See :meth:`Learner.make_step`."""
        size = self._filled(b)
        shape = (size, self._k) if self.batch_first else (self._k, size)
        logits = self._logits[: size * self._k * self._c].view(*shape, self._c)
        flat, y = logits.view(-1, self._c), self._y[:size]
        classes = (y[:, None] if self.batch_first else y).expand(shape)[:, :, None]
        minus_one = torch.full((1, 1, 1), -1.0, device=self.device).expand(*shape, 1)
        recorded, filling = (flat[:b], y[:b]), logits[b:] if size > b else None
        forward, backward = self._forward(size, logits), self._backward(size, logits)

        def step() -> None:
            forward()
            self._record(*recorded)
            torch.softmax(flat, 1, out=flat)
            logits.scatter_add_(2, classes, minus_one)
            flat.mul_(1 / b)
            if filling is not None:
                filling.zero_()
            backward()

        return step


class LinearLearner(SoftmaxLearner):
    """Logistic regression on the features.

    The K classifiers are stacked in one matrix ``(K C, d)``: a batch takes one product for all logits and one for all
    gradients, which is faster than K small products.
    """

    form = "dense"

    def _start(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self._x = self._new_batch()
        self.state = {"weight": weight.repeat(self._k, 1), "bias": bias.repeat(self._k)}
        self._by_weight, self._by_bias = map(torch.zeros_like, self.state.values())
        self.state["velocity"], self.state["bias_velocity"] = map(torch.zeros_like, self.state.values())
        state, dtype = self.state, self._x.dtype
        tensors = (
            state["weight"], state["bias"], self._by_weight, self._by_bias, state["velocity"], state["bias_velocity"],
        )  # fmt: skip
        #: Of each classifier: parameters, gradients and velocities, of weight and bias.
        self._parts = [
            (k, [weight, bias], [by_weight, by_bias], velocities)
            for k, (weight, bias, by_weight, by_bias, *velocities) in enumerate(
                zip(*(tensor.split(self._c) for tensor in tensors), strict=True)
            )
        ]
        self._low = dtype != torch.float32
        if self._low:
            self._low_weight = torch.empty_like(state["weight"], dtype=dtype)
            self._low_logits = torch.empty_like(self._logits, dtype=dtype).view(self._size, -1)
            self._low_gradient = torch.empty_like(self._by_weight, dtype=dtype)

    def _forward(self, b: int, logits: torch.Tensor) -> Step:
        out, x, weight, bias = logits.view(b, -1), self._x[:b], self.state["weight"], self.state["bias"]
        weight_t = weight.T
        if self._low:
            low_weight, low = self._low_weight, self._low_logits[:b]
            low_weight_t = low_weight.T

        def forward() -> None:
            if self._low:
                low_weight.copy_(weight)
                torch.mm(x, low_weight_t, out=low)
                out.copy_(low).add_(bias)  # one operation on mixed types would make a float32 copy first
            else:
                torch.addmm(bias, x, weight_t, out=out)

        return forward

    def _backward(self, b: int, gradient: torch.Tensor) -> Step:
        x, by_logits = self._x[:b], gradient.view(b, -1)
        by_logits_t = by_logits.T
        if self._low:
            low = self._low_logits[:b]
            low_t = low.T

        def backward() -> None:
            if self._low:
                low.copy_(by_logits)
                self._by_weight.copy_(torch.mm(low_t, x, out=self._low_gradient))
            else:
                torch.mm(by_logits_t, x, out=self._by_weight)
            torch.sum(by_logits, 0, out=self._by_bias)
            for part in self._parts:
                self._update(*part)

        return backward

    def layers(self, k: int) -> list[Layer]:
        """See :meth:`Learner.layers`."""
        part = slice(k * self._c, (k + 1) * self._c)
        return [(self.state["weight"][part], self.state["bias"][part])]


class MlpLearner(Learner):
    """A multi-layer perceptron (``CLF.TYPE mlp`` and ``mlp_noact``): one ``torch.nn.Sequential`` under autograd.

    The first version of the paper (supplement C.3) trains two hidden layers of 2048 units on the unnormalized features,
    with ReLU and, as a control, without any activation. With bfloat16 features, a step uses autocast.
    """

    form = "mlp"

    def __init__(self, data: Data, spec: TrainSpec, settings: Settings) -> None:
        super().__init__(data, spec, settings)
        assert len(spec.pairs) == 1
        sizes = settings.layer_sizes(data.features.dim, len(data.labels))
        self._module = build_module(sizes, relu=settings.has_relu).to_empty(device=self.device)
        self._parameters = [parameter.data for parameter in self._module.parameters()]
        self._velocities = [torch.zeros_like(parameter) for parameter in self._parameters]
        initial = [tensor for layer in initial_layers(sizes, spec.init_seed) for tensor in layer]
        for parameter, values in zip(self._parameters, initial, strict=True):
            parameter.copy_(values)
        for name, tensors in (("parameter", self._parameters), ("velocity", self._velocities)):
            self.state |= {f"{name}{i}": tensor for i, tensor in enumerate(tensors)}
        self._x = self._new_batch()

    def make_step(self, b: int) -> Step:
        """See :meth:`Learner.make_step`."""
        x, y = self._x[: self._filled(b)], self._y[:b]
        parameters = [*self._module.parameters()]
        low = x.dtype != torch.float32

        def step() -> None:
            with torch.enable_grad():
                # Without the cache of autocast: cast weights must not outlive the step, which may be replayed from a
                # graph.
                with torch.autocast(self.device.type, torch.bfloat16, enabled=low, cache_enabled=False):
                    logits = self._module(x)
                logits = logits[:b].float()
                loss = torch.nn.functional.cross_entropy(logits, y)
                gradients = torch.autograd.grad(loss, parameters)
            self._record(logits.detach(), y)
            self._update(
                0, self._parameters, [gradient.contiguous() for gradient in gradients], self._velocities
            )

        return step

    def layers(self, k: int) -> list[Layer]:
        """See :meth:`Learner.layers`."""
        return list(zip(self._parameters[::2], self._parameters[1::2], strict=True))
