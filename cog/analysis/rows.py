"""Features row by row: in memory, in their file, or on a GPU."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from cog.runtime.memory import free_on_gpu

if TYPE_CHECKING:
    import torch

    from cog.analysis.task import AnalysisContext
    from cog.features.feature_files import FeatureSet

logger = logging.getLogger(__name__)

#: Number of rows in a block. A constant, so that results do not depend on the memory of a machine.
BLOCK = 4096

#: Number of rows in a block for work without matrix products: these rows stay in the processor's cache.
SMALL_BLOCK = 1024

#: Largest share of a GPU's free memory for features; the rest is for blocks of distances.
_USABLE = 0.8


class FeatureRows:
    """Features as float32 rows ``(n, d)`` on a device, without a copy in the memory of the host.

    Features that fit are moved to a GPU once. Of other features, and of features that stay in their file, blocks are
    moved (and divided by their norms) when they are used.

    Args:
        features: features of a split, **not changed**.
        device: device of the rows.
        centered: whether to subtract the mean row. Distances stay the same, and no digits are lost in distances between
            rows that are close to each other but far from the origin (features of an untrained network).
        shift: vector to subtract instead of the mean row, float32 ``(d,)``.

    Attributes:
        n: number of rows.
        dim: width of the rows, d.
        device: device of the results of :meth:`slice` and :meth:`take`.
        shift: subtracted vector, float32 ``(d,)``; None without a shift.
    """

    def __init__(
        self,
        features: FeatureSet,
        device: torch.device,
        *,
        centered: bool = False,
        shift: torch.Tensor | None = None,
    ) -> None:
        self.n, self.dim = features.x.shape
        self.device = device
        self.shift: torch.Tensor | None = None
        self._x, self._norms = features.x, features.norms
        if device.type == "cuda" and self._norms is None and self._x.nbytes <= _USABLE * free_on_gpu(device):
            self._x = self._x.to(device)
        if centered:
            import torch

            total = torch.zeros(self.dim, dtype=torch.float64, device=device)
            for _, x in self.blocks(SMALL_BLOCK):
                total += x.sum(dim=0, dtype=torch.float64)
            shift = (total / self.n).float()
        self.shift = shift

    @functools.cached_property
    def squares(self) -> torch.Tensor:
        """Squared norm of every row, float32 ``(n,)`` on the device."""
        import torch

        return self.map(lambda start, x: x.square().sum(dim=1), torch.float32, SMALL_BLOCK)

    def shifted(self, points: torch.Tensor) -> torch.Tensor:
        """Return points ``(m, d)`` in the coordinates of the rows: the shift is subtracted."""
        return points if self.shift is None else points - self.shift

    def slice(self, start: int, stop: int) -> torch.Tensor:
        """Return rows ``start`` to ``stop`` as ``(b, d)``; the result may be a view and must not be changed."""
        x = self._x[start:stop]
        if self._norms is not None:
            x = (x / self._norms[start:stop]).float()
        x = x.to(self.device)
        return x if self.shift is None else x - self.shift

    def take(self, index: torch.Tensor) -> torch.Tensor:
        """Return the rows ``index`` (int64, on any device) as ``(b, d)``."""
        x = self._gather(index)
        return x if self.shift is None else x.sub_(self.shift)

    def exact(self, index: torch.Tensor) -> torch.Tensor:
        """Return the rows ``index`` as float64 ``(b, d)``: the result of :meth:`take` before it is rounded."""
        x = self._gather(index).double()
        return x if self.shift is None else x.sub_(self.shift)

    def _gather(self, index: torch.Tensor) -> torch.Tensor:
        index = index.to(self._x.device)
        x = self._x.index_select(0, index)
        if self._norms is not None:
            x = x.float().div_(self._norms[index])
        return x.to(self.device)

    def map(
        self, function: Callable[[int, torch.Tensor], torch.Tensor], dtype: torch.dtype, size: int = BLOCK
    ) -> torch.Tensor:
        """Return one number per row, ``(n,)``: the results of ``function(first row number, rows)`` for each block.

        The memory for all results is allocated first. Small results between large blocks would keep the allocator from
        reusing the memory of these blocks, and waste as much memory as the features take.
        """
        import torch

        values = torch.empty(self.n, dtype=dtype, device=self.device)
        for start, x in self.blocks(size):
            values[start : start + len(x)] = function(start, x)
        return values

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the first row number and the rows of each block, in order."""
        for start in range(0, self.n, size):
            yield start, self.slice(start, min(start + size, self.n))


def load_both_splits(job: AnalysisContext) -> tuple[FeatureSet, FeatureSet]:
    """Return training and test features.

    Raises:
        CogError: the features of the splits have different widths.
    """
    from cog.features import feature_files

    train, test = job.load("train"), job.load("test")
    if mixed := feature_files.check_pair(train, test):
        logger.warning("%s%s", job.label, mixed)
    return train, test


def count_zero_rows(features: FeatureSet) -> int:
    """Return the number of rows of zeros, which l2 normalization does not change; their cosines are 0."""
    return sum(int((~part.any(dim=1)).sum()) for part in features.x.split(1024))
