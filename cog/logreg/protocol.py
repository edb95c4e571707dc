"""The benchmark's protocol for one data set, seed and number of shots (paper Sec. 4.1, supplement B.3).

1. Hold out 20 % of each class of the training set; few-shot: then draw N per class from the rest.
2. Train on that with 30 pairs of learning rate and weight decay, scored on the held-out part after the last
   epoch.
3. Train with the best pair on the whole training set; few-shot: on N per class, drawn from all of it.
4. Test. (The test set is scored after every epoch, for the curves; only the last score counts.)
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from cog import features, randomness
from cog.errors import CogError
from cog.features import FeatureSet
from cog.logreg import metrics, tune
from cog.logreg.settings import Settings
from cog.logreg.sgd import Fit, History, Recipe, Run, Trainer
from cog.progress import Progress

if TYPE_CHECKING:
    import optuna

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run found.

    Attributes:
        fit: the final classifier with its history and test predictions.
        lr: learning rate of the final training.
        wd: weight decay of the final training.
        trials: the search, in order (empty without one).
        study: the Optuna study (None without a search).
        labels: the C original labels, ascending.
        sizes: rows used: ``search_train``, ``search_val``, ``final_train``, ``test``.
        seconds: durations of ``search`` and ``final``.
    """

    fit: Fit
    lr: float
    wd: float
    trials: list[tune.Trial]
    study: optuna.Study | None
    labels: list[int]
    sizes: dict[str, int]
    seconds: dict[str, float]


def run(
    train: FeatureSet, test: FeatureSet, settings: Settings, trainer: Trainer, *, print_freq: int = 10
) -> Outcome:
    """Run the protocol.

    Args:
        train: training features, float32 ``(n, d)`` (already normalised if so wanted).
        test: test features ``(m, d)``.
        settings: hyper-parameters of the protocol.
        trainer: does the training.
        print_freq: epochs between log lines of the final training; 0 prints none.

    Returns:
        The final classifier and how it was found.

    Raises:
        CogError: features that do not fit together, nothing to validate on, all trials diverged.
    """
    if train.x.shape[1] != test.x.shape[1]:
        raise CogError(
            f"training features have {train.x.shape[1]} dimensions, test features {test.x.shape[1]}; "
            "extract both with the same model"
        )
    y, test_y, labels = features.to_consecutive_labels(train.y, test.y)
    job = _Job(train.x, y, settings, trainer, n_classes=len(labels))
    sizes = {"search_train": 0, "search_val": 0, "final_train": 0, "test": len(test_y)}
    trials: list[tune.Trial] = []
    study = None
    start = time.monotonic()
    if settings.n_trials:
        train_rows, val_rows = features.split_train_val(
            y, val_frac=settings.val_frac, rng=randomness.numpy_rng(settings.seed, "split")
        )
        train_rows = job.draw(train_rows, stage="search")
        sizes |= {"search_train": len(train_rows), "search_val": len(val_rows)}

        def objective(lr: float, wd: float) -> tuple[float, bool]:
            fit = job.fit(train_rows, lr=lr, wd=wd, stage="search")
            return metrics.score(job.x, job.y, val_rows.to(job.x.device), fit.weight, fit.bias)[
                0
            ].top1, fit.diverged

        trials, study = tune.search(
            objective,
            n_trials=settings.n_trials,
            lr_interval=settings.lr_interval,
            wd_interval=settings.wd_interval,
            seed=settings.seed,
        )
        lr, wd = tune.best(trials).lr, tune.best(trials).wd
        logger.info("best: lr %.6g, wd %.6g, validation top-1 %.2f", lr, wd, tune.best(trials).val_top1)
    else:
        assert settings.lr is not None and settings.wd is not None
        lr, wd = settings.lr, settings.wd
    searched = time.monotonic()
    rows = job.draw(torch.arange(len(y)), stage="final")
    sizes["final_train"] = len(rows)
    fit = job.fit(
        rows,
        lr=lr,
        wd=wd,
        stage="final",
        test=_to_device(test.x, test_y, trainer.device),
        print_freq=print_freq,
    )
    if fit.diverged:
        logger.warning("the final training diverged (lr %.4g, wd %.4g); lower CLF.LR_INTV", lr, wd)
    return Outcome(
        fit=fit,
        lr=lr,
        wd=wd,
        trials=trials,
        study=study,
        labels=labels,
        sizes=sizes,
        seconds={"search": searched - start, "final": time.monotonic() - searched},
    )


def _to_device(x: torch.Tensor, y: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Move features and labels to ``device``, or leave them where they are when they do not fit."""
    try:
        return x.to(device), y.to(device)
    except torch.cuda.OutOfMemoryError:
        logger.warning(
            "features (%.1f GB) do not fit on %s; batches are copied there", x.nbytes / 1e9, device
        )
        return x, y


class _Job:
    """The training features on their device, and the settings that every fit shares."""

    def __init__(
        self, x: torch.Tensor, y: torch.Tensor, settings: Settings, trainer: Trainer, *, n_classes: int
    ) -> None:
        self.x, self.y = _to_device(x, y, trainer.device)
        self._labels = y
        self._settings = settings
        self._trainer = trainer
        self._recipe = Recipe(n_classes, settings.n_epochs, settings.batch_size, settings.momentum)

    def draw(self, rows: torch.Tensor, *, stage: str) -> torch.Tensor:
        """Return ``n_shot`` rows per class of ``rows``, or all of them."""
        settings = self._settings
        if not settings.n_shot:
            return rows
        rng = randomness.numpy_rng(settings.seed, "draw", stage=stage, n_shot=settings.n_shot)
        rows, short = features.draw_few_shot(self._labels, rows, n_shot=settings.n_shot, rng=rng)
        if short:
            logger.warning(
                "%d of %d classes have fewer than CLF.N_SHOT %d training images in the %s stage; all are used",
                short, self._recipe.n_classes, settings.n_shot, stage,
            )  # fmt: skip
        return rows

    def fit(
        self,
        rows: torch.Tensor,
        *,
        lr: float,
        wd: float,
        stage: str,
        test: tuple[torch.Tensor, torch.Tensor] | None = None,
        print_freq: int = 0,
    ) -> Fit:
        """Train on ``rows``. Trials share initial weights and order, so they differ by lr and wd alone."""
        s = self._settings
        spec = Run(
            rows=rows,
            lr=lr,
            wd=wd,
            init_seed=randomness.torch_seed(s.seed, "init", stage=stage),
            order_seed=randomness.torch_seed(s.seed, "order", stage=stage, n_shot=s.n_shot),
        )
        progress = Progress(s.n_epochs, "final training", unit="epochs") if test is not None else None

        def on_epoch(epoch: int, history: History) -> None:
            assert progress is not None
            progress.update()
            if print_freq and ((epoch + 1) % print_freq == 0 or epoch + 1 == s.n_epochs):
                logs = history.logs
                logger.info(
                    "epoch %3d: train loss %.4f, train top-1 %.2f, test loss %.4f, test top-1 %.2f, top-5 %.2f",
                    epoch + 1, logs["train/loss"][-1], logs["train/top1"][-1], logs["test/loss"][-1],
                    logs["test/top1"][-1], logs["test/top5"][-1],
                )  # fmt: skip

        with progress or contextlib.nullcontext():
            return self._trainer.fit(
                self.x, self.y, spec, self._recipe, test=test, on_epoch=on_epoch if test is not None else None
            )
