"""Which files are images, and of which class: in folders, and in archives.

An archive ``X.tar`` or ``X.zip`` is read as if it were unpacked into a folder ``X``. Its images are named as
in folders, ``<class>/<file>``, so that level files, lists and recorded paths mean the same images.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cog.data.archives import TAR_INSIDE, Member
from cog.data.wnids import is_wnid
from cog.errors import CogError, first_line, os_errors_explained, printable
from cog.runtime import files

#: Suffixes (lower case) of the files that are images of a class folder.
IMAGE_SUFFIXES = (
    *(".jpeg", ".jpg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"),
)

#: Kinds of what is found beside images and not read.
OTHER_FILES = "files in class folders whose names are not those of images"
OTHER_FOLDERS = "folders that file servers or archivers wrote"
LOOSE_IMAGES = "images in no class folder"

#: Files beside an archive that name classes: by number, one per line, those of WebDataset shards; and those
#: of the ILSVRC-2012 validation images, as Kaggle and image-net.org publish them.
CLASSES_FILE, SOLUTION_FILE, DEVKIT_FILE = LABEL_FILES = (
    *("classes.txt", "LOC_val_solution.csv", "ILSVRC2012_devkit_t12.tar.gz"),
)

_NO_CLASS = re.compile(
    r"\..*|@eadir|[@#$]recycle(\.bin)?|#snapshot|lost\+found|__macosx|system volume information",
    re.IGNORECASE,
)
_VALIDATION_IMAGE = re.compile(r"ILSVRC2012_val_[0-9]{8}\.[A-Za-z]+")
# Annotations may have a tree of folders beside that of the images.
_NOTES = (".xml", ".txt", ".json", ".csv", ".mat")
# Names of archives that are shards of a data set, not classes.
_NUMBERED = re.compile(r".*[-_.][0-9]{4,}([-_.]of[-_.][0-9]+)?")
_WNID_IN_TEXT = re.compile(r"(?<![A-Za-z0-9])n[0-9]{8}(?![0-9])")
# Limits in bytes; the published label files have 10 MB at most.
_MOST_LABEL_BYTES, _MOST_FILE_BYTES = 1 << 20, 1 << 28

Read = Callable[[Member], bytes]

_LOCK = threading.Lock()


class Unread(dict[str, list[Any]]):
    """What was found beside images and is not read: number and an example by kind."""

    def add(self, kind: str, example: str, n: int = 1) -> None:
        """Count ``n`` more of a kind; several threads may do so."""
        with _LOCK:
            item = self.setdefault(kind, [0, example])
            item[:] = item[0] + n, min(item[1], example)

    def lines(self) -> list[str]:
        """Return a line for each kind."""
        return [
            f"not read: {kind}: {n:,} ({printable(example)}{', ...' if n > 1 else ''})"
            for kind, (n, example) in sorted(self.items())
        ]


def is_image(name: str) -> bool:
    """Return whether a file of this name is an image of its class folder; hidden files are not images."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def is_no_class(folder: str) -> bool:
    """Return whether a folder is hidden, or written by a file server or an archiver: it is no class."""
    return _NO_CLASS.fullmatch(folder) is not None


def name_images(
    archive: Path,
    members: Sequence[Member],
    *,
    part: str | None,
    whole: bool,
    read: Read,
    unread: Unread,
    known: dict[str, list[str]],
) -> Iterator[tuple[str, Member]]:
    """Yield ``<class>/<file>`` and the member of each image of an archive; of inner tar files the path.

    The class is the innermost folder that is named by a WordNet id, else the innermost folder; labels beside
    the archive name those of the ILSVRC-2012 validation images. A tar file in which an image and a ``.cls``
    or ``.json`` have the same name is a WebDataset shard.

    Args:
        archive: the archive.
        members: members of the archive.
        part: folder in the archive, such as ``train``, that the images are taken from; None: no such folder.
        whole: whether images outside of that folder are taken too, as the archive as a whole is that part.
        read: function that returns the bytes of a member.
        unread: gets what is found beside the images and not read.
        known: the folders of each class in all archives, to which those of this archive are added.
    """
    own = archive.stem if is_wnid(archive.stem) else None
    if own is None and (labels := _labels_of_samples(members)):
        yield from _name_samples(archive, members, labels, read, unread) if whole else ()
        return
    wnids: dict[str, str] = {}
    places: dict[str, list[str]] = {}  # of each class, from the archive on
    loose = []
    n_named = 0
    for member in members:
        *folders, file = member.path.split("/")
        if part is not None and part in folders:
            folders = folders[len(folders) - folders[::-1].index(part) :]
        elif not whole:
            continue
        place = [*([archive.stem] if part is None else []), *folders]
        label = own or next(filter(is_wnid, reversed(place)), None)
        if any(map(is_no_class, folders)):
            if not any(folder.startswith(".") for folder in folders):
                unread.add(OTHER_FOLDERS, f"{archive}/{member.path}")
            continue
        if member.kind == TAR_INSIDE:
            yield member.path, member
            continue
        if not is_image(file):
            if place and not file.startswith(".") and not file.endswith(_NOTES):
                unread.add(OTHER_FILES, f"{archive}/{member.path}")
            continue
        if label is None and _VALIDATION_IMAGE.fullmatch(file):
            wnids = wnids or _validation_labels(archive)
            if (label := wnids.get(file.partition(".")[0])) is None:
                raise CogError(
                    f"{archive} has an image {file} that the labels beside it lack; fetch both again"
                )
        elif label is None and (folders or (place and not _NUMBERED.fullmatch(archive.stem))):
            label, places[place[-1]] = place[-1], place
            if (first := known.setdefault(label, folders or place)) != (folders or place):
                raise CogError(
                    f"{archive} and archives beside it have images in {'/'.join(first)} and in "
                    f"{'/'.join(folders or place)}, which would both be class {label}; rename these folders, or "
                    "unpack the archives into one folder per class"
                )
        if label is None:
            loose.append(member.path)
        else:
            n_named += 1
            yield f"{label}/{file}", member
    for place in places.values():
        for depth, name in enumerate(place[:-1], start=1):
            if place[:depth] == places.get(name):
                found = f"has images in the class folder {name} and in {'/'.join(place)} inside it"
                raise CogError(f"{archive} {found}; unpack it into one folder per class")
    if loose and not n_named:
        raise CogError(
            f"{archive} has {len(loose):,} images in no class folder ({loose[0]}, ...), and no labels (.cls "
            "or .json files of the same names); add labels, or pack one folder per class"
        )
    if loose:
        unread.add(LOOSE_IMAGES, f"{archive}/{loose[0]}", len(loose))


# ---- WebDataset shards: members of the same path up to the first dot of the file's name are one sample


def _split_path(path: str) -> tuple[str, str]:
    """Return the key of a sample and the suffix, in lower case."""
    folder, slash, file = path.rpartition("/")
    stem, _, suffix = file.partition(".")
    return f"{folder}{slash}{stem}", suffix.lower()


def _labels_of_samples(members: Sequence[Member]) -> dict[tuple[str, str], Member]:
    """Return the labels by key and suffix; none where no image has one: the members are no samples then."""
    labels = {_split_path(m.path): m for m in members if m.path.lower().endswith((".cls", ".json"))}
    keys = {key for key, suffix in labels if suffix in ("cls", "json")}
    samples = keys and any(
        _split_path(m.path)[0] in keys for m in members if is_image(os.path.basename(m.path))
    )
    return labels if samples else {}


def _name_samples(
    archive: Path,
    members: Sequence[Member],
    labels: dict[tuple[str, str], Member],
    read: Read,
    unread: Unread,
) -> Iterator[tuple[str, Member]]:
    """Yield ``<wnid>/<key>.JPEG``, as in ImageNet, of images with a WordNet id; others keep their suffix."""
    seen, names = dict[str, str](), None
    for member in members:
        stem, _, suffix = os.path.basename(member.path).partition(".")
        if not is_image(f"{stem}.{suffix}"):
            continue
        key, _ = _split_path(member.path)
        if seen.setdefault(key, member.path) != member.path:  # masks, or other views
            raise CogError(f"{archive}: sample {key} has several images, such as {member.path}; keep one")
        label = _class_of(key, labels, read)
        if not label:
            raise CogError(
                f"{archive}: sample {key} has no class: no WordNet id, no .cls, no label in its .json"
            )
        where = ""
        if re.fullmatch(r"[0-9]{1,9}", label):
            names = names or _class_names(archive)
            where = f", which has no name in {CLASSES_FILE} beside it (one per line, that of class 0 first)"
            label, number = names[int(label)].strip() if int(label) < len(names) else "", label
        if not _can_be_folder(label):
            found = f"{number}{where}" if where else f"{label[:60]!r}, which names no folder"
            raise CogError(f"{archive}: sample {key} has the class {found}")
        yield f"{label}/{stem}.{'JPEG' if is_wnid(label) else suffix}", member
    if left := {key for key, _ in labels} - seen.keys():
        unread.add("samples with a label and without an image", f"{archive}/{min(left)}", len(left))


def _class_of(key: str, labels: dict[tuple[str, str], Member], read: Read) -> str:
    """Return the label of a sample from the first place that has one.

    These are a WordNet id in a folder of the key, at the beginning of the file's name, or in ``wnid``, ``synset``
    or ``filename`` of the ``.json``; the text of the ``.cls``; ``cls`` or ``label`` of the ``.json``.
    """

    def text(suffix: str) -> str | None:
        member = labels.get((key, suffix))
        if member is not None and member.size > _MOST_LABEL_BYTES:
            raise CogError(f"{member.path} has {member.size:,} bytes, expected the label of a sample")
        return None if member is None else os.fsdecode(read(member))

    *folders, file = key.split("/")
    if (wnid := next(filter(is_wnid, reversed(folders)), None)) is not None:
        return wnid
    try:
        data = {} if (match := _WNID_IN_TEXT.match(file)) else json.loads(text("json") or "{}")
    except (ValueError, RecursionError):
        data = {}
    data = data if isinstance(data, dict) else {}
    for entry in ("wnid", "synset", "filename"):
        match = match or _WNID_IN_TEXT.search(str(data.get(entry, "")))
    if match:
        return match[0]
    label = text("cls")
    return str(data.get("cls", data.get("label", "")) if label is None else label).strip()


def _class_names(archive: Path) -> list[str]:
    path = archive.with_name(CLASSES_FILE)
    todo = "write the names of the classes there, one per line, that of class 0 first"
    hint = f"{todo} (ImageNet-1K: cog/data/in1k_wnids.txt, sorted)"
    with os_errors_explained(f"{archive} has class numbers and {path} cannot be read; {hint}"):
        with files.open_regular(path) as handle:
            return os.fsdecode(handle.read(1 << 24)).split("\n")


def _can_be_folder(name: str) -> bool:
    try:
        n_bytes = len(os.fsencode(name))
    except UnicodeEncodeError:
        return False
    return 0 < n_bytes < 256 and "/" not in name and name[0] != "." and min(map(ord, name)) >= 32


# ---- ILSVRC-2012 validation images, whose tar file has no class folders


def _validation_labels(archive: Path) -> dict[str, str]:
    """Return the class of each image, by name without suffix, from a list beside an archive or above."""
    for folder in (archive.parent, archive.parent.parent):
        for name, reader in ((SOLUTION_FILE, _read_solution), (DEVKIT_FILE, _read_devkit)):
            if (path := folder / name).is_file():
                try:
                    labels = reader(path)
                    if not labels or not all(map(is_wnid, labels.values())):
                        raise ValueError("expected a WordNet id for each image")
                except Exception as error:  # scipy raises errors of many types on a damaged file
                    what = "cannot be read as the labels of the validation images"
                    raise CogError(f"{path} {what}: {first_line(error)}") from error
                return labels
    raise CogError(
        f"{archive} has validation images without class folders; put {DEVKIT_FILE} (image-net.org) or "
        f"{SOLUTION_FILE} (Kaggle) beside it"
    )


def _read_solution(path: Path) -> dict[str, str]:
    """Read rows ``ILSVRC2012_val_00000001,n01751748 111 108 353 284 ...``."""
    with files.open_regular(path) as handle:
        text = handle.read(_MOST_FILE_BYTES).decode("utf-8-sig")
    rows = [row for row in csv.reader(io.StringIO(text)) if row][1:]
    return {row[0]: row[1].split()[0] for row in rows if len(row) > 1 and row[1].split()}


def _read_devkit(path: Path) -> dict[str, str]:
    """Read the class numbers in the order of the images, and the table of class numbers and WordNet ids."""
    from scipy.io import loadmat

    with files.open_regular(path) as raw, gzip.open(raw) as handle:
        data = handle.read(_MOST_FILE_BYTES)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        contents = {os.path.basename(i.name): data[i.offset_data :][: i.size] for i in tar}
    table: Any = loadmat(io.BytesIO(contents["meta.mat"]), squeeze_me=True)["synsets"]
    wnids = dict(zip(map(int, table["ILSVRC2012_ID"]), map(str, table["WNID"]), strict=True))
    numbers = map(int, contents["ILSVRC2012_validation_ground_truth.txt"].split())
    return {f"ILSVRC2012_val_{row:08d}": wnids[number] for row, number in enumerate(numbers, start=1)}
