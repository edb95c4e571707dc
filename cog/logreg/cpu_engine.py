"""The classifier engine on the CPU."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from cog.logreg import metrics
from cog.logreg.engine import Live, Monitor, OnEpoch
from cog.logreg.matrix import FeatureMatrix, FloatMatrix, MappedMatrix, SplitMatrix
from cog.logreg.precision import exact_float32
from cog.logreg.sgd import Fit, History, Recipe, Run, initial_classifier, learning_rate, logged_rate
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
    ) -> list[Fit]:
        """See :meth:`cog.logreg.engine.Engine.fit`."""
        assert test is None or len(runs) == 1
        width = self.together(recipe.n_classes)
        groups: dict[tuple[int, int], list[int]] = {}
        for index, run in enumerate(runs):
            groups.setdefault((id(run.rows), run.order_seed), []).append(index)
        fits: dict[int, Fit] = {}
        with exact_float32():
            for group in groups.values():
                for start in range(0, len(group), width):
                    part = group[start : start + width]
                    sweep = _Sweep(
                        self, features, y, [runs[i] for i in part], part, recipe, record=test is not None
                    )
                    fits |= sweep.train(test, on_epoch, monitor)
        return [fits[index] for index in range(len(runs))]

    @torch.no_grad()
    def validate(
        self, features: FeatureMatrix, y: torch.Tensor, rows: torch.Tensor, fits: Sequence[Fit | Live]
    ) -> list[float]:
        """See :meth:`cog.logreg.engine.Engine.validate`."""
        with exact_float32():
            return metrics.top1_of_many(features, y, rows, [(fit.weight, fit.bias) for fit in fits])


class _Sweep:
    """Runs in lockstep over the same batches."""

    def __init__(
        self,
        engine: CpuEngine,
        features: FeatureMatrix,
        y: torch.Tensor,
        runs: Sequence[Run],
        indices: Sequence[int],
        recipe: Recipe,
        *,
        record: bool,
    ) -> None:
        self._features, self._y, self._recipe, self._record = features, y, recipe, record
        self._rows = runs[0].rows
        self._order_generator = cpu_generator(runs[0].order_seed)
        self._dtype = features.dtype
        n_classes, dim = recipe.n_classes, features.dim
        size = min(recipe.batch_size, len(self._rows))
        self.live = []
        drawn: dict[int, Live] = {}
        for index, run in zip(indices, runs, strict=True):
            same = drawn.get(run.init_seed)
            if same is None:
                weight, bias = initial_classifier(n_classes, dim, run.init_seed)
            else:
                weight, bias = same.weight.clone(), same.bias.clone()
            self.live.append(
                Live(
                    run, weight, bias, index, torch.zeros_like(weight), torch.zeros_like(bias),
                    low=None if self._dtype == torch.float32 else weight.to(self._dtype),
                )
            )  # fmt: skip
            drawn[run.init_seed] = self.live[-1]
        # Buffers are made once: fresh ones of this size are mapped and cleared by the kernel in every step.
        shape = (len(runs), size, n_classes)
        self._x = torch.empty(size, dim, dtype=self._dtype)
        self._gradient = torch.empty(shape)  # of the logits; before that the logits, then the probabilities
        self._weight_gradient = torch.empty(n_classes, dim)
        if self._dtype != torch.float32:
            self._low_logits = torch.empty(shape[1:], dtype=self._dtype)
            self._low_gradient = torch.empty(shape[1:], dtype=self._dtype)
            self._low_weight_gradient = torch.empty(n_classes, dim, dtype=self._dtype)
        self._minus_one = torch.full((len(runs), size), -1.0)
        self._row_starts = torch.arange(size) * n_classes

    def train(
        self,
        test: tuple[torch.Tensor, torch.Tensor] | None,
        on_epoch: OnEpoch | None,
        monitor: Monitor | None,
    ) -> dict[int, Fit]:
        """Run all epochs; returns the classifiers by their position in the list of runs."""
        recipe, n = self._recipe, len(self._rows)
        start = time.monotonic()
        history = History() if self._record else None
        predictions = None
        done: dict[int, Fit] = {}

        def finish(live: Live, *, diverged: bool, stopped: bool = False) -> None:
            done[live.index] = Fit(
                live.weight, live.bias, diverged, history, predictions, stopped=stopped,
                seconds=(time.monotonic() - start),
            )  # fmt: skip

        for epoch in range(recipe.n_epochs):
            order = self._rows[torch.randperm(n, generator=self._order_generator)]
            rates = [learning_rate(live.run.lr, epoch, recipe.n_epochs) for live in self.live]
            sums = torch.zeros(3, dtype=torch.float64) if self._record else None
            for batch in order.split(recipe.batch_size):
                self._step(batch, rates, sums)
            diverged = [live for live in self.live if not torch.isfinite(live.weight.sum() + live.bias.sum())]
            if history is not None and test is not None and sums is not None:
                (live,) = self.live
                loss, top1, top5 = (sums / n).tolist()
                score, predictions = metrics.score(*test, None, live.weight, live.bias)
                rate = logged_rate(live.run.lr, epoch, recipe.n_epochs)
                history.append(metrics.Score(loss, 100 * top1, 100 * top5), score, rate)
                if on_epoch is not None:
                    on_epoch(epoch, history)
            for live in diverged:
                finish(live, diverged=True)
            self.live = [live for live in self.live if live.index not in done]
            if monitor is not None and self.live:
                for live in monitor(epoch, self.live):
                    finish(live, diverged=False, stopped=True)
                self.live = [live for live in self.live if live.index not in done]
            if not self.live:
                break
        for live in self.live:
            finish(live, diverged=False)
        count = len(done)
        for fit in done.values():
            fit.seconds /= count  # they were trained together
        return done

    def _step(self, batch: torch.Tensor, rates: Sequence[float], sums: torch.Tensor | None) -> None:
        """One SGD step of every run on the same batch."""
        b, recipe, n_runs = len(batch), self._recipe, len(self.live)
        x = self._features.batch(batch, out=self._x[:b])
        y = self._y[batch]
        low = self._dtype != torch.float32
        gradient = self._gradient[:n_runs, :b] if b == self._gradient.shape[1] else torch.empty(
            n_runs, b, recipe.n_classes
        )  # fmt: skip
        for live, logits in zip(self.live, gradient, strict=True):
            if low:
                assert live.low is not None
                torch.mm(x, live.low.T, out=self._low_logits[:b])
                torch.add(self._low_logits[:b], live.bias, out=logits)
            else:
                torch.addmm(live.bias, x, live.weight.T, out=logits)
        if sums is not None:
            _add_batch(sums, gradient[0], y)
        torch.softmax(gradient, dim=2, out=gradient)
        targets = self._row_starts[:b] + y
        gradient.view(n_runs, -1).index_add_(1, targets, self._minus_one[:n_runs, :b])
        for live, rate, g in zip(self.live, rates, gradient, strict=True):
            if low:
                self._low_gradient[:b].copy_(g)
                torch.mm(self._low_gradient[:b].T, x, out=self._low_weight_gradient)
                torch.mul(self._low_weight_gradient, 1 / b, out=self._weight_gradient)
            else:
                torch.mm(g.T, x, out=self._weight_gradient)
                self._weight_gradient.mul_(1 / b)
            bias_gradient = g.sum(0).mul_(1 / b)
            sgd_step(
                [live.weight, live.bias],
                [self._weight_gradient, bias_gradient],
                [live.weight_velocity, live.bias_velocity],
                lr=rate,
                wd=live.run.wd,
                momentum=recipe.momentum,
            )
            if low:
                assert live.low is not None
                live.low.copy_(live.weight)


def sgd_step(
    parameters: list[torch.Tensor],
    gradients: list[torch.Tensor],
    velocities: list[torch.Tensor],
    *,
    lr: float,
    wd: float,
    momentum: float,
) -> None:
    """One update of ``torch.optim.SGD``, in one pass over the memory.

    Decay goes into the gradient, momentum without dampening; all three lists are changed in place. The call is the
    one that ``torch.optim.SGD(fused=True)`` makes; the optimiser object around it would cost more than the update.
    """
    torch._fused_sgd_(
        parameters, gradients, velocities, weight_decay=wd, momentum=momentum, lr=lr, dampening=0.0,
        nesterov=False, maximize=False, is_first_step=False,
    )  # fmt: skip


def _add_batch(sums: torch.Tensor, logits: torch.Tensor, y: torch.Tensor) -> None:
    """Add loss and hits of one batch to the sums of an epoch."""
    rank = metrics.true_class_rank(logits, y)
    sums[0] += (torch.logsumexp(logits, 1) - logits.gather(1, y[:, None])[:, 0]).sum()
    sums[1] += (rank < 1).sum()
    sums[2] += (rank < 5).sum()
