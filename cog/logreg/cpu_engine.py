"""The classifier engine on the CPU."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from cog.device import exact_float32
from cog.logreg import gram, metrics
from cog.logreg.checkpoint import Checkpoint, Ledger, RunState, ended_state
from cog.logreg.dense import DenseRows
from cog.logreg.engine import Live, Monitor, OnEpoch
from cog.logreg.gram import SpanRows
from cog.logreg.matrix import FeatureMatrix, FloatMatrix, MappedMatrix, SplitMatrix
from cog.logreg.sgd import Fit, History, Recipe, Run, learning_rate, logged_rate
from cog.randomness import cpu_generator

#: Columns (runs x classes) trained in one sweep over the batches: beyond these the weights fall out of the cache,
#: and the memory for weights, momentum and logits grows for nothing.
_CPU_COLUMNS = 1000


class CpuEngine:
    """Trains on the CPU.

    Args:
        precision: ``"fp32"`` or ``"bf16"``, see :mod:`cog.logreg.precision`.
    """

    device = torch.device("cpu")

    #: Seeds of a study that are advanced together: nothing is gained on a CPU, whose cores one run can fill.
    side_by_side = 1

    def __init__(self, precision: str = "fp32") -> None:
        assert precision in ("fp32", "bf16"), precision
        self.precision = precision

    def together(self, n_classes: int) -> int:
        """See :meth:`cog.logreg.engine.Engine.together`."""
        return max(1, _CPU_COLUMNS // n_classes)

    def load(self, x: torch.Tensor, norms: torch.Tensor | None = None) -> FeatureMatrix:
        """See :meth:`cog.logreg.engine.Engine.load`."""
        if norms is not None:
            return MappedMatrix(x, norms, torch.bfloat16 if self.precision == "bf16" else torch.float32)
        return SplitMatrix(x) if self.precision == "bf16" else FloatMatrix(x)

    def load_test(self, x: torch.Tensor) -> torch.Tensor:
        """Leave test features where they are."""
        return x

    @torch.no_grad()
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
        """See :meth:`cog.logreg.engine.Engine.fit`."""
        assert test is None or len(runs) == 1
        width = self.together(recipe.n_classes)
        ledger = Ledger(checkpoint, len(runs))
        fits = ledger.ended()
        groups: dict[tuple[int, int, int], list[int]] = {}
        for index, run in enumerate(runs):
            if index not in fits:
                key = (id(run.rows), run.order_seed, ledger.epochs(index))
                groups.setdefault(key, []).append(index)
        with exact_float32():
            for group in groups.values():
                for start in range(0, len(group), width):
                    part = {i: runs[i] for i in group[start : start + width]}
                    sweep = _Sweep(features, y, part, recipe, ledger, record=test is not None)
                    done = sweep.train(test, on_epoch, monitor)
                    ledger.end(done)
                    fits |= done
        return [fits[index] for index in range(len(runs))]

    @torch.no_grad()
    def validate(
        self, features: FeatureMatrix, y: torch.Tensor, rows: torch.Tensor, fits: Sequence[Fit | Live]
    ) -> list[float]:
        """See :meth:`cog.logreg.engine.Engine.validate`."""
        with exact_float32():
            return metrics.top1_of_many(features, y, rows, [(fit.weight, fit.bias) for fit in fits])


class _Rows(Protocol):
    """Where batches come from: :class:`~cog.logreg.dense.DenseRows` or :class:`~cog.logreg.gram.SpanRows`."""

    def arrange(self, order: torch.Tensor) -> torch.Tensor: ...

    def take(self, positions: torch.Tensor) -> torch.Tensor: ...

    def start(self, run: Run, recipe: Recipe) -> _State: ...


class _State(Protocol):
    """A classifier in training."""

    @property
    def weight(self) -> torch.Tensor: ...

    @property
    def bias(self) -> torch.Tensor: ...

    def logits(self, batch: torch.Tensor, out: torch.Tensor) -> None: ...

    def step(self, batch: torch.Tensor, logit_gradient: torch.Tensor, *, lr: float) -> None: ...

    def is_finite(self) -> bool: ...

    def values(self) -> dict[str, Any]: ...

    def resume(self, values: Mapping[str, Any]) -> None: ...


class _Sweep:
    """Runs in lockstep over the same batches."""

    def __init__(
        self,
        features: FeatureMatrix,
        y: torch.Tensor,
        runs: Mapping[int, Run],
        recipe: Recipe,
        ledger: Ledger,
        *,
        record: bool,
    ) -> None:
        index, first = next(iter(runs.items()))
        self._recipe, self._runs, self._record, self._curve = recipe, runs, record, features.dtype
        self._ledger, self._first_epoch = ledger, ledger.epochs(index)
        self._y = y[first.rows]
        self._order_generator = cpu_generator(first.order_seed)
        self._rows: _Rows = (SpanRows if gram.applies(len(first.rows), features.dim) else DenseRows)(
            features, first.rows, recipe
        )
        self._states = {index: self._rows.start(run, recipe) for index, run in runs.items()}
        self._seconds_before = dict.fromkeys(runs, 0.0)
        self._history = History() if record else None
        for index, state in self._states.items():
            saved = ledger.states[index]
            if saved is not None:
                state.resume(saved.values)
                self._seconds_before[index] = saved.seconds
                if self._history is not None and saved.logs is not None:
                    self._history.logs = saved.logs
        size = min(recipe.batch_size, len(first.rows))
        # Of the loss by the logits; before that the logits, then the probabilities.
        self._gradient = torch.empty(len(runs), size, recipe.n_classes)
        self._minus_one = torch.full((len(runs), size), -1.0)
        self._row_starts = torch.arange(size) * recipe.n_classes

    def train(
        self,
        test: tuple[torch.Tensor, torch.Tensor] | None,
        on_epoch: OnEpoch | None,
        monitor: Monitor | None,
    ) -> dict[int, Fit]:
        """Run all epochs; returns the classifiers by their index."""
        recipe, n = self._recipe, len(self._y)
        start = time.monotonic()
        history = self._history
        predictions = None
        done: dict[int, Fit] = {}

        def finish(index: int, *, diverged: bool = False, stopped: bool = False) -> None:
            state = self._states.pop(index)
            seconds = self._seconds(index, start)
            done[index] = Fit(state.weight, state.bias, diverged, history, predictions, stopped, seconds)

        for _ in range(self._first_epoch):
            torch.randperm(n, generator=self._order_generator)  # the orders of finished epochs
        for epoch in range(self._first_epoch, recipe.n_epochs):
            order = self._rows.arrange(torch.randperm(n, generator=self._order_generator))
            rates = {i: learning_rate(self._runs[i].lr, epoch, recipe.n_epochs) for i in self._states}
            sums = torch.zeros(3, dtype=torch.float64) if self._record else None
            for positions, y in zip(
                order.split(recipe.batch_size), self._y[order].split(recipe.batch_size), strict=True
            ):
                self._step(rates, positions, y, sums)
            diverged = [index for index, state in self._states.items() if not state.is_finite()]
            if history is not None and test is not None and sums is not None:
                ((index, state),) = self._states.items()
                loss, top1, top5 = (sums / n).tolist()
                # The last epoch is the result; the others are a curve, at the precision of the training.
                operands = torch.float32 if epoch + 1 == recipe.n_epochs or index in diverged else self._curve
                score, predictions = metrics.score(*test, state.weight, state.bias, operands=operands)
                rate = logged_rate(self._runs[index].lr, epoch, recipe.n_epochs)
                history.append(metrics.Score(loss, 100 * top1, 100 * top5), score, rate)
                if on_epoch is not None:
                    on_epoch(epoch, history)
            for index in diverged:
                finish(index, diverged=True)
            if monitor is not None and self._states:
                live = [
                    Live(self._runs[index], state.weight, state.bias, index)
                    for index, state in self._states.items()
                ]
                for one in monitor(epoch, live):
                    finish(one.index, stopped=True)
            if not self._states:
                break
            if epoch + 1 < recipe.n_epochs:
                self._ledger.offer(lambda: self._standing(epoch + 1, start, done))  # noqa: B023
        for index in list(self._states):
            finish(index)
        return done

    def _seconds(self, index: int, start: float) -> float:
        """Return the duration of a run, trained together with the others since ``start``."""
        return self._seconds_before[index] + (time.monotonic() - start) / len(self._runs)

    def _standing(self, epochs: int, start: float, done: Mapping[int, Fit]) -> dict[int, RunState]:
        """Return where every run stands."""
        logs = None if self._history is None else self._history.logs
        return {index: ended_state(fit) for index, fit in done.items()} | {
            index: RunState(epochs, state.values(), "", self._seconds(index, start), logs)
            for index, state in self._states.items()
        }

    def _step(
        self,
        rates: Mapping[int, float],
        positions: torch.Tensor,
        y: torch.Tensor,
        sums: torch.Tensor | None,
    ) -> None:
        """One SGD step of every run on the same batch."""
        b, n_runs, recipe = len(y), len(self._states), self._recipe
        batch = self._rows.take(positions)
        gradient = self._gradient[:n_runs, :b]
        if b < self._gradient.shape[1]:
            gradient = torch.empty(n_runs, b, recipe.n_classes)  # contiguous, as index_add_ below needs it
        for state, logits in zip(self._states.values(), gradient, strict=True):
            state.logits(batch, logits)
        if sums is not None:
            _add_batch(sums, gradient[0], y)
        torch.softmax(gradient, dim=2, out=gradient)
        gradient.view(n_runs, -1).index_add_(1, self._row_starts[:b] + y, self._minus_one[:n_runs, :b])
        gradient.mul_(1 / b)
        for (index, state), logit_gradient in zip(self._states.items(), gradient, strict=True):
            state.step(batch, logit_gradient, lr=rates[index])


def _add_batch(sums: torch.Tensor, logits: torch.Tensor, y: torch.Tensor) -> None:
    """Add loss and hits of one batch to the sums of an epoch."""
    rank = metrics.true_class_rank(logits, y)
    sums[0] += (torch.logsumexp(logits, 1) - logits.gather(1, y[:, None])[:, 0]).sum()
    sums[1] += (rank < 1).sum()
    sums[2] += (rank < 5).sum()
