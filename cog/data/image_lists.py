"""The image files of a data set: their order and their labels.

Rows are ordered as in the original toolkit: classes sorted by name (WordNet id), files sorted within a
class; labels are 0..C-1 in that class order.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cog import constants
from cog.data import root_layout
from cog.data.image_stores import FolderImages, ImageStore
from cog.errors import CogError, some

logger = logging.getLogger(__name__)

# Listing folders is limited by the file system, not by the processors.
_SCAN_THREADS = 16

_THUMBNAILS = re.compile(r"_*thumb(s|nails?)?")

#: Largest number of images whose contents are looked at, to find out whether a data set has changed.
_SAMPLE = 1000


@dataclass(frozen=True, eq=False)
class ImageList:
    """The image files of one split of a data set.

    Attributes:
        dataset: name, such as ``cog_l1``.
        split: ``train`` or ``test``.
        store: store that reads the files.
        files: paths relative to the root, bytes ``[n]`` (numpy dtype S, file system encoding): one compact block,
            because a data set has a million files.
        labels: int64 ``[n]``, 0..C-1.
        classes: the C class names, sorted.
    """

    dataset: str
    split: str
    store: ImageStore
    files: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.files)

    @property
    def root(self) -> Path:
        """Folder that the files are relative to; it need not exist when the images are in archives."""
        return self.store.root

    def file(self, row: int) -> str:
        """Return the path of one image relative to ``root``."""
        return os.fsdecode(bytes(self.files[row]))

    def read(self, row: int) -> bytes:
        """Return the bytes of an image, unpacked if it is compressed with gzip; OSError if it cannot be read."""
        return self.store.read(self.file(row))

    def stat(self, row: int) -> tuple[int, float]:
        """Return the stored size of an image in bytes, and the time of the last change of its file or archive."""
        return self.store.stat(self.file(row))

    def counts(self) -> np.ndarray:
        """Return the number of images per class, int64 ``[C]``."""
        return np.bincount(self.labels, minlength=len(self.classes))

    def first(self, n: int) -> ImageList:
        """Return the first ``n`` images of each of the first ``n`` classes."""
        rows = [row for label in range(n) for row in np.flatnonzero(self.labels == label)[:n]]
        return dataclasses.replace(
            self, files=self.files[rows], labels=self.labels[rows], classes=self.classes[:n]
        )

    def sample_digest(self) -> str:
        """Return the SHA-256 of the contents of up to 1,000 images, spread evenly over the list."""

        def content(row: int) -> bytes:
            try:
                return hashlib.sha256(self.store.read(self.file(row))).digest()
            except (OSError, CogError):
                return b"unreadable"

        rows = np.unique(np.linspace(0, len(self) - 1, min(len(self), _SAMPLE)).astype(int))
        with ThreadPoolExecutor(_SCAN_THREADS) as pool:
            return hashlib.sha256(b"".join(pool.map(content, rows))).hexdigest()

    def digest(self) -> str:
        """Return the SHA-256 of the file names and labels; it does not depend on the root."""
        digest = hashlib.sha256()
        digest.update("\n".join(self.classes).encode())
        digest.update(self.labels.tobytes())
        for row in range(len(self)):
            digest.update(bytes(self.files[row]) + b"\n")
        return digest.hexdigest()


def _image_list(
    dataset: str, split: str, store: ImageStore, classes: Sequence[str], files: Sequence[Sequence[str]]
) -> ImageList:
    flat = [os.fsencode(file) for class_files in files for file in class_files]
    broken = next((file for file in flat if b"\n" in file or b"\r" in file), None)
    if broken is not None:  # files with lists of paths have one path per line
        raise CogError(
            f"the name of {os.fsdecode(broken)!r} in {store.root} contains a line break; rename it"
        )
    return ImageList(
        dataset=dataset,
        split=split,
        store=store,
        files=np.array(flat, dtype=bytes),
        labels=np.repeat(np.arange(len(classes), dtype=np.int64), [len(f) for f in files]),
        classes=tuple(classes),
    )


def from_class_folders(dataset: str, split: str, folder: Path, *, flag: str) -> ImageList:
    """List the images ``<folder>/<class>/<image>``, one class per sub-folder, or those in archives instead.

    Hidden files and files without an image suffix are not images. Classes and files are sorted. A warning tells what is
    there and not read.

    Args:
        dataset: name of the data set.
        split: ``train`` or ``test``.
        folder: folder with one sub-folder per class or with archives; archives beside a missing folder replace it.
        flag: flag that names the folder, for messages.
    """
    store = root_layout.open_store(folder)
    forms = "one folder per class, or the images in tar or zip files"
    if isinstance(store, FolderImages) and not folder.is_dir():
        raise CogError(f"{flag}: {folder} does not exist or is not a folder; it should hold {forms}")
    try:
        store.prepare()
        classes = store.classes()
        with ThreadPoolExecutor(_SCAN_THREADS) as pool:
            files = list(pool.map(store.names, classes))
    except OSError as error:
        raise CogError(f"{flag}: cannot list {error.filename or folder}: {error.strerror}") from error
    if not classes:
        raise CogError(
            f"{flag}: {folder} holds no class folders; expected {folder}/<class>/<image>, or the same in tar or zip "
            f"files{root_layout.hint(folder)}"
        )
    empty = [name for name, images in zip(classes, files, strict=True) if not images]
    if empty:
        raise CogError(
            f"{flag}: {len(empty)} of {len(classes)} class folders in {folder} hold no images "
            f"({', '.join(empty[:3])}); add images or remove the folders"
            f"{''.join(f'; {line}' for line in store.unread.lines())}"
        )
    if store.nested:
        raise CogError(
            f"{flag}: in {folder}, folders inside class folders hold images: {some(sorted(store.nested))}; move the "
            "images into the class folders, or give a folder in which these are the class folders"
        )
    for name in classes:
        if _THUMBNAILS.fullmatch(name.lower()):
            raise CogError(f"{flag}: {folder / name} is a class or holds thumbnails; rename it, or remove it")
    for line in store.unread.lines():
        logger.warning("%s %s: %s", dataset, split, line)
    return _image_list(dataset, split, store, classes, files)


def cog_level(
    dataset: str,
    split: str,
    *,
    images_root: str | os.PathLike[str],
    levels_file: str | os.PathLike[str],
    split_file: str | os.PathLike[str],
) -> ImageList:
    """List one concept generalization level, ``cog_l<k>``."""
    from cog.data.level_files import read_levels
    from cog.data.split_files import read_split

    root = Path(images_root)
    level = constants.cog_level(dataset)
    levels = read_levels(levels_file)
    if level is None or level > len(levels):
        raise CogError(
            f"--dataset {dataset}: {levels_file} has {len(levels)} levels, cog_l1 to cog_l{len(levels)}"
        )
    concepts = sorted(levels[level - 1])
    concept_split = read_split(split_file, concepts=concepts)
    files = [sorted(map(str, concept_split[wnid][split])) for wnid in concepts]
    empty = [wnid for wnid, images in zip(concepts, files, strict=True) if not images]
    if empty:
        raise CogError(
            f"{split_file} has no {split} files for {len(empty)} concepts ({', '.join(empty[:3])})"
        )
    store = root_layout.open_store(root)
    folders = [images[0].rpartition("/")[0] for images in files]
    try:
        store.prepare(folders)
        with ThreadPoolExecutor(_SCAN_THREADS) as pool:
            present = list(pool.map(store.has_class, folders))
    except OSError as error:
        raise CogError(f"--imagenet_images_root: cannot read {error.filename}: {error.strerror}") from error
    lost = [wnid for wnid, exists in zip(concepts, present, strict=True) if not exists]
    if lost:
        raise CogError(
            f"--imagenet_images_root {root} lacks the folders of {len(lost)} of the {len(concepts)} concepts of "
            f"{dataset} ({', '.join(lost[:3])}); {root_layout.explain(root) or f'expected {root}/<wnid>/*.JPEG'}"
        )
    return _image_list(dataset, split, store, concepts, files)
