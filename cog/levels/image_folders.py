"""Images of concepts: their numbers, counted in folders or read from a CSV, and those that cannot be decoded."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from cog.data import root_layout
from cog.data.image_lists import IMAGE_SUFFIXES
from cog.data.wnids import is_wnid
from cog.errors import CogError
from cog.runtime import files
from cog.runtime.progress import Progress


def read_counts(path: Path) -> dict[str, int]:
    """Read ``wnid,count`` rows; a first row without an id is a header, further columns are ignored.

    Raises:
        CogError: when the file cannot be read, or a row has no id, no count, a negative count, or the id of an
            earlier row.
    """
    counts: dict[str, int] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            rows = [(number, row) for number, row in enumerate(csv.reader(handle), start=1) if any(row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CogError(f"cannot read the image counts {path}: {error}") from error
    if rows and not is_wnid(rows[0][1][0].strip()) and not _is_number(rows[0][1][-1]):
        rows = rows[1:]  # the header
    for number, row in rows:
        place, wnid = f"{path}, row {number}", row[0].strip()
        if not is_wnid(wnid):
            raise CogError(f"{place}: {wnid!r} is not a noun id such as n02084071, expected wnid,count")
        if wnid in counts:
            raise CogError(f"{place}: {wnid} has a second row, expected one row per concept")
        text = row[1].strip() if len(row) > 1 else ""
        if not _is_number(text) or int(text) < 0:
            raise CogError(f"{place}: the count of {wnid} is {text!r}, expected a whole number of at least 0")
        counts[wnid] = int(text)
    if not counts:
        raise CogError(f"{path} has no rows, expected wnid,count")
    return counts


def _is_number(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def write_counts(path: Path, counts: Mapping[str, int]) -> None:
    """Write ``counts`` atomically in the form :func:`read_counts` reads, ids ascending."""
    files.write_text(path, "wnid,n_images\n" + "".join(f"{wnid},{counts[wnid]}\n" for wnid in sorted(counts)))


def count_images(root: Path, *, n_workers: int) -> tuple[dict[str, int], list[str]]:
    """Count the images of every folder ``<root>/<wnid>``.

    Args:
        root: folder with one folder per synset.
        n_workers: number of folders that are listed at the same time.

    Returns:
        Counts by ascending wnid, and the names of entries of ``root`` that are not folders of a noun id.

    Raises:
        CogError: when a folder cannot be listed, or ``root`` has no folder of a noun id.
    """
    try:
        with os.scandir(root) as entries:
            listed = sorted((entry.name, entry.is_dir()) for entry in entries)
    except OSError as error:
        raise CogError(f"cannot list --imagenet_images_root {root}: {error.strerror or error}") from error
    wnids = [name for name, is_folder in listed if is_folder and is_wnid(name)]
    others = [name for name, is_folder in listed if not (is_folder and is_wnid(name)) and name[0] != "."]
    if not wnids:
        raise CogError(
            f"--imagenet_images_root {root} has no folder named by a noun id, expected one folder per synset such as "
            f"{Path(root) / 'n02084071'}{root_layout.hint(root)}"
        )
    counts: dict[str, int] = {}
    with Progress(len(wnids), "Counting images", unit="folders") as progress:
        with ThreadPoolExecutor(max(1, n_workers)) as pool:
            for wnid, n_images in zip(wnids, pool.map(lambda w: len(_names(root, w)), wnids), strict=True):
                counts[wnid] = n_images
                progress.update()
    return counts, others


def list_images(root: Path, wnid: str) -> list[str]:
    """Return the images of one concept as ``<wnid>/<file name>``, ascending by code point.

    Raises:
        CogError: when the folder cannot be listed.
    """
    return [f"{wnid}/{name}" for name in sorted(_names(root, wnid))]


def _names(root: Path, wnid: str) -> list[str]:
    try:
        with os.scandir(root / wnid) as entries:
            return [
                entry.name
                for entry in entries
                if entry.name.lower().endswith(IMAGE_SUFFIXES) and entry.name[0] != "." and entry.is_file()
            ]
    except OSError as error:
        raise CogError(
            f"cannot list the images in {root / wnid}: {error.strerror or error}; check the folder and "
            f"its permissions"
        ) from error


def unreadable_images(root: Path, names: Iterable[str], *, pool: Executor) -> dict[str, str]:
    """Decode every image as feature extraction does and return those that fail.

    Threads suffice: Pillow lets go of the interpreter lock while it decodes.

    Args:
        root: folder the names are relative to.
        names: file names.
        pool: decodes several at the same time.

    Returns:
        Name -> error, in the order of ``names``.
    """
    from cog.data.pixels import load_rgb

    def error_of(name: str) -> str:
        try:
            load_rgb(root / name)
        except Exception as error:  # Pillow raises nearly anything on a damaged file
            return " ".join(f"{type(error).__name__}: {error}".split()).replace(f"{root}{os.sep}", "")
        return ""

    names = list(names)
    errors = zip(names, pool.map(error_of, names), strict=True)
    return {name: error for name, error in errors if error}
