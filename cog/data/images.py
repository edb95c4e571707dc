"""The images of a data set: where they are read from, their order and their labels.

Rows are ordered as in the original toolkit: classes sorted by name (WordNet id), files sorted within a class;
labels are 0..C-1 in that class order.
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
from cog.data import classes, level_files
from cog.data.stores import (
    ARCHIVE_SUFFIXES,
    COMPRESSED_SUFFIXES,
    N_THREADS,
    ArchiveImages,
    FolderImages,
    ImageStore,
    entries_of,
)
from cog.data.wnids import is_wnid
from cog.errors import CogError, os_errors_explained, some

logger = logging.getLogger(__name__)

_NUMBERED = re.compile(r"(?P<name>.*?)(?P<number>[0-9]+)([-_.]of[-_.](?P<total>[0-9]{1,6}))?")
_THUMBNAILS = re.compile(r"_*thumb(s|nails?)?", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class ImageList:
    """The images of one split of a data set; it may be pickled and forked.

    Attributes:
        dataset: name, such as ``cog_l1``.
        split: ``train`` or ``test``.
        store: reader of the images.
        files: paths relative to the root, bytes ``[n]`` (dtype S): one compact block for a million files.
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
        """Return the bytes of one image, unpacked; see :meth:`cog.data.stores.ImageStore.read`."""
        return self.store.read(self.file(row))

    def stat(self, row: int) -> tuple[int, float]:
        """Return the stored size of one image in bytes, and the time of its file or archive in seconds."""
        return self.store.stat(self.file(row))

    def counts(self) -> np.ndarray:
        """Return the number of images per class, int64 ``[C]``."""
        return np.bincount(self.labels, minlength=len(self.classes))

    def rows(self, chosen: np.ndarray | slice) -> ImageList:
        """Return some rows, with all classes."""
        return dataclasses.replace(self, files=self.files[chosen], labels=self.labels[chosen])

    def first(self, n: int) -> ImageList:
        """Return the first ``n`` images of each of the first ``n`` classes."""
        chosen = [np.flatnonzero(self.labels == label)[:n] for label in range(n)]
        return dataclasses.replace(self.rows(np.concatenate(chosen)), classes=self.classes[:n])

    def digest(self) -> str:
        """Return the SHA-256 of the file names and labels; it does not depend on the root."""
        digest = hashlib.sha256("\n".join(self.classes).encode(errors="surrogateescape"))
        digest.update(self.labels.tobytes())
        for file in self.files.tolist():
            digest.update(file + b"\n")
        return digest.hexdigest()


def from_class_folders(dataset: str, split: str, folder: Path, *, flag: str) -> ImageList:
    """List the images ``<folder>/<class>/<image>``, one class per sub-folder, or those in archives instead.

    A warning tells what is there and not read; what can be read in two ways is an error. Archives beside a
    missing folder replace it. ``flag`` names the folder in messages.
    """
    store = open_store(folder)
    forms = f"expected {folder}/<class>/<image>, or the same in tar or zip files"
    if isinstance(store, FolderImages) and not folder.is_dir():
        raise CogError(f"{flag}: {folder} does not exist or is not a folder; {forms}")
    with os_errors_explained(f"{flag}: cannot list {folder}"):
        store.prepare()
        names = store.classes()
        with ThreadPoolExecutor(N_THREADS) as pool:
            files = list(pool.map(store.names, names))
    unread = store.unread.lines()
    if not names:
        raise CogError(f"{flag}: {folder} holds no class folders; {forms}{hint(folder)}")
    if empty := [name for name, images in zip(names, files, strict=True) if not images]:
        raise CogError(
            f"{flag}: {len(empty)} of {len(names)} class folders in {folder} hold no images ({some(empty)}); "
            f"add images or remove the folders{''.join(f'; {line}' for line in unread)}"
        )
    if store.nested:
        raise CogError(
            f"{flag}: in {folder}, folders inside class folders hold images: {some(sorted(store.nested))}; "
            "move the images into the class folders, or give a folder in which these are the class folders"
        )
    if thumbnails := next(filter(_THUMBNAILS.fullmatch, names), None):
        raise CogError(
            f"{flag}: {folder / thumbnails} is a class or holds thumbnails; rename it, or remove it"
        )
    for line in unread:
        logger.warning("%s %s: %s", dataset, split, line)
    return _image_list(dataset, split, store, names, files)


def from_level(dataset: str, split: str, root: Path, *, levels_file: str, split_file: str) -> ImageList:
    """List one concept generalization level, ``cog_l<k>``, from the two level files."""
    level, levels = constants.cog_level(dataset), level_files.read_levels(levels_file)
    if level is None or level > len(levels):
        raise CogError(
            f"--dataset {dataset}: {levels_file} has {len(levels)} levels, cog_l1 to cog_l{len(levels)}"
        )
    concepts = sorted(levels[level - 1])
    chosen = level_files.read_split(split_file, concepts=concepts)
    files = [sorted(map(str, chosen[wnid][split])) for wnid in concepts]
    store = open_store(root)
    folders = [images[0].rpartition("/")[0] for images in files]
    with os_errors_explained(f"--imagenet_images_root: cannot read {root}"):
        store.prepare(folders)
        with ThreadPoolExecutor(N_THREADS) as pool:
            present = list(pool.map(store.has_class, folders))
    if lost := [wnid for wnid, exists in zip(concepts, present, strict=True) if not exists]:
        raise CogError(
            f"--imagenet_images_root {root} lacks the folders of {len(lost)} of the {len(concepts)} concepts "
            f"of {dataset} ({some(lost)}); expected {root}/<wnid>/*.JPEG{hint(root)}"
        )
    return _image_list(dataset, split, store, concepts, files)


def _image_list(
    dataset: str, split: str, store: ImageStore, names: Sequence[str], files: Sequence[Sequence[str]]
) -> ImageList:
    flat = [os.fsencode(file) for class_files in files for file in class_files]
    if broken := next((file for file in flat if b"\n" in file or b"\r" in file), None):
        # Files with lists of paths have one path per line.
        raise CogError(
            f"the name of {os.fsdecode(broken)!r} in {store.root} contains a line break; rename it"
        )
    labels = np.repeat(np.arange(len(names), dtype=np.int64), [len(class_files) for class_files in files])
    return ImageList(dataset, split, store, np.array(flat, dtype=bytes), labels, tuple(names))


# ---- the form of the images below a root


def open_store(root: str | os.PathLike[str]) -> ImageStore:
    """Return the reader of the images below a root, chosen by the contents of the root.

    The first form that fits is taken: class folders; archives in the root; archives beside a missing root,
    named like the root (``val``: ``.../ILSVRC2012_img_val.tar``), else with a folder of its name inside. If
    none fits, it reads class folders, without any images.
    """
    root = Path(root)
    try:
        folders, paths = _contents(root)
        return FolderImages(root) if folders or not paths else _open_archives(root, paths)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError:
        return FolderImages(root)  # listing the folder raises the error again
    try:
        _, beside = _contents(root.parent)
    except OSError:
        return FolderImages(root)
    named = [path for path in beside if stands_for(path.stem, root.name)]
    if named:
        return _open_archives(root, named, part=root.name)
    splits = ("train", "val", "test")
    others = [
        path
        for path in beside
        if not is_wnid(path.stem) and not any(stands_for(path.stem, split) for split in splits)
    ]
    return _open_archives(root, others, part=root.name, whole=False) if others else FolderImages(root)


def stands_for(stem: str, part: str) -> bool:
    """Return whether an archive of this name holds a part of a data set.

    ``train``: ``train.tar``, ``ILSVRC2012_img_train.zip``, ``imagenet1k-train-0007.tar`` or
    ``train-00001-of-00008.tar``; ``val`` is also written ``validation``.
    """
    word = "(val|validation)" if part == "val" else re.escape(part)
    return re.fullmatch(rf"(.*[-_.])?{word}([-_.][0-9]+([-_.]of[-_.][0-9]+)?)?", stem) is not None


def _open_archives(
    root: Path, paths: list[Path], *, part: str | None = None, whole: bool = True
) -> ImageStore:
    store = ArchiveImages(root, paths, part=part, whole=whole)
    folder = paths[0].parent
    numbered: dict[tuple[str, str], set[int]] = {}
    for path in paths:
        if (match := _NUMBERED.fullmatch(path.stem)) is not None and not is_wnid(path.stem):
            numbered.setdefault((match["name"], match["total"] or ""), set()).add(int(match["number"]))
    for (name, total), numbers in numbered.items():
        # All of a known total, counted from 0 or 1, or those between the others.
        first = min(1, *numbers) if int(total or -1) in numbers else 0 if total else min(numbers)
        stop = first + int(total) if total else max(numbers)
        if not total and stop - first > 2 * len(numbers):
            continue  # years, or other numbers
        missing = sorted(set(range(first, stop)) - numbers)
        if missing and total:
            lacks = f"lacks {len(missing)} of {total} archives {name}...of-{total}"
            raise CogError(f"{folder} {lacks}, such as number {missing[0]}; fetch them")
        if missing:
            kind = "archives that are missing between numbered ones"
            store.unread.add(kind, f"{name}{missing[0]}", len(missing))
    for entry in entries_of(folder):
        suffix = next((suffix for suffix in COMPRESSED_SUFFIXES if entry.name.lower().endswith(suffix)), "")
        stem = entry.name.removesuffix(suffix)
        if suffix and entry.name not in classes.LABEL_FILES and (part is None or stands_for(stem, part)):
            store.unread.add("archives", entry.path)
    return store


def hint(root: str | os.PathLike[str]) -> str:
    """Return what a folder holds instead of images, as the end of a message; "" if it cannot be listed."""
    root = Path(root)
    try:
        names = [entry.name for entry in entries_of(root)]
    except OSError:
        return ""
    if any(name.lower().endswith(COMPRESSED_SUFFIXES) for name in names):
        return f"; archives that are compressed as a whole are not read: gunzip those in {root} once"
    if inside := next((name for name in names if _holds_synsets(root / name)), None):
        return f"; the synset folders are in {root / inside}, give that folder"
    return f"; found {some(names)}" if names else ""


def _contents(folder: Path) -> tuple[list[str], list[Path]]:
    """Return the names of the sub-folders of a folder that may be classes, and its archives."""
    folders, archives = [], []
    for entry in entries_of(folder):
        if entry.name.lower().endswith(ARCHIVE_SUFFIXES) and entry.is_file():
            archives.append(folder / entry.name)
        elif entry.is_dir() and not classes.is_no_class(entry.name):
            folders.append(entry.name)
    return folders, archives


def _holds_synsets(folder: Path) -> bool:
    """Return whether a folder has folders or archives of synsets."""
    try:
        return any(is_wnid(entry.name.partition(".")[0]) for entry in os.scandir(folder))
    except OSError:
        return False
