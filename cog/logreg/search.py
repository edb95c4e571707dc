"""The search for learning rate and weight decay (paper supplement B.3)."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cog.errors import CogError
from cog.logreg.settings import Settings

logger = logging.getLogger(__name__)

#: Number of suggestions that TPE draws at random before it uses results (Optuna's default, as in the original toolkit).
#: Training them together does not change the search.
N_STARTUP_TRIALS = 10


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
    """The search of one seed: Optuna's multivariate TPE, asked and told in turns, as in the original toolkit.

    Attributes:
        trials: finished trials, in order.
    """

    def __init__(self, settings: Settings) -> None:
        import optuna  # takes a second

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        intervals = {"lr": settings.lr_interval, "wd": settings.wd_interval}
        distribution = optuna.distributions.FloatDistribution
        self._space = {name: distribution(*ends, log=True) for name, ends in intervals.items()}
        with warnings.catch_warnings():  # Optuna has called ``multivariate`` experimental since 2020
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                multivariate=True, seed=settings.seed, n_startup_trials=N_STARTUP_TRIALS
            )
        self._study: Any = optuna.create_study(sampler=sampler, direction="maximize")
        self._settings = settings
        self.trials: list[Trial] = []
        self._asked: list[Any] = []

    @property
    def best(self) -> Trial:
        """Trial with the highest validation accuracy; of equal ones the first, as in Optuna."""
        return max(self.trials, key=lambda trial: (not trial.diverged, trial.val_top1, -trial.number))

    def choose(self) -> tuple[float, float]:
        """Return the pair of the best trial.

        Raises:
            CogError: all trials diverged.
        """
        if self.best.diverged:
            hint = "" if self._settings.normalize else " or set CLF.NORM_FTS True"
            raise CogError(
                f"training diverged in all {len(self.trials)} trials of seed {self._settings.seed}; lower "
                f"CLF.LR_INTV{hint}"
            )
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
