"""The benchmark's protocol for one data set and number of shots, of several seeds in lockstep (paper Sec. 4.1, B.3).

1. Hold out 20 % of each class of the training set; few-shot: then draw N per class from the rest.
2. Train on these images with 30 pairs of learning rate and weight decay, and score each pair on the held-out part
   after the last epoch.
3. Train with the best pair on the whole training set; few-shot: on N per class, drawn from the whole set.
4. Score the test set. (It is scored after every epoch, for the curves; only the last score counts.)

:func:`run_protocol` follows these steps. Each seed has its own split, draws, order, initial weights and search.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from cog.features import sampling
from cog.logreg.engine import Engine
from cog.logreg.features import Data
from cog.logreg.metrics import Logs, describe_last_epoch
from cog.logreg.mlp import Layer
from cog.logreg.search import N_STARTUP_TRIALS, Search, Trial
from cog.logreg.settings import PACKAGES, Settings
from cog.logreg.unfinished import Unfinished
from cog.runtime import seeds
from cog.runtime.log import Progress, versions

logger = logging.getLogger(__name__)

#: Largest weight decay of the protocol.
_USUAL_DECAY = 1e-4


@dataclass(frozen=True, eq=False)
class RunResult:
    """The outcome of the protocol for one seed.

    Attributes:
        lr, wd: learning rate and weight decay of the final training.
        layers: weight and bias of each layer after it.
        logs: one value per epoch, see :func:`cog.logreg.metrics.new_logs`.
        predictions: classes predicted for the test set after the last epoch, int64 ``(m,)``, on the CPU.
        diverged: whether a weight was no longer finite at the end.
        seconds: duration of the final training; the share of one seed when several were trained together.
        trials: trials of the search, in order; empty without one.
        best_trial: number of the trial whose pair was chosen; None without a search.
        rows: numbers of rows: ``search_train``, ``search_val`` (both 0 without a search), ``final_train``, ``test``.
    """

    lr: float
    wd: float
    layers: list[Layer]
    logs: Logs
    predictions: torch.Tensor
    diverged: bool
    seconds: float
    trials: list[Trial]
    best_trial: int | None
    rows: dict[str, int]


def run_protocol(
    data: Data,
    runs: Sequence[Settings],
    engine: Engine,
    *,
    folder: Path | None = None,
    print_freq: int = 10,
) -> list[RunResult]:
    """Run the protocol once for a group of seeds.

    Args:
        data: from :meth:`cog.logreg.engine.Engine.prepare`.
        runs: settings of the runs, which differ in the seed alone.
        engine: engine of the training.
        folder: folder for unfinished work, from which another call with the same arguments continues; None: nothing
            is saved.
        print_freq: epochs between log lines of the final training; 0: no lines.

    Raises:
        CogError: when no images can be held out, all trials of a seed diverged, or ``folder`` cannot be written to.
        Interrupted: when the process was asked to end (:mod:`cog.runtime.signals`); the work is saved then.
    """
    first, width = runs[0], data.together.trials
    arithmetic = {"device": engine.device.type, "precision": engine.precision, "width": width}
    arithmetic |= {"versions": versions(PACKAGES)}
    unfinished = Unfinished(folder, {"seeds": [run.seed for run in runs], **arithmetic})
    pairs = [(run.lr_interval[0], run.wd_interval[0]) for run in runs]  # of runs without a search
    counts = {"search_train": 0, "search_val": 0}
    searches: list[Search] = []
    if first.n_trials:
        searches = [Search(run) for run in runs]
        splits = [_split(data, run) for run in runs]
        train_rows, val_rows = (torch.stack(rows) for rows in zip(*splits, strict=True))
        counts = {"search_train": train_rows.shape[1], "search_val": val_rows.shape[1]}
        with Progress(first.n_trials, "hyper-parameter search", unit="trials") as progress:
            while (done := len(searches[0].trials)) < first.n_trials:
                # The random suggestions at the start do not depend on results; the others come one by one.
                n = min(width, max(1, N_STARTUP_TRIALS - done), first.n_trials - done)
                asked = [search.ask(n) for search in searches]
                trials = unfinished.find(done, n)
                if trials is None:
                    trials = _train(data, runs, engine, train_rows, val_rows, asked, unfinished, done)
                    unfinished.add(trials)
                    progress.update(n)
                else:
                    progress.skip(n)
                for search, of_seed in zip(searches, trials, strict=True):
                    search.tell(of_seed)
        pairs = [search.choose() for search in searches]
    rows = torch.stack([_draw_few_shot(data, run, torch.arange(len(data.y)), "final") for run in runs])
    counts |= {"final_train": rows.shape[1], "test": len(data.test_y)}
    with Progress(first.n_epochs, "final training", unit="epochs") as progress:
        tell = functools.partial(_tell_epoch, runs, progress, print_freq)
        trainings = (data, runs, rows, [[pair] for pair in pairs])
        final = engine.fit(*trainings, stage="final", on_epoch=tell, unfinished=unfinished)
    assert final.predictions is not None
    results = []
    for s, (run, (lr, wd)) in enumerate(zip(runs, pairs, strict=True)):
        if diverged := final.diverged[s][0]:
            text = cause(lr, wd, run.momentum)
            logger.warning("the final training of seed %d diverged: %s", run.seed, text)
        result = RunResult(
            lr=lr,
            wd=wd,
            layers=[(weight.clone(), bias.clone()) for weight, bias in final.learner.layers(s, 0)],
            logs=final.logs[s],
            predictions=final.predictions[s].cpu(),
            diverged=diverged,
            seconds=final.seconds,
            trials=searches[s].trials if searches else [],
            best_trial=searches[s].best.number if searches else None,
            rows=counts,
        )
        results.append(result)
    return results


def cause(lr: float, wd: float, momentum: float) -> str:
    """Return which value made a training diverge, and what to do.

    The decay alone is a gradient step on ``wd / 2 |w|^2``, which is unstable from lr wd = 2 (1 + momentum) on.
    """
    if wd > _USUAL_DECAY and lr * wd >= 2 * (1 + momentum):
        return f"the weight decay {wd:.4g} is too large for the learning rate {lr:.4g}; lower CLF.WD_INTV"
    return f"the learning rate {lr:.4g} is too large; lower CLF.LR_INTV, or normalize the features"


def _split(data: Data, run: Settings) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the training and the validation rows of a search."""
    rng = seeds.numpy_rng(run.seed, "split")
    train, val = sampling.split_train_val(data.y, val_frac=run.val_frac, rng=rng)
    return _draw_few_shot(data, run, train, "search"), val


def _draw_few_shot(data: Data, run: Settings, rows: torch.Tensor, stage: str) -> torch.Tensor:
    """Return ``n_shot`` rows per class, drawn from ``rows``; all of ``rows`` when ``n_shot`` is 0."""
    if not run.n_shot:
        return rows
    rng = seeds.numpy_rng(run.seed, "draw", stage=stage, n_shot=run.n_shot)
    rows, n_short = sampling.draw_few_shot(data.y, rows, n_shot=run.n_shot, rng=rng)
    if n_short:
        told = "%d of %d classes have fewer than CLF.N_SHOT %d training images in the %s stage; all are used"
        logger.warning(told, n_short, data.n_classes, run.n_shot, stage)
    return rows


def _train(
    data: Data,
    runs: Sequence[Settings],
    engine: Engine,
    train_rows: torch.Tensor,
    val_rows: torch.Tensor,
    pairs: list[list[tuple[float, float]]],
    unfinished: Unfinished,
    first: int,
) -> list[list[Trial]]:
    """Train and score pairs ``(S, K)``, and return their trials; the first one of each seed has the number ``first``.

    Trials of a search share initial weights and order, so they differ by learning rate and weight decay alone.
    """
    trained = engine.fit(data, runs, train_rows, pairs, stage="search", unfinished=unfinished)
    start = time.monotonic()
    scores = engine.validate(data, val_rows, trained)
    seconds = trained.seconds + (time.monotonic() - start) / sum(map(len, pairs))
    return [
        [
            Trial(first + k, lr, wd, 0.0 if diverged[k] else top1[k], diverged[k], round(seconds, 3))
            for k, (lr, wd) in enumerate(of_seed)
        ]
        for of_seed, top1, diverged in zip(pairs, scores, trained.diverged, strict=True)
    ]


def _tell_epoch(
    runs: Sequence[Settings], progress: Progress, print_freq: int, epoch: int, logs: list[Logs]
) -> None:
    """Advance the progress of the final training after an epoch, and log a line per seed now and then."""
    progress.skip(epoch - progress.done)  # the first epochs may be of an earlier session
    progress.update()
    if print_freq and ((epoch + 1) % print_freq == 0 or epoch + 1 == runs[0].n_epochs):
        for run, of_seed in zip(runs, logs, strict=True):
            logger.info("seed %d: %s", run.seed, describe_last_epoch(of_seed, run.n_epochs))
