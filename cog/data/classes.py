"""Which files of an archive are images, and of which class: their names are ``<class>/<file>``."""

import csv
import gzip
import io
import os
import re
import tarfile
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from cog.data.wnids import is_wnid
from cog.errors import CogError, first_line
from cog.runtime import files

_JPEG = (".jpeg", ".jpg", ".jpe", ".jfif")
#: Suffixes (lower case) of images.
IMAGE_SUFFIXES = (*_JPEG, ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")

#: Classes of the ILSVRC-2012 validation images, as Kaggle and image-net.org publish them.
LABEL_FILES = SOLUTION_FILE, DEVKIT_FILE = "LOC_val_solution.csv", "ILSVRC2012_devkit_t12.tar.gz"

#: Folders that are hidden, or written by a file server or an archiver.
NO_CLASS = re.compile(
    r"(?i)\..*|@eadir|[@#$]recycle(\.bin)?|#snapshot|lost\+found|__macosx|system volume information"
)
# Names of archives that are shards of a data set, not classes.
_NUMBERED = re.compile(r".*[-_.][0-9]{4,}([-_.]of[-_.][0-9]+)?")
_WNID = re.compile(r"(?<![A-Za-z0-9])n[0-9]{8}(?![0-9])")
_LABEL = re.compile(r"(?!\.)[^/\x00-\x1f]{1,255}")
_MOST_BYTES = 1 << 28  # of a file of labels; the published ones have 10 MB at most

Named = tuple[str, str, tuple[str, ...]]  # <class>/<file>, path in the archive, folder that names the class


def images_among(paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the paths that are images, and those that are not read though they are not hidden."""
    images, unread = list[str](), list[str]()
    for path in paths:
        *folders, file = path.split("/")
        odd = next(filter(NO_CLASS.fullmatch, folders), file)
        if odd[0] != ".":
            (images if odd == file and file.lower().endswith(IMAGE_SUFFIXES) else unread).append(path)
    return images, unread


def name_images(
    archive: Path, paths: Collection[str], read: Callable[[str], bytes], is_split: bool
) -> tuple[list[Named], list[str]]:
    """Return the images of an archive of these members, and the paths of what is not read.

    The class is the innermost folder of a WordNet id, else the innermost folder. An archive with images in no
    folder is a class, unless it ``is_split`` or one of several numbered ones. One in which an image and a
    ``.cls`` or ``.json`` have the same name, up to its first dot, is a WebDataset shard: the class is the one
    WordNet id in that name, else in the ``.json``, else the text of the ``.cls``.
    """
    images, unread = images_among(paths)
    if any(_key(path) + kind in paths for path in images for kind in (".cls", ".json")):
        return _name_samples(archive, images, paths, read)
    is_class = not (is_split or _NUMBERED.fullmatch(archive.stem) or all("/" in path for path in images))
    named, loose = [], []
    validation: dict[str, str] = {}
    for path in images:
        *folders, file = [archive.stem, *path.split("/")] if is_class else path.split("/")
        label = next(filter(is_wnid, reversed((archive.stem, *folders))), None)
        if label is None and re.fullmatch(r"ILSVRC2012_val_[0-9]{8}\.[A-Za-z]+", file):
            validation = validation or _validation_labels(archive)
            if (label := validation.get(file.partition(".")[0])) is None:
                raise CogError(f"{archive} has {file}, which the labels beside it lack")
        if label or folders:
            n = folders.index(label) + 1 if is_split and label in folders else 0
            named.append((f"{label or folders[-1]}/{file}", path, tuple(folders[:n] if label else folders)))
        else:
            loose.append(path)
    if loose and not named:
        raise CogError(f"{archive} has images in no class folder ({loose[0]}), and no labels (.cls, .json)")
    return named, loose + unread


def require_apart(folders: Mapping[tuple[str, ...], str]) -> None:
    """Refuse folders of one name and inside others, given the folders of classes and their archives."""
    by_name: dict[str, tuple[str, ...]] = {}
    for folder, archive in sorted(folders.items()):
        same = by_name.setdefault(folder[-1], folder)
        other = next((folder[:n] for n in range(1, len(folder)) if folder[:n] in folders), same)
        if other != folder:
            both = f"{'/'.join(other)} and {'/'.join(folder)}"
            raise CogError(f"{archive} has images in {both}, which cannot both be class folders; unpack it")


def _key(path: str) -> str:
    folder, slash, file = path.rpartition("/")
    return folder + slash + file.partition(".")[0]


def _name_samples(
    archive: Path, images: list[str], paths: Collection[str], read: Callable[[str], bytes]
) -> tuple[list[Named], list[str]]:
    named: dict[str, Named] = {}
    for path in images:
        if (key := _key(path)) in named:  # masks, or other views
            raise CogError(f"{archive}: sample {key} has several images, such as {path}; keep one")
        text, cls = (os.fsdecode(read(key + k)) if key + k in paths else "" for k in (".json", ".cls"))
        wnids = {*_WNID.findall(f"{archive.stem}/{key}")} or {*_WNID.findall(text)} or {cls.strip()}
        label = wnids.pop()
        if wnids or not _LABEL.fullmatch(label):
            raise CogError(f"{archive}: sample {key} has the class {label[:60]!r}, expected one id or name")
        file = f"{os.path.basename(key)}.JPEG" if is_wnid(label) else os.path.basename(path)
        named[key] = f"{label}/{file}", path, ()
    return list(named.values()), [p for p in paths if p.endswith((".cls", ".json")) and _key(p) not in named]


def _validation_labels(archive: Path) -> dict[str, str]:
    places = [folder / name for folder in archive.parents[:2] for name in LABEL_FILES]
    path = next(filter(Path.is_file, places), None)
    if path is None:
        todo = f"put {DEVKIT_FILE} (image-net.org) or {SOLUTION_FILE} (Kaggle) beside it"
        raise CogError(f"{archive} has validation images without class folders; {todo}")
    try:
        data = files.contents(path, largest=_MOST_BYTES)
        rows = _read_devkit(data) if path.name == DEVKIT_FILE else csv.reader(io.StringIO(data.decode()))
        labels = {row[0]: row[1].split()[0] for row in [*rows][1:] if len(row) > 1 and row[1].split()}
        if not labels or not all(map(is_wnid, labels.values())):
            raise ValueError("expected a WordNet id for each image")
    except Exception as error:  # scipy raises errors of many types on a damaged file
        raise CogError(f"{path} cannot be read as labels of images: {first_line(error)}") from error
    return labels


def _read_devkit(data: bytes) -> list[list[str]]:
    from scipy.io import loadmat

    with gzip.open(io.BytesIO(data)) as packed:
        data = packed.read(_MOST_BYTES)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        contents = {os.path.basename(i.name): data[i.offset_data :][: i.size] for i in tar}
    table: Any = loadmat(io.BytesIO(contents["meta.mat"]), squeeze_me=True)["synsets"]
    wnids = dict(zip(map(int, table["ILSVRC2012_ID"]), map(str, table["WNID"]), strict=True))
    numbers = enumerate(contents["ILSVRC2012_validation_ground_truth.txt"].split(), start=1)
    return [["ImageId", "label"], *([f"ILSVRC2012_val_{row:08d}", wnids[int(n)]] for row, n in numbers)]
