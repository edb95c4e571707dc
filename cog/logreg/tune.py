"""The search for learning rate and weight decay (paper supplement B.3): what to try next, given what came out."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cog.errors import CogError

if TYPE_CHECKING:
    import optuna

    from cog.logreg.settings import Settings

logger = logging.getLogger(__name__)

#: Suggestions that TPE draws at random before it looks at any result (Optuna's default, as in the original
#: toolkit). They can be trained together without changing anything.
N_STARTUP_TRIALS = 10


@dataclass(frozen=True)
class Trial:
    """One pair of hyper-parameters and its score.

    Attributes:
        number: 0, 1, ...
        lr: learning rate.
        wd: weight decay.
        val_top1: accuracy on the held-out part in percent; 0 when training diverged; of a pruned trial the last one
            that was measured.
        diverged: whether a weight was no longer finite.
        seconds: duration; of trials that were trained together, each one's share.
        pruned: whether it was stopped early (``CLF.PRUNER``); it cannot be chosen.
    """

    number: int
    lr: float
    wd: float
    val_top1: float
    diverged: bool
    seconds: float
    pruned: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the trial as JSON-ready values."""
        return asdict(self)


@dataclass(frozen=True)
class Result:
    """What training one suggestion gave; fields as in :class:`Trial`."""

    val_top1: float
    diverged: bool
    seconds: float
    pruned: bool = False


def create_study(seed: int, *, constant_liar: bool = False, pruner: str = "none") -> optuna.Study:
    """Return an Optuna study as the original toolkit has it: multivariate TPE, seeded, maximising.

    Args:
        seed: of the sampler.
        constant_liar: treat trials in training as bad ones, so that a round of suggestions does not repeat itself
            (``CLF.SEARCH batched``).
        pruner: ``"none"`` or ``"median"``.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        # "multivariate" has been marked experimental since 2020; the protocol asks for it.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            multivariate=True, seed=seed, n_startup_trials=N_STARTUP_TRIALS, constant_liar=constant_liar
        )
    stopper = optuna.pruners.MedianPruner() if pruner == "median" else optuna.pruners.NopPruner()
    return optuna.create_study(sampler=sampler, pruner=stopper, direction="maximize")


class Search:
    """A search in rounds: :meth:`ask` what to train, :meth:`tell` how it went, until :attr:`done`.

    The first round holds the random suggestions at the start, which no result can change. After that
    ``sequential`` asks for one at a time, exactly like the original toolkit; ``batched`` for
    ``settings.trials_per_round`` that are drawn without waiting for each other.

    Attributes:
        trials: what is finished, in order.
        study: the Optuna study.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._batched = settings.search == "batched"
        self.study = create_study(settings.seed, constant_liar=self._batched, pruner=settings.pruner)
        self.trials: list[Trial] = []
        self._asked: list[optuna.Trial] = []

    @property
    def done(self) -> bool:
        """Whether all trials are finished."""
        return len(self.trials) == self._settings.n_trials

    def ask(self) -> list[tuple[float, float]]:
        """Return the next round: pairs of learning rate and weight decay."""
        settings, told = self._settings, len(self.trials)
        if told < N_STARTUP_TRIALS:
            size = N_STARTUP_TRIALS - told
        else:
            size = settings.trials_per_round if self._batched else 1
        pairs = []
        for _ in range(min(size, settings.n_trials - told)):
            trial = self.study.ask()
            pairs.append(
                (
                    trial.suggest_float("lr", *settings.lr_interval, log=True),
                    trial.suggest_float("wd", *settings.wd_interval, log=True),
                )
            )
            self._asked.append(trial)
        return pairs

    def should_stop(self, position: int, epoch: int, val_top1: float) -> bool:
        """Report an intermediate validation accuracy of a trial of this round; whether to prune it."""
        self._asked[position].report(val_top1, epoch)
        return self._asked[position].should_prune()

    def tell(self, results: Sequence[Result]) -> None:
        """Record the results of the round, in the order of its suggestions."""
        import optuna

        for asked, result in zip(self._asked, results, strict=True):
            # A diverged trial counts as 0 %: the sampler learns to stay away. A failed one would be ignored.
            val_top1 = 0.0 if result.diverged else result.val_top1
            asked.set_user_attr("diverged", result.diverged)
            if result.pruned:
                self.study.tell(asked, state=optuna.trial.TrialState.PRUNED)
            else:
                self.study.tell(asked, val_top1)
            trial = Trial(
                asked.number, asked.params["lr"], asked.params["wd"], val_top1, result.diverged,
                round(result.seconds, 3), result.pruned,
            )  # fmt: skip
            self.trials.append(trial)
            logger.info(
                "%strial %2d: lr %9.4g, wd %8.2e, validation top-1 %6.2f%s (best %.2f)",
                self._settings.label, trial.number, trial.lr, trial.wd, val_top1,
                ", diverged" if result.diverged else ", pruned" if result.pruned else "", best(self.trials).val_top1,
            )  # fmt: skip
        self._asked = []
        if self.done and all(trial.diverged for trial in self.trials):
            rates = [trial.lr for trial in self.trials]
            raise CogError(
                f"training diverged in all {len(rates)} trials (learning rates {min(rates):.3g} to {max(rates):.3g}); "
                "lower CLF.LR_INTV or set CLF.NORM_FTS True"
            )


def best(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the highest validation accuracy, the first of equals (as Optuna does)."""
    return max(trials, key=lambda t: (not t.diverged, not t.pruned, t.val_top1, -t.number))
