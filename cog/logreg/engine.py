"""The classifier engine: trains and scores classifiers over one copy of the features, on any device.

Classifiers of several seeds, and trials of a seed that do not wait for each other, are trained in lockstep
(:mod:`cog.logreg.step`). Products of the training have the precision ``CLF.PRECISION``: ``fp32`` (TF32 off), ``tf32``
(NVIDIA GPUs), or ``bf16`` (sums in float32). Weights, momentum, softmax, the scores of trials and of the last epoch
are float32 in every mode: ranking rounded logits would move accuracies.

What is trained in lockstep depends on settings, shapes and the size of the memory alone, so the same command gives
the same bits on the same machine. Last bits differ between devices, and between a seed alone and in lockstep.
"""

from __future__ import annotations

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

from cog.errors import CogError
from cog.features import feature_files, sampling
from cog.features.feature_files import FeatureSet
from cog.logreg import metrics
from cog.logreg.features import Data, Features, Lockstep
from cog.logreg.metrics import Logs
from cog.logreg.mlp import Layer, Mlp, initial_layers
from cog.logreg.search import N_STARTUP_TRIALS
from cog.logreg.settings import Settings
from cog.logreg.step import Classifiers
from cog.logreg.unfinished import Unfinished
from cog.runtime import memory
from cog.runtime.device import exact_float32, require_precision
from cog.runtime.seeds import cpu_generator, torch_seed

logger = logging.getLogger(__name__)

#: Columns (classifiers x classes) trained in lockstep on a CPU: the weights of more exceed the cache.
CPU_COLUMNS = 1000

#: Epochs that a device may have before it.
_EPOCHS_AHEAD = 8

#: Share of the memory that may be used, and bytes for the scores of a chunk on a GPU.
_USABLE, _SCORES = 0.875, 2.0e9


@functools.cache
def cpu_has_bfloat16() -> bool:
    """Return whether this CPU has instructions (AVX512-BF16 or AMX) that make bfloat16 products faster."""
    with contextlib.suppress(OSError):
        flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        return flags is not None and bool({"avx512_bf16", "amx_bf16"} & set(flags[1].split()))
    return False


def resolve_precision(name: str, device: torch.device) -> str:
    """Return ``fp32``, ``tf32`` or ``bf16`` for ``CLF.PRECISION``; ``auto`` depends on the kind of device alone."""
    if name != "auto":
        require_precision(device, "CLF.PRECISION", name)
        return name
    if device.type == "cpu":
        return "bf16" if cpu_has_bfloat16() else "fp32"
    ampere = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "tf32" if ampere else "fp32"


@contextlib.contextmanager
def products(precision: str) -> Iterator[None]:
    """Multiply float32 matrices in ``fp32`` or ``tf32`` in the block, and sum up bfloat16 products in float32.

    By default, cuBLAS may sum up parts of bfloat16 products in bfloat16.
    """
    with exact_float32(tf32=precision == "tf32"):
        matmul = torch.backends.cuda.matmul
        saved = matmul.allow_bf16_reduced_precision_reduction
        matmul.allow_bf16_reduced_precision_reduction = False
        try:
            yield
        finally:
            matmul.allow_bf16_reduced_precision_reduction = saved


def learning_rate(base: float, epoch: int, n_epochs: int) -> float:
    """Return the learning rate during an epoch.

    The rate follows a cosine decay that is stepped after each epoch with the index of the finished epoch, as in the
    original toolkit: epochs 0 and 1 both run at the base rate, and the last epoch runs above zero.
    """
    return base * 0.5 * (1.0 + math.cos(math.pi * max(epoch - 1, 0) / n_epochs))


@dataclass(frozen=True, eq=False)
class Trained:
    """Trained classifiers.

    Attributes:
        learner: their parameters, valid until the next training with the engine.
        diverged: whether a parameter is no longer finite, ``(S, K)``.
        seconds: duration in seconds per classifier.
        logs: values per epoch of each seed, and ...
        predictions: ... classes predicted for the test set after the last epoch, int64 ``(S, m)``, of a final training.
    """

    learner: Classifiers | Mlp
    diverged: list[list[bool]]
    seconds: float
    logs: list[Logs]
    predictions: torch.Tensor | None


class Engine:
    """Training and scoring of classifiers on one device.

    Args:
        device: device of the computation.
        precision: a value of ``CLF.PRECISION``; :attr:`precision` is what it means on the device.
        fused: form of the steps, see :class:`~cog.logreg.step.Classifiers`; None: that of the device.

    Raises:
        CogError: a precision that the device does not have.
    """

    def __init__(self, device: torch.device, precision: str = "fp32", *, fused: bool | None = None) -> None:
        self.device, self.precision, self._fused = device, resolve_precision(precision, device), fused
        self.dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        self._kept: tuple[Any, Classifiers | None] = None, None

    def lockstep(
        self, train: FeatureSet, test: FeatureSet, settings: Settings, *, n_classes: int, n_seeds: int
    ) -> Lockstep:
        """Return what is trained in lockstep: a function of settings, shapes and the size of the memory alone.

        Raises:
            CogError: when a single classifier does not fit.
        """
        n_trials, sizes = max(1, min(N_STARTUP_TRIALS, settings.n_trials)), [train.x.shape[1], n_classes]
        if settings.is_mlp:  # its products take far longer than gathering its batches
            n_seeds, n_trials, sizes = 1, 1, settings.layer_sizes(*sizes)
        n_weights = sum((a + 1) * b for a, b in itertools.pairwise(sizes))
        room = on_host = _USABLE * (memory.available_memory() or math.inf)
        if self.device.type == "cuda":
            room = _USABLE * torch.cuda.get_device_properties(self.device).total_memory
        stored = float(sum(one.x.numel() * one.x.element_size() for one in (train, test)))
        copied = 2.0 * (train.x.numel() + test.x.numel()) if self.dtype != torch.float32 else 0.0

        def needed(s: int, k: int) -> float:
            # Weight, momentum, gradient (once more in a graph) and bfloat16 copy; rows, logits and gradients.
            of_batch = s * min(settings.batch_size, len(train)) * (16.0 * k * sum(sizes[1:]) + 4.0 * sizes[0])
            return s * k * n_weights * 18.0 + of_batch

        if self.device.type == "cpu":  # features are in memory already, so they do not count
            s = min(n_seeds, max(1, CPU_COLUMNS // n_classes))
            k = max(1, min(n_trials, CPU_COLUMNS // (n_classes * s)))
            found, spare = Lockstep(s, k, copy=copied + needed(s, k) <= room), 0.0
        else:
            spare = min(_SCORES, 0.2 * room)
            most = range(n_seeds, 0, -1)
            options = [(s, n_trials, place) for s in most for place in (stored + copied, stored)]
            options += [(s, n_trials, 0.0) for s in most]
            fitting = (one for one in options if needed(*one[:2]) + one[2] + spare <= room)
            s, k, place = next(fitting, (1, 1, 0.0))
            found = Lockstep(s, k, place > 0, place > stored or (not place and copied <= on_host))
        if needed(s, k) + spare > room:
            raise CogError(
                f"CLF.TYPE {settings.classifier} with {n_classes} classes and {sizes[0]} dimensions takes "
                f"{needed(1, 1) / 1e9:.3g} GB to train, and {room / 1e9:.3g} GB can be used on {self.device}; "
                f"lower {'CLF.MLP_HIDDEN or CLF.MLP_LAYERS' if settings.is_mlp else 'CLF.BATCH_SIZE'}"
            )
        return found

    def prepare(self, train: FeatureSet, test: FeatureSet, settings: Settings, *, n_seeds: int = 1) -> Data:
        """Return features as a data set on the device.

        Args:
            train: training features ``(n, d)``, normalized as the settings say.
            test: test features ``(m, d)``.
            settings: settings of the runs, which differ in seed and shots only.
            n_seeds: number of seeds.

        Raises:
            CogError: features that do not fit together; too little memory.
        """
        if mixed := feature_files.check_pair(train, test):
            logger.warning("%s", mixed)
        if most := settings.max_per_class:  # paper supplement B.1
            rows, n_short = sampling.cap_per_class(train.y, most)
            logger.info("at most %d training images per class: %d of %d", most, len(rows), len(train))
            if n_short:
                logger.warning("%d classes have fewer than CLF.MAX_PER_CLASS %d images", n_short, most)
            norms = None if train.norms is None else train.norms[rows]
            train = dataclasses.replace(train, x=train.x[rows], y=train.y[rows], norms=norms)
        y, test_y, labels = sampling.to_consecutive_labels(train.y, test.y)
        together = self.lockstep(train, test, settings, n_classes=len(labels), n_seeds=n_seeds)
        facts = train.name, *train.x.shape, len(test), len(labels), self.device, self.precision
        logger.info("%s: %d x %d training and %d test features, %d classes, on %s in %s", *facts)
        if not together.resident:
            logger.info("too large for %s, sent there batch by batch", self.device)
        on_device, on_test = (
            Features(one, self.device, self.dtype, resident=together.resident, copy=together.copy)
            for one in (train, test)
        )
        return Data(on_device, y, y.to(self.device), on_test, test_y.to(self.device), labels, together)

    @torch.no_grad()
    def fit(
        self,
        data: Data,
        runs: Sequence[Settings],
        rows: torch.Tensor,
        pairs: Sequence[Sequence[tuple[float, float]]],
        *,
        stage: str,
        on_epoch: Callable[[int, list[Logs]], None] | None = None,
        unfinished: Unfinished | None = None,
    ) -> Trained:
        """Train S x K classifiers in lockstep: those of a seed see the same batches and start from the same weights.

        Args:
            data: the data set.
            runs: settings of the S runs, which differ in the seed alone.
            rows: rows to train on, int64 ``(S, n)``.
            pairs: learning rate and weight decay (l2 penalty on weights and biases) of each classifier, ``(S, K)``.
            stage: ``search``, or ``final`` (K = 1), in which the test set is scored after every epoch.
            on_epoch: function called after an epoch of the final training, with its number and the logs of each seed.
            unfinished: where the training is saved; None: nowhere.

        Raises:
            Interrupted: when the process was asked to end; the training is saved then.
        """
        record, n, n_epochs = stage == "final", rows.shape[1], runs[0].n_epochs
        seeds = [torch_seed(run.seed, "order", stage=stage, n_shot=run.n_shot) for run in runs]
        key = {"pairs": [[list(pair) for pair in of_seed] for of_seed in pairs], "orders": seeds}
        unfinished = unfinished or Unfinished(None, {"seeds": []})
        saved = unfinished.restore(key) or {
            "epochs": 0,
            "seconds": 0.0,
            "logs": [metrics.new_logs() for _ in runs],
        }
        logs, start, predictions = saved["logs"], time.monotonic() - saved["seconds"], None
        base, wd = torch.tensor(pairs, dtype=torch.float64).unbind(-1)
        factors = torch.tensor(
            [learning_rate(1.0, e, n_epochs) for e in range(n_epochs)], dtype=torch.float64
        )
        with products(self.precision):
            learner = self._begin(data, runs, n, wd, stage)
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
                if last or record or epoch % _EPOCHS_AHEAD == 0:
                    alive, finite = finite, learner.is_finite()  # waits for the device
                last = last or not any(map(any, finite))
                if learner.sums is not None:
                    # The last epoch is the result; the others are a curve, at the precision of the training.
                    with products("fp32" if last else self.precision):
                        scored = (data.test, data.test_y, torch.arange(len(data.test_y)), learner.logits)
                        tested, predictions = metrics.evaluate(
                            *scored, (len(runs), data.n_classes), exact=last
                        )
                    for s, sums in enumerate(learner.sums.tolist()):
                        if alive[s][0]:  # the logs of a diverged training end with its last epoch
                            # The rate is set after the epoch, as in the original toolkit.
                            rate = learning_rate(pairs[s][0][0], epoch + 1, n_epochs)
                            of_test = metrics.to_scores(tested[s], len(data.test_y))
                            metrics.append_epoch(logs[s], metrics.to_scores(sums, n), of_test, rate)
                    if on_epoch is not None:
                        on_epoch(epoch, logs)
                if last:
                    break
                state = {"epochs": epoch + 1, "seconds": time.monotonic() - start, "values": learner.state}
                unfinished.offer(key, state | {"logs": logs})
        seconds = (time.monotonic() - start) / sum(map(len, pairs))
        return Trained(learner, [[not fine for fine in each] for each in finite], seconds, logs, predictions)

    @torch.no_grad()
    def validate(self, data: Data, rows: torch.Tensor, trained: Trained) -> list[list[float]]:
        """Return the top-1 accuracies ``(S, K)`` on training ``rows`` ``(S, m)``, in percent, from float32 features."""
        shape, top1 = (len(trained.diverged[0]), data.n_classes), []
        with products("fp32"):
            for s, of_seed in enumerate(rows):
                logits_of = functools.partial(trained.learner.logits, seed=s)
                sums, _ = metrics.evaluate(data.train, data.targets, of_seed, logits_of, shape)
                top1.append([100 * hits / len(of_seed) for _, hits, _ in sums])
        return top1

    def _begin(
        self, data: Data, runs: Sequence[Settings], n: int, wd: torch.Tensor, stage: str
    ) -> Classifiers | Mlp:
        """Return classifiers at the start of their training; buffers, graphs and compiled code are used again."""
        settings = runs[0]
        seeds = [torch_seed(run.seed, "init", stage=stage) for run in runs]
        sizes = settings.layer_sizes(data.train.dim, data.n_classes)
        options: dict[str, Any] = {"batch": min(settings.batch_size, n), "momentum": settings.momentum}
        options["record"] = stage == "final"
        if settings.is_mlp:
            layers = initial_layers(sizes, seeds[0])
            return Mlp(data.train, layers, float(wd), relu=settings.has_relu, **options)
        shape = (*wd.shape, data.n_classes, data.train.dim)
        key, learner = self._kept
        if learner is None or key != (shape, options, data):
            learner, self._kept = None, (None, None)  # frees the memory
            learner = Classifiers(data.train, shape, fused=self._fused, **options)
            self._kept = (shape, options, data), learner
        learner.begin(*_starts(self.device, *sizes, *seeds), wd)
        return learner


@functools.lru_cache(maxsize=2)  # all trials of a search have the same start
def _starts(device: torch.device, dim: int, n_classes: int, *seeds: int) -> Layer:
    """Return the initial weights ``(S, C, d)`` and biases ``(S, C)`` of seeds."""
    layers = [initial_layers([dim, n_classes], seed)[0] for seed in seeds]
    weight, bias = (torch.stack(of_seeds).to(device) for of_seeds in zip(*layers, strict=True))
    return weight, bias


def _draw_orders(seeds: list[int], n: int, epochs: range, *, pinned: bool) -> Iterator[torch.Tensor]:
    """Yield the order of the samples of each seed in the epochs, int64 ``(S, n)``; earlier ones are drawn, too."""
    generators = [cpu_generator(seed) for seed in seeds]
    with ThreadPoolExecutor(len(generators)) as pool:
        draw = pool.map if pinned else map  # a GPU would wait for five orders of a million rows
        for epoch in range(epochs.stop):
            orders = torch.empty(len(seeds), n, dtype=torch.int64, pin_memory=pinned)
            list(draw(lambda order, g: torch.randperm(n, generator=g, out=order), orders, generators))
            if epoch >= epochs.start:
                yield orders
