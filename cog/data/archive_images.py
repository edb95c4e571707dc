"""Images in tar and zip files, read without unpacking the archives."""

from __future__ import annotations

import errno
import hashlib
import itertools
import logging
import os
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cog.data import archive_index, image_names
from cog.data.archives import TAR_INSIDE, ArchiveFile, Member, read_member, scan
from cog.data.image_stores import ImageStore, Unread
from cog.data.wnids import is_wnid
from cog.errors import CogError, os_errors_explained
from cog.runtime.progress import Progress

logger = logging.getLogger(__name__)

# Reading headers is limited by the file system, not by the processors.
_THREADS = 16


@dataclass(frozen=True)
class _Source:
    """A tar or zip file that holds images, or a tar file ``inside`` one."""

    archive: ArchiveFile
    inside: Member | None = None

    @property
    def path(self) -> Path:
        """Path of the source, with the archive as a folder."""
        return Path(self.archive.path) / (self.inside.path if self.inside else "")


class ArchiveImages(ImageStore):
    """Images in tar and zip files, and in tar files inside tar files.

    An archive named by a WordNet id is indexed when its class is requested; all other archives are indexed together,
    at the first request.

    Args:
        root: folder that the archives stand for.
        archives: the archives, in one folder.
        part: see :func:`cog.data.image_names.name_images`.
        whole: see :func:`cog.data.image_names.name_images`.
    """

    def __init__(
        self, root: Path, archives: Sequence[Path], *, part: str | None = None, whole: bool = True
    ) -> None:
        super().__init__(root)
        self._part, self._whole = part, whole
        self._own: dict[str, list[Path]] = {}  # archives and tar files inside archives of a single class
        self._mixed: list[Path] = []
        for path in sorted(archives):
            if part is None and is_wnid(path.stem):
                self._own.setdefault(path.stem, []).append(path)
            else:
                self._mixed.append(path)
        self._folder = archives[0].parent
        self._inside: dict[str, list[_Source]] = {}
        self._tables: dict[str, _Table] = {}
        self._lock = threading.RLock()

    def classes(self) -> list[str]:
        """Return the names of the classes, sorted, after indexing the archives that hold several classes."""
        mixed = self._mixed_table()
        return sorted({*self._own, *self._inside, *(mixed.classes() if mixed else ())})

    def names(self, folder: str) -> list[str]:
        """Return the images of a class."""
        names = sorted(name for table in self._tables_of(folder) for name in table.names(folder))
        for first, second in itertools.pairwise(names):
            if first == second:
                raise CogError(
                    f"image {first} is in an archive of its class and in another one; keep one of these archives"
                )
        return names

    def has_class(self, folder: str) -> bool:
        """Return whether a class has an archive of its own, or an image in another archive."""
        self._mixed_table()
        return folder in self._own or folder in self._inside or bool(self.names(folder))

    def lost(self, name: str) -> Path | None:
        """Return the archive of an image if it is gone or has changed."""
        try:
            place = self._place(name)
        except OSError as error:
            return Path(error.filename or self.root)
        return None if place is None or place[0].is_unchanged() else Path(place[0].path)

    def prepare(self, folders: Iterable[str] | None = None) -> None:
        """Index the archives of classes (default: all) that are not indexed yet."""
        with self._lock:
            self._mixed_table()
            groups = {*self._own, *self._inside} - self._tables.keys()
            chosen = sorted(groups if folders is None else groups.intersection(folders))
            if chosen:
                of_own = [
                    _Source(ArchiveFile.of(path)) for group in chosen for path in self._own.get(group, ())
                ]
                of_inside = [source for group in chosen for source in self._inside.get(group, ())]
                self._tables |= dict.fromkeys(chosen, self._table([*of_own, *of_inside]))

    def stat(self, name: str) -> tuple[int, float]:
        """Return the size of an image in its archive, and the time of the archive."""
        archive, member = self._known_place(name)
        return member.size, archive.mtime_ns / 1e9

    def _read(self, name: str) -> bytes:
        return read_member(*self._known_place(name))

    def _known_place(self, name: str) -> tuple[ArchiveFile, Member]:
        place = self._place(name)
        if place is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return place

    def _place(self, name: str) -> tuple[ArchiveFile, Member] | None:
        places = (table.find(name) for table in self._tables_of(name.rpartition("/")[0]))
        return next(filter(None, places), None)

    def _mixed_table(self) -> _Table | None:
        """Return the images of the archives that are not of a single class, after looking for tar files in them."""
        if self._mixed and "" not in self._tables:
            with self._lock:
                if "" not in self._tables:
                    table = self._table([_Source(ArchiveFile.of(path)) for path in self._mixed])
                    for archive, member in table.inside:
                        self._inside.setdefault(Path(member.path).stem, []).append(_Source(archive, member))
                    self._tables[""] = table
        return self._tables.get("")

    def _tables_of(self, folder: str) -> Iterator[_Table]:
        """Yield the tables that may hold images of a class."""
        mixed = self._mixed_table()
        if folder in self._own or folder in self._inside:
            if folder not in self._tables:
                self.prepare([folder])
            yield self._tables[folder]
        if mixed and folder:
            yield mixed

    def _table(self, sources: Sequence[_Source]) -> _Table:
        """Return the images of sources, from the index or from the archives."""
        read_from = f"{self._folder.resolve()}", f"{self._part}", f"{self._whole}"
        place = archive_index.place(
            *read_from, *(str(source.path.relative_to(self._folder)) for source in sources)
        )
        state = hashlib.sha256(f"{archive_index.VERSION} {_label_files(self._folder)}".encode())
        for source in sources:
            state.update(f" {source.archive.size} {source.archive.mtime_ns} {source.inside}".encode())
        indexed = archive_index.load(place, state.hexdigest())
        if indexed is None:
            indexed = self._scan_all(sources)
            archive_index.save(place, state.hexdigest(), *indexed)
        rows, unread = indexed
        for kind, (n, example) in unread.kinds.items():
            self.unread.add(kind, example, n)
        return _Table([source.archive for source in sources], rows)

    def _scan_all(self, sources: Sequence[_Source]) -> tuple[np.ndarray, Unread]:
        unread = Unread()
        total = sum(source.inside.size if source.inside else source.archive.size for source in sources)
        with Progress(total >> 20, f"Indexing {self.root}", unit="MB") as progress:
            passed = _Passed(progress)
            pool = ThreadPoolExecutor(_THREADS)
            try:
                results = [pool.submit(self._scan, *pair, passed, unread) for pair in enumerate(sources)]
                rows = archive_index.merged([result.result() for result in results])
            finally:
                passed.stopped = True
                pool.shutdown(cancel_futures=True)
        logger.info("%s: %s members of %s archives indexed", self.root, f"{len(rows):,}", f"{len(sources):,}")
        return rows, unread

    def _scan(self, number: int, source: _Source, passed: _Passed, unread: Unread) -> np.ndarray:
        def named(inside: Member | None) -> Iterator[tuple[str, Member]]:
            place = Path(source.archive.path) / (inside.path if inside else "")
            for name, member in image_names.name_images(
                place,
                scan(source.archive, passed.add, inside=inside),
                part=None if inside else self._part,
                whole=self._whole or inside is not None,
                read=lambda member: read_member(source.archive, member),
                unread=unread,
            ):
                if member.kind == TAR_INSIDE and inside is not None:
                    raise CogError(
                        f"{place} is inside an archive and has a tar file {member.path}; unpack {place.name}"
                    )
                if member.kind == TAR_INSIDE and not is_wnid(Path(member.path).stem):
                    yield from named(member)
                else:
                    yield name, member

        with os_errors_explained(f"cannot read {source.archive.path}"):
            return archive_index.as_rows(named(source.inside), owner=number, archive=source.path)


class _Passed:
    """A count of the bytes of archives that several threads have passed; ``stopped`` ends the threads."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._n_bytes, self._lock = progress, 0, threading.Lock()
        self.stopped = False

    def add(self, n_bytes: int) -> None:
        """Count ``n_bytes`` more; raise an InterruptedError once the threads are to end."""
        if self.stopped:
            raise InterruptedError(errno.EINTR, "stopped")
        with self._lock:
            self._n_bytes += n_bytes
            self._progress.update((self._n_bytes >> 20) - self._progress.done)


class _Table:
    """Images of some archives, sorted by name.

    Attributes:
        inside: tar files inside the archives, of single classes.
    """

    def __init__(self, archives: Sequence[ArchiveFile], rows: np.ndarray) -> None:
        self._archives = archives
        is_tar = rows["kind"] == TAR_INSIDE
        self.inside = [self._member(row) for row in rows[is_tar]]
        self._rows = rows[~is_tar] if is_tar.any() else rows
        self._paths = self._rows["path"]
        twice = np.flatnonzero(self._paths[1:] == self._paths[:-1])
        if len(twice):
            pair = self._rows[twice[0] : twice[0] + 2]
            raise CogError(
                f"image {os.fsdecode(bytes(pair['path'][0]))} is in "
                f"{' and '.join(archives[owner].path for owner in pair['owner'])}; keep one of these archives"
            )

    def classes(self) -> list[str]:
        """Return the classes of the images."""
        listed, position = [], 0
        while position < len(self._paths):
            folder = bytes(self._paths[position]).partition(b"/")[0]
            listed.append(os.fsdecode(folder))
            position = bisect_left(self._paths, folder + b"0", position)  # "0" comes after "/"
        return listed

    def names(self, folder: str) -> list[str]:
        """Return the images of a class, ascending by code point."""
        prefix = os.fsencode(folder)
        rows = slice(*(bisect_left(self._paths, prefix + end) for end in (b"/", b"0")))
        return sorted(map(os.fsdecode, self._paths[rows].tolist()))

    def find(self, name: str) -> tuple[ArchiveFile, Member] | None:
        """Return the archive and the member of an image; None when no image has this name."""
        path = os.fsencode(name)
        position = bisect_left(self._paths, path)
        if position == len(self._paths) or self._paths[position] != path:
            return None
        return self._member(self._rows[position])

    def _member(self, row: Any) -> tuple[ArchiveFile, Member]:
        path, owner, offset, size, crc, kind = row.item()
        return self._archives[owner], Member(os.fsdecode(path), offset, size, crc, kind)


def _label_files(folder: Path) -> str:
    """Return the names, sizes and times of the label files in a folder and its parent: they identify the versions."""
    known = []
    for path in (place / name for place in (folder, folder.parent) for name in image_names.LABEL_FILES):
        try:
            file = ArchiveFile.of(path)
        except OSError:
            continue
        known.append(f"{path.name} {file.size} {file.mtime_ns}")
    return "; ".join(known)
