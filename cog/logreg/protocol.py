"""The benchmark's protocol for one data set, seed and number of shots (paper Sec. 4.1, supplement B.3).

1. Hold out 20 % of each class of the training set; few-shot: then draw N per class from the rest.
2. Train on that with 30 pairs of learning rate and weight decay, scored on the held-out part after the last
   epoch.
3. Train with the best pair on the whole training set; few-shot: on N per class, drawn from all of it.
4. Test. (The test set is scored after every epoch, for the curves; only the last score counts.)

A run is written as a generator that says what it wants trained next (:class:`Request`), so that the same text serves
one run at a time on a CPU and many side by side on a GPU (:func:`run_all`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from cog import features, interruption, randomness
from cog.errors import CogError
from cog.features import FeatureSet
from cog.logreg import tune
from cog.logreg.checkpoint import FileCheckpoint, JointCheckpoint
from cog.logreg.engine import Engine, Live, Monitor, OnEpoch
from cog.logreg.lbfgs import LbfgsEngine, WeightDecayPath
from cog.logreg.matrix import FeatureMatrix
from cog.logreg.settings import Settings
from cog.logreg.sgd import Fit, History, Recipe, Run
from cog.logreg.trial_journal import TrialJournal
from cog.progress import Progress

if TYPE_CHECKING:
    import optuna

logger = logging.getLogger(__name__)

#: In the folder for work in progress: finished trials, finished weight decays, the training in progress.
JOURNAL_FILE, PATH_FILE, CHECKPOINT_FILE = "study.journal", "path.pt", "checkpoint.pt"

#: Epochs between two looks of the pruner (``CLF.PRUNER median``).
_PRUNE_EVERY = 10


@dataclass(frozen=True, eq=False)
class Data:
    """A data set ready for any number of runs.

    Attributes:
        features: training features ``(n, d)``.
        y: int64 ``(n,)`` in 0..C-1, on the CPU.
        test: features float32 ``(m, d)`` and labels int64 ``(m,)``, where the engine scores them.
        labels: the C original labels, ascending.
        projection: principal components that the features were projected on, see :mod:`cog.logreg.variants`.
    """

    features: FeatureMatrix
    y: torch.Tensor
    test: tuple[torch.Tensor, torch.Tensor]
    labels: list[int]
    projection: dict[str, torch.Tensor] | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run found.

    Attributes:
        fit: the final classifier with its history and test predictions.
        lr: learning rate of the final training.
        wd: weight decay of the final training.
        trials: the search, in order (empty without one).
        study: the Optuna study (None without one: no search, or ``CLF.SOLVER lbfgs``).
        labels: the C original labels, ascending.
        sizes: rows used: ``search_train``, ``search_val``, ``final_train``, ``test``.
        seconds: durations of ``search`` and ``final``.
        precision: of the matrix products of the training steps.
        projection: see :class:`Data`.
    """

    fit: Fit
    lr: float
    wd: float
    trials: list[tune.Trial]
    study: optuna.Study | None
    labels: list[int]
    sizes: dict[str, int]
    seconds: dict[str, float]
    precision: str
    projection: dict[str, torch.Tensor] | None = None


@dataclass(frozen=True, eq=False)
class Request:
    """What a run wants trained next.

    Attributes:
        runs: classifiers that may be trained together.
        val_rows: rows to score them on afterwards; None in the final training, which scores the test set.
        on_epoch: of the final training.
        monitor: of a search with pruning.
        checkpoint: where the training is saved now and then.
    """

    runs: list[Run]
    val_rows: torch.Tensor | None
    on_epoch: OnEpoch | None = None
    monitor: Monitor | None = None
    checkpoint: FileCheckpoint | None = None


#: Yields requests, receives classifiers and their validation accuracies (percent), returns the outcome.
Job = Generator[Request, tuple[list[Fit], list[float]], Outcome]


def prepare(
    train: FeatureSet,
    test: FeatureSet,
    engine: Engine,
    *,
    projection: dict[str, torch.Tensor] | None = None,
) -> Data:
    """Check that the sets fit together and hand the features to the engine.

    Args:
        train: training features, float32 ``(n, d)``, already normalised if so wanted. **Taken over** by the engine,
            which may rewrite their memory.
        test: test features ``(m, d)``.
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
    y, test_y, labels = features.to_consecutive_labels(train.y, test.y)
    test_x = engine.load_test(test.x)
    return Data(engine.load(train.x, train.norms), y, (test_x, test_y.to(test_x.device)), labels, projection)


def run(
    train: FeatureSet, test: FeatureSet, settings: Settings, engine: Engine, *, print_freq: int = 10
) -> Outcome:
    """Run the protocol once: :func:`prepare` and :func:`run_all` for one setting."""
    ((_, outcome),) = run_all(prepare(train, test, engine), [settings], engine, print_freq=print_freq)
    return outcome


def run_all(
    data: Data,
    study: Sequence[Settings],
    engine: Engine,
    *,
    print_freq: int = 10,
    on_start: Callable[[int], None] | None = None,
    resume: Sequence[Path] | None = None,
) -> Iterator[tuple[int, Outcome]]:
    """Run the protocol for several seeds and shots on the same features.

    With ``resume``, every finished trial and now and then the state of the training is on the disk, and a second call
    with the same folders gives the outcome that the first one would have given.

    Args:
        data: from :func:`prepare`.
        study: hyper-parameters of the protocol, one per run; all with the same solver and number of epochs.
        engine: does the training. As many runs as it wants side by side are advanced together; no result depends on
            that (see :mod:`cog.logreg.engine`).
        print_freq: epochs between log lines of the final training; 0 prints none.
        on_start: called with the position of each run before it begins.
        resume: folder of each run for work in progress, which has to exist when the run begins; the caller keeps it
            to runs with the same settings and features.

    Yields:
        Position in ``study`` and outcome of each run, as they finish.

    Raises:
        CogError: nothing to validate on, all trials diverged; the work in progress cannot be written.
        Interrupted: with ``resume``, when the process was asked to end (:mod:`cog.interruption`) and work is left.
    """
    if any(settings.solver == "lbfgs" for settings in study):
        engine = LbfgsEngine(engine)
    waiting = list(enumerate(study))
    active: list[tuple[int, Job, Request]] = []
    while waiting or active:
        if not active:  # in waves: a run that starts among others that are further would search on its own
            for position, settings in waiting[: engine.side_by_side]:
                if on_start is not None:
                    on_start(position)
                job = _job(
                    data,
                    settings,
                    engine,
                    print_freq=print_freq,
                    bar=len(study) == 1 or engine.side_by_side == 1,
                    resume=None if resume is None else resume[position],
                )
                active.append((position, job, next(job)))
            del waiting[: engine.side_by_side]
        # Final trainings are recorded epoch by epoch and go alone; searches of several runs go together.
        together = [entry for entry in active if entry[2].val_rows is not None] or active[:1]
        if len({entry[2].monitor is None for entry in together}) > 1 or together[0][2].monitor is not None:
            together = together[:1]
        requests = [request for _, _, request in together]
        fits = engine.fit(
            data.features,
            data.y,
            [spec for request in requests for spec in request.runs],
            _recipe(data, study[together[0][0]]),
            test=data.test if requests[0].val_rows is None else None,
            on_epoch=requests[0].on_epoch,
            monitor=requests[0].monitor,
            checkpoint=JointCheckpoint([(request.checkpoint, len(request.runs)) for request in requests]),
        )
        still_active = [entry for entry in active if entry not in together]
        for position, job, request in together:
            own, fits = fits[: len(request.runs)], fits[len(request.runs) :]
            scores: list[float] = []
            if request.val_rows is not None:
                start = time.monotonic()
                scores = engine.validate(data.features, data.y, request.val_rows, own)
                for fit in own:
                    fit.seconds += (time.monotonic() - start) / len(own)
            try:
                still_active.append((position, job, job.send((own, scores))))
                del own
            except StopIteration as finished:
                yield position, finished.value
        active = sorted(still_active, key=lambda entry: entry[0])
        if resume is not None and (waiting or active):
            interruption.check("what is finished is saved")


def _recipe(data: Data, settings: Settings) -> Recipe:
    return Recipe(len(data.labels), settings.n_epochs, settings.batch_size, settings.momentum)


def _job(
    data: Data, settings: Settings, engine: Engine, *, print_freq: int, bar: bool, resume: Path | None
) -> Job:
    """One run of the protocol."""
    sizes = {"search_train": 0, "search_val": 0, "final_train": 0, "test": len(data.test[1])}
    seconds = {"search": 0.0, "final": 0.0}
    trials: list[tune.Trial] = []
    study = None
    if settings.n_trials:
        search, sizes["search_train"], sizes["search_val"] = yield from _search(
            data, settings, engine, bar=bar, resume=resume
        )
        seconds["search"] = sum(trial.seconds for trial in search.trials)
        trials, study = search.trials, search.study
        lr, wd = tune.best(trials).lr, tune.best(trials).wd
        logger.info(
            "%sbest: lr %.6g, wd %.6g, validation top-1 %.2f",
            settings.label,
            lr,
            wd,
            tune.best(trials).val_top1,
        )
    else:
        assert settings.lr is not None and settings.wd is not None
        lr, wd = settings.lr, settings.wd
    rows = _draw(data, settings, torch.arange(len(data.y)), stage="final")
    sizes["final_train"] = len(rows)
    runs = [_spec(settings, rows, lr, wd, "final")]
    with Progress(settings.n_epochs, f"{settings.label}final training", unit="epochs", bar=bar) as progress:
        on_epoch = _narrator(settings, progress, print_freq)
        checkpoint = _checkpoint(resume, "final", runs, engine, settings)
        ((fit,), _) = yield Request(runs, None, on_epoch, checkpoint=checkpoint)
    seconds["final"] = fit.seconds
    if fit.diverged:
        logger.warning("the final training diverged (lr %.4g, wd %.4g); lower CLF.LR_INTV", lr, wd)
    return Outcome(fit, lr, wd, trials, study, data.labels, sizes, seconds, engine.precision, data.projection)


def _search(
    data: Data, settings: Settings, engine: Engine, *, bar: bool, resume: Path | None
) -> Generator[Request, tuple[list[Fit], list[float]], tuple[tune.Search | WeightDecayPath, int, int]]:
    """Tune hyper-parameters on a part of the training set, scored on the rest."""
    train_rows, val_rows = features.split_train_val(
        data.y, val_frac=settings.val_frac, rng=randomness.numpy_rng(settings.seed, "split")
    )
    train_rows = _draw(data, settings, train_rows, stage="search")
    search = _open_search(settings, resume)
    with Progress(
        settings.n_trials, f"{settings.label}hyper-parameter search", unit="trials", bar=bar
    ) as progress:
        while not search.done:
            pairs = search.ask()
            first = search.replay()
            progress.skip(first)
            # In parts: a classifier of full scale takes 8 MB, which are given back once it is scored.
            for part in _parts(pairs[first:], engine.together(len(data.labels))):
                runs = [search.next_run(_spec(settings, train_rows, lr, wd, "search")) for lr, wd in part]
                checkpoint = _checkpoint(resume, "search", runs, engine, settings)
                monitor = None
                if isinstance(search, tune.Search) and settings.pruner != "none":
                    monitor = _pruner(data, settings, engine, search, val_rows, first=first)
                    if checkpoint is not None:
                        checkpoint.extra, checkpoint.on_restore = search.reports, search.report_again
                fits, scores = yield Request(runs, val_rows, monitor=monitor, checkpoint=checkpoint)
                for fit, score in zip(fits, scores, strict=True):
                    search.add(tune.Result(score, fit.diverged, fit.seconds, fit.stopped), fit)
                if checkpoint is not None:
                    checkpoint.remove()
                first += len(part)
                progress.update(len(part))
                del fits, fit
    return search, len(train_rows), len(val_rows)


def _open_search(settings: Settings, resume: Path | None) -> tune.Search | WeightDecayPath:
    """Return the search, with what an earlier session finished of it."""
    if settings.solver == "lbfgs":
        return WeightDecayPath(settings, None if resume is None else resume / PATH_FILE)
    if resume is None:
        return tune.Search(settings)
    journal = TrialJournal(
        resume / JOURNAL_FILE, lr_interval=settings.lr_interval, wd_interval=settings.wd_interval
    )
    return tune.Search(settings, journal)


def _checkpoint(
    resume: Path | None, stage: str, runs: Sequence[Run], engine: Engine, settings: Settings
) -> FileCheckpoint | None:
    """Return where the training of these runs is saved."""
    if resume is None:
        return None
    key = {
        "stage": stage,
        "runs": [[run.lr, run.wd] for run in runs],
        "engine": f"{type(engine).__name__} {engine.precision}",
    }
    return FileCheckpoint(resume / CHECKPOINT_FILE, key, settings.label)


def _parts(pairs: Sequence[tuple[float, float]], size: int) -> Iterator[Sequence[tuple[float, float]]]:
    for start in range(0, len(pairs), size):
        yield pairs[start : start + size]


def _pruner(
    data: Data,
    settings: Settings,
    engine: Engine,
    search: tune.Search,
    val_rows: torch.Tensor,
    *,
    first: int,
) -> Monitor:
    """Score trials in training every few epochs and stop those that the study's pruner gives up.

    ``first`` is the position in the search's round of the first run that is being trained.
    """

    def monitor(epoch: int, live: Sequence[Live]) -> Sequence[Live]:
        if (epoch + 1) % _PRUNE_EVERY or epoch + 1 == settings.n_epochs:
            return ()
        scores = engine.validate(data.features, data.y, val_rows, live)
        return [
            one
            for one, score in zip(live, scores, strict=True)
            if search.should_stop(first + one.index, epoch, score)
        ]

    return monitor


def _draw(data: Data, settings: Settings, rows: torch.Tensor, *, stage: str) -> torch.Tensor:
    """Return ``n_shot`` rows per class of ``rows``, or all of them."""
    if not settings.n_shot:
        return rows
    rng = randomness.numpy_rng(settings.seed, "draw", stage=stage, n_shot=settings.n_shot)
    rows, short = features.draw_few_shot(data.y, rows, n_shot=settings.n_shot, rng=rng)
    if short:
        logger.warning(
            "%d of %d classes have fewer than CLF.N_SHOT %d training images in the %s stage; all are used",
            short, len(data.labels), settings.n_shot, stage,
        )  # fmt: skip
    return rows


def _spec(settings: Settings, rows: torch.Tensor, lr: float, wd: float, stage: str) -> Run:
    """Trials of a search share initial weights and order, so they differ by lr and wd alone."""
    return Run(
        rows=rows,
        lr=lr,
        wd=wd,
        init_seed=randomness.torch_seed(settings.seed, "init", stage=stage),
        order_seed=randomness.torch_seed(settings.seed, "order", stage=stage, n_shot=settings.n_shot),
    )


def _narrator(settings: Settings, progress: Progress, print_freq: int) -> OnEpoch:
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
