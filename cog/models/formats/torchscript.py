"""TorchScript archives (CLIP): the parameters, without torch.jit and without running their code."""

from __future__ import annotations

import collections
import io
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog.errors import CogError, UnsafeFileError
from cog.models.formats.tensors import StorageType, from_bytes, rebuild_tensor
from cog.safe_load import UNREADABLE, RestrictedUnpickler

if TYPE_CHECKING:
    import torch


class _Object:
    """Stands for an instance of a class compiled into the archive: only its attributes are kept."""

    def __setstate__(self, state: Any) -> None:
        self.attributes = state if isinstance(state, dict) else {}

    def tensors(self, prefix: str = "") -> dict[str, torch.Tensor]:
        """Return the tensors below this object by dotted name."""
        import torch

        found: dict[str, torch.Tensor] = {}
        for name, value in getattr(self, "attributes", {}).items():
            if isinstance(value, _Object):
                found |= value.tensors(f"{prefix}{name}.")
            elif isinstance(value, torch.Tensor):
                found[f"{prefix}{name}"] = value
        return found


def _first(value: Any, *rest: Any) -> Any:
    """Stand-in of the typed list constructors in ``torch.jit._pickle``."""
    return value


_EXTRA = {
    ("torch._utils", "_rebuild_tensor_v2"): rebuild_tensor,
    ("collections", "OrderedDict"): collections.OrderedDict,
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


class _Unpickler(RestrictedUnpickler):
    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{root}/data.pkl")), _EXTRA)
        self._archive = archive
        self._root = root
        self._storages: dict[str, torch.Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "__torch__":
            return _Object
        return StorageType.named(module, name) or super().find_class(module, name)

    def persistent_load(self, pid: Any) -> torch.Tensor:
        kind, storage_type, key, _device, numel = pid
        if kind != "storage" or not isinstance(storage_type, StorageType) or not isinstance(key, str):
            raise UnsafeFileError("a persistent id that is not a storage")
        if key not in self._storages:
            info = self._archive.getinfo(f"{self._root}/data/{key}")
            if info.file_size != numel * storage_type.dtype.itemsize:
                raise ValueError(f"storage {key} has {info.file_size} bytes")
            self._storages[key] = from_bytes(self._archive.read(info), storage_type.dtype)
        return self._storages[key]


def read(path: Path) -> dict[str, torch.Tensor]:
    """Read parameters and buffers of a TorchScript archive.

    Args:
        path: a file of ``torch.jit.save``.

    Returns:
        Dotted name -> tensor, as ``torch.jit.load(path).state_dict()`` names them.

    Raises:
        UnsafeFileError: when the archive names a class or function that parameters do not need.
        CogError: when it is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            root = next(name for name in archive.namelist() if name.endswith("/data.pkl")).rpartition("/")[0]
            if f"{root}/byteorder" in archive.namelist() and archive.read(f"{root}/byteorder") != b"little":
                raise CogError(f"{path} was written on a big-endian machine, which is not supported")
            module = _Unpickler(archive, root).load()
    except UnsafeFileError as error:
        raise UnsafeFileError(
            f"refused to read {path}: it contains {error}; expected only parameters"
        ) from None
    except OSError as error:
        raise CogError(f"cannot read {path}: {error.strerror or error}") from error
    except (*UNREADABLE, RuntimeError, StopIteration, zipfile.BadZipFile, zlib.error) as error:
        raise CogError(
            f"{path} is not a readable TorchScript archive ({type(error).__name__}: {error}); is it complete?"
        ) from None
    if not isinstance(module, _Object):
        raise CogError(f"{path} holds no module, expected a TorchScript archive of a network")
    return module.tensors()
