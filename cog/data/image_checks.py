"""Checks of an image list for missing, empty and unreadable files; each folder is listed once."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from cog.data.image_stores import is_image

if TYPE_CHECKING:
    from cog.data.image_lists import ImageList

# Listing folders is limited by the file system, not by the processors.
_THREADS = 16


def missing(images: ImageList, *, without: Collection[str] = ()) -> list[str]:
    """Return the images of a list that are not in its store, in the list's order.

    Args:
        images: the list.
        without: classes that are known to be missing as a whole; their images are not reported.
    """
    store = images.store

    def listed(folder: str) -> list[str]:
        try:
            return store.names(folder)
        except OSError:
            return []

    wanted = _files(images, without)
    with ThreadPoolExecutor(_THREADS) as pool:
        present = set().union(*pool.map(listed, {name.rpartition("/")[0] for name in wanted}))
    absent = (name for name in wanted if name not in present)
    # A store lists only files with an image suffix; a level file may name others.
    return [name for name in absent if is_image(name.rpartition("/")[2]) or not store.has(name)]


def faulty(images: ImageList, *, without: Collection[str] = ()) -> dict[str, list[str]]:
    """Return the images of a list that are empty or cannot be read, in the list's order, by fault; see :func:`missing`.

    The faults are those of :meth:`cog.data.image_stores.ImageStore.faults`; no image is read.
    """
    wanted = _files(images, without)
    faults: dict[str, str] = {}
    with ThreadPoolExecutor(_THREADS) as pool:
        for in_folder in pool.map(images.store.faults, {name.rpartition("/")[0] for name in wanted}):
            faults |= in_folder
    by_fault: dict[str, list[str]] = {}
    for name in wanted if faults else ():
        if name in faults:
            by_fault.setdefault(faults[name], []).append(name)
    return by_fault


def _files(images: ImageList, without: Collection[str]) -> list[str]:
    known = [name in without for name in images.classes]
    return [images.file(row) for row in range(len(images)) if not known[images.labels[row]]]
