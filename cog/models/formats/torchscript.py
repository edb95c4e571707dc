"""Parameters in TorchScript archives (CLIP), read without torch.jit and without running the archives' code."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch

from cog.errors import CogError, UnsafeFileError
from cog.models.formats.errors import errors_explained
from cog.runtime import files, safe_load
from cog.runtime.safe_load import Sealed, require_stored

_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


class _StorageType(Sealed):
    """A stand-in for a class such as ``torch.FloatStorage``; its value is the element type."""

    __slots__ = ()


class _Object(safe_load.Instance):
    """A stand-in for an instance of a class compiled into the archive; it keeps only the attributes."""

    __slots__ = ("attributes",)

    def __new__(cls, *_: Any) -> _Object:
        made = super().__new__(cls)
        made.attributes = {}
        return made

    def __setstate__(self, state: Any) -> None:
        """Keep the attributes of a state that maps names to values."""
        self.attributes: dict[Any, Any] = state if isinstance(state, dict) else {}


def _tensors(root: _Object) -> dict[str, torch.Tensor]:
    """Return the tensors below an object by dotted name.

    Raises:
        ValueError: too many names, because the objects contain one another.
    """
    tensors: dict[str, torch.Tensor] = {}
    left = 100_000

    def visit(node: _Object, prefix: str) -> None:
        nonlocal left
        for name, value in node.attributes.items():
            left -= 1
            if left < 0:
                raise ValueError("modules that contain one another")
            if isinstance(value, _Object):
                visit(value, f"{prefix}{name}.")
            elif isinstance(value, Sealed) and isinstance(value.value, torch.Tensor):
                tensors[f"{prefix}{name}"] = value.value

    visit(root, "")
    return tensors


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Sealed:
    """Return a tensor over the data of a storage, in place of ``torch._utils._rebuild_tensor_v2``.

    Raises:
        UnsafeFileError: the arguments are no storage and tuples.
        ValueError: the tensor would have an impossible shape, or reach beyond its data.
    """
    if not isinstance(storage, Sealed) or not isinstance(size, tuple) or not isinstance(stride, tuple):
        raise UnsafeFileError("a malformed tensor")
    data = storage.value
    if not isinstance(data, torch.Tensor):
        raise ValueError("tensor without data")
    numbers = [offset, *size, *stride]
    if len(size) != len(stride) or any(not isinstance(n, int) or n < 0 for n in numbers):
        raise ValueError("tensor with an impossible shape")
    empty = any(n == 0 for n in size)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if not empty and last >= data.numel():
        raise ValueError("tensor reaches beyond its data")
    return Sealed(data.as_strided(size, stride, 0 if empty else offset))


def _first(value: Any, *rest: Any) -> Any:
    """Return the list, in place of the typed list constructors in ``torch.jit._pickle``."""
    return value


_NAMES = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    **{
        ("torch.jit._pickle", name): _first
        for name in (
            "build_intlist",
            "build_doublelist",
            "build_boollist",
            "build_tensorlist",
            "restore_type_tag",
        )
    },
}


def _names(module: str, name: str) -> Any:
    if module.split(".")[0] == "__torch__":
        return _Object
    if module in ("torch", "torch.cuda") and name in _DTYPES:
        return _StorageType(_DTYPES[name])
    return _NAMES.get((module, name))


class _Storages:
    """The data of the tensors in the archive, read on first use."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        self._archive = archive
        self._root = root
        self._read: dict[str, Sealed] = {}

    def __call__(self, persistent_id: Any) -> Sealed:
        kind, storage_type, key, _device, numel = persistent_id
        if kind != "storage" or not isinstance(storage_type, _StorageType) or not isinstance(key, str):
            raise UnsafeFileError("a persistent id that is not a storage")
        if key not in self._read:
            info = self._archive.getinfo(f"{self._root}/data/{key}")
            dtype = storage_type.value
            if info.file_size != numel * dtype.itemsize:
                raise ValueError(f"storage {key} has {info.file_size} bytes")
            data = bytearray(self._archive.read(info))
            self._read[key] = Sealed(
                torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
            )
        return self._read[key]


def read(path: Path) -> dict[str, torch.Tensor]:
    """Read parameters and buffers of a TorchScript archive.

    Args:
        path: a file of ``torch.jit.save``.

    Returns:
        Dotted name -> tensor, as ``torch.jit.load(path).state_dict()`` names them.

    Raises:
        UnsafeFileError: the archive names a class or function that parameters do not need.
        CogError: the archive is damaged.
    """
    with (
        errors_explained(path, "TorchScript archive"),
        files.open_regular(path) as handle,
        zipfile.ZipFile(require_stored(handle)) as archive,
    ):
        root = next(name for name in archive.namelist() if name.endswith("/data.pkl")).rpartition("/")[0]
        if "/" in root:
            raise ValueError("data.pkl in a folder of a folder")
        if f"{root}/byteorder" in archive.namelist() and archive.read(f"{root}/byteorder") != b"little":
            raise CogError(f"{path} was written on a big-endian machine, which is not supported")
        module = safe_load.unpickle(
            archive.read(f"{root}/data.pkl"), names=_names, persistent=_Storages(archive, root)
        )
        if not isinstance(module, _Object):
            raise CogError(f"{path} holds no module, expected a TorchScript archive of a network")
        return _tensors(module)
