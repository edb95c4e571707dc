"""The benchmark's protocol for one data set and number of shots, of seeds in lockstep (paper Sec. 4.1, B.3).

1. Hold out 20 % of each class of the training set; few-shot: then draw N per class from the rest.
2. Train on these images with 30 pairs of learning rate and weight decay, and score each pair on the held-out
   part after the last epoch.
3. Train with the best pair on the whole training set; few-shot: on N per class, drawn from the whole set.
4. Score the test set. (It is scored after every epoch, for the curves; only the last score counts.)
"""

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cog.features import sampling
from cog.logreg.engine import Engine, Trained
from cog.logreg.features import Data
from cog.logreg.metrics import Logs, describe_last_epoch
from cog.logreg.mlp import state_dict
from cog.logreg.search import N_STARTUP_TRIALS, Search, Trial, Unfinished
from cog.logreg.settings import PACKAGES, Settings
from cog.runtime import seeds
from cog.runtime.log import progress_of, versions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class RunResult:
    """The outcome of the protocol for one seed."""

    lr: float  # of the final training, as all before the trials
    wd: float
    state: dict[str, torch.Tensor]  # state dict of the classifier on the CPU
    logs: Logs  # one value per epoch
    predictions: torch.Tensor  # classes of the test set after the last epoch, int64 (m,), on the CPU
    diverged: bool  # whether a weight was no longer finite at the end
    seconds: float  # the share of one seed when several were trained together
    trials: list[Trial]  # trials of the search, in order
    best_trial: int | None  # number of the trial whose pair was chosen; None without a search
    rows: dict[str, int]  # search_train, search_val (both 0 without a search), final_train, test


def run_protocol(
    data: Data, runs: Sequence[Settings], engine: Engine, *, folder: Path | None = None, print_freq: int = 10
) -> list[RunResult]:
    """Run the protocol once for a group of seeds, in which alone the settings of ``runs`` differ.

    Unfinished work is saved in ``folder`` (None: nowhere), from which the same call continues, also when the
    process is asked to end (Interrupted). ``print_freq``: epochs between log lines of the final training.

    Raises:
        CogError: no images can be held out; all trials of a seed diverged.
    """
    group: dict[str, Any] = {"seeds": [run.seed for run in runs], "width": data.together.trials}
    group |= {"device": engine.device.type, "precision": engine.precision, "versions": versions(PACKAGES)}
    unfinished = Unfinished(folder, group)
    counts = {"search_train": 0, "search_val": 0}
    searches = [Search(run) for run in runs if run.n_trials]
    pairs = [(run.lr_interval[0], run.wd_interval[0]) for run in runs]  # of runs without a search
    if searches:
        rows, val_rows = _split(data, runs)
        counts = {"search_train": rows.shape[1], "search_val": val_rows.shape[1]}
        with progress_of(runs[0].n_trials, "hyper-parameter search", unit="trials") as progress:
            fit = functools.partial(engine.fit, data, runs, rows, val_rows=val_rows, unfinished=unfinished)
            while left := runs[0].n_trials - (done := len(searches[0].trials)):
                # The random suggestions at the start do not depend on results; the others come one by one.
                n = min(left, data.together.trials, max(1, N_STARTUP_TRIALS - done))
                _do_trials(searches, n, fit, unfinished, progress)
        pairs = [search.choose() for search in searches]
    rows = torch.stack([_draw_few_shot(data, run, torch.arange(len(data.y)), "final") for run in runs])
    counts |= {"final_train": rows.shape[1], "test": len(data.test_y)}
    with progress_of(runs[0].n_epochs, "final training", unit="epochs") as progress:
        tell = functools.partial(_tell_epoch, runs, progress, print_freq)
        final = engine.fit(data, runs, rows, [[pair] for pair in pairs], on_epoch=tell, unfinished=unfinished)
    assert final.predictions is not None
    results = []
    for s, (run, (lr, wd)) in enumerate(zip(runs, pairs, strict=True)):
        if diverged := final.diverged[s][0]:
            text = cause(lr, wd, run.momentum)
            logger.warning("the final training of seed %d diverged: %s", run.seed, text)
        trained = state_dict(final.learner.layers(s, 0)), final.logs[s], final.predictions[s].cpu()
        trials = searches[s].trials if searches else []
        best = searches[s].best.number if searches else None
        results.append(RunResult(lr, wd, *trained, diverged, final.seconds, trials, best, counts))
    return results


def _do_trials(
    searches: list[Search], n: int, fit: Callable[..., Trained], unfinished: Unfinished, progress: Any
) -> None:
    """Do the next ``n`` trials of the searches of all seeds, as far as they are not finished."""
    done = len(searches[0].trials)
    asked = [search.ask(n) for search in searches]
    trials = [finished[done : done + n] for finished in unfinished.trials]
    if not trials[0]:
        trained = fit(asked)
        seconds = round(trained.seconds, 3)
        trials = [
            [Trial(done + k, *pairs[k], top1[k], diverged[k], seconds) for k in range(n)]
            for pairs, top1, diverged in zip(asked, trained.top1, trained.diverged, strict=True)
        ]
        unfinished.add(trials)
    progress.update(n)
    for search, of_seed in zip(searches, trials, strict=True):
        search.tell(of_seed)


def cause(lr: float, wd: float, momentum: float) -> str:
    """Return which value made a training diverge, and what to do."""
    # The decay alone is a gradient step on wd / 2 |w|^2, which is unstable from lr wd = 2 (1 + momentum) on.
    if wd > 1e-4 and lr * wd >= 2 * (1 + momentum):
        return f"the weight decay {wd:.4g} is too large for the learning rate {lr:.4g}; lower CLF.WD_INTV"
    return f"the learning rate {lr:.4g} is too large; lower CLF.LR_INTV, or normalize the features"


def _split(data: Data, runs: Sequence[Settings]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the training rows ``(S, n)`` and the validation rows ``(S, m)`` of searches."""
    splits = []
    for run in runs:
        rng = seeds.numpy_rng(run.seed, "split")
        train, val = sampling.split_train_val(data.y, val_frac=run.val_frac, rng=rng)
        splits.append((_draw_few_shot(data, run, train, "search"), val))
    rows, val_rows = (torch.stack(of_seeds) for of_seeds in zip(*splits, strict=True))
    return rows, val_rows


def _draw_few_shot(data: Data, run: Settings, rows: torch.Tensor, phase: str) -> torch.Tensor:
    """Return ``n_shot`` rows per class, drawn from ``rows``; all of ``rows`` when ``n_shot`` is 0."""
    if not run.n_shot:
        return rows
    rng = seeds.numpy_rng(run.seed, "draw", phase=phase, n_shot=run.n_shot)
    rows, n_short = sampling.draw_few_shot(data.y, rows, n_shot=run.n_shot, rng=rng)
    if n_short:
        told = "%d of %d classes have fewer than CLF.N_SHOT %d training images in the %s phase; all are used"
        logger.warning(told, n_short, data.n_classes, run.n_shot, phase)
    return rows


def _tell_epoch(
    runs: Sequence[Settings], progress: Any, print_freq: int, epoch: int, logs: list[Logs]
) -> None:
    """Advance the progress of the final training after an epoch, and log a line per seed now and then."""
    progress.update(epoch + 1 - progress.n)  # the first epochs may be of an earlier session
    if print_freq and ((epoch + 1) % print_freq == 0 or epoch + 1 == runs[0].n_epochs):
        for run, of_seed in zip(runs, logs, strict=True):
            logger.info("seed %d: %s", run.seed, describe_last_epoch(of_seed, run.n_epochs))
