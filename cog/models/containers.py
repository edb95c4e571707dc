"""Readers of checkpoint containers; none imports or calls a class or function that a file names.

TensorFlow checkpoints (SimCLR-v2) have the format V2, "bundle": the index is a LevelDB table
(https://github.com/google/leveldb/blob/main/doc/table_format.md) of protocol buffers ``BundleEntryProto``
(tensorflow/core/protobuf/tensor_bundle.proto), the data files hold raw tensors. DeepMind's BYOL was pickled
by dill, with Haiku's mappings of arrays. TorchScript archives (CLIP) hold a pickle of modules and storages.
"""

import io
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import torch

from cog.runtime import files, safe_load


def leaves(tree: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what nested dicts hold, named by its path: ``state_dict.conv1.weight``."""
    left, waiting = 1 << 20, [("", tree)]  # entries; dicts may contain themselves
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            if (left := left - len(value)) < 0 or len(name) > 1000:
                raise ValueError("dicts in dicts without end")
            waiting += [(f"{name}{key}.", inner) for key, inner in reversed(value.items())]
        else:
            yield name.removesuffix("."), value


# --- TensorFlow

_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8"}  # tensorflow/core/framework/types.proto


def read_tensorflow(path: Path, index: Path, *shards: Path, prefix: str) -> dict[str, np.ndarray]:
    """Return the tensors of a TensorFlow checkpoint below a prefix of names; their checksums are verified."""
    with safe_load.explained(path, "TensorFlow checkpoint"):
        expected = int(shards[0].name.rpartition("-")[2]) if shards else 1
        if len(shards) != expected:
            raise ValueError(f"{len(shards)} of {expected} data files (.data-00000-of-00001) are there")
        tensors = {}
        for key, message in _table(files.contents(index)):
            if key:  # the empty name is that of the header
                fields: dict[int, Any] = {2: b"", 3: 0, 4: 0, **dict(_fields(message))}
                shard, first, size = shards[fields[3]], fields[4], fields[5]
                if first + size > shard.stat().st_size:
                    raise ValueError(f"the data of {key.decode()} are incomplete")
                if key.startswith(prefix.encode()):
                    with files.open_regular(shard) as file:
                        file.seek(first)
                        raw = file.read(size)
                    _check(raw, fields[6])
                    shape = [dict(_fields(part)).get(1, 0) for n, part in _fields(fields[2]) if n == 2]
                    tensors[key.decode()] = np.frombuffer(raw, _DTYPES[fields[1]]).reshape(shape)
        return tensors


def _table(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a LevelDB table."""
    if struct.unpack("<Q", table[-8:])[0] != 0xDB4775248B80FB57:
        raise ValueError("it does not end as an index does")
    footer = io.BytesIO(table[-48:])
    numbers = [_varint(footer) for _ in range(4)]  # places and sizes of the meta block and of the index block
    for _, handle in _block(table, *numbers[2:]):
        stream = io.BytesIO(handle)
        yield from _block(table, _varint(stream), _varint(stream))


def _block(table: bytes, first: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of a block, which is followed by its kind of compression (0) and its checksum."""
    data = table[first : first + size + 1]
    _check(data, struct.unpack("<I", table[first + size + 1 : first + size + 5])[0])
    stop = size - 4 * (struct.unpack("<I", data[-5:-1])[0] + 1)  # before the restart points
    stream, key = io.BytesIO(data), b""
    while stream.tell() < stop:
        shared, fresh, length = (_varint(stream) for _ in range(3))
        key = key[:shared] + stream.read(fresh)
        yield key, stream.read(length)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield ``(field number, value)`` of a protocol buffer; values are numbers, or bytes."""
    stream = io.BytesIO(message)
    while stream.tell() < len(message):
        tag = _varint(stream)
        kind = tag & 7
        if kind in (0, 2):
            number = _varint(stream)
            yield tag >> 3, stream.read(number) if kind else number
        else:
            yield tag >> 3, int.from_bytes(stream.read({1: 8, 5: 4}[kind]), "little")


def _varint(stream: io.BytesIO) -> int:
    """Return a base-128 number of at most 64 bits."""
    number = 0
    for shift in range(0, 64, 7):
        octet = stream.read(1)[0]
        number |= (octet & 127) << shift
        if octet < 128:
            return number
    raise ValueError("a number does not end")


def _check(data: bytes, checksum: int) -> None:
    """Compare the CRC-32C as TensorFlow and LevelDB store it: rotated by 15 bits, plus a constant."""
    crc = google_crc32c.value(data)
    if checksum != (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF:
        raise ValueError("a checksum is wrong")


# --- Haiku


def _named_tuple(name: Any, fields: Any, *_: Any) -> type:
    """Return a class whose instances are dicts, in place of dill's function for named tuples."""

    class Record:
        def __new__(cls, *values: Any) -> Any:
            return dict(zip(fields, values, strict=True))

    return Record


def _array(constructor: Any, arguments: Any, state: Any, attributes: Any = None) -> np.ndarray:
    made = constructor(*arguments)
    safe_load.set_state(made, state)
    return made


#: dill moved its module in 0.2.8, Haiku renamed its mappings in August 2020.
_HAIKU = {
    **{f"dill.{module}._create_namedtuple": _named_tuple for module in ("dill", "_dill")},
    **{f"dill.{module}._create_array": _array for module in ("dill", "_dill")},
    **{f"haiku._src.data_structures.{name}": dict for name in ("FlatMapping", "frozendict")},
}


class _HaikuReader(safe_load.Reader):
    def find_class(self, module: str, name: str, /) -> Any:
        return _HAIKU.get(f"{module}.{name}") or super().find_class(module, name)


def read_haiku(path: Path) -> Any:
    """Return BYOL's ``{"experiment_state": {"online_params": {"res_net50/~/initial_conv": {"w": ...}}}}``."""
    with safe_load.explained(path, "checkpoint"):
        return _HaikuReader(files.contents(path)).load()


# --- TorchScript

_TYPES = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Bool")
_STORAGES = {f"{name}Storage": getattr(torch, name.lower()) for name in _TYPES}
_LISTS = ("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist", "restore_type_tag")


class _Module(dict):  # type: ignore[type-arg]
    """A stand-in for an instance of a class compiled into the archive: its attributes."""


def _rebuild_tensor(storage: torch.Tensor, offset: int, size: Any, stride: Any, *_: Any) -> Any:
    """Return a view of a storage, as ``torch._utils._rebuild_tensor_v2``; torch checks its bounds."""
    return storage.as_strided(tuple(size), tuple(stride), offset)


class _ScriptReader(safe_load.Reader):
    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(archive.read(f"{folder}/data.pkl"))
        self.archive, self.folder = archive, folder

    def find_class(self, module: str, name: str, /) -> Any:
        if module.split(".")[0] == "__torch__":
            return _Module
        if module in ("torch", "torch.cuda") and name in _STORAGES:
            return _STORAGES[name]
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if module == "torch.jit._pickle" and name in _LISTS:
            return lambda value, *_: value
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        _, dtype, key, *_ = pid  # of a storage
        data = bytearray(self.archive.read(f"{self.folder}/data/{key}"))
        return torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)

    def build(self, made: Any, state: Any) -> None:
        if isinstance(made, _Module):
            made.update(state)
        else:
            super().build(made, state)


def read_torchscript(path: Path) -> dict[str, torch.Tensor]:
    """Return parameters and buffers of an archive of ``torch.jit.save``; its code is not read."""
    with (
        safe_load.explained(path, "TorchScript archive"),
        files.open_regular(path) as handle,
        zipfile.ZipFile(handle) as archive,
    ):
        safe_load.require_stored(handle)
        folder = next(n[:-9] for n in archive.namelist() if n.split("/")[1:] == ["data.pkl"])
        if f"{folder}/byteorder" in archive.namelist() and archive.read(f"{folder}/byteorder") != b"little":
            raise ValueError("it was written on a big-endian machine")
        root = _ScriptReader(archive, folder).load()
        return {name: leaf for name, leaf in leaves(root) if isinstance(leaf, torch.Tensor)}
