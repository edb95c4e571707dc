"""The layout of the images below a root, and explanations of missing images.

Supported layouts: class folders; tar and zip files; the processed Winter-2021 release of ImageNet-21K, whose synset
folders are inside ``imagenet21k_train`` and ``imagenet21k_val``, with 50 images of every synset moved to the latter.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from cog.data.image_stores import (
    ARCHIVE_SUFFIXES,
    COMPRESSED_SUFFIXES,
    MISSING_ARCHIVES,
    OTHER_ARCHIVES,
    FolderImages,
    ImageStore,
    is_no_class,
)
from cog.data.validation_labels import FILES
from cog.data.wnids import is_wnid
from cog.errors import CogError

_NUMBERED = re.compile(r"(?P<name>.*?)(?P<number>[0-9]+)([-_.]of[-_.](?P<total>[0-9]{1,6}))?")
_WINTER_PART = re.compile(r"(.+_)(train|val|small_classes)")


def open_store(root: str | os.PathLike[str]) -> ImageStore:
    """Return the store of the images below a root, chosen by the contents of the root.

    The first layout that fits is taken: folders of the processed Winter-2021 release; class folders; archives in the
    root; archives beside a missing root, named like the root (``val``: ``.../ILSVRC2012_img_val.tar``) or with a folder
    of its name inside. If none fits, the store is one of class folders, without any images.
    """
    root = Path(root)
    try:
        folders, archives = _contents(root)
    except (FileNotFoundError, NotADirectoryError):
        return _beside(root)
    except OSError:
        return FolderImages(root)  # listing the folder raises the error again
    parts = _winter_parts(root, folders)
    if parts:
        return FolderImages(root, parts)
    if folders or not archives:
        return FolderImages(root)
    return _archive_images(root, archives)


def stands_for(stem: str, part: str) -> bool:
    """Return whether an archive of this name holds a part of a data set.

    ``train``: ``train.tar``, ``ILSVRC2012_img_train.zip``, ``imagenet1k-train-0007.tar`` or
    ``train-00001-of-00008.tar``; ``val`` is also written ``validation``.
    """
    word = "(val|validation)" if part == "val" else re.escape(part)
    return re.fullmatch(rf"(.*[-_.])?{word}([-_.][0-9]+([-_.]of[-_.][0-9]+)?)?", stem) is not None


def _beside(root: Path) -> ImageStore:
    """Return the store of the archives that stand for a missing folder."""
    try:
        _, archives = _contents(root.parent)
    except OSError:
        return FolderImages(root)
    named = [path for path in archives if stands_for(path.stem, root.name)]
    others = [
        path
        for path in archives
        if not is_wnid(path.stem)
        and not any(stands_for(path.stem, other) for other in ("train", "val", "test"))
    ]
    if not named and not others:
        return FolderImages(root)
    return _archive_images(root, named or others, part=root.name, whole=bool(named))


def _archive_images(
    root: Path, archives: list[Path], *, part: str | None = None, whole: bool = True
) -> ImageStore:
    """Return the store of archives."""
    from cog.data.archive_images import ArchiveImages  # imports numpy

    store = ArchiveImages(root, archives, part=part, whole=whole)
    numbered: dict[tuple[str, str], set[int]] = {}
    for path in archives:
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
            raise CogError(
                f"{archives[0].parent} lacks {len(missing)} of {total} archives {name}...of-{total}, such as number "
                f"{missing[0]}; fetch them"
            )
        if missing:
            store.unread.add(MISSING_ARCHIVES, f"{name}{missing[0]}", len(missing))
    for name in sorted(os.listdir(archives[0].parent)):
        suffix = next((suffix for suffix in COMPRESSED_SUFFIXES if name.lower().endswith(suffix)), None)
        if suffix and name not in FILES and (part is None or stands_for(name[: -len(suffix)], part)):
            store.unread.add(OTHER_ARCHIVES, f"{archives[0].parent / name}")
    return store


def explain(root: str | os.PathLike[str]) -> str | None:
    """Return one line about why synset folders, or images in them, may be missing under ``root``.

    Returns:
        The line; None when no problem is recognized (the layout of the root is right, or unknown).
    """
    root = Path(root)
    try:
        folders, archives = _contents(root)
        compressed = sorted(name for name in os.listdir(root) if name.lower().endswith(COMPRESSED_SUFFIXES))
    except OSError:
        return None
    synsets = [name for name in folders if is_wnid(name)]
    unread = [path.name for path in archives if path.stem not in synsets]
    if compressed and not synsets:
        return (
            f"{root} holds {len(compressed):,} archives that are compressed as a whole ({compressed[0]}, ...), so no "
            "image in them can be found without unpacking all before it; unpack them once with gunzip (each stays one "
            "tar file)"
        )
    if folders and len(unread) > len(synsets):
        return (
            f"{root} holds folders beside {len(unread):,} archives ({unread[0]}, ...), which are not read then; move "
            "the folders away, or unpack each archive into a folder of its name"
        )
    if synsets:
        whole = _whole_of(root)
        return None if whole is None else (
            f"{root} looks like one part of the processed Winter-2021 release, with files of every synset in each; "
            f"give {whole}, whose parts are read together"
        )  # fmt: skip
    inside = next((name for name in folders if _holds_synsets(root / name)), None)
    if inside in ("train", "val"):
        return f"{root} looks like ImageNet-1K ({inside}/<wnid>/...), expected ImageNet-21K"
    if inside is not None and not _winter_parts(root, folders):
        return f"the synset folders are in {root / inside}, not in {root} itself; give that folder"
    return None


def hint(root: str | os.PathLike[str]) -> str:
    """Return the line of :func:`explain` as the end of an error message, ``"; ..."``; empty without one."""
    text = explain(root)
    return f"; {text}" if text else ""


def _contents(folder: Path) -> tuple[list[str], list[Path]]:
    """Return the names of the sub-folders of a folder, and its archives, sorted and without hidden entries."""
    folders, archives = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.name.lower().endswith(ARCHIVE_SUFFIXES) and entry.is_file():
                archives.append(folder / entry.name)
            elif entry.is_dir() and not is_no_class(entry.name):
                folders.append(entry.name)
    return sorted(folders), sorted(archives)


def _winter_parts(root: Path, folders: list[str]) -> list[str]:
    """Return the folders with parts of the processed Winter-2021 release."""
    if any(map(is_wnid, folders)):
        return []
    return [name for name in folders if _WINTER_PART.fullmatch(name) and _holds_synsets(root / name)]


def _holds_synsets(folder: Path) -> bool:
    """Return whether a folder has folders or archives of synsets."""
    try:
        with os.scandir(folder) as entries:
            return any(is_wnid(entry.name.partition(".")[0]) for entry in entries)
    except OSError:
        return False


def _whole_of(part: Path) -> Path | None:
    """Return the folder of all parts; None unless ``part`` is one of several parts of the Winter-2021 release."""
    part = part.resolve()
    if not _WINTER_PART.fullmatch(part.name):
        return None
    try:
        parts = _winter_parts(part.parent, _contents(part.parent)[0])
    except OSError:
        return None
    return part.parent if len(parts) > 1 else None
