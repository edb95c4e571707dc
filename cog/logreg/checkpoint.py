"""The work in progress of a run on the disk, so that an interrupted one goes on and gives the same bits.

A state holds the parameters, the optimizer's memory and the logs so far. The order of the rows is not saved but drawn
again from the run's seed (the engine draws and drops the orders of the epochs that are finished).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cog.logreg.search import TrialJournal
from cog.logreg.settings import Settings
from cog.runtime import signals
from cog.runtime.state_file import StateFile

logger = logging.getLogger(__name__)

#: In the folder of the run's work: finished trials, the state of the training.
JOURNAL_FILE, CHECKPOINT_FILE = "study.journal", "checkpoint.pt"


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
        before_save: called before anything is written: creates the folder, and raises when someone else has it by now.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        print_freq: int = 10,
        bar: bool = True,
        before_epoch: Callable[[], None] = lambda: None,
        before_save: Callable[[], None] = lambda: None,
    ) -> None:
        self.print_freq, self.bar = print_freq, bar
        self._folder, self._before_epoch, self._before_save = folder, before_epoch, before_save
        self._file = None if folder is None else StateFile(folder / CHECKPOINT_FILE, create=before_save)
        self._key: dict[str, Any] = {}

    def journal(self, settings: Settings) -> TrialJournal | None:
        """Return the finished trials on the disk; None without a folder."""
        if self._folder is None:
            return None
        return TrialJournal(self._folder / JOURNAL_FILE, settings, before_append=self._before_save)

    def restore(self, key: dict[str, Any], label: str) -> TrainState:
        """Begin a training and return its state, tensors on the CPU; a file that cannot be read costs it, no more.

        Args:
            key: JSON values that tell trainings apart; a file with another key is left from an earlier training.
            label: name of the run in log lines.
        """
        self._key = key
        self._before_epoch()
        data = None if self._file is None else self._file.load()
        if data is None or data.get("key") != key:
            return TrainState()
        state = TrainState(**data["state"])
        logger.info("%scontinuing after epoch %d", label, state.epochs)
        return state

    def offer(self, state: Callable[[], TrainState]) -> None:
        """Save if it is time; to be called after every epoch but the last.

        Args:
            state: returns the state of the training; its memory may be reused afterwards.

        Raises:
            Interrupted: when the process was asked to end; everything is saved then.
        """
        if self._file is not None and self._file.due():
            self._file.save({"key": self._key, "state": dict(vars(state()))})
            signals.check("the training so far is saved")
        self._before_epoch()

    def forget_training(self) -> None:
        """Delete the state of the training: it is finished, and its result is kept elsewhere."""
        if self._file is not None:
            self._file.forget()
