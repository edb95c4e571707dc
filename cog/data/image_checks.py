"""Images of a list that are missing, by one listing of each folder."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from cog.data.image_stores import is_image

if TYPE_CHECKING:
    from cog.data.image_lists import ImageList

# Listing folders waits for the file system, not for a processor.
_THREADS = 16


def missing(images: ImageList) -> list[str]:
    """Return the images of a list that are not in its store, in the list's order."""
    store = images.store

    def listed(folder: str) -> list[str]:
        try:
            return store.names(folder)
        except OSError:
            return []

    wanted = [images.file(row) for row in range(len(images))]
    with ThreadPoolExecutor(_THREADS) as pool:
        present = set().union(*pool.map(listed, {name.rpartition("/")[0] for name in wanted}))
    absent = (name for name in wanted if name not in present)
    # A folder's list has no files with other suffixes; a level file may name them.
    return [name for name in absent if is_image(name.rpartition("/")[2]) or not store.has(name)]
