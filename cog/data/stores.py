"""Readers of the images below a root: in class folders, or in tar and zip files.

A reader lists its classes, lists the images of a class, ``<class>/<file>``, and returns the bytes of an
image. It may be forked and pickled: open archives belong to the process.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from cog.data import archives, classes
from cog.data.archives import TAR_INSIDE, Member, Source
from cog.data.classes import Unread, is_image, is_no_class
from cog.data.wnids import is_wnid
from cog.errors import CogError, os_errors_explained
from cog.runtime import files
from cog.runtime.log import Progress

logger = logging.getLogger(__name__)

#: Suffixes (lower case) of archives that are read, and of archives that can only be unpacked from the
#: beginning.
ARCHIVE_SUFFIXES = (".tar", ".zip")
COMPRESSED_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")

#: Version of the index of archives; it changes with the names of images and with the form of rows.
INDEX_VERSION = 5

#: Listing folders and reading headers is limited by the file system, not by the processors.
N_THREADS = 16


class _Store:
    """The images below a root.

    Attributes:
        root: folder that the names of images are relative to; it need not exist for archives.
        unread: what was found beside the images that were listed.
        nested: folders with images inside class folders, among those that were listed.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.unread, self.nested = root, Unread(), list[str]()

    def prepare(self, folders: Iterable[str] | None = None) -> None:
        """Index the archives of classes (default: all) together; class folders need no index."""

    def read(self, name: str) -> bytes:
        """Return the bytes of an image, unpacked if it is compressed with gzip (some of ImageNet-21K are).

        Raises:
            OSError: the image is missing, damaged in its archive, or larger than ``LARGEST_IMAGE``.
        """
        data = self._read(name)
        is_gzip = data[:3] == b"\x1f\x8b\x08"
        return archives.inflate(data, name, wbits=16 + zlib.MAX_WBITS) if is_gzip else data

    def _read(self, name: str) -> bytes:
        raise NotImplementedError


def entries_of(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder by name, without hidden ones."""
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if entry.name[0] != "."), key=lambda entry: entry.name)


class FolderImages(_Store):
    """Images in class folders."""

    def classes(self) -> list[str]:
        """Return the names of the class folders, sorted."""
        listed, packed = [], []
        for entry in entries_of(self.root):
            if entry.name.lower().endswith((*COMPRESSED_SUFFIXES, *ARCHIVE_SUFFIXES)):
                packed.append(entry)
            elif entry.is_dir() and not is_no_class(entry.name):
                listed.append(entry.name)
            elif entry.is_dir() or is_image(entry.name):
                kind = classes.OTHER_FOLDERS if entry.is_dir() else classes.LOOSE_IMAGES
                self.unread.add(kind, entry.path)
        for entry in packed:
            if re.sub(r"(\.tar)?\.\w+$", "", entry.name) not in listed:  # else it is unpacked beside it
                self.unread.add("archives", entry.path)
        return listed

    def names(self, folder: str) -> list[str]:
        """Return the images of a class folder, ascending by code point; none of a missing one."""
        listed = []
        for entry in entries_of(self.root / folder) if self.has_class(folder) else ():
            if is_image(entry.name) and not entry.is_dir(follow_symlinks=False):
                listed.append(f"{folder}/{entry.name}")
            elif not entry.is_dir():
                self.unread.add(classes.OTHER_FILES, entry.path)
            elif is_no_class(entry.name):
                self.unread.add(classes.OTHER_FOLDERS, entry.path)
            elif any(is_image(name) for _, _, inside in os.walk(entry.path) for name in inside):
                self.nested.append(f"{folder}/{entry.name}")
            else:
                self.unread.add("folders without images inside class folders", entry.path)
        return listed

    def has_class(self, folder: str) -> bool:
        """Return whether a class folder exists."""
        return (self.root / folder).is_dir()

    def stat(self, name: str) -> tuple[int, float]:
        """Return the size of an image in bytes, and the time of its file in seconds."""
        status = os.stat(self.root / name)
        return status.st_size, status.st_mtime

    def _read(self, name: str) -> bytes:
        with files.open_regular(self.root / name, buffering=0) as handle:
            archives.require_size(os.fstat(handle.fileno()).st_size, name)
            return handle.read()


class ArchiveImages(_Store):
    """Images in tar and zip files of one folder, and in tar files inside tar files.

    Archives named by a WordNet id are indexed when their classes are requested, all others at the first
    request. ``part`` and ``whole`` are those of :func:`cog.data.classes.name_images`.
    """

    def __init__(
        self, root: Path, paths: Sequence[Path], *, part: str | None = None, whole: bool = True
    ) -> None:
        super().__init__(root)
        self._folder, self._part, self._whole = paths[0].parent, part, whole
        # Archives that are not indexed yet, by class; "": those of several classes.
        self._todo: dict[str, list[Path | Source]] = {}
        for path in sorted(paths):
            own = part is None and is_wnid(path.stem)
            self._todo.setdefault(path.stem if own else "", []).append(path)
        self._own = self._todo.keys() - {""}
        self._sources: list[Source] = []
        self._rows = _rows({})  # of all indexed images, sorted by path

    def classes(self) -> list[str]:
        """Return the names of the classes, sorted, after indexing the archives of several classes."""
        self.prepare(())
        listed, row, paths = set(self._own), 0, self._rows["path"]
        while row < len(paths):
            folder = bytes(paths[row]).partition(b"/")[0]
            listed.add(os.fsdecode(folder))
            row = bisect_left(paths, folder + b"0", row)  # "0" comes after "/"
        return sorted(listed)

    def names(self, folder: str) -> list[str]:
        """Return the images of a class, ascending by code point; none of a missing one."""
        self.prepare([folder])
        paths, name = self._rows["path"], os.fsencode(folder)
        first, stop = bisect_left(paths, name + b"/"), bisect_left(paths, name + b"0")
        return sorted(map(os.fsdecode, paths[first:stop].tolist()))

    def has_class(self, folder: str) -> bool:
        """Return whether a class has images."""
        return bool(self.names(folder))

    def prepare(self, folders: Iterable[str] | None = None) -> None:
        """Index the archives of classes together (default: all)."""
        if "" in self._todo:
            inside = self._index(self._todo[""])
            del self._todo[""]
            for source in inside:
                self._todo.setdefault(Path(source.label).stem, []).append(source)
            self._own |= self._todo.keys()
        if chosen := sorted(self._todo.keys() & (self._todo.keys() if folders is None else {*folders})):
            self._index([place for name in chosen for place in self._todo[name]])
            done = {*chosen}
            self._todo = {name: places for name, places in self._todo.items() if name not in done}

    def stat(self, name: str) -> tuple[int, float]:
        """Return the stored size of an image in bytes, and the time of its archive in seconds."""
        source, member = self._place(name)
        return member.size, source.mtime_ns / 1e9

    def _read(self, name: str) -> bytes:
        return archives.read_member(*self._place(name))

    def _place(self, name: str) -> tuple[Source, Member]:
        self.prepare([name.rpartition("/")[0]])
        path, paths = os.fsencode(name), self._rows["path"]
        row = bisect_left(paths, path)
        if row == len(paths) or paths[row] != path:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        _, owner, *place = self._rows[row].item()
        return self._sources[owner], Member(name, *place)

    def _index(self, places: Sequence[Path | Source]) -> list[Source]:
        """Add the images of archives, from the cached index or the files, and return the tar files inside."""
        sources = [place if isinstance(place, Source) else Source.of(place) for place in places]
        rows, unread = self._cached(sources)
        for kind, (n, example) in unread.items():
            self.unread.add(kind, example, n)
        inside = []
        for path, owner, *place in rows[rows["kind"] == TAR_INSIDE].tolist():
            inside.append(sources[owner]._replace(inside=Member(os.fsdecode(path), *place)))
        rows = rows[rows["kind"] != TAR_INSIDE]
        rows["owner"] += len(self._sources)
        self._sources += sources
        self._rows = _sorted([self._rows, rows])
        twice = np.flatnonzero(self._rows["path"][1:] == self._rows["path"][:-1])
        if len(twice):
            first, second = self._rows[twice[0] : twice[0] + 2]
            raise CogError(
                f"image {os.fsdecode(first['path'])} is in {self._sources[first['owner']].label} and "
                f"{self._sources[second['owner']].label}; keep one of these archives"
            )
        return inside

    def _cached(self, sources: Sequence[Source]) -> tuple[np.ndarray, Unread]:
        """Return the rows of archives and what is beside their images, by way of the cache folder."""
        labels = [path / name for path in (self._folder, self._folder.parent) for name in classes.LABEL_FILES]
        names = (os.path.relpath(source.label, self._folder) for source in sources)
        places = [f"{self._folder.resolve()} {self._part} {self._whole}", *names]
        state = [INDEX_VERSION, *(Source.of(path)[1:3] for path in labels if path.is_file())]
        signature = _digest(str([*state, *(source[1:] for source in sources)]))
        path = cache_folder() / f"images-{_digest(chr(0).join(places))[:20]}.npz"
        try:
            with np.load(path, allow_pickle=False) as stored:
                if str(stored["signature"]) == signature:
                    return stored["rows"], Unread(json.loads(str(stored["unread"])))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            logger.warning("the index %s cannot be read and is made anew (%s)", path, error)
        rows, unread = self._scan(sources)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with files.atomic_write(path) as handle:
                np.savez_compressed(handle, signature=signature, rows=rows, unread=json.dumps(unread))
        except (CogError, OSError) as error:
            logger.warning("the index of the images is not kept for the next command: %s", error)
        return rows, unread

    def _scan(self, sources: Sequence[Source]) -> tuple[np.ndarray, Unread]:
        unread, known = Unread(), dict[str, list[str]]()

        def scan(source: Source) -> np.ndarray:
            found: dict[bytes, Member] = {}
            with os_errors_explained(f"cannot read {source.path}"):
                for name, member in self._images(source, unread, known):
                    # Of members with the same path the last counts, as in unpacking.
                    if found.setdefault(os.fsencode(name), member).path != member.path:
                        todo = "rename one, or unpack the archive"
                        raise CogError(f"two members of {source.label} would both be image {name}; {todo}")
                    found[os.fsencode(name)] = member
            return _rows(found)

        logger.info("%s: reading the headers of %s archives", self.root, f"{len(sources):,}")
        parts = []
        with Progress(len(sources), f"Indexing {self.root}", unit="archives") as progress:
            pool = ThreadPoolExecutor(N_THREADS)
            try:
                for owner, rows in enumerate(pool.map(scan, sources) if sources[1:] else map(scan, sources)):
                    rows["owner"] = owner
                    parts.append(rows)
                    progress.update()
            finally:
                pool.shutdown(cancel_futures=True)
        return _sorted(parts), unread

    def _images(
        self, source: Source, unread: Unread, known: dict[str, list[str]]
    ) -> Iterator[tuple[str, Member]]:
        """Yield the images of an archive, and its inner tar files of synsets, indexed on request."""
        place, inner = Path(source.label), source.inside is not None
        for name, member in classes.name_images(
            place,
            list(archives.members(source)),
            part=None if inner else self._part,
            whole=self._whole or inner,
            read=lambda member: archives.read_member(source, member),
            unread=unread,
            known=known,
        ):
            if member.kind != TAR_INSIDE or (is_wnid(Path(name).stem) and not inner):
                yield name, member
            elif inner:
                raise CogError(f"{place} is inside an archive and has a tar file {name}; unpack {place.name}")
            else:
                yield from self._images(source._replace(inside=member), unread, known)


#: A reader of images.
ImageStore = FolderImages | ArchiveImages


def _rows(found: dict[bytes, Member]) -> np.ndarray:
    """Return members by name as rows; sizes that do not fit are lowered: such images are too large."""
    fields = [("path", f"S{max(map(len, found), default=1)}"), ("owner", "<i4")]
    fields += [("offset", "<i8"), ("size", "<i8"), ("crc", "<u4"), ("kind", "u1")]
    most = 1 << 62
    rows = [(path, 0, min(m.offset, most), min(m.size, most), m.crc, m.kind) for path, m in found.items()]
    return np.array(rows, dtype=fields)


def _sorted(parts: Sequence[np.ndarray]) -> np.ndarray:
    rows = np.concatenate(parts)
    return rows[np.argsort(rows["path"], kind="stable")]


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()


def cache_folder() -> Path:
    """Return the folder of the index files: folders of images are often read-only."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("COG_CACHE_DIR") or os.path.join(home, "imagenet-cog"))
