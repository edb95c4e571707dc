"""The search for learning rate and weight decay (paper supplement B.3)."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cog.errors import CogError
from cog.progress import Progress

if TYPE_CHECKING:
    import optuna

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trial:
    """One pair of hyper-parameters and its score.

    Attributes:
        number: 0, 1, ...
        lr: learning rate.
        wd: weight decay.
        val_top1: accuracy on the held-out part in percent; 0 when training diverged.
        diverged: whether a weight was no longer finite.
        seconds: duration.
    """

    number: int
    lr: float
    wd: float
    val_top1: float
    diverged: bool
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return the trial as JSON-ready values."""
        return asdict(self)


def create_study(seed: int) -> optuna.Study:
    """Return an Optuna study as the original toolkit has it: multivariate TPE, seeded, maximising."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        # "multivariate" has been marked experimental since 2020; the protocol asks for it.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(multivariate=True, seed=seed)
    return optuna.create_study(sampler=sampler, direction="maximize")


def search(
    objective: Callable[[float, float], tuple[float, bool]],
    *,
    n_trials: int,
    lr_interval: tuple[float, float],
    wd_interval: tuple[float, float],
    seed: int,
) -> tuple[list[Trial], optuna.Study]:
    """Try ``n_trials`` pairs, each suggested from the results before it.

    Args:
        objective: ``(lr, wd) -> (validation top-1 in percent, diverged)``.
        n_trials: number of pairs.
        lr_interval: ends of the log-uniform learning-rate interval.
        wd_interval: ends of the log-uniform weight-decay interval.
        seed: of the sampler.

    Returns:
        All trials in order, and the study.

    Raises:
        CogError: when every trial diverged.
    """
    study = create_study(seed)
    trials: list[Trial] = []
    with Progress(n_trials, "hyper-parameter search", unit="trials") as progress:
        for number in range(n_trials):
            asked = study.ask()
            lr = asked.suggest_float("lr", *lr_interval, log=True)
            wd = asked.suggest_float("wd", *wd_interval, log=True)
            start = time.monotonic()
            val_top1, diverged = objective(lr, wd)
            # A diverged trial counts as 0 %: the sampler learns to stay away. A failed one would be ignored.
            val_top1 = 0.0 if diverged else val_top1
            asked.set_user_attr("diverged", diverged)
            study.tell(asked, val_top1)
            trials.append(Trial(number, lr, wd, val_top1, diverged, round(time.monotonic() - start, 3)))
            logger.info(
                "trial %2d: lr %9.4g, wd %8.2e, validation top-1 %6.2f%s (best %.2f)",
                number, lr, wd, val_top1, ", diverged" if diverged else "", best(trials).val_top1,
            )  # fmt: skip
            progress.update()
    if all(trial.diverged for trial in trials):
        raise CogError(
            f"training diverged in all {n_trials} trials (learning rates {min(t.lr for t in trials):.3g} to "
            f"{max(t.lr for t in trials):.3g}); lower CLF.LR_INTV or set CLF.NORM_FTS True"
        )
    return trials, study


def best(trials: list[Trial]) -> Trial:
    """Return the trial with the highest validation accuracy, the first of equals (as Optuna does)."""
    return max(trials, key=lambda trial: (not trial.diverged, trial.val_top1, -trial.number))
