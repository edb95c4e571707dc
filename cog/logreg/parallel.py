"""Several runs of one call side by side, in threads that share the features and the processors.

On a CPU the result of a run must not depend on the other runs. The bits of a matrix product can depend on the number of
threads that compute it, so runs are done side by side only if the products of their steps were tried with each number
of threads that a run may have, and gave the same bits; other runs are done one after the other, with all processors. On
a GPU each thread issues its work to a stream of its own.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from cog.logreg.engine import Engine, device_room
from cog.logreg.estimate import rows_of, training_bytes
from cog.logreg.matrix import Data
from cog.logreg.metrics import CPU_CHUNK
from cog.logreg.search import N_STARTUP_TRIALS
from cog.logreg.settings import RowCounts, Settings
from cog.logreg.sgd import TrainedClassifier, TrainSpec
from cog.runtime.memory import is_exhausted
from cog.runtime.signals import Interrupted

logger = logging.getLogger(__name__)

#: Share of the free memory that runs side by side may take.
_USABLE = 0.5


class _Stopped(Interrupted):
    """The end of a run because another run failed."""


class SideBySide:
    """Numbered jobs that are done in threads.

    On a CPU the processors are divided evenly among the jobs in progress, again before every epoch: the last job has
    all of them. Jobs that run out of memory are done again, alone.

    Args:
        do: function that does a job, given the number of the job and a function to call before every epoch.
        n_jobs: number of jobs.
        at_once: largest number of jobs in progress.
        device: device of the computation.
        alone: numbers of the jobs to do alone, after the others.
    """

    def __init__(
        self,
        do: Callable[[int, Callable[[], None]], None],
        n_jobs: int,
        at_once: int,
        device: torch.device,
        alone: Sequence[int] = (),
    ) -> None:
        self._do, self._at_once, self._is_cpu = do, min(at_once, n_jobs - len(alone)), device.type == "cpu"
        self._unfinished = [number for number in range(n_jobs) if number not in alone]
        self._alone = list(alone)
        self._lock, self._n_threads = threading.Lock(), torch.get_num_threads()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do all jobs; after an error, wait until the jobs in progress have ended, and raise the first error."""
        if self._at_once > 1:
            with ThreadPoolExecutor(self._at_once, "run") as pool:
                try:
                    list(pool.map(self._try, [*self._unfinished]))
                except BaseException as error:  # ^C: the jobs in progress end at their next epoch
                    self._error = error
            torch.set_num_threads(self._n_threads)
            if self._error is not None:
                raise self._error
        for number in sorted([*self._unfinished, *self._alone]):
            self._do(number, lambda: None)

    def _try(self, number: int) -> None:
        try:
            if self._error is None:
                self._do(number, self._before_epoch)
        except BaseException as error:
            with self._lock:
                if error.__cause__ is not None and is_exhausted(error.__cause__):
                    logger.warning("%d runs side by side: %s; one is done again alone", self._at_once, error)
                    self._alone.append(number)
                elif self._error is None or isinstance(self._error, _Stopped):
                    self._error = error
        self._unfinished.remove(number)

    def _before_epoch(self) -> None:
        if self._error is not None and not isinstance(self._error, Interrupted):
            raise _Stopped("another run failed")
        share = max(1, self._n_threads // min(self._at_once, len(self._unfinished)))
        if self._is_cpu and torch.get_num_threads() != share:
            torch.set_num_threads(share)  # for this thread only


def runs_at_once(data: Data, settings: Sequence[Settings], engine: Engine) -> tuple[int, list[int]]:
    """Return the number of runs to do side by side within the free memory, and the positions of runs to do alone."""
    first, n_classes, dim = settings[0], len(data.labels), data.features.dim
    class_sizes = torch.bincount(data.y).tolist()
    sizes = [rows_of(class_sizes, run, data.test.n) for run in settings]
    widths = [
        engine.trials_per_batch(rows.search_train, run, dim=dim, n_classes=n_classes)
        for rows, run in zip(sizes, settings, strict=True)
    ]
    each = max(widths) * training_bytes(first, data.features.n, dim, n_classes)
    most = min(len(settings), engine.max_parallel_runs, _USABLE * device_room(engine.device) / each)
    at_once = max(1, int(most))
    if at_once == 1 or engine.device.type != "cpu":
        return at_once, []
    n_threads = torch.get_num_threads()
    shares = sorted({max(1, n_threads // n) for n in range(1, at_once + 1)})

    @functools.cache
    def gives_same_bits(n_rows: int, width: int, n_val: int) -> bool:
        results = []
        for share in shares:
            torch.set_num_threads(share)
            results.append(_try_products(data, engine, first, n_rows, width, n_val))
        return all(all(map(torch.equal, results[0], other)) for other in results[1:])

    alone = []
    try:
        for number, (rows, run, width) in enumerate(zip(sizes, settings, widths, strict=True)):
            shapes = _training_shapes(run, rows, width)
            if not all(gives_same_bits(*shape, rows.search_val) for shape in shapes):
                alone.append(number)
    finally:
        torch.set_num_threads(n_threads)
    if alone:
        logger.info(
            "%d of %d runs are done one after the other: their last bits depend on the number of threads",
            len(alone), len(settings),
        )  # fmt: skip
    at_once = max(1, min(at_once, len(settings) - len(alone)))
    return at_once, alone if at_once > 1 else []


def _training_shapes(settings: Settings, rows: RowCounts, width: int) -> list[tuple[int, int]]:
    """Return the numbers of rows and classifiers of each kind of training in a run with ``width`` trials at a time."""
    n_later = max(0, settings.n_trials - N_STARTUP_TRIALS)
    later = settings.trials_per_round if settings.search == "batched" else 1
    rounds = (min(N_STARTUP_TRIALS, settings.n_trials), min(later, n_later), n_later % later)
    widths = {part for size in rounds for part in (min(size, width), size % width) if part}
    return [(rows.search_train, n) for n in sorted(widths)] + [(rows.final_train, 1)]


@torch.no_grad()
def _try_products(
    data: Data, engine: Engine, settings: Settings, n_rows: int, width: int, n_val: int
) -> list[torch.Tensor]:
    """Return the state after steps on a full batch and on the last batch, and logits of chunks of every size."""
    full = min(settings.batch_size, n_rows)
    spec = TrainSpec(torch.arange(n_rows), [(1.0, 1e-4)] * width, init_seed=0, order_seed=0)
    learner = engine.make_learner(data, spec, settings)
    learner.begin_epoch(torch.ones(width))
    for b in {full, n_rows % full or full}:
        learner.load(spec.rows[:b])
        learner.make_step(b)()
    classifiers = [TrainedClassifier(learner.layers(k), settings.has_relu) for k in range(width)]
    tensors = [tensor for classifier in classifiers for layer in classifier.layers for tensor in layer]
    for matrix, n in ((data.features, n_val), (data.test, data.test.n)):
        for exact in (True, False):
            tensors.append(classifiers[0].logits(matrix.part(0, min(CPU_CHUNK, n), exact=exact)))
    return [*learner.state.values(), *tensors]
