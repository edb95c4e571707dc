"""The index of the images in archives: made once, kept in a cache folder, and renewed for archives that have changed.

The cache folder is ``$COG_CACHE_DIR``, else ``$XDG_CACHE_HOME/imagenet-cog``, else ``~/.cache/imagenet-cog``; folders
of images are often read-only. Each folder of archives has one index file, however many archives it holds.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import zipfile
import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote_from_bytes

import numpy as np

from cog.data.archives import ZIP_STORED, ArchiveFile, Member, read_member
from cog.errors import CogError
from cog.runtime import files, locks

logger = logging.getLogger(__name__)

#: Version of the index. It changes with the names of images and with the form of rows; older indexes are renewed.
_VERSION = 2

_WAIT_SECONDS = 1.0


@dataclass(frozen=True, eq=False)
class IndexedImages:
    """The indexed images of an archive.

    Attributes:
        rows: one row per path, sorted by path, with the fields ``path`` (bytes: ``<class>/<file>`` of an image, or the
            path of a tar file inside the archive), ``offset``, ``size``, ``crc`` and ``kind`` of
            :class:`cog.data.archives.Member`.
        notes: lines about the members that are missing because the archive is damaged.
    """

    rows: np.ndarray
    notes: tuple[str, ...] = ()


def as_rows(images: Iterable[tuple[str, Member]]) -> np.ndarray:
    """Return named members as ``rows`` of :class:`IndexedImages`; the last of equal names counts, as in unpacking."""
    paths: list[bytes] = []
    numbers = array("q")  # a list of integers would take five times the memory
    for path, member in images:
        paths.append(os.fsencode(path))
        # Impossible sizes are lowered to fit int64: such an image is too large in any case.
        numbers.extend((min(member.offset, 1 << 62), min(member.size, 1 << 62), member.crc, member.kind))
    rows = np.empty(len(paths), dtype=_row_type(max(map(len, paths), default=1)))
    rows["path"] = paths
    columns = np.frombuffer(numbers, dtype=np.int64).reshape(-1, 4)
    for column, field in enumerate(("offset", "size", "crc", "kind")):
        rows[field] = columns[:, column]
    rows = rows[np.argsort(rows["path"], kind="stable")]
    last = np.ones(len(rows), dtype=bool)
    last[:-1] = rows["path"][1:] != rows["path"][:-1]
    return rows[last]


def _row_type(width: int) -> np.dtype:
    return np.dtype(
        [("path", f"S{width}"), ("offset", "<i8"), ("size", "<i8"), ("crc", "<u4"), ("kind", "u1")]
    )


def cache_dir() -> Path:
    """Return the folder of the indexes."""
    given = os.environ.get("COG_CACHE_DIR")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "imagenet-cog"


class ArchiveIndex:
    """The index of the archives of one folder.

    Entries that could not be written are kept in memory, and are pickled with the object for other processes.

    Args:
        key: text that identifies the folder and the part of it that is read.
        names: names of the archives in the folder; entries of other archives are dropped. A tar file inside an archive
            has an entry of its own, ``<name>/<path inside>``.
    """

    def __init__(self, key: str, names: Iterable[str]) -> None:
        digest = hashlib.sha256(os.fsencode(key)).hexdigest()[:20]
        self.path = cache_dir() / f"images-{digest}.zip"
        self._archives = frozenset(map(_quoted, names))
        self._file: ArchiveFile | None = None
        self._entries: dict[str, tuple[bytes, Member]] = {}
        self._new: dict[str, tuple[bytes, bytes]] = {}
        self._damaged: set[str] = set()
        self._can_write = False

    @property
    def place(self) -> str:
        """The index file, or words for memory if there are entries that have not been written."""
        return "memory only" if self._new else str(self.path)

    def has(self, name: str, signature: str) -> bool:
        """Return whether the index has the images of an archive in a given state, see :meth:`get`."""
        quoted = _quoted(name)
        if quoted not in self._new and self._file is None:
            self._open()
        note, _ = self._new.get(quoted) or self._entries.get(quoted) or (b"", b"")
        try:
            version, stored, *_ = json.loads(note)
        except (ValueError, TypeError):
            return False
        return (version, stored) == (_VERSION, signature)

    def get(self, name: str, signature: str) -> IndexedImages | None:
        """Return the images of an archive; None when the index lacks them, or has those of an earlier state.

        Args:
            name: name of the archive.
            signature: text that identifies the state of the archive.
        """
        if not self.has(name, signature):
            return None
        quoted = _quoted(name)
        try:
            return _decode(*(self._new.get(quoted) or self._stored(quoted)))
        except (OSError, ValueError, TypeError, EOFError, zlib.error) as error:
            logger.warning("the index %s is damaged and is rebuilt (%s)", self.path, error)
            self._damaged.add(quoted)
            del self._entries[quoted]
            return None

    def _stored(self, quoted: str) -> tuple[bytes, bytes]:
        """Return the note and the data of an entry of the index file."""
        assert self._file is not None
        note, member = self._entries[quoted]
        return note, read_member(self._file, member)

    def put(self, name: str, signature: str, images: IndexedImages) -> None:
        """Add the images of an archive; :meth:`publish` writes them."""
        width = images.rows.dtype["path"].itemsize
        note = json.dumps([_VERSION, signature, width, [text[:500] for text in images.notes[:20]]])
        self._new[_quoted(name)] = (note.encode("ascii"), zlib.compress(images.rows.tobytes(), 1))

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Wait until no other process makes this index, then lock the index if its folder can be written to."""
        with ExitStack() as stack:
            self._can_write = announced = False
            lock_file = f".{self.path.stem}.lock"
            while not self._can_write:
                try:
                    stack.enter_context(locks.locked(self.path.parent, flag="COG_CACHE_DIR", name=lock_file))
                    self._can_write = True
                except locks.LockedError as error:
                    if not announced:
                        logger.info("the images are being indexed by another process, waiting (%s)", error)
                    announced = True
                    time.sleep(_WAIT_SECONDS)
                except CogError as error:
                    logger.warning("%s; the index of the images is kept in memory only", error)
                    break
            self._file = None
            yield

    def publish(self) -> None:
        """Replace the index file atomically by a file with all entries, old and new."""
        if not self._new or not self._can_write:
            return
        self._open()
        try:
            with files.atomic_write(self.path) as handle, zipfile.ZipFile(handle, "w") as archive:
                for name in sorted(self._new.keys() | self._entries.keys()):
                    if name.partition("/")[0] not in self._archives:
                        continue
                    info = zipfile.ZipInfo(name)
                    try:
                        info.comment, data = self._new.get(name) or self._stored(name)
                    except OSError:  # damaged
                        continue
                    archive.writestr(info, data)
        except CogError as error:
            logger.warning("%s; the index of the images is kept in memory only", error)
            return
        self._damaged -= self._new.keys()
        self._new.clear()
        self._file = None

    def _open(self) -> None:
        """Read the directory of the index file; a damaged or unreadable file has no entries."""
        entries = {}
        file = None
        try:
            file = ArchiveFile.of(self.path)
            with files.open_regular(self.path) as handle, zipfile.ZipFile(handle) as archive:
                for info in archive.infolist():
                    if info.filename not in self._damaged:
                        place = (info.header_offset, info.compress_size, info.CRC, ZIP_STORED)
                        entries[info.filename] = (info.comment, Member(info.filename, *place))
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning(
                "the index %s cannot be read and is made anew (%s)", self.path, error.strerror or error
            )
            entries = {}
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            logger.warning("the index %s is damaged and is rebuilt (%s)", self.path, error)
            entries = {}
        self._entries, self._file = entries, file


def _decode(note: bytes, data: bytes) -> IndexedImages:
    """Return the images of an entry.

    Raises:
        ValueError, TypeError, EOFError, zlib.error: the entry is damaged.
    """
    # Plain rows instead of a .npy file: NumPy parses its header as Python source, which failed in threads of Python
    # 3.11.7 ("AST constructor recursion depth mismatch").
    _, _, width, notes = json.loads(note)
    rows = np.frombuffer(zlib.decompress(data), dtype=_row_type(width))
    return IndexedImages(rows, tuple(map(str, notes)))


def _quoted(name: str) -> str:
    return quote_from_bytes(os.fsencode(name))
