"""The unfinished work of a group of seeds on disk: finished trials, and the state of the training in progress."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cog.errors import CogError
from cog.logreg.search import Trial
from cog.runtime import files, signals

logger = logging.getLogger(__name__)

TRIALS_FILE, TRAINING_FILE = "trials.json", "training.pt"


class Unfinished:
    """Work from which a group that was interrupted at any instant continues, and gives the same bits.

    It is two files, each replaced atomically. The order of the rows is no part of them but drawn again from the seeds.

    Args:
        folder: folder of the files; None: nothing is saved.
        group: JSON values that identify the group (``seeds``) and its arithmetic: other work is not continued.
    """

    #: Seconds between two saves of a training (SIGKILL may cost that much), and largest share of the time for them.
    interval, most_share = 120.0, 0.005

    def __init__(self, folder: Path | None, group: dict[str, Any]) -> None:
        self._folder, self._group = folder, group
        self._saved, self._wait = time.monotonic(), self.interval
        #: Finished trials of each seed, in order.
        self.trials: list[list[Trial]] = [[] for _ in group["seeds"]]
        stored, trials = read_trials(folder)
        if stored == group:
            self.trials = trials
            logger.info("%d trials were finished before", len(trials[0]))
        else:
            if stored:
                logger.warning(
                    "%s has trials of another group or of other versions; they are made again", folder
                )
            self.add(self.trials)

    def find(self, first: int, n: int) -> list[list[Trial]] | None:
        """Return ``n`` finished trials of each seed, from number ``first`` on; None if there are fewer."""
        found = [trials[first : first + n] for trials in self.trials]
        return found if all(len(trials) == n for trials in found) else None

    def add(self, trials: Sequence[Sequence[Trial]]) -> None:
        """Add trials ``(S, K)``: on the disk when the call returns, in place of the state of their training."""
        self.trials = [[*known, *new] for known, new in zip(self.trials, trials, strict=True)]
        if self._folder is not None:
            listed = [[dataclasses.asdict(trial) for trial in known] for known in self.trials]
            files.write_json(self._folder / TRIALS_FILE, {"group": self._group, "trials": listed})
            (self._folder / TRAINING_FILE).unlink(missing_ok=True)

    def restore(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """Return the saved state of the training that ``key`` identifies, on the CPU; None if there is none."""
        from cog.runtime.safe_load import load_torch

        self._saved = time.monotonic()
        if self._folder is None or not (self._folder / TRAINING_FILE).is_file():
            return None
        try:
            state = load_torch(self._folder / TRAINING_FILE)
        except CogError as error:
            logger.warning("%s; this training is begun again", error)
            return None
        if not isinstance(state, dict) or state.get("key") != key | {"of": self._group}:
            return None
        logger.info("continuing after epoch %d", state["epochs"])
        return state

    def offer(self, key: dict[str, Any], state: dict[str, Any]) -> None:
        """Save a state if a save is due; to be called after every epoch but the last.

        Raises:
            Interrupted: when the process was asked to end; the state is saved then.
        """
        import torch

        start = time.monotonic()
        if self._folder is None or (signals.requested() is None and start - self._saved < self._wait):
            return
        with files.atomic_write(self._folder / TRAINING_FILE) as handle:
            torch.save({"key": key | {"of": self._group}, **state}, handle)
        self._saved = time.monotonic()
        self._wait = max(self.interval, (self._saved - start) / self.most_share)
        signals.check("the training so far is saved")


def read_trials(folder: Path | None) -> tuple[dict[str, Any], list[list[Trial]]]:
    """Return group and trials of a folder; both empty without a readable file (a warning tells of damage)."""
    if folder is None or not (path := folder / TRIALS_FILE).is_file():
        return {}, []
    try:
        stored = files.read_object(path)
        trials = [[Trial(**trial) for trial in of_seed] for of_seed in stored["trials"]]
        return stored["group"] | {"seeds": list(stored["group"]["seeds"])}, trials
    except (CogError, TypeError, KeyError) as error:
        logger.warning("%s is damaged (%s); its trials are made again", path, error)
        return {}, []
