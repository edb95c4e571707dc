"""Classifiers in training: the state of an SGD step and the step itself, in plain torch operations for any device.

A learner holds K classifiers that see the same batches. :meth:`Learner.load` puts a batch into buffers that are
allocated once (the system would map and clear new buffers of this size in every step), :meth:`Learner.step` does one
update from these buffers. A step reads and writes tensors at fixed addresses and never waits for the host, so that it
can be captured in a CUDA graph (:mod:`cog.logreg.graphs`).
"""

from __future__ import annotations

import math

import torch

from cog.logreg import metrics
from cog.logreg.matrix import Data
from cog.logreg.settings import Settings
from cog.logreg.sgd import Layer, TrainSpec, build_module, initial_layers

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

    def step(self, b: int) -> None:
        """Update all classifiers on the ``b`` rows in place."""
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
        lr, wd, momentum = self.lr[k], self._spec.pairs[k][1], self._settings.momentum
        if lr.device.type in (
            "cpu",
            "cuda",
        ):  # the call of torch.optim.SGD(fused=True): one pass over the memory
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
        self._minus_one = torch.full((1, 1, 1), -1.0, device=self.device)
        (layer,) = initial_layers([data.features.dim, self._c], spec.init_seed)
        self._start(*(tensor.to(self.device) for tensor in layer))

    def _start(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """Allocate state and buffers; all classifiers begin with ``weight`` ``(C, d)`` and ``bias`` ``(C,)``."""
        raise NotImplementedError

    def _forward(self, b: int, logits: torch.Tensor) -> None:
        """Write the logits of the batch into ``logits``."""
        raise NotImplementedError

    def _backward(self, b: int, gradient: torch.Tensor) -> None:
        """Update the classifiers from the gradient of the mean loss with respect to the logits."""
        raise NotImplementedError

    def step(self, b: int) -> None:
        """See :meth:`Learner.step`."""
        size = self._filled(b)
        shape = (size, self._k) if self.batch_first else (self._k, size)
        logits = self._logits[: size * self._k * self._c].view(*shape, self._c)
        flat, y = logits.view(-1, self._c), self._y[:size]
        self._forward(size, logits)
        self._record(flat[:b], y[:b])
        torch.softmax(flat, 1, out=flat)
        classes = (y[:, None] if self.batch_first else y).expand(shape)[:, :, None]
        logits.scatter_add_(2, classes, self._minus_one.expand(*shape, 1))
        flat.mul_(1 / b)
        if size > b:
            logits[b:].zero_()
        self._backward(size, logits)


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
        #: Parameters, gradients and velocities of each classifier, one after the other.
        self._parts = [*zip(*(tensor.split(self._c) for tensor in tensors), strict=True)]
        self._low = dtype != torch.float32
        if self._low:
            self._low_weight = torch.empty_like(state["weight"], dtype=dtype)
            self._low_logits = torch.empty_like(self._logits, dtype=dtype).view(self._size, -1)
            self._low_gradient = torch.empty_like(self._by_weight, dtype=dtype)

    def _forward(self, b: int, logits: torch.Tensor) -> None:
        out, x, bias = logits.view(b, -1), self._x[:b], self.state["bias"]
        if not self._low:
            torch.addmm(bias, x, self.state["weight"].T, out=out)
            return
        low = torch.mm(x, self._low_weight.copy_(self.state["weight"]).T, out=self._low_logits[:b])
        out.copy_(low).add_(bias)  # one operation on mixed types would make a float32 copy first

    def _backward(self, b: int, gradient: torch.Tensor) -> None:
        x, by_logits = self._x[:b], gradient.view(b, -1)
        if self._low:
            low = self._low_logits[:b].copy_(by_logits)
            self._by_weight.copy_(torch.mm(low.T, x, out=self._low_gradient))
        else:
            torch.mm(by_logits.T, x, out=self._by_weight)
        torch.sum(by_logits, 0, out=self._by_bias)
        for k, parts in enumerate(self._parts):
            self._update(k, [*parts[:2]], [*parts[2:4]], [*parts[4:]])

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

    def step(self, b: int) -> None:
        """See :meth:`Learner.step`."""
        x, y = self._x[: self._filled(b)], self._y[:b]
        low = x.dtype != torch.float32
        with torch.enable_grad():
            # Without the cache of autocast: cast weights must not outlive the step, which may be replayed from a graph.
            with torch.autocast(self.device.type, torch.bfloat16, enabled=low, cache_enabled=False):
                logits = self._module(x)
            logits = logits[:b].float()
            loss = torch.nn.functional.cross_entropy(logits, y)
            gradients = torch.autograd.grad(loss, [*self._module.parameters()])
        self._record(logits.detach(), y)
        self._update(0, self._parameters, [gradient.contiguous() for gradient in gradients], self._velocities)

    def layers(self, k: int) -> list[Layer]:
        """See :meth:`Learner.layers`."""
        return list(zip(self._parameters[::2], self._parameters[1::2], strict=True))
