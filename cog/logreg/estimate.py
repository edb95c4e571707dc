"""The estimate that ``logreg.py`` prints before it trains: storage of the features, amount of work, duration.

No result depends on the estimate. The duration is for display, from short measurements of training steps.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Callable, Sequence

import torch

from cog.errors import CogError
from cog.logreg import gram
from cog.logreg.engine import Engine, device_room
from cog.logreg.matrix import Data, FeatureMatrix, HostMatrix, StoredMatrix
from cog.logreg.metrics import CPU_CHUNK, evaluate
from cog.logreg.settings import RowCounts, Settings
from cog.logreg.sgd import TrainedClassifier, TrainSpec, initial_layers
from cog.runtime.machine_checks import size
from cog.runtime.memory import available_memory
from cog.runtime.progress import duration

logger = logging.getLogger(__name__)

#: Share of the available memory that features may take; the rest is for classifiers and logits.
_USABLE = 0.9

_clock = time.perf_counter

#: Least duration of one measurement in seconds; an estimate takes three.
_PROBE_SECONDS = 0.04

_MOST_REPEATS = 256

#: Number of floating-point operations below which the duration is given as "seconds", without a measurement.
_MOMENT = 1e9


# ------------------------------------------------------------------------------------------------------------
# Memory


def training_bytes(settings: Settings, n_rows: int, dim: int, n_classes: int) -> float:
    """Return the memory for the training of one classifier beside the features, in bytes.

    It has parameters, momentum and gradients in float32, copies of parameters and gradients in bfloat16, the classifier
    with which the duration is measured, and the activations of a batch with their gradients.

    Args:
        settings: settings of the run.
        n_rows: training images.
        dim: dimension of the classifier's input, components or features.
        n_classes: C.
    """
    activations = min(settings.batch_size, n_rows) * sum(settings.layer_sizes(dim, n_classes)[1:])
    return 20.0 * settings.n_parameters(dim, n_classes) + 8.0 * activations


def require_room(settings: Settings, n_rows: int, dim: int, n_classes: int, device: torch.device) -> None:
    """Refuse an MLP that exceeds the memory of the device: the kernel would kill the process without a message.

    Args:
        settings: settings of the run.
        n_rows: see :func:`training_bytes`.
        dim: see :func:`training_bytes`.
        n_classes: C.
        device: device of the training.

    Raises:
        CogError: when the MLP does not fit.
    """
    room, needed = device_room(device), training_bytes(settings, n_rows, dim, n_classes)
    if settings.is_mlp and needed > _USABLE * room:
        raise CogError(
            f"CLF.TYPE {settings.classifier} with CLF.MLP_HIDDEN {settings.mlp_hidden} and CLF.MLP_LAYERS "
            f"{settings.mlp_layers} takes {size(needed)} to train, and {size(room)} of memory are available; "
            "lower one of them, or run this where there is more"
        )


# ------------------------------------------------------------------------------------------------------------
# Work


def rows_of(counts: Sequence[int], settings: Settings, n_test: int) -> RowCounts:
    """Return the numbers of rows in the parts of a run, by the rules of the protocol.

    Args:
        counts: training images of each class.
        settings: settings of the run.
        n_test: test images.
    """
    most = settings.n_shot or max(counts)
    final = sum(min(n, most) for n in counts)
    if not settings.n_trials:
        return RowCounts(0, 0, final, n_test)
    held_out = [max(int(n * settings.val_frac), 1) if n > 1 else 0 for n in counts]
    search = sum(min(n - val, most) for n, val in zip(counts, held_out, strict=True))
    return RowCounts(search, sum(held_out), final, n_test)


def estimate_flops(rows: RowCounts, settings: Settings, *, dim: int, n_classes: int) -> float:
    """Return the floating-point operations of a run's matrix products."""
    forward, step = _flops_per_row(settings, dim, n_classes)
    trained = settings.n_epochs * (settings.n_trials * rows.search_train + rows.final_train)
    return step * trained + forward * _n_scored(rows, settings)


def _n_scored(rows: RowCounts, settings: Settings) -> int:
    return settings.n_trials * rows.search_val + settings.n_epochs * rows.test


def _flops_per_row(settings: Settings, dim: int, n_classes: int) -> tuple[float, float]:
    """Return the floating-point operations for a row: of the logits alone, and of a step of training.

    A step multiplies by every weight for the logits and for the gradient of the weight, and in all layers but the first
    once more for the gradient of the layer's input.
    """
    layers = [2.0 * a * b for a, b in itertools.pairwise(settings.layer_sizes(dim, n_classes))]
    return sum(layers), 3 * sum(layers) - layers[0]


# ------------------------------------------------------------------------------------------------------------
# Time


class Speed:
    """Durations on this machine, estimated from short trainings on the first rows with the same kind of step.

    The duration of a step is linear in its rows; the constant part (the update of the weights, calls) is most of a
    few-shot run.

    Args:
        data: the data set.
        settings: settings of the runs; seed and shots do not matter.
        engine: engine of the training.
        largest: number of rows of the largest training, which decides whether it is done in the span of its rows.

    Attributes:
        full: number of rows of a full step.
        full_step: duration of a full step of one classifier, in seconds.
    """

    def __init__(self, data: Data, settings: Settings, engine: Engine, largest: int) -> None:
        self._data, self._engine, self._settings = data, engine, settings
        self._in_span = gram.applies(largest, data.features.dim)
        self.full = min(largest, settings.batch_size)
        self.full_step, self._setup = self._time_step(self.full)
        self._slope, small = 0.0, max(1, self.full // 16)
        if small < self.full:
            small_step = min(self._time_step(small)[0], self.full_step)
            self._slope = (self.full_step - small_step) / (self.full - small)
        self._score_row = self._time_score()

    @property
    def flops_per_second(self) -> float:
        """Floating-point operations per second in the matrix products of a full step."""
        per_row = _flops_per_row(self._settings, self._data.features.dim, len(self._data.labels))[1]
        return per_row * self.full / self.full_step

    def run(self, rows: RowCounts, settings: Settings) -> float:
        """Return the estimated duration of a run, in seconds."""
        epoch = self._epoch(rows.search_train) * settings.n_trials + self._epoch(rows.final_train)
        setup = self._setup * (settings.n_trials + 1)
        return setup + settings.n_epochs * epoch + self._score_row * _n_scored(rows, settings)

    def _epoch(self, n: int) -> float:
        n_full, rest = divmod(n, self.full)
        return n_full * self.full_step + (self.full_step - self._slope * (self.full - rest) if rest else 0.0)

    def _time_step(self, n_rows: int) -> tuple[float, float]:
        """Return the seconds of a step of one classifier, and of the work before the first step."""
        # A single batch may have few enough rows for training in their span when the whole training has too many.
        n_steps = 1 if self._in_span else self._data.features.dim // (2 * n_rows) + 1
        spec = TrainSpec(torch.arange(n_rows).repeat(n_steps), [(0.0, 0.0)], init_seed=0, order_seed=0)

        def train(n_epochs: int) -> None:
            settings = dataclasses.replace(self._settings, n_epochs=n_epochs, batch_size=n_rows)
            self._engine.fit(self._data, spec, settings)

        epoch, setup = self._time(train)
        return epoch / n_steps, setup

    def _time_score(self) -> float:
        """Return the seconds that the scores of a row take."""
        sizes = self._settings.layer_sizes(self._data.features.dim, len(self._data.labels))
        device, m = self._engine.device, min(self._data.test.n, CPU_CHUNK)
        layers = [(weight.to(device), bias.to(device)) for weight, bias in initial_layers(sizes, seed=0)]
        classifier, y = TrainedClassifier(layers), self._data.test_y[:m]

        def score(repeats: int) -> None:
            for _ in range(repeats):
                evaluate(self._data.test, y, classifier.logits, exact=False)

        return self._time(score)[0] / m

    def _time(self, work: Callable[[int], object]) -> tuple[float, float]:
        """Return the seconds of a repetition, and of the part that is done once only (buffers, graphs)."""

        def clock(repeats: int) -> float:
            self._wait()
            start = _clock()
            work(repeats)
            self._wait()
            return _clock() - start

        once = clock(1)  # also warms up
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
    """Return the plan in three lines.

    Args:
        data: the data set.
        study: settings of the runs, one or more.
        engine: engine of the training.
        at_once: number of runs side by side.
    """
    dim, n_classes, first = data.features.dim, len(data.labels), study[0]
    class_sizes = torch.bincount(data.y).tolist()
    runs = [(rows_of(class_sizes, settings, data.test.n), settings) for settings in study]
    n_flops = sum(estimate_flops(*run, dim=dim, n_classes=n_classes) for run in runs)
    precision = " and ".join(sorted({engine.used_precision(*run, dim) for run in runs}))
    if n_flops < _MOMENT:
        expected, measured = "seconds", ""
    else:
        seconds, speeds = 0.0, {}
        for rows, settings in sorted(runs, key=lambda run: -_largest(run[0])):
            in_span = gram.applies(_largest(rows), dim)
            if in_span not in speeds:
                speeds[in_span] = Speed(data, first, engine, _largest(rows))
            seconds += speeds[in_span].run(rows, settings)
        expected = f"about {f'{seconds:.1f}s' if seconds < 10 else duration(seconds)}"
        measured = f", {speeds[min(speeds)].flops_per_second / 1e9:.3g} GFLOP/s measured"
    n_runs = "1 run" if len(study) == 1 else f"{len(study)} runs"
    trainings = f"{first.n_trials} trials and a final training" if first.n_trials else "one training"
    side_by_side = f", {at_once} at a time" if at_once > 1 else ""
    available = available_memory()
    left = "" if available is None else f"; {size(available)} of memory left"
    threads = f" with {torch.get_num_threads()} threads" if engine.device.type == "cpu" else ""
    return [
        f"plan: {n_runs} of {trainings}, {first.n_epochs} epochs, {n_classes} classes, {_format_flops(n_flops)} of "
        f"matrix products{side_by_side}",
        f"plan: training features {_storage_of(data.features)}, test features {_storage_of(data.test)}{left}",
        f"plan: {expected} on {engine.device}{threads} ({precision}{measured})",
    ]


def _largest(rows: RowCounts) -> int:
    return max(rows.search_train, rows.final_train)


def _storage_of(features: FeatureMatrix) -> str:
    if isinstance(features, HostMatrix):
        return (
            f"do not fit on {features.device} and are sent there batch by batch: {_storage_of(features.host)}"
        )
    n_bytes = size(4.0 * features.n * features.dim)
    if isinstance(features, StoredMatrix):
        n_bytes = size(float(features.stored.nbytes))
        if features.in_file:
            return f"stay in their file (memory-mapped, {n_bytes})"
        return f"in memory as {str(features.stored.dtype).removeprefix('torch.')} ({n_bytes})"
    place = "in memory" if features.device.type == "cpu" else f"on {features.device}"
    form = "float32" if features.dtype == torch.float32 else "bfloat16 and the rest"
    return f"{place} as {form} ({n_bytes})"


def _format_flops(n_flops: float) -> str:
    for unit, name in ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP")):
        if n_flops >= unit:
            return f"{n_flops / unit:.3g} {name}"
    return f"{n_flops / 1e6:.3g} MFLOP"
