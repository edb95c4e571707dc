"""Saving a training in progress, so that an interrupted one goes on and gives the same bits.

What a state has to hold: the parameters, the optimizer's memory, the history so far. Not the order of the rows: it is
drawn again from the run's seed (the engine draws and drops the orders of the epochs that are finished).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cog.runtime import files, signals

logger = logging.getLogger(__name__)

#: Seconds of training between two saves: what SIGKILL may cost.
SAVE_SECONDS = 120.0

#: Saves take at most this share of the time, whatever the file system: after a slow one the next comes later.
_MAX_SHARE = 0.005


@dataclass(eq=False)
class TrainState:
    """Where the training of K classifiers in lockstep stands.

    Attributes:
        epochs: how many are finished.
        values: tensors that the next epoch needs, by name.
        seconds: duration so far, all sessions together.
        logs: values per epoch so far (:attr:`cog.logreg.sgd.History.logs`), when a history is kept.
    """

    epochs: int
    values: dict[str, torch.Tensor]
    seconds: float
    logs: dict[str, list[float]] | None = None


@dataclass(eq=False)
class CheckpointedRuns:
    """The state of the classifiers that are trained in lockstep, in a file.

    Attributes:
        path: the file, in the run's folder of work in progress; None: nothing is saved.
        key: JSON values that say what is being trained; a file with another key is left from an earlier training.
        label: how log lines name the run.
        before_epoch: called before every epoch; may raise.
    """

    path: Path | None = None
    key: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    before_epoch: Callable[[], None] = lambda: None
    _interval: float = SAVE_SECONDS
    _saved: float = field(default_factory=time.monotonic)

    def restore(self) -> TrainState | None:
        """Return where the training stands, tensors on the CPU; None: at its beginning.

        A file that cannot be read costs the training it holds, no more.
        """
        self._interval, self._saved = SAVE_SECONDS, time.monotonic()
        self.before_epoch()
        data = None if self.path is None else read(self.path)
        if data is None or data.get("key") != self.key:
            return None
        state = TrainState(**data["state"])
        logger.info("%scontinuing after epoch %d", self.label, state.epochs)
        return state

    def due(self) -> bool:
        """Return whether to save now: every two minutes, and when the process was asked to end."""
        return signals.requested() is not None or time.monotonic() - self._saved >= self._interval

    def offer(self, state: Callable[[], TrainState]) -> None:
        """Save if it is time; to be called after every epoch but the last.

        Args:
            state: returns where the training stands; memory may be reused afterwards.

        Raises:
            Interrupted: when the process was asked to end; everything is saved then.
        """
        if self.path is not None and self.due():
            self.save(state())
            signals.check("the training so far is saved")
        self.before_epoch()

    def save(self, state: TrainState) -> None:
        """Write the file."""
        assert self.path is not None
        start = time.monotonic()
        write(self.path, {"key": self.key, "state": dict(vars(state))})
        self._saved = time.monotonic()
        self._interval = max(SAVE_SECONDS, (self._saved - start) / _MAX_SHARE)

    def remove(self) -> None:
        """Delete the file: what it holds is finished."""
        if self.path is not None:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()


def write(path: Path, data: dict[str, Any]) -> None:
    """Write nested dicts and lists of tensors, numbers and strings, whole or not at all."""
    with files.atomic_write(path) as handle:
        torch.save(data, handle)


def read(path: Path) -> dict[str, Any] | None:
    """Return what :func:`write` wrote, tensors on the CPU; None when there is nothing of use.

    Nothing but tensors and plain values is ever unpickled (``weights_only``).
    """
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
        return data if isinstance(data, dict) else None
    except FileNotFoundError:
        return None
    except Exception as error:  # torch.load raises a dozen kinds for a damaged file; the training is repeated
        logger.warning("%s cannot be read (%s); what it held is computed again", path, type(error).__name__)
        return None
