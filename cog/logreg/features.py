"""Features in the memory of the machine or of the device, and the data set that a run reads."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from cog.errors import CogError
from cog.features import sampling
from cog.features.feature_files import FeatureSet

logger = logging.getLogger(__name__)

#: Rows moved at a time.
_CHUNK = 65_536


class Features:
    """Features ``(n, d)`` of one split, in the type of their file.

    They are on the device of the computation, with a copy in bfloat16 where products take that and memory allows it, or
    on the host, from where batches are sent. The values of a batch are the same in all cases.

    Args:
        features: the features. Those in float32 may be kept without a copy; they are never changed.
        device: device of the computation.
        dtype: type of the products in training, float32 or bfloat16.
        resident: whether the features go to the device.
        copy: whether to make the copy in bfloat16.

    Attributes:
        n, dim: shape.
        device: device of the computation.
        dtype: type of the products in training.
        place: device of the features, where row numbers have to be.

    Raises:
        CogError: values beyond the range of bfloat16 (3.39e38).
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
        self.place = device if resident else torch.device("cpu")
        self._x, self._norms = features.x, features.norms
        if self.place.type != "cpu":
            self._x = torch.empty(features.x.shape, dtype=features.x.dtype, device=device)
            for target, part in zip(self._x.split(_CHUNK), features.x.split(_CHUNK), strict=True):
                target.copy_(part)
            self._norms = None if features.norms is None else features.norms.to(device)
        self._low: torch.Tensor | None = None
        is_stored_so = self._x.dtype == dtype and self._norms is None
        if dtype != torch.float32 and copy and not is_stored_so:
            low = torch.empty(self._x.shape, dtype=dtype, device=self.place)
            for start in range(0, self.n, _CHUNK):
                low[start : start + _CHUNK] = self._exact(slice(start, start + _CHUNK))
            self._low = low
        if dtype != torch.float32 and self._largest() > torch.finfo(dtype).max:
            raise CogError(
                "features of 3.39e38 and more do not fit into bfloat16; set CLF.PRECISION fp32 or CLF.NORM_FTS True"
            )

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

    def part(self, start: int, stop: int, *, exact: bool) -> torch.Tensor:
        """Return the rows from ``start`` to ``stop``, read-only, on the device, see :meth:`rows`."""
        if exact and self._x.dtype == torch.float32 and self._norms is None:
            return self._x[start:stop].to(self.device)
        if not exact and self._low is not None:
            return self._low[start:stop].to(self.device)
        return self.rows(torch.arange(start, stop, device=self.place), exact=exact)

    def _exact(self, which: slice | torch.Tensor) -> torch.Tensor:
        x = self._x[which].float() if isinstance(which, slice) else self._x.index_select(0, which).float()
        return x if self._norms is None else x.div_(self._norms[which])

    def _pinned(self, n: int, dtype: torch.dtype) -> torch.Tensor:
        # PyTorch reuses pinned memory only after its copy to the device is done.
        return torch.empty(n, self.dim, dtype=dtype, pin_memory=self.device.type == "cuda")

    def _largest(self) -> float:
        """Return the largest magnitude, rounded as in a batch."""
        if self._norms is not None or self._x.dtype != torch.float32:
            return 0.0  # rounded types have the range already
        parts = [part.abs().max() for part in self._x.split(_CHUNK)]
        return float(torch.stack(parts).max().to(self.dtype).double())


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
        cap: record of ``CLF.MAX_PER_CLASS`` for results.json; empty without it.
        together: what is trained in lockstep.
    """

    train: Features
    y: torch.Tensor
    targets: torch.Tensor
    test: Features
    test_y: torch.Tensor
    labels: list[int]
    cap: dict[str, dict[str, int]]
    together: Lockstep

    @property
    def n_classes(self) -> int:
        """C."""
        return len(self.labels)


def cap(train: FeatureSet, n: int) -> tuple[FeatureSet, dict[str, dict[str, int]]]:
    """Return at most ``n`` training images per class (paper supplement B.1; 0: all), and the record of this choice."""
    if not n:
        return train, {}
    rows, n_short = sampling.cap_per_class(train.y, n)
    logger.info("at most %d training images per class: %d of %d", n, len(rows), len(train))
    if n_short:
        logger.warning("%d classes have fewer than CLF.MAX_PER_CLASS %d images", n_short, n)
    norms = None if train.norms is None else train.norms[rows]
    kept = FeatureSet(train.x[rows], train.y[rows], train.name, norms, train.class_list)
    record = {"n": n, "rows": len(rows), "of_rows": len(train), "smaller_classes": n_short}
    return kept, {"max_per_class": record}
