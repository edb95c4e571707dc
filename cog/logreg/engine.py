"""The classifier engine: trains and scores classifiers over one copy of the features, on any device.

The mathematics of ``torch.nn.Linear``, ``CrossEntropyLoss`` and ``torch.optim.SGD`` (paper Sec. 4.1), arranged for
speed:

* Classifiers that see the same rows in the same order (trials of a search that do not wait for each other) share each
  batch and one product of at most :data:`CPU_COLUMNS` columns.
* Nothing is computed that nobody reads: training accuracy only where a history is kept, validation once per trial.
* With bfloat16 (``CLF.PRECISION``) the products of a step run on bfloat16 operands and accumulate in float32; master
  weights, momentum, softmax and all scores that count stay float32.

**Reproducibility.** How many classifiers share a product depends on settings and shapes alone, so the same command
gives the same bits on the same machine, alone or beside other runs. Between a CPU and a GPU the last bits differ, also
because more trials share a product there.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from cog.logreg import gram, metrics
from cog.logreg.checkpoint import CheckpointedRuns, TrainState
from cog.logreg.gram import GramLearner
from cog.logreg.graphs import Graphs, Stepper
from cog.logreg.learners import Learner, LinearLearner
from cog.logreg.matrix import FeatureMatrix, FloatMatrix, HostMatrix, MappedMatrix, SplitMatrix
from cog.logreg.mlp import MlpLearner
from cog.logreg.precision import products, resolve_precision
from cog.logreg.sgd import History, SgdConfig, TrainedClassifier, TrainSpec, learning_rate, logged_rate
from cog.runtime import memory
from cog.runtime.device import exact_float32
from cog.runtime.random_streams import cpu_generator

logger = logging.getLogger(__name__)

OnEpoch = Callable[[int, History], None]

#: Columns (classifiers x classes) trained in one product. On a CPU the weights fall out of the cache beyond these; a
#: GPU is not filled by fewer than the ten trials that begin a search at 1000 classes.
CPU_COLUMNS, GPU_COLUMNS = 1000, 10_000

#: Runs that are trained side by side on a GPU: the protocol's five seeds. Beyond them it is full.
_GPU_RUNS = 5

#: Share of the device's free memory that resident features may take; the rest is for training and scoring.
_USABLE = 0.875


@dataclass(frozen=True, eq=False)
class Data:
    """A data set ready for any number of runs.

    Attributes:
        features: training features ``(n, d)``.
        y: int64 ``(n,)`` in 0..C-1, on the CPU.
        targets: the same on the device of computation.
        test: test features ``(m, d)``.
        test_y: int64 ``(m,)``, on the device of computation.
        labels: the C original labels, ascending.
        projection: principal components that the features were projected on, see :mod:`cog.logreg.preprocess`.
    """

    features: FeatureMatrix
    y: torch.Tensor
    targets: torch.Tensor
    test: FeatureMatrix
    test_y: torch.Tensor
    labels: list[int]
    projection: dict[str, torch.Tensor] | None = None


class Engine:
    """Trains and scores classifiers on one device.

    Args:
        device: where to compute.
        precision: precision of the products of the training steps: ``fp32``, ``tf32`` or ``bf16``.

    Attributes:
        device: as given.
        precision: as given.
        graphs: whether steps are replayed from CUDA graphs.
    """

    def __init__(self, device: torch.device, precision: str = "fp32") -> None:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.device, self.precision = device, precision
        self.graphs = Graphs(wanted=device.type == "cuda")
        self._own = threading.local()

    def trials_per_batch(self, config: SgdConfig) -> int:
        """Return how many trials of a search are trained in lockstep; a function of the shape alone."""
        if config.hidden:
            return 1  # the products of one network take far longer than gathering its batches
        return max(1, (CPU_COLUMNS if self.device.type == "cpu" else GPU_COLUMNS) // config.n_classes)

    @property
    def max_parallel_runs(self) -> int:
        """Runs of several seeds or shots that are worth training side by side."""
        return torch.get_num_threads() if self.device.type == "cpu" else _GPU_RUNS

    def precision_for(self, n_rows: int, config: SgdConfig, dim: int) -> str:
        """Return the precision in which trainings on ``n_rows`` rows of ``dim`` features are really done."""
        return "fp32" if not config.hidden and gram.applies(n_rows, dim) else self.precision

    def load(self, x: torch.Tensor, norms: torch.Tensor | None = None) -> FeatureMatrix:
        """Prepare features: on the device where they fit, else on the host.

        Args:
            x: float32 ``(n, d)``, on the CPU; taken over, its memory may be rewritten.
            norms: ``(n, 1)``, given for features that stay in a memory-mapped file (then nothing is
                rewritten, and they may be float16 or bfloat16): divisors of their rows.
        """
        kind = SplitMatrix if self.precision == "bf16" else FloatMatrix
        if self.device.type != "cpu" and 4 * x.numel() <= _USABLE * device_room(self.device):
            with contextlib.suppress(torch.OutOfMemoryError):
                there = x.to(self.device).float()
                return kind(there if norms is None else there.div_(norms.to(self.device)))
        host = kind(x) if norms is None else MappedMatrix(x, norms, kind.dtype)
        return host if self.device.type == "cpu" else HostMatrix(host, self.device)

    @torch.no_grad()
    def fit(
        self,
        data: Data,
        spec: TrainSpec,
        config: SgdConfig,
        *,
        record: bool = False,
        on_epoch: OnEpoch | None = None,
        saves: CheckpointedRuns | None = None,
    ) -> list[TrainedClassifier]:
        """Train classifiers in lockstep.

        Args:
            data: from :func:`cog.logreg.protocol.prepare`.
            spec: what to train.
            config: what all trainings of a run share.
            record: whether to score the test set after every epoch, which makes the history; for one classifier.
            on_epoch: called after every epoch that is recorded, but not again for epochs of an earlier session.
            saves: where an interrupted training stands, and where to save.

        Returns:
            One classifier per pair of hyper-parameters, in their order.

        Raises:
            Interrupted: by ``saves``, when the process was asked to end; everything is saved then.
        """
        saves = saves or CheckpointedRuns()
        saved = saves.restore()
        n_before, seconds_before = (0, 0.0) if saved is None else (saved.epochs, saved.seconds)
        n, k, start = len(spec.rows), len(spec.pairs), time.monotonic()
        with self._computing():
            learner = self.make_learner(data, spec, config, record=record)
            precision = self.precision_for(n, config, data.features.dim)
            stepper = Stepper(learner, self.graphs, lambda: self._products(precision))
            history = History() if record else None
            if saved is not None:
                learner.resume(saved.values)
                if history is not None and saved.logs is not None:
                    history.logs = saved.logs
            predictions, finite = None, [True] * k
            orders = _draw_orders(spec, data.features.index_device, n_before, config.n_epochs)
            order = next(orders)
            for epoch in range(n_before, config.n_epochs):
                rates = [learning_rate(lr, epoch, config.n_epochs) for lr, _ in spec.pairs]
                learner.begin_epoch(torch.tensor(rates))
                for rows in order.split(config.batch_size):
                    learner.load(rows)
                    stepper.step(len(rows))
                order = next(orders, order)  # drawn while the device works
                finite = learner.is_finite()  # waits for it
                last = epoch + 1 == config.n_epochs or not any(finite)
                if history is not None and learner.sums is not None:
                    # The last epoch is the result; the others are a curve, at the precision of the training.
                    classifier = TrainedClassifier(learner.layers(0), config.relu)
                    result, predictions = self._score(data, classifier, exact=last)
                    rate = logged_rate(spec.pairs[0][0], epoch, config.n_epochs)
                    history.append(metrics.to_score(learner.sums, n), result, rate)
                    if on_epoch is not None:
                        on_epoch(epoch, history)
                if last:
                    break
                saves.offer(
                    lambda: TrainState(
                        epoch + 1,  # noqa: B023
                        learner.state,
                        seconds_before + time.monotonic() - start,
                        None if history is None else history.logs,
                    )
                )
            trained = [
                TrainedClassifier(
                    learner.layers(i), config.relu, not good, history, predictions,
                    arithmetic={"precision": precision, "form": learner.form, "cuda_graphs": stepper.n_replays > 0},
                )
                for i, good in enumerate(finite)
            ]  # fmt: skip
        for classifier in trained:
            classifier.seconds = (seconds_before + time.monotonic() - start) / k
        return trained

    @torch.no_grad()
    def top1(self, data: Data, rows: torch.Tensor, classifiers: Sequence[TrainedClassifier]) -> list[float]:
        """Return the top-1 accuracy (percent) of each classifier on training ``rows``, from float32 logits."""
        with self._computing(), self._products("fp32"):
            return metrics.top1_of_many(
                data.features, data.targets, rows, [one.logits for one in classifiers]
            )

    def make_learner(self, data: Data, spec: TrainSpec, config: SgdConfig, *, record: bool) -> Learner:
        """Return the classifiers at the beginning of their training."""
        span = not config.hidden and gram.applies(len(spec.rows), data.features.dim)
        kind = MlpLearner if config.hidden else GramLearner if span else LinearLearner
        with self._products("fp32"):
            may_wait = self.device.type == "cpu" and not self.graphs.enabled
            return kind(data.features, data.targets, spec, config, record=record, may_wait=may_wait)

    def _score(
        self, data: Data, classifier: TrainedClassifier, *, exact: bool
    ) -> tuple[metrics.Evaluation, torch.Tensor | None]:
        with self._products("fp32" if exact else self.precision):
            return metrics.score(data.test, data.test_y, classifier.logits, exact=exact)

    def _products(self, precision: str) -> contextlib.AbstractContextManager[None]:
        return products(self.device, precision)

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        """Compute on a stream of this thread's own; its work is finished at the end."""
        if self.device.type != "cuda":
            with exact_float32():
                yield
            return
        if not hasattr(self._own, "stream"):  # made once per thread: each has a cuBLAS workspace
            self._own.stream = torch.cuda.Stream(self.device)
        stream = self._own.stream
        stream.wait_stream(torch.cuda.default_stream(self.device))
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            yield
            stream.synchronize()


def get_engine(device: torch.device, precision: str = "auto") -> Engine:
    """Return the engine for a device.

    Args:
        device: any device of PyTorch that computes.
        precision: ``CLF.PRECISION``.

    Raises:
        CogError: a precision that the device does not have.
    """
    return Engine(device, resolve_precision(precision, device))


def used_precision(engine: Engine, *, search_rows: int, final_rows: int, config: SgdConfig, dim: int) -> str:
    """Say in which precision a run is trained: ``fp32``, or ``fp32 (search), bf16 (final training)``.

    Args:
        engine: does the training.
        search_rows: rows that the trials are trained on; 0 without a search.
        final_rows: rows that the final classifier is trained on.
        config: what all trainings of the run share.
        dim: width of the features.
    """
    final = engine.precision_for(final_rows, config, dim)
    search = engine.precision_for(search_rows, config, dim) if search_rows else final
    return final if search == final else f"{search} (search), {final} (final training)"


def device_room(device: torch.device) -> float:
    """Return the bytes that can be allocated on a device, as far as PyTorch tells."""
    return memory.free_on_gpu(device) if device.type == "cuda" else float("inf")


def _draw_orders(spec: TrainSpec, device: torch.device, first: int, n_epochs: int) -> Iterator[torch.Tensor]:
    """Yield the rows of each epoch from ``first`` on in their order, on ``device``."""
    generator = cpu_generator(spec.order_seed)
    for epoch in range(n_epochs):
        order = torch.randperm(len(spec.rows), generator=generator)
        if epoch >= first:
            rows = spec.rows[order]
            yield rows if device.type == "cpu" else rows.to(device)
