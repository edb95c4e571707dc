"""The classifier engine on a GPU.

A step of one run is four kernels: logits (matrix product), softmax gradient, gradient of the weights (matrix
product), and one pass that updates momentum, weights and their low-precision copy. They are recorded as CUDA graphs
of many steps, over batches that were gathered meanwhile (:mod:`cog.logreg.streaming`), so that an epoch costs the
host a few dozen calls and no synchronisation; it waits once per epoch, to learn which runs diverged.

**Runs side by side.** All runs with the same number of rows (so equal steps) advance in lockstep: the trials of one
seed share its batches, and several seeds or trials are branches of the same graph, which the GPU executes
concurrently. That fills it where one run cannot: the products of 1024 x 1000 x 2048 have fewer tiles than an H200 has
multiprocessors, and the update waits for memory.

**Independence.** As on the CPU, every matrix product has the shape of one run, on operands that begin allocations of
their own: cuBLAS chooses its kernel from shapes, types and alignment, and is deterministic with a workspace per
stream (which PyTorch gives it). No kernel here uses atomics. So a run should give the same bits whatever else is
trained, whether steps are replayed from a graph or issued one by one, and whether features are resident or streamed.
Nothing promises this of cuBLAS in writing: the tests marked ``gpu`` check it, for the GPU and the versions they are run
with. Other GPUs, and the CPU, give other last bits.

**Precision.** ``bf16`` rounds features, a copy of the weights, the gradient of the logits and the gradient of the
weights to bfloat16; logits come out in float32 where this PyTorch has such a product (since 2.8), else they are
bfloat16, too. The gradient of the bias is summed from the rounded gradient of the logits in float32. ``tf32`` keeps
float32 everywhere and lets the two products round their operands. Scores are float32 in every mode.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch

from cog.device import exact_float32
from cog.logreg import kernels, metrics
from cog.logreg.checkpoint import Checkpoint, Ledger, RunState, ended_state
from cog.logreg.engine import Live, Monitor, OnEpoch
from cog.logreg.matrix import FeatureMatrix, FloatMatrix, MappedMatrix, SplitMatrix
from cog.logreg.sgd import Fit, History, Recipe, Run, initial_classifier, learning_rate, logged_rate
from cog.logreg.streaming import Feed, HostMatrix, Slot, on_stream, open_feed
from cog.randomness import cpu_generator

logger = logging.getLogger(__name__)

#: Steps in a block of rows, and so in a graph: enough to forget the cost of a launch.
_BLOCK_STEPS = 32

#: Steps x runs in a graph: with many runs, fewer steps do.
_BLOCK_LAUNCHES = 256

#: Memory of one block of rows. 64 MB take 1.3 ms over PCIe 5, 20 us from the GPU's own memory.
_BLOCK_BYTES = 64 * 2**20

#: Runs in training at the same time, whatever the memory: beyond this nothing is gained.
_MAX_RUNS = 64

#: Bytes at whose multiples the batches in a block begin, as allocations do: cuBLAS looks at the alignment.
_ALIGNMENT = 256

#: Concurrent branches of a graph. Each has its own logits and gradients, 10 MB at 1000 classes and 2048 dimensions;
#: more would not stay in the cache.
_BRANCHES = 4

#: Share of the device's memory that resident features have to leave free, for training and scoring.
_MARGIN = 0.125


class CudaEngine:
    """Trains on a GPU.

    The same code also runs on the CPU (without streams, graphs and Triton), which is how most of it is tested; there
    :class:`cog.logreg.cpu_engine.CpuEngine` is faster.

    Args:
        device: a CUDA device, or the CPU.
        precision: ``"fp32"``, ``"tf32"`` or ``"bf16"``, see :mod:`cog.logreg.precision`.
        graphs: replay steps from CUDA graphs; False issues each kernel, for tests and debuggers.
        feature_memory: bytes of device memory for features, beyond which they stay on the host; default: what is
            free, less a margin.
        max_runs: runs to train at the same time; default: as many as half of the free memory holds.
    """

    #: The protocol's five seeds. Beyond them the GPU is full.
    side_by_side = 5

    def __init__(
        self,
        device: torch.device,
        precision: str = "fp32",
        *,
        graphs: bool = True,
        feature_memory: int | None = None,
        max_runs: int | None = None,
    ) -> None:
        assert precision in ("fp32", "tf32", "bf16"), precision
        self._cuda = device.type == "cuda"
        if self._cuda and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.device = device
        self.precision = precision
        self._graphs = graphs and self._cuda
        self._feature_memory = feature_memory
        self._max_runs = max_runs
        self._streams: list[torch.cuda.Stream] = []
        if self._cuda:
            # Made once: each stream has a cuBLAS workspace. The first trains, and goes before the second, which
            # gathers; the others are branches.
            self._streams = [
                torch.cuda.Stream(device, priority=0 if i == 1 else -1) for i in range(1 + _BRANCHES)
            ]

    def together(self, n_classes: int) -> int:
        """See :meth:`cog.logreg.engine.Engine.together`; what does not fit into memory is trained in parts."""
        return _MAX_RUNS

    def load(self, x: torch.Tensor, norms: torch.Tensor | None = None) -> FeatureMatrix:
        """See :meth:`cog.logreg.engine.Engine.load`.

        Features that fit go to the device, mapped ones from their file without a copy in host memory; others stay
        where they are and are streamed.
        """
        kind = SplitMatrix if self.precision == "bf16" else FloatMatrix
        room = self._feature_memory
        if room is None:
            room = self._room() if self._cuda and x.device != self.device else x.nbytes
        if x.nbytes > room:
            logger.info(
                "features take %.1f GB, the device has %.1f GB for them: they are streamed from the host",
                x.nbytes / 1e9, room / 1e9,
            )  # fmt: skip
            return HostMatrix(kind(x) if norms is None else MappedMatrix(x, norms, kind.dtype), self.device)
        x = x.to(self.device, copy=norms is not None)
        if norms is not None:
            x.div_(norms.to(self.device))
        if self._cuda and _triton_works(self.device):
            return GatheredMatrix(kind(x), x)
        return kind(x)

    def load_test(self, x: torch.Tensor) -> torch.Tensor:
        """Put test features on the device if there is room."""
        return x.to(self.device) if not self._cuda or x.nbytes <= self._room() // 2 else x

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
        labels = y if isinstance(features, HostMatrix) else y.to(self.device)
        ledger = Ledger(checkpoint, len(runs))
        fits = ledger.ended(self.device)
        begun = {index: ledger.epochs(index) for index in range(len(runs)) if index not in fits}
        with self._on_training_stream(), training_precision(self.precision):
            for part in self._lockstep_sets(runs, begun, recipe, features):
                lockstep = _Lockstep(self, features, labels, part, recipe, ledger, record=test is not None)
                try:
                    done = lockstep.train(test, on_epoch, monitor)
                finally:
                    lockstep.close()
                ledger.end(done)
                fits |= done
        return [fits[index] for index in range(len(runs))]

    @torch.no_grad()
    def validate(
        self, features: FeatureMatrix, y: torch.Tensor, rows: torch.Tensor, fits: Sequence[Fit | Live]
    ) -> list[float]:
        """See :meth:`cog.logreg.engine.Engine.validate`; waits for the device once (streamed: once per chunk)."""
        classifiers = [(fit.weight, fit.bias) for fit in fits]
        with exact_float32():
            return metrics.top1_of_many(features, y.to(self.device), rows.to(self.device), classifiers)

    def _lockstep_sets(
        self, runs: Sequence[Run], begun: Mapping[int, int], recipe: Recipe, features: FeatureMatrix
    ) -> Iterator[list[list[tuple[int, Run]]]]:
        """Sort runs into sets that advance together: lists of groups that share their batches.

        ``begun`` holds, of each run that is to be trained, the number of epochs that are finished.
        """
        groups: dict[tuple[tuple[int, int], int, int], list[tuple[int, Run]]] = {}
        for index, epochs in begun.items():
            run = runs[index]
            groups.setdefault(((len(run.rows), epochs), id(run.rows), run.order_seed), []).append(
                (index, run)
            )
        limit = self._max_runs or self._run_limit(recipe, features)
        for n in dict.fromkeys(key[0] for key in groups):
            current: list[list[tuple[int, Run]]] = []
            room = limit
            for key, group in groups.items():
                while key[0] == n and group:
                    current.append(group[:room])
                    group = group[len(current[-1]) :]
                    room -= len(current[-1])
                    if room == 0:
                        yield current
                        current, room = [], limit
            if current:
                yield current

    def _run_limit(self, recipe: Recipe, features: FeatureMatrix) -> int:
        if not self._cuda:
            return _MAX_RUNS
        # weight, velocity, low-precision copy; and a share of two blocks of rows
        per_run = recipe.n_classes * features.dim * (8 + (2 if self.precision == "bf16" else 0))
        return max(1, min(_MAX_RUNS, int(self._free() / 2 / (per_run + 2 * _BLOCK_BYTES))))

    def _room(self) -> int:
        """Bytes that features may take."""
        free, total = self._free(), torch.cuda.get_device_properties(self.device).total_memory
        return int(free - _MARGIN * total)

    def _free(self) -> int:
        """Bytes that can be allocated: free on the device, or kept by PyTorch and not in use."""
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + kept

    @contextlib.contextmanager
    def _on_training_stream(self) -> Iterator[None]:
        if not self._cuda:
            yield
            return
        with torch.cuda.device(self.device):
            outside, inside = torch.cuda.current_stream(), self._streams[0]
            inside.wait_stream(outside)
            with torch.cuda.stream(inside):
                try:
                    yield
                finally:
                    inside.synchronize()  # what comes back is read on the caller's stream


class GatheredMatrix:
    """Features on the device, read by a kernel of ours.

    Args:
        matrix: the features.
        x: the float32 ``(n, d)`` of which ``matrix`` was made, and whose memory it uses.
    """

    def __init__(self, matrix: FloatMatrix | SplitMatrix, x: torch.Tensor) -> None:
        self._matrix = matrix
        self._x = x.view(matrix.dtype)  # a row of bfloat16 is the first half of the memory of one of float32
        self.n, self.dim, self.dtype = matrix.n, matrix.dim, matrix.dtype
        self.device, self.nbytes = matrix.device, matrix.nbytes

    def batch(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """See :class:`cog.logreg.matrix.FeatureMatrix`."""
        from cog.logreg import cuda_kernels

        if out is None:
            out = torch.empty(len(rows), self.dim, dtype=self.dtype, device=self.device)
        cuda_kernels.gather(self._x, rows, out)
        return out

    def exact(self, rows: torch.Tensor) -> torch.Tensor:
        """See :class:`cog.logreg.matrix.FeatureMatrix`."""
        return self._matrix.exact(rows)


@dataclass(eq=False)
class _Training(Live):
    """A classifier in training with its velocities, and its weight in the operands' precision (None: float32)."""

    weight_velocity: torch.Tensor
    bias_velocity: torch.Tensor
    low: torch.Tensor | None


def _state_of(live: _Training) -> dict[str, torch.Tensor]:
    """Return what the next step of a run depends on."""
    return {
        "weight": live.weight,
        "bias": live.bias,
        "velocity": live.weight_velocity,
        "bias_velocity": live.bias_velocity,
    }


@dataclass(eq=False)
class _Branch:
    """A strand of work, and its buffers; made once, because they are what graphs remember."""

    stream: torch.cuda.Stream | None
    logits: torch.Tensor  # float32 (b, C)
    low_logits: torch.Tensor | None  # bfloat16 (b, C), where the product cannot return float32
    gradient: torch.Tensor  # (b, C), of the logits
    weight_gradient: torch.Tensor  # (C, d)


@dataclass(eq=False)
class _Group:
    """Runs that share their batches."""

    lives: list[_Training]
    slots: list[Slot]
    feed: Feed


class _Lockstep:
    """Runs with the same number of rows, advanced together."""

    def __init__(
        self,
        engine: CudaEngine,
        features: FeatureMatrix,
        y: torch.Tensor,
        groups: Sequence[Sequence[tuple[int, Run]]],
        recipe: Recipe,
        ledger: Ledger,
        *,
        record: bool,
    ) -> None:
        self._engine, self._recipe, self._ledger = engine, recipe, ledger
        self._first_epoch = ledger.epochs(groups[0][0][0])
        self._history = History() if record else None
        device, dtype, streams = engine.device, features.dtype, engine._streams
        n_classes, dim = recipe.n_classes, features.dim
        self._n = len(groups[0][0][1].rows)
        size = min(recipe.batch_size, self._n)
        n_runs = self._n_runs = sum(map(len, groups))
        self._sizes = batch_sizes(self._n, size, _steps_in_block(size * dim * dtype.itemsize, n_runs))
        block_rows = sum(self._sizes[0])
        # A device tensor, because graphs remember addresses and not values. Rows: the runs in training, in order.
        self._rates = torch.zeros(n_runs, 2, device=device)
        self._kernels = _select_kernels(device, n_classes, dim)
        self._float_logits = dtype == torch.float32 or _has_float_products(device)
        self._groups: list[_Group] = []
        initial: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for group in groups:
            lives = []
            for index, run in group:
                if run.init_seed not in initial:
                    weight, bias = initial_classifier(n_classes, dim, run.init_seed)
                    initial[run.init_seed] = weight.to(device), bias.to(device)
                weight, bias = (t.clone() for t in initial[run.init_seed])
                live = _Training(
                    run, weight, bias, index, torch.zeros_like(weight), torch.zeros_like(bias),
                    low=None if dtype == torch.float32 else weight.to(dtype),
                )  # fmt: skip
                saved = ledger.states[index]
                if saved is not None:
                    self._resume(live, saved)
                lives.append(live)
            slots = [Slot(block_rows, dim, dtype, device) for _ in range(2)]
            epochs = _orders(group[0][1], self._first_epoch, recipe.n_epochs)
            feed = open_feed(features, y, epochs, slots, streams[1] if streams else None)
            self._groups.append(_Group(lives, slots, feed))
        self._branches = [
            _Branch(
                stream,
                torch.empty(size, n_classes, device=device),
                None if self._float_logits else torch.empty(size, n_classes, dtype=dtype, device=device),
                torch.empty(size, n_classes, dtype=dtype, device=device),
                torch.empty(n_classes, dim, dtype=dtype, device=device),
            )
            for stream in _branch_streams(streams, n_runs)
        ]
        self._loss = torch.zeros(block_rows, device=device) if record else None
        self._rank = torch.zeros(block_rows, dtype=torch.int32, device=device) if record else None
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, top-1, top-5 over the epoch
        self._graphs: dict[tuple[int, tuple[int, ...]], torch.cuda.CUDAGraph | None] = {}

    def train(
        self,
        test: tuple[torch.Tensor, torch.Tensor] | None,
        on_epoch: OnEpoch | None,
        monitor: Monitor | None,
    ) -> dict[int, Fit]:
        """Run all epochs; returns the classifiers by their position in the list of runs."""
        recipe = self._recipe
        start = time.monotonic()
        history = self._history
        predictions = None
        done: dict[int, Fit] = {}

        def finish(live: _Training, *, diverged: bool, stopped: bool = False) -> None:
            done[live.index] = Fit(
                live.weight, live.bias, diverged, history, predictions, stopped=stopped,
                seconds=self._seconds(live.index, start),
            )  # fmt: skip

        n_blocks = 0
        for epoch in range(self._first_epoch, recipe.n_epochs):
            self._set_rates(epoch)
            self._sums.zero_()
            for sizes in self._sizes:
                for group in self._groups:
                    group.feed.next()
                self._advance(n_blocks % 2, sizes)
                for group in self._groups:
                    group.feed.release()
                n_blocks += 1
            lives = [live for group in self._groups for live in group.lives]
            totals = torch.stack([live.weight.sum() + live.bias.sum() for live in lives])
            finite = torch.isfinite(totals).tolist()  # waits for the device
            if history is not None and test is not None:
                (live,) = lives
                loss, top1, top5 = (self._sums / self._n).tolist()
                with exact_float32():
                    score, predictions = metrics.score(*test, live.weight, live.bias)
                rate = logged_rate(live.run.lr, epoch, recipe.n_epochs)
                history.append(metrics.Score(loss, 100 * top1, 100 * top5), score, rate)
                if on_epoch is not None:
                    on_epoch(epoch, history)
            for live, good in zip(lives, finite, strict=True):
                if not good:
                    finish(live, diverged=True)
            lives = [live for live in lives if live.index not in done]
            if monitor is not None and lives:
                stopped = {one.index for one in monitor(epoch, lives)}
                for live in lives:
                    if live.index in stopped:
                        finish(live, diverged=False, stopped=True)
            if done:
                self._drop(done)
            if not self._groups:
                break
            if epoch + 1 < recipe.n_epochs:
                self._ledger.offer(lambda: self._standing(epoch + 1, start, done))  # noqa: B023
        for group in self._groups:
            for live in group.lives:
                finish(live, diverged=False)
        return done

    def _resume(self, live: _Training, saved: RunState) -> None:
        for name, tensor in _state_of(live).items():
            tensor.copy_(saved.values[name])
        if live.low is not None:
            live.low.copy_(live.weight)
        if self._history is not None and saved.logs is not None:
            self._history.logs = saved.logs

    def _seconds(self, index: int, start: float) -> float:
        """Return the duration of a run, trained together with the others since ``start``."""
        saved = self._ledger.states[index]
        before = 0.0 if saved is None else saved.seconds
        return before + (time.monotonic() - start) / self._n_runs

    def _standing(self, epochs: int, start: float, done: Mapping[int, Fit]) -> dict[int, RunState]:
        """Return where every run stands; the device has nothing to do at this moment but gather rows."""
        lives = [live for group in self._groups for live in group.lives]
        logs = None if self._history is None else self._history.logs
        return {index: ended_state(fit) for index, fit in done.items()} | {
            live.index: RunState(epochs, _state_of(live), "", self._seconds(live.index, start), logs)
            for live in lives
        }

    def close(self) -> None:
        """Stop what is still on its way."""
        for group in self._groups:
            group.feed.close()
        self._groups = []

    def _drop(self, done: dict[int, Fit]) -> None:
        """Go on without the runs that ended; what was recorded with them is recorded anew."""
        before = sum(len(group.lives) for group in self._groups)
        for group in self._groups:
            group.lives = [live for live in group.lives if live.index not in done]
            if not group.lives:
                group.feed.close()
        self._groups = [group for group in self._groups if group.lives]
        if sum(len(group.lives) for group in self._groups) != before:
            self._graphs.clear()

    def _set_rates(self, epoch: int) -> None:
        lives = [live for group in self._groups for live in group.lives]
        rates = [(learning_rate(live.run.lr, epoch, self._recipe.n_epochs), live.run.wd) for live in lives]
        values = torch.tensor(rates)
        if self._engine._cuda:
            values = values.pin_memory()
        self._rates[: len(lives)].copy_(values, non_blocking=True)

    def _advance(self, slot: int, sizes: tuple[int, ...]) -> None:
        """Do the steps over a block.

        The first time they are issued one by one, which compiles kernels and lets libraries set up what they cannot
        while a graph is captured; the second time they are captured; from then on replayed.
        """
        key = (slot, sizes)
        if not self._engine._graphs or key not in self._graphs:
            self._graphs.setdefault(key, None)
            self._issue(slot, sizes)
            return
        graph = self._graphs[key]
        if graph is None:
            graph = self._graphs[key] = self._capture(slot, sizes)
        graph.replay()

    def _capture(self, slot: int, sizes: tuple[int, ...]) -> torch.cuda.CUDAGraph:
        """Record the steps over a block.

        ``torch.cuda.graph`` would collect garbage, empty the cache and wait for the device before each graph, all
        for the memory of much larger ones. Collection must only not happen in between: it could free a graph.
        """
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()
        try:
            # thread_local: the thread that gathers on the host may pin memory meanwhile
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._issue(slot, sizes)
            finally:
                graph.capture_end()
        finally:
            if collecting:
                gc.enable()
        return graph

    def _issue(self, slot: int, sizes: tuple[int, ...]) -> None:
        """Issue the steps over a block; each run stays on one branch, so that its steps keep their order."""
        branches = self._branches
        main = torch.cuda.current_stream() if self._engine._cuda else None
        for branch in branches:
            if branch.stream is not None and main is not None and branch.stream != main:
                branch.stream.wait_stream(main)
        runs = [(group.slots[slot], live) for group in self._groups for live in group.lives]
        for first, branch in enumerate(branches):
            with on_stream(branch.stream):
                start = 0
                for b in sizes:
                    for row in range(first, len(runs), len(branches)):
                        self._step(branch, *runs[row], row, start, b)
                    start += b
                if self._loss is not None and self._rank is not None:  # a single run, so a single branch
                    self._sums[0].add_(self._loss[:start].sum(dtype=torch.float64))
                    self._sums[1].add_((self._rank[:start] < 1).sum())
                    self._sums[2].add_((self._rank[:start] < 5).sum())
        for branch in branches:
            if branch.stream is not None and main is not None and branch.stream != main:
                main.wait_stream(branch.stream)

    def _step(self, branch: _Branch, slot: Slot, live: _Training, row: int, start: int, b: int) -> None:
        """One SGD step of one run."""
        x = slot.x[start : start + b]
        logits, gradient = branch.logits[:b], branch.gradient[:b]
        if live.low is None:
            torch.mm(x, live.weight.T, out=logits)
        elif branch.low_logits is None:
            torch.mm(x, live.low.T, out_dtype=torch.float32, out=logits)
        else:
            logits.copy_(torch.mm(x, live.low.T, out=branch.low_logits[:b]))
        self._kernels.softmax_gradient(logits, live.bias, slot.y, start, gradient, self._loss, self._rank)
        torch.mm(gradient.T, x, out=branch.weight_gradient)
        self._kernels.update(
            live.weight, live.weight_velocity, live.low, branch.weight_gradient, live.bias, live.bias_velocity,
            gradient, self._rates, row, self._recipe.momentum,
        )  # fmt: skip


def batch_sizes(n: int, batch_size: int, steps: int) -> list[tuple[int, ...]]:
    """Cut an epoch of ``n`` rows into blocks of ``steps`` batches; the last batch takes what is left."""
    sizes = [batch_size] * (n // batch_size) + [n % batch_size] * (n % batch_size > 0)
    return [tuple(sizes[start : start + steps]) for start in range(0, len(sizes), steps)]


def _steps_in_block(nbytes: int, n_runs: int) -> int:
    """Return how many batches of ``nbytes`` make a block; one where the others would not be aligned."""
    if nbytes % _ALIGNMENT:
        return 1
    return max(1, min(_BLOCK_STEPS, _BLOCK_LAUNCHES // n_runs, _BLOCK_BYTES // nbytes))


@contextlib.contextmanager
def training_precision(precision: str) -> Iterator[None]:
    """Set how PyTorch multiplies matrices on a GPU, for the training steps alone.

    ``tf32`` allows TF32 in float32 products. In every mode sums in bfloat16 products stay float32 until the end:
    by default cuBLAS may add parts of them up in bfloat16.
    """
    saved = torch.get_float32_matmul_precision()
    options = torch.backends.cuda.matmul
    saved_reduction = options.allow_bf16_reduced_precision_reduction
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    options.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        options.allow_bf16_reduced_precision_reduction = saved_reduction
        torch.set_float32_matmul_precision(saved)


def _orders(run: Run, first_epoch: int, n_epochs: int) -> Iterator[torch.Tensor]:
    """Yield the rows of each epoch from the first on in their order, as the reference draws them."""
    generator = cpu_generator(run.order_seed)
    for epoch in range(n_epochs):
        order = torch.randperm(len(run.rows), generator=generator)
        if epoch >= first_epoch:
            yield run.rows[order]


def _branch_streams(streams: Sequence[torch.cuda.Stream], n_runs: int) -> Sequence[torch.cuda.Stream | None]:
    """Return the streams for some runs: a single one needs no branches, and so no time to part and join."""
    if not streams:
        return [None]
    return [streams[0], *streams[2:]][: min(n_runs, _BRANCHES)]


def _select_kernels(device: torch.device, n_classes: int, dim: int) -> ModuleType:
    """Return Triton kernels where they work, else plain torch operations."""
    if device.type != "cuda" or not _triton_works(device):
        return kernels
    from cog.logreg import cuda_kernels

    fits = n_classes <= cuda_kernels.MAX_CLASSES and n_classes * dim <= cuda_kernels.MAX_WEIGHTS
    return cuda_kernels if fits else kernels


@functools.cache
def _triton_works(device: torch.device) -> bool:
    """Whether Triton kernels can be compiled and agree with the plain operations; says so once when not.

    It can be missing (Windows), find no C compiler, or not know the GPU.
    """
    try:
        from cog.logreg import cuda_kernels

        with torch.cuda.device(device):
            torch.testing.assert_close(_try_kernels(cuda_kernels, device), _try_kernels(kernels, device))
            x, rows = torch.randn(3, 9, device=device), torch.tensor([2, 0], device=device)
            cuda_kernels.gather(x, rows, out := torch.empty(2, 8, device=device))
            torch.testing.assert_close(out, x[rows, :8], rtol=0, atol=0)
        return True
    except Exception as error:  # whatever the compiler throws: there is another way
        reason = (str(error).strip().splitlines() or [""])[0]
        logger.warning(
            "Triton kernels do not work here (%s: %s); training uses plain torch operations and takes up to twice as "
            "long", type(error).__name__, reason,
        )  # fmt: skip
        return False


def _try_kernels(module: ModuleType, device: torch.device) -> list[torch.Tensor]:
    """Return what both kernels compute for a small problem."""
    generator = cpu_generator(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    bias, weight, velocity, bias_velocity, gradient = draw(7), draw(7, 9), draw(7, 9), draw(7), draw(5, 7)
    low = torch.empty(7, 9, dtype=torch.bfloat16, device=device)
    module.softmax_gradient(draw(5, 7), bias, torch.arange(5, device=device), 0, gradient)
    rates = torch.tensor([[0.5, 0.1]], device=device)
    module.update(weight, velocity, low, draw(7, 9), bias, bias_velocity, gradient, rates, 0, 0.9)
    return [gradient, weight, velocity, low, bias, bias_velocity]


@functools.cache
def _has_float_products(device: torch.device) -> bool:
    """Whether products of bfloat16 matrices can be written as float32."""
    low = torch.ones(16, 16, dtype=torch.bfloat16, device=device)
    out = torch.zeros(16, 16, device=device)
    try:
        torch.mm(low, low, out_dtype=torch.float32, out=out)
    except (TypeError, RuntimeError, NotImplementedError):
        return False
    return bool((out == 16).all())
