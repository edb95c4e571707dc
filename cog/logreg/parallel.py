"""Several runs of one call side by side: threads that share the features and divide the processors among themselves.

On a CPU the result must not depend on what runs beside it. The bits of a matrix product can depend on the number of
threads that compute it, so runs are done side by side only where the products of their steps were tried with each
number of threads that a run may get, and gave the same bits; else each run has all processors, one after the other. On
a GPU each thread issues its work to a stream of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import torch

from cog.logreg.engine import Data, Engine, device_room
from cog.logreg.estimate import Rows, rows_of, training_bytes
from cog.logreg.metrics import CPU_CHUNK
from cog.logreg.protocol import sgd_config
from cog.logreg.search import N_STARTUP_TRIALS
from cog.logreg.settings import Settings
from cog.logreg.sgd import SgdConfig, TrainedClassifier, TrainSpec
from cog.runtime.memory import available_memory, is_exhausted
from cog.runtime.signals import Interrupted

logger = logging.getLogger(__name__)

#: Share of the memory that is free that runs side by side may take.
_USABLE = 0.5


class _Stopped(Interrupted):
    """A run ends because another one failed."""


class SideBySide:
    """Does numbered jobs in threads.

    On a CPU the processors are divided evenly among the jobs in progress, anew before every epoch: the last job has
    them all. Jobs that do not get enough memory are done again, alone.

    Args:
        do: does a job, given its number and what it has to call before every epoch.
        n_jobs: number of jobs.
        at_once: jobs in progress at most.
        device: where they compute.
        alone: jobs to do alone, after the others.
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
        self._waiting = [number for number in range(n_jobs) if number not in alone]
        self._again = list(alone)
        self._lock = threading.Lock()
        self._n_active, self._n_threads = 0, torch.get_num_threads()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do all jobs; raises the first error when those in progress have ended."""
        if self._at_once > 1:
            threads = [threading.Thread(target=self._work, name=f"run-{i}") for i in range(self._at_once)]
            self._n_active = len(threads)
            try:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            except BaseException as error:  # ^C
                self._error = self._error or error
                for thread in threads:
                    thread.join()
                raise
            finally:
                torch.set_num_threads(self._n_threads)
            if self._error is not None:
                raise self._error
        for number in sorted([*self._waiting, *self._again]):
            self._do(number, lambda: None)

    def _work(self) -> None:
        while (number := self._next()) is not None:
            try:
                self._do(number, self._before_epoch)
            except BaseException as error:
                if error.__cause__ is not None and is_exhausted(error.__cause__):
                    logger.warning("%d runs side by side: %s; one is done again alone", self._at_once, error)
                    self._again.append(number)
                    continue
                with self._lock:
                    if self._error is None or isinstance(self._error, _Stopped):
                        self._error = error
        with self._lock:
            self._n_active -= 1

    def _next(self) -> int | None:
        with self._lock:
            return self._waiting.pop(0) if self._waiting and self._error is None else None

    def _before_epoch(self) -> None:
        if self._error is not None and not isinstance(self._error, Interrupted):
            raise _Stopped("another run failed")
        share = max(1, self._n_threads // self._n_active)
        if self._is_cpu and torch.get_num_threads() != share:
            torch.set_num_threads(share)  # of this thread


def runs_at_once(data: Data, settings: Sequence[Settings], engine: Engine) -> tuple[int, list[int]]:
    """Return how many runs to do side by side, within the memory that is there, and which ones to do alone."""
    most = min(len(settings), engine.max_parallel_runs)
    is_cpu = engine.device.type == "cpu"
    room = available_memory() if is_cpu else device_room(engine.device)
    if room is not None:
        config = sgd_config(settings[0], len(data.labels))
        each = engine.trials_per_batch(config) * training_bytes(
            settings[0], data.features.n, data.features.dim, len(data.labels)
        )
        most = int(max(1, min(most, _USABLE * room / each)))
    if most == 1 or not is_cpu:
        return most, []
    n_threads = torch.get_num_threads()
    counts = sorted({max(1, n_threads // n) for n in range(1, most + 1)})
    class_sizes = torch.bincount(data.y).tolist()
    tried: dict[tuple[int, int], bool] = {}
    alone = []
    try:
        for number, one in enumerate(settings):
            rows = rows_of(class_sizes, one)
            config = sgd_config(one, len(data.labels))
            for n_rows, width in _shapes(one, rows, engine.trials_per_batch(config)):
                if (n_rows, width) not in tried:
                    results = []
                    for count in counts:
                        torch.set_num_threads(count)
                        results.append(_products(data, engine, config, n_rows, width, rows.search_val))
                    tried[n_rows, width] = all(
                        torch.equal(a, b)
                        for other in results[1:]
                        for a, b in zip(results[0], other, strict=True)
                    )
                if not tried[n_rows, width]:
                    alone.append(number)
                    break
    finally:
        torch.set_num_threads(n_threads)
    most = max(1, min(most, len(settings) - len(alone)))
    if alone:
        logger.info(
            "%d of %d runs are done one after the other: their last bits depend on the number of threads",
            len(alone), len(settings),
        )  # fmt: skip
    return most, alone if most > 1 else []


def _shapes(settings: Settings, rows: Rows, together: int) -> list[tuple[int, int]]:
    """Return rows and classifiers of each kind of training that a run may do."""
    rounds = [min(N_STARTUP_TRIALS, settings.n_trials)]
    if settings.n_trials > N_STARTUP_TRIALS:
        later = settings.trials_per_round if settings.search == "batched" else 1
        rounds += [
            min(later, settings.n_trials - N_STARTUP_TRIALS),
            (settings.n_trials - N_STARTUP_TRIALS) % later,
        ]
    widths = {part for size in rounds for part in (min(size, together), size % together) if part}
    return [(rows.search_train, width) for width in sorted(widths)] + [(rows.final_train, 1)]


@torch.no_grad()
def _products(
    data: Data, engine: Engine, config: SgdConfig, n_rows: int, width: int, n_val: int
) -> list[torch.Tensor]:
    """Return what steps on a full batch and on the last one leave, and logits of chunks of every size."""
    b = min(config.batch_size, n_rows)
    spec = TrainSpec(torch.arange(n_rows), [(1.0, 1e-4)] * width, init_seed=0, order_seed=0)
    learner = engine.make_learner(data, spec, config, record=False)
    learner.begin_epoch(torch.ones(width))
    for size in {b, n_rows % b or b}:
        learner.load(spec.rows[:size])
        learner.step(size)
    classifiers = [TrainedClassifier(learner.layers(k), config.relu) for k in range(width)]
    found = [
        *learner.state.values(),
        *(tensor for one in classifiers for layer in one.layers for tensor in layer),
    ]
    for matrix, n in ((data.features, n_val), (data.test, data.test.n)):
        for exact in (True, False):
            found.append(classifiers[0].logits(matrix.part(0, min(CPU_CHUNK, n), exact=exact)))
    return found
