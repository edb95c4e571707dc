"""The classifier engine: many logistic regressions trained at once over one copy of the features.

The mathematics of ``torch.nn.Linear``, ``CrossEntropyLoss`` and ``torch.optim.SGD`` (paper Sec. 4.1), arranged for
speed:

* Runs that see the same rows in the same order (the trials of a search, which differ by learning rate and weight
  decay alone) share one gather of each batch.
* The gradient of the softmax is written out, momentum, weight decay and step are one pass over the weights, and
  nothing is computed that nobody reads: training accuracy only where a history is kept, validation once per trial.
* With bfloat16 (``CLF.PRECISION``) the two matrix products of a step run on bfloat16 operands and accumulate in
  float32; master weights, momentum, softmax and all scores stay float32.

**Independence.** Every matrix product has the shape of one run, whatever else is being trained, and all other steps
work row by row or element by element. So a run gives the same bits alone, with nine trials of its own seed, or in a
study of 45 runs: a search would amplify the last bit into another learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from cog.logreg.checkpoint import Checkpoint
from cog.logreg.matrix import FeatureMatrix
from cog.logreg.precision import resolve_precision
from cog.logreg.sgd import Fit, History, Recipe, Run

OnEpoch = Callable[[int, History], None]

#: Called after every epoch with the epoch and the classifiers in training; returns which of them to stop.
Monitor = Callable[[int, Sequence["Live"]], Sequence["Live"]]


@dataclass(eq=False)
class Live:
    """A run in training.

    Attributes:
        run: what is trained.
        weight: float32 ``(C, d)`` as it is now.
        bias: float32 ``(C,)``.
        index: position in the list of runs that was given.
    """

    run: Run
    weight: torch.Tensor
    bias: torch.Tensor
    index: int


class Engine(Protocol):
    """Trains and scores classifiers on one kind of device.

    Attributes:
        device: where it computes.
        precision: of the matrix products of the training steps: ``fp32``, ``tf32`` or ``bf16``.
        side_by_side: runs of a study (seeds, shots) that it wants to train at the same time.
    """

    device: torch.device
    precision: str
    side_by_side: int

    def together(self, n_classes: int) -> int:
        """Return how many trials of a search are worth training at once."""
        ...

    def load(self, x: torch.Tensor, norms: torch.Tensor | None = None) -> FeatureMatrix:
        """Prepare training features.

        Args:
            x: float32 ``(n, d)``, on the CPU; taken over, its memory may be rewritten.
            norms: float32 ``(n, 1)``, given for features that stay in a memory-mapped file (then nothing is
                rewritten): what their rows have to be divided by.
        """
        ...

    def load_test(self, x: torch.Tensor) -> torch.Tensor:
        """Put test features (float32 ``(m, d)``) where they are scored."""
        ...

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
        """Train classifiers.

        Args:
            features: training features, from :meth:`load`.
            y: int64 ``(n,)`` in 0..C-1, on the CPU.
            runs: what to train; runs with the same ``rows`` object and ``order_seed`` share their batches.
            recipe: what all runs share.
            test: features (from :meth:`load_test`) and labels to score after every epoch; also makes the history.
                For a single run.
            on_epoch: called after every epoch when there is a test set.
            monitor: may stop runs early; they come back as they are then, with ``stopped`` set.
            checkpoint: where runs stand that were interrupted, and where to save; ``on_epoch`` and ``monitor`` are not
                called again for epochs of an earlier session.

        Returns:
            One classifier per run, in their order.

        Raises:
            Interrupted: by ``checkpoint``, when the process was asked to end; everything is saved then.
        """
        ...

    def validate(
        self, features: FeatureMatrix, y: torch.Tensor, rows: torch.Tensor, fits: Sequence[Fit | Live]
    ) -> list[float]:
        """Return the top-1 accuracy (percent) of each classifier on ``rows``, from float32 logits."""
        ...


def get_engine(device: torch.device, precision: str = "auto") -> Engine:
    """Return the engine for a device.

    Args:
        device: CPU or CUDA.
        precision: ``CLF.PRECISION``.

    Raises:
        CogError: a precision that the device does not have.
    """
    resolved = resolve_precision(precision, device)
    if device.type == "cuda":
        from cog.logreg.cuda_engine import CudaEngine

        return CudaEngine(device, resolved)
    from cog.logreg.cpu_engine import CpuEngine

    return CpuEngine(resolved)
