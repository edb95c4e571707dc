"""The benchmark's protocol for one data set and number of shots, of several seeds in lockstep (paper Sec. 4.1, B.3).

1. Hold out 20 % of each class of the training set; few-shot: then draw N per class from the rest.
2. Train on these images with 30 pairs of learning rate and weight decay, and score each pair on the held-out part
   after the last epoch.
3. Train with the best pair on the whole training set; few-shot: on N per class, drawn from the whole set.
4. Score the test set. (It is scored after every epoch, for the curves; only the last score counts.)

:func:`run_protocol` follows these steps. Each seed has its own split, draws, order, initial weights and search.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cog.errors import CogError
from cog.features import sampling
from cog.logreg.engine import Engine, OnEpoch
from cog.logreg.features import Data
from cog.logreg.metrics import Logs, describe_last_epoch
from cog.logreg.mlp import TrainedClassifier
from cog.logreg.search import N_STARTUP_TRIALS, Search, Trial
from cog.logreg.settings import Settings
from cog.logreg.unfinished import Unfinished
from cog.runtime import seeds
from cog.runtime.log import Progress

logger = logging.getLogger(__name__)

#: Largest weight decay of the protocol.
_USUAL_DECAY = 1e-4


@dataclass(frozen=True, eq=False)
class RunResult:
    """The outcome of the protocol for one seed.

    Attributes:
        classifier: the final classifier with its logs and test predictions.
        lr: learning rate of the final training.
        wd: weight decay of the final training.
        trials: trials of the search, in order; empty without one.
        best_trial: number of the trial whose pair was chosen; None without a search.
        rows: numbers of rows: ``search_train``, ``search_val`` (both 0 without a search), ``final_train``, ``test``.
    """

    classifier: TrainedClassifier
    lr: float
    wd: float
    trials: list[Trial]
    best_trial: int | None
    rows: dict[str, int]


def run_protocol(
    data: Data,
    runs: Sequence[Settings],
    engine: Engine,
    *,
    folder: Path | None = None,
    versions: dict[str, Any] | None = None,
    print_freq: int = 10,
) -> list[RunResult]:
    """Run the protocol once for a group of seeds.

    Args:
        data: from :meth:`cog.logreg.engine.Engine.prepare`.
        runs: settings of the runs, which differ in the seed alone.
        engine: engine of the training.
        folder: folder for unfinished work, from which another call with the same arguments continues; None: nothing
            is saved.
        versions: versions of packages on which the bits depend; unfinished work of others is not continued.
        print_freq: epochs between log lines of the final training; 0: no lines.

    Raises:
        CogError: when no images can be held out, all trials of a seed diverged, or ``folder`` cannot be written to.
        Interrupted: when the process was asked to end (:mod:`cog.runtime.signals`); the work is saved then.
    """
    first = runs[0]
    group: dict[str, Any] = {
        "seeds": [run.seed for run in runs],
        "device": engine.device.type,
        "precision": engine.precision,
    }
    width = data.together.trials
    unfinished = Unfinished(folder, group | {"width": width, "versions": versions or {}})
    train_rows, val_rows = torch.empty(2, len(runs), 0, dtype=torch.int64)
    searches: list[Search] = []
    if first.n_trials:
        searches = [Search(run) for run in runs]
        splits = [_split(data, run) for run in runs]
        train_rows, val_rows = (torch.stack(rows) for rows in zip(*splits, strict=True))
        with Progress(first.n_trials, "hyper-parameter search", unit="trials") as progress:
            while (n_done := len(searches[0].trials)) < first.n_trials:
                # The random suggestions at the start do not depend on results; the others come one by one.
                n_round = 1 if n_done else min(N_STARTUP_TRIALS, first.n_trials)
                asked = [search.ask(n_round) for search in searches]
                told: list[list[Trial]] = [[] for _ in runs]
                for start in range(0, n_round, width):
                    pairs = [each[start : start + width] for each in asked]
                    trials = unfinished.find(n_done + start, len(pairs[0]))
                    if trials is None:
                        trials = _train(
                            data, runs, engine, train_rows, val_rows, pairs, unfinished, n_done + start
                        )
                        unfinished.add(trials)
                        progress.update(len(pairs[0]))
                    else:
                        progress.skip(len(pairs[0]))
                    told = [before + new for before, new in zip(told, trials, strict=True)]
                for search, trials_of_seed in zip(searches, told, strict=True):
                    search.tell(trials_of_seed)
        for search, run in zip(searches, runs, strict=True):
            if search.best.diverged:
                rates = [trial.lr for trial in search.trials]
                raise CogError(
                    f"training diverged in all {len(rates)} trials of seed {run.seed} (learning rates {min(rates):.3g} "
                    f"to {max(rates):.3g}); lower CLF.LR_INTV{'' if run.normalize else ' or set CLF.NORM_FTS True'}"
                )
    chosen = [(search.best.lr, search.best.wd) for search in searches]
    if not searches:
        assert first.lr is not None and first.wd is not None
        chosen = [(first.lr, first.wd)] * len(runs)
    all_rows = torch.arange(len(data.y))
    rows = torch.stack([_draw_few_shot(data, run, all_rows, stage="final") for run in runs])
    with Progress(first.n_epochs, "final training", unit="epochs") as progress:
        on_epoch = _make_epoch_logger(runs, progress, print_freq)
        of_final = (data, runs, rows, [[pair] for pair in chosen])
        final = engine.fit(*of_final, stage="final", on_epoch=on_epoch, unfinished=unfinished)
    counts = {"search_train": train_rows.shape[1], "search_val": val_rows.shape[1]}
    counts |= {"final_train": rows.shape[1], "test": len(data.test_y)}
    results = []
    for s, (run, (lr, wd)) in enumerate(zip(runs, chosen, strict=True)):
        classifier = final.classifier(s, relu=run.has_relu)
        if classifier.diverged:
            logger.warning(
                "the final training of seed %d diverged: %s", run.seed, cause(lr, wd, run.momentum)
            )
        trials_of_seed = searches[s].trials if searches else []
        best = searches[s].best.number if searches else None
        results.append(RunResult(classifier, lr, wd, trials_of_seed, best, counts))
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
    return _draw_few_shot(data, run, train, stage="search"), val


def _draw_few_shot(data: Data, run: Settings, rows: torch.Tensor, *, stage: str) -> torch.Tensor:
    """Return ``n_shot`` rows per class, drawn from ``rows``; all of ``rows`` when ``n_shot`` is 0."""
    if not run.n_shot:
        return rows
    rng = seeds.numpy_rng(run.seed, "draw", stage=stage, n_shot=run.n_shot)
    rows, n_short = sampling.draw_few_shot(data.y, rows, n_shot=run.n_shot, rng=rng)
    if n_short:
        logger.warning(
            "%d of %d classes have fewer than CLF.N_SHOT %d training images in the %s stage; all are used",
            n_short,
            data.n_classes,
            run.n_shot,
            stage,
        )
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


def _make_epoch_logger(runs: Sequence[Settings], progress: Progress, print_freq: int) -> OnEpoch:
    """Return a function that, after an epoch of the final training, advances the progress and may log a line."""

    def on_epoch(epoch: int, logs: list[Logs]) -> None:
        progress.skip(epoch - progress.done)  # the first epochs may be of an earlier session
        progress.update()
        if print_freq and ((epoch + 1) % print_freq == 0 or epoch + 1 == runs[0].n_epochs):
            for run, of_seed in zip(runs, logs, strict=True):
                seed = f"seed {run.seed}: " if len(runs) > 1 else ""
                logger.info("%s%s", seed, describe_last_epoch(of_seed, run.n_epochs))

    return on_epoch
