"""Readers of checkpoint containers; none imports or calls a class or function that a file names.

TensorFlow checkpoints (SimCLR-v2) have the format V2, "bundle": the index is a LevelDB table
(https://github.com/google/leveldb/blob/main/doc/table_format.md) of protocol buffers ``BundleEntryProto``
(tensorflow/core/protobuf/tensor_bundle.proto), the data files hold raw tensors. Pickles of DeepMind's BYOL
were written by dill, with Haiku's mappings of numpy arrays. TorchScript archives (CLIP) hold a pickle of
modules and storages.
"""

from __future__ import annotations

import functools
import math
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import torch

from cog.errors import CogError, UnsafeFileError
from cog.runtime import files, safe_load

#: Most entries of nested mappings and modules, which may contain one another.
_MOST_ENTRIES = 100_000


# --- TensorFlow

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8"}  # tensorflow/core/framework/types.proto


def read_tensorflow(path: Path, index: Path, *shards: Path, prefix: str) -> dict[str, np.ndarray]:
    """Return the tensors of a TensorFlow checkpoint below a prefix of names; their checksums are verified."""
    if not shards:
        raise CogError(
            f"{path}: there is no data file beside {index.name} ({index.stem}.data-00000-of-00001)"
        )
    with safe_load.explained(path, "TensorFlow checkpoint"):
        expected = int(shards[0].name.rpartition("-")[2])
        if len(shards) != expected:
            raise ValueError(f"{len(shards)} of {expected} data files are there")
        tensors = {}
        for key, value in _table(files.contents(index)):
            name = key.decode()
            if name:  # the empty name is that of the header
                read = _tensor(name, value, shards)
                if name.startswith(prefix):
                    tensors[name] = read()
        return tensors


def _table(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a LevelDB table."""
    if len(table) < _FOOTER_BYTES or struct.unpack("<Q", table[-8:])[0] != _MAGIC:
        raise ValueError("it does not end as an index does")
    footer = table[-_FOOTER_BYTES:]
    numbers, position = [], 0
    for _ in range(4):  # place and size of the meta block, which is empty, and of the index block
        number, position = _varint(footer, position)
        numbers.append(number)
    for _, handle in _block(table, *numbers[2:]):
        first, position = _varint(handle, 0)
        yield from _block(table, first, _varint(handle, position)[0])


def _block(table: bytes, first: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    stop = first + size
    if size < 4 or stop + 5 > len(table):
        raise ValueError("a block reaches beyond the end of the file")
    if _masked_crc(table[first : stop + 1]) != struct.unpack("<I", table[stop + 1 : stop + 5])[0]:
        raise ValueError("the checksum of a block is wrong")
    if table[stop]:
        raise ValueError("a block is compressed, which TensorFlow never does")
    data = table[first:stop]
    stop = size - 4 * (struct.unpack("<I", data[-4:])[0] + 1)  # before the restart points
    position, key = 0, b""
    while position < stop:
        shared, position = _varint(data, position)
        fresh, position = _varint(data, position)
        length, position = _varint(data, position)
        if shared > len(key) or position + fresh + length > stop:
            raise ValueError("an entry of a block is malformed")
        key = key[:shared] + data[position : position + fresh]
        position += fresh + length
        yield key, data[position - length : position]


def _tensor(name: str, message: bytes, shards: tuple[Path, ...]) -> Callable[[], np.ndarray]:
    """Return a function that reads the tensor that a ``BundleEntryProto`` describes."""
    shape: list[int] = []
    fields = dict.fromkeys((1, 3, 4, 5, 6), 0)
    for field, value in _fields(message):
        if field in fields and isinstance(value, int):
            fields[field] = value
        elif field == 2 and isinstance(value, bytes):
            dimensions = [dimension for part, dimension in _fields(value) if part == 2]
            shape = [int(dict(_fields(bytes(dimension))).get(1, 0)) for dimension in dimensions]
    kind, shard, offset, size, checksum = fields.values()
    if offset + size > shards[shard].stat().st_size:
        raise ValueError(f"the data of {name} are incomplete")

    def read() -> np.ndarray:
        dtype = np.dtype(_DTYPES[kind])
        if size != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"the size of {name} contradicts its shape")
        with files.open_regular(shards[shard]) as file:
            file.seek(offset)
            raw = file.read(size)
        if _masked_crc(raw) != checksum:
            raise ValueError(f"the checksum of {name} is wrong")
        return np.frombuffer(raw, dtype=dtype).reshape(shape)

    return read


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield ``(field number, value)`` of a protocol buffer; values are numbers, or bytes."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == 0:
            value, position = _varint(message, position)
            yield tag >> 3, value
            continue
        length, position = _varint(message, position) if kind == 2 else ({1: 8, 5: 4}[kind], position)
        raw = message[position : position + length]
        if len(raw) != length:
            raise ValueError("a field ends early")
        yield tag >> 3, raw if kind == 2 else int.from_bytes(raw, "little")
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a base-128 number of at most 64 bits and the position after it."""
    number = 0
    for shift in range(0, 64, 7):
        octet = data[position]
        position += 1
        number |= (octet & 127) << shift
        if octet < 128:
            return number, position
    raise ValueError("a number does not end")


def _masked_crc(data: bytes) -> int:
    """Return the CRC-32C as TensorFlow and LevelDB store it: rotated by 15 bits, plus a constant."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


# --- Haiku


def _named_tuple(name: Any, fields: Any, module: Any, defaults: Any = None) -> type:
    """Return a class whose instances are dicts, in place of dill's function for named tuples."""
    if not isinstance(fields, list | tuple) or not all(isinstance(text, str) for text in fields):
        raise UnsafeFileError("a malformed named tuple")

    class Record:
        def __new__(cls, *values: Any) -> Any:
            return dict(zip(fields, values, strict=True))

    return Record


def _array(constructor: Any, arguments: Any, state: Any, attributes: Any = None) -> np.ndarray:
    made = constructor(*arguments)
    made.__setstate__(state)
    return made


def _mapping(content: Any) -> dict[Any, Any]:
    if not isinstance(content, dict):
        raise UnsafeFileError("a malformed mapping")
    return content


#: dill moved its module in 0.2.8, Haiku renamed its mappings in August 2020.
_HAIKU: dict[tuple[str, str], Any] = {
    **{(dill, "_create_namedtuple"): _named_tuple for dill in ("dill._dill", "dill.dill")},
    **{(dill, "_create_array"): _array for dill in ("dill._dill", "dill.dill")},
    **{("haiku._src.data_structures", name): _mapping for name in ("FlatMapping", "frozendict")},
}


class _HaikuReader(safe_load.Reader):
    def stand_in(self, module: str, name: str) -> Any:
        return _HAIKU.get((module, name)) or super().stand_in(module, name)


def read_haiku(path: Path) -> Any:
    """Return the object in a pickle of BYOL, or of plain arrays; trees become dicts of their arrays.

    ``{"experiment_state": {"online_params/res_net50/~/initial_conv/w": array, ...}, ...}``
    """
    with safe_load.explained(path, "checkpoint"):
        data = _HaikuReader(files.contents(path)).load()
        if not isinstance(data, dict):
            return data
        return {k: _flat(v, "/", np.ndarray) if isinstance(v, dict) else v for k, v in data.items()}


def _flat(tree: dict[Any, Any], separator: str, kind: type) -> dict[str, Any]:
    """Return the leaves of a kind below nested dicts and modules, named by their paths."""
    leaves = {}
    for n, (name, value) in enumerate(_walk(tree, separator)):
        if n > _MOST_ENTRIES:
            raise ValueError("parts that contain one another")
        if isinstance(value, kind):
            leaves[name] = value
    return leaves


def _walk(tree: dict[Any, Any], separator: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        yield f"{prefix}{name}", value
        inner = value.attributes if isinstance(value, _Module) else value
        if isinstance(inner, dict):
            yield from _walk(inner, separator, f"{prefix}{name}{separator}")


# --- TorchScript

_DTYPES_BY_STORAGE = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Bool": torch.bool,
}


class _Module:
    """A stand-in for an instance of a class compiled into the archive; it keeps only the attributes."""

    __slots__ = ("attributes",)

    def __new__(cls, *_: Any) -> _Module:
        made = super().__new__(cls)
        made.attributes = {}
        return made

    def __setstate__(self, state: Any) -> None:
        self.attributes: dict[Any, Any] = state if isinstance(state, dict) else {}


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Any:
    """Return a view of a storage, as ``torch._utils._rebuild_tensor_v2``; torch checks its bounds."""
    if not isinstance(storage, safe_load.Sealed) or not isinstance(storage.value, torch.Tensor):
        raise UnsafeFileError("a malformed tensor")
    return safe_load.Sealed(storage.value.as_strided(tuple(size), tuple(stride), offset))


class _ScriptReader(safe_load.Reader):
    def stand_in(self, module: str, name: str) -> Any:
        return _script_name(module, name) or super().stand_in(module, name)


def _script_name(module: str, name: str) -> Any:
    """Return the stand-in of a name in a TorchScript archive; None if weights do not need it."""
    if module.split(".")[0] == "__torch__":
        return _Module
    kind = name.removesuffix("Storage")
    if module in ("torch", "torch.cuda") and kind in _DTYPES_BY_STORAGE:
        return _DTYPES_BY_STORAGE[kind]
    if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
        return _rebuild_tensor
    kinds = ("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist", "restore_type_tag")
    return (lambda value, *_: value) if module == "torch.jit._pickle" and name in kinds else None


def read_torchscript(path: Path) -> dict[str, torch.Tensor]:
    """Return parameters and buffers of an archive of ``torch.jit.save``, named as in ``state_dict()``.

    torch.jit is not used, and the archive's code is not read.
    """
    with (
        safe_load.explained(path, "TorchScript archive"),
        files.open_regular(path) as handle,
        zipfile.ZipFile(safe_load.require_stored(handle)) as archive,
    ):
        folder = next((n for n in archive.namelist() if n.endswith("/data.pkl")), "").rpartition("/")[0]
        if f"{folder}/byteorder" in archive.namelist() and archive.read(f"{folder}/byteorder") != b"little":
            raise CogError(f"{path} was written on a big-endian machine, which is not supported")

        @functools.cache
        def storage(key: str, dtype: torch.dtype) -> Any:
            data = bytearray(archive.read(f"{folder}/data/{key}"))
            return safe_load.Sealed(
                torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
            )

        def persistent(pid: Any) -> Any:
            if pid[0] != "storage" or not isinstance(pid[1], safe_load.Sealed):
                raise UnsafeFileError("a persistent id that is not a storage")
            return storage(pid[2], pid[1].value)

        data = archive.read(f"{folder}/data.pkl")
        reader = _ScriptReader(data)
        reader.persistent_load = persistent
        module = reader.load()
        if not isinstance(module, _Module):
            raise CogError(f"{path} holds no module, expected a TorchScript archive of a network")
        sealed = _flat(module.attributes, ".", safe_load.Sealed)
        return {name: leaf.value for name, leaf in sealed.items() if isinstance(leaf.value, torch.Tensor)}
