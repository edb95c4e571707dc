"""SGD of S seeds x K trials of logistic regression in lockstep; the K trials of a seed share its rows.

A step is two products and two functions between them, each in two forms with equal results: fused by
``torch.compile`` on CUDA, where a graph holds :data:`GRAPH_STEPS` steps, so that the host does nothing in
between; and in place on buffers, on CPUs, where new memory costs more than arithmetic, and where there is no
compiler. Products of bfloat16 features accumulate in float32; weights, momentum and softmax are float32.
"""

import functools
import gc
import logging
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cog.errors import first_line
from cog.logreg import metrics
from cog.logreg.features import Features
from cog.logreg.mlp import Layer, linear

logger = logging.getLogger(__name__)

GRAPH_STEPS = 20
Tensors = list[Tensor]

# Shapes: logits (S, B, K, C), bias (S, K, C), y int64 (S, B), share float32 (B,): 1 / rows of the batch, 0
# for a row that only fills it; weights (S, K, C, d); rates lr and wd (S, K, 1, 1), or (S, K, 1) for a bias.


def softmax_gradient(logits: Tensor, bias: Tensor, y: Tensor, share: Tensor) -> Tensor:
    """Return the gradient of the mean cross-entropy by the logits: softmax minus one-hot."""
    probability = torch.softmax(logits.float() + bias[:, None], -1)
    one_hot = torch.arange(logits.shape[-1], device=y.device) == y[:, :, None, None]
    return ((probability - one_hot.float()) * share[:, None, None]).to(logits.dtype)


def softmax_gradient_in_place(floats: Tensor, y: Tensor, n_rows: int) -> None:
    """Turn logits with bias, float32 ``(B, K, C)``, into their gradient for labels ``(B,)``."""
    flat = floats.view(-1, floats.shape[-1])
    torch.softmax(flat, 1, out=flat)
    minus_one = torch.full((1, 1, 1), -1.0, device=y.device).expand(*floats.shape[:2], 1)
    floats.scatter_add_(2, y[:, None, None].expand(minus_one.shape), minus_one).mul_(1 / n_rows)


def update(
    weight: Tensor,
    velocity: Tensor,
    low: Tensor | None,
    grad: Tensor,
    lr: Tensor,
    wd: Tensor,
    momentum: float,
) -> None:
    """Do the update of ``torch.optim.SGD``; ``low``: the weight for the next product, if not float32."""
    velocity.copy_(momentum * velocity + grad.float() + wd * weight)
    weight.copy_(weight - lr * velocity)
    if low is not None:
        low.copy_(weight)


def update_in_place(
    parameters: Tensors, gradients: Tensors, velocities: Tensors, lr: Tensor, wd: float, momentum: float
) -> None:
    """Do the same for the contiguous float32 tensors of one classifier; ``lr``: a tensor of one number."""
    # That of torch.optim.SGD(fused=True), which reads and writes the memory once.
    usual: dict[str, Any] = {"dampening": 0, "nesterov": False, "maximize": False, "is_first_step": False}
    usual |= {"weight_decay": wd, "momentum": momentum, "lr": lr}
    torch._fused_sgd_(parameters, gradients, velocities if momentum else [], **usual)


@functools.cache
def compiled(function: Callable[..., Any], *key: object) -> Callable[..., Any]:
    """Return a function compiled for the one shape and precision that ``key`` stands for.

    PyTorch compiles the code of a function at most 8 times, so each key has a copy of the code.
    """
    assert isinstance(function, types.FunctionType)
    copy = types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    return torch.compile(copy, dynamic=False, fullgraph=True)


@functools.cache
def has_compiler(device_type: str) -> bool:
    """Return whether steps are compiled: on CUDA, if ``torch.compile`` works; a line says if it does not."""
    if device_type != "cuda":
        return False
    try:
        return bool(torch.compile(lambda x: x + 1, dynamic=False)(torch.ones(8, device=device_type))[0] == 2)
    except Exception as error:  # of many libraries: no Triton, no C compiler, an unknown GPU
        reason = device_type, first_line(error)
        logger.warning("torch.compile does not work for %s (%s); training is correct, but slower", *reason)
        return False


class Classifiers:
    """S x K classifiers of ``shape`` (S, K, C, d) in training on features, ``batch`` rows of a seed a step.

    ``state`` has what the next step depends on: weights ``(S, K, C, d)``, biases ``(S, K, C)``, velocities,
    float32. With ``record`` (K = 1), ``sums`` ``(S, 3)`` has loss, top-1 and top-5 hits of an epoch.
    """

    def __init__(
        self, features: Features, shape: tuple[int, ...], batch: int, momentum: float, record: bool
    ) -> None:
        s, k, c, d = self.shape = shape
        device, dtype = features.device, features.dtype
        self._features, self._batch, self._momentum = features, batch, momentum
        weight, bias = torch.zeros(shape, device=device), torch.zeros(s, k, c, device=device)
        velocity, bias_velocity = torch.zeros_like(weight), torch.zeros_like(bias)
        self.state = {"weight": weight, "bias": bias, "velocity": velocity, "bias_velocity": bias_velocity}
        self._low = torch.zeros(shape, dtype=dtype, device=device) if dtype != torch.float32 else None
        self._factors = (weight if self._low is None else self._low).view(s, k * c, d)
        self._lr, self._wd = torch.zeros(2, s, k, device=device)
        self.sums = metrics.new_sums(s, device) if record else None
        self._fused = has_compiler(device.type)
        if self._fused:
            key = (*shape, batch, momentum, dtype, torch.get_float32_matmul_precision(), device.type)
            self._gradient = compiled(softmax_gradient, key)
            self._update, self._update_bias = compiled(update, key), compiled(update, key, "bias")
            self._add_scores = compiled(metrics.add_scores, key)
            self._rows = torch.zeros(GRAPH_STEPS, s, batch, dtype=torch.int64, device=features.place)
            self._y = torch.zeros(GRAPH_STEPS, s, batch, dtype=torch.int64, device=device)
            self._share = torch.zeros(GRAPH_STEPS, batch, device=device)
            self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
            return
        # Buffers of one seed: seeds come one after the other, which leaves more of them in a cache.
        self._x = torch.empty(batch, d, dtype=dtype, device=device)
        self._logits = torch.empty(batch, k * c, dtype=dtype, device=device)
        self._floats = self._logits if self._low is None else self._logits.float()
        self._by_weight = torch.empty(k * c, d, dtype=dtype, device=device)
        self._wide = torch.empty(c, d, device=device)
        self._by_bias = torch.empty(k * c, device=device)
        self._decays: list[list[float]] = []
        # The parts of each classifier: to take them at each step would be 5 % of its time with 100 classes.
        wholes = *self.state.values(), self._factors.view(shape), self._lr
        self._parts = list(zip(*(whole.flatten(0, 1).unbind() for whole in wholes), strict=True))

    def begin(self, weight: Tensor, bias: Tensor, wd: Tensor) -> None:
        """Begin a training from weights ``(S, C, d)`` and biases ``(S, C)`` with weight decays ``(S, K)``."""
        self._wd.copy_(wd)
        self._decays = wd.float().tolist()  # those of the device, without waiting for it
        zeros = torch.zeros(())
        start = {"weight": weight[:, None], "bias": bias[:, None], "velocity": zeros, "bias_velocity": zeros}
        self.resume(start)

    def resume(self, state: dict[str, Tensor]) -> None:
        """Continue from a saved ``state``."""
        for name, tensor in self.state.items():
            tensor.copy_(state[name])
        if self._low is not None:
            self._low.copy_(self.state["weight"])

    def epoch(self, rows: Tensor, y: Tensor, lr: Tensor) -> None:
        """Do the steps of an epoch on ordered rows and labels, int64 ``(S, n)``, with rates ``(S, K)``.

        The rows are at the place of the features.
        """
        self._lr.copy_(lr)
        if self.sums is not None:
            self.sums.zero_()
        n, batch = rows.shape[1], self._batch
        if not self._fused:
            for start in range(0, n, batch):
                self._step_in_place(rows[:, start : start + batch], y[:, start : start + batch])
            return
        # Rows that fill the last batch have no gradient: one shape for all steps.
        n_steps = -(-n // batch)
        n_last = n - (n_steps - 1) * batch
        padded = (torch.nn.functional.pad(values, (0, n_steps * batch - n)) for values in (rows, y))
        rows, y = (values.view(-1, n_steps, batch).transpose(0, 1).contiguous() for values in padded)
        share = torch.full((n_steps, batch), 1 / batch, device=y.device)
        share[-1, :n_last] = 1 / n_last
        share[-1, n_last:] = 0
        for start in range(0, n_steps, GRAPH_STEPS):
            part = slice(start, start + GRAPH_STEPS)
            self._steps_fused(rows[part], y[part], share[part])

    def layers(self, s: int, k: int) -> list[Layer]:
        """Return weight and bias of a classifier; the tensors change with the next step."""
        return [(self.state["weight"][s, k], self.state["bias"][s, k])]

    def is_finite(self) -> list[list[bool]]:
        """Return whether the parameters of each classifier are finite, ``(S, K)``; waits for the device."""
        return torch.isfinite(self.state["weight"].sum((2, 3)) + self.state["bias"].sum(2)).tolist()

    def logits(self, x: Tensor, seed: int | None = None) -> Tensor:
        """Return float32 logits of features ``(b, d)``, of one seed ``(b, K, C)``, else ``(b, S K, C)``."""
        which = slice(None) if seed is None else slice(seed, seed + 1)
        weight, bias = self.state["weight"][which].flatten(0, 2), self.state["bias"][which].flatten()
        return linear(x, weight, bias).view(len(x), -1, self.shape[2])

    def _steps_fused(self, rows: Tensor, y: Tensor, share: Tensor) -> None:
        """Do up to :data:`GRAPH_STEPS` steps T on rows and labels ``(T, S, B)`` with shares ``(T, B)``."""
        n_steps = len(rows)
        for buffer, values in ((self._rows, rows), (self._y, y), (self._share, share)):
            buffer[:n_steps].copy_(values)
        if n_steps in self._graphs:
            self._graphs[n_steps].replay()
            return
        self._issue(n_steps)  # compiles, and libraries do their set-up, which a graph cannot hold
        if self._features.is_resident and self._rows.is_cuda:
            self._capture(n_steps)

    def _capture(self, n_steps: int) -> None:
        """Record a graph of steps, which are not executed; the graphs of a training share their memory.

        ``torch.cuda.graph`` would collect garbage and empty the cache first, which takes as long as a short
        training. Garbage is not collected in between: that could free a graph.
        """
        pool = next((known.pool() for known in self._graphs.values()), None)
        graph, device = torch.cuda.CUDAGraph(), self._rows.device
        stream, current = torch.cuda.Stream(device), torch.cuda.current_stream(device)
        stream.wait_stream(current)
        collects = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                self._issue(n_steps)
                graph.capture_end()
        finally:
            if collects:
                gc.enable()
        current.wait_stream(stream)
        self._graphs[n_steps] = graph

    def _issue(self, n_steps: int) -> None:
        s, k, c, d = self.shape
        weight, bias, velocity, bias_velocity = self.state.values()
        for rows, y, share in zip(self._rows[:n_steps], self._y, self._share, strict=False):
            x = self._features.rows(rows.view(-1)).view(s, -1, d)
            logits = torch.bmm(x, self._factors.mT).view(s, -1, k, c)
            if self.sums is not None:
                self._add_scores(self.sums, logits[:, :, 0], bias, y, share)
            by_logits = self._gradient(logits, bias, y, share).view(s, -1, k * c)
            by_bias = by_logits.sum(1, dtype=torch.float32).view(s, k, c)
            # Float32 also of bfloat16 products: rounding would save no time. (Not on CPUs.)
            wide: dict[str, Any] = {"out_dtype": torch.float32} if x.is_cuda and self._low is not None else {}
            by_weight = torch.bmm(by_logits.mT, x, **wide).view(self.shape)
            lr, wd = self._lr[..., None], self._wd[..., None]
            self._update(weight, velocity, self._low, by_weight, lr[..., None], wd[..., None], self._momentum)
            self._update_bias(bias, bias_velocity, None, by_bias, lr, wd, self._momentum)

    def _step_in_place(self, rows: Tensor, y: Tensor) -> None:
        """Do a step on rows ``(S, b)`` with labels ``(S, b)``."""
        (_, k, c, _), b, biases = self.shape, rows.shape[1], self.state["bias"].flatten(1)
        x, logits, floats, by_bias = self._x[:b], self._logits[:b], self._floats[:b], self._by_bias
        for s, factors in enumerate(self._factors):
            self._features.rows(rows[s], out=x)
            if self._low is None:
                torch.addmm(biases[s], x, factors.T, out=floats)
            else:
                torch.mm(x, factors.T, out=logits)  # one operation on mixed types would make a copy first
                floats.copy_(logits).add_(biases[s])
            if self.sums is not None:
                metrics.add_batch(self.sums[s], floats, y[s])
            softmax_gradient_in_place(floats.view(b, k, c), y[s], b)
            torch.sum(floats, 0, out=by_bias)
            if self._low is not None:
                logits.copy_(floats)
            torch.mm(logits.T, x, out=self._by_weight)
            gradients = self._by_weight.view(k, c, -1), by_bias.view(k, c)
            of_seed = zip(self._parts[s * k : (s + 1) * k], *gradients, self._decays[s], strict=True)
            for (weight, bias, *velocities, low, lr), of_weight, of_bias, wd in of_seed:
                gradient = of_weight if self._low is None else self._wide.copy_(of_weight)
                update_in_place([weight, bias], [gradient, of_bias], velocities, lr, wd, self._momentum)
                if self._low is not None:
                    low.copy_(weight)
