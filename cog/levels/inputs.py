"""What levels are built from: lists of ids, numbers of images, images in folders and their split."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from cog import constants
from cog.data import datasets, level_files
from cog.data.images import Found, hint
from cog.data.wnids import is_wnid
from cog.errors import CogError, os_errors_explained, some
from cog.runtime import files

logger = logging.getLogger(__name__)


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


def count_images(found: Found) -> dict[str, int]:
    """Return the number of images of each concept, by ascending wnid, among those below a root."""
    counts = {name: len(images) for name, images in found.images.items() if is_wnid(name)}
    root = found.store.root
    if not counts:
        raise CogError(
            f"--imagenet_images_root {root} has no folder named by a noun id, expected one folder per synset, "
            f"such as n02084071, or the same in tar or zip files{hint(root)}"
        )
    if others := sorted({*found.images} - {*counts}):
        logger.warning("ignored in %s, since their names are no noun ids: %s", root, some(others))
    found.warn(f"--imagenet_images_root {root}")
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
    found: Found,
    wnids: Iterable[str],
    *,
    counts: Mapping[str, int],
    n_test: int,
    max_train: int,
    seed: int,
) -> level_files.Split:
    """Draw the images of every concept, see :func:`cog.data.level_files.draw`.

    A warning names concepts with another number of images on disk than in ``counts``; too few are a CogError.
    """
    split, changed = {}, []
    for wnid in sorted(set(wnids)):
        names = found.images.get(wnid, [])
        changed += [wnid] if counts.get(wnid, len(names)) != len(names) else []
        split[wnid] = level_files.draw(names, wnid=wnid, n_test=n_test, max_train=max_train, seed=seed)
    if changed:
        logger.warning(
            "%d of %d concepts have another number of images on disk than in the counts: %s",
            len(changed),
            len(split),
            some(changed),
        )
    return split
