"""The classifier engine: trains and scores classifiers over one copy of the features, on any device.

Classifiers of several seeds, and trials of a seed that do not wait for each other, are trained in lockstep
(:mod:`cog.logreg.step`), with products in the precision ``CLF.PRECISION``:

=========  ====================================================================================================
``fp32``   full float32 everywhere (TF32 off)
``tf32``   NVIDIA GPUs: operands are rounded to TF32 (10-bit mantissa)
``bf16``   bfloat16 operands, sums in float32
``auto``   the fastest of these that moves accuracies by less than another seed does (docs/protocol.md,
           "Precision"): ``bf16`` on CPUs with instructions for it; on GPUs ``tf32``
=========  ====================================================================================================

Weights, momentum, softmax, the scores of trials and of the last epoch are float32 in every mode: ranking rounded logits
would move accuracies. Test scores of earlier epochs are a curve and no result, and have the precision of the training.

What is trained in lockstep depends on settings, shapes and the size of the memory alone, so the same command gives the
same bits on the same machine. The last bits differ between devices, and between a seed alone and in lockstep.
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
from cog.logreg.features import Data, Features, Lockstep, cap
from cog.logreg.metrics import Logs
from cog.logreg.mlp import Layer, Mlp, TrainedClassifier, initial_layers
from cog.logreg.search import N_STARTUP_TRIALS
from cog.logreg.settings import Settings
from cog.logreg.step import Classifiers
from cog.logreg.unfinished import Unfinished
from cog.runtime import memory
from cog.runtime.device import exact_float32, require_precision
from cog.runtime.log import size
from cog.runtime.seeds import cpu_generator, torch_seed

logger = logging.getLogger(__name__)

#: Function called after a recorded epoch with its number and the logs of each seed.
OnEpoch = Callable[[int, list[Logs]], None]

#: Columns (classifiers x classes) trained in lockstep on a CPU: the weights of more exceed the cache.
CPU_COLUMNS = 1000

#: Epochs that a device may have before it.
_EPOCHS_AHEAD = 8

#: Share of the memory that may be used, and bytes for the scores of a chunk on a GPU.
_USABLE, _SCORES = 0.875, 2.0e9


@functools.cache
def cpu_has_bfloat16() -> bool:
    """Return whether this CPU has instructions for bfloat16 products (AVX512-BF16 or AMX), which make them faster."""
    with contextlib.suppress(OSError):
        flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        return flags is not None and bool({"avx512_bf16", "amx_bf16"} & set(flags[1].split()))
    return False


def resolve_precision(name: str, device: torch.device) -> str:
    """Return ``fp32``, ``tf32`` or ``bf16`` for ``CLF.PRECISION`` on a device.

    ``auto`` depends on the kind of device alone, so that the same machine always gives the same result.

    Raises:
        CogError: a precision that the device does not have.
    """
    if name == "auto":
        if device.type == "cpu":
            return "bf16" if cpu_has_bfloat16() else "fp32"
        ampere = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        return "tf32" if ampere else "fp32"
    require_precision(device, "CLF.PRECISION", name)
    return name


@contextlib.contextmanager
def products(device: torch.device, precision: str) -> Iterator[None]:
    """Multiply float32 matrices in ``fp32`` or ``tf32`` in the block, and sum up bfloat16 products in float32.

    By default, cuBLAS may sum up parts of bfloat16 products in bfloat16.
    """
    with exact_float32():
        if device.type != "cuda":
            yield
            return
        matmul = torch.backends.cuda.matmul
        saved = matmul.allow_bf16_reduced_precision_reduction
        matmul.allow_bf16_reduced_precision_reduction = False
        if precision == "tf32":
            torch.set_float32_matmul_precision("high")  # exact_float32 restores the setting
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
        logs: values per epoch of each seed; None unless they were recorded.
        predictions: classes predicted for the test set after the last epoch, int64 ``(S, m)``; None without logs.
    """

    learner: Classifiers | Mlp
    diverged: list[list[bool]]
    seconds: float
    logs: list[Logs] | None
    predictions: torch.Tensor | None

    def classifier(self, s: int, k: int = 0, *, relu: bool = True) -> TrainedClassifier:
        """Return a copy of one classifier."""
        layers: list[Layer] = [(w.clone(), b.clone()) for w, b in self.learner.layers(s, k)]
        logs = None if self.logs is None else self.logs[s]
        predictions = None if self.predictions is None else self.predictions[s]
        return TrainedClassifier(layers, relu, self.diverged[s][k], logs, predictions, self.seconds)


class Engine:
    """Training and scoring of classifiers on one device.

    Args:
        device: device of the computation.
        precision: a value of ``CLF.PRECISION``.
        fused: form of the steps, see :class:`~cog.logreg.step.Classifiers`; None: that of the device.

    Attributes:
        device: the device, with an index on CUDA.
        precision: ``fp32``, ``tf32`` or ``bf16``.

    Raises:
        CogError: a precision that the device does not have.
    """

    def __init__(self, device: torch.device, precision: str = "fp32", *, fused: bool | None = None) -> None:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.device, self.precision, self._fused = device, resolve_precision(precision, device), fused
        self.dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        self._kept: tuple[Any, Classifiers | Mlp] | None = None

    def lockstep(
        self,
        train: FeatureSet,
        test: FeatureSet,
        settings: Settings,
        *,
        n_classes: int,
        n_seeds: int,
        total: float | None = None,
    ) -> Lockstep:
        """Return what is trained in lockstep, a function of settings, shapes and the size of the memory alone.

        ``total``: bytes of memory; None: those of a GPU, else those available to a process on the host.

        Raises:
            CogError: when a single classifier does not fit.
        """
        n_trials, dim = max(1, min(N_STARTUP_TRIALS, settings.n_trials)), train.x.shape[1]
        batch, low = min(settings.batch_size, len(train)), self.dtype != torch.float32
        on_host = _USABLE * (memory.available_memory() or math.inf)
        if total is None and self.device.type == "cuda":
            total = float(torch.cuda.get_device_properties(self.device).total_memory)
        room = on_host if total is None else _USABLE * total
        stored = float(sum(one.x.numel() * one.x.element_size() for one in (train, test)))
        copied = 2.0 * (train.x.numel() + test.x.numel()) if low else 0.0

        def needed(s: int, k: int) -> float:
            if settings.is_mlp:
                sizes = settings.layer_sizes(dim, n_classes)
                return sum((16.0 * (a + 1) + 8.0 * batch) * b for a, b in itertools.pairwise(sizes))
            # Weight, momentum and gradient (once more in a graph), and the weight in bfloat16; logits and gradients.
            of_weights = s * k * n_classes * dim * (18.0 if low else 16.0)
            return of_weights + s * batch * (k * n_classes * (8.0 if low else 16.0) + 4.0 * dim)

        if self.device.type == "cpu":  # features are in memory already, so they do not count
            s = min(n_seeds, max(1, CPU_COLUMNS // n_classes))
            k = max(1, min(n_trials, CPU_COLUMNS // (n_classes * s)))
            found, spare = Lockstep(s, k, copy=copied + needed(s, k) <= room), 0.0
        else:
            spare = min(_SCORES, 0.2 * room)
            most, seeds = n_trials, range(n_seeds, 0, -1)
            options = [(s, most, place) for s in seeds for place in (stored + copied, stored)]
            options += [*((s, most, 0.0) for s in seeds), *((1, k, 0.0) for k in range(most, 0, -1))]
            fitting = (one for one in options if needed(*one[:2]) + one[2] + spare <= room)
            s, k, place = next(fitting, (1, 1, 0.0))
            found = Lockstep(s, k, place > 0, place > stored or (not place and copied <= on_host))
        if needed(s, k) + spare > room:
            raise CogError(
                f"CLF.TYPE {settings.classifier} with {n_classes} classes and {dim} dimensions takes "
                f"{size(needed(1, 1))} to train, and {size(room)} of memory can be used on {self.device}; lower "
                f"{'CLF.MLP_HIDDEN or CLF.MLP_LAYERS' if settings.is_mlp else 'CLF.BATCH_SIZE'}, or run this where "
                "there is more"
            )
        # The products of one network take far longer than gathering its batches.
        return dataclasses.replace(found, seeds=1, trials=1) if settings.is_mlp else found

    def prepare(
        self,
        train: FeatureSet,
        test: FeatureSet,
        settings: Settings,
        *,
        n_seeds: int = 1,
        place: Lockstep | None = None,
    ) -> Data:
        """Return features as a data set on the device.

        Args:
            train: training features, float32 ``(n, d)`` or rounded, normalized or not.
            test: test features ``(m, d)``.
            settings: settings of the runs, which differ in seed and shots only.
            n_seeds: number of seeds.
            place: value of :meth:`lockstep`; None: it decides.

        Raises:
            CogError: features that do not fit together; too little memory.
        """
        if mixed := feature_files.check_pair(train, test):
            logger.warning("%s", mixed)
        train, record = cap(train, settings.max_per_class)
        y, test_y, labels = sampling.to_consecutive_labels(train.y, test.y)
        together = place or self.lockstep(train, test, settings, n_classes=len(labels), n_seeds=n_seeds)
        logger.info(
            "%s: %d x %d training and %d test features, %d classes, on %s in %s",
            train.name,
            *train.x.shape,
            len(test),
            len(labels),
            self.device,
            self.precision,
        )
        if not together.resident:
            logger.info("too large for %s, sent there batch by batch", self.device)
        on_device, on_test = (
            Features(one, self.device, self.dtype, resident=together.resident, copy=together.copy)
            for one in (train, test)
        )
        targets, test_y = y.to(self.device), test_y.to(self.device)
        return Data(on_device, y, targets, on_test, test_y, labels, record, together)

    @torch.no_grad()
    def fit(
        self,
        data: Data,
        runs: Sequence[Settings],
        rows: torch.Tensor,
        pairs: list[list[tuple[float, float]]],
        *,
        stage: str,
        on_epoch: OnEpoch | None = None,
        unfinished: Unfinished | None = None,
    ) -> Trained:
        """Train S x K classifiers in lockstep: those of a seed see the same batches and start from the same weights.

        Args:
            data: the data set.
            runs: settings of the S runs, which differ in the seed alone.
            rows: rows to train on, int64 ``(S, n)``.
            pairs: of each seed, base learning rate and weight decay (l2 penalty on weights and biases, as in
                ``torch.optim.SGD``) of its K classifiers.
            stage: of the random streams, ``search`` or ``final``. In the final training, with K = 1, the test set is
                scored after every epoch.
            on_epoch: function called after every recorded epoch, except for epochs of an earlier session.
            unfinished: where the training is saved; None: nowhere.

        Raises:
            Interrupted: when the process was asked to end; the training is saved then.
        """
        record = stage == "final"
        seeds = [torch_seed(run.seed, "order", stage=stage, n_shot=run.n_shot) for run in runs]
        key: dict[str, Any] = {"pairs": [[list(pair) for pair in of_seed] for of_seed in pairs]}
        key |= {"record": record, "orders": seeds}
        unfinished = unfinished or Unfinished(None, {"seeds": []})
        saved = unfinished.restore(key) or {"epochs": 0, "seconds": 0.0}
        first, n_epochs, start = saved["epochs"], runs[0].n_epochs, time.monotonic() - saved["seconds"]
        n, predictions = rows.shape[1], None
        logs = saved.get("logs") or [metrics.new_logs() for _ in runs]
        with products(self.device, self.precision):
            learner = self._begin(data, runs, n, pairs, stage)
            if first:
                learner.resume(saved["values"])
            alive = finite = learner.is_finite()
            rows = rows.to(data.train.place)
            rates = _rates(pairs, n_epochs).to(self.device)
            orders = _draw_orders(seeds, n, first, n_epochs, pinned=rows.is_cuda)
            order = next(orders)
            for epoch in range(first, n_epochs):
                ordered = rows.gather(1, order.to(rows.device, non_blocking=True))
                learner.epoch(ordered, data.targets[ordered.to(self.device)], rates[epoch])
                order = next(orders, order)  # drawn while the device works
                last = epoch + 1 == n_epochs
                if last or record or epoch % _EPOCHS_AHEAD == 0:
                    alive, finite = finite, learner.is_finite()  # waits for the device
                last = last or not any(map(any, finite))
                if learner.sums is not None:
                    # The last epoch is the result; the others are a curve, at the precision of the training.
                    with products(self.device, "fp32" if last else self.precision):
                        scores, predictions = metrics.evaluate(
                            data.test, data.test_y, learner.logits, (len(logs), data.n_classes), exact=last
                        )
                    sums = learner.sums.tolist()
                    for s, ((lr, _),) in enumerate(pairs):
                        if alive[s][0]:  # the logs of a diverged training end with its last epoch
                            rate = learning_rate(
                                lr, epoch + 1, n_epochs
                            )  # set after the epoch, as the original
                            metrics.append_epoch(logs[s], metrics.to_scores(sums[s], n), scores[s], rate)
                    if on_epoch is not None:
                        on_epoch(epoch, logs)
                if last:
                    break
                state = {"epochs": epoch + 1, "seconds": time.monotonic() - start, "values": learner.state}
                unfinished.offer(key, state | {"logs": logs if record else None})
        seconds = (time.monotonic() - start) / sum(map(len, pairs))
        diverged = [[not fine for fine in of_seed] for of_seed in finite]
        return Trained(learner, diverged, seconds, logs if record else None, predictions)

    @torch.no_grad()
    def validate(self, data: Data, rows: torch.Tensor, trained: Trained) -> list[list[float]]:
        """Return the top-1 accuracies ``(S, K)`` on training ``rows`` ``(S, m)``, in percent, from float32 features."""
        shape, top1 = (len(trained.diverged[0]), data.n_classes), []
        with products(self.device, "fp32"):
            for s, of_seed in enumerate(rows):
                logits_of = functools.partial(trained.learner.logits, seed=s)
                top1.append(metrics.validate(data.train, data.targets, of_seed, logits_of, shape))
        return top1

    def _begin(
        self,
        data: Data,
        runs: Sequence[Settings],
        n: int,
        pairs: list[list[tuple[float, float]]],
        stage: str,
    ) -> Classifiers | Mlp:
        """Return classifiers at the start of their training; buffers, graphs and compiled code are used again."""
        s, k, settings, record = len(pairs), len(pairs[0]), runs[0], stage == "final"
        seeds = [torch_seed(run.seed, "init", stage=stage) for run in runs]
        batch = min(settings.batch_size, n)
        sizes = settings.layer_sizes(data.train.dim, data.n_classes)
        key = (s, k, batch, settings.momentum, record, data)
        wd = torch.tensor([[wd for _, wd in of_seed] for of_seed in pairs])
        options: dict[str, Any] = {"batch": batch, "momentum": settings.momentum, "record": record}
        if settings.is_mlp:
            network = Mlp(data.train, sizes, relu=settings.has_relu, **options)
            network.begin(initial_layers(sizes, seeds[0]), wd)
            return network
        if self._kept is None or self._kept[0] != key:
            self._kept = None  # frees the memory
            shape = (s, k, data.n_classes, data.train.dim)
            self._kept = key, Classifiers(data.train, shape, fused=self._fused, **options)
        learner = self._kept[1]
        assert isinstance(learner, Classifiers)
        learner.begin(*_starts(self.device, *sizes, *seeds), wd)
        return learner


@functools.lru_cache(maxsize=2)  # all trials of a search have the same start
def _starts(device: torch.device, dim: int, n_classes: int, *seeds: int) -> Layer:
    """Return the initial weights ``(S, C, d)`` and biases ``(S, C)`` of seeds."""
    layers = [initial_layers([dim, n_classes], seed)[0] for seed in seeds]
    weight, bias = (torch.stack([layer[i] for layer in layers]).to(device) for i in (0, 1))
    return weight, bias


def _rates(pairs: list[list[tuple[float, float]]], n_epochs: int) -> torch.Tensor:
    """Return the learning rates of all epochs, ``(n_epochs, S, K)``."""
    return torch.tensor(
        [
            [[learning_rate(lr, epoch, n_epochs) for lr, _ in of_seed] for of_seed in pairs]
            for epoch in range(n_epochs)
        ]
    )


def _draw_orders(
    seeds: list[int], n: int, first: int, n_epochs: int, *, pinned: bool
) -> Iterator[torch.Tensor]:
    """Yield the order of the samples of each seed in the epochs from ``first`` on, int64 ``(S, n)``."""
    generators = [cpu_generator(seed) for seed in seeds]
    with ThreadPoolExecutor(len(generators)) as pool:
        draw = pool.map if pinned else map  # a GPU would wait for five orders of a million rows
        for epoch in range(n_epochs):
            orders = torch.empty(len(seeds), n, dtype=torch.int64, pin_memory=pinned)
            list(draw(_permute, orders, generators))
            if epoch >= first:
                yield orders


def _permute(order: torch.Tensor, generator: torch.Generator) -> None:
    torch.randperm(len(order), generator=generator, out=order)
