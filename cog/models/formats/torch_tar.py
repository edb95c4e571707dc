"""The container of torch 0.1 (2016-2017): a tar archive with members ``storages``, ``tensors``, ``pickle``.

The oldest torchvision weights are in it. ``torch.load(weights_only=True)`` refuses the container because its
own reader of it unpickles without restriction; this one does not.
"""

from __future__ import annotations

import io
import struct
import tarfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from cog import safe_pickle
from cog.errors import CogError, UnsafeFileError
from cog.models.formats.tensors import StorageType, from_bytes, view

if TYPE_CHECKING:
    import torch

_TENSORS = ("FloatTensor", "DoubleTensor", "HalfTensor", "LongTensor", "IntTensor", "ByteTensor")


def _rebuild_parameter(data: Any, requires_grad: Any = True, hooks: Any = None) -> Any:
    """Stand-in of ``torch._utils._rebuild_parameter``: the tensor itself."""
    return data


_REBUILD_PARAMETER = safe_pickle.Constructor(_rebuild_parameter)


def _names(module: str, name: str) -> Any:
    if module in ("torch", "torch.cuda") and name in _TENSORS:
        return name
    if (module, name) == ("torch._utils", "_rebuild_parameter"):
        return _REBUILD_PARAMETER
    return StorageType.named(module, name)


def _load(file: IO[bytes], tensors: dict[int, torch.Tensor] | None = None) -> Any:
    """Read one pickle, in which the tensors are named by their keys."""
    known = tensors or {}
    return safe_pickle.load(file, names=_names, persistent=lambda key: known[int(key)])


def _exactly(file: IO[bytes], n_bytes: int) -> bytes:
    data = file.read(n_bytes) if n_bytes >= 0 else b""
    if len(data) != n_bytes:
        raise EOFError("data end early")
    return data


def _count(file: IO[bytes]) -> int:
    number = _load(file)
    if not isinstance(number, int):
        raise ValueError("no number of entries")
    return number


def _read_storages(file: IO[bytes]) -> dict[int, torch.Tensor]:
    storages: dict[int, torch.Tensor] = {}
    for _ in range(_count(file)):
        key, _location, storage_type = _load(file)
        if not isinstance(storage_type, StorageType):
            raise ValueError("storage of an unknown type")
        (numel,) = struct.unpack("<q", _exactly(file, 8))
        storages[key] = from_bytes(_exactly(file, numel * storage_type.dtype.itemsize), storage_type.dtype)
    for key, root, offset, numel in _load(file):  # storages that share another's memory
        storages[key] = view(storages[root], offset, (numel,), (1,))
    return storages


def _read_tensors(file: IO[bytes], storages: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    tensors: dict[int, torch.Tensor] = {}
    for _ in range(_count(file)):
        key, storage, _tensor_type = _load(file)
        ndim, _padding = struct.unpack("<ii", _exactly(file, 8))
        if not 0 <= ndim <= 16:
            raise ValueError("tensor with an impossible number of axes")
        numbers = struct.unpack(f"<{2 * ndim + 1}q", _exactly(file, 8 * (2 * ndim + 1)))
        tensors[key] = view(storages[storage], numbers[-1], numbers[:ndim], numbers[ndim:-1])
    return tensors


def read(path: Path) -> Any:
    """Read a file of ``torch.save`` of torch 0.1.

    Returns:
        What was saved, with tensors on the CPU.

    Raises:
        UnsafeFileError: when it names anything but tensors, storages, parameters and ordered dicts.
        CogError: when it is damaged.
    """
    try:
        with tarfile.open(path, "r:") as archive:

            def member(name: str) -> IO[bytes]:
                file = archive.extractfile(name)  # read in place: nothing is unpacked to the disk
                if file is None:
                    raise ValueError(f"no member {name}")
                return file

            # Buffered in memory: the unpickler must not read ahead of the raw data that follow a pickle.
            storages = _read_storages(io.BytesIO(member("storages").read()))
            tensors = _read_tensors(io.BytesIO(member("tensors").read()), storages)
            return _load(member("pickle"), tensors)
    except UnsafeFileError as error:
        raise UnsafeFileError(
            f"refused to read {path}: it contains {error}; expected only parameters. torchvision has "
            "released these weights again in a newer container, see prepare_models/README.md"
        ) from None
    except OSError as error:
        raise CogError(f"cannot read {path}: {error.strerror or error}") from error
    except (*safe_pickle.MALFORMED, EOFError, RuntimeError, struct.error, tarfile.TarError) as error:
        raise CogError(
            f"{path} is not a readable file of torch 0.1 ({type(error).__name__}: {error}); is it complete?"
        ) from None
