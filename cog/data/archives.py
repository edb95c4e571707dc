"""Images in tar and zip files, read without unpacking: one cached index of names and places of members."""

import contextlib
import errno
import hashlib
import io
import json
import logging
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cog.data.classes import LABEL_FILES, name_images, require_apart
from cog.data.wnids import is_wnid
from cog.errors import CogError, first_line, os_errors_explained
from cog.runtime import files
from cog.runtime.log import progress_of

logger = logging.getLogger(__name__)

INDEX_VERSION = 8  # it changes with the names of images and with the form of rows
N_THREADS = 16  # listing folders and reading headers is limited by the file system, not by the processors
LARGEST_IMAGE = 1 << 29  # bytes, packed or not: an archive of a few kilobytes can claim any size
_LARGEST_HEADER = 1 << 20  # bytes
_LOCAL_HEADER = struct.Struct("<4s22xHH")

#: Kinds of members: bare data, stored or deflated data after the local header of a zip file, no plain file.
PLAIN, STORED, DEFLATED, OTHER = range(4)

Wanted = Collection[str] | None  # names of classes; None: all
Index = tuple[np.ndarray, list[str]]  # places of images, and files that are not read
Archive = tuple[str, int, int]  # path, size, time of the last change in nanoseconds


class Member(NamedTuple):
    """A file in an archive; offset and stored size in bytes, of a zip file with its header and the CRC-32."""

    path: str
    offset: int
    size: int
    crc: int
    kind: int


def current(path: str | os.PathLike[str]) -> Archive:
    """Return an archive as it is now, or raise an OSError."""
    status = os.stat(path)
    return os.fspath(path), status.st_size, status.st_mtime_ns


def read_member(archive: Archive, member: Member) -> bytes:
    """Return the unpacked bytes of a member, at most ``LARGEST_IMAGE`` and one, or raise an OSError."""
    if member.kind == OTHER:
        raise OSError(errno.EINVAL, "no plain file (a link, sparse, encrypted or oddly packed)", member.path)
    with files.open_regular(archive[0], buffering=0) as handle:
        if current(archive[0]) != archive:
            raise OSError(errno.ESTALE, "the archive has changed since it was indexed", archive[0])
        handle.seek(member.offset)
        if member.kind != PLAIN:
            header = handle.read(_LOCAL_HEADER.size).ljust(_LOCAL_HEADER.size, b"\0")
            magic, n_name, n_extra = _LOCAL_HEADER.unpack(header)
            if magic != b"PK\3\4":
                raise OSError(errno.EIO, "its header in the zip file is damaged", member.path)
            handle.seek(n_name + n_extra, os.SEEK_CUR)
        data = handle.read(min(member.size, LARGEST_IMAGE + 1))
    if member.kind == DEFLATED:
        data = inflate(data, member.path, wbits=-zlib.MAX_WBITS)
    is_whole = len(data) == member.size if member.kind == PLAIN else zlib.crc32(data) == member.crc
    if not is_whole and len(data) <= LARGEST_IMAGE:
        raise OSError(errno.EIO, "its bytes are damaged or cut off", member.path)
    return data


def inflate(data: bytes, name: str, *, wbits: int) -> bytes:
    """Return at most ``LARGEST_IMAGE`` and one unpacked bytes; an OSError tells of damaged ones."""
    stream = zlib.decompressobj(wbits)
    try:
        unpacked = stream.decompress(data, LARGEST_IMAGE + 1)
    except zlib.error as error:
        raise OSError(errno.EIO, f"its compressed bytes are damaged ({error})", name) from error
    if not stream.eof and len(unpacked) <= LARGEST_IMAGE:
        raise OSError(errno.EIO, "its compressed bytes end too early", name)
    return unpacked


def members(path: str, wanted: Wanted = None) -> Iterator[Member]:
    """Yield the files in an archive, and in tar files inside, but those of unwanted WordNet ids.

    A CogError tells of what is no archive, damaged, cut off, or names files outside of it.
    """
    if path.lower().endswith(".zip"):
        yield from _zip_members(path)
        return
    with _Headers(files.open_regular(path, buffering=0)) as handle:  # type: ignore[arg-type]
        for member in _tar_members(handle, path, 0, os.fstat(handle.fileno()).st_size):
            folder, name = member.path[:-4], os.path.basename(member.path)
            if not _is_tar(member):
                yield member
            elif wanted is None or not is_wnid(name[:-4]) or name[:-4] in wanted:
                label = f"{path}/{member.path}"
                for inner in _tar_members(handle, label, member.offset, member.offset + member.size):
                    if _is_tar(inner):
                        raise CogError(f"{label} is in an archive and has a tar file {inner.path}; unpack it")
                    yield inner._replace(path=f"{folder}/{inner.path}")


def _is_tar(member: Member) -> bool:
    name = os.path.basename(member.path).lower()
    return member.kind == PLAIN and name.endswith(".tar") and name[0] != "."


class _Headers(io.BufferedReader):
    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _LARGEST_HEADER:
            raise OSError(errno.EFBIG, f"a header of {size:,} bytes")
        return super().read(size)


def _tar_members(handle: _Headers, label: str, start: int, stop: int) -> Iterator[Member]:
    last, end = "its beginning", -1
    handle.seek(start)
    try:
        with tarfile.open(fileobj=handle, mode="r:") as tar:
            while end < stop and (info := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # the list would grow to gigabytes
                if info.size < 0 or tar.offset <= end:
                    raise tarfile.ReadError("a negative size")
                end, last = tar.offset, f"its member {info.name[:200]!r}"
                kind = PLAIN if info.isreg() and not info.issparse() else OTHER
                if not info.isdir():
                    yield Member(_inside(info.name, label), info.offset_data, info.size, 0, kind)
            end = tar.offset
        if end > stop:
            raise tarfile.ReadError("it is cut off")
        handle.seek(end)
        if handle.read(min(tarfile.BLOCKSIZE, stop - end)).strip(b"\0"):
            raise tarfile.ReadError("a damaged header")
    except (tarfile.TarError, OSError, ValueError, ArithmeticError, RecursionError) as error:
        fault = f"after {last}: {first_line(error)}"
        raise CogError(f"{label} cannot be read as a tar file {fault}; fetch it again") from error


def _zip_members(path: str) -> Iterator[Member]:
    try:
        with zipfile.ZipFile(path) as archive:
            directory = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error) as error:
        raise CogError(f"{path} cannot be read as a zip file: {error}; fetch it again") from error
    for info in directory:
        kind = {zipfile.ZIP_STORED: STORED, zipfile.ZIP_DEFLATED: DEFLATED}.get(info.compress_type, OTHER)
        mode = info.external_attr >> 16 if info.create_system == 3 else 0  # of Unix
        if info.flag_bits & 1 or stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            kind = OTHER
        if not info.filename.endswith("/"):
            yield Member(_inside(info.filename, path), info.header_offset, info.compress_size, info.CRC, kind)


def _inside(path: str, label: str) -> str:
    parts = path.split("/")
    if parts[0] == "" or ".." in parts or "\0" in path or len(path) > 4096:
        raise CogError(f"{label} has a member {path[:200]!r}, which names no file in it")
    return "/".join(part for part in parts if part not in ("", "."))


def index(packed: Sequence[Archive], wanted: Wanted, is_split: bool) -> Index:
    """Return the index of archives, sorted by name, from the cache folder if they were indexed before."""
    folders = sorted({Path(path).resolve().parent for path, *_ in packed})
    places = (place / name for folder in folders for place in (folder, folder.parent) for name in LABEL_FILES)
    labels = [current(path) for path in places if path.is_file()]
    text = str((INDEX_VERSION, is_split, folders, packed, labels, wanted and sorted(wanted)))
    cache = Path(os.environ.get("COG_CACHE_DIR") or os.path.expanduser("~/.cache/imagenet-cog"))
    path = cache / f"images-{hashlib.sha256(os.fsencode(text)).hexdigest()[:20]}.npz"
    # One that is damaged is made anew.
    with contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        with np.load(path, allow_pickle=False) as stored:
            return stored["rows"], json.loads(str(stored["unread"]))
    rows, unread = _scan(packed, wanted, is_split)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with files.atomic_write(path) as handle:
            np.savez_compressed(handle, rows=rows, unread=json.dumps(unread))
    except (CogError, OSError) as error:
        logger.warning("the index of the images is not kept for the next command: %s", error)
    return rows, unread


def _scan(packed: Sequence[Archive], wanted: Wanted, is_split: bool) -> Index:
    folders: dict[tuple[str, ...], str] = {}
    unread: list[str] = []

    def scan(owner: int) -> np.ndarray:
        archive, path = packed[owner], packed[owner][0]
        with os_errors_explained(f"cannot read {path}"):
            # Of members with the same path the last counts, as in unpacking.
            found = {member.path: member for member in members(path, wanted)}
            named, others = name_images(Path(path), found, lambda n: read_member(archive, found[n]), is_split)
        folders.update({folder: path for _, _, folder in named if folder})
        unread.extend(f"{path}/{other}" for other in others)
        rows = [(os.fsencode(name), owner, *found[path][1:]) for name, path, _ in named]
        fields = [("owner", "<i4"), ("offset", "<u8"), ("size", "<u8"), ("crc", "<u4"), ("kind", "u1")]
        return np.array(rows, [("name", f"S{max((len(row[0]) for row in rows), default=1)}"), *fields])

    parts = []
    progress = progress_of(len(packed), "reading headers", unit="archives")
    with progress, ThreadPoolExecutor(N_THREADS) as pool:
        for rows in pool.map(scan, range(len(packed))):
            parts.append(rows)
            progress.update()
    require_apart(folders)
    rows = np.concatenate(parts)
    return rows[np.argsort(rows["name"], kind="stable")], unread
