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
    from cog.logreg.sgd import Fit, Run
    from cog.logreg.trial_journal import TrialJournal

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
    """A search in rounds: :meth:`ask` what to train, :meth:`add` how it went, until :attr:`done`.

    The first round holds the random suggestions at the start, which no result can change. After that
    ``sequential`` asks for one at a time, exactly like the original toolkit; ``batched`` for
    ``settings.trials_per_round`` that are drawn without waiting for each other. The study learns the results of a round
    when it is complete, whenever they come.

    Args:
        settings: of the protocol.
        journal: where finished trials are kept; None: nowhere.

    Attributes:
        trials: what is finished, in order.
        study: the Optuna study.
    """

    def __init__(self, settings: Settings, journal: TrialJournal | None = None) -> None:
        self._settings = settings
        self._batched = settings.search == "batched"
        self._journal = journal
        self._earlier = () if journal is None else tuple(journal.entries)
        self.study = create_study(settings.seed, constant_liar=self._batched, pruner=settings.pruner)
        self.trials: list[Trial] = []
        self._asked: list[optuna.Trial] = []
        self._n_told = 0
        if self._earlier:
            logger.info(
                "%s%d of %d trials were finished before",
                settings.label,
                len(self._earlier),
                settings.n_trials,
            )

    @property
    def done(self) -> bool:
        """Whether all trials are finished."""
        return len(self.trials) == self._settings.n_trials

    def ask(self) -> list[tuple[float, float]]:
        """Return the next round: pairs of learning rate and weight decay."""
        settings, told = self._settings, self._n_told
        if told < N_STARTUP_TRIALS:
            size = N_STARTUP_TRIALS - told
        else:
            size = settings.trials_per_round if self._batched else 1
        for _ in range(min(size, settings.n_trials - told)):
            trial = self.study.ask()
            trial.suggest_float("lr", *settings.lr_interval, log=True)
            trial.suggest_float("wd", *settings.wd_interval, log=True)
            self._asked.append(trial)
        return [(trial.params["lr"], trial.params["wd"]) for trial in self._asked]

    def replay(self) -> int:
        """Take over the results of this round that an earlier session recorded; returns how many there are.

        Raises:
            CogError: when it was not asked for the same trials; when all trials diverged.
        """
        asked = list(self._asked)
        entries = self._earlier[self._n_told : self._n_told + len(asked)]
        for trial, entry in zip(asked, entries, strict=False):
            if (trial.params["lr"], trial.params["wd"]) != (entry.lr, entry.wd):
                raise CogError(
                    f"trial {trial.number} was lr {entry.lr!r}, wd {entry.wd!r} when the search was begun, and is lr "
                    f"{trial.params['lr']!r}, wd {trial.params['wd']!r} now: Optuna or NumPy draws other numbers here; "
                    f"finish the run where it was begun, or remove {self._where} to begin it again"
                )
            for epoch, val_top1 in entry.reports.items():
                trial.report(val_top1, epoch)
            self._record(Result(entry.val_top1, entry.diverged, entry.seconds, entry.pruned))
        self._require_hope()
        return len(entries)

    @property
    def _where(self) -> str:
        return "its journal" if self._journal is None else str(self._journal.path.parent)

    def should_stop(self, position: int, epoch: int, val_top1: float) -> bool:
        """Report an intermediate validation accuracy of a trial of this round; whether to prune it."""
        self._asked[position].report(val_top1, epoch)
        return self._asked[position].should_prune()

    def reports(self) -> list[dict[int, float]]:
        """Return the intermediate validation accuracies of each trial of this round, by epoch."""
        known = self.study.get_trials(deepcopy=False)
        return [dict(known[trial.number].intermediate_values) for trial in self._asked]

    def report_again(self, reports: Sequence[dict[int, float]]) -> None:
        """Take over what :meth:`reports` returned in an earlier session."""
        for trial, own in zip(self._asked, reports, strict=True):
            for epoch, val_top1 in own.items():
                trial.report(val_top1, epoch)

    def next_run(self, run: Run) -> Run:
        """Trials of this search do not build on each other: returns ``run``."""
        return run

    def tell(self, results: Sequence[Result]) -> None:
        """Record the results of a round, in the order of its suggestions."""
        for result in results:
            self.add(result)

    def add(self, result: Result, fit: Fit | None = None) -> None:
        """Record the result of the next trial of the round; ``fit`` is of no interest here.

        Raises:
            CogError: when it cannot be written; when all trials diverged.
        """
        position = len(self.trials) - self._n_told
        number = self._asked[position].number
        trial = self._record(result)
        if self._journal is not None:
            # Told already if the round is complete: the reports stay what they were.
            self._journal.append(
                trial, dict(self.study.get_trials(deepcopy=False)[number].intermediate_values)
            )
        logger.info(
            "%strial %2d: lr %9.4g, wd %8.2e, validation top-1 %6.2f%s (best %.2f)",
            self._settings.label, trial.number, trial.lr, trial.wd, trial.val_top1,
            ", diverged" if trial.diverged else ", pruned" if trial.pruned else "", best(self.trials).val_top1,
        )  # fmt: skip
        self._require_hope()

    def _require_hope(self) -> None:
        if self.done and all(trial.diverged for trial in self.trials):
            if self._journal is not None:
                self._journal.remove()  # the next start will have other settings
            rates = [trial.lr for trial in self.trials]
            raise CogError(
                f"training diverged in all {len(rates)} trials (learning rates {min(rates):.3g} to {max(rates):.3g}); "
                "lower CLF.LR_INTV or set CLF.NORM_FTS True"
            )

    def _record(self, result: Result) -> Trial:
        """Note a result; tell the study when the round is complete."""
        asked = self._asked[len(self.trials) - self._n_told]
        # A diverged trial counts as 0 %: the sampler learns to stay away. A failed one would be ignored.
        val_top1 = 0.0 if result.diverged else result.val_top1
        trial = Trial(
            asked.number, asked.params["lr"], asked.params["wd"], val_top1, result.diverged,
            round(result.seconds, 3), result.pruned,
        )  # fmt: skip
        self.trials.append(trial)
        if len(self.trials) - self._n_told == len(self._asked):
            self._tell_round()
        return trial

    def _tell_round(self) -> None:
        import optuna

        for asked, trial in zip(self._asked, self.trials[self._n_told :], strict=True):
            asked.set_user_attr("diverged", trial.diverged)
            if trial.pruned:
                self.study.tell(asked, state=optuna.trial.TrialState.PRUNED)
            else:
                self.study.tell(asked, trial.val_top1)
        self._asked = []
        self._n_told = len(self.trials)


def best(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the highest validation accuracy, the first of equals (as Optuna does)."""
    return max(trials, key=lambda t: (not t.diverged, not t.pruned, t.val_top1, -t.number))
