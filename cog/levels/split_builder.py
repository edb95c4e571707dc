"""Splits of the images of many concepts, folder by folder."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from cog.data import split_files
from cog.data.image_stores import ImageStore
from cog.levels import image_folders
from cog.runtime.progress import Progress

#: Number of folders whose file names are in memory at the same time: all names of 5000 concepts would take a gigabyte.
_BATCH = 64


@dataclass(frozen=True)
class BuiltSplit:
    """Training and test images of concepts.

    Attributes:
        split: wnid -> ``{"train": names, "test": names}``, ids ascending.
        n_found: wnid -> number of images in its folder.
        n_usable: wnid -> number of images to draw from: all, or those that can be decoded.
        unreadable: name -> error of each image that cannot be decoded; empty without verification.
    """

    split: split_files.Split
    n_found: dict[str, int]
    n_usable: dict[str, int]
    unreadable: dict[str, str]


def build_split(
    store: ImageStore,
    wnids: Iterable[str],
    *,
    n_test: int,
    max_train: int,
    seed: int,
    verify: bool,
    n_workers: int,
) -> BuiltSplit:
    """Return the split of the images of every concept, drawn after they are listed and, if wanted, verified.

    Args:
        store: the images, one folder per concept.
        wnids: ids of the concepts; repetitions have no effect.
        n_test: test images per concept.
        max_train: cap on training images per concept.
        seed: seed of the draws, see :func:`cog.data.split_files.draw`.
        verify: whether to decode every image and leave out images that fail.
        n_workers: number of folders listed, or images decoded, at the same time.

    Raises:
        CogError: a folder cannot be listed, or has too few usable images.
    """
    built = BuiltSplit({}, {}, {}, {})
    ordered = sorted(set(wnids))
    waiting = iter(ordered)
    label = "Decoding images" if verify else "Listing images"
    with Progress(len(ordered), label, unit="folders") as progress:
        with ThreadPoolExecutor(max(1, n_workers)) as pool:
            while batch := list(islice(waiting, _BATCH)):
                listed = pool.map(lambda wnid: image_folders.list_images(store, wnid), batch)
                for wnid, names in zip(batch, listed, strict=True):
                    failed = image_folders.unreadable_images(store, names, pool=pool) if verify else {}
                    usable = [name for name in names if name not in failed]
                    built.unreadable.update(failed)
                    built.n_found[wnid], built.n_usable[wnid] = len(names), len(usable)
                    built.split[wnid] = split_files.draw(
                        usable, wnid=wnid, n_test=n_test, max_train=max_train, seed=seed
                    )
                    progress.update()
    return built
