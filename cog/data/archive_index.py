"""The index of the images in archives, kept in a cache folder: folders of images are often read-only.

The cache folder is ``$COG_CACHE_DIR``, else ``$XDG_CACHE_HOME/imagenet-cog``, else ``~/.cache/imagenet-cog``. The index
of a set of archives is one file, which is made anew when one of them has changed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zipfile
import zlib
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from cog.data.archives import Member
from cog.data.image_stores import Unread
from cog.errors import CogError
from cog.runtime import files

logger = logging.getLogger(__name__)

#: Version of the index; it changes with the names of images and with the form of rows.
VERSION = 4


def as_rows(images: Iterable[tuple[str, Member]], *, owner: int, archive: Path) -> np.ndarray:
    """Return named members of an archive as rows, sorted by path; the last of equal members counts, as in unpacking.

    The fields are ``path`` (bytes: ``<class>/<file>`` of an image, or the path of a tar file inside the archive),
    ``owner`` (number of the archive), and ``offset``, ``size``, ``crc`` and ``kind`` of
    :class:`cog.data.archives.Member`.
    """
    paths: list[bytes] = []
    numbers, members = array("q"), array("q")  # a list of integers would take five times the memory
    for path, member in images:
        paths.append(os.fsencode(path))
        # Impossible sizes are lowered to fit int64: such an image is too large in any case.
        numbers.extend((min(member.offset, 1 << 62), min(member.size, 1 << 62), member.crc, member.kind))
        members.append(hash(member.path))
    width = max(map(len, paths), default=1)
    fields = [("path", f"S{width}"), ("owner", "<i4"), ("offset", "<i8"), ("size", "<i8"), ("crc", "<u4")]
    rows = np.empty(len(paths), dtype=np.dtype([*fields, ("kind", "u1")]))
    rows["path"], rows["owner"] = paths, owner
    columns = np.frombuffer(numbers, dtype=np.int64).reshape(-1, 4)
    for column, field in enumerate(("offset", "size", "crc", "kind")):
        rows[field] = columns[:, column]
    order = np.argsort(rows["path"], kind="stable")
    rows, hashes = rows[order], np.frombuffer(members, dtype=np.int64)[order]
    last = np.ones(len(rows), dtype=bool)
    last[:-1] = rows["path"][1:] != rows["path"][:-1]
    different = ~last[:-1] & (hashes[1:] != hashes[:-1])
    if different.any():
        name = os.fsdecode(bytes(rows["path"][:-1][different][0]))
        raise CogError(
            f"two members of {archive} would both be image {name}; rename one, or unpack the archive"
        )
    return rows[last]


def merged(parts: list[np.ndarray]) -> np.ndarray:
    """Return the rows of several archives, sorted by path."""
    widest = max(parts, key=lambda rows: rows.dtype["path"].itemsize).dtype
    rows, first = np.empty(sum(map(len, parts)), widest), 0
    for part in parts:
        rows[first : first + len(part)] = part
        first += len(part)
    return rows[np.argsort(rows["path"], kind="stable")]


def place(*names: str) -> Path:
    """Return the index file of the archives with these names."""
    given = os.environ.get("COG_CACHE_DIR")
    if not given:
        given = os.path.join(
            os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "imagenet-cog"
        )
    return Path(given) / f"images-{hashlib.sha256(os.fsencode(chr(0).join(names))).hexdigest()[:20]}.npz"


def load(path: Path, signature: str) -> tuple[np.ndarray, Unread] | None:
    """Return the rows in an index file, and what is beside them; None when the archives had another ``signature``."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            if str(stored["signature"]) != signature:
                return None
            return stored["rows"], Unread(json.loads(str(stored["unread"])))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        logger.warning("the index %s cannot be read and is made anew (%s)", path, error)
        return None


def save(path: Path, signature: str, rows: np.ndarray, unread: Unread) -> None:
    """Write an index file, if its folder can be written to."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.atomic_write(path) as handle:
            others = json.dumps(unread.kinds)
            np.savez_compressed(handle, signature=np.array(signature), rows=rows, unread=np.array(others))
    except (CogError, OSError) as error:
        logger.warning("the index of the images is not kept for the next command: %s", error)
