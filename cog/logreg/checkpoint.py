"""Saving trainings in progress, so that an interrupted one goes on and gives the same bits.

An engine that is given a :class:`Checkpoint` asks it, before it trains, where each run stands
(:meth:`~Checkpoint.restore`), and after every epoch but the last whether to save (:meth:`~Checkpoint.due`,
:meth:`~Checkpoint.save`). It knows nothing of files and signals: ``save`` raises
:class:`~cog.interruption.Interrupted` when the process was asked to end. States are per run, each with its own count
of epochs, so runs may be regrouped after a restart: no result depends on what is trained together (see
:mod:`cog.logreg.engine`).

What a state has to hold: the parameters, the optimiser's memory, the history so far. Not the order of the rows: it is
drawn again from the run's seed (an engine draws and drops the orders of the epochs that are finished).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload

import torch

from cog import files, interruption
from cog.logreg.sgd import Fit

logger = logging.getLogger(__name__)

AnyFit = TypeVar("AnyFit", bound=Fit)

#: Seconds of training between two saves: what SIGKILL may cost.
SAVE_SECONDS = 120.0

#: Saves take at most this share of the time, whatever the file system: after a slow one the next comes later.
_MAX_SHARE = 0.005


@dataclass(eq=False)
class RunState:
    """Where the training of one classifier stands.

    Attributes:
        epochs: how many are finished.
        values: all that the next epoch needs, by names of the engine's choice: tensors (on any device), numbers,
            strings, and lists and dicts of these. Of a run that has ended: the fields of its
            :class:`~cog.logreg.sgd.Fit`, but for history and predictions.
        ended: ``"trained"``, ``"diverged"``, ``"stopped"`` (pruned), or ``""``: in training.
        seconds: duration so far, all sessions together; as in :class:`cog.logreg.sgd.Fit`.
        logs: values per epoch so far (:attr:`cog.logreg.sgd.History.logs`), when a history is kept.
    """

    epochs: int
    values: dict[str, Any]
    ended: str = ""
    seconds: float = 0.0
    logs: dict[str, list[float]] | None = None


#: One entry per run of a call of ``fit``, in the order of ``runs``; None: not begun.
States = Sequence["RunState | None"]


class Checkpoint(Protocol):
    """What an engine is given to make one call of ``fit`` resumable."""

    def restore(self, n_runs: int) -> list[RunState | None]:
        """Return the state of each of the ``n_runs`` runs; tensors are on the CPU."""
        ...

    def due(self) -> bool:
        """Whether to save now; asked after every epoch (or iteration) but the last."""
        ...

    def save(self, states: States) -> None:
        """Save; memory may be reused when it returns.

        Raises:
            Interrupted: when the process was asked to end.
        """
        ...


class Ledger:
    """The states of all runs of one call of ``fit``, as an engine keeps them.

    Args:
        checkpoint: as given to ``fit``; None: nothing is saved.
        n_runs: number of runs.

    Attributes:
        states: by the position of the run; of those in training, as of the start of this session.
    """

    def __init__(self, checkpoint: Checkpoint | None, n_runs: int) -> None:
        self._checkpoint = checkpoint
        self.states: list[RunState | None] = (
            [None] * n_runs if checkpoint is None else checkpoint.restore(n_runs)
        )

    def epochs(self, index: int) -> int:
        """Return how many epochs of a run are finished."""
        state = self.states[index]
        return 0 if state is None else state.epochs

    @overload
    def ended(self, device: torch.device | None = None) -> dict[int, Fit]: ...

    @overload
    def ended(self, device: torch.device | None, kind: type[AnyFit]) -> dict[int, AnyFit]: ...

    def ended(self, device: torch.device | None = None, kind: type[Any] = Fit) -> dict[int, Any]:
        """Return the classifiers of runs that ended in an earlier session, by their position.

        Args:
            device: where to put them; default: the CPU.
            kind: their class.
        """
        return {
            index: kind(**(state.values if device is None else moved(state.values, device)))
            for index, state in enumerate(self.states)
            if state is not None and state.ended
        }

    def end(self, fits: Mapping[int, Fit]) -> None:
        """Note that runs have ended, for saves to come."""
        for index, fit in fits.items():
            self.states[index] = ended_state(fit)

    def offer(self, training: Callable[[], Mapping[int, RunState]]) -> None:
        """Save if it is time; to be called after every epoch but the last.

        Args:
            training: returns the states of the runs that are being trained, by their position.

        Raises:
            Interrupted: see :meth:`Checkpoint.save`.
        """
        if self._checkpoint is not None and self._checkpoint.due():
            now = training()
            self._checkpoint.save([now.get(index, state) for index, state in enumerate(self.states)])


def ended_state(fit: Fit) -> RunState:
    """Return the state of a run that has ended."""
    ended = "diverged" if fit.diverged else "stopped" if fit.stopped else "trained"
    values = {key: value for key, value in vars(fit).items() if key not in ("history", "predictions")}
    return RunState(0, values, ended, fit.seconds)


def moved(values: Any, device: torch.device) -> Any:
    """Return nested dicts, lists and tuples with their tensors on ``device``."""
    if isinstance(values, torch.Tensor):
        return values.to(device)
    if isinstance(values, dict):
        return {key: moved(value, device) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return type(values)(moved(value, device) for value in values)
    return values


@dataclass(eq=False)
class FileCheckpoint:
    """The states of the runs of one unit of work (trials of a search, a final training) in a file.

    Attributes:
        path: the file, in the run's folder of work in progress.
        key: JSON values that say what is being trained; a file with another key is left from an earlier unit.
        label: how log lines name the run.
        extra: returns further values to keep with the states; given back to ``on_restore``.
        on_restore: called with the ``extra`` of a file that is used.
    """

    path: Path
    key: dict[str, Any]
    label: str = ""
    extra: Callable[[], Any] | None = None
    on_restore: Callable[[Any], None] | None = None
    _interval: float = SAVE_SECONDS
    _saved: float = field(default_factory=time.monotonic)

    def restore(self, n_runs: int) -> list[RunState | None]:
        """See :meth:`Checkpoint.restore`; a file that cannot be read costs the training it holds, no more."""
        self._interval, self._saved = SAVE_SECONDS, time.monotonic()
        nothing: list[RunState | None] = [None] * n_runs
        data = read(self.path)
        if data is None or data.get("key") != self.key or len(data.get("states", ())) != n_runs:
            return nothing
        states = [None if state is None else RunState(**state) for state in data["states"]]
        if self.on_restore is not None:
            self.on_restore(data["extra"])
        epochs = [state.epochs for state in states if state is not None and not state.ended]
        if epochs:
            logger.info("%scontinuing after epoch %d", self.label, min(epochs))
        return states

    def due(self) -> bool:
        """See :meth:`Checkpoint.due`: every two minutes, and when the process was asked to end."""
        return interruption.requested() is not None or time.monotonic() - self._saved >= self._interval

    def save(self, states: States) -> None:
        """See :meth:`Checkpoint.save`; raises nothing but errors of the file system (:class:`JointCheckpoint` does)."""
        start = time.monotonic()
        write(
            self.path,
            {
                "key": self.key,
                "states": [None if state is None else dict(vars(state)) for state in states],
                "extra": None if self.extra is None else self.extra(),
            },
        )
        self._saved = time.monotonic()
        self._interval = max(SAVE_SECONDS, (self._saved - start) / _MAX_SHARE)

    def remove(self) -> None:
        """Delete the file: what it holds is finished."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


class JointCheckpoint:
    """Several runs' folders in one call of ``fit``: seeds and shots that are trained side by side.

    Args:
        parts: checkpoint and number of runs of each folder, in the order of the runs.
    """

    def __init__(self, parts: Sequence[tuple[FileCheckpoint | None, int]]) -> None:
        self._parts = parts

    def restore(self, n_runs: int) -> list[RunState | None]:
        """See :meth:`Checkpoint.restore`."""
        states: list[RunState | None] = []
        for part, n in self._parts:
            states += [None] * n if part is None else part.restore(n)
        assert len(states) == n_runs
        return states

    def due(self) -> bool:
        """See :meth:`Checkpoint.due`."""
        return any(part is not None and part.due() for part, _ in self._parts)

    def save(self, states: States) -> None:
        """See :meth:`Checkpoint.save`."""
        start = 0
        for part, n in self._parts:
            if part is not None:
                part.save(states[start : start + n])
            start += n
        interruption.check("the training so far is saved")


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
