"""The classifier engine: trains and scores classifiers over one copy of the features, on any device.

Seeds, and trials of a seed that do not wait for each other, are trained in lockstep (:mod:`cog.logreg.step`).
What is in lockstep depends on settings, shapes and the size of the memory alone: the same command gives the
same bits on the same machine. Last bits differ between devices, and between a seed alone and in lockstep.
"""

import contextlib
import dataclasses
import functools
import itertools
import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cog.errors import CogError
from cog.features import feature_files, sampling
from cog.features.feature_files import FeatureSet
from cog.logreg import metrics
from cog.logreg.features import Data, Features, Lockstep
from cog.logreg.metrics import Logs
from cog.logreg.mlp import Layer, Mlp, initial_layers
from cog.logreg.search import N_STARTUP_TRIALS, Unfinished
from cog.logreg.settings import Settings
from cog.logreg.step import Classifiers
from cog.runtime import memory
from cog.runtime.device import exact_float32, require_precision
from cog.runtime.seeds import torch_seed

logger = logging.getLogger(__name__)

#: Columns (classifiers x classes) trained in lockstep on a CPU: the weights of more exceed the cache.
CPU_COLUMNS = 1000

_USABLE, _SCORES = 0.875, 2.0e9  # share of the memory, and bytes for the scores of a chunk on a GPU


@functools.cache
def cpu_has_bfloat16() -> bool:
    """Return whether this CPU has instructions (AVX512-BF16 or AMX) that make bfloat16 products faster."""
    info = Path("/proc/cpuinfo")
    return info.is_file() and bool(re.search(r"\b(avx512_bf16|amx_bf16)\b", info.read_text()))


def resolve_precision(name: str, device: torch.device) -> str:
    """Return ``fp32``, ``tf32`` or ``bf16`` for ``CLF.PRECISION``; ``auto`` depends on the device alone."""
    if name != "auto":
        require_precision(device, "CLF.PRECISION", name)
        return name
    if device.type == "cpu":
        return "bf16" if cpu_has_bfloat16() else "fp32"
    return "tf32" if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"


@contextlib.contextmanager
def products(precision: str) -> Iterator[None]:
    """Multiply float32 matrices in ``fp32`` or ``tf32`` in the block; sum up bfloat16 products in float32."""
    matmul = torch.backends.cuda.matmul
    with exact_float32(tf32=precision == "tf32"):
        saved = matmul.allow_bf16_reduced_precision_reduction
        matmul.allow_bf16_reduced_precision_reduction = False
        try:
            yield
        finally:
            matmul.allow_bf16_reduced_precision_reduction = saved


def learning_rate(base: float, epoch: int, n_epochs: int) -> float:
    """Return the learning rate during an epoch: a cosine, stepped after each epoch with its index.

    So epochs 0 and 1 both run at the base rate, and the last one above zero, as in the original toolkit.
    """
    return base * 0.5 * (1.0 + math.cos(math.pi * max(epoch - 1, 0) / n_epochs))


@dataclass(frozen=True, eq=False)
class Trained:
    """Trained classifiers of S seeds x K trials."""

    learner: Classifiers | Mlp  # their parameters, valid until the next training with the engine
    diverged: list[list[bool]]  # whether a parameter is no longer finite, (S, K)
    top1: list[list[float]]  # accuracies of a search on the held-out rows, (S, K), in percent; 0 if diverged
    logs: list[Logs]  # values per epoch of each seed of a final training
    predictions: Tensor | None  # classes of the test set after a final training, int64 (S, m)
    seconds: float  # per classifier


class Engine:
    """Training and scoring of classifiers on one device.

    Products of a training have the ``precision``, a value of ``CLF.PRECISION``. Weights, momentum, softmax,
    the scores of trials and of the last epoch are float32: ranking rounded logits would move accuracies.
    """

    def __init__(self, device: torch.device, precision: str = "fp32") -> None:
        self.device, self.precision = device, resolve_precision(precision, device)
        self.dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        self._kept: tuple[Any, Classifiers | None] = None, None

    def lockstep(
        self, train: FeatureSet, test: FeatureSet, settings: Settings, *, n_classes: int, n_seeds: int
    ) -> Lockstep:
        """Return what is trained in lockstep of ``n_seeds``; an error if a single classifier does not fit."""
        n_trials, sizes = max(1, min(N_STARTUP_TRIALS, settings.n_trials)), [train.x.shape[1], n_classes]
        if settings.classifier != "logreg":  # its products take far longer than gathering its batches
            n_seeds, n_trials, sizes = 1, 1, settings.layer_sizes(*sizes)
        available = memory.available_memory()
        room = on_host = _USABLE * (math.inf if available is None else available)
        if self.device.type == "cuda":
            room = _USABLE * torch.cuda.get_device_properties(self.device).total_memory
        spare, stored = min(_SCORES, room / 5), float(train.x.nbytes + test.x.nbytes)
        copied = 2.0 * (train.x.numel() + test.x.numel()) if self.dtype != torch.float32 else 0.0
        if self.device.type == "cpu":  # features are in memory already
            stored = spare = 0.0
            n_seeds = min(n_seeds, max(1, CPU_COLUMNS // n_classes))
            n_trials = max(1, min(n_trials, CPU_COLUMNS // (n_classes * n_seeds)))

        def needed(s: int, k: int) -> float:
            # Weight, momentum, gradient (once more in a graph) and bfloat16 copy; rows, logits and gradients.
            of_weights = s * k * 18.0 * sum((a + 1) * b for a, b in itertools.pairwise(sizes))
            of_row = 16.0 * k * sum(sizes[1:]) + 4.0 * sizes[0]
            return of_weights + s * min(settings.batch_size, len(train)) * of_row + spare

        numbers = [(s, n_trials) for s in range(n_seeds, 0, -1)]
        options = [Lockstep(*one, copy=copy) for one in numbers for copy in (True, False)]
        options += [Lockstep(*one, resident=False, copy=copied <= on_host) for one in [*numbers, (1, 1)]]
        for one in options:
            if needed(one.seeds, one.trials) + one.resident * (stored + one.copy * copied) <= room:
                return one
        raise CogError(
            f"CLF.TYPE {settings.classifier} with {n_classes} classes and {sizes[0]} dimensions takes "
            f"{needed(1, 1) / 1e9:.3g} GB to train, and {room / 1e9:.3g} GB can be used on {self.device}; "
            "lower CLF.BATCH_SIZE or CLF.MLP_HIDDEN, or run this where there is more"
        )

    def prepare(self, train: FeatureSet, test: FeatureSet, settings: Settings, *, n_seeds: int = 1) -> Data:
        """Return features ``(n, d)`` and ``(m, d)`` as a data set on the device, for runs of ``n_seeds``."""
        if mixed := feature_files.check_pair(train, test):
            logger.warning("%s", mixed)
        if most := settings.max_per_class:  # paper supplement B.1
            rows, n_short = sampling.cap_per_class(train.y, most)
            counts = most, len(rows), len(train), n_short
            logger.info("at most %d training images per class: %d of %d; %d classes have fewer", *counts)
            norms = None if train.norms is None else train.norms[rows]
            train = dataclasses.replace(train, x=train.x[rows], y=train.y[rows], norms=norms)
        y, test_y, labels = sampling.to_consecutive_labels(train.y, test.y)
        together = self.lockstep(train, test, settings, n_classes=len(labels), n_seeds=n_seeds)
        facts = train.name, *train.x.shape, len(test), len(labels), self.device, self.precision, together
        logger.info("%s: %d x %d training and %d test features, %d classes, on %s in %s, %s", *facts)
        how, place = {"resident": together.resident, "copy": together.copy}, self.device
        of_train, of_test = (Features(one, place, self.dtype, **how) for one in (train, test))
        return Data(of_train, y, y.to(place), of_test, test_y.to(place), labels, len(labels), together)

    @torch.no_grad()
    def fit(
        self,
        data: Data,
        runs: Sequence[Settings],
        rows: Tensor,
        pairs: Sequence[Sequence[tuple[float, float]]],
        *,
        val_rows: Tensor | None = None,
        on_epoch: Callable[[int, list[Logs]], None] = lambda epoch, logs: None,
        unfinished: Unfinished | None = None,
    ) -> Trained:
        """Train S x K classifiers in lockstep; those of a seed have the same batches and initial weights.

        A seed has settings (``runs``, which differ in the seed alone), int64 ``rows`` ``(S, n)`` to train on,
        and K pairs of learning rate and weight decay. The trials of a search are scored on ``val_rows``.
        Without these, it is a final training (K = 1): the test set is scored after every epoch, and
        ``on_epoch`` gets its number and the logs of each seed. The state is saved in ``unfinished``.
        """
        n, n_epochs, phase = rows.shape[1], runs[0].n_epochs, "final" if val_rows is None else "search"
        seeds = [torch_seed(run.seed, "order", phase=phase, n_shot=run.n_shot) for run in runs]
        key = {"pairs": [[list(pair) for pair in of_seed] for of_seed in pairs], "orders": seeds}
        unfinished = unfinished or Unfinished(None, {"seeds": []})
        saved: dict[str, Any] = {"epochs": 0, "seconds": 0.0, "logs": [metrics.new_logs() for _ in runs]}
        saved |= unfinished.restore(key)
        logs, start, predictions = saved["logs"], time.monotonic() - saved["seconds"], None
        base, wd = torch.tensor(pairs, dtype=torch.float64).unbind(-1)
        factors = torch.tensor([learning_rate(1.0, e, n_epochs) for e in range(n_epochs)], dtype=base.dtype)
        with products(self.precision):
            learner = self._new(data, runs, n, wd, phase)
            if saved["epochs"]:
                learner.resume(saved["values"])
            alive = finite = learner.is_finite()
            rows = rows.to(data.train.place)
            rates = (factors[:, None, None] * base).float().to(self.device)
            orders = _draw_orders(seeds, n, range(saved["epochs"], n_epochs), pinned=rows.is_cuda)
            order = next(orders)
            for epoch in range(saved["epochs"], n_epochs):
                ordered = rows.gather(1, order.to(rows.device, non_blocking=True))
                learner.epoch(ordered, data.targets[ordered.to(self.device)], rates[epoch])
                order = next(orders, order)  # drawn while the device works
                last = epoch + 1 == n_epochs
                if last or val_rows is None or epoch % 8 == 0:  # epochs that a device may have before it
                    alive, finite = finite, learner.is_finite()  # waits for the device
                last = last or not any(map(any, finite))
                if learner.sums is not None:
                    scored = data.test, data.test_y, torch.arange(len(data.test_y)), learner.logits
                    # The last epoch is the result; the others are a curve, at the precision of the training.
                    with products("fp32" if last else self.precision):
                        tested, predictions = metrics.evaluate(*scored, exact=last)
                    for s, sums in enumerate(learner.sums.tolist()):
                        if alive[s][0]:  # the logs of a diverged training end with its last epoch
                            # The rate is set after the epoch, as in the original toolkit.
                            rate = learning_rate(pairs[s][0][0], epoch + 1, n_epochs)
                            of_test = metrics.to_scores(tested[s], len(data.test_y))
                            metrics.append_epoch(logs[s], metrics.to_scores(sums, n), of_test, rate)
                    on_epoch(epoch, logs)
                if last:
                    break
                state = {"epochs": epoch + 1, "values": learner.state, "logs": logs}
                unfinished.offer(key, state | {"seconds": time.monotonic() - start})
        top1, diverged = [], [[not fine for fine in of_seed] for of_seed in finite]
        with products("fp32"):
            for s, of_seed in enumerate([] if val_rows is None else val_rows):
                logits_of = functools.partial(learner.logits, seed=s)
                sums, _ = metrics.evaluate(data.train, data.targets, of_seed, logits_of)
                right = zip(sums, finite[s], strict=True)
                top1.append([100 * hits / len(of_seed) if fine else 0.0 for (_, hits, _), fine in right])
        seconds = (time.monotonic() - start) / wd.numel()
        return Trained(learner, diverged, top1, logs, predictions, seconds)

    def _new(self, data: Data, runs: Sequence[Settings], n: int, wd: Tensor, phase: str) -> Classifiers | Mlp:
        """Return classifiers at the start of a training; buffers, graphs and compiled code are used again."""
        settings, seeds = runs[0], [torch_seed(run.seed, "init", phase=phase) for run in runs]
        sizes = settings.layer_sizes(data.train.dim, data.n_classes)
        batch, record = min(settings.batch_size, n), phase == "final"
        if settings.classifier != "logreg":
            return Mlp(data.train, initial_layers(sizes, seeds[0]), float(wd), settings, batch, record)
        options = batch, settings.momentum, record
        key, (known, learner) = (data, *wd.shape, *options), self._kept
        if learner is None or key != known:
            learner, self._kept = None, (None, None)  # frees the memory
            learner = Classifiers(data.train, (*wd.shape, *reversed(sizes)), *options)
            self._kept = key, learner
        learner.begin(*_starts(self.device, *sizes, *seeds), wd)
        return learner


@functools.lru_cache(maxsize=2)  # all trials of a search have the same start
def _starts(device: torch.device, dim: int, n_classes: int, *seeds: int) -> Layer:
    """Return the initial weights ``(S, C, d)`` and biases ``(S, C)`` of seeds."""
    layers = [initial_layers([dim, n_classes], seed)[0] for seed in seeds]
    weight, bias = (torch.stack(of_seeds).to(device) for of_seeds in zip(*layers, strict=True))
    return weight, bias


def _draw_orders(seeds: list[int], n: int, epochs: range, *, pinned: bool) -> Iterator[Tensor]:
    """Yield the order of the samples of each seed in epochs, int64 ``(S, n)``; earlier ones are drawn."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    with ThreadPoolExecutor(len(generators)) as pool:
        several = pool.map if pinned else map  # a GPU would wait for five orders of a million rows
        for epoch in range(epochs.stop):
            orders = torch.empty(len(seeds), n, dtype=torch.int64, pin_memory=pinned)
            list(several(lambda order, g: torch.randperm(n, generator=g, out=order), orders, generators))
            if epoch >= epochs.start:
                yield orders
