"""The forms in which the classifier engine holds features, in a single copy.

================  ===========================================================================================
``FloatMatrix``   float32 in memory, batches are float32
``SplitMatrix``   float32 split in place into bfloat16 and the remaining bits: batches are bfloat16 at half the memory
                  traffic, and the exact float32 rows can be restored for scoring
``StoredMatrix``  of half precision as in the file, at half the size; requested rows are converted, normalized and
                  rounded
``HostMatrix``    one of these on the host, for features larger than the memory of a GPU: batches are sent to the GPU
================  ===========================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cog.errors import CogError
from cog.features.feature_files import FeatureSet

#: Rows converted at a time: the temporaries stay in the cache (256 x 2048 float32 is 2 MB).
_CHUNK = 256

_HALF = 0x8000  # half a unit in the last place of bfloat16, in the bits of a float32


class FeatureMatrix:
    """Features ``(n, d)`` that can be read in batches.

    Attributes:
        n: number of rows.
        dim: d.
        dtype: type of the batches, the working precision.
        device: device of the batches.
        index_device: device of the numbers of requested rows.
    """

    n: int
    dim: int
    dtype: torch.dtype
    device: torch.device
    index_device: torch.device

    def batch(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return ``rows`` (int64, on :attr:`index_device`) as ``(b, d)`` in the working precision."""
        raise NotImplementedError

    def exact(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows`` (int64, on :attr:`index_device`) as float32 ``(b, d)``, without loss."""
        raise NotImplementedError

    def part(self, start: int, stop: int, *, exact: bool) -> torch.Tensor:
        """Return the rows from ``start`` to ``stop``, read-only, in float32 (``exact``) or the working precision."""
        rows = torch.arange(start, stop, device=self.index_device)
        return self.exact(rows) if exact else self.batch(rows)


class FloatMatrix(FeatureMatrix):
    """Features in float32 ``(n, d)``, neither copied nor changed."""

    dtype = torch.float32

    def __init__(self, x: torch.Tensor) -> None:
        self._x = x
        self.n, self.dim = x.shape
        self.device = self.index_device = x.device

    def batch(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """See :class:`FeatureMatrix`."""
        return torch.index_select(self._x, 0, rows, out=out)

    def exact(self, rows: torch.Tensor) -> torch.Tensor:
        """See :class:`FeatureMatrix`."""
        return self.batch(rows)

    def part(self, start: int, stop: int, *, exact: bool) -> torch.Tensor:
        """See :class:`FeatureMatrix`."""
        return self._x[start:stop]


def _high_bits(bits: torch.Tensor) -> torch.Tensor:
    """Return float32 bit patterns rounded to those of bfloat16 (both as int32): nearest, ties away from zero.

    The usual rounding of ties to even is not used, so that the difference from the float32 pattern always fits in 16
    signed bits.
    """
    return (bits + _HALF) >> 16


class SplitMatrix(FeatureMatrix):
    """Features as bfloat16 plus the 16 bits that it lacks, in the memory of the float32 features.

    Row i of the float32 matrix becomes two rows of 16-bit numbers: the nearest bfloat16 values, and the signed
    differences of the bit patterns. ``(high << 16) + low`` is the float32 bit pattern again, so nothing is lost and
    no second copy of the features exists.

    Args:
        x: float32 ``(n, d)``, contiguous and finite. **It is taken over**: its memory is rewritten.

    Raises:
        CogError: when a value is beyond the range of bfloat16 (3.39e38).
    """

    dtype = torch.bfloat16

    def __init__(self, x: torch.Tensor) -> None:
        assert x.dtype == torch.float32 and x.is_contiguous()
        for chunk in x.split(_CHUNK):
            bits = chunk.view(torch.int32).clone()
            high = _high_bits(bits)
            planes = chunk.view(torch.int16).view(len(chunk), 2, x.shape[1])
            planes[:, 0].copy_(high)
            planes[:, 1].copy_(bits.sub_(high << 16))
        self.device = self.index_device = x.device
        self.n, self.dim = x.shape
        self._planes = x.view(torch.int16).view(2 * self.n, self.dim)
        self._high = self._planes.view(torch.bfloat16)
        for part in self._high.split(2 * _CHUNK):
            if not torch.isfinite(part[::2]).all():
                raise CogError(
                    "features of 3.39e38 and more do not fit into bfloat16; set CLF.PRECISION fp32 or CLF.NORM_FTS True"
                )

    def batch(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """See :class:`FeatureMatrix`."""
        return torch.index_select(self._high, 0, rows * 2, out=out)

    def exact(self, rows: torch.Tensor) -> torch.Tensor:
        """See :class:`FeatureMatrix`."""
        bits = self._planes.index_select(0, rows * 2).to(torch.int32).bitwise_left_shift_(16)
        return bits.add_(self._planes.index_select(0, rows * 2 + 1)).view(torch.float32)


class StoredMatrix(FeatureMatrix):
    """Features in the type of their file, with the values of the other forms, bit for bit.

    Args:
        stored: features with ``norms``; they are not changed.
        dtype: type of the batches, float32 or bfloat16.

    Attributes:
        stored: the features.
    """

    device = index_device = torch.device("cpu")

    def __init__(self, stored: FeatureSet, dtype: torch.dtype) -> None:
        assert stored.norms is not None
        self.stored, self._x, self._norms, self.dtype = stored, stored.x, stored.norms, dtype
        self.n, self.dim = stored.x.shape

    def batch(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """See :class:`FeatureMatrix`."""
        x = self.exact(rows)
        if self.dtype == torch.bfloat16:
            x = _high_bits(x.view(torch.int32)).to(torch.int16).view(torch.bfloat16)
        return x if out is None else out.copy_(x)

    def exact(self, rows: torch.Tensor) -> torch.Tensor:
        """See :class:`FeatureMatrix`."""
        return torch.index_select(self._x, 0, rows).float().div_(self._norms[rows])


class HostMatrix(FeatureMatrix):
    """Features that stay on the host because they do not fit on the device; batches are sent from pinned memory.

    PyTorch manages the pinned memory of a batch: it is reused only after the copy to the device is done.

    Args:
        host: the features.
        device: device of the batches.

    Attributes:
        host: the features.
    """

    index_device = torch.device("cpu")

    def __init__(self, host: FeatureMatrix, device: torch.device) -> None:
        self.host, self.device = host, device
        self.n, self.dim, self.dtype = host.n, host.dim, host.dtype

    def batch(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """See :class:`FeatureMatrix`."""
        pinned = torch.empty(len(rows), self.dim, dtype=self.dtype, pin_memory=self.device.type == "cuda")
        self.host.batch(rows, out=pinned)
        if out is None:
            return pinned.to(self.device, non_blocking=True)
        return out.copy_(pinned, non_blocking=True)

    def exact(self, rows: torch.Tensor) -> torch.Tensor:
        """See :class:`FeatureMatrix`."""
        return self.host.exact(rows).to(self.device)

    def part(self, start: int, stop: int, *, exact: bool) -> torch.Tensor:
        """See :class:`FeatureMatrix`."""
        return self.host.part(start, stop, exact=exact).to(self.device)


@dataclass(frozen=True, eq=False)
class Data:
    """A data set ready for any number of runs.

    Attributes:
        features: training features ``(n, d)``.
        y: training labels in 0..C-1, int64 ``(n,)``, on the CPU.
        targets: training labels on the device of computation.
        test: test features ``(m, d)``.
        test_y: test labels in 0..C-1, int64 ``(m,)``, on the device of computation.
        labels: the C original labels, ascending.
        projection: ``mean`` and ``components`` (float32) of the projection onto principal components; None without one.
        preparation: record of the cap per class and of the principal components, for results.json.
    """

    features: FeatureMatrix
    y: torch.Tensor
    targets: torch.Tensor
    test: FeatureMatrix
    test_y: torch.Tensor
    labels: list[int]
    projection: dict[str, torch.Tensor] | None
    preparation: dict[str, Any]
