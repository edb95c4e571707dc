"""The benchmark's protocol for one data set, seed and number of shots (paper Sec. 4.1, supplement B.3).

1. Hold out 20 % of each class of the training set; few-shot: then draw N per class from the rest.
2. Train on that with 30 pairs of learning rate and weight decay, scored on the held-out part after the last
   epoch.
3. Train with the best pair on the whole training set; few-shot: on N per class, drawn from all of it.
4. Test. (The test set is scored after every epoch, for the curves; only the last score counts.)

:func:`run_protocol` is this text in Python.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from cog.errors import CogError
from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.logreg.checkpoint import CheckpointedRuns
from cog.logreg.engine import Data, Engine, OnEpoch, used_precision
from cog.logreg.search import Result, Search, Trial, TrialJournal
from cog.logreg.settings import Settings
from cog.logreg.sgd import History, SgdConfig, TrainedClassifier, TrainSpec
from cog.runtime import random_streams
from cog.runtime.progress import Progress

if TYPE_CHECKING:
    import optuna

logger = logging.getLogger(__name__)

#: In the folder for work in progress: finished trials, the training in progress.
JOURNAL_FILE, CHECKPOINT_FILE = "study.journal", "checkpoint.pt"

#: What to do when memory does not suffice.
LESS_MEMORY = "train fewer seeds and shots at a time, or with a smaller CLF.BATCH_SIZE"


@dataclass(frozen=True, eq=False)
class Work:
    """Where a run keeps its work in progress, and what it does on the way.

    With a folder, every finished trial and now and then the state of the training is on the disk, and a second call
    with the same folder gives the result that the first one would have given.

    Attributes:
        folder: folder of the run, which the caller keeps to runs with the same settings and features; None: nothing is
            kept.
        print_freq: epochs between log lines of the final training; 0 prints none.
        bar: whether progress may be a bar on the terminal.
        before_epoch: called before every epoch; may raise.
    """

    folder: Path | None = None
    print_freq: int = 10
    bar: bool = True
    before_epoch: Callable[[], None] = lambda: None

    def journal(self, settings: Settings) -> TrialJournal | None:
        """Return where finished trials are kept."""
        if self.folder is None:
            return None
        return TrialJournal(
            self.folder / JOURNAL_FILE, lr_interval=settings.lr_interval, wd_interval=settings.wd_interval
        )

    def checkpoint(self, stage: str, spec: TrainSpec, engine: Engine, label: str) -> CheckpointedRuns:
        """Return where a training is saved."""
        key = {"stage": stage, "pairs": [list(pair) for pair in spec.pairs]}
        key |= {"device": engine.device.type, "precision": engine.precision}
        path = None if self.folder is None else self.folder / CHECKPOINT_FILE
        return CheckpointedRuns(path, key, label, self.before_epoch)


@dataclass(frozen=True, eq=False)
class RunResult:
    """What a run of the protocol found.

    Attributes:
        classifier: the final classifier with its history and test predictions.
        lr: learning rate of the final training.
        wd: weight decay of the final training.
        trials: the search, in order (empty without one).
        study: the Optuna study (None without a search).
        labels: the C original labels, ascending.
        sizes: rows used: ``search_train``, ``search_val``, ``final_train``, ``test``.
        seconds: durations of ``search`` and ``final``.
        precision: precision of the products of the training steps, see :func:`cog.logreg.engine.used_precision`.
        projection: see :class:`cog.logreg.engine.Data`.
    """

    classifier: TrainedClassifier
    lr: float
    wd: float
    trials: list[Trial]
    study: optuna.Study | None
    labels: list[int]
    sizes: dict[str, int]
    seconds: dict[str, float]
    precision: str
    projection: dict[str, torch.Tensor] | None = None


def prepare(
    train: FeatureSet,
    test: FeatureSet,
    engine: Engine,
    *,
    projection: dict[str, torch.Tensor] | None = None,
) -> Data:
    """Check that the sets fit together and hand the features to the engine.

    Args:
        train: training features, float32 ``(n, d)``, already normalized if so wanted. **Taken over** by the engine,
            which may rewrite their memory.
        test: test features ``(m, d)``, likewise.
        engine: does the training.
        projection: goes with the result.

    Raises:
        CogError: features that do not fit together.
    """
    if train.x.shape[1] != test.x.shape[1]:
        raise CogError(
            f"training features have {train.x.shape[1]} dimensions, test features {test.x.shape[1]}; "
            "extract both with the same model"
        )
    y, test_y, labels = feature_files.to_consecutive_labels(train.y, test.y)
    matrices = engine.load(train.x, train.norms), engine.load(test.x)
    targets, test_y = y.to(engine.device), test_y.to(engine.device)
    return Data(matrices[0], y, targets, matrices[1], test_y, labels, projection)


def run_protocol(data: Data, settings: Settings, engine: Engine, work: Work | None = None) -> RunResult:
    """Run the protocol once.

    Args:
        data: from :func:`prepare`.
        settings: settings of the run.
        engine: does the training.
        work: where work in progress is kept; default: nowhere.

    Raises:
        CogError: nothing to validate on, all trials diverged; the work in progress cannot be written.
        Interrupted: when the process was asked to end (:mod:`cog.runtime.signals`); everything is saved then.
    """
    work = work or Work()
    config = sgd_config(settings, len(data.labels))
    all_rows = torch.arange(len(data.y))
    sizes = {"search_train": 0, "search_val": 0, "final_train": 0, "test": len(data.test_y)}
    seconds, search = {"search": 0.0, "final": 0.0}, None
    lr, wd = settings.lr, settings.wd
    if settings.n_trials:
        rng = random_streams.numpy_rng(settings.seed, "split")
        train_rows, val_rows = feature_files.split_train_val(data.y, val_frac=settings.val_frac, rng=rng)
        train_rows = _draw(data, settings, train_rows, stage="search")
        sizes |= {"search_train": len(train_rows), "search_val": len(val_rows)}
        search = Search(settings, work.journal(settings), width=engine.trials_per_batch(config))
        with _progress(settings, work, settings.n_trials, "hyper-parameter search", "trials") as progress:
            while pairs := search.ask():
                progress.skip(len(search.trials) - progress.done)  # trials of an earlier session
                # Trials of a search share initial weights and order, so they differ by lr and wd alone.
                spec = _spec(settings, train_rows, pairs, "search")
                saves = work.checkpoint("search", spec, engine, settings.label)
                classifiers = engine.fit(data, spec, config, saves=saves)
                search.tell(_validate(data, engine, val_rows, classifiers))
                saves.remove()
                progress.update(len(search.trials) - progress.done)
        lr, wd = search.best.lr, search.best.wd
        seconds["search"] = sum(trial.seconds for trial in search.trials)
        logger.info(
            "%sbest: lr %.6g, wd %.6g, validation top-1 %.2f", settings.label, lr, wd, search.best.val_top1
        )
    assert lr is not None and wd is not None
    rows = _draw(data, settings, all_rows, stage="final")
    sizes["final_train"] = len(rows)
    spec = _spec(settings, rows, [(lr, wd)], "final")
    with _progress(settings, work, settings.n_epochs, "final training", "epochs") as progress:
        on_epoch = _make_epoch_logger(settings, progress, work.print_freq)
        saves = work.checkpoint("final", spec, engine, settings.label)
        (final,) = engine.fit(data, spec, config, record=True, on_epoch=on_epoch, saves=saves)
    seconds["final"] = final.seconds
    if final.diverged:
        logger.warning("the final training diverged (lr %.4g, wd %.4g); lower CLF.LR_INTV", lr, wd)
    used = used_precision(
        engine,
        search_rows=sizes["search_train"],
        final_rows=sizes["final_train"],
        config=config,
        dim=data.features.dim,
    )
    trials, study = ([], None) if search is None else (search.trials, search.study)
    return RunResult(final, lr, wd, trials, study, data.labels, sizes, seconds, used, data.projection)


def sgd_config(settings: Settings, n_classes: int) -> SgdConfig:
    """Return what all trainings of a run share."""
    hidden = tuple(settings.layer_sizes(0, n_classes)[1:-1])
    relu = settings.classifier != "mlp_noact"
    return SgdConfig(n_classes, settings.n_epochs, settings.batch_size, settings.momentum, hidden, relu)


def _validate(
    data: Data, engine: Engine, rows: torch.Tensor, classifiers: list[TrainedClassifier]
) -> list[Result]:
    start = time.monotonic()
    scores = engine.top1(data, rows, classifiers)
    share = (time.monotonic() - start) / len(classifiers)
    return [
        Result(score, one.diverged, one.seconds + share)
        for score, one in zip(scores, classifiers, strict=True)
    ]


def _draw(data: Data, settings: Settings, rows: torch.Tensor, *, stage: str) -> torch.Tensor:
    """Return ``n_shot`` rows per class of ``rows``, or all of them."""
    if not settings.n_shot:
        return rows
    rng = random_streams.numpy_rng(settings.seed, "draw", stage=stage, n_shot=settings.n_shot)
    rows, short = feature_files.draw_few_shot(data.y, rows, n_shot=settings.n_shot, rng=rng)
    if short:
        logger.warning(
            "%d of %d classes have fewer than CLF.N_SHOT %d training images in the %s stage; all are used",
            short, len(data.labels), settings.n_shot, stage,
        )  # fmt: skip
    return rows


def _spec(settings: Settings, rows: torch.Tensor, pairs: list[tuple[float, float]], stage: str) -> TrainSpec:
    return TrainSpec(
        rows=rows,
        pairs=pairs,
        init_seed=random_streams.torch_seed(settings.seed, "init", stage=stage),
        order_seed=random_streams.torch_seed(settings.seed, "order", stage=stage, n_shot=settings.n_shot),
    )


def _progress(settings: Settings, work: Work, total: int, label: str, unit: str) -> Progress:
    return Progress(total, f"{settings.label}{label}", unit=unit, bar=work.bar)


def _make_epoch_logger(settings: Settings, progress: Progress, print_freq: int) -> OnEpoch:
    """Return what to do after an epoch of the final training: advance the progress, log now and then."""

    def on_epoch(epoch: int, history: History) -> None:
        progress.skip(epoch - progress.done)  # the first ones may be of an earlier session
        progress.update()
        if print_freq and ((epoch + 1) % print_freq == 0 or epoch + 1 == settings.n_epochs):
            logs = history.logs
            logger.info(
                "%sepoch %3d: train loss %.4f, train top-1 %.2f, test loss %.4f, test top-1 %.2f, top-5 %.2f",
                settings.label, epoch + 1, logs["train/loss"][-1], logs["train/top1"][-1], logs["test/loss"][-1],
                logs["test/top1"][-1], logs["test/top5"][-1],
            )  # fmt: skip

    return on_epoch
