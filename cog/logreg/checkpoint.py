"""Saving a training in progress, so that an interrupted one goes on and gives the same bits.

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

from cog.runtime import files, signals

logger = logging.getLogger(__name__)

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


@dataclass(eq=False)
class CheckpointedRuns:
    """The state of the classifiers that are trained in lockstep, in a file.

    Attributes:
        path: the file, in the run's folder of work in progress; None: nothing is saved.
        key: JSON values that tell trainings apart; a file with another key is left from an earlier training.
        label: the name of the run in log lines.
        before_epoch: called before every epoch; may raise.
    """

    path: Path | None = None
    key: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    before_epoch: Callable[[], None] = lambda: None
    _interval: float = SAVE_SECONDS
    _saved: float = field(default_factory=time.monotonic)

    def restore(self) -> TrainState:
        """Return the state of the training, tensors on the CPU; a file that cannot be read costs it, no more."""
        self._interval, self._saved = SAVE_SECONDS, time.monotonic()
        self.before_epoch()
        data = None if self.path is None else read(self.path)
        if data is None or data.get("key") != self.key:
            return TrainState()
        state = TrainState(**data["state"])
        logger.info("%scontinuing after epoch %d", self.label, state.epochs)
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
        """Delete the file: the training that it holds is finished."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


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
