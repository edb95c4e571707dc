"""Members of tar and zip files: their places in the file and their bytes, without unpacking the file.

Headers are read once, for the index. A member is then read with ``pread``, which has no file position that
forked processes would share.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, NamedTuple

from cog.errors import CogError
from cog.runtime import files

#: Number of archives that a process keeps open; ImageNet-21K has 21,841.
MOST_OPEN = 64

#: Largest size of an image in bytes, packed or not: an archive of a few kilobytes can claim any size.
LARGEST_IMAGE = 1 << 29

#: Kinds of members: bare data, stored or deflated data after the local header of a zip file, a tar file, what
#: is no plain file (a link, a device, sparse, encrypted, packed in another way) and cannot be read.
PLAIN, STORED, DEFLATED, TAR_INSIDE, OTHER = range(5)

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_LARGEST_HEADER = 1 << 20  # bytes of a chain of extended headers
_LONGEST_PATH = 4096  # letters: all rows of an index are as long as the longest


class Member(NamedTuple):
    """A file in an archive; offset and stored size in bytes, of a zip file with its header and the CRC-32."""

    path: str
    offset: int
    size: int
    crc: int
    kind: int


class Source(NamedTuple):
    """A tar or zip file in a certain state, or the tar file ``inside`` one; the time is in nanoseconds."""

    path: str
    size: int
    mtime_ns: int
    inside: Member | None = None

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Source:
        """Return an archive in its current state, or raise an OSError."""
        status = os.stat(path)
        return cls(os.fspath(path), status.st_size, status.st_mtime_ns)

    @property
    def label(self) -> str:
        """The path, with the archive as a folder."""
        return f"{self.path}/{self.inside.path}" if self.inside else self.path


class _OpenFile:
    """It is closed with its last reference, so that no thread reads another file under its number."""

    def __init__(self, handle: IO[bytes]) -> None:
        self._handle, self.number = handle, handle.fileno()

    def __del__(self) -> None:
        self._handle.close()


@functools.lru_cache(MOST_OPEN)
def _open(path: str, size: int, mtime_ns: int) -> _OpenFile:
    file = _OpenFile(files.open_regular(path, buffering=0))
    _require_same(os.fstat(file.number), path, size, mtime_ns)
    return file


def _require_same(status: os.stat_result, path: str, size: int, mtime_ns: int) -> None:
    if (status.st_size, status.st_mtime_ns) != (size, mtime_ns):
        raise OSError(errno.ESTALE, "the archive has changed since it was indexed", path)


def _pread(source: Source, offset: int, size: int) -> bytes:
    """Return ``size`` bytes of an archive; fewer at its end."""
    try:
        data = os.pread((file := _open(*source[:3])).number, size, offset)
    except OSError:
        _open.cache_clear()  # a restarted file server does not accept old descriptors
        data = os.pread((file := _open(*source[:3])).number, size, offset)
    while len(data) < size and (more := os.pread(file.number, size - len(data), offset + len(data))):
        data += more
    return data


def read_member(source: Source, member: Member) -> bytes:
    """Return the bytes of a member, unpacked.

    Raises:
        OSError: the archive has changed or cannot be read, or the member is no file, is damaged or too large.
    """
    if member.kind == OTHER:
        what = "it is a link, a device, sparse, encrypted, or not packed by deflate, expected a plain file"
        raise OSError(errno.EINVAL, what, member.path)
    require_size(member.size, member.path)
    if member.kind == PLAIN:
        return _pread(source, member.offset, member.size)
    header = _pread(source, member.offset, _LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or header[:4] != b"PK\3\4":
        raise OSError(errno.EIO, "its header in the zip file is damaged", member.path)
    _, n_name, n_extra = _LOCAL_HEADER.unpack(header)
    data = _pread(source, member.offset + _LOCAL_HEADER.size + n_name + n_extra, member.size)
    if member.kind == DEFLATED:
        data = inflate(data, member.path, wbits=-zlib.MAX_WBITS)
    if zlib.crc32(data) != member.crc:
        raise OSError(errno.EIO, "its bytes in the zip file are damaged (CRC-32)", member.path)
    return data


def inflate(data: bytes, name: str, *, wbits: int) -> bytes:
    """Unpack the compressed bytes of an image; an OSError tells of damaged or cut bytes, or of too many."""
    stream = zlib.decompressobj(wbits)
    try:
        unpacked = stream.decompress(data, LARGEST_IMAGE)
    except zlib.error as error:
        raise OSError(errno.EIO, f"its compressed bytes are damaged ({error})", name) from error
    if not stream.eof:
        require_size(len(unpacked) + 1, name)
        raise OSError(errno.EIO, "its compressed bytes end too early", name)
    return unpacked


def require_size(size: int, name: str) -> None:
    """Raise an OSError for an image of more than :data:`LARGEST_IMAGE` bytes."""
    if size > LARGEST_IMAGE:
        raise OSError(errno.EFBIG, f"it has more than {LARGEST_IMAGE >> 20} MiB, expected an image", name)


class _Headers(io.BufferedReader):
    """A file of which no more bytes are read at once than headers can have."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _LARGEST_HEADER:
            raise OSError(errno.EFBIG, f"a header of {size:,} bytes")
        return super().read(size)


def members(source: Source) -> Iterator[Member]:
    """Yield the files in an archive, without folders; only headers are read.

    Raises:
        CogError: it is no archive, damaged, cut off, compressed as a whole, or names files outside of it.
        OSError: it cannot be read, or has changed.
    """
    with _Headers(files.open_regular(source.path, buffering=0)) as handle:  # type: ignore[arg-type]
        _require_same(os.fstat(handle.fileno()), *source[:3])
        if source.path.lower().endswith(".zip"):
            yield from _zip_members(source)
            return
        handle.seek(source.inside.offset if source.inside else 0)
        if handle.peek(2)[:2] == b"\x1f\x8b":
            raise CogError(
                f"{source.label} is compressed as a whole; unpack it once with gunzip (it stays one file)"
            )
        stop = min(source.inside.offset + source.inside.size, source.size) if source.inside else source.size
        yield from _tar_members(handle, stop, source.label)


def _tar_members(handle: _Headers, stop: int, label: str) -> Iterator[Member]:
    """Yield the members of the tar file between the position of the handle and ``stop``."""
    last, end, fault = "its beginning", -1, ""
    try:
        with tarfile.open(fileobj=handle, mode="r:") as tar:
            info = tar.next()
            while info is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # the list would grow to gigabytes
                if info.size < 0 or tar.offset <= end:
                    raise tarfile.ReadError("a negative size")
                end, last = tar.offset, f"its member {info.name[:200]!r}"
                is_tar, is_plain = info.name.lower().endswith(".tar"), info.isreg() and not info.issparse()
                kind = (TAR_INSIDE if is_tar else PLAIN) if is_plain else OTHER
                if not info.isdir():
                    yield Member(_inside(info.name, label), info.offset_data, info.size, 0, kind)
                info = tar.next() if end < stop else None
            end = tar.offset
        handle.seek(min(end, stop))
        if end > stop:
            fault = "it is cut off"
        elif handle.read(min(tarfile.BLOCKSIZE, stop - end)).strip(b"\0"):
            fault = "a damaged header"
    except (tarfile.TarError, OSError, ValueError, ArithmeticError, RecursionError) as error:
        fault = str(error) or type(error).__name__
    if fault:
        raise CogError(f"{label} cannot be read as a tar file after {last}: {fault}; fetch it again")


def _zip_members(source: Source) -> Iterator[Member]:
    try:
        directory = zipfile.ZipFile(source.path).infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error) as error:
        raise CogError(f"{source.path} cannot be read as a zip file: {error}; fetch it again") from error
    for info in directory:
        kind = {zipfile.ZIP_STORED: STORED, zipfile.ZIP_DEFLATED: DEFLATED}.get(info.compress_type, OTHER)
        mode = info.external_attr >> 16 if info.create_system == 3 else 0  # of Unix
        if info.flag_bits & 1 or stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            kind = OTHER
        if not info.filename.endswith("/"):
            path = _inside(info.filename, source.path)
            yield Member(path, info.header_offset, info.compress_size, info.CRC, kind)


def _inside(path: str, archive: str) -> str:
    """Return the path of a member without ``./``."""
    parts = path.split("/")
    if parts[0] == "" or ".." in parts or "\0" in path or len(path) > _LONGEST_PATH:
        found = f"has a member {path[:200]!r}, which names no file in it"
        raise CogError(f"{archive} {found}; this is no archive of images")
    return "/".join(part for part in parts if part not in ("", "."))
