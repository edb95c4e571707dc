"""Names of images in archives: class and file.

An archive ``X.tar`` or ``X.zip`` is read as if it were unpacked into a folder ``X``. Its images are named as in
folders, ``<class>/<file>``, so that level files, lists and recorded paths mean the same images.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cog.data import validation_labels
from cog.data.archives import TAR_INSIDE, Member
from cog.data.image_stores import (
    LOOSE_IMAGES,
    OTHER_FILES,
    OTHER_FOLDERS,
    UNFINISHED_SAMPLES,
    Unread,
    is_image,
    is_no_class,
)
from cog.data.wnids import is_wnid
from cog.errors import CogError

#: File with the names of the classes by number, one per line, for WebDataset shards with class numbers.
CLASSES_FILE = "classes.txt"

#: Files beside an archive that name the classes of its images; an index is renewed when they change.
LABEL_FILES = (CLASSES_FILE, *validation_labels.FILES)

#: A tar file is a WebDataset shard when its members include an image with a label of the same name.
_SHARD_LABELS = (".cls", ".json")
_MOST_LABEL_BYTES = 1 << 20
#: Entries of a sample's JSON that may hold a WordNet id, or a class number.
_WNID_ENTRIES = ("wnid", "synset", "filename")
_NUMBER_ENTRIES = ("cls", "label")

#: Suffixes of annotations, which may have a tree of folders beside that of the images.
_NOTES = (".xml", ".txt", ".json", ".csv", ".mat")

#: Names of archives that are shards of a data set, not classes.
_NUMBERED = re.compile(r".*[-_.][0-9]{4,}([-_.]of[-_.][0-9]+)?")

_WNID_IN_TEXT = re.compile(r"(?<![A-Za-z0-9])n[0-9]{8}(?![0-9])")


def name_images(
    archive: Path,
    members: Iterable[Member],
    *,
    part: str | None,
    whole: bool,
    read: Callable[[Member], bytes],
    unread: Unread,
) -> Iterator[tuple[str, Member]]:
    """Yield ``<class>/<file>`` and the member of every image of an archive, and the path and member of inner tar files.

    The class is the innermost folder that is named by a WordNet id, else the innermost folder. :class:`_Shard` names
    the images of WebDataset shards, :mod:`cog.data.validation_labels` those of the ILSVRC-2012 validation tar.

    Args:
        archive: the archive.
        members: members of the archive.
        part: folder inside the archive, such as ``train``, that the images are taken from; None: no such folder.
        whole: whether images outside of that folder are taken too, because the archive as a whole is that part.
        read: function that returns the bytes of a member.
        unread: gets what is found beside the images and not read.
    """
    members = list(members)
    if not is_wnid(archive.stem) and _is_shard(members):
        if whole:
            yield from _Shard(archive, members, read, unread).images()
        return
    labels: dict[str, str] | None = None
    places: dict[str, list[str]] = {}  # the whole path of each class that is no WordNet id
    loose: list[Member] = []
    with_images: set[str] = set()  # folders
    others: dict[tuple[str, bool], list[Any]] = {}
    for member in members:
        *folders, file = member.path.split("/")
        if part is not None and part in folders:
            folders = folders[len(folders) - folders[::-1].index(part) :]
        elif not whole:
            continue
        elif part is None and (folders or not _NUMBERED.fullmatch(archive.stem)):
            folders = [archive.stem, *folders]
        if any(map(is_no_class, folders)):
            if not any(folder.startswith(".") for folder in folders):
                unread.add(OTHER_FOLDERS, f"{archive}/{member.path}")
            continue
        if member.kind == TAR_INSIDE:
            yield member.path, member
            continue
        place = member.path.rpartition("/")[0]
        if not is_image(file):
            if folders and not file.startswith("."):
                others.setdefault((place, file.endswith(_NOTES)), [0, member.path])[0] += 1
            continue
        if is_wnid(archive.stem):
            folders = [archive.stem]
        label = next(filter(is_wnid, reversed(folders)), None)
        if label is None and validation_labels.is_validation_image(file):
            labels = validation_labels.read_labels(archive) if labels is None else labels
            label = labels.get(file.partition(".")[0])
            if label is None:
                raise CogError(
                    f"{archive} has an image {file} that the labels beside it lack; fetch both again"
                )
        elif label is None and folders:
            label = folders[-1]
            if (first := places.setdefault(label, folders)) != folders:
                raise CogError(
                    f"{archive} has images in {'/'.join(first)} and in {'/'.join(folders)}, which would both be class "
                    f"{label}; rename these folders, or unpack the archive into one folder per class"
                )
        if label is None:
            loose.append(member)
            continue
        with_images.add(place)
        yield f"{label}/{file}", member
    for folders in places.values():
        outer = next(
            (name for name in folders[:-1] if folders[: folders.index(name) + 1] == places.get(name)), None
        )
        if outer is not None:
            raise CogError(
                f"{archive} has images in the class folder {outer} and in {'/'.join(folders)} inside it; unpack it "
                "into one folder per class"
            )
    for (place, is_note), (n, example) in others.items():
        if place in with_images or not is_note:
            unread.add(OTHER_FILES, f"{archive}/{example}", n)
    if loose and not with_images:
        raise CogError(
            f"{archive} has {len(loose):,} images in no class folder ({loose[0].path}, ...), and no labels (.cls or "
            ".json files of the same names); add labels, or pack one folder per class"
        )
    if loose:
        unread.add(LOOSE_IMAGES, f"{archive}/{loose[0].path}", len(loose))


def _is_shard(members: Sequence[Member]) -> bool:
    """Return whether some members are an image and a label of the same sample."""
    some_labels = [member.path for member in members if member.path.lower().endswith(_SHARD_LABELS)]
    labels = {
        key for key, suffix, _ in map(_split_path, some_labels) if f".{suffix.lower()}" in _SHARD_LABELS
    }
    if not labels:
        return False
    return any(is_image(file) and key in labels for key, _, file in (_split_path(m.path) for m in members))


def _split_path(path: str) -> tuple[str, str, str]:
    """Return the key of a sample, the suffix, and the name of the file."""
    folder, slash, file = path.rpartition("/")
    stem, _, suffix = file.partition(".")
    return f"{folder}{slash}{stem}", suffix, file


class _Shard:
    """A WebDataset shard: members of the same path up to the first dot of the file's name are one sample.

    The class of a sample is the first of: a folder in the key that is a WordNet id; a WordNet id at the beginning of
    the key; a WordNet id in ``wnid``, ``synset`` or ``filename`` of its ``.json``; the text of its ``.cls``; ``cls`` or
    ``label`` of its ``.json``. A number stands for a line of :data:`CLASSES_FILE` beside the shard, the first being 0.
    An image with a WordNet id is named ``<wnid>/<key>.JPEG``, as in ImageNet; other images keep their suffix.

    Args:
        archive: the tar file.
        members: members of the tar file.
        read: function that returns the bytes of a member.
        unread: gets the samples that have no image.
    """

    def __init__(
        self, archive: Path, members: Iterable[Member], read: Callable[[Member], bytes], unread: Unread
    ) -> None:
        self._archive = archive
        self._read = read
        self._classes: list[str] | None = None
        self._images: list[tuple[str, str, Member]] = []
        self._labels: dict[tuple[str, str], Member] = {}
        for member in members:
            key, suffix, file = _split_path(member.path)
            if f".{suffix.lower()}" in _SHARD_LABELS:
                self._labels[key, suffix.lower()] = member
            elif is_image(file):
                self._images.append((key, suffix, member))
        for key in {key for key, _ in self._labels} - {key for key, _, _ in self._images}:
            unread.add(UNFINISHED_SAMPLES, f"{archive}/{key}")

    def images(self) -> Iterator[tuple[str, Member]]:
        """Yield ``<class>/<file>`` and the member of every image."""
        for key, suffix, member in self._images:
            label = self._class_of(key)
            file = key.rpartition("/")[2]
            yield f"{label}/{file}.{'JPEG' if is_wnid(label) else suffix}", member

    def _class_of(self, key: str) -> str:
        *folders, file = key.split("/")
        if (folder := next(filter(is_wnid, reversed(folders)), None)) is not None:
            return folder
        if (match := _WNID_IN_TEXT.match(file)) is not None:
            return match[0]
        data = self._json(key)
        for entry in _WNID_ENTRIES:
            if (match := _WNID_IN_TEXT.search(str(data.get(entry, "")))) is not None:
                return match[0]
        text = self._text(key, "cls")
        if text is None:
            text = next((str(data[entry]) for entry in _NUMBER_ENTRIES if entry in data), None)
        if text is None:
            raise CogError(
                f"{self._archive}: sample {key} has no class: no WordNet id, no .cls, no label in its .json"
            )
        text = text.strip()
        if re.fullmatch(r"[0-9]{1,9}", text):
            return self._numbered(int(text), key)
        if (
            not text
            or "/" in text
            or text.startswith(".")
            or len(os.fsencode(text)) > 255
            or not text.isprintable()
        ):
            raise CogError(
                f"{self._archive}: sample {key} has the class {text[:60]!r}, which names no folder"
            )
        return text

    def _numbered(self, number: int, key: str) -> str:
        path = self._archive.with_name(CLASSES_FILE)
        if self._classes is None:
            try:
                self._classes = path.read_text(encoding="utf-8").split("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise CogError(
                    f"{self._archive} has class numbers and {path} cannot be read ({error.__class__.__name__}); write "
                    "the names of the classes there, one per line, that of class 0 first (ImageNet-1K: the sorted "
                    "WordNet ids, cog/data/in1k_wnids.txt)"
                ) from error
        name = self._classes[number].strip() if number < len(self._classes) else ""
        if not name or "/" in name or name.startswith("."):
            raise CogError(
                f"{self._archive}: sample {key} has class {number}, and {path} has no name for it; write one name "
                "per line, that of class 0 first"
            )
        return name

    def _text(self, key: str, suffix: str) -> str | None:
        member = self._labels.get((key, suffix))
        if member is None:
            return None
        if member.size > _MOST_LABEL_BYTES:
            raise CogError(f"{self._archive}: {member.path} has {member.size:,} bytes, expected a label")
        return self._read(member).decode("utf-8", "replace")

    def _json(self, key: str) -> dict[str, Any]:
        text = self._text(key, "json")
        try:
            data = {} if text is None else json.loads(text)
        except (ValueError, RecursionError):
            return {}
        return data if isinstance(data, dict) else {}
