"""What levels are built from: lists of ids, numbers of images, images in folders and their split."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cog import constants
from cog.data import datasets, level_files
from cog.data.images import hint
from cog.data.stores import ImageStore
from cog.data.wnids import is_wnid
from cog.errors import CogError, os_errors_explained, some
from cog.runtime import files

logger = logging.getLogger(__name__)

#: Number of folders that are listed at the same time: waiting for a network file system takes most of the time.
_THREADS = 8


def read_wnids(path: Path) -> list[str]:
    """Read a list of different noun ids, the first column of each line; a CogError names a line without one."""
    wnids: dict[str, None] = {}
    for number, fields in _rows(path):
        if not is_wnid(fields[0]):
            raise CogError(
                f"{path}, line {number}: {fields[0][:60]!r} is no noun id, expected one such as n02084071"
            )
        wnids[fields[0]] = None
    return list(wnids)


def read_counts(path: Path) -> dict[str, int]:
    """Read rows ``wnid,count``; a first row without an id is a header, further columns are ignored.

    A row without an id or a count, or with the id of an earlier one, is a CogError.
    """
    counts: dict[str, int] = {}
    for position, (number, (wnid, count, *_)) in enumerate((n, [*fields, ""]) for n, fields in _rows(path)):
        if position == 0 and not is_wnid(wnid) and not count.isdecimal():
            continue  # the header
        if not is_wnid(wnid) or not count.isdecimal() or wnid in counts:
            expected = "another id in every row" if wnid in counts else "a noun id and a whole number"
            raise CogError(f"{path}, row {number}: found {f'{wnid},{count}'!r}, expected {expected}")
        counts[wnid] = int(count)
    if not counts:
        raise CogError(f"{path} has no rows, expected wnid,count")
    return counts


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return the number and the fields, separated by commas or blanks, of every line but blank ones and comments."""
    with os_errors_explained(f"cannot read {path}"):
        with files.open_regular(path) as handle:
            text = handle.read(1 << 26).decode("utf-8-sig", "replace")
    rows = enumerate((line.replace(",", " ").replace('"', "").split() for line in text.splitlines()), start=1)
    return [(number, fields) for number, fields in rows if fields and not fields[0].startswith("#")]


def count_images(store: ImageStore) -> dict[str, int]:
    """Return the number of images of each concept, by ascending wnid, from the folders or archives of a root."""
    with os_errors_explained(f"cannot list --imagenet_images_root {store.root}"):
        classes = store.classes()
        wnids = [name for name in classes if is_wnid(name)]
        store.prepare(wnids)
    if not wnids:
        raise CogError(
            f"--imagenet_images_root {store.root} has no folder named by a noun id, expected one folder per synset, "
            f"such as n02084071, or the same in tar or zip files{hint(store.root)}"
        )
    if others := sorted(set(classes) - set(wnids)):
        logger.warning("ignored in %s, since their names are no noun ids: %s", store.root, some(others))
    with ThreadPoolExecutor(_THREADS) as pool:
        sizes = pool.map(lambda wnid: len(_names(store, wnid)), wnids)
        counts = dict(zip(wnids, sizes, strict=True))
    for line in store.unread.lines():
        logger.warning("%s", line)
    return counts


def count_in1k(root: str) -> list[int]:
    """Return the number of training and test images of each concept of IN-1K together."""
    counts: Counter[str] = Counter()
    for split in constants.SPLITS:
        source = datasets.DATASETS[constants.IN1K]
        listed = source.images(constants.IN1K, split, {"in1k_images_root": root})
        counts.update(dict(zip(listed.classes, listed.counts().tolist(), strict=True)))
    return list(counts.values())


def draw_split(
    store: ImageStore,
    wnids: Iterable[str],
    *,
    counts: Mapping[str, int],
    n_test: int,
    max_train: int,
    seed: int,
) -> level_files.Split:
    """Draw the images of every concept, see :func:`cog.data.level_files.draw`.

    A warning names concepts with another number of images on disk than in ``counts``; a folder that cannot be listed,
    or has too few images, is a CogError.
    """
    changed = []

    def of_concept(wnid: str) -> dict:
        names = _names(store, wnid)
        if counts.get(wnid, len(names)) != len(names):
            changed.append(wnid)
        return level_files.draw(names, wnid=wnid, n_test=n_test, max_train=max_train, seed=seed)

    wnids = sorted(set(wnids))
    with ThreadPoolExecutor(_THREADS) as pool:
        split = dict(zip(wnids, pool.map(of_concept, wnids), strict=True))
    if changed:
        logger.warning(
            "%d of %d concepts have another number of images on disk than in the counts: %s",
            len(changed),
            len(split),
            some(sorted(changed)),
        )
    return split


def _names(store: ImageStore, wnid: str) -> list[str]:
    with os_errors_explained(f"cannot list the images in {store.root / wnid}"):
        return store.names(wnid)
