"""The work in progress of a run on the disk, from which an interrupted run continues and gives the same bits.

A state holds the parameters, the momentum and the logs so far. The order of the rows is not saved but drawn again from
the seed of the run (the engine draws and drops the orders of the finished epochs).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import torch

from cog.logreg.search import TrialJournal
from cog.runtime import signals
from cog.runtime.resume_dir import ResumeFolder

logger = logging.getLogger(__name__)

#: Files in the folder of a run's work: the finished trials, and the state of the training.
JOURNAL_FILE, CHECKPOINT_FILE = "study.journal", "checkpoint.pt"


@dataclass(eq=False)
class TrainState:
    """The state of the training of K classifiers in lockstep; the defaults are the state at the beginning.

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
    """The work in progress of a run, and the display of its progress.

    With a folder, every finished trial and, from time to time, the state of the training are saved; a second call with
    the same folder gives the result of an uninterrupted first call.

    Args:
        folder: folder of the run, for which the caller ensures the same settings and features; None: nothing is saved.
        print_freq: epochs between log lines of the final training; 0: no lines.
    """

    def __init__(self, folder: ResumeFolder | None = None, *, print_freq: int = 10) -> None:
        self.print_freq, self._folder = print_freq, folder
        self._file = None if folder is None else folder.state(CHECKPOINT_FILE)
        self._key: dict[str, Any] = {}

    def journal(self) -> TrialJournal | None:
        """Return the journal of the finished trials; None without a folder."""
        folder = self._folder
        if folder is None:
            return None
        return TrialJournal(folder.path / JOURNAL_FILE, before_append=folder.create)

    def restore(self, key: dict[str, Any]) -> TrainState:
        """Begin a training and return its saved state, tensors on the CPU; the initial state without a readable file.

        Args:
            key: JSON values that identify the training; a file with another key is left from an earlier training.
        """
        self._key = key
        data = None if self._file is None else self._file.load()
        if data is None or data.get("key") != key:
            return TrainState()
        state = TrainState(**data["state"])
        logger.info("continuing after epoch %d", state.epochs)
        return state

    def offer(self, state: TrainState) -> None:
        """Save the state of the training if a save is due; to be called after every epoch but the last.

        Raises:
            Interrupted: when the process was asked to end; the state is saved then.
        """
        if self._file is not None and self._file.due():
            self._file.save({"key": self._key, "state": dict(vars(state))})
            signals.check("the training so far is saved")

    def forget_training(self) -> None:
        """Delete the state of a finished training, whose result is kept elsewhere."""
        if self._file is not None:
            self._file.forget()
