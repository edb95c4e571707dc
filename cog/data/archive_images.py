"""Images in tar and zip files, read without unpacking the archives."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cog.data import image_names
from cog.data.archive_index import ArchiveIndex, IndexedImages, as_rows
from cog.data.archives import REFUSED, TAR_INSIDE, ZIP_DEFLATED, ArchiveFile, Member, read_member, scan
from cog.data.image_stores import EMPTY, ImageStore
from cog.data.wnids import is_wnid
from cog.errors import CogError, os_errors_explained, some
from cog.runtime.progress import Progress

logger = logging.getLogger(__name__)

# Reading headers is limited by the file system, not by the processors.
_THREADS = 16

# Number of classes whose images keep their places in memory (a hundred bytes per image).
_MOST_TABLES = 2048

# Size in bytes of an empty file that a zip file holds compressed.
_DEFLATED_NOTHING = 2

# Seconds between two saves of the index while it is made; after a crash, indexing continues from the last save.
_SAVE_SECONDS = 120.0


@dataclass(frozen=True)
class _Source:
    """A tar or zip file that holds images, or a tar file inside one.

    Attributes:
        path: path of the archive.
        archive: state of the archive when the tar file inside was found; None: its current state.
        inside: the tar file inside the archive; None: the archive itself.
    """

    path: Path
    archive: ArchiveFile | None = None
    inside: Member | None = None

    @property
    def name(self) -> str:
        """Name of the source in the index."""
        return self.path.name if self.inside is None else f"{self.path.name}/{self.inside.path}"

    @property
    def place(self) -> Path:
        """Path of the source, with the archive as a folder."""
        return self.path.parent / self.name

    def current(self) -> ArchiveFile:
        """Return the archive in the state in which its images are read."""
        return self.archive or ArchiveFile.of(self.path)


class UnusableArchivesError(CogError):
    """Archives that cannot be used; all others of the same request are indexed.

    Attributes:
        classes: the classes whose archives they are; "" stands for an archive that is not of one class.
    """

    def __init__(self, message: str, classes: Iterable[str]) -> None:
        super().__init__(message)
        self.classes = frozenset(classes)


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
        self._archives = sorted(archives)
        self._groups: dict[str, list[_Source]] = {}
        for path in self._archives:
            self._groups.setdefault(path.stem if part is None and is_wnid(path.stem) else "", []).append(
                _Source(path)
            )
        self._looked_inside = "" not in self._groups
        folder = archives[0].parent
        self._label_files = _label_files(folder)
        self._index = ArchiveIndex(
            f"{folder.resolve()}\0{part or ''}\0{whole}", (path.name for path in archives)
        )
        self._tables: dict[str, _Table] = {}
        self._told: set[str] = set()
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_lock": None, "_tables": {}}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def classes(self) -> list[str]:
        """Return the names of the classes, sorted, after indexing the archives that hold several classes."""
        listed = set(self._look_inside()) - {""}
        if "" in self._groups:
            listed |= set(self._table("").classes())
        return sorted(listed)

    def names(self, folder: str) -> list[str]:
        """Return the images of a class."""
        tables = self._tables_of(folder)
        return sorted({name for table in tables for name in table.names(folder)})

    def faults(self, folder: str) -> dict[str, str]:
        """Return the empty and the unreadable members among the images of a class, according to the index."""
        return {
            name: fault for table in self._tables_of(folder) for name, fault in table.faults(folder).items()
        }

    def has_class(self, folder: str) -> bool:
        """Return whether a class has an archive of its own, or an image in another archive."""
        return folder in self._look_inside() or bool(self.names(folder))

    def sources(self) -> set[str]:
        """Return the names of the archives and of label files."""
        return {path.name for path in self._archives} | set(image_names.LABEL_FILES)

    def has(self, name: str) -> bool:
        """Return whether an image of this name exists."""
        return self._place(name) is not None

    def lost(self, name: str) -> Path | None:
        """Return the archive of an image if it is gone or has changed."""
        try:
            place = self._place(name)
        except OSError as error:
            return Path(error.filename or self.root)
        return None if place is None or place[0].is_unchanged() else Path(place[0].path)

    def prepare(self, folders: Iterable[str] | None = None) -> None:
        """Index the archives of classes (default: all) that are not indexed yet."""
        groups = self._look_inside()
        chosen = groups if folders is None else groups.keys() & set(folders)
        self._make_index([source for group in sorted(chosen) for source in groups[group]])

    def _read(self, name: str) -> bytes:
        place = self._place(name)
        if place is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return read_member(*place)

    def _place(self, name: str) -> tuple[ArchiveFile, Member] | None:
        for table in self._tables_of(name.rpartition("/")[0]):
            if (place := table.find(name)) is not None:
                return place
        return None

    def _look_inside(self) -> dict[str, list[_Source]]:
        """Return the sources by class, with the tar files inside archives; sources of several classes are in ``""``."""
        if self._looked_inside:
            return self._groups
        with self._lock:
            outer = self._groups[""]
            if not self._looked_inside:
                self._make_index(outer)
                groups = dict(self._groups)
                for source in outer:
                    archive = source.current()
                    rows = self._rows(source, archive)
                    for row in rows[rows["kind"] == TAR_INSIDE]:
                        path, *numbers = row.item()
                        inside = _Source(source.path, archive, Member(os.fsdecode(path), *numbers))
                        stem = inside.place.stem
                        group = stem if is_wnid(stem) else ""
                        groups[group] = [*groups.get(group, ()), inside]
                self._groups, self._looked_inside = groups, True
        return self._groups

    def _tables_of(self, folder: str) -> Iterator[_Table]:
        """Yield the tables that may hold images of a class."""
        groups = self._look_inside()
        if folder in groups:
            yield self._table(folder)
        if "" in groups and folder:
            yield self._table("")

    def _table(self, group: str) -> _Table:
        table = self._tables.get(group)
        if table is None:
            self._make_index(self._groups[group])
            archives = [(source, source.current()) for source in self._groups[group]]
            table = _Table([(archive, self._rows(source, archive)) for source, archive in archives])
            with self._lock:
                self._tables[group] = table
                if len(self._tables) > _MOST_TABLES:
                    del self._tables[next(iter(self._tables))]
        return table

    def _signature(self, archive: ArchiveFile) -> str:
        return f"{archive.size} {archive.mtime_ns} {self._label_files}"

    def _rows(self, source: _Source, archive: ArchiveFile) -> np.ndarray:
        """Return the rows of a source from the index; log the notes about missing images, once per process."""
        for _ in range(2):  # the first entry may be damaged
            images = self._index.get(source.name, self._signature(archive))
            if images is not None:
                for note in images.notes:
                    if note not in self._told:
                        self._told.add(note)
                        logger.warning("%s", note)
                return images.rows
            self._make_index([source])
        raise CogError(
            f"the index {self._index.path} of {source.place} cannot be read, or the archive is being changed; run the "
            "same command again"
        )

    def _make_index(self, sources: Sequence[_Source]) -> None:
        """Index the sources that are new or have changed; save the index from time to time."""

        def unknown() -> list[tuple[_Source, ArchiveFile]]:
            pairs = [(source, source.current()) for source in sources]
            return [pair for pair in pairs if not self._index.has(pair[0].name, self._signature(pair[1]))]

        if not unknown():
            return
        with self._lock, self._index.claimed():
            todo = unknown()  # another process may have indexed some of them meanwhile
            if not todo:
                return
            total = sum(source.inside.size if source.inside else archive.size for source, archive in todo)
            n_images = 0
            faults: list[tuple[_Source, CogError]] = []
            with Progress(total >> 20, f"Indexing {self.root}", unit="MB") as progress:
                passed = _Passed(progress)
                pool, saved = ThreadPoolExecutor(_THREADS), time.monotonic()
                try:
                    results = [pool.submit(self._scan, *pair, passed) for pair in todo]
                    for (source, archive), result in zip(todo, results, strict=True):
                        try:
                            images = result.result()
                        except CogError as error:
                            faults.append((source, error))
                            continue
                        self._index.put(source.name, self._signature(archive), images)
                        n_images += len(images.rows)
                        if time.monotonic() - saved > _SAVE_SECONDS:
                            self._index.publish()
                            saved = time.monotonic()
                finally:
                    passed.stopped = True
                    pool.shutdown(cancel_futures=True)
                    self._index.publish()
            if faults:
                others = [source.name for source, _ in faults[1:]]
                more = f" (and {len(others)} more cannot be used: {some(others, 3)})" if others else ""
                unusable = {source for source, _ in faults}
                classes = [name for name, of in self._groups.items() if not unusable.isdisjoint(of)]
                raise UnusableArchivesError(f"{faults[0][1]}{more}", classes)
            logger.info(
                "%s: %s members of %s archive%s indexed; kept in %s",
                self.root, f"{n_images:,}", f"{len(todo):,}", "s" * (len(todo) != 1), self._index.place,
            )  # fmt: skip

    def _scan(self, source: _Source, archive: ArchiveFile, passed: _Passed) -> IndexedImages:
        notes: list[str] = []
        outer = source.inside is None
        with os_errors_explained(f"cannot read {archive.path}"):
            images = image_names.name_images(
                source.place,
                scan(archive, notes, passed.add, inside=source.inside),
                part=self._part if outer else None,
                whole=self._whole or not outer,
                read=lambda member: read_member(archive, member),
            )
            return IndexedImages(as_rows(images), tuple(notes))


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

    Raises:
        CogError: when two archives have an image of the same name.
    """

    def __init__(self, parts: Sequence[tuple[ArchiveFile, np.ndarray]]) -> None:
        self._archives = [archive for archive, _ in parts]
        all_rows = [rows[rows["kind"] != TAR_INSIDE] for _, rows in parts]
        self._owners = np.repeat(np.arange(len(parts), dtype=np.int32), [len(rows) for rows in all_rows])
        self._rows = all_rows[0]
        if len(parts) > 1:
            widest = max(all_rows, key=lambda rows: rows.dtype[0].itemsize).dtype
            rows = np.concatenate([rows.astype(widest) for rows in all_rows])
            order = np.argsort(rows["path"], kind="stable")
            self._rows, self._owners = rows[order], self._owners[order]
            twice = np.flatnonzero(self._rows["path"][1:] == self._rows["path"][:-1])
            if len(twice):
                first = int(twice[0])
                pair = " and ".join(self._archives[owner].path for owner in self._owners[first : first + 2])
                raise CogError(
                    f"image {os.fsdecode(bytes(self._rows['path'][first]))} is in {pair}; keep one of these archives"
                )
        self._paths = self._rows["path"]

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
        return sorted(map(os.fsdecode, self._paths[self._rows_of(folder)].tolist()))

    def faults(self, folder: str) -> dict[str, str]:
        """Return the empty members, compressed or not, and those that cannot be read among the images of a class."""
        rows = self._rows[self._rows_of(folder)]
        deflated = (rows["kind"] == ZIP_DEFLATED) & (rows["crc"] == 0) & (rows["size"] == _DEFLATED_NOTHING)
        faulty = rows[(rows["size"] == 0) | deflated | np.isin(rows["kind"], list(REFUSED))]
        kinds = zip(faulty["path"].tolist(), faulty["kind"].tolist(), strict=True)
        return {os.fsdecode(path): REFUSED.get(kind, EMPTY) for path, kind in kinds}

    def _rows_of(self, folder: str) -> slice:
        prefix = os.fsencode(folder)
        return slice(*(bisect_left(self._paths, prefix + end) for end in (b"/", b"0")))

    def find(self, name: str) -> tuple[ArchiveFile, Member] | None:
        """Return the archive and the member of an image; None when no image has this name."""
        path = os.fsencode(name)
        position = bisect_left(self._paths, path)
        if position == len(self._paths) or self._paths[position] != path:
            return None
        _, *numbers = self._rows[position].item()
        return self._archives[self._owners[position]], Member(name, *numbers)


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
