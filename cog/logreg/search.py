"""The search for learning rate and weight decay (paper supplement B.3), and its finished trials on disk.

The journal (``optuna.storages.JournalStorage`` on ``JournalFileBackend``, readable by Optuna's own tools) has one line
of JSON per trial. It is a memory of results, not the study that makes suggestions: that one is rebuilt from it by
asking and telling again in the same rounds, which brings the sampler's random stream to where an uninterrupted run
would have it. A trial is appended when it is finished, in one write that reaches the disk; what a killed process left
of a line is cut off before the next one is written. Reading parses JSON and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog.errors import CogError

if TYPE_CHECKING:
    import optuna

    from cog.logreg.settings import Settings

logger = logging.getLogger(__name__)

#: Suggestions that TPE draws at random before it looks at any result (Optuna's default, as in the original
#: toolkit). They can be trained together without changing anything.
N_STARTUP_TRIALS = 10

_STUDY_NAME = "search"


@dataclass(frozen=True)
class Trial:
    """One pair of hyper-parameters and its score.

    Attributes:
        number: 0, 1, ...
        lr: learning rate.
        wd: weight decay.
        val_top1: accuracy on the held-out part in percent; 0 when training diverged.
        diverged: whether a weight was no longer finite.
        seconds: duration; of trials that were trained together, each one's share.
        pruned: always False; earlier versions could stop trials early, and readers look for it.
    """

    number: int
    lr: float
    wd: float
    val_top1: float
    diverged: bool
    seconds: float
    pruned: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the trial as JSON-ready values."""
        return asdict(self)


@dataclass(frozen=True)
class Result:
    """What training one suggestion gave; fields as in :class:`Trial`."""

    val_top1: float
    diverged: bool
    seconds: float


def create_study(seed: int, *, constant_liar: bool = False) -> optuna.Study:
    """Return an Optuna study as the original toolkit has it: multivariate TPE, seeded, maximizing.

    Args:
        seed: seed of the sampler.
        constant_liar: treat trials in training as bad ones, so that a round of suggestions does not repeat itself
            (``CLF.SEARCH batched``).
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        # "multivariate" has been marked experimental since 2020; the protocol asks for it.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            multivariate=True, seed=seed, n_startup_trials=N_STARTUP_TRIALS, constant_liar=constant_liar
        )
    return optuna.create_study(sampler=sampler, direction="maximize")


class Search:
    """A search: :meth:`ask` what to train next, :meth:`tell` how it went, until nothing is asked any more.

    Suggestions come in rounds. The first round holds the random ones at the start, which no result can change. After
    that ``sequential`` draws one at a time, exactly like the original toolkit; ``batched`` draws
    ``settings.trials_per_round`` without waiting for each other. The study learns the results of a round when it is
    complete.

    Args:
        settings: settings of the protocol.
        journal: where finished trials are kept; None: nowhere.
        width: trials of a round that are trained together at most.

    Attributes:
        trials: finished trials, in order.
        study: the Optuna study.
    """

    def __init__(self, settings: Settings, journal: TrialJournal | None = None, *, width: int = 1000) -> None:
        self._settings, self._journal, self._width = settings, journal, width
        self._batched = settings.search == "batched"
        self._earlier = () if journal is None else tuple(journal.entries[: settings.n_trials])
        self.study = create_study(settings.seed, constant_liar=self._batched)
        self.trials: list[Trial] = []
        self._asked: list[optuna.Trial] = []  # the present round
        self._n_told = 0
        if self._earlier:
            logger.info(
                "%s%d of %d trials were finished before",
                settings.label,
                len(self._earlier),
                settings.n_trials,
            )

    @property
    def best(self) -> Trial:
        """The trial with the highest validation accuracy, the first of equals (as Optuna does)."""
        return best(self.trials)

    def ask(self) -> list[tuple[float, float]]:
        """Return pairs of learning rate and weight decay to train together; none when the search is over.

        A part of a round that an earlier session recorded only in part is asked for again as a whole: its classifiers
        share their products, whose last bits depend on how many there are.

        Raises:
            CogError: when an earlier session was not asked for the same trials; when all trials diverged.
        """
        while len(self.trials) < self._settings.n_trials:
            if not self._asked:
                self._draw_round()
            first, done = len(self.trials) - self._n_told, len(self.trials)
            part = self._asked[first : first + self._width]
            entries = self._earlier[done : done + len(part)]
            for trial, entry in zip(part, entries, strict=False):
                self._check_same(trial, entry)
            if len(entries) < len(part):
                return [(trial.params["lr"], trial.params["wd"]) for trial in part]
            for entry in entries:
                self._record(entry)
        self._raise_if_all_diverged()
        return []

    def tell(self, results: Sequence[Result]) -> None:
        """Record the results of what was asked, in its order.

        Raises:
            CogError: when they cannot be written; when all trials diverged.
        """
        for result in results:
            if len(self.trials) < len(self._earlier):  # trained again for its neighbors' sake
                self._record(self._earlier[len(self.trials)])
                continue
            trial = self._record(result)
            if self._journal is not None:
                self._journal.append(trial)
            logger.info(
                "%strial %2d: lr %9.4g, wd %8.2e, validation top-1 %6.2f%s (best %.2f)",
                self._settings.label, trial.number, trial.lr, trial.wd, trial.val_top1,
                ", diverged" if trial.diverged else "", self.best.val_top1,
            )  # fmt: skip
        self._raise_if_all_diverged()

    def _draw_round(self) -> None:
        settings, told = self._settings, self._n_told
        if told < N_STARTUP_TRIALS:
            size = N_STARTUP_TRIALS - told
        else:
            size = settings.trials_per_round if self._batched else 1
        for _ in range(min(size, settings.n_trials - told)):
            trial = self.study.ask()
            trial.suggest_float("lr", *settings.lr_interval, log=True)
            trial.suggest_float("wd", *settings.wd_interval, log=True)
            self._asked.append(trial)

    def _check_same(self, trial: optuna.Trial, entry: Entry) -> None:
        if (trial.params["lr"], trial.params["wd"]) != (entry.lr, entry.wd):
            assert self._journal is not None
            raise CogError(
                f"trial {trial.number} was lr {entry.lr!r}, wd {entry.wd!r} when the search was begun, and is lr "
                f"{trial.params['lr']!r}, wd {trial.params['wd']!r} now: Optuna or NumPy draws other numbers here; "
                f"finish the run where it was begun, or remove {self._journal.path.parent} to begin it again"
            )

    def _record(self, result: Result | Entry) -> Trial:
        """Note a result; tell the study when the round is complete."""
        asked = self._asked[len(self.trials) - self._n_told]
        # A diverged trial counts as 0 %: the sampler learns to stay away. A failed one would be ignored.
        val_top1 = 0.0 if result.diverged else result.val_top1
        trial = Trial(
            asked.number,
            asked.params["lr"],
            asked.params["wd"],
            val_top1,
            result.diverged,
            round(result.seconds, 3),
        )
        self.trials.append(trial)
        if len(self.trials) - self._n_told == len(self._asked):
            for own, finished in zip(self._asked, self.trials[self._n_told :], strict=True):
                own.set_user_attr("diverged", finished.diverged)
                self.study.tell(own, finished.val_top1)
            self._asked, self._n_told = [], len(self.trials)
        return trial

    def _raise_if_all_diverged(self) -> None:
        if len(self.trials) == self._settings.n_trials and all(trial.diverged for trial in self.trials):
            if self._journal is not None:
                self._journal.remove()  # the next start will have other settings
            rates = [trial.lr for trial in self.trials]
            raise CogError(
                f"training diverged in all {len(rates)} trials (learning rates {min(rates):.3g} to {max(rates):.3g}); "
                "lower CLF.LR_INTV or set CLF.NORM_FTS True"
            )


def best(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the highest validation accuracy, the first of equals (as Optuna does)."""
    return max(trials, key=lambda t: (not t.diverged, t.val_top1, -t.number))


@dataclass(frozen=True)
class Entry:
    """A finished trial.

    Attributes:
        lr: learning rate.
        wd: weight decay.
        val_top1: as in :class:`Trial`.
        diverged: likewise.
        seconds: likewise.
    """

    lr: float
    wd: float
    val_top1: float
    diverged: bool
    seconds: float


class TrialJournal:
    """Reads and appends.

    Args:
        path: the file; the caller holds the lock of the run's folder.
        lr_interval: ends of the log-uniform learning-rate interval.
        wd_interval: ends of the log-uniform weight-decay interval.

    Attributes:
        path: the file.
        entries: what earlier sessions finished, in order.

    Raises:
        CogError: when it cannot be read or written.
    """

    def __init__(
        self, path: Path, *, lr_interval: tuple[float, float], wd_interval: tuple[float, float]
    ) -> None:
        import optuna

        self.path = path
        self._distributions: dict[str, optuna.distributions.BaseDistribution] = {
            name: optuna.distributions.FloatDistribution(*interval, log=True)
            for name, interval in (("lr", lr_interval), ("wd", wd_interval))
        }
        try:
            _repair(path)
            try:
                # The file comes with the first trial: a folder without it holds nothing to lose.
                self._study = self._open() if path.exists() else None
                trials = [] if self._study is None else self._study.get_trials(deepcopy=False)
                self.entries = [_entry(trial) for trial in trials]
            except OSError:
                raise
            except RuntimeError as error:
                raise _cause(error) from error
            except Exception as error:  # valid JSON that is no journal makes Optuna raise this and that
                logger.warning(
                    "%s cannot be read (%s); its trials are computed again", path, type(error).__name__
                )
                path.unlink()
                self._study, self.entries = None, []
        except OSError as error:
            raise CogError(f"cannot write {path}: {error.strerror or error}") from error

    def _open(self) -> Any:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # Exclusive creation, because some network file systems have no symbolic links (Optuna's default).
            backend = JournalFileBackend(str(self.path), lock_obj=JournalFileOpenLock(str(self.path)))
            storage = JournalStorage(backend)
        return optuna.create_study(
            storage=storage, study_name=_STUDY_NAME, direction="maximize", load_if_exists=True
        )

    def append(self, trial: Trial) -> None:
        """Add a finished trial; it is on the disk when this returns.

        Raises:
            CogError: when it cannot be written.
        """
        import optuna

        finished = optuna.trial.create_trial(
            value=trial.val_top1,
            params={"lr": trial.lr, "wd": trial.wd},
            distributions=self._distributions,
            user_attrs={"diverged": trial.diverged, "seconds": trial.seconds},
        )
        try:
            if self._study is None:
                self._study = self._open()
            self._study.add_trial(finished)
        except (OSError, RuntimeError) as error:
            cause = _cause(error)
            raise CogError(f"cannot write {self.path}: {cause.strerror or cause}") from error

    def remove(self) -> None:
        """Delete the file."""
        self._study, self.entries = None, []
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


def _cause(error: Exception) -> OSError:
    """Return the failure of the file system behind an error: Optuna's lock then fails when it is given back, too.

    Raises:
        Exception: ``error``, when there is none.
    """
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError):
            return found
        found = found.__context__
    raise error


def _entry(trial: Any) -> Entry:
    if not trial.state.is_finished() or trial.value is None:
        raise ValueError("a trial that is not finished")
    return Entry(
        lr=float(trial.params["lr"]),
        wd=float(trial.params["wd"]),
        val_top1=float(trial.value),
        diverged=bool(trial.user_attrs["diverged"]),
        seconds=float(trial.user_attrs["seconds"]),
    )


def _repair(path: Path) -> None:
    """Remove what a killed process left: a lock, and a line that was not written to its end."""
    for lock in path.parent.glob(f"{path.name}.lock*"):
        with contextlib.suppress(FileNotFoundError):
            lock.unlink()
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    whole = 0
    for line in content.splitlines(keepends=True):
        try:
            json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n"):
            break
        whole += len(line)
    if whole < len(content):
        logger.info("%s: cutting off a line that was not written to its end", path)
        os.truncate(path, whole)
