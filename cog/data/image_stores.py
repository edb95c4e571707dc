"""Stores of images: their interface, and the store of class folders.

Every store names an image ``<class>/<file>``, relative to its root. :func:`cog.data.root_layout.open_store` chooses the
store of a root by the contents of the root.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cog.runtime import files

#: Suffixes (lower case) of the files that are images of a class folder.
IMAGE_SUFFIXES = (
    ".jpeg", ".jpg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp",
)  # fmt: skip

#: Suffixes (lower case) of archives that are read, and of archives that can only be unpacked from the beginning.
ARCHIVE_SUFFIXES = (".tar", ".zip")
COMPRESSED_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")

#: Names (lower case) of folders that file servers and archivers write beside those of a user.
_NO_CLASSES = (
    "@eadir", "@recycle", "#recycle", "#snapshot", "$recycle.bin", "lost+found", "__macosx",
    "system volume information",
)  # fmt: skip

#: Kinds of what is found beside images and not read, see :class:`Unread`.
OTHER_FILES = "files in class folders whose names are not those of images"
OTHER_FOLDERS = "folders that file servers or archivers wrote"
SUB_FOLDERS = "folders without images inside class folders"
LOOSE_IMAGES = "images in no class folder"
OTHER_ARCHIVES = "archives"
MISSING_ARCHIVES = "archives that are missing between numbered ones"
UNFINISHED_SAMPLES = "samples with a label and without an image"

#: Largest size of an image in bytes, compressed or not; a larger image fails, because an archive of a few kilobytes can
#: claim any size. The largest picture that Pillow decodes has fewer bytes, at 8 bits per channel.
LARGEST_IMAGE = 1 << 29


def is_image(name: str) -> bool:
    """Return whether a file of this name is an image of its class folder; hidden files are not images."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def is_no_class(folder: str) -> bool:
    """Return whether a folder is hidden, or written by a file server or an archiver: it is no class."""
    return folder.startswith(".") or folder.lower() in _NO_CLASSES


class Unread:
    """What was found beside images and is not read: number and first example of each kind."""

    def __init__(self, kinds: Mapping[str, Sequence[Any]] | None = None) -> None:
        self.kinds: dict[str, list[Any]] = {kind: list(item) for kind, item in (kinds or {}).items()}
        self._lock = threading.Lock()

    def add(self, kind: str, example: str, n: int = 1) -> None:
        """Count ``n`` more of a kind; several threads may do so."""
        with self._lock:
            self.kinds.setdefault(kind, [0, example])[0] += n

    def lines(self) -> list[str]:
        """Return a line for each kind."""
        return [
            f"not read: {kind}: {n:,} ({example}{', ...' if n > 1 else ''})"
            for kind, (n, example) in self.kinds.items()
        ]


def inflate(data: bytes, name: str, *, wbits: int) -> bytes:
    """Unpack the compressed bytes of an image.

    Raises:
        OSError: the bytes are damaged or cut off, or unpack to more than :data:`LARGEST_IMAGE` bytes.
    """
    stream = zlib.decompressobj(wbits)
    try:
        unpacked = stream.decompress(data, LARGEST_IMAGE)
    except zlib.error as error:
        raise OSError(errno.EIO, f"its compressed bytes are damaged ({error})", name) from error
    if not stream.eof:
        if len(unpacked) >= LARGEST_IMAGE:
            raise too_large(name)
        raise OSError(errno.EIO, "its compressed bytes end too early", name)
    return unpacked


def too_large(name: str) -> OSError:
    """Return the error of an image of more than :data:`LARGEST_IMAGE` bytes."""
    return OSError(errno.EFBIG, f"it has more than {LARGEST_IMAGE >> 20} MiB, expected an image", name)


class ImageStore(ABC):
    """The images below a root.

    Attributes:
        root: folder that the names of images are relative to; it need not exist when the images are in archives.
        unread: what was found beside the images that were listed.
        nested: class folders, with sub-folders that hold images, among those that were listed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unread = Unread()
        self.nested: list[str] = []

    @abstractmethod
    def classes(self) -> list[str]:
        """Return the names of the class folders, sorted.

        Raises:
            OSError: the folders cannot be listed.
            CogError: an archive cannot be read.
        """

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Return the images of a class folder, ``<class>/<file>``, ascending by code point; none of a missing folder.

        Raises:
            OSError: the folder cannot be listed.
            CogError: an archive cannot be read.
        """

    @abstractmethod
    def has_class(self, folder: str) -> bool:
        """Return whether a class folder exists."""

    @abstractmethod
    def lost(self, name: str) -> Path | None:
        """Return the folder or archive of an image if it is gone or has changed; None: it is intact."""

    @abstractmethod
    def stat(self, name: str) -> tuple[int, float]:
        """Return the stored size of an image in bytes, and the time of the last change of its file or archive."""

    def prepare(self, folders: Iterable[str] | None = None) -> None:  # noqa: B027
        """Index the archives of class folders (default: all) that are not indexed yet; folders need no index.

        Raises:
            OSError: an archive is missing.
            CogError: an archive cannot be read.
        """

    def read(self, name: str) -> bytes:
        """Return the bytes of an image, unpacked if it is compressed with gzip.

        Raises:
            OSError: the image is missing, damaged in its archive, or larger than :data:`LARGEST_IMAGE`.
        """
        data = self._read(name)
        # Some images of ImageNet-21K are compressed with gzip.
        return inflate(data, name, wbits=16 + zlib.MAX_WBITS) if data[:3] == b"\x1f\x8b\x08" else data

    @abstractmethod
    def _read(self, name: str) -> bytes:
        """Return the stored bytes of an image, before unpacking."""


class FolderImages(ImageStore):
    """Images in class folders.

    Args:
        root: the folder.
        parts: folders below the root, each with some of the files of every class; default: the root itself.
    """

    def __init__(self, root: Path, parts: Sequence[str] = ("",)) -> None:
        super().__init__(root)
        self._parts = [root / part for part in parts]

    def classes(self) -> list[str]:
        """Return the names of the class folders, sorted."""
        listed: set[str] = set()
        archives = []
        for part in self._parts:
            with os.scandir(part) as entries:
                for entry in entries:
                    if entry.name.lower().endswith((*COMPRESSED_SUFFIXES, *ARCHIVE_SUFFIXES)):
                        archives.append(entry.path)
                    elif entry.is_dir() and not is_no_class(entry.name):
                        listed.add(entry.name)
                    elif not entry.name.startswith(".") and (entry.is_dir() or is_image(entry.name)):
                        self.unread.add(OTHER_FOLDERS if entry.is_dir() else LOOSE_IMAGES, entry.path)
        for path in archives:
            if (
                re.sub(r"(\.tar)?\.\w+$", "", os.path.basename(path)) not in listed
            ):  # it is not unpacked beside it
                self.unread.add(OTHER_ARCHIVES, path)
        return sorted(listed)

    def names(self, folder: str) -> list[str]:
        """Return the images of a class folder."""
        listed: set[str] = set()
        for part in self._parts:
            try:
                with os.scandir(part / folder) as entries:
                    for entry in entries:
                        if is_image(entry.name) and not entry.is_dir(follow_symlinks=False):
                            listed.add(entry.name)
                        elif not entry.name.startswith("."):
                            self._note(folder, entry)
            except (FileNotFoundError, NotADirectoryError):
                continue
        return [f"{folder}/{name}" for name in sorted(listed)]

    def _note(self, folder: str, entry: os.DirEntry[str]) -> None:
        if not entry.is_dir():
            self.unread.add(OTHER_FILES, entry.path)
        elif is_no_class(entry.name):
            self.unread.add(OTHER_FOLDERS, entry.path)
        elif any(is_image(name) for _, _, files_ in os.walk(entry.path) for name in files_):
            self.nested.append(f"{folder}/{entry.name}")
        else:
            self.unread.add(SUB_FOLDERS, entry.path)

    def has_class(self, folder: str) -> bool:
        """Return whether a class folder exists."""
        return any((part / folder).is_dir() for part in self._parts)

    def lost(self, name: str) -> Path | None:
        """Return the folder of an image if it is gone."""
        folder = name.rpartition("/")[0]
        return None if self.has_class(folder) else self._parts[0] / folder

    def stat(self, name: str) -> tuple[int, float]:
        """Return size and time of the file of an image."""
        status = os.stat(self._path(name))
        return status.st_size, status.st_mtime

    def _path(self, name: str) -> str:
        *before, last = (os.path.join(part, name) for part in self._parts)
        return next(filter(os.path.exists, before), last)

    def _read(self, name: str) -> bytes:
        with files.open_regular(self._path(name), buffering=0) as handle:
            if os.fstat(handle.fileno()).st_size > LARGEST_IMAGE:
                raise too_large(name)
            return handle.read()
