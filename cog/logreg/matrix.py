"""Training features in the form in which the classifier engine reads them: one copy, whatever it needs of it.

================  ===========================================================================================
``FloatMatrix``   float32 in memory, batches are float32
``SplitMatrix``   float32 taken apart in place into bfloat16 and what that lacks: batches are bfloat16 at half the
                  memory traffic, and the exact float32 rows can still be put together for scoring
``MappedMatrix``  float32 in the file, for features larger than memory: rows are read, normalised and rounded when
                  they are asked for
================  ===========================================================================================

They serve rows to the device of computation; when that is a GPU and the features are larger than its memory,
they stay on the host and batches travel in large pinned blocks (see :mod:`cog.logreg.streaming`).
"""

from __future__ import annotations

from typing import Protocol

import torch

from cog.errors import CogError

#: Rows converted at a time: the temporaries stay in the cache (256 x 2048 float32 is 2 MB).
_CHUNK = 256

_HALF = 0x8000  # half a unit in the last place of bfloat16, in the bits of a float32


class FeatureMatrix(Protocol):
    """Features ``(n, d)`` that can be read in batches.

    Attributes:
        n: rows.
        dim: d.
        dtype: of the batches.
        device: where the features are.
        nbytes: memory they take there.
    """

    n: int
    dim: int
    dtype: torch.dtype
    device: torch.device
    nbytes: int

    def batch(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Gather ``rows`` (int64, on :attr:`device`) as ``(b, d)`` in the working precision."""
        ...

    def exact(self, rows: torch.Tensor) -> torch.Tensor:
        """Gather ``rows`` (int64, on :attr:`device`) as float32 ``(b, d)``, the values that were stored."""
        ...


def _high_bits(bits: torch.Tensor) -> torch.Tensor:
    """Round float32 bit patterns to bfloat16 ones (both as int32): nearest, ties away from zero.

    Ties away, not to even as usual: the difference to the float32 pattern then always fits in 16 signed bits.
    """
    return (bits + _HALF) >> 16


class FloatMatrix:
    """Features kept as they are: float32 ``(n, d)``, neither copied nor changed."""

    dtype = torch.float32

    def __init__(self, x: torch.Tensor) -> None:
        self._x = x
        self.n, self.dim = x.shape
        self.device = x.device
        self.nbytes = x.nbytes

    def batch(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """See :class:`FeatureMatrix`."""
        return torch.index_select(self._x, 0, rows, out=out)

    def exact(self, rows: torch.Tensor) -> torch.Tensor:
        """See :class:`FeatureMatrix`."""
        return torch.index_select(self._x, 0, rows)


class SplitMatrix:
    """Features as bfloat16 plus the 16 bits that it lacks, in the memory of the float32 they were.

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
        self.n, self.dim = x.shape
        self.device = x.device
        self.nbytes = x.nbytes
        for chunk in x.split(_CHUNK):
            bits = chunk.view(torch.int32).clone()
            high = _high_bits(bits)
            planes = chunk.view(torch.int16).view(len(chunk), 2, self.dim)
            planes[:, 0].copy_(high)
            planes[:, 1].copy_(bits.sub_(high << 16))
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


class MappedMatrix:
    """Features that stay in their file; the same values as in memory, bit for bit.

    Args:
        x: float32 ``(n, d)`` as stored, from a memory-mapped file.
        norms: float32 ``(n, 1)`` to divide the rows by.
        dtype: of the batches, float32 or bfloat16.
    """

    device = torch.device("cpu")
    nbytes = 0  # what is in memory of them is the system's cache

    def __init__(self, x: torch.Tensor, norms: torch.Tensor, dtype: torch.dtype) -> None:
        self._x, self._norms, self.dtype = x, norms, dtype
        self.n, self.dim = x.shape

    def batch(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """See :class:`FeatureMatrix`."""
        x = self.exact(rows)
        if self.dtype == torch.bfloat16:
            x = _high_bits(x.view(torch.int32)).to(torch.int16).view(torch.bfloat16)
        return x if out is None else out.copy_(x)

    def exact(self, rows: torch.Tensor) -> torch.Tensor:
        """See :class:`FeatureMatrix`."""
        return torch.index_select(self._x, 0, rows).div_(self._norms[rows])
