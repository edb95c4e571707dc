"""What a call of ``logreg.py`` is about to do: where the features are kept, how much work it is, about how long.

Nothing here changes a result: the duration is for display, from one step of training measured for a moment.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from cog.errors import CogError
from cog.logreg import lbfgs, metrics, mlp_engine
from cog.logreg.matrix import FeatureMatrix, MappedMatrix
from cog.logreg.sgd import Recipe, Run
from cog.progress import duration
from cog.safe_load import load_torch

if TYPE_CHECKING:
    from cog.logreg.engine import Engine
    from cog.logreg.protocol import Data
    from cog.logreg.settings import Settings

logger = logging.getLogger(__name__)

#: Share of the available memory that features may take; the rest is for classifiers and logits.
_USABLE = 0.9

_clock = time.perf_counter

#: Seconds that one measurement should take; there are three.
_PROBE_SECONDS = 0.04

_MOST_REPEATS = 256

#: Floating-point operations that are not worth measuring anything for.
_MOMENT = 1e9

#: Evaluations of the objective per iteration of L-BFGS, as counted on real features.
_EVALUATIONS = 1.15


# ------------------------------------------------------------------------------------------------------------
# Memory


def stays_in_file(train: Path, test: Path) -> bool:
    """Decide whether the training features are memory-mapped instead of read.

    They are read when both sets fit into the memory that is available, to this process's control group, too.

    Args:
        train: file of the training features.
        test: file of the test features.

    Raises:
        CogError: when they neither fit nor can be mapped.
    """
    available = available_memory()
    if available is None:
        return False
    room = _USABLE * available
    (train_bytes, kept), (test_bytes, _) = _size_in_memory(train), _size_in_memory(test)
    if train_bytes + test_bytes <= room:
        return False
    have = f"{_size(available)} of memory are available"
    if test_bytes > room:
        raise CogError(f"{test} takes {_size(test_bytes)}, and {have}; run this where there is more")
    if kept is not None:
        raise CogError(
            f"{train} takes {_size(train_bytes)}, and {have}; it cannot be memory-mapped ({kept}), so run this where "
            "there is more memory, or save X as float32 with torch.save"
        )
    logger.warning(
        "%s takes %s, and %s: it is read from the file again and again, which is slow unless that is on a fast disk",
        train, _size(train_bytes), have,
    )  # fmt: skip
    return True


def _size_in_memory(path: Path) -> tuple[int, str | None]:
    """Return the bytes that reading ``path`` takes at its peak, and why it cannot be mapped (None: it can)."""
    try:
        data = load_torch(path, mmap=True)
        x = data["X"]
        n_bytes = 4 * x.numel()
        dtype, contiguous = x.dtype, x.is_contiguous()
    except (CogError, KeyError, TypeError, AttributeError):  # what it really is comes out when it is read
        return path.stat().st_size, "its format is older than torch 1.6"
    if dtype != torch.float32:
        return n_bytes + x.element_size() * x.numel(), f"X is {dtype}"
    return n_bytes, None if contiguous else "X is not stored row by row"


def available_memory(proc: Path = Path("/proc"), control: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that can be allocated without swapping; None where the system does not say.

    The smallest of ``MemAvailable`` and of what the control groups of this process leave (a SLURM job or a
    container may use less than the machine has); file caches of a group count as free.

    Args:
        proc: the process file system.
        control: where control groups are mounted.
    """
    rooms = []
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                rooms.append(int(line.split()[1]) * 1024)
        groups = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
    except (OSError, ValueError, IndexError):
        groups = []
    for _, controllers, path in (group for group in groups if len(group) == 3):
        if controllers == "":
            names, root = ("memory.max", "memory.current", "inactive_file"), control
        elif "memory" in controllers.split(","):
            names, root = (
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"), control / "memory"
            )  # fmt: skip
        else:
            continue
        here = root / path.strip("/")
        for folder in (here, *here.parents):
            if not folder.is_relative_to(root):
                break
            room = _group_room(folder, *names)
            if room is not None:
                rooms.append(room)
    return max(0, min(rooms)) if rooms else None


def _group_room(folder: Path, limit: str, usage: str, cache: str) -> int | None:
    try:
        most = int((folder / limit).read_text())  # "max" means no limit
        used = int((folder / usage).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return most - used + int(stat.get(cache, 0))
    except (OSError, ValueError):
        return None


def training_bytes(settings: Settings, n_rows: int, dim: int, n_classes: int) -> float:
    """Return the memory that the training of one classifier takes beside the features.

    Parameters, momentum and gradients in float32, copies of the first and the last in bfloat16, and the zeros that the
    duration is measured with; activations of a batch with their gradients.

    Args:
        settings: of the run.
        n_rows: training images.
        dim: what the classifier sees, components or features.
        n_classes: C.
    """
    sizes = settings.layer_sizes(dim, n_classes)
    parameters = sum((a + 1) * b for a, b in itertools.pairwise(sizes))
    return 20.0 * parameters + 8.0 * min(settings.batch_size, n_rows) * sum(sizes[1:])


def require_room(settings: Settings, n_rows: int, dim: int, n_classes: int, device: torch.device) -> None:
    """Refuse an MLP that is larger than the memory: the kernel would kill the process without a word.

    Args:
        settings: of the run.
        n_rows: see :func:`training_bytes`.
        dim: likewise.
        n_classes: C.
        device: that trains.

    Raises:
        CogError: when it does not fit.
    """
    if not settings.is_mlp:
        return
    available = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    needed = training_bytes(settings, n_rows, dim, n_classes)
    if available is not None and needed > _USABLE * available:
        raise CogError(
            f"CLF.TYPE {settings.classifier} with CLF.MLP_HIDDEN {settings.mlp_hidden} and CLF.MLP_LAYERS "
            f"{settings.mlp_layers} takes {_size(needed)} to train, and {_size(available)} of memory are available; "
            "lower one of them, or run this where there is more"
        )


def _size(n_bytes: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.3g} {name}"
    return f"{n_bytes / 1e3:.3g} kB"


# ------------------------------------------------------------------------------------------------------------
# Work


@dataclass(frozen=True)
class Rows:
    """Rows that one run uses."""

    search_train: int
    search_val: int
    final_train: int


def rows_of(counts: Sequence[int], settings: Settings) -> Rows:
    """Return the sizes of the parts, as the protocol cuts them.

    Args:
        counts: training images of each class.
        settings: of the run.
    """
    held_out = [max(int(n * settings.val_frac), 1) if n > 1 else 0 for n in counts]
    most = settings.n_shot or max(counts)
    search = sum(min(n - val, most) for n, val in zip(counts, held_out, strict=True))
    final = sum(min(n, most) for n in counts)
    return Rows(search, sum(held_out), final) if settings.n_trials else Rows(0, 0, final)


def multiplications(rows: Rows, settings: Settings, *, n_test: int, dim: int, n_classes: int) -> float:
    """Return the floating-point operations of a run's matrix products; of L-BFGS and pruning, the most."""
    forward, step = _per_row(settings, dim, n_classes)
    per_pass = _EVALUATIONS if settings.solver == "lbfgs" else 1.0
    trained = settings.n_epochs * per_pass * (settings.n_trials * rows.search_train + rows.final_train)
    scored = settings.n_trials * rows.search_val + settings.n_epochs * n_test
    return step * trained + forward * scored


def _per_row(settings: Settings, dim: int, n_classes: int) -> tuple[float, float]:
    """Return the floating-point operations for a row: of the logits alone, and of a step of training.

    A step multiplies with every weight for the logits and for the gradient of the weight; an MLP, but for the first
    layer, once more for the gradient of the layer's input.
    """
    sizes = settings.layer_sizes(dim, n_classes)
    layers = [2.0 * a * b for a, b in itertools.pairwise(sizes)]
    return sum(layers), 3 * sum(layers) - layers[0]


# ------------------------------------------------------------------------------------------------------------
# Time


class Speed:
    """Durations on this machine, from moments of training on the first rows.

    A step takes a time that is linear in its rows: what does not depend on them (the update of the weights, calls) is
    most of a few-shot run.
    """

    def __init__(self, data: Data, study: Sequence[Settings], engine: Engine, largest: int) -> None:
        self._data, self._engine, self._settings = data, engine, study[0]
        n_classes = len(data.labels)
        sizes = self._settings.layer_sizes(data.features.dim, n_classes)
        self._zeros = [
            (torch.zeros(b, a, device=engine.device), torch.zeros(b, device=engine.device))
            for a, b in itertools.pairwise(sizes)
        ]
        self._side_by_side = min(engine.side_by_side, len(study))
        self.full = min(largest, lbfgs.CHUNK if self._is_lbfgs else self._settings.batch_size)
        self._full_step, self._setup = self._step(self.full)
        small = max(1, self.full // 16)
        self._slope, self._fixed = 0.0, self._full_step
        if small < self.full:
            small_step = min(self._step(small)[0], self._full_step)
            self._slope = (self._full_step - small_step) / (self.full - small)
            self._fixed = small_step - self._slope * small
        self._score_row = self._score()

    @property
    def _is_lbfgs(self) -> bool:
        return self._settings.solver == "lbfgs"

    @property
    def operations_per_second(self) -> float:
        """Of the matrix products of a full step."""
        return (
            _per_row(self._settings, self._data.features.dim, len(self._data.labels))[1]
            * self.full
            / self._full_step
        )

    def run(self, rows: Rows, settings: Settings) -> float:
        """Return about how long a run takes, in seconds; of L-BFGS and pruning, the most."""
        epoch = self._epoch(rows.search_train) * settings.n_trials + self._epoch(rows.final_train)
        if self._is_lbfgs:
            epoch *= _EVALUATIONS
        n_test = len(self._data.test[1])
        scored = settings.n_trials * rows.search_val + settings.n_epochs * n_test
        setup = self._setup * (settings.n_trials + 1)
        return setup + settings.n_epochs * epoch + self._score_row * scored

    def _epoch(self, n: int) -> float:
        full, rest = divmod(n, self.full)
        return full * self._full_step + (self._fixed + self._slope * rest if rest else 0.0)

    def _step(self, n_rows: int) -> tuple[float, float]:
        """Time a step of one classifier, and what comes before the first one.

        Where several runs are trained side by side, its share of their times.
        """
        data, engine = self._data, self._engine
        if self._is_lbfgs:
            objective = lbfgs.Objective(
                data.features, data.y, torch.arange(n_rows), len(data.labels), wd=0.0, device=engine.device
            )
            theta = objective.zeros()
            return self._timed(lambda repeats: [objective(theta) for _ in range(repeats)])
        runs = [
            Run(torch.arange(n_rows), lr=0.0, wd=0.0, init_seed=0, order_seed=seed)
            for seed in range(self._side_by_side)
        ]

        def train(epochs: int) -> None:
            recipe = Recipe(len(data.labels), epochs, n_rows, self._settings.momentum)
            engine.fit(data.features, data.y, runs, recipe)

        step, setup = self._timed(train)
        return step / len(runs), setup / len(runs)

    def _score(self) -> float:
        """Time the scoring of a row."""
        x, y = self._data.test
        m = min(len(y), 2048)

        def score() -> object:
            return metrics.score_logits(
                x[:m],
                y[:m],
                lambda part: mlp_engine.logits(self._zeros, "relu", part),
                device=self._engine.device,
            )

        return self._timed(lambda n: [score() for _ in range(n)])[0] / m

    def _timed(self, work: Callable[[int], object]) -> tuple[float, float]:
        """Return the seconds of a repetition, and of what is done once only (buffers; on a GPU, capturing a graph)."""

        def clock(repeats: int) -> float:
            self._wait()
            start = _clock()
            work(repeats)
            self._wait()
            return _clock() - start

        once = clock(1)  # warms up, too
        if once > 2 * _PROBE_SECONDS:
            return once, 0.0
        once = min(once, clock(1))
        repeats = 4
        while (many := clock(repeats)) - once < _PROBE_SECONDS / 2 and repeats < _MOST_REPEATS:
            repeats *= 4
        each = max((many - once) / (repeats - 1), 1e-7)
        return each, max(once - each, 0.0)

    def _wait(self) -> None:
        if self._engine.device.type == "cuda":
            torch.cuda.synchronize(self._engine.device)


# ------------------------------------------------------------------------------------------------------------


def describe(data: Data, study: Sequence[Settings], engine: Engine) -> list[str]:
    """Say what is going to happen, in a few lines.

    Args:
        data: ready for training.
        study: the runs that are going to be done, one or more.
        engine: does the training.
    """
    dim, n_classes, n_test = data.features.dim, len(data.labels), len(data.test[1])
    counts = torch.bincount(data.y).tolist()
    rows = [rows_of(counts, settings) for settings in study]
    operations = sum(
        multiplications(part, settings, n_test=n_test, dim=dim, n_classes=n_classes)
        for part, settings in zip(rows, study, strict=True)
    )
    first = study[0]
    what = "iterations of L-BFGS at most" if first.solver == "lbfgs" else "epochs"
    search = f"{first.n_trials} trials and a final training" if first.n_trials else "one training"
    runs = "1 run" if len(study) == 1 else f"{len(study)} runs"
    most = "at most " if first.solver == "lbfgs" or first.pruner != "none" else ""
    available = available_memory()
    left = "" if available is None else f"; {_size(available)} of memory left"
    threads = f" with {torch.get_num_threads()} threads" if engine.device.type == "cpu" else ""
    precision = "fp32" if first.solver == "lbfgs" else engine.precision
    if operations < _MOMENT:
        expected, measured = "seconds", ""
    else:
        speed = Speed(data, study, engine, max(max(part.search_train, part.final_train) for part in rows))
        seconds = sum(speed.run(part, settings) for part, settings in zip(rows, study, strict=True))
        expected = f"{most}about {_time(seconds)}"
        measured = f", {speed.operations_per_second / 1e9:.3g} GFLOP/s measured"
    return [
        f"plan: {runs} of {search}, {first.n_epochs} {what}, {n_classes} classes, {most}{_flop(operations)} of matrix "
        "products",
        f"plan: training features {_kept(data.features)}, test features {_place(data.test[0].device)} "
        f"({_size(data.test[0].nbytes)}){left}",
        f"plan: {expected} on {engine.device}{threads} ({precision}{measured})",
    ]


def _kept(features: FeatureMatrix) -> str:
    size = _size(4.0 * features.n * features.dim)
    if isinstance(features, MappedMatrix):
        return f"stay in their file (memory-mapped, {size})"
    host = getattr(features, "host", None)
    if host is not None:
        return f"streamed to {features.device}: {_kept(host)}"
    form = (
        "float32"
        if features.dtype == torch.float32
        else f"{str(features.dtype).removeprefix('torch.')} and the rest"
    )
    return f"{_place(features.device)} as {form} ({size})"


def _time(seconds: float) -> str:
    return f"{seconds:.1f}s" if seconds < 10 else duration(seconds)


def _place(device: torch.device) -> str:
    return "in memory" if device.type == "cpu" else f"on {device}"


def _flop(operations: float) -> str:
    for unit, name in ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP")):
        if operations >= unit:
            return f"{operations / unit:.3g} {name}"
    return f"{operations / 1e6:.3g} MFLOP"
