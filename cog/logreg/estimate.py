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
from cog.logreg import gram, precision
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

#: Least duration of one measurement in seconds; an estimate takes two.
_PROBE_SECONDS = 0.04

_MOST_REPEATS = 256

#: Number of floating-point operations below which the duration is given as "seconds", without a measurement.
_MOMENT = 1e9


# ------------------------------------------------------------------------------------------------------------
# Memory


def training_bytes(settings: Settings, n_rows: int, dim: int, n_classes: int) -> float:
    """Return the memory for the training of one classifier on ``n_rows`` images beside the features, in bytes.

    It has parameters, momentum and gradients in float32, copies of parameters and gradients in bfloat16, the classifier
    with which the duration is measured, and the activations of a batch with their gradients.
    """
    activations = min(settings.batch_size, n_rows) * sum(settings.layer_sizes(dim, n_classes)[1:])
    return 20.0 * settings.n_parameters(dim, n_classes) + 8.0 * activations


def require_room(settings: Settings, n_rows: int, dim: int, n_classes: int, device: torch.device) -> None:
    """Refuse an MLP that exceeds the memory of the device: the kernel would kill the process without a message.

    Raises:
        CogError: when the MLP does not fit; see :func:`training_bytes`.
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
    """Return the numbers of rows in a run with ``counts`` training images of each class, by the protocol's rules."""
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

    Args:
        data: the data set.
        settings: settings of the runs; seed and shots do not matter.
        engine: engine of the training.
        largest: number of rows of the largest training, which decides whether it is done in the span of its rows.

    Attributes:
        full_step: duration of a full step of one classifier, in seconds.
        flops_per_second: floating-point operations per second in the matrix products of a full step.
    """

    def __init__(self, data: Data, settings: Settings, engine: Engine, largest: int) -> None:
        dim, n_classes, device = data.features.dim, len(data.labels), engine.device
        self._full = full = min(largest, settings.batch_size)
        # A single batch may have few enough rows for training in their span when the whole training has too many.
        n_steps = 1 if gram.applies(largest, dim) else dim // (2 * full) + 1
        spec = TrainSpec(torch.arange(full).repeat(n_steps), [(0.0, 0.0)], init_seed=0, order_seed=0)

        def train(n_epochs: int) -> None:
            engine.fit(data, spec, dataclasses.replace(settings, n_epochs=n_epochs, batch_size=full))

        layers = initial_layers(settings.layer_sizes(dim, n_classes), seed=0)
        classifier = TrainedClassifier([(weight.to(device), bias.to(device)) for weight, bias in layers])
        y = data.test_y[:CPU_CHUNK]

        def score(repeats: int) -> None:
            for _ in range(repeats):
                evaluate(data.test, y, classifier.logits, exact=False)

        epoch, self._setup = _time(train, device)
        self.full_step = epoch / n_steps
        self._score_row = _time(score, device)[0] / len(y)
        self.flops_per_second = _flops_per_row(settings, dim, n_classes)[1] * full / self.full_step

    def run(self, rows: RowCounts, settings: Settings) -> float:
        """Return the estimated duration of a run, in seconds."""
        # Products take most of the time of large trainings; the rest of a step takes most of that of small ones.
        steps = [max(n / self._full, 1.0) for n in (rows.search_train, rows.final_train)]
        trained = settings.n_epochs * (settings.n_trials * steps[0] + steps[1])
        setup = self._setup * (settings.n_trials + 1)
        return setup + self.full_step * trained + self._score_row * _n_scored(rows, settings)


def _time(work: Callable[[int], object], device: torch.device) -> tuple[float, float]:
    """Return the seconds of a repetition of ``work``, and of the part that is done once only (buffers, graphs)."""

    def clock(repeats: int) -> float:
        start = _clock()
        work(repeats)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return _clock() - start

    if device.type != "cpu":
        work(1)  # the first call loads kernels and libraries
    once = clock(1)  # also warms up
    if once > 2 * _PROBE_SECONDS:
        return once, 0.0
    once = min(once, clock(1))
    repeats = 4
    while (many := clock(repeats)) - once < _PROBE_SECONDS / 2 and repeats < _MOST_REPEATS:
        repeats *= 4
    each = max((many - once) / (repeats - 1), 1e-7)
    return each, max(once - each, 0.0)


# ------------------------------------------------------------------------------------------------------------


def describe(data: Data, study: Sequence[Settings], engine: Engine, *, at_once: int = 1) -> list[str]:
    """Return the plan in three lines, for runs (one or more) of which ``at_once`` are done side by side."""
    dim, n_classes, first = data.features.dim, len(data.labels), study[0]
    class_sizes = torch.bincount(data.y).tolist()
    runs = [(rows_of(class_sizes, settings, data.test.n), settings) for settings in study]
    n_flops = sum(estimate_flops(*run, dim=dim, n_classes=n_classes) for run in runs)
    used = " and ".join(sorted({precision.describe(engine.arithmetic(*run, dim)) for run in runs}))
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
        f"plan: {expected} on {engine.device}{threads} ({used}{measured})",
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
        x, n_bytes = features.stored.x, size(float(features.stored.x.nbytes))
        if features.stored.in_file:
            return f"stay in their file (memory-mapped, {n_bytes})"
        return f"in memory as {str(x.dtype).removeprefix('torch.')} ({n_bytes})"
    place = "in memory" if features.device.type == "cpu" else f"on {features.device}"
    form = "float32" if features.dtype == torch.float32 else "bfloat16 and the rest"
    return f"{place} as {form} ({n_bytes})"


def _format_flops(n_flops: float) -> str:
    for unit, name in ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP")):
        if n_flops >= unit:
            return f"{n_flops / unit:.3g} {name}"
    return f"{n_flops / 1e6:.3g} MFLOP"
