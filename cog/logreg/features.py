"""Features in the memory of the machine or of the device, and the data set that a run reads."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cog.features.feature_files import FeatureSet


class Features:
    """Features ``(n, d)`` of one split, in the type of their file; they are never changed.

    They are on the device of the computation, or on the host (not ``resident``), from where batches are sent,
    and have a ``copy`` in bfloat16 if products take that ``dtype``. The values of a batch are the same.
    """

    def __init__(
        self, stored: FeatureSet, device: torch.device, dtype: torch.dtype, *, resident: bool, copy: bool
    ) -> None:
        self.n, self.dim = stored.x.shape
        self.device, self.dtype, self.is_resident = device, dtype, resident
        #: Where the features are, and row numbers have to be.
        self.place = device if resident else torch.device("cpu")
        self._x = stored.x.contiguous().to(self.place)
        self._norms = None if stored.norms is None else stored.norms.to(self.place)
        self._low: Tensor | None = None
        if dtype != torch.float32 and copy:
            self._low = torch.empty(self._x.shape, dtype=dtype, device=self.place)
            for rows in torch.arange(self.n, device=self.place).split(65_536):
                self._low[rows] = self._exact(rows).to(dtype)

    def rows(self, index: Tensor, *, exact: bool = False, out: Tensor | None = None) -> Tensor:
        """Return rows ``(b, d)`` on the device, in the type of the products or (``exact``) in float32.

        ``index``: int64 ``(b,)``, at :attr:`place`; ``out``: tensor to write to.
        """
        source = self._x if exact or self._low is None else self._low
        dtype = torch.float32 if exact else self.dtype
        if source.dtype == dtype and (source is self._low or self._norms is None):
            if out is None and self.place.type == "cuda" and self.dim * source.element_size() % 16 == 0:
                # The kernel moves one value per thread: those of 16 bytes take half the time of those of 2.
                return source.view(torch.complex128).index_select(0, index).view(dtype)
            if self.is_resident:
                return torch.index_select(source, 0, index, out=out)
            x = self._pinned(len(index), dtype)
            torch.index_select(source, 0, index, out=x)
        else:
            x = self._exact(index).to(dtype)
            if not self.is_resident:
                x = self._pinned(len(index), dtype).copy_(x)
        if out is not None:
            return out.copy_(x, non_blocking=True)
        return x.to(self.device, non_blocking=True)

    def _exact(self, index: Tensor) -> Tensor:
        x = self._x.index_select(0, index).float()
        return x if self._norms is None else x.div_(self._norms[index])

    def _pinned(self, n: int, dtype: torch.dtype) -> Tensor:
        # PyTorch reuses pinned memory only after its copy to the device is done.
        return torch.empty(n, self.dim, dtype=dtype, pin_memory=self.device.type == "cuda")


@dataclass(frozen=True)
class Lockstep:
    """What is trained in lockstep, and where the features are."""

    seeds: int  # largest number of seeds
    trials: int  # largest number of trials of each seed
    resident: bool = True  # whether features are on the device
    copy: bool = True  # whether features have a copy in bfloat16


@dataclass(frozen=True, eq=False)
class Data:
    """A data set ready for any number of runs. Labels are int64 in 0..C-1."""

    train: Features  # (n, d)
    y: Tensor  # training labels (n,), on the CPU
    targets: Tensor  # the same on the device
    test: Features  # (m, d)
    test_y: Tensor  # test labels (m,), on the device
    labels: list[int]  # the C original labels, ascending
    n_classes: int  # C
    together: Lockstep
