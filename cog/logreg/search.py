"""The search for learning rate and weight decay (paper supplement B.3), and unfinished work of seeds."""

import dataclasses
import functools
import logging
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cog.errors import CogError
from cog.logreg.settings import Settings
from cog.runtime import files, signals

logger = logging.getLogger(__name__)

#: Suggestions that TPE draws at random before it uses results (Optuna's default, as in the original toolkit).
N_STARTUP_TRIALS = 10

TRIALS_FILE, TRAINING_FILE = "trials.json", "training.pt"


@dataclass(frozen=True)
class Trial:
    """A finished trial."""

    number: int  # 0, 1, ...
    lr: float
    wd: float
    val_top1: float  # accuracy on the held-out part in percent; 0 when training diverged
    diverged: bool  # whether a weight was no longer finite
    seconds: float  # the share of one trial when several were trained together


class Search:
    """The search of one seed: Optuna's multivariate TPE, asked and told in turns, as in the original."""

    def __init__(self, settings: Settings) -> None:
        import optuna  # takes a second

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        distribution = functools.partial(optuna.distributions.FloatDistribution, log=True)
        self._space = {"lr": distribution(*settings.lr_interval), "wd": distribution(*settings.wd_interval)}
        options: dict[str, Any] = {"multivariate": True, "seed": settings.seed}
        with warnings.catch_warnings():  # Optuna has called ``multivariate`` experimental since 2020
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(n_startup_trials=N_STARTUP_TRIALS, **options)
        self._study: Any = optuna.create_study(sampler=sampler, direction="maximize")
        self._settings, self._asked = settings, list[Any]()
        self.trials: list[Trial] = []  # finished ones, in order

    @property
    def best(self) -> Trial:
        """Trial with the highest validation accuracy; of equal ones the first, as in Optuna."""
        return max(self.trials, key=lambda trial: (not trial.diverged, trial.val_top1, -trial.number))

    def choose(self) -> tuple[float, float]:
        """Return the pair of the best trial; an error if all diverged."""
        if self.best.diverged:
            what = f"training diverged in all {len(self.trials)} trials of seed {self._settings.seed}"
            raise CogError(f"{what}; lower CLF.LR_INTV, or normalize the features")
        return self.best.lr, self.best.wd

    def ask(self, n: int) -> list[tuple[float, float]]:
        """Return the next ``n`` pairs of learning rate and weight decay."""
        self._asked = [self._study.ask(self._space) for _ in range(n)]
        return [(trial.params["lr"], trial.params["wd"]) for trial in self._asked]

    def tell(self, trials: Sequence[Trial]) -> None:
        """Record the trials of the pairs that were asked for last, in their order.

        A diverged trial counts as 0 %, so that the sampler avoids its pair; it would ignore a failed trial.
        """
        for asked, trial in zip(self._asked, trials, strict=True):
            self._study.tell(asked, trial.val_top1)
            self.trials.append(trial)
            facts = self._settings.seed, trial.number, trial.lr, trial.wd, trial.val_top1
            shown = "seed %d, trial %2d: lr %9.4g, wd %8.2e, validation top-1 %6.2f%s (best %.2f)"
            logger.info(shown, *facts, ", diverged" if trial.diverged else "", self.best.val_top1)


class Unfinished:
    """Work from which a group that was interrupted at any instant continues, and gives the same bits.

    It is two files in ``folder`` (None: nothing is saved), each replaced atomically; those of another
    ``group`` of seeds, or arithmetic, are not continued. The order of the rows is drawn again.
    """

    interval = 120.0  # seconds between two saves of a training: SIGKILL may cost that much

    def __init__(self, folder: Path | None, group: dict[str, Any]) -> None:
        self._folder, self._group = folder, group
        self._saved = time.monotonic()
        stored, self.trials = read_trials(folder)  # finished trials of each seed, in order
        if stored != group:
            if stored:
                logger.warning("%s has trials of another group or of other versions, made again", folder)
            self.trials = [[] for _ in group["seeds"]]
            self.add(self.trials)

    def add(self, trials: Sequence[Sequence[Trial]]) -> None:
        """Add trials ``(S, K)``: at once on the disk, in place of the state of their training."""
        self.trials = [[*known, *new] for known, new in zip(self.trials, trials, strict=True)]
        if self._folder is not None:
            listed = [[dataclasses.asdict(trial) for trial in known] for known in self.trials]
            files.write_json(self._folder / TRIALS_FILE, {"group": self._group, "trials": listed})
            (self._folder / TRAINING_FILE).unlink(missing_ok=True)

    def restore(self, key: dict[str, Any]) -> dict[str, Any]:
        """Return the saved state of the training that ``key`` identifies, on the CPU; empty without."""
        from cog.runtime.safe_load import load_torch

        self._saved = time.monotonic()
        if self._folder is None or not (path := self._folder / TRAINING_FILE).is_file():
            return {}
        try:
            state: dict[str, Any] = load_torch(path)
            if state["key"] == key | {"of": self._group}:
                logger.info("continuing after epoch %d", state["epochs"])
                return state
        except (CogError, TypeError, KeyError) as error:
            logger.warning("%s is damaged (%s); this training is begun again", path, error)
        return {}

    def offer(self, key: dict[str, Any], state: dict[str, Any]) -> None:
        """Save a state after an epoch if that is due; raise Interrupted when the process was asked to end."""
        import torch

        is_early = time.monotonic() - self._saved < self.interval
        if self._folder is None or (signals.requested() is None and is_early):
            return
        with files.atomic_write(self._folder / TRAINING_FILE) as handle:
            torch.save({"key": key | {"of": self._group}, **state}, handle)
        self._saved = time.monotonic()
        signals.check("the training so far is saved")


def read_trials(folder: Path | None) -> tuple[dict[str, Any], list[list[Trial]]]:
    """Return group and trials of a folder; both empty without a readable file (a warning tells of damage)."""
    if folder is None or not (path := folder / TRIALS_FILE).is_file():
        return {}, []
    try:
        stored = files.read_object(path)
        trials = [[Trial(**trial) for trial in of_seed] for of_seed in stored["trials"]]
        return {**stored["group"], "seeds": list(stored["group"]["seeds"])}, trials
    except (CogError, TypeError, KeyError) as error:
        logger.warning("%s is damaged (%s); its trials are made again", path, error)
        return {}, []
