"""Decoded batches in row order, and which images failed and why."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from cog.data.image_lists import ImageList
from cog.data.pixels import load_rgb, resize_and_crop
from cog.errors import CogError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Batch:
    """Decoded images of consecutive rows.

    Attributes:
        pixels: uint8 ``(b, crop, crop, 3)``; b is smaller than the batch when images failed.
        rows: int64 ``(b,)``, rows of the image list.
        failures: ``(row, reason)`` of the images that could not be decoded.
    """

    pixels: np.ndarray
    rows: np.ndarray
    failures: list[tuple[int, str]]


class _Decoder(Dataset):
    """Decodes one row; a failure is a value, not an exception, so that one bad file stops nothing."""

    def __init__(self, images: ImageList, *, resize: int, crop: int, load_truncated: bool) -> None:
        self._images = images
        self._resize = resize
        self._crop = crop
        self._load_truncated = load_truncated

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, row: int) -> tuple[int, np.ndarray | str]:
        path = os.path.join(self._images.root, self._images.file(row))
        try:
            image = load_rgb(path, load_truncated=self._load_truncated)
            return row, resize_and_crop(image, resize=self._resize, crop=self._crop)
        except Exception as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            return row, f"{type(error).__name__}: {' '.join(reason.split())}".replace(
                path, self._images.file(row)
            )


def _collate(samples: Sequence[tuple[int, np.ndarray | str]]) -> Batch:
    """Gather samples into a :class:`Batch` of numpy arrays.

    numpy arrays travel from the worker through its pipe. Tensors would travel through shared memory:
    one file descriptor each, in a /dev/shm that containers keep as small as 64 MB.
    """
    decoded = [(row, pixels) for row, pixels in samples if isinstance(pixels, np.ndarray)]
    return Batch(
        pixels=np.stack([pixels for _, pixels in decoded]) if decoded else np.empty((0, 0, 0, 3), np.uint8),
        rows=np.array([row for row, _ in decoded], dtype=np.int64),
        failures=[(row, reason) for row, reason in samples if isinstance(reason, str)],
    )


def usable_workers(n_workers: int) -> int:
    """Return ``n_workers``, at most the number of processors this process may use."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if n_workers > available:
        logger.info("FT_EXTRACT.N_WORKERS %d: using %d, one per available processor", n_workers, available)
    return min(n_workers, available)


def batches(
    images: ImageList,
    *,
    resize: int,
    crop: int,
    batch_size: int,
    n_workers: int,
    load_truncated: bool = False,
    start_method: str | None = None,
) -> Iterator[Batch]:
    """Yield the images in row order.

    Args:
        images: what to decode.
        resize: length of the shortest side after resizing, in pixels.
        crop: side of the centre crop, in pixels.
        batch_size: rows per batch (failed ones included, so that batches do not shift).
        n_workers: decoding processes; 0 decodes in this process. The result does not depend on it.
        load_truncated: fill missing data of truncated files with grey instead of failing.
        start_method: how worker processes start (``fork``, ``spawn``, ``forkserver``; default: Python's).

    Raises:
        CogError: when a decoding process dies.
    """
    loader = DataLoader(
        _Decoder(images, resize=resize, crop=crop, load_truncated=load_truncated),
        batch_size=batch_size,
        num_workers=n_workers,
        collate_fn=_collate,
        multiprocessing_context=start_method if n_workers else None,
        # The iterator draws a base seed; ours must not touch the caller's global random state.
        generator=torch.Generator().manual_seed(0),
    )
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise CogError(
            f"a decoding process died ({str(error).splitlines()[0]}); if memory ran out, lower FT_EXTRACT.N_WORKERS"
        ) from error
