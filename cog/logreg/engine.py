"""The classifier engine: trains and scores classifiers over one copy of the features, on any device.

The mathematics of ``torch.nn.Linear``, ``CrossEntropyLoss`` and ``torch.optim.SGD`` (paper Sec. 4.1), arranged for
speed:

* Classifiers that see the same rows in the same order (trials of a search that do not wait for each other) share each
  batch and one product: of at most :data:`CPU_COLUMNS` columns on a CPU, for more than :data:`CPU_ROWS_ALONE` rows, and
  of at most :data:`GPU_COLUMNS` columns on a GPU.
* Only values that are used are computed: training accuracy only where logs are recorded, validation once per trial.
* With bfloat16 (``CLF.PRECISION``) the products of a step run on bfloat16 operands and accumulate in float32; master
  weights, momentum, softmax and the scores of trials and of the last epoch stay float32.

**Reproducibility.** The number of classifiers that share a product depends on settings and shapes alone, so the same
command gives the same bits on the same machine, alone or beside other runs. The last bits differ between a CPU and a
GPU, also because more trials share a product on a GPU.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from cog.features.feature_files import FeatureSet
from cog.logreg import gram, metrics
from cog.logreg.checkpoint import TrainState, Work
from cog.logreg.gram import GramLearner
from cog.logreg.graphs import Graphs, Stepper
from cog.logreg.learners import Learner, LinearLearner, MlpLearner
from cog.logreg.matrix import Data, FeatureMatrix, FloatMatrix, HostMatrix, SplitMatrix, StoredMatrix
from cog.logreg.metrics import Logs
from cog.logreg.precision import products, resolve_precision
from cog.logreg.settings import RowCounts, Settings
from cog.logreg.sgd import Layer, TrainedClassifier, TrainSpec, learning_rate, logged_rate
from cog.runtime import memory
from cog.runtime.device import exact_float32
from cog.runtime.random_streams import cpu_generator

logger = logging.getLogger(__name__)

OnEpoch = Callable[[int, Logs], None]

#: Columns (classifiers x classes) trained in one product. On a CPU, the weights of more columns exceed the cache; a GPU
#: is only filled by the ten trials at the beginning of a search with 1000 classes.
CPU_COLUMNS, GPU_COLUMNS = 1000, 10_000

#: Number of training rows up to which trials share no product on a CPU: such a search takes seconds, and every trial
#: has the digits of a classifier that is trained alone.
CPU_ROWS_ALONE = 4096

#: Rows sent to the device at a time when the features are loaded.
_ROWS = 65_536

#: Share of the device's free memory that resident features may take; the rest is for training and scoring.
_USABLE = 0.875


class Engine:
    """Training and scoring of classifiers on one device.

    Args:
        device: device of the computation.
        precision: precision of the products of the training steps, a value of ``CLF.PRECISION``.

    Attributes:
        device: the device, with an index on CUDA.
        precision: ``fp32``, ``tf32`` or ``bf16``.
        graphs: whether steps are replayed from CUDA graphs.

    Raises:
        CogError: a precision that the device does not have.
    """

    def __init__(self, device: torch.device, precision: str = "fp32") -> None:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.device, self.precision = device, resolve_precision(precision, device)
        self.graphs = Graphs(wanted=device.type == "cuda")
        self._stream: torch.cuda.Stream | None = None

    def trials_per_batch(self, n_rows: int, settings: Settings, *, dim: int, n_classes: int) -> int:
        """Return the number of trials to train in lockstep, in a search on ``n_rows`` rows of ``dim`` features.

        It is a function of settings and shape alone.
        """
        if settings.is_mlp:
            return 1  # the products of one network take far longer than gathering its batches
        if self.device.type != "cpu":
            return max(1, GPU_COLUMNS // n_classes)
        if n_rows <= CPU_ROWS_ALONE and _learner(n_rows, settings, dim) is LinearLearner:
            return 1
        return max(1, CPU_COLUMNS // n_classes)

    def arithmetic(self, rows: RowCounts, settings: Settings, dim: int) -> dict[str, Any]:
        """Return ``precision`` of the products and ``form`` of a run's final training; under ``search``, of its trials.

        Few rows, as the shape decides, are trained in their span and always in float32.
        """
        final, search = (
            self._arithmetic(n_rows, settings, dim) for n_rows in (rows.final_train, rows.search_train)
        )
        return final | {"search": search} if rows.search_train else final

    def _arithmetic(self, n_rows: int, settings: Settings, dim: int) -> dict[str, Any]:
        kind = _learner(n_rows, settings, dim)
        return {"precision": "fp32" if kind is GramLearner else self.precision, "form": kind.form}

    def load(self, features: FeatureSet) -> FeatureMatrix:
        """Store features on the device if they fit there, else on the host.

        Features without ``norms`` are taken over: their memory may be rewritten.
        """
        x, norms = features.x, features.norms
        kind = SplitMatrix if self.precision == "bf16" else FloatMatrix
        if self.device.type != "cpu" and 4 * x.numel() <= _USABLE * device_room(self.device):
            with contextlib.suppress(torch.OutOfMemoryError):
                resident = torch.empty(x.shape, device=self.device)
                for part, target in zip(x.split(_ROWS), resident.split(_ROWS), strict=True):
                    # Sent in their type, often half the bytes, and converted on the device.
                    target.copy_(part.to(self.device))
                return kind(resident if norms is None else resident.div_(norms.to(self.device)))
        host = kind(x) if norms is None else StoredMatrix(features, kind.dtype)
        if self.device.type == "cpu":
            return host
        logger.info("%s: too large for %s, sent there batch by batch", features.name, self.device)
        return HostMatrix(host, self.device)

    @torch.no_grad()
    def fit(
        self,
        data: Data,
        spec: TrainSpec,
        settings: Settings,
        *,
        on_epoch: OnEpoch | None = None,
        work: Work | None = None,
    ) -> list[TrainedClassifier]:
        """Train the classifiers of ``spec`` in lockstep, and return them in the order of their pairs.

        Args:
            data: the data set.
            spec: rows, pairs and seeds.
            settings: settings of the run.
            on_epoch: function called after every recorded epoch, except for epochs of an earlier session.
            work: work in progress of the run, which saves the training; None: nothing is saved.

        Raises:
            Interrupted: by ``work``, when the process was asked to end; the training is saved then.
        """
        work = work or Work()
        key = {"stage": "final" if spec.record else "search", "pairs": [list(pair) for pair in spec.pairs]}
        key |= {"device": self.device.type, "precision": self.precision}
        saved = work.restore(key)
        n, n_epochs, start = len(spec.rows), settings.n_epochs, time.monotonic() - saved.seconds
        with self._computing():
            learner = self.make_learner(data, spec, settings)
            if saved.epochs:
                learner.resume(saved.values)
            precision = self._arithmetic(n, settings, data.features.dim)["precision"]
            stepper = Stepper(learner, self.graphs, precision)
            logs, predictions = saved.logs or (metrics.new_logs() if spec.record else None), None
            orders = _draw_orders(spec, data.features.index_device, saved.epochs, n_epochs)
            order = next(orders)
            for epoch in range(saved.epochs, n_epochs):
                learner.begin_epoch(
                    torch.tensor([learning_rate(lr, epoch, n_epochs) for lr, _ in spec.pairs])
                )
                for rows in order.split(settings.batch_size):
                    learner.load(rows)
                    stepper.step(len(rows))
                order = next(orders, order)  # drawn while the device works
                finite = learner.is_finite()  # waits for the device
                last = epoch + 1 == n_epochs or not any(finite)
                if logs is not None and learner.sums is not None:
                    # The last epoch is the result; the others are a curve, at the precision of the training.
                    classifier = TrainedClassifier(self._layers(learner, 0), settings.has_relu)
                    with products(self.device, "fp32" if last else self.precision):
                        test, predictions = metrics.evaluate(
                            data.test, data.test_y, classifier.logits, exact=last
                        )
                    rate = logged_rate(spec.pairs[0][0], epoch, n_epochs)
                    metrics.append_epoch(logs, metrics.to_evaluation(learner.sums, n), test, rate)
                    if on_epoch is not None:
                        on_epoch(epoch, logs)
                if last:
                    break
                work.offer(TrainState(epoch + 1, learner.state, time.monotonic() - start, logs))
            layers = [self._layers(learner, k) for k in range(len(spec.pairs))]
        seconds = (time.monotonic() - start) / len(spec.pairs)
        shared = logs, predictions, seconds, stepper.n_replays > 0
        return [
            TrainedClassifier(layers[k], settings.has_relu, not finite[k], *shared)
            for k in range(len(spec.pairs))
        ]

    @torch.no_grad()
    def validate(
        self, data: Data, rows: torch.Tensor, classifiers: Sequence[TrainedClassifier]
    ) -> list[float]:
        """Score classifiers on training ``rows`` from float32 logits, see :func:`cog.logreg.metrics.validate`."""
        with self._computing(), products(self.device, "fp32"):
            logits = [classifier.logits for classifier in classifiers]
            return metrics.validate(data.features, data.targets, rows, logits)

    def make_learner(self, data: Data, spec: TrainSpec, settings: Settings) -> Learner:
        """Return a learner with the classifiers at the beginning of their training."""
        kind = _learner(len(spec.rows), settings, data.features.dim)
        with products(self.device, "fp32"):
            return kind(data, spec, settings)

    def _layers(self, learner: Learner, k: int) -> list[Layer]:
        """Return the layers of classifier ``k``, which the span of the rows puts together by a product."""
        with products(self.device, "fp32"):
            return learner.layers(k)

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        """Use the CUDA stream of this engine in the block, and wait for its work at the end."""
        if self.device.type != "cuda":
            with exact_float32():
                yield
            return
        if self._stream is None:  # one only, because each stream has a cuBLAS workspace
            self._stream = torch.cuda.Stream(self.device)
        stream = self._stream
        for before in (torch.cuda.default_stream(self.device), torch.cuda.current_stream(self.device)):
            stream.wait_stream(before)
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            yield
            stream.synchronize()


def _learner(n_rows: int, settings: Settings, dim: int) -> type[Learner]:
    """Return the class of the learner for ``n_rows`` rows of ``dim`` features."""
    if settings.is_mlp:
        return MlpLearner
    return GramLearner if gram.applies(n_rows, dim) else LinearLearner


def device_room(device: torch.device) -> float:
    """Return the bytes that can be allocated on a device; infinite when that is unknown."""
    if device.type == "cuda":
        return memory.free_on_gpu(device)
    available = memory.available_memory() if device.type == "cpu" else None
    return float("inf") if available is None else available


def _draw_orders(spec: TrainSpec, device: torch.device, first: int, n_epochs: int) -> Iterator[torch.Tensor]:
    """Yield the rows of each epoch from epoch ``first`` on, in the order of training, on ``device``."""
    generator = cpu_generator(spec.order_seed)
    for epoch in range(n_epochs):
        order = torch.randperm(len(spec.rows), generator=generator)
        if epoch >= first:
            yield spec.rows.index_select(0, order).to(device)
