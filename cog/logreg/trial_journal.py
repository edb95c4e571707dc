"""The finished trials of a search on disk: an Optuna journal, one line of JSON per trial.

The journal (``optuna.storages.JournalStorage`` on ``JournalFileBackend``, readable by Optuna's own tools) is a memory
of results, not the study that makes suggestions: that one is rebuilt from it by asking and telling again in the same
rounds (:meth:`cog.logreg.tune.Search.replay`), which brings the sampler's random stream to where an uninterrupted run
would have it. A trial is appended when it is finished, in one write that reaches the disk; what a killed process left
of a line is cut off before the next one is written. Reading parses JSON and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog.errors import CogError

if TYPE_CHECKING:
    from cog.logreg.tune import Trial

logger = logging.getLogger(__name__)

_STUDY_NAME = "search"


@dataclass(frozen=True)
class Entry:
    """A finished trial.

    Attributes:
        lr: learning rate.
        wd: weight decay.
        val_top1: as in :class:`cog.logreg.tune.Trial`.
        diverged: likewise.
        pruned: likewise.
        seconds: likewise.
        reports: validation accuracies (percent) that were reported during training, by epoch.
    """

    lr: float
    wd: float
    val_top1: float
    diverged: bool
    pruned: bool
    seconds: float
    reports: dict[int, float]


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
            _mend(path)
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

    def append(self, trial: Trial, reports: dict[int, float]) -> None:
        """Add a finished trial; it is on the disk when this returns.

        Raises:
            CogError: when it cannot be written.
        """
        import optuna

        state = optuna.trial.TrialState.PRUNED if trial.pruned else optuna.trial.TrialState.COMPLETE
        finished = optuna.trial.create_trial(
            state=state,
            value=trial.val_top1,
            params={"lr": trial.lr, "wd": trial.wd},
            distributions=self._distributions,
            user_attrs={"diverged": trial.diverged, "seconds": trial.seconds},
            intermediate_values=reports,
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
        pruned=trial.state.name == "PRUNED",
        seconds=float(trial.user_attrs["seconds"]),
        reports={int(epoch): float(value) for epoch, value in trial.intermediate_values.items()},
    )


def _mend(path: Path) -> None:
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
