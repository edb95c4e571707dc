"""Images of concepts: their numbers, counted in folders or read from a table, and their split."""

from __future__ import annotations

import csv
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from cog import constants
from cog.data import datasets, root_layout, split_files
from cog.data.image_stores import ImageStore
from cog.data.wnids import is_wnid
from cog.errors import CogError, os_errors_explained, some
from cog.runtime.progress import Progress

logger = logging.getLogger(__name__)

#: Number of folders that are listed at the same time: waiting for a network file system takes most of the time.
_THREADS = 8

#: Number of folders whose file names are in memory at the same time: all names of 5000 concepts would take a gigabyte.
_BATCH = 64


def read_counts(path: Path) -> dict[str, int]:
    """Read rows ``wnid,count``; a first row without an id is a header, further columns are ignored.

    Raises:
        CogError: the file cannot be read, or a row has no id, no count, or the id of an earlier row.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            rows = [(number, row) for number, row in enumerate(csv.reader(handle), start=1) if any(row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CogError(f"cannot read the image counts {path}: {error}") from error
    if rows and not is_wnid(rows[0][1][0].strip()) and not rows[0][1][-1].strip().isdecimal():
        rows = rows[1:]  # the header
    counts: dict[str, int] = {}
    for number, row in rows:
        wnid, count = row[0].strip(), row[1].strip() if len(row) > 1 else ""
        if not is_wnid(wnid) or not count.isdecimal() or wnid in counts:
            expected = "another id in every row" if wnid in counts else "a noun id and a whole number"
            raise CogError(f"{path}, row {number}: found {f'{wnid},{count}'!r}, expected {expected}")
        counts[wnid] = int(count)
    if not counts:
        raise CogError(f"{path} has no rows, expected wnid,count")
    return counts


def count_images(store: ImageStore) -> dict[str, int]:
    """Return the number of images of each concept, by ascending wnid, from the folders or archives of a root.

    Raises:
        CogError: a folder cannot be listed, or there is no folder of a noun id.
    """
    with os_errors_explained(f"cannot list --imagenet_images_root {store.root}"):
        classes = store.classes()
        wnids = [name for name in classes if is_wnid(name)]
        store.prepare(wnids)
    if not wnids:
        raise CogError(
            f"--imagenet_images_root {store.root} has no folder named by a noun id, expected one folder per synset, "
            f"such as n02084071, or the same in tar or zip files{root_layout.hint(store.root)}"
        )
    if others := sorted(set(classes) - set(wnids)):
        logger.warning("ignored in %s, since their names are no noun ids: %s", store.root, some(others))
    counts = {}
    with (
        Progress(len(wnids), "Counting images", unit="folders") as progress,
        ThreadPoolExecutor(_THREADS) as pool,
    ):
        for wnid, names in zip(wnids, pool.map(lambda wnid: _names(store, wnid), wnids), strict=True):
            counts[wnid] = len(names)
            progress.update()
    for line in store.unread.lines():
        logger.warning("%s", line)
    return counts


def count_in1k(root: Path) -> list[int]:
    """Return the number of training and test images of each concept of IN-1K together.

    Raises:
        CogError: the folders of IN-1K are missing or cannot be listed.
    """
    counts: Counter[str] = Counter()
    for split in constants.SPLITS:
        images = datasets.DATASETS[constants.IN1K].images(
            constants.IN1K, split, {"in1k_images_root": str(root)}
        )
        counts.update(dict(zip(images.classes, images.counts().tolist(), strict=True)))
    return list(counts.values())


def draw_split(
    store: ImageStore,
    wnids: Iterable[str],
    *,
    counts: Mapping[str, int],
    n_test: int,
    max_train: int,
    seed: int,
) -> split_files.Split:
    """Draw the training and test images of every concept.

    Args:
        store: the images, one folder per concept.
        wnids: ids of the concepts; repetitions have no effect.
        counts: numbers of images by wnid; a warning names concepts with another number on disk.
        n_test: test images per concept.
        max_train: cap on training images per concept.
        seed: seed of the draws, see :func:`cog.data.split_files.draw`.

    Raises:
        CogError: a folder cannot be listed, or has too few images.
    """
    split: split_files.Split = {}
    changed = []
    waiting = iter(sorted(set(wnids)))
    with ThreadPoolExecutor(_THREADS) as pool:
        while batch := list(islice(waiting, _BATCH)):
            listed = pool.map(lambda wnid: _names(store, wnid), batch)
            for wnid, names in zip(batch, listed, strict=True):
                split[wnid] = split_files.draw(
                    names, wnid=wnid, n_test=n_test, max_train=max_train, seed=seed
                )
                if counts.get(wnid, len(names)) != len(names):
                    changed.append(wnid)
    if changed:
        logger.warning(
            "%d of %d concepts have another number of images on disk than in the counts: %s",
            len(changed),
            len(split),
            some(changed),
        )
    return split


def _names(store: ImageStore, wnid: str) -> list[str]:
    with os_errors_explained(f"cannot list the images in {store.root / wnid}"):
        return store.names(wnid)
