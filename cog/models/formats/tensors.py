"""Tensors from raw bytes, for the readers of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cog.errors import UnsafeFileError
from cog.runtime.safe_pickle import Sealed

if TYPE_CHECKING:
    import torch

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}


class StorageType(Sealed):
    """A stand-in for a class such as ``torch.FloatStorage`` while a pickle is read."""

    __slots__ = ()

    @classmethod
    def named(cls, module: str, name: str) -> StorageType | None:
        """Return the stand-in for ``torch[.cuda].<name>``; None for a name that is no storage class."""
        return cls(name) if module in ("torch", "torch.cuda") and name in _STORAGES else None

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the storage."""
        import torch

        return getattr(torch, _STORAGES[self.value])


def from_bytes(data: bytes | bytearray, dtype: torch.dtype) -> torch.Tensor:
    """Return the elements in ``data`` (little-endian) as a 1-d tensor with its own memory.

    Raises:
        ValueError: ``data`` is not a whole number of elements.
    """
    import torch

    if not data:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype)


def view(storage: torch.Tensor, offset: int, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """Return a tensor over ``storage``.

    Raises:
        ValueError: the tensor would have an impossible shape, or reach beyond the storage.
    """
    import torch

    if not isinstance(storage, torch.Tensor):
        raise ValueError("tensor without data")
    numbers = [offset, *size, *stride]
    if len(size) != len(stride) or any(not isinstance(n, int) or n < 0 for n in numbers):
        raise ValueError("tensor with an impossible shape")
    empty = any(n == 0 for n in size)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if not empty and last >= storage.numel():
        raise ValueError("tensor reaches beyond its data")
    return storage.as_strided(tuple(size), tuple(stride), 0 if empty else offset)


def rebuild_tensor(
    storage: Any,
    offset: Any,
    size: Any,
    stride: Any,
    requires_grad: Any = False,
    hooks: Any = None,
    *rest: Any,
) -> Sealed:
    """Rebuild a tensor, in place of ``torch._utils._rebuild_tensor_v2``."""
    if not isinstance(storage, Sealed) or not isinstance(size, tuple) or not isinstance(stride, tuple):
        raise UnsafeFileError("a malformed tensor")
    return Sealed(view(storage.value, offset, size, stride))
