"""The work in progress of a run on the disk, so that an interrupted one goes on and gives the same bits.

A state holds the parameters, the optimizer's memory and the logs so far. The order of the rows is not saved but drawn
again from the run's seed (the engine draws and drops the orders of the epochs that are finished).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cog.logreg.search import TrialJournal
from cog.logreg.settings import Settings
from cog.runtime import files, signals

logger = logging.getLogger(__name__)

#: In the folder of the run's work: finished trials, the state of the training.
JOURNAL_FILE, CHECKPOINT_FILE = "study.journal", "checkpoint.pt"

#: Seconds of training between two saves, which SIGKILL may cost.
SAVE_SECONDS = 120.0

#: Saves take at most this share of the time, whatever the file system: after a slow one the next comes later.
_MAX_SHARE = 0.005


@dataclass(eq=False)
class TrainState:
    """The state of the training of K classifiers in lockstep; without arguments that at the beginning.

    Attributes:
        epochs: number of finished epochs.
        values: tensors that the next epoch needs, by name.
        seconds: duration so far, all sessions together.
        logs: values per epoch so far; None unless they are recorded.
    """

    epochs: int = 0
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    seconds: float = 0.0
    logs: dict[str, list[float]] | None = None


class Work:
    """The work in progress of a run, and how it reports its progress.

    With a folder, every finished trial and now and then the state of the training is on the disk, and a second call
    with the same folder gives the result that the first one would have given.

    Args:
        folder: folder of the run, which the caller keeps to runs with the same settings and features; None: nothing is
            kept.
        print_freq: epochs between log lines of the final training; 0 prints none.
        bar: whether progress may be a bar on the terminal.
        before_epoch: called before every epoch; may raise.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        print_freq: int = 10,
        bar: bool = True,
        before_epoch: Callable[[], None] = lambda: None,
    ) -> None:
        self.print_freq, self.bar = print_freq, bar
        self._folder, self._before_epoch = folder, before_epoch
        self._file = None if folder is None else folder / CHECKPOINT_FILE
        self._key: dict[str, Any] = {}
        self._saved, self._interval = time.monotonic(), SAVE_SECONDS

    def journal(self, settings: Settings) -> TrialJournal | None:
        """Return the finished trials on the disk; None without a folder."""
        return None if self._folder is None else TrialJournal(self._folder / JOURNAL_FILE, settings)

    def restore(self, key: dict[str, Any], label: str) -> TrainState:
        """Begin a training and return its state, tensors on the CPU; a file that cannot be read costs it, no more.

        Args:
            key: JSON values that tell trainings apart; a file with another key is left from an earlier training.
            label: name of the run in log lines.
        """
        self._key, self._saved, self._interval = key, time.monotonic(), SAVE_SECONDS
        self._before_epoch()
        data = None if self._file is None else read(self._file)
        if data is None or data.get("key") != key:
            return TrainState()
        state = TrainState(**data["state"])
        logger.info("%scontinuing after epoch %d", label, state.epochs)
        return state

    def due(self) -> bool:
        """Return whether to save now: every two minutes, and when the process was asked to end."""
        return signals.requested() is not None or time.monotonic() - self._saved >= self._interval

    def offer(self, state: Callable[[], TrainState]) -> None:
        """Save if it is time; to be called after every epoch but the last.

        Args:
            state: returns the state of the training; its memory may be reused afterwards.

        Raises:
            Interrupted: when the process was asked to end; everything is saved then.
        """
        if self._file is not None and self.due():
            self.save(self._file, state())
            signals.check("the training so far is saved")
        self._before_epoch()

    def save(self, file: Path, state: TrainState) -> None:
        """Write the state of the training."""
        start = time.monotonic()
        write(file, {"key": self._key, "state": dict(vars(state))})
        self._saved = time.monotonic()
        self._interval = max(SAVE_SECONDS, (self._saved - start) / _MAX_SHARE)

    def forget_training(self) -> None:
        """Delete the state of the training: it is finished, and its result is kept elsewhere."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def write(path: Path, data: dict[str, Any]) -> None:
    """Write nested dicts and lists of tensors, numbers and strings, whole or not at all."""
    with files.atomic_write(path) as handle:
        torch.save(data, handle)


def read(path: Path) -> dict[str, Any] | None:
    """Return the data that :func:`write` wrote, tensors on the CPU; None when the file is missing or cannot be read.

    Nothing but tensors and plain values is ever unpickled (``weights_only``).
    """
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
        return data if isinstance(data, dict) else None
    except FileNotFoundError:
        return None
    except Exception as error:  # torch.load raises a dozen kinds for a damaged file; the training is repeated
        logger.warning("%s cannot be read (%s); the training is begun again", path, type(error).__name__)
        return None
