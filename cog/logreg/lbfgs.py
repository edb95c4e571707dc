"""The convex optimum instead of SGD (``CLF.SOLVER lbfgs``). **This changes the protocol**; off by default.

Many linear probes are fitted to the end of the convex problem by L-BFGS (CLIP's, for one), and then nothing but the
strength of the penalty is left to tune. The benchmark's numbers are those of SGD: its learning rate and its 100
epochs regularise as well, so the two are not comparable.

What is minimised, over the rows of a run::

    mean cross-entropy  +  wd / 2 * (|W|^2 + |b|^2)

``wd`` means what it means to SGD: ``torch.optim.SGD`` decays the bias too, so the penalty holds it as well. In
scikit-learn's terms ``C = 1 / (n * wd)``, with the intercept as the weight of a constant feature.

* Only weight decay is searched: ``CLF.N_TRIALS`` values, evenly spaced on the logarithmic scale over ``CLF.WD_INTV``,
  from the strongest to the weakest, each started from the optimum before (:class:`WeightDecayPath`). They are scored
  on the same held-out rows as in the protocol; of equal ones the strongest wins. The learning rate is unused, and
  recorded as 1.0.
* The final training starts from zero weights, so it is a function of its rows and its weight decay alone.
* ``CLF.N_EPOCHS`` is the largest number of iterations, and ``logs.pkl`` has one value per iteration. Training ends
  before that when the norm of the gradient has fallen to ``1e-4`` of that at zero weights, or the objective no
  longer falls within the precision of float32. When neither happens, the log says so.
* At the weak end of the interval the optimum of separable data lies far out and is never quite reached: where the
  search ends there depends on its way, so a best value at the weak end says that the penalty hardly matters.
* Everything is float32 with the loss summed in float64; the gradient is accumulated over chunks of rows.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cog.device import exact_float32
from cog.errors import CogError
from cog.logreg import checkpoint as checkpoint_file
from cog.logreg import metrics, tune
from cog.logreg.checkpoint import Checkpoint, Ledger, RunState, moved
from cog.logreg.engine import Engine, Live, Monitor, OnEpoch
from cog.logreg.matrix import FeatureMatrix
from cog.logreg.sgd import Fit, History, Recipe, Run

if TYPE_CHECKING:
    from cog.logreg.settings import Settings

logger = logging.getLogger(__name__)

#: What is recorded where SGD has a learning rate.
LEARNING_RATE = 1.0

#: Of the gradient's norm, relative to the one at zero weights: a problem of any scale ends at the same quality.
_TOLERANCE = 1e-4

#: An iteration that lowers the objective by less than this fraction of it moves within the rounding errors of float32.
_PRECISION = 1e-8

#: Pairs of step and gradient change that stand for the Hessian (SciPy's default, which scikit-learn uses).
_HISTORY = 10

#: The objective is multiplied by it for the optimiser, which ignores curvatures below 1e-10; a power of two changes
#: no digit.
_SCALE = 2.0**20

#: Rows in one step of the sum: bounds the memory (4096 x (2048 + 2 x 1000) float32 is 66 MB).
CHUNK = 4096


@dataclass(eq=False)
class PathFit(Fit):
    """A solution, from which another one may start.

    Attributes:
        scale: norm of the objective's gradient at zero weights.
    """

    scale: float = 0.0


@dataclass(frozen=True, eq=False)
class PathRun(Run):
    """A problem to solve.

    Attributes:
        after: where to start from; None: from zero weights.
    """

    after: PathFit | None = None


class WeightDecayPath:
    """The search over weight decay, in one round; stands where :class:`cog.logreg.tune.Search` does.

    Args:
        settings: of the protocol.
        saved: file for the results so far and the last solution; None: nothing is saved.

    Attributes:
        trials: what is finished, in order; trial 0 has the strongest penalty.
        study: None: no sampler is at work.
    """

    study = None

    def __init__(self, settings: Settings, saved: Path | None = None) -> None:
        self._settings, self._saved = settings, saved
        self.trials: list[tune.Trial] = []
        self._last: PathFit | None = None

    @property
    def done(self) -> bool:
        """Whether all trials are finished."""
        return len(self.trials) == self._settings.n_trials

    def ask(self) -> list[tuple[float, float]]:
        """Return all pairs of (unused) learning rate and weight decay, strongest first."""
        low, high = self._settings.wd_interval
        n = self._settings.n_trials
        inner = [high * (low / high) ** (i / (n - 1)) for i in range(1, n - 1)]
        return [(LEARNING_RATE, wd) for wd in [high, *inner, low][:n]]

    def replay(self) -> int:
        """Take over what an earlier session finished; returns how many trials that is."""
        data = None if self._saved is None else checkpoint_file.read(self._saved)
        for row in () if data is None else data["results"]:
            self._note(tune.Result(**row))
        if data is not None and data["last"] is not None:
            self._last = PathFit(**data["last"])
        if self.trials:
            logger.info(
                "%s%d of %d trials were finished before", self._settings.label, len(self.trials),
                self._settings.n_trials,
            )  # fmt: skip
        self._require_hope()
        return len(self.trials)

    def next_run(self, run: Run) -> Run:
        """Let a run start from where the one before it ended."""
        return PathRun(**vars(run), after=self._last)

    def add(self, result: tune.Result, fit: Fit) -> None:
        """Record the result of the next trial, and its solution.

        Raises:
            CogError: when all of them diverged.
        """
        if not fit.diverged:
            assert isinstance(fit, PathFit)
            self._last = PathFit(fit.weight, fit.bias, False, scale=fit.scale)
        self._note(result)
        self._log()
        if self._saved is not None:
            keys = ("val_top1", "diverged", "seconds")
            rows = [{key: getattr(trial, key) for key in keys} for trial in self.trials]
            last = None if self._last is None else vars(self._last)
            checkpoint_file.write(self._saved, {"results": rows, "last": last})
        self._require_hope()

    def _require_hope(self) -> None:
        if self.done and all(trial.diverged for trial in self.trials):
            if self._saved is not None:
                self._saved.unlink(missing_ok=True)  # the next start will have other settings
            raise CogError(
                f"training diverged in all {len(self.trials)} trials (weight decays {self.trials[0].wd:.3g} to "
                f"{self.trials[-1].wd:.3g}); set CLF.NORM_FTS True"
            )

    def _note(self, result: tune.Result) -> None:
        number = len(self.trials)
        lr, wd = self.ask()[number]
        val_top1 = 0.0 if result.diverged else result.val_top1
        self.trials.append(tune.Trial(number, lr, wd, val_top1, result.diverged, round(result.seconds, 3)))

    def _log(self) -> None:
        trial = self.trials[-1]
        logger.info(
            "%strial %2d: wd %8.2e, validation top-1 %6.2f%s (best %.2f)", self._settings.label, trial.number, trial.wd,
            trial.val_top1, ", diverged" if trial.diverged else "", tune.best(self.trials).val_top1,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Value:
    """The objective at one point; ``sums`` are cross-entropy, top-1 and top-5 hits over the rows."""

    loss: float
    gradient: torch.Tensor
    sums: torch.Tensor


class Objective:
    """Mean cross-entropy of a linear classifier over some rows, plus the penalty, and the gradient.

    Args:
        features: training features.
        y: int64 ``(n,)`` in 0..C-1.
        rows: int64, the rows that count.
        n_classes: C.
        wd: strength of the penalty.
        device: where to compute.
        ranks: whether hits are counted as well.
    """

    def __init__(
        self, features: FeatureMatrix, y: torch.Tensor, rows: torch.Tensor, n_classes: int, *,
        wd: float, device: torch.device, ranks: bool = False,
    ) -> None:  # fmt: skip
        self._features, self._ranks, self._device = features, ranks, device
        self._rows = rows.to(features.device)
        self._y = y[rows.to(y.device)].to(device)
        self.n, self.wd = len(rows), wd
        self.shape = (n_classes, features.dim)

    def zeros(self) -> torch.Tensor:
        """Return the parameters of a classifier that knows nothing: float32 ``(C * d + C,)``."""
        return torch.zeros(self.shape[0] * (self.shape[1] + 1), device=self._device)

    def split(self, theta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weight ``(C, d)`` and bias ``(C,)`` as views of ``theta``."""
        n_classes, dim = self.shape
        return theta[: n_classes * dim].view(n_classes, dim), theta[n_classes * dim :]

    @torch.no_grad()
    def __call__(self, theta: torch.Tensor) -> _Value:
        """Evaluate at ``theta``, float32 ``(C * d + C,)``."""
        n = self.n
        weight, bias = self.split(theta)
        gradient = torch.zeros_like(theta)
        weight_gradient, bias_gradient = self.split(gradient)
        sums = torch.zeros(3, dtype=torch.float64, device=self._device)
        for rows, y in zip(self._rows.split(CHUNK), self._y.split(CHUNK), strict=True):
            x = self._features.exact(rows).to(self._device)
            logits = torch.addmm(bias, x, weight.T)
            if self._ranks:
                rank = metrics.true_class_rank(logits, y)
                sums[1] += (rank < 1).sum()
                sums[2] += (rank < 5).sum()
            log_p = torch.log_softmax(logits, dim=1)
            sums[0] -= log_p.gather(1, y[:, None]).sum(dtype=torch.float64)
            residual = log_p.exp_()
            residual[torch.arange(len(y), device=y.device), y] -= 1
            weight_gradient.addmm_(residual.T, x, alpha=1 / n)
            bias_gradient.add_(residual.sum(0), alpha=1 / n)
        gradient.add_(theta, alpha=self.wd)
        square = float(torch.linalg.vector_norm(theta, dtype=torch.float64)) ** 2
        return _Value(float(sums[0]) / n + self.wd / 2 * square, gradient, sums)


class LbfgsEngine:
    """An engine whose :meth:`fit` solves the convex problem; storage and scoring are those of another one.

    Args:
        base: holds the features and scores classifiers.
    """

    precision = "fp32"
    side_by_side = 1

    def __init__(self, base: Engine) -> None:
        self._base = base
        self.device = base.device

    def together(self, n_classes: int) -> int:
        """One: each starts from where the one before it ended, and is recorded when it is solved."""
        return 1

    def load(self, x: torch.Tensor, norms: torch.Tensor | None = None) -> FeatureMatrix:
        """See :meth:`cog.logreg.engine.Engine.load`."""
        return self._base.load(x, norms)

    def load_test(self, x: torch.Tensor) -> torch.Tensor:
        """See :meth:`cog.logreg.engine.Engine.load_test`."""
        return self._base.load_test(x)

    def validate(
        self, features: FeatureMatrix, y: torch.Tensor, rows: torch.Tensor, fits: Sequence[Fit | Live]
    ) -> list[float]:
        """See :meth:`cog.logreg.engine.Engine.validate`."""
        return self._base.validate(features, y, rows, fits)

    def fit(
        self,
        features: FeatureMatrix,
        y: torch.Tensor,
        runs: Sequence[Run],
        recipe: Recipe,
        *,
        test: tuple[torch.Tensor, torch.Tensor] | None = None,
        on_epoch: OnEpoch | None = None,
        monitor: Monitor | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> list[Fit]:
        """Solve one problem per run; see :meth:`cog.logreg.engine.Engine.fit`.

        Runs with the same ``rows`` object are a path: each starts from where the one before it ended; the first from
        where its :attr:`PathRun.after` did. Learning rate, seeds and batch size play no part.
        """
        assert monitor is None, "only SGD trials can be pruned"
        ledger = Ledger(checkpoint, len(runs))
        fits = ledger.ended(self.device, PathFit)
        ends: dict[int, PathFit] = {}
        with exact_float32():
            for index, run in enumerate(runs):
                if index not in fits:
                    objective = Objective(
                        features,
                        y,
                        run.rows,
                        recipe.n_classes,
                        wd=run.wd,
                        device=self.device,
                        ranks=test is not None,
                    )
                    start = ends.get(id(run.rows), run.after if isinstance(run, PathRun) else None)
                    fits[index] = _fit(objective, start, recipe.n_epochs, test, on_epoch, ledger, index)
                    ledger.end({index: fits[index]})
                if not fits[index].diverged:
                    ends[id(run.rows)] = fits[index]
        return [fits[index] for index in range(len(runs))]


def _fit(
    objective: Objective,
    start: PathFit | None,
    n_iterations: int,
    test: tuple[torch.Tensor, torch.Tensor] | None,
    on_epoch: OnEpoch | None,
    ledger: Ledger,
    index: int,
) -> PathFit:
    """Solve one problem, with a history when there is a test set."""
    began = time.monotonic()
    saved = ledger.states[index]
    before = 0.0 if saved is None else saved.seconds
    history = History() if test is not None else None
    if history is not None and saved is not None and saved.logs is not None:
        history.logs = saved.logs
    predictions = None

    def record(iteration: int, theta: torch.Tensor, value: _Value) -> None:
        nonlocal predictions
        if history is None or test is None:
            return
        loss, top1, top5 = (value.sums / objective.n).tolist()
        score, predictions = metrics.score(*test, *objective.split(theta))
        history.append(metrics.Score(loss, 100 * top1, 100 * top5), score, LEARNING_RATE)
        if on_epoch is not None:
            on_epoch(iteration, history)

    def offer(iterations: int, values: dict[str, Any]) -> None:
        logs = None if history is None else history.logs
        seconds = before + time.monotonic() - began
        ledger.offer(lambda: {index: RunState(iterations, values, "", seconds, logs)})

    end = _solve(objective, start, n_iterations, record, saved, offer)
    _report(end, objective.wd, final=test is not None)
    seconds = before + time.monotonic() - began
    return PathFit(
        *objective.split(end.theta), end.diverged, history, predictions, seconds=seconds, scale=end.scale
    )


@dataclass(frozen=True, eq=False)
class _End:
    """Where a minimisation ended; ``scale`` is the gradient's norm at zero weights."""

    theta: torch.Tensor
    scale: float
    gradient: float
    iterations: int
    converged: bool
    diverged: bool


def _report(end: _End, wd: float, *, final: bool) -> None:
    level = logging.DEBUG if not final else logging.INFO if end.converged else logging.WARNING
    logger.log(
        level, "wd %.3g: %s after %d iterations (gradient %.1e, at zero weights %.1e)%s", wd,
        "converged" if end.converged else "not converged", end.iterations, end.gradient, end.scale,
        "" if end.converged else "; more CLF.N_EPOCHS or a higher low end of CLF.WD_INTV gets closer",
    )  # fmt: skip


def _solve(
    objective: Objective,
    start: PathFit | None,
    n_iterations: int,
    record: Callable[[int, torch.Tensor, _Value], None],
    saved: RunState | None,
    offer: Callable[[int, dict[str, Any]], None],
) -> _End:
    """Minimise from the end of another minimisation, or from zero weights.

    ``torch.optim.LBFGS`` with the strong Wolfe line search, one iteration per call. Between calls it evaluates
    the objective again where the line search has just been; the last value is kept to spare that. At least one
    iteration is made from zero weights, so that there is one to record.

    Args:
        objective: what to minimise.
        start: where to start.
        n_iterations: at most.
        record: called after every iteration.
        saved: what ``offer`` was given in an earlier session; its pairs of step and gradient change come back too, so
            that the iterations after it are the same.
        offer: called after every iteration but the last with the number of iterations and all that the next one needs.
    """
    theta = objective.zeros()
    if saved is not None:
        theta.copy_(saved.values["theta"])
    elif start is not None:
        weight, bias = objective.split(theta)
        weight.copy_(start.weight)
        bias.copy_(start.bias)
    at: torch.Tensor | None = None
    value: _Value | None = None

    def evaluate() -> _Value:
        nonlocal at, value
        if value is None or at is None or not torch.equal(at, theta):
            at, value = theta.clone(), objective(theta)
        return value

    def closure() -> float:
        theta.grad = _SCALE * evaluate().gradient
        return _SCALE * evaluate().loss

    # One iteration per step. Its own rules for ending are absolute, and the scale of the problem is not fixed.
    optimizer = torch.optim.LBFGS(
        [theta], lr=1.0, max_iter=1, max_eval=25, history_size=_HISTORY, tolerance_grad=0.0,
        tolerance_change=0.0, line_search_fn="strong_wolfe",
    )  # fmt: skip
    n_done = 0
    if saved is not None:
        scale, n_done = saved.values["scale"], saved.epochs
        optimizer.state[theta].update(moved(saved.values["optimizer"], theta.device))
    else:
        scale = _norm(evaluate().gradient) if start is None else start.scale

    gradient, diverged = _norm(evaluate().gradient), False
    converged = start is not None and saved is None and gradient <= _TOLERANCE * scale
    while n_done < n_iterations and not (converged or diverged):
        before = evaluate()
        optimizer.step(closure)  # type: ignore[arg-type]
        now = evaluate()
        record(n_done, theta, now)
        n_done += 1
        gradient = _norm(now.gradient)
        diverged = not (math.isfinite(now.loss) and math.isfinite(gradient))
        converged = gradient <= _TOLERANCE * scale or before.loss - now.loss <= _PRECISION * before.loss
        if n_done < n_iterations and not (converged or diverged):
            offer(n_done, {"theta": theta, "scale": scale, "optimizer": dict(optimizer.state[theta])})
    return _End(theta, scale, gradient, n_done, converged and not diverged, diverged)


def _norm(gradient: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
