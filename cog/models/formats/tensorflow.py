"""TensorFlow checkpoints (format V2, "bundle"): ``<prefix>.index`` and ``<prefix>.data-00000-of-0000N``.

The index is a LevelDB table (https://github.com/google/leveldb/blob/main/doc/table_format.md) of protocol
buffers ``BundleEntryProto`` (tensorflow/core/protobuf/tensor_bundle.proto); the data files hold raw
tensors. The readers verify the checksums of all data that they read. TensorFlow is not needed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np

from cog.errors import CogError
from cog.models.formats.detect import checkpoint_files
from cog.models.formats.errors import errors_explained
from cog.runtime import files

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_BLOCK_TRAILER_BYTES = 5  # compression type, checksum
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8"}  # tensorflow/core/framework/types.proto


def _masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C in the form that TensorFlow and LevelDB store: rotated by 15 bits, plus a constant."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@dataclass(frozen=True)
class _Entry:
    """Place of a tensor in the data files."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a base-128 number and the position after it."""
    number = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError("a number ends early")
        octet = data[position]
        position += 1
        number |= (octet & 127) << shift
        if octet < 128:
            return number, position
        shift += 7


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield ``(field number, value)`` of a protocol buffer; values are numbers, or bytes of strings and messages."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == 0:
            value, position = _varint(message, position)
            yield tag >> 3, value
            continue
        if kind == 2:
            length, position = _varint(message, position)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError("a field of an unknown kind")
        if position + length > len(message):
            raise ValueError("a field ends early")
        raw = message[position : position + length]
        yield tag >> 3, raw if kind == 2 else int.from_bytes(raw, "little")
        position += length


def _number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("a field of the wrong kind")
    return value


def _message(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field of the wrong kind")
    return value


def _parse_entry(message: bytes) -> _Entry:
    numbers = {1: 0, 3: 0, 4: 0, 5: 0, 6: 0}
    shape: list[int] = []
    for field, value in _fields(message):
        if field in numbers:
            numbers[field] = _number(value)
        elif field == 2:
            for part, dimension in _fields(_message(value)):
                if part == 2:
                    sizes = [_number(size) for name, size in _fields(_message(dimension)) if name == 1]
                    shape.append(sizes[0] if sizes else 0)
    return _Entry(numbers[1], tuple(shape), numbers[3], numbers[4], numbers[5], numbers[6])


def _block(table: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of one block of the table, after checking its checksum."""
    end = offset + size + _BLOCK_TRAILER_BYTES
    if end > len(table):
        raise ValueError("a block reaches beyond the end of the file")
    if _masked_crc32c(table[offset : end - 4]) != struct.unpack("<I", table[end - 4 : end])[0]:
        raise ValueError("the checksum of a block is wrong")
    if table[end - 5]:
        raise ValueError("a block is compressed, which TensorFlow never does")
    data = table[offset : offset + size]
    if size < 4:
        raise ValueError("a block is too short")
    n_restarts = struct.unpack("<I", data[-4:])[0]
    stop = size - 4 * (n_restarts + 1)
    position, key = 0, b""
    while position < stop:
        shared, position = _varint(data, position)
        fresh, position = _varint(data, position)
        length, position = _varint(data, position)
        if shared > len(key) or position + fresh + length > stop:
            raise ValueError("an entry of a block is malformed")
        key = key[:shared] + data[position : position + fresh]
        position += fresh
        yield key, data[position : position + length]
        position += length


def _read_index(path: Path) -> dict[str, _Entry]:
    table = files.contents(path, "index of a TensorFlow checkpoint")
    if len(table) < _FOOTER_BYTES or struct.unpack("<Q", table[-8:])[0] != _MAGIC:
        raise ValueError("it does not end as an index does")
    footer = table[-_FOOTER_BYTES:]
    _, position = _varint(footer, 0)
    _, position = _varint(footer, position)  # the handle of the meta block, which is empty
    offset, position = _varint(footer, position)
    size, position = _varint(footer, position)
    entries: dict[str, _Entry] = {}
    for _, handle in _block(table, offset, size):
        start, position = _varint(handle, 0)
        length, position = _varint(handle, position)
        for key, value in _block(table, start, length):
            if key:  # the empty key is that of the header
                entries[key.decode()] = _parse_entry(value)
    return entries


def _read_tensor(name: str, entry: _Entry, shards: list[Path]) -> np.ndarray:
    if entry.dtype not in _DTYPES:
        raise ValueError(f"{name} is not stored as a plain tensor of numbers")
    dtype = np.dtype(_DTYPES[entry.dtype])
    if entry.size != math.prod(entry.shape) * dtype.itemsize:
        raise ValueError(f"the size of {name} contradicts its shape")
    with open(shards[entry.shard], "rb") as file:
        file.seek(entry.offset)
        raw = file.read(entry.size)
    if _masked_crc32c(raw) != entry.crc:
        raise ValueError(f"the checksum of {name} is wrong")
    return np.frombuffer(raw, dtype=dtype).reshape(entry.shape)


def read(path: Path, *, wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
    """Read tensors of a checkpoint.

    Args:
        path: common prefix of the checkpoint's files, or the ``.index`` file.
        wanted: function of a tensor's name that returns whether the tensor is read.

    Returns:
        Name -> array for the wanted tensors.

    Raises:
        CogError: a file is missing or damaged (the index, or a wanted tensor).
    """
    index, *shards = checkpoint_files(path)
    if not shards:
        raise CogError(
            f"{path}: there is no data file beside {index.name} ({index.stem}.data-00000-of-00001)"
        )
    with errors_explained(path, "TensorFlow checkpoint"):
        expected = int(shards[0].name.rpartition("-")[2])
        if len(shards) != expected:
            raise ValueError(f"{len(shards)} of {expected} data files are there")
        entries = _read_index(index)
        sizes = [shard.stat().st_size for shard in shards]
        for name, entry in entries.items():
            if entry.shard >= len(shards) or entry.offset + entry.size > sizes[entry.shard]:
                raise ValueError(f"the data of {name} are incomplete")
        return {name: _read_tensor(name, entry, shards) for name, entry in entries.items() if wanted(name)}
