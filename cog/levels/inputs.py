"""What levels are built from: lists of ids, numbers of images, and images in folders or archives."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from cog import constants
from cog.data import datasets, level_files
from cog.data.images import Found
from cog.data.wnids import is_wnid
from cog.errors import CogError, os_errors_explained, some
from cog.runtime import files

logger = logging.getLogger(__name__)


def read_wnids(path: Path) -> list[str]:
    """Read a list of different noun ids, the first column of each line; a line without one is a CogError."""
    rows = _rows(path)
    for number, fields in rows:
        if not is_wnid(fields[0]):
            found = f"{fields[0][:60]!r} is no noun id"
            raise CogError(f"{path}, line {number}: {found}, expected one such as n02084071")
    return list(dict.fromkeys(fields[0] for _, fields in rows))


def read_counts(path: Path) -> dict[str, int]:
    """Read rows ``wnid,count`` of different ids after a header, if any; other rows are a CogError."""
    counts: dict[str, int] = {}
    for position, (number, fields) in enumerate(_rows(path)):
        wnid, count = [*fields, ""][:2]
        if is_wnid(wnid) and count.isdecimal() and wnid not in counts:
            counts[wnid] = int(count)
        elif position or is_wnid(wnid) or count.isdecimal():
            expected = "another id in every row" if wnid in counts else "a noun id and a whole number"
            raise CogError(f"{path}, row {number}: found '{wnid},{count}', expected {expected}")
    if not counts:
        raise CogError(f"{path} has no rows, expected wnid,count")
    return counts


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return number and fields, separated by commas or blanks, of every line but blank ones and comments."""
    with os_errors_explained(f"cannot read {path}"), files.open_regular(path) as handle:
        lines = handle.read().decode("utf-8-sig", "replace").splitlines()
    rows = enumerate((line.replace(",", " ").replace('"', "").split() for line in lines), start=1)
    return [(number, fields) for number, fields in rows if fields and not fields[0].startswith("#")]


def count_images(found: Found) -> dict[str, int]:
    """Return the number of images of each concept, by ascending wnid, among those below a root."""
    counts = {name: len(images) for name, images in found.images.items() if is_wnid(name)}
    root = found.root
    if not counts:
        raise CogError(
            f"--imagenet_images_root {root} has no folder named by a noun id, expected one per synset, such "
            "as n02084071, or the same in tar or zip files"
        )
    if others := sorted({*found.images} - {*counts}):
        logger.warning("ignored in %s, since their names are no noun ids: %s", root, some(others))
    found.warn(f"--imagenet_images_root {root}")
    return counts


def count_in1k(root: str) -> list[int]:
    """Return the number of training and test images of each concept of IN-1K together."""
    counts: Counter[str] = Counter()
    source = datasets.DATASETS[constants.IN1K]
    for split in constants.SPLITS:
        listed = source.images(constants.IN1K, split, {"in1k_images_root": root})
        counts.update(dict(zip(listed.classes, listed.counts().tolist(), strict=True)))
    return list(counts.values())


def draw_split(
    found: Found, wnids: Iterable[str], counts: Mapping[str, int], **options: int
) -> level_files.Split:
    """Draw the images of every concept, with the options of :func:`cog.data.level_files.draw`."""
    split, changed = {}, []
    for wnid in sorted(set(wnids)):
        names = found.images.get(wnid, [])
        changed += [wnid] if counts.get(wnid, len(names)) != len(names) else []
        split[wnid] = level_files.draw(names, wnid=wnid, **options)
    if changed:
        words = f"{len(changed):,} of {len(split):,} concepts have another number of images on disk"
        logger.warning("%s than in the counts: %s", words, some(changed))
    return split
