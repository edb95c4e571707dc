"""What a call of ``logreg.py`` is about to do: where the features are kept, how much work it is, about how long.

Nothing here changes a result: the duration is for display, from one step of training measured for a moment.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from cog.errors import CogError
from cog.features.feature_files import MAPPABLE
from cog.logreg import gram
from cog.logreg.matrix import FeatureMatrix, HostMatrix, MappedMatrix
from cog.logreg.metrics import CPU_CHUNK, score
from cog.logreg.sgd import TrainedClassifier, TrainSpec
from cog.runtime.memory import available_memory
from cog.runtime.progress import duration
from cog.runtime.safe_load import load_torch

if TYPE_CHECKING:
    from cog.logreg.engine import Data, Engine
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
    # what it really is comes out when it is read
    except (CogError, KeyError, TypeError, AttributeError, RuntimeError):
        return path.stat().st_size, "its format is older than torch 1.6"
    if dtype not in MAPPABLE:
        return n_bytes + x.element_size() * x.numel(), f"X is {dtype}"
    return n_bytes, None if contiguous else "X is not stored row by row"


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
    activations = min(settings.batch_size, n_rows) * sum(settings.layer_sizes(dim, n_classes)[1:])
    return 20.0 * settings.n_parameters(dim, n_classes) + 8.0 * activations


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
    from cog.logreg.engine import device_room

    available = available_memory() if device.type == "cpu" else device_room(device)
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


def _largest(rows: Rows) -> int:
    return max(rows.search_train, rows.final_train)


def estimate_flops(rows: Rows, settings: Settings, *, n_test: int, dim: int, n_classes: int) -> float:
    """Return the floating-point operations of a run's matrix products."""
    forward, step = _per_row(settings, dim, n_classes)
    trained = settings.n_epochs * (settings.n_trials * rows.search_train + rows.final_train)
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
    """Durations on this machine, from moments of training on the first rows by the step that will run.

    A step takes a time that is linear in its rows: what does not depend on them (the update of the weights, calls) is
    most of a few-shot run.

    Args:
        data: data set ready for training.
        study: runs that share everything but seed and shots.
        engine: does the training.
        largest: rows of the largest training; they decide whether it is done in the span of its rows.

    Attributes:
        full: rows of a full step.
        full_step: seconds of a full step of one classifier.
        score_row: seconds that scoring a test row takes.
    """

    def __init__(self, data: Data, study: Sequence[Settings], engine: Engine, largest: int) -> None:
        self._data, self._engine, self._settings = data, engine, study[0]
        self._in_span = gram.applies(largest, data.features.dim)
        self.full = min(largest, self._settings.batch_size)
        self.full_step, self._setup = self._step(self.full)
        small = max(1, self.full // 16)
        self._slope, self._fixed = 0.0, self.full_step
        if small < self.full:
            small_step = min(self._step(small)[0], self.full_step)
            self._slope = (self.full_step - small_step) / (self.full - small)
            self._fixed = small_step - self._slope * small
        self.score_row = self._score()

    @property
    def operations_per_second(self) -> float:
        """Operations of the matrix products of a full step, per second."""
        per_row = _per_row(self._settings, self._data.features.dim, len(self._data.labels))[1]
        return per_row * self.full / self.full_step

    def run(self, rows: Rows, settings: Settings) -> float:
        """Return about how long a run takes, in seconds."""
        epoch = self._epoch(rows.search_train) * settings.n_trials + self._epoch(rows.final_train)
        scored = settings.n_trials * rows.search_val + settings.n_epochs * self._data.test.n
        setup = self._setup * (settings.n_trials + 1)
        return setup + settings.n_epochs * epoch + self.score_row * scored

    def _epoch(self, n: int) -> float:
        full, rest = divmod(n, self.full)
        return full * self.full_step + (self._fixed + self._slope * rest if rest else 0.0)

    def _step(self, n_rows: int) -> tuple[float, float]:
        """Time a step of one classifier, and what comes before the first one."""
        from cog.logreg.protocol import sgd_config

        config = sgd_config(self._settings, len(self._data.labels))
        # One batch alone may be few enough rows for their span, where the training has too many for it.
        n_steps = 1 if self._in_span else self._data.features.dim // (2 * n_rows) + 1
        spec = TrainSpec(torch.arange(n_rows).repeat(n_steps), [(0.0, 0.0)], init_seed=0, order_seed=0)

        def train(epochs: int) -> None:
            self._engine.fit(
                self._data, spec, dataclasses.replace(config, n_epochs=epochs, batch_size=n_rows)
            )

        epoch, setup = self._timed(train)
        return epoch / n_steps, setup

    def _score(self) -> float:
        """Time the scoring of a row."""
        sizes = self._settings.layer_sizes(self._data.features.dim, len(self._data.labels))
        device = self._engine.device
        zeros = TrainedClassifier(
            [
                (torch.zeros(b, a, device=device), torch.zeros(b, device=device))
                for a, b in itertools.pairwise(sizes)
            ]
        )
        m = min(self._data.test.n, CPU_CHUNK)

        def work(repeats: int) -> None:
            for _ in range(repeats):
                score(self._data.test, self._data.test_y[:m], zeros.logits, exact=False)

        return self._timed(work)[0] / m

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


def describe(data: Data, study: Sequence[Settings], engine: Engine, *, at_once: int = 1) -> list[str]:
    """Say what is going to happen, in a few lines.

    Args:
        data: data set ready for training.
        study: the runs that are going to be done, one or more.
        engine: does the training.
        at_once: how many of them side by side.
    """
    from cog.logreg.engine import used_precision
    from cog.logreg.protocol import sgd_config

    dim, n_classes, n_test = data.features.dim, len(data.labels), data.test.n
    counts = torch.bincount(data.y).tolist()
    rows = [rows_of(counts, settings) for settings in study]
    operations = sum(
        estimate_flops(part, settings, n_test=n_test, dim=dim, n_classes=n_classes)
        for part, settings in zip(rows, study, strict=True)
    )
    first = study[0]
    search = f"{first.n_trials} trials and a final training" if first.n_trials else "one training"
    runs = "1 run" if len(study) == 1 else f"{len(study)} runs"
    side = f", {at_once} at a time" if at_once > 1 else ""
    available = available_memory()
    left = "" if available is None else f"; {_size(available)} of memory left"
    threads = f" with {torch.get_num_threads()} threads" if engine.device.type == "cpu" else ""
    precisions = {
        used_precision(
            engine,
            search_rows=part.search_train,
            final_rows=part.final_train,
            config=sgd_config(settings, n_classes),
            dim=dim,
        )
        for part, settings in zip(rows, study, strict=True)
    }
    precision = " and ".join(sorted(precisions))
    if operations < _MOMENT:
        expected, measured = "seconds", ""
    else:
        seconds, speeds = 0.0, {}
        for part, settings in sorted(zip(rows, study, strict=True), key=lambda pair: -_largest(pair[0])):
            in_span = gram.applies(_largest(part), dim)
            if in_span not in speeds:
                speeds[in_span] = Speed(data, study, engine, _largest(part))
            seconds += speeds[in_span].run(part, settings)
        expected = f"about {_time(seconds)}"
        measured = f", {speeds[min(speeds)].operations_per_second / 1e9:.3g} GFLOP/s measured"
    return [
        f"plan: {runs} of {search}, {first.n_epochs} epochs, {n_classes} classes, {_flop(operations)} of matrix "
        f"products{side}",
        f"plan: training features {_kept(data.features)}, test features {_kept(data.test)}{left}",
        f"plan: {expected} on {engine.device}{threads} ({precision}{measured})",
    ]


def _kept(features: FeatureMatrix) -> str:
    size = _size(4.0 * features.n * features.dim)
    if isinstance(features, HostMatrix):
        return f"do not fit on {features.device} and are sent there batch by batch: {_kept(features.host)}"
    if isinstance(features, MappedMatrix):
        return f"stay in their file (memory-mapped, {size})"
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
