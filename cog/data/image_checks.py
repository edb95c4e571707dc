"""Images of a list that are missing, by one listing of each folder."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cog.data.image_lists import ImageList

# Listing folders waits for the file system, not for a processor.
_THREADS = 16


def missing(images: ImageList) -> list[str]:
    """Return the images of a list that are not under its root, in the list's order."""
    wanted: dict[bytes, list[tuple[int, bytes]]] = {}
    for row, file in enumerate(images.files.tolist()):
        folder, _, name = file.rpartition(b"/")
        wanted.setdefault(folder, []).append((row, name))
    root = os.fsencode(images.root)

    def absent(folder: bytes) -> list[int]:
        try:
            present = set(os.listdir(os.path.join(root, folder)))
        except OSError:
            present = set()
        return [row for row, name in wanted[folder] if name not in present]

    with ThreadPoolExecutor(_THREADS) as pool:
        rows = sorted(row for rows in pool.map(absent, wanted) for row in rows)
    return [images.file(row) for row in rows]
