"""The search for learning rate and weight decay (paper supplement B.3), and its finished trials on disk.

The journal has one line of JSON per trial. The study that makes suggestions is rebuilt from them by the same calls of
ask and tell in the same rounds, which brings the sampler's random stream to the state of an uninterrupted run. A trial
is appended when it is finished, in one write that reaches the disk; the incomplete line of a killed process is cut off
before the next line is written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog.errors import CogError, os_errors_explained
from cog.results.search_history import Trial

if TYPE_CHECKING:
    import optuna

    from cog.logreg.settings import Settings

logger = logging.getLogger(__name__)

#: Number of suggestions that TPE draws at random before it uses results (Optuna's default, as in the original toolkit).
#: Training them together does not change the search.
N_STARTUP_TRIALS = 10


@dataclass(frozen=True)
class Result:
    """The outcome of training with one pair.

    Attributes:
        val_top1: accuracy on the held-out part in percent; counts as 0 when training diverged.
        diverged: whether a weight was no longer finite.
        seconds: duration in seconds; the share of one trial when several were trained together.
    """

    val_top1: float
    diverged: bool
    seconds: float


@contextlib.contextmanager
def _quiet_optuna() -> Iterator[Any]:
    """Import Optuna (which takes a second), without its log lines and, in the block, without its warnings.

    Optuna has called ``multivariate``, which the protocol uses, experimental since 2020.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield optuna


def _search_space(settings: Settings) -> dict[str, Any]:
    """Return the distributions of ``lr`` and ``wd``, both log-uniform."""
    from optuna.distributions import FloatDistribution

    intervals = {"lr": settings.lr_interval, "wd": settings.wd_interval}
    return {name: FloatDistribution(*ends, log=True) for name, ends in intervals.items()}


def _create_study(settings: Settings) -> optuna.Study:
    with _quiet_optuna() as optuna:
        sampler = optuna.samplers.TPESampler(
            multivariate=True, seed=settings.seed, n_startup_trials=N_STARTUP_TRIALS
        )
        return optuna.create_study(sampler=sampler, direction="maximize")


class Search:
    """A search: :meth:`ask` returns pairs to train, :meth:`tell` records their results, until no pairs are left.

    Suggestions come in rounds. The first round has the random suggestions at the start, which do not depend on results;
    each later round has one suggestion, as in the original toolkit. The study gets the results of a round when it is
    complete.

    Args:
        settings: settings of the protocol.
        journal: journal of finished trials; None: trials are not saved.
        width: largest number of trials of a round that are trained together.

    Attributes:
        trials: finished trials, in order.
        study: Optuna study as in the original toolkit: multivariate TPE, seeded, maximizing.
    """

    def __init__(self, settings: Settings, journal: TrialJournal | None = None, *, width: int = 1000) -> None:
        self._settings, self._journal, self._width = settings, journal, width
        self._earlier = () if journal is None else tuple(journal.trials[: settings.n_trials])
        self.study, self._space = _create_study(settings), _search_space(settings)
        self.trials: list[Trial] = []
        self._round: list[optuna.Trial] = []
        self._n_told = 0  # trials of the earlier rounds
        if self._earlier:
            n, n_trials = len(self._earlier), settings.n_trials
            logger.info("%d of %d trials were finished before", n, n_trials)

    @property
    def best(self) -> Trial:
        """Trial with the highest validation accuracy; of equal ones the first, as in Optuna."""
        return max(self.trials, key=lambda trial: (not trial.diverged, trial.val_top1, -trial.number))

    def ask(self) -> list[tuple[float, float]]:
        """Return pairs of learning rate and weight decay to train together; an empty list when the search is over.

        Pairs that are trained together are all returned again when an earlier session recorded only some of them:
        their classifiers share products, whose last bits depend on the number of classifiers.

        Raises:
            CogError: when the trials of an earlier session had other pairs; when all trials diverged.
        """
        while len(self.trials) < self._settings.n_trials:
            if not self._round:
                self._draw_round()
            n_done = len(self.trials)
            part = self._round[n_done - self._n_told :][: self._width]
            earlier = self._earlier[n_done : n_done + len(part)]
            for asked, trial in zip(part, earlier, strict=False):
                self._check_same(asked, trial)
            if len(earlier) < len(part):
                return [(asked.params["lr"], asked.params["wd"]) for asked in part]
            for trial in earlier:
                self._record(trial)
        self._raise_if_all_diverged()
        return []

    def tell(self, results: Sequence[Result]) -> None:
        """Record the results of the pairs that :meth:`ask` returned last, in their order.

        Raises:
            CogError: when a trial cannot be written.
        """
        for result in results:
            if len(self.trials) < len(self._earlier):  # trained again because of the others only
                self._record(self._earlier[len(self.trials)])
                continue
            trial = self._record(result)
            if self._journal is not None:
                self._journal.append(trial)
            logger.info(
                "trial %2d: lr %9.4g, wd %8.2e, validation top-1 %6.2f%s (best %.2f)",
                trial.number, trial.lr, trial.wd, trial.val_top1,
                ", diverged" if trial.diverged else "", self.best.val_top1,
            )  # fmt: skip

    def _draw_round(self) -> None:
        size = 1 if self._n_told else min(N_STARTUP_TRIALS, self._settings.n_trials)
        self._round = [self.study.ask(self._space) for _ in range(size)]

    def _check_same(self, asked: optuna.Trial, trial: Trial) -> None:
        lr, wd = asked.params["lr"], asked.params["wd"]
        # The last digits of an exponential depend on the processor; other draws differ in the first digits.
        if not (math.isclose(lr, trial.lr) and math.isclose(wd, trial.wd)):
            assert self._journal is not None
            raise CogError(
                f"trial {trial.number} was lr {trial.lr!r}, wd {trial.wd!r} when the search was begun, and is "
                f"lr {lr!r}, wd {wd!r} now: Optuna or NumPy draws other numbers here; finish the run where it was "
                f"begun, or remove {self._journal.path.parent} to begin it again"
            )

    def _record(self, result: Result | Trial) -> Trial:
        """Record a result and return its trial; when the round is complete, pass the results to the study."""
        number = len(self.trials)
        params = self._round[number - self._n_told].params
        # A diverged trial counts as 0 %, so that the sampler avoids its pair; it would ignore a failed trial.
        val_top1 = 0.0 if result.diverged else result.val_top1
        seconds = round(result.seconds, 3)
        trial = Trial(number, params["lr"], params["wd"], val_top1, result.diverged, seconds)
        self.trials.append(trial)
        if len(self.trials) - self._n_told == len(self._round):
            for asked, finished in zip(self._round, self.trials[self._n_told :], strict=True):
                self.study.tell(asked, finished.val_top1)
            self._round, self._n_told = [], len(self.trials)
        return trial

    def _raise_if_all_diverged(self) -> None:
        if len(self.trials) == self._settings.n_trials and all(trial.diverged for trial in self.trials):
            if self._journal is not None:
                self._journal.path.unlink(missing_ok=True)  # the next start will have other settings
            rates = [trial.lr for trial in self.trials]
            raise CogError(
                f"training diverged in all {len(rates)} trials (learning rates {min(rates):.3g} to {max(rates):.3g}); "
                f"lower CLF.LR_INTV{'' if self._settings.normalize else ' or set CLF.NORM_FTS True'}"
            )


class TrialJournal:
    """The finished trials of a search, one line of JSON each, in a file.

    Args:
        path: the file, which is created with the first trial; the caller holds the lock of the run's folder.
        before_append: function called before a trial is written; may raise an error.

    Attributes:
        path: the file.
        trials: the trials that earlier sessions finished, in order.

    Raises:
        CogError: when the file cannot be read or written.
    """

    def __init__(self, path: Path, *, before_append: Callable[[], None] = lambda: None) -> None:
        self.path, self._before_append = path, before_append
        self.trials: list[Trial] = []
        with os_errors_explained(f"cannot write {path}"):
            content = path.read_bytes() if path.exists() else b""
            whole = 0
            for line in content.splitlines(keepends=True):
                trial = _as_trial(line)
                if trial is None or trial.number != len(self.trials):
                    logger.warning(
                        "%s: cutting off what does not continue its first %d trials", path, len(self.trials)
                    )
                    os.truncate(path, whole)
                    break
                self.trials.append(trial)
                whole += len(line)

    def append(self, trial: Trial) -> None:
        """Append a finished trial, which is on the disk when the call returns.

        Raises:
            CogError: when the file cannot be written.
        """
        self._before_append()
        with os_errors_explained(f"cannot write {self.path}"), open(self.path, "ab") as handle:
            handle.write(json.dumps(dataclasses.asdict(trial)).encode() + b"\n")
            handle.flush()
            os.fsync(handle.fileno())


def _as_trial(line: bytes) -> Trial | None:
    """Return the trial in a line of a journal; None when the line is incomplete or has no trial."""
    try:
        values = json.loads(line) if line.endswith(b"\n") else {}
        lr, wd, val_top1, seconds = (float(values[key]) for key in ("lr", "wd", "val_top1", "seconds"))
        return Trial(int(values["number"]), lr, wd, val_top1, bool(values["diverged"]), seconds)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
