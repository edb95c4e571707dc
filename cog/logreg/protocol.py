"""The benchmark's protocol for one data set, seed and number of shots (paper Sec. 4.1, supplement B.3).

1. Hold out 20 % of each class of the training set; few-shot: then draw N per class from the rest.
2. Train on these images with 30 pairs of learning rate and weight decay, and score each pair on the held-out part
   after the last epoch.
3. Train with the best pair on the whole training set; few-shot: on N per class, drawn from the whole set.
4. Score the test set. (It is scored after every epoch, for the curves; only the last score counts.)

:func:`run_protocol` follows these steps.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import torch

from cog.features import feature_files
from cog.logreg import precision
from cog.logreg.checkpoint import Work
from cog.logreg.engine import Engine, OnEpoch
from cog.logreg.matrix import Data
from cog.logreg.metrics import Logs, describe_last_epoch
from cog.logreg.search import Result, Search
from cog.logreg.settings import RowCounts, Settings
from cog.logreg.sgd import TrainedClassifier, TrainSpec
from cog.runtime import random_streams
from cog.runtime.progress import Progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class RunResult:
    """The outcome of a run of the protocol.

    Attributes:
        classifier: the final classifier with its logs and test predictions.
        lr: learning rate of the final training.
        wd: weight decay of the final training.
        search: the search; None without one.
        rows: numbers of rows used.
        arithmetic: ``precision`` and ``form`` of the final training and, under ``search``, of the trials.
    """

    classifier: TrainedClassifier
    lr: float
    wd: float
    search: Search | None
    rows: RowCounts
    arithmetic: dict[str, Any]


def run_protocol(data: Data, settings: Settings, engine: Engine, work: Work | None = None) -> RunResult:
    """Run the protocol once.

    Args:
        data: from :func:`cog.logreg.preprocess.prepare`.
        settings: settings of the run.
        engine: engine of the training.
        work: work in progress of the run; None: nothing is saved.

    Raises:
        CogError: when no images can be held out, all trials diverged, or the work in progress cannot be written.
        Interrupted: when the process was asked to end (:mod:`cog.runtime.signals`); the work is saved then.
    """
    work = work or Work()
    all_rows = torch.arange(len(data.y))
    train_rows = val_rows = all_rows[:0]
    lr, wd, search = settings.lr, settings.wd, None
    if settings.n_trials:
        rng = random_streams.numpy_rng(settings.seed, "split")
        train_rows, val_rows = feature_files.split_train_val(data.y, val_frac=settings.val_frac, rng=rng)
        train_rows = _draw_few_shot(data, settings, train_rows, stage="search")
        width = engine.trials_per_batch(
            len(train_rows), settings, dim=data.features.dim, n_classes=len(data.labels)
        )
        search = Search(settings, work.journal(), width=width)
        with Progress(settings.n_trials, "hyper-parameter search", unit="trials") as progress:
            while pairs := search.ask():
                progress.skip(len(search.trials) - progress.done)  # trials of an earlier session
                # Trials of a search share initial weights and order, so they differ by lr and wd alone.
                spec = _train_spec(settings, train_rows, pairs, stage="search")
                classifiers = engine.fit(data, spec, settings, work=work)
                search.tell(_validate(data, engine, val_rows, classifiers))
                work.forget_training()
                progress.update(len(search.trials) - progress.done)
        lr, wd = search.best.lr, search.best.wd
        logger.info("best: lr %.6g, wd %.6g, validation top-1 %.2f", lr, wd, search.best.val_top1)
    assert lr is not None and wd is not None
    rows = _draw_few_shot(data, settings, all_rows, stage="final")
    spec = _train_spec(settings, rows, [(lr, wd)], stage="final")
    with Progress(settings.n_epochs, "final training", unit="epochs") as progress:
        on_epoch = _make_epoch_logger(settings, progress, work.print_freq)
        (final,) = engine.fit(data, spec, settings, on_epoch=on_epoch, work=work)
    if final.diverged:
        logger.warning("the final training diverged (lr %.4g, wd %.4g); lower CLF.LR_INTV", lr, wd)
    counts = RowCounts(len(train_rows), len(val_rows), len(rows), len(data.test_y))
    arithmetic = engine.arithmetic(counts, settings, data.features.dim)
    replayed = ", replayed from CUDA graphs" if final.replayed else ""
    logger.info("steps in %s%s", precision.describe(arithmetic), replayed)
    return RunResult(final, lr, wd, search, counts, arithmetic)


def _draw_few_shot(data: Data, settings: Settings, rows: torch.Tensor, *, stage: str) -> torch.Tensor:
    """Return ``n_shot`` rows per class, drawn from ``rows``; all of ``rows`` when ``n_shot`` is 0."""
    if not settings.n_shot:
        return rows
    rng = random_streams.numpy_rng(settings.seed, "draw", stage=stage, n_shot=settings.n_shot)
    rows, n_short = feature_files.draw_few_shot(data.y, rows, n_shot=settings.n_shot, rng=rng)
    if n_short:
        logger.warning(
            "%d of %d classes have fewer than CLF.N_SHOT %d training images in the %s stage; all are used",
            n_short, len(data.labels), settings.n_shot, stage,
        )  # fmt: skip
    return rows


def _train_spec(
    settings: Settings, rows: torch.Tensor, pairs: list[tuple[float, float]], *, stage: str
) -> TrainSpec:
    init_seed = random_streams.torch_seed(settings.seed, "init", stage=stage)
    order_seed = random_streams.torch_seed(settings.seed, "order", stage=stage, n_shot=settings.n_shot)
    return TrainSpec(rows, pairs, init_seed, order_seed, record=stage == "final")


def _validate(
    data: Data, engine: Engine, rows: torch.Tensor, classifiers: list[TrainedClassifier]
) -> list[Result]:
    start = time.monotonic()
    scores = engine.validate(data, rows, classifiers)
    share = (time.monotonic() - start) / len(classifiers)
    return [
        Result(score, classifier.diverged, classifier.seconds + share)
        for score, classifier in zip(scores, classifiers, strict=True)
    ]


def _make_epoch_logger(settings: Settings, progress: Progress, print_freq: int) -> OnEpoch:
    """Return a function that, after an epoch of the final training, advances the progress and may log a line."""

    def on_epoch(epoch: int, logs: Logs) -> None:
        progress.skip(epoch - progress.done)  # the first epochs may be of an earlier session
        progress.update()
        if print_freq and ((epoch + 1) % print_freq == 0 or epoch + 1 == settings.n_epochs):
            logger.info("%s", describe_last_epoch(logs, settings.n_epochs))

    return on_epoch
