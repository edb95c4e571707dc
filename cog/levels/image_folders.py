"""Images of concepts: their numbers, counted in folders or read from a CSV, and images that cannot be decoded."""

from __future__ import annotations

import csv
import errno
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from cog.data import root_layout
from cog.data.image_stores import ImageStore
from cog.data.wnids import is_wnid
from cog.errors import CogError
from cog.runtime.csv_text import write_csv
from cog.runtime.progress import Progress


def read_counts(path: Path) -> dict[str, int]:
    """Read ``wnid,count`` rows; a first row without an id is a header, further columns are ignored.

    Raises:
        CogError: the file cannot be read, or a row has no id, no count, a negative count, or the id of an earlier
            row.
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
    """Write ``counts`` atomically in the form that :func:`read_counts` reads, ids ascending."""
    write_csv(path, ("wnid", "n_images"), sorted(counts.items()))


def count_images(
    store: ImageStore, *, n_workers: int, choose: Callable[[list[str]], list[str]] = list
) -> tuple[dict[str, int], list[str]]:
    """Count the images of folders ``<wnid>``, or of archives in the place of such folders.

    Args:
        store: the images; one folder per synset.
        n_workers: number of folders that are listed at the same time.
        choose: function from all ids to the ids to count, both ascending; default: all ids are counted.

    Returns:
        Counts by ascending wnid, and the names of other folders and files of the root.

    Raises:
        CogError: a folder cannot be listed, or there is no folder of a noun id.
    """
    root = store.root
    try:
        classes = store.classes()
        wnids = [name for name in classes if is_wnid(name)]
        chosen = choose(wnids)
        store.prepare(chosen)
        with os.scandir(root) as entries:
            listed = sorted(entry.name for entry in entries)
    except OSError as error:
        raise CogError(f"cannot list --imagenet_images_root {root}: {error.strerror or error}") from error
    if not wnids:
        raise CogError(
            f"--imagenet_images_root {root} has no folder named by a noun id, expected one folder per synset such as "
            f"{Path(root) / 'n02084071'}, or the same in tar or zip files{root_layout.hint(root)}"
        )
    counts: dict[str, int] = {}
    with Progress(len(chosen), "Counting images", unit="folders") as progress:
        with ThreadPoolExecutor(max(1, n_workers)) as pool:
            for wnid, names in zip(chosen, pool.map(lambda w: list_images(store, w), chosen), strict=True):
                counts[wnid] = len(names)
                progress.update()
    known = set(wnids)
    others = [name for name in listed if name not in known and name[0] != "."]
    return counts, sorted({*others, *(name for name in classes if name not in known)})


def list_images(store: ImageStore, wnid: str) -> list[str]:
    """Return the images of one concept as ``<wnid>/<file name>``, ascending by code point.

    Raises:
        CogError: the folder cannot be listed.
    """
    try:
        names = store.names(wnid)
        if not names and not store.has_class(wnid):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return names
    except OSError as error:
        raise CogError(
            f"cannot list the images in {store.root / wnid}: {error.strerror or error}; check the folder and "
            f"its permissions"
        ) from error


def unreadable_images(store: ImageStore, names: Sequence[str], *, pool: Executor) -> dict[str, str]:
    """Decode every image as feature extraction does, and return the errors of the images that fail.

    Threads suffice: Pillow releases the interpreter lock while it decodes.

    Args:
        store: the images.
        names: names of images.
        pool: executor that decodes several images at the same time.

    Returns:
        name -> error, in the order of ``names``.
    """
    from cog.data.pixels import load_rgb

    def error_of(name: str) -> str:
        try:
            load_rgb(store.read(name), name=name)
        except Exception as error:  # Pillow raises many kinds of errors on a damaged file
            return " ".join(f"{type(error).__name__}: {error}".split()).replace(f"{store.root}{os.sep}", "")
        return ""

    errors = zip(names, pool.map(error_of, names), strict=True)
    return {name: error for name, error in errors if error}
