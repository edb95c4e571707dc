"""Multi-layer perceptrons instead of logistic regression (``CLF.TYPE mlp`` and ``mlp_noact``).

The first version of the paper (supplement C.3) trains two hidden layers of 2048 units on the unnormalised features,
with ReLU and, as a control, without any activation. Everything else is the protocol's: search, seeds, splits, SGD with
momentum, cosine decay, batches.

The mathematics of ``torch.nn.Sequential``, ``CrossEntropyLoss`` and ``torch.optim.SGD``, arranged as in the engine of
logistic regression (:mod:`cog.logreg.engine`):

* Back-propagation is written out, into buffers that are made once and shared by all trials; there is no autograd
  graph, and nothing is computed that nobody reads (the gradient of the features; accuracies where no history is kept).
* Momentum, weight decay and step are one fused pass over each parameter.
* Small networks train several trials of a search on each batch that is gathered; at full size the products of one
  take hundreds of times longer than gathering, and nothing would be gained.
* With bfloat16 (``CLF.PRECISION``) the products take bfloat16 operands (features, activations, copies of the
  parameters, gradients) and accumulate in float32; master parameters, momentum, softmax and all scores stay float32.

A run gives the same bits whatever is trained beside it: every product has the shape of one run, on buffers that each
run uses in turn.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from cog.device import exact_float32
from cog.logreg import metrics
from cog.logreg.checkpoint import Checkpoint, RunState
from cog.logreg.cuda_engine import training_precision
from cog.logreg.dense import sgd_step
from cog.logreg.engine import Engine, Live, Monitor, OnEpoch
from cog.logreg.matrix import FeatureMatrix
from cog.logreg.settings import Settings
from cog.logreg.sgd import Fit, History, Recipe, Run, learning_rate, logged_rate
from cog.logreg.streaming import HostMatrix, Slot, open_feed
from cog.randomness import cpu_generator

#: Parameters trained in one sweep over the batches: 2 trials of half the full size, many of a small one.
_PARAMETERS = 2**23

#: Memory of a block of batches on a GPU, gathered while the one before is trained on. A CPU takes batch by batch.
_BLOCK_BYTES = 64 * 2**20

_ACTIVATIONS = {"mlp": "relu", "mlp_noact": "identity"}

Layer = tuple[torch.Tensor, torch.Tensor]


def initial_layers(sizes: Sequence[int], seed: int) -> list[Layer]:
    """Draw weights and biases of a chain of layers as ``torch.nn.Linear`` does: uniform within 1 / sqrt(inputs).

    One generator for all, in the order of the layers and weight before bias: what ``torch.nn.Sequential`` of
    ``Linear`` layers gives after ``torch.manual_seed(seed)``.

    Args:
        sizes: ``[d, h, ..., C]``.
        seed: of the CPU generator.
    """
    generator = cpu_generator(seed)
    layers = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        # nn.Linear: kaiming_uniform with a = sqrt(5), so 1 / sqrt(fan_in) up to the rounding of this expression
        bound = math.sqrt(3.0) * (math.sqrt(2.0 / (1 + 5)) / math.sqrt(fan_in))
        weight = torch.empty(fan_out, fan_in).uniform_(-bound, bound, generator=generator)
        bound = 1 / math.sqrt(fan_in)
        layers.append((weight, torch.empty(fan_out).uniform_(-bound, bound, generator=generator)))
    return layers


def logits(layers: Sequence[Layer], activation: str, x: torch.Tensor) -> torch.Tensor:
    """Return the logits ``(b, C)`` of a network for features ``(b, d)``, all of one type."""
    for weight, bias in layers[:-1]:
        x = torch.addmm(bias, x, weight.T)
        if activation == "relu":
            x.relu_()
    return torch.addmm(layers[-1][1], x, layers[-1][0].T)


class MlpEngine:
    """An engine that trains MLPs; storage of the features is that of another one.

    Args:
        base: holds the features; its device and precision are used.
        settings: type and hidden layers of the classifiers.
    """

    #: One network fills a GPU.
    side_by_side = 1

    def __init__(self, base: Engine, settings: Settings) -> None:
        assert settings.is_mlp
        self._base, self._settings = base, settings
        self.device, self.precision = base.device, base.precision
        self.activation = _ACTIVATIONS[settings.classifier]
        # Made once: where a GPU gathers rows while it trains.
        self._gathering = torch.cuda.Stream(base.device) if base.device.type == "cuda" else None

    def together(self, n_classes: int) -> int:
        """See :meth:`cog.logreg.engine.Engine.together`."""
        sizes = self._settings.layer_sizes(self._settings.mlp_hidden, n_classes)
        return max(1, _PARAMETERS // _multiplications(sizes))

    def load(self, x: torch.Tensor, norms: torch.Tensor | None = None) -> FeatureMatrix:
        """See :meth:`cog.logreg.engine.Engine.load`."""
        return self._base.load(x, norms)

    def load_test(self, x: torch.Tensor) -> torch.Tensor:
        """See :meth:`cog.logreg.engine.Engine.load_test`."""
        return self._base.load_test(x)

    @torch.no_grad()
    def validate(
        self, features: FeatureMatrix, y: torch.Tensor, rows: torch.Tensor, fits: Sequence[Fit | Live]
    ) -> list[float]:
        """See :meth:`cog.logreg.engine.Engine.validate`."""

        def of(fit: Fit | Live) -> Callable[[torch.Tensor], torch.Tensor]:
            assert isinstance(fit, Fit), "MLPs are not pruned"
            return lambda x: logits([*fit.hidden, (fit.weight, fit.bias)], self.activation, x)

        with exact_float32():
            return metrics.top1_of_logits(
                features, y.to(self.device), rows.to(self.device), [of(fit) for fit in fits]
            )

    @torch.no_grad()
    def fit(
        self,
        features: FeatureMatrix,
        y: torch.Tensor,
        runs: Sequence[Run],
        recipe: Recipe,
        *,
        test: tuple[torch.Tensor, torch.Tensor] | None = None,
        on_epoch: OnEpoch | None = None,
        monitor: Monitor | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> list[Fit]:
        """See :meth:`cog.logreg.engine.Engine.fit`."""
        assert test is None or len(runs) == 1
        assert monitor is None, "MLPs are not pruned"
        states: Sequence[RunState | None] = (
            [None] * len(runs) if checkpoint is None else checkpoint.restore(len(runs))
        )
        labels = y if isinstance(features, HostMatrix) else y.to(self.device)
        sizes = self._settings.layer_sizes(features.dim, recipe.n_classes)
        width = max(1, _PARAMETERS // _multiplications(sizes))
        nets = [_Net(self, run, sizes, state) for run, state in zip(runs, states, strict=True)]
        groups: dict[tuple[int, int, int], list[_Net]] = {}
        for net in nets:
            if not net.ended:
                groups.setdefault((id(net.run.rows), net.run.order_seed, net.epochs), []).append(net)

        def save() -> None:
            if checkpoint is not None and checkpoint.due():
                checkpoint.save([net.state() for net in nets])

        with self._on_device(), training_precision(self.precision):
            for group in groups.values():
                for start in range(0, len(group), width):
                    sweep = _Sweep(self, features, labels, group[start : start + width], recipe, sizes)
                    with contextlib.closing(sweep):
                        sweep.train(test, on_epoch, save)
        return [net.fit() for net in nets]

    def _on_device(self) -> contextlib.AbstractContextManager[object]:
        return torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()


def _multiplications(sizes: Sequence[int]) -> int:
    """Weights of a chain of layers: multiplications per row and product."""
    return sum(a * b for a, b in itertools.pairwise(sizes))


class _Net:
    """One network in training.

    Memory is made when training begins and given back, but for the parameters, when it ends.

    Attributes:
        run: what is trained.
        parameters: weight and bias of each layer in turn, float32.
        epochs: finished ones.
        ended: see :class:`cog.logreg.checkpoint.RunState`.
    """

    def __init__(self, engine: MlpEngine, run: Run, sizes: Sequence[int], state: RunState | None) -> None:
        self.run, self._engine, self._sizes = run, engine, sizes
        self.epochs, self.ended, self.seconds = 0, "", 0.0
        self.history: History | None = None
        self.predictions: torch.Tensor | None = None
        self.parameters: list[torch.Tensor] = []
        self.velocities: list[torch.Tensor] = []
        self.low: list[torch.Tensor] = []
        if state is not None:
            self.epochs, self.ended, self.seconds = state.epochs, state.ended, state.seconds
            self.parameters = [t.to(engine.device) for t in state.values["parameters"]]
            self.velocities = [t.to(engine.device) for t in state.values.get("velocities", ())]
            if state.logs is not None:
                self.history = History(state.logs)

    def start(self, dtype: torch.dtype) -> None:
        """Make what training needs."""
        if not self.parameters:
            layers = initial_layers(self._sizes, self.run.init_seed)
            self.parameters = [t.to(self._engine.device) for layer in layers for t in layer]
            self.velocities = [torch.zeros_like(t) for t in self.parameters]
        low = dtype != torch.float32
        self.low = [t.to(dtype) for t in self.parameters] if low else self.parameters

    def end(self, how: str) -> None:
        """Note that training is over."""
        self.ended, self.velocities, self.low = how, [], []

    def layers(self) -> list[Layer]:
        """Return weight and bias of each layer."""
        return list(zip(self.parameters[::2], self.parameters[1::2], strict=True))

    def state(self) -> RunState | None:
        """Return what a checkpoint keeps; None before the first epoch is finished."""
        if not self.epochs:
            return None
        values: dict[str, Any] = {"parameters": self.parameters}
        if not self.ended:
            values["velocities"] = self.velocities
        logs = None if self.history is None else self.history.logs
        return RunState(self.epochs, values, self.ended, self.seconds, logs)

    def fit(self) -> Fit:
        """Return the trained classifier."""
        *hidden, (weight, bias) = self.layers()
        return Fit(
            weight, bias, self.ended == "diverged", self.history, self.predictions, seconds=self.seconds,
            hidden=hidden, activation=self._engine.activation,
        )  # fmt: skip


class _Sweep:
    """Networks in lockstep over the same batches, and the buffers of a step."""

    def __init__(
        self,
        engine: MlpEngine,
        features: FeatureMatrix,
        y: torch.Tensor,
        nets: Sequence[_Net],
        recipe: Recipe,
        sizes: Sequence[int],
    ) -> None:
        first = nets[0]
        self._engine, self._recipe, self._nets = engine, recipe, list(nets)
        self._relu = engine.activation == "relu"
        self._n, self._dtype = len(first.run.rows), features.dtype
        device, dtype = engine.device, features.dtype
        self._size = size = min(recipe.batch_size, self._n)
        stream = engine._gathering
        steps = 1 if stream is None else max(1, _BLOCK_BYTES // (size * features.dim * dtype.itemsize))
        self._block = size * min(steps, -(-self._n // size))
        slots = [Slot(self._block, features.dim, dtype, device) for _ in range(2)]
        self._feed = open_feed(features, y, _orders(first.run, first.epochs, recipe.n_epochs), slots, stream)
        low = dtype != torch.float32

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty(*shape, dtype=dtype, device=device)

        hidden, n_classes = sizes[1:-1], sizes[-1]
        self._activations = [room(size, width, dtype=dtype) for width in hidden]
        self._gradients = [room(size, width, dtype=dtype) for width in hidden]
        self._logits, self._residual = room(size, n_classes), room(size, n_classes)
        self._low_logits = room(size, n_classes, dtype=dtype) if low else self._logits
        self._low_residual = room(size, n_classes, dtype=dtype) if low else self._residual
        shapes = list(zip(sizes[1:], sizes[:-1], strict=True))
        self._weight_gradients = [room(*shape) for shape in shapes]
        self._low_weight_gradients = [room(*shape, dtype=dtype) for shape in shapes] if low else []
        self._minus_one = torch.full((size, 1), -1.0, device=device)
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, top-1, top-5 over the epoch

    def close(self) -> None:
        """Stop what is still on its way."""
        self._feed.close()

    def train(
        self,
        test: tuple[torch.Tensor, torch.Tensor] | None,
        on_epoch: OnEpoch | None,
        save: Callable[[], None],
    ) -> None:
        """Run the epochs that are left; the networks hold the result."""
        recipe, active = self._recipe, list(self._nets)
        record = test is not None
        for net in active:
            net.start(self._dtype)
            net.history = net.history or (History() if record else None)
        began = time.monotonic()
        for epoch in range(active[0].epochs, recipe.n_epochs):
            rates = {net: learning_rate(net.run.lr, epoch, recipe.n_epochs) for net in active}
            self._sums.zero_()
            for x, y in self._batches():
                for net, lr in rates.items():
                    self._step(net, x, y, lr, record=record)
            last = epoch + 1 == recipe.n_epochs
            finite = torch.isfinite(torch.stack([_total(net.parameters) for net in active])).tolist()
            if test is not None:
                (net,) = active
                self._record(net, test, epoch, exact=last or not finite[0])
                if on_epoch is not None and net.history is not None:
                    on_epoch(epoch, net.history)
            seconds, began = (time.monotonic() - began) / len(active), time.monotonic()
            for net, good in zip(active, finite, strict=True):
                net.epochs += 1
                net.seconds += seconds
                if last or not good:
                    net.end("trained" if good else "diverged")
            active = [net for net in active if not net.ended]
            if not active:
                break
            save()

    def _batches(self) -> Iterator[Layer]:
        """Yield features ``(b, d)`` and labels ``(b,)`` of the batches of an epoch."""
        for start in range(0, self._n, self._block):
            slot = self._feed.next()
            n = min(self._block, self._n - start)
            yield from zip(slot.x[:n].split(self._size), slot.y[:n].split(self._size), strict=True)
            self._feed.release()

    def _step(self, net: _Net, x: torch.Tensor, y: torch.Tensor, lr: float, *, record: bool) -> None:
        """One SGD step of a network on a batch."""
        b, low = len(y), self._dtype != torch.float32
        weights, biases = net.low[::2], net.low[1::2]
        inputs = [x]
        for weight, bias, out in zip(weights[:-1], biases[:-1], self._activations, strict=True):
            torch.addmm(bias, inputs[-1], weight.T, out=out[:b])
            if self._relu:
                out[:b].relu_()
            inputs.append(out[:b])
        scores = self._logits[:b]
        if low:
            torch.mm(inputs[-1], weights[-1].T, out=self._low_logits[:b])
            scores.copy_(self._low_logits[:b]).add_(net.parameters[-1])
        else:
            torch.addmm(biases[-1], inputs[-1], weights[-1].T, out=scores)
        if record:
            rank = (metrics.true_class_rank if scores.device.type == "cpu" else rank_without_waiting)(
                scores, y
            )
            self._sums[0] += (torch.logsumexp(scores, 1) - scores.gather(1, y[:, None])[:, 0]).sum()
            self._sums[1] += (rank < 1).sum()
            self._sums[2] += (rank < 5).sum()
        residual = torch.softmax(scores, 1, out=self._residual[:b])
        residual.scatter_add_(1, y[:, None], self._minus_one[:b]).mul_(1 / b)
        gradient = residual if not low else self._low_residual[:b].copy_(residual)
        parameter_gradients: list[torch.Tensor] = []
        for layer in reversed(range(len(weights))):
            bias_gradient = (residual if layer + 1 == len(weights) else gradient).sum(0, dtype=torch.float32)
            parameter_gradients += [bias_gradient, self._weight_gradient(layer, gradient, inputs[layer])]
            if layer:
                below = self._gradients[layer - 1][:b]
                torch.mm(gradient, weights[layer], out=below)
                if self._relu:
                    torch.ops.aten.threshold_backward(below, inputs[layer], 0, grad_input=below)
                gradient = below
        sgd_step(
            net.parameters, parameter_gradients[::-1], net.velocities, lr=lr, wd=net.run.wd,
            momentum=self._recipe.momentum,
        )  # fmt: skip
        if low:
            torch._foreach_copy_(net.low, net.parameters)

    def _weight_gradient(self, layer: int, gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        out = self._weight_gradients[layer]
        if not self._low_weight_gradients:
            return torch.mm(gradient.T, x, out=out)
        return out.copy_(torch.mm(gradient.T, x, out=self._low_weight_gradients[layer]))

    def _record(self, net: _Net, test: tuple[torch.Tensor, torch.Tensor], epoch: int, *, exact: bool) -> None:
        """Add an epoch to the history; the last one is the result, the others are a curve."""
        recipe, activation = self._recipe, self._engine.activation
        loss, top1, top5 = (self._sums / self._n).tolist()
        dtype = torch.float32 if exact else self._dtype
        layers = [(w.to(dtype), b.to(dtype)) for w, b in net.layers()]
        with exact_float32():
            score, net.predictions = metrics.score_logits(
                *test,
                lambda x: logits(layers, activation, x.to(dtype)).float(),
                device=self._engine.device,
            )
        assert net.history is not None
        rate = logged_rate(net.run.lr, epoch, recipe.n_epochs)
        net.history.append(metrics.Score(loss, 100 * top1, 100 * top5), score, rate)


def _orders(run: Run, first: int, n_epochs: int) -> Iterator[torch.Tensor]:
    """Yield the rows of each epoch from ``first`` on, in their order."""
    generator = cpu_generator(run.order_seed)
    for epoch in range(n_epochs):
        order = torch.randperm(len(run.rows), generator=generator)
        if epoch >= first:
            yield run.rows[order]


def rank_without_waiting(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return :func:`cog.logreg.metrics.true_class_rank`, without making the host wait for a GPU."""
    target = scores.gather(1, y[:, None])
    lower_index = torch.arange(scores.shape[1], device=y.device) < y[:, None]
    before = ((scores > target) | ((scores == target) & lower_index)).sum(1)
    return before.where(torch.isfinite(target[:, 0]), scores.shape[1])


def _total(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a sum that is finite when all parameters are."""
    return torch.stack([t.sum() for t in parameters]).sum()
