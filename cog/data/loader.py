"""Decoded images in row order, from forked processes, which use no GPU."""

import contextlib
import functools
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from cog.data.images import ImageList
from cog.data.pixels import Preprocess, load_rgb, resize_and_crop
from cog.errors import CogError
from cog.runtime import signals
from cog.runtime.memory import n_processors, this_rank

PIECE = 32  # rows that a process decodes at a time: fewer cost messages, more cost shared memory
Span = tuple[int, int]  # first row, row after the last one
Failures = list[tuple[int, str]]  # row, reason


@dataclass(frozen=True, eq=False)
class Decoder:
    """Decodes rows of an image list; mean and std of ``preprocess`` are not used."""

    images: ImageList
    preprocess: Preprocess
    load_truncated: bool = False  # whether missing data of truncated files are gray; else such files fail

    def decode(self, data: bytes, row: int) -> np.ndarray:
        """Return the pixels of the image of a row, uint8 ``(size, size, 3)``, from its bytes."""
        return resize_and_crop(load_rgb(data, load_truncated=self.load_truncated), self.preprocess)


class Piece(NamedTuple):
    """Consecutive rows: uint8 ``(n, size, size, 3)``, zeros where an image failed; failures."""

    pixels: torch.Tensor
    failures: Failures


def usable_workers(n_workers: int) -> int:
    """Return ``n_workers``, at most this process's share of the processors; all of these for -1."""
    share = max(1, n_processors() // this_rank().local_size)
    return share if n_workers < 0 else min(n_workers, share)


class _Pieces(Dataset):
    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def __getitem__(self, span: Span) -> Piece:
        (first, stop), decoder = span, self.decoder
        size = decoder.preprocess.size
        made = Piece(torch.zeros(stop - first, size, size, 3, dtype=torch.uint8), [])
        if get_worker_info():
            # Here and not by the queue, which without room would only print a message, and wait for ever.
            made.pixels.share_memory_()
        for row, place in zip(range(first, stop), made.pixels.numpy(), strict=True):
            try:
                place[:] = decoder.decode(decoder.images.read(row), row)
            except Exception as error:  # Pillow may raise any exception for a damaged file
                # Without the path of the image, so that the records of equal images are equal.
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                made.failures.append((row, f"{type(error).__name__}: {' '.join(reason.split())}"))
        return made


def decoded(
    decoder: Decoder, spans: Sequence[Span], *, n_workers: int, pin_memory: bool = False
) -> Iterator[Piece]:
    """Start ``n_workers`` processes (0: none) at once, and return an iterator of the pieces, in order."""
    n_workers = min(n_workers, len(spans))
    n_rows = max((stop - first for first, stop in spans), default=0)
    size = 3 * n_rows * decoder.preprocess.size**2  # in bytes
    # Two pieces ahead of each process, one in use, one on its way; containers have 64 MB.
    needed = (2 * n_workers + 2) * size * this_rank().local_size if n_workers else 0
    if os.path.isdir("/dev/shm") and (free := shutil.disk_usage("/dev/shm").free) < needed:
        raise CogError(
            f"/dev/shm has {free / 1e6:.0f} MB free, {n_workers} processes need {needed / 1e6:.0f} MB; "
            "enlarge it (docker run --shm-size=2g), or lower FT_EXTRACT.N_WORKERS (0: no shared memory)"
        )
    loader = DataLoader(
        _Pieces(decoder),
        sampler=spans,  # type: ignore[arg-type]
        batch_size=None,  # a piece is a batch
        collate_fn=lambda piece: piece,
        num_workers=n_workers,
        multiprocessing_context="fork" if n_workers else None,
        worker_init_fn=functools.partial(_begin_worker, os.getpid()),
        pin_memory=pin_memory,
        generator=torch.Generator(),  # the default draws from the global one
    )
    return iter(loader)


def _begin_worker(parent: int, worker: int) -> None:
    """A terminal and a cluster send their signals to all processes; the parent decides what they mean."""
    if os.getppid() != parent:  # killed right after the fork: PyTorch would wait for the end of process 1
        os._exit(1)
    for number in (signal.SIGINT, *signals.SIGNALS):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # with it, the parent ends a process that hangs


def is_worker_failure(error: Exception) -> bool:
    """Return whether an error tells the end of a decoding process; it is raised anywhere in the parent."""
    return isinstance(error, RuntimeError) and ("DataLoader worker" in str(error) or "(shm)" in str(error))


@contextlib.contextmanager
def worker_failures_explained() -> Iterator[None]:
    """Turn the end of a decoding process in the block into one line, or Interrupted if a cluster ended it."""
    try:
        yield
    except RuntimeError as error:
        if not is_worker_failure(error):
            raise
        signals.check("decoding processes have ended")
        last = str(error).strip().splitlines()[-1]
        raise CogError(f"decoding stopped: {last} (is there enough memory?)") from error
