"""TorchScript archives (CLIP): the parameters, without torch.jit and without running their code."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import safe_pickle
from cog.errors import CogError, UnsafeFileError
from cog.models.formats.tensors import StorageType, from_bytes, rebuild_tensor

if TYPE_CHECKING:
    import torch


class _Object(safe_pickle.Instance):
    """Stands for an instance of a class compiled into the archive: only its attributes are kept."""

    def __init__(self, *_: Any) -> None:
        self.attributes: dict[Any, Any] = {}

    def set_state(self, state: Any) -> None:
        """Keep attributes that are given by name."""
        self.attributes = state if isinstance(state, dict) else {}

    def tensors(self, prefix: str = "") -> dict[str, torch.Tensor]:
        """Return the tensors below this object by dotted name."""
        import torch

        found: dict[str, torch.Tensor] = {}
        for name, value in self.attributes.items():
            if isinstance(value, _Object):
                found |= value.tensors(f"{prefix}{name}.")
            elif isinstance(value, torch.Tensor):
                found[f"{prefix}{name}"] = value
        return found


def _first(value: Any, *rest: Any) -> Any:
    """Stand-in of the typed list constructors in ``torch.jit._pickle``."""
    return value


_OBJECT = safe_pickle.Constructor(_Object)
_NAMES = {
    ("torch._utils", "_rebuild_tensor_v2"): safe_pickle.Constructor(rebuild_tensor),
    **{
        ("torch.jit._pickle", name): safe_pickle.Constructor(_first)
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
        return _OBJECT
    return _NAMES.get((module, name)) or StorageType.named(module, name)


class _Storages:
    """The tensors' data in the archive, read when first asked for."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        self._archive = archive
        self._root = root
        self._read: dict[str, torch.Tensor] = {}

    def __call__(self, persistent_id: Any) -> torch.Tensor:
        kind, storage_type, key, _device, numel = persistent_id
        if kind != "storage" or not isinstance(storage_type, StorageType) or not isinstance(key, str):
            raise UnsafeFileError("a persistent id that is not a storage")
        if key not in self._read:
            info = self._archive.getinfo(f"{self._root}/data/{key}")
            if info.file_size != numel * storage_type.dtype.itemsize:
                raise ValueError(f"storage {key} has {info.file_size} bytes")
            self._read[key] = from_bytes(self._archive.read(info), storage_type.dtype)
        return self._read[key]


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
            pickled = io.BytesIO(archive.read(f"{root}/data.pkl"))
            module = safe_pickle.load(pickled, names=_names, persistent=_Storages(archive, root))
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
    if not isinstance(module, _Object):
        raise CogError(f"{path} holds no module, expected a TorchScript archive of a network")
    return module.tensors()
