"""Where images lie: the interface of a store of images, and class folders.

All images are called ``<class>/<file>`` relative to a root, whatever the form. :func:`cog.data.root_layout.open_store`
tells the form of a root by what lies there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cog.runtime import files

#: Suffixes (lower case) of the files that are images of a class folder.
IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")

#: An image of more bytes, packed or not, is a failed image: an archive of a few kilobytes can claim any size. A picture
#: of as many pixels as Pillow decodes, 8 bits per channel, has fewer.
LARGEST_IMAGE = 1 << 29

# Listing folders waits for the file system, not for a processor.
_THREADS = 16


def is_image(name: str) -> bool:
    """Return whether a file of this name is an image of its class folder: hidden files are not."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def inflate(data: bytes, name: str, *, wbits: int) -> bytes:
    """Return compressed bytes of an image unpacked.

    Args:
        data: the bytes.
        name: of the image, for messages.
        wbits: format, as of :func:`zlib.decompress`.

    Raises:
        OSError: when they are damaged or cut off, or more than :data:`LARGEST_IMAGE` unpacked.
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
        root: folder that the names of images are relative to; of images in archives it need not exist.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @abstractmethod
    def classes(self) -> list[str]:
        """Return the names of the class folders, sorted.

        Raises:
            OSError: when they cannot be listed.
            CogError: when an archive cannot be read.
        """

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Return the images of a class folder, ``<class>/<file>``, ascending by code point; none where it is missing.

        Raises:
            OSError: when it cannot be listed.
            CogError: when an archive cannot be read.
        """

    @abstractmethod
    def empty_names(self, folder: str) -> list[str]:
        """Return the images of a class folder without a byte, sorted; none where they cannot be listed."""

    @abstractmethod
    def has_class(self, folder: str) -> bool:
        """Return whether a class folder exists."""

    @abstractmethod
    def sources(self) -> set[str]:
        """Return the names in the root that images are read from, other than class folders."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Return whether there is a file of this name, whatever its suffix."""

    @abstractmethod
    def lost(self, name: str) -> Path | None:
        """Return the folder or archive of an image if it cannot be read any more; None: it is not its fault."""

    @abstractmethod
    def prepare(self, folders: Iterable[str] | None = None) -> None:
        """Index the archives of class folders (default: all of them), where they are not known yet.

        Raises:
            OSError: when an archive is missing.
            UnusableArchivesError: when archives cannot be read (:mod:`cog.data.archive_images`).
        """

    def read(self, name: str) -> bytes:
        """Return the bytes of an image, unpacked if it is compressed with gzip.

        Args:
            name: ``<class>/<file>``.

        Raises:
            OSError: when it is missing, damaged in its archive, or larger than
                :data:`LARGEST_IMAGE`.
        """
        data = self._read(name)
        # ImageNet-21K has such members.
        return inflate(data, name, wbits=16 + zlib.MAX_WBITS) if data[:3] == b"\x1f\x8b\x08" else data

    @abstractmethod
    def _read(self, name: str) -> bytes:
        """Return the bytes of an image as they are kept."""

    def all_names(self, folders: Sequence[str]) -> list[list[str]]:
        """Return the images of several class folders."""
        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(self.names, folders))


class FolderImages(ImageStore):
    """Images in class folders.

    Args:
        root: the folder.
        parts: folders below it that each have some of the files of each class; default: the root itself.
    """

    def __init__(self, root: Path, parts: Sequence[str] = ("",)) -> None:
        super().__init__(root)
        self._parts = [root / part for part in parts]

    def classes(self) -> list[str]:
        """Return the names of the class folders, sorted."""
        listed: set[str] = set()
        for part in self._parts:
            with os.scandir(part) as entries:
                listed |= {
                    entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()
                }
        return sorted(listed)

    def names(self, folder: str) -> list[str]:
        """Return the images of a class folder."""
        listed: set[str] = set()
        for part in self._parts:
            try:
                with os.scandir(part / folder) as entries:
                    listed |= {
                        entry.name
                        for entry in entries
                        if is_image(entry.name) and not entry.is_dir(follow_symlinks=False)
                    }
            except (FileNotFoundError, NotADirectoryError):
                continue
        return [f"{folder}/{name}" for name in sorted(listed)]

    def empty_names(self, folder: str) -> list[str]:
        """Return the images of a class folder that are files without a byte; file servers tell sizes with the names."""
        found: set[str] = set()
        for part in self._parts:
            with contextlib.suppress(OSError), os.scandir(part / folder) as entries:
                found |= {f"{folder}/{e.name}" for e in entries if is_image(e.name) and not e.stat().st_size}
        return sorted(found)

    def has_class(self, folder: str) -> bool:
        """Return whether a class folder exists."""
        return any((part / folder).is_dir() for part in self._parts)

    def sources(self) -> set[str]:
        """Return the names of the parts."""
        return {part.name for part in self._parts if part != self.root}

    def has(self, name: str) -> bool:
        """Return whether there is a file of this name."""
        return any(os.path.lexists(part / name) for part in self._parts)

    def lost(self, name: str) -> Path | None:
        """Return the folder of an image if it is gone."""
        folder = name.rpartition("/")[0]
        return None if self.has_class(folder) else self._parts[0] / folder

    def _read(self, name: str) -> bytes:
        *before, last = (os.path.join(part, name) for part in self._parts)
        path = next(filter(os.path.exists, before), last)
        with files.open_regular(path, buffering=0) as handle:
            if os.fstat(handle.fileno()).st_size > LARGEST_IMAGE:
                raise too_large(name)
            return handle.read()

    def prepare(self, folders: Iterable[str] | None = None) -> None:
        """Do nothing: folders are listed when they are asked for."""
