"""The images of a data set, ordered by the names of classes and files; labels are 0..C-1 in that order."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import logging
import os
import re
import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cog import constants
from cog.data import archives, classes, level_files
from cog.data.archives import Archive, Member
from cog.data.wnids import is_wnid
from cog.errors import CogError, os_errors_explained, printable, some
from cog.runtime import files

logger = logging.getLogger(__name__)

#: Suffixes (lower case) of archives; those that are compressed as a whole are not read.
ARCHIVES = (".tar", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


@dataclass(frozen=True, eq=False)
class ImageList:
    """The images of one split of a data set; processes that are forked share it."""

    dataset: str  # name, such as cog_l1
    split: str  # train or test
    root: Path  # folder that the files are relative to; archives may be in its place
    files: np.ndarray  # paths <class>/<file>, bytes (n,) (dtype S): a compact block for a million files
    labels: np.ndarray  # int64 (n,), 0..C-1
    classes: tuple[str, ...]  # the C class names, sorted
    packed: Sequence[Archive] = ()
    places: np.ndarray | None = None  # rows (n,) of the index of the archives; None: in folders

    def __len__(self) -> int:
        return len(self.files)

    def file(self, row: int) -> str:
        """Return the path of one image relative to ``root``."""
        return os.fsdecode(bytes(self.files[row]))

    def read(self, row: int) -> bytes:
        """Return the bytes of one image, unpacked if it is compressed with gzip (some of ImageNet-21K are).

        An OSError tells of one that is missing, damaged in its archive, or larger than ``LARGEST_IMAGE``.
        """
        if self.places is None:
            with files.open_regular(self.root / self.file(row), buffering=0) as handle:
                data = handle.read(archives.LARGEST_IMAGE + 1)
        else:
            name, owner, *place = self.places[row].item()
            if name != bytes(self.files[row]):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.file(row))
            data = archives.read_member(self.packed[owner], Member(self.file(row), *place))
        if data[:3] == b"\x1f\x8b\x08":
            data = archives.inflate(data, self.file(row), wbits=16 + zlib.MAX_WBITS)
        if len(data) > archives.LARGEST_IMAGE:
            raise OSError(errno.EFBIG, f"more than {archives.LARGEST_IMAGE >> 20} MiB", self.file(row))
        return data

    def counts(self) -> np.ndarray:
        """Return the number of images per class, int64 ``[C]``."""
        return np.bincount(self.labels, minlength=len(self.classes))

    def rows(self, chosen: np.ndarray | slice) -> ImageList:
        """Return some rows, with all classes."""
        places = None if self.places is None else self.places[chosen]
        return dataclasses.replace(self, files=self.files[chosen], labels=self.labels[chosen], places=places)

    def first(self, n: int) -> ImageList:
        """Return the first ``n`` images of each of the first ``n`` classes."""
        chosen = [np.flatnonzero(self.labels == label)[:n] for label in range(len(self.classes[:n]))]
        return dataclasses.replace(self.rows(np.concatenate(chosen)), classes=self.classes[:n])

    def digest(self) -> str:
        """Return the SHA-256 of the file names and labels; it does not depend on the root."""
        digest = hashlib.sha256("\n".join(self.classes).encode(errors="surrogateescape"))
        digest.update(self.labels.tobytes())
        for file in self.files.tolist():
            digest.update(file + b"\n")
        return digest.hexdigest()

    def contents_crc32(self) -> int:
        """Return a checksum of the bytes of :func:`sampled_rows`."""

        def checksum(row: int) -> int:
            with contextlib.suppress(OSError):
                return zlib.crc32(self.read(row))
            return 0

        with ThreadPoolExecutor(archives.N_THREADS) as pool:
            return zlib.crc32(np.array([*pool.map(checksum, sampled_rows(len(self)).tolist())]).tobytes())


def sampled_rows(n: int) -> np.ndarray:
    """Return up to 1,000 of ``n`` rows, spread evenly, int64 ascending."""
    return np.unique(np.linspace(0, n - 1, min(n, 1000)).astype(np.int64))


@dataclass
class Found:
    """The images below a root."""

    root: Path
    images: dict[str, list[str]]  # sorted names by class
    unread: list[str] = field(default_factory=list)  # files and folders
    packed: Sequence[Archive] = ()
    places: np.ndarray | None = None  # rows of the index of the archives

    def warn(self, what: str) -> None:
        """Log a line about what is not read, images first."""
        if self.unread:
            ordered = sorted(self.unread, key=lambda p: (not p.lower().endswith(classes.IMAGE_SUFFIXES), p))
            line = "%s: %d files or folders are not read, since they are no images in class folders: %s"
            logger.warning(line, what, len(ordered), printable(some(ordered)))

    def image_list(self, dataset: str, split: str, listed: Mapping | None = None) -> ImageList:
        """Return the list of these images by class (default: all)."""
        listed = self.images if listed is None else listed
        flat = [os.fsencode(file) for names in listed.values() for file in names]
        if broken := next((file for file in flat if b"\n" in file or b"\r" in file), None):
            # Files with lists of paths have one path per line.
            raise CogError(f"the name of {os.fsdecode(broken)!r} in {self.root} has a line break; rename it")
        names, places = np.array(flat, dtype=bytes), self.places
        if places is not None:
            places = places[np.searchsorted(places["name"], names).clip(max=len(places) - 1)]
        labels = np.repeat(np.arange(len(listed), dtype=np.int64), list(map(len, listed.values())))
        return ImageList(dataset, split, self.root, names, labels, tuple(listed), self.packed, places)


def find_images(root: str | os.PathLike[str], wanted: Collection[str] | None = None) -> Found:
    """Return the images of classes (default: all) below a root, in the first of these forms that fits.

    Class folders; archives in the root; archives beside a missing root that are named like it, for ``train``
    such as ``ILSVRC2012_img_train.zip`` or ``train-00001-of-00008.tar``.
    """
    root = Path(root)
    is_split = not root.is_dir()
    folder = root.parent if is_split else root
    with os_errors_explained(f"cannot list the images below {root}"), os.scandir(folder) as entries:
        is_dir = {entry.name: entry.is_dir() for entry in entries if entry.name[0] != "."}
        if is_split:
            word = "(val|validation)" if root.name == "val" else re.escape(root.name)
            named = re.compile(rf"(.*[-_.])?{word}([-_.][0-9]+([-_.]of[-_.][0-9]+)?)?\.[^0-9]*")
            is_dir = {name: False for name in is_dir if named.fullmatch(name)}
        labels = sorted(name for name in is_dir if is_dir[name] and not classes.NO_CLASS.fullmatch(name))
        packed = sorted(n for n in is_dir if not is_dir[n] and n.lower().endswith((".tar", ".zip")))
        if labels or not packed:
            found = _in_folders(root, labels if wanted is None else wanted)
        else:
            found = _in_archives(root, [folder / name for name in packed], wanted, is_split)
    for name in is_dir.keys() - {*(labels or packed), *classes.LABEL_FILES}:
        is_broken = not (folder / name).exists()  # a link, maybe to the folder of a class
        if is_dir[name] or is_broken or name.lower().endswith((*classes.IMAGE_SUFFIXES, *ARCHIVES)):
            found.unread.append(str(folder / name))
    return found


def _in_folders(root: Path, wanted: Collection[str]) -> Found:
    found = Found(root, {})

    def stop(error: OSError) -> None:
        raise error

    def listed(folder: str) -> list[str]:
        top = os.path.join(root, folder)
        walk = os.walk(top, onerror=stop, followlinks=True) if os.path.isdir(top) else ()
        paths = (f"{folder}{at[len(top) :]}/{name}" for at, _, names in walk for name in names)
        images, others = classes.images_among(paths)
        if nested := [path for path in images if path.count("/") > folder.count("/") + 1]:
            raise CogError(f"{root / folder} has folders with images, such as {nested[0]}; move them up")
        found.unread.extend(os.path.join(root, path) for path in others)
        return sorted(images)

    with ThreadPoolExecutor(archives.N_THREADS) as pool:
        found.images.update(zip(wanted, pool.map(listed, wanted), strict=True))
    return found


def _in_archives(root: Path, paths: Sequence[Path], wanted: Collection[str] | None, is_split: bool) -> Found:
    shards = Counter(re.sub(r"[0-9]+([-_.]of[-_.][0-9]+)$", r"*\1", path.stem) for path in paths)
    for name, n in shards.items():
        if (total := re.search(r"\*[-_.]of[-_.]([0-9]+)$", name)) and n < int(total[1]):
            has = f"{n} of the {int(total[1])} archives {name}"
            raise CogError(f"{paths[0].parent} has {has}; fetch the others")
    numbers = {int(end[1]) for path in paths if (end := re.search(r"[-_.]([0-9]{3,})$", path.stem))}
    if numbers and min(numbers) < 2 and len(numbers) <= max(numbers) - min(numbers):
        logger.warning("%s: %d archives, numbered to %d: are some missing?", root, len(numbers), max(numbers))
    # Those named by a WordNet id are looked into if their class is wanted.
    alone = {path: path.stem for path in paths if is_wnid(path.stem)}
    packed = [archives.current(p) for p in paths if wanted is None or p not in alone or alone[p] in wanted]
    if not packed:
        return Found(root, {label: [] for label in wanted or ()})
    rows, unread = archives.index(packed, wanted, is_split)
    names = [os.fsdecode(name) for name in rows["name"].tolist()]
    for row in np.flatnonzero(rows["name"][1:] == rows["name"][:-1])[:1].tolist():
        first, second = (packed[owner][0] for owner in rows["owner"][row : row + 2])
        raise CogError(f"image {names[row]} is in {first} and again in {second}; keep or rename one")
    labels = {*alone.values()} | {name.partition("/")[0] for name in names} if wanted is None else wanted
    found = Found(root, {label: [] for label in sorted(labels)}, unread, packed, rows)
    for name in sorted(names):
        if (label := name.partition("/")[0]) in found.images:
            found.images[label].append(name)
    return found


def from_class_folders(dataset: str, split: str, folder: Path, *, flag: str) -> ImageList:
    """List the images ``<folder>/<class>/<image>``, or those in archives; ``flag`` names the folder."""
    found = find_images(folder)
    wrong = "does not exist, or holds no class folders" if not found.images else ""
    if empty := [name for name, images in found.images.items() if not images]:
        wrong = f"has {len(empty)} of {len(found.images)} class folders without images ({some(empty)})"
    elif thumbnails := [n for n in found.images if re.fullmatch("_*thumb(s|nails?)?", n, re.IGNORECASE)]:
        wrong = f"has a folder {thumbnails[0]}, which is a class or holds thumbnails; rename or remove it"
    elif len(found.images) == 1 < len(found.packed) and folder.is_dir():
        wrong = f"has {len(found.packed)} archives of one class, {min(found.images)}, their folder"
    if wrong:
        raise CogError(f"{flag}: {folder} {wrong}; expected {folder}/<class>/<image>, or tar or zip files")
    found.warn(f"{dataset} {split}")
    return found.image_list(dataset, split)


def from_level(dataset: str, split: str, root: Path, *, levels_file: str, split_file: str) -> ImageList:
    """List one concept generalization level, ``cog_l<k>``, from the two level files."""
    level, levels = constants.cog_level(dataset), level_files.read_levels(levels_file)
    if level is None or level > len(levels):
        raise CogError(f"--dataset {dataset}: {levels_file} has the levels cog_l1 to cog_l{len(levels)}")
    chosen = level_files.read_split(split_file, concepts=sorted(levels[level - 1]))
    listed = {wnid: sorted(map(str, parts[split])) for wnid, parts in chosen.items()}
    folders = {wnid: os.path.dirname(images[0]) for wnid, images in listed.items()}
    found = find_images(root, set(folders.values()))
    if lost := [wnid for wnid, folder in folders.items() if not found.images[folder]]:
        lacks = f"lacks the folders of {len(lost)} of the {len(listed)} concepts of {dataset} ({some(lost)})"
        raise CogError(f"--imagenet_images_root {root} {lacks}; expected {root}/<wnid>/*.JPEG")
    return found.image_list(dataset, split, listed)
