"""Features in the memory of the machine or of the device, and the data set that a run reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cog.features.feature_files import FeatureSet

#: Rows that are rounded at a time.
_CHUNK = 65_536


class Features:
    """Features ``(n, d)`` of one split, in the type of their file.

    They are on the device of the computation, with a copy in bfloat16 where products take that and memory allows it,
    or on the host, from where batches are sent. The values of a batch are the same in all cases.

    Args:
        features: the features; they are never changed.
        device: device of the computation.
        dtype: type of the products in training, float32 or bfloat16.
        resident: whether the features go to the device.
        copy: whether to make the copy in bfloat16.
    """

    def __init__(
        self,
        features: FeatureSet,
        device: torch.device,
        dtype: torch.dtype,
        *,
        resident: bool = True,
        copy: bool = True,
    ) -> None:
        self.n, self.dim = features.x.shape
        self.device, self.dtype = device, dtype
        #: Where the features are, and row numbers have to be.
        self.place = device if resident else torch.device("cpu")
        self._x = features.x.contiguous().to(self.place)
        self._norms = None if features.norms is None else features.norms.to(self.place)
        self._low: torch.Tensor | None = None
        if dtype != torch.float32 and copy and not (self._x.dtype == dtype and self._norms is None):
            self._low = torch.empty(self._x.shape, dtype=dtype, device=self.place)
            for rows in torch.arange(self.n, device=self.place).split(_CHUNK):
                self._low[rows] = self._exact(rows).to(dtype)

    @property
    def is_resident(self) -> bool:
        """Whether the features are on the device of the computation."""
        return self.place == self.device

    def rows(
        self, index: torch.Tensor, *, exact: bool = False, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return rows ``(b, d)`` on the device, in the type of the products or (``exact``) in float32.

        Args:
            index: row numbers, int64 ``(b,)``, at :attr:`place`.
            exact: whether to return float32.
            out: tensor to write to.
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

    def _exact(self, index: torch.Tensor) -> torch.Tensor:
        x = self._x.index_select(0, index).float()
        return x if self._norms is None else x.div_(self._norms[index])

    def _pinned(self, n: int, dtype: torch.dtype) -> torch.Tensor:
        # PyTorch reuses pinned memory only after its copy to the device is done.
        return torch.empty(n, self.dim, dtype=dtype, pin_memory=self.device.type == "cuda")


@dataclass(frozen=True)
class Lockstep:
    """What is trained in lockstep, and where the features are.

    Attributes:
        seeds: largest number of seeds.
        trials: largest number of trials of each seed.
        resident: whether features are on the device.
        copy: whether features have a copy in bfloat16.
    """

    seeds: int
    trials: int
    resident: bool = True
    copy: bool = True


@dataclass(frozen=True, eq=False)
class Data:
    """A data set ready for any number of runs.

    Attributes:
        train: training features ``(n, d)``.
        y: training labels in 0..C-1, int64 ``(n,)``, on the CPU.
        targets: the same on the device.
        test: test features ``(m, d)``.
        test_y: test labels in 0..C-1, int64 ``(m,)``, on the device.
        labels: the C original labels, ascending.
        together: what is trained in lockstep.
    """

    train: Features
    y: torch.Tensor
    targets: torch.Tensor
    test: Features
    test_y: torch.Tensor
    labels: list[int]
    together: Lockstep

    @property
    def n_classes(self) -> int:
        """C."""
        return len(self.labels)
