"""Parameters in TorchScript archives (CLIP), read without torch.jit and without running the archives' code."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog.errors import CogError, UnsafeFileError
from cog.models.formats.tensors import StorageType, from_bytes, rebuild_tensor
from cog.runtime import safe_pickle
from cog.runtime.zip_files import require_stored

if TYPE_CHECKING:
    import torch


class _Object(safe_pickle.Instance):
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
    import torch

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
            elif isinstance(value, safe_pickle.Sealed) and isinstance(value.value, torch.Tensor):
                tensors[f"{prefix}{name}"] = value.value

    visit(root, "")
    return tensors


def _first(value: Any, *rest: Any) -> Any:
    """Return the list, in place of the typed list constructors in ``torch.jit._pickle``."""
    return value


_NAMES = {
    ("torch._utils", "_rebuild_tensor_v2"): rebuild_tensor,
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
    return _NAMES.get((module, name)) or StorageType.named(module, name)


class _Storages:
    """The data of the tensors in the archive, read on first use."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        self._archive = archive
        self._root = root
        self._read: dict[str, safe_pickle.Sealed] = {}

    def __call__(self, persistent_id: Any) -> safe_pickle.Sealed:
        kind, storage_type, key, _device, numel = persistent_id
        if kind != "storage" or not isinstance(storage_type, StorageType) or not isinstance(key, str):
            raise UnsafeFileError("a persistent id that is not a storage")
        if key not in self._read:
            info = self._archive.getinfo(f"{self._root}/data/{key}")
            if info.file_size != numel * storage_type.dtype.itemsize:
                raise ValueError(f"storage {key} has {info.file_size} bytes")
            content = from_bytes(self._archive.read(info), storage_type.dtype)
            self._read[key] = safe_pickle.Sealed(content)
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
    try:
        with open(path, "rb") as handle, zipfile.ZipFile(require_stored(handle)) as archive:
            root = next(name for name in archive.namelist() if name.endswith("/data.pkl")).rpartition("/")[0]
            if "/" in root:
                raise ValueError("data.pkl in a folder of a folder")
            if f"{root}/byteorder" in archive.namelist() and archive.read(f"{root}/byteorder") != b"little":
                raise CogError(f"{path} was written on a big-endian machine, which is not supported")
            module = safe_pickle.load(
                archive.read(f"{root}/data.pkl"), names=_names, persistent=_Storages(archive, root)
            )
        if not isinstance(module, _Object):
            raise CogError(f"{path} holds no module, expected a TorchScript archive of a network")
        return _tensors(module)
    except UnsafeFileError as error:
        raise UnsafeFileError(
            f"refused to read {path}: it contains {error}; expected only parameters"
        ) from None
    except OSError as error:
        raise CogError(f"cannot read {path}: {error.strerror or error}") from error
    except (*safe_pickle.MALFORMED, RuntimeError, StopIteration, zipfile.BadZipFile, zlib.error) as error:
        raise CogError(
            f"{path} is not a readable TorchScript archive ({type(error).__name__}: {error}); is it complete?"
        ) from None
