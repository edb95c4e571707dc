"""Members of tar and zip files: their places in the archive and their bytes, without unpacking the archive.

Headers are read once, when an archive is indexed. A member is then read with one or two calls of ``pread``, which has
no file position that threads or forked processes would share.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, NamedTuple

from cog.data.image_stores import LARGEST_IMAGE, inflate, too_large
from cog.errors import CogError
from cog.runtime import files

#: Number of archives that a process keeps open; ImageNet-21K has 21,841.
MOST_OPEN = 64

#: Kinds of members: bare data, or stored or deflated data after the local header of a zip file.
PLAIN, ZIP_STORED, ZIP_DEFLATED = range(3)
#: Kinds of members that are listed but cannot be read, and the reasons.
REFUSED = {
    3: "it is a link in its archive, expected a file",
    4: "it is a device or a pipe in its archive, expected a file",
    5: "it is a sparse file in its archive, expected a plain one",
    6: "it is encrypted in its archive",
    7: "it is packed in its archive in a way other than deflate",
}
_LINK, _DEVICE, _SPARSE, _ENCRYPTED, _PACKED = REFUSED
#: Kind of a tar file inside a tar file, which is scanned in its turn.
TAR_INSIDE = 8

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_BLOCK = 512
# Limits, in bytes, of a member's chain of extended headers and of a zip file's directory (10 million members).
_MOST_HEADER_BYTES = 1 << 20
_MOST_DIRECTORY_BYTES = 1 << 31
_LONGEST_PATH = 4096  # letters: all rows of an index are as long as the longest


class Member(NamedTuple):
    """A file in an archive.

    Attributes:
        path: path inside the archive.
        offset: offset in the archive, in bytes: of the data in a tar file, of the local header in a zip file.
        size: size of the data in the archive, in bytes.
        crc: CRC-32 of the unpacked data in a zip file, 0 in a tar file.
        kind: :data:`PLAIN`, :data:`ZIP_STORED`, :data:`ZIP_DEFLATED`, :data:`TAR_INSIDE` or a key of :data:`REFUSED`.
    """

    path: str
    offset: int
    size: int
    crc: int
    kind: int


@dataclass(frozen=True)
class ArchiveFile:
    """An archive in a certain state, such as that in which it was indexed.

    Attributes:
        path: path of the file.
        size: size of the file, in bytes.
        mtime_ns: time of the last change of the file, in nanoseconds.
    """

    path: str
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> ArchiveFile:
        """Return an archive in its current state.

        Raises:
            OSError: no such file.
        """
        status = os.stat(path)
        return cls(os.fspath(path), status.st_size, status.st_mtime_ns)

    def is_unchanged(self) -> bool:
        """Return whether the file still exists with the same size and time."""
        try:
            return ArchiveFile.of(self.path) == self
        except OSError:
            return False


# ---- reading --------------------------------------------------------------------------------------------


class _OpenFile:
    """A descriptor that is closed with its last reference, so that no thread reads another file under its number."""

    def __init__(self, handle: IO[bytes]) -> None:
        self._handle = handle
        self.fileno = handle.fileno()

    def __del__(self) -> None:
        self._handle.close()


@functools.lru_cache(MOST_OPEN)
def _open(archive: ArchiveFile) -> _OpenFile:
    file = _OpenFile(files.open_regular(archive.path, buffering=0))
    _require_same(file.fileno, archive)
    return file


def _require_same(fileno: int, archive: ArchiveFile) -> None:
    status = os.fstat(fileno)
    if (status.st_size, status.st_mtime_ns) != (archive.size, archive.mtime_ns):
        raise OSError(errno.ESTALE, "the archive has changed since it was indexed", archive.path)


def _pread(archive: ArchiveFile, offset: int, size: int) -> bytes:
    """Return ``size`` bytes of an archive; fewer at its end."""
    try:
        file = _open(archive)
        data = os.pread(file.fileno, size, offset)
    except OSError:
        _open.cache_clear()  # a restarted file server does not accept old descriptors
        file = _open(archive)
        data = os.pread(file.fileno, size, offset)
    if len(data) == size:
        return data
    parts = [data]
    while data and (left := size - sum(map(len, parts))) > 0:
        parts.append(data := os.pread(file.fileno, left, offset + size - left))
    return b"".join(parts)


def read_member(archive: ArchiveFile, member: Member) -> bytes:
    """Return the bytes of a member, unpacked; fewer where a tar file ends too early.

    Raises:
        OSError: when the archive has changed or cannot be read, or the member is no file, is damaged, or is larger than
            :data:`cog.data.image_stores.LARGEST_IMAGE`.
    """
    if member.kind in REFUSED:
        raise OSError(errno.EINVAL, REFUSED[member.kind], member.path)
    if member.size > LARGEST_IMAGE:
        raise too_large(member.path)
    if member.kind == PLAIN:
        return _pread(archive, member.offset, member.size)
    header = _pread(archive, member.offset, _LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or header[:4] != b"PK\3\4":
        raise OSError(errno.EIO, "its header in the zip file is damaged", member.path)
    _, n_name, n_extra = _LOCAL_HEADER.unpack(header)
    data = _pread(archive, member.offset + _LOCAL_HEADER.size + n_name + n_extra, member.size)
    if member.kind == ZIP_DEFLATED:
        data = inflate(data, member.path, wbits=-zlib.MAX_WBITS)
    if zlib.crc32(data) != member.crc:
        raise OSError(errno.EIO, "its bytes in the zip file are damaged (CRC-32)", member.path)
    return data


# ---- indexing -------------------------------------------------------------------------------------------


def scan(
    archive: ArchiveFile, advance: Callable[[int], None], *, inside: Member | None = None
) -> Iterator[Member]:
    """Yield the files in an archive, without folders; a tar file inside is yielded as one file.

    Only the headers are read; the data between them are skipped.

    Args:
        archive: the archive.
        advance: function that is called with the number of bytes passed since its last call.
        inside: a tar file in the archive, scanned instead of the archive.

    Raises:
        CogError: the file is no archive, is damaged or cut off, is compressed as a whole, or names a member outside of
            itself.
        OSError: the file cannot be read, or has changed.
    """
    with files.open_regular(archive.path) as handle:
        _require_same(handle.fileno(), archive)
        if archive.path.lower().endswith(".zip"):
            yield from _zip_members(archive, _Window(handle, 0, archive.size, _MOST_DIRECTORY_BYTES))
            advance(archive.size)
            return
        start, stop, label = 0, archive.size, archive.path
        if inside is not None:
            start, stop = inside.offset, min(inside.offset + inside.size, archive.size)
            label = f"{archive.path}/{inside.path}"
        window = _Window(handle, start, max(start, stop), _MOST_HEADER_BYTES)
        if window.read(2) == b"\x1f\x8b":
            raise CogError(
                f"{label} is compressed as a whole, so no image in it can be found without unpacking all before it; "
                "unpack it once with gunzip (it stays one file)"
            )
        passed = start
        for member in _tar_members(window, label):
            if member.offset - passed > 1 << 24:
                advance(member.offset - passed)
                passed = member.offset
            yield member
        advance(stop - passed)


class _Window(io.RawIOBase):
    """A part of a file with the interface of a file; reading more bytes than headers can have is an OSError."""

    def __init__(self, handle: IO[bytes], start: int, stop: int, most: int) -> None:
        self._handle, self.start, self.size, self._most = handle, start, stop - start, most
        self._position = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        if origin + offset < 0:
            raise OSError(errno.EINVAL, "a position before the beginning")
        self._position = origin + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self.size - self._position)
        size = left if size is None or size < 0 else size
        if size > self._most:
            raise OSError(errno.EFBIG, f"a header of {size:,} bytes")
        self._handle.seek(self.start + min(self._position, self.size))
        data = self._handle.read(min(size, left))
        self._position += len(data)
        return data


def _tar_members(window: _Window, label: str) -> Iterator[Member]:
    """Yield the members of a tar file; ``label`` is its name in messages."""
    last, end, fault = "its beginning", -1, ""
    window.seek(0)
    try:
        with tarfile.open(fileobj=window, mode="r:") as tar:
            while (info := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # the list would grow to gigabytes
                if info.size < 0 or tar.offset <= end:
                    raise tarfile.ReadError("a negative size")
                end, last = tar.offset, f"its member {info.name[:200]!r}"
                if not info.isdir():
                    path = _checked(info.name, label)
                    yield Member(path, window.start + info.offset_data, info.size, 0, _tar_kind(info))
            end = tar.offset
        window.seek(end)
        rest = window.read(_BLOCK)
        if end > window.size:
            fault = "it is cut off"
        elif rest.strip(b"\0"):
            fault = "a damaged header"
    except (tarfile.TarError, OSError, ValueError, ArithmeticError, RecursionError) as error:
        fault = str(error) or type(error).__name__
    if fault:
        raise CogError(f"{label} cannot be read as a tar file after {last}: {fault}; fetch it again")


def _tar_kind(info: tarfile.TarInfo) -> int:
    if info.issym() or info.islnk():
        return _LINK
    if info.issparse():
        return _SPARSE
    if not info.isreg():
        return _DEVICE
    return TAR_INSIDE if info.name.lower().endswith(".tar") else PLAIN


def _zip_members(archive: ArchiveFile, window: _Window) -> Iterator[Member]:
    try:
        directory = zipfile.ZipFile(window).infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error) as error:
        raise CogError(f"{archive.path} cannot be read as a zip file: {error}; fetch it again") from error
    kinds = {zipfile.ZIP_STORED: ZIP_STORED, zipfile.ZIP_DEFLATED: ZIP_DEFLATED}
    for info in directory:
        if info.filename.endswith("/"):
            continue
        path = _checked(info.filename, archive.path)
        kind = kinds.get(info.compress_type, _PACKED)
        mode = info.external_attr >> 16 if info.create_system == 3 else 0  # of Unix
        if info.flag_bits & 1:
            kind = _ENCRYPTED
        elif stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            kind = _LINK if stat.S_ISLNK(mode) else _DEVICE
        yield Member(path, info.header_offset, info.compress_size, info.CRC, kind)


def _checked(path: str, archive: str) -> str:
    """Return the path of a member without ``./``."""
    parts = path.split("/")
    if parts[0] == "" or ".." in parts or "\0" in path or len(path) > _LONGEST_PATH:
        raise CogError(
            f"{archive} has a member {path[:200]!r}, which names no file in it; this is no archive of images"
        )
    return "/".join(part for part in parts if part not in ("", "."))
