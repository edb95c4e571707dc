"""Batches of decoded images in row order, and the reasons of failed images."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from cog.data.image_lists import ImageList
from cog.data.pixels import decode_exact
from cog.runtime.ranks import n_processors

#: Number of batches decoded ahead of the current one; no other pixels are in memory.
PREFETCH = 2


@dataclass(eq=False)
class Batch:
    """Decoded images of consecutive rows; their shape never changes, so that the network's arithmetic does not either.

    Attributes:
        pixels: uint8 ``(batch_size, crop, crop, 3)``; zeros where an image failed and after the last image.
        first: row of ``pixels[0]`` in the image list.
        n: number of rows in this batch; less than ``batch_size`` in the last one.
        failures: ``(row, reason)`` of the images that could not be decoded, in row order.
    """

    pixels: torch.Tensor
    first: int
    n: int
    failures: list[tuple[int, str]] = field(default_factory=list)

    @property
    def rows(self) -> np.ndarray:
        """Rows of the image list that are not among the failures, int64."""
        failed = {row for row, _ in self.failures}
        rows = range(self.first, self.first + self.n)
        return np.array([row for row in rows if row not in failed], dtype=np.int64)

    def add(self, row: int, decoded: np.ndarray | str) -> None:
        """Put the result of :class:`Decoder` for a row into the batch; several threads may call it at the same time.

        Args:
            row: row of the image list.
            decoded: pixels of the row, or the reason of its failure.
        """
        place = self.pixels.numpy()[row - self.first]
        if isinstance(decoded, np.ndarray):
            place[:] = decoded
        else:
            place[:] = 0
            self.failures.append((row, decoded))


class Decoder:
    """A decoder of single rows; it returns the failure of a file as a value, so that other files are still decoded.

    Args:
        images: images to decode.
        resize: length of the shortest side after resizing, in pixels.
        crop: side of the center crop, in pixels.
        load_truncated: whether missing data of truncated files are filled with gray; otherwise such files fail.
        interpolation: name of Pillow's resampling filter.
        squash: whether both sides are resized to ``resize``.
    """

    def __init__(
        self,
        images: ImageList,
        *,
        resize: int,
        crop: int,
        load_truncated: bool = False,
        interpolation: str = "bicubic",
        squash: bool = False,
    ) -> None:
        self.images, self.crop = images, crop
        self._decode = partial(
            decode_exact,
            load_truncated=load_truncated,
            resize=resize,
            crop=crop,
            interpolation=interpolation,
            squash=squash,
        )

    def __call__(self, row: int) -> np.ndarray | str:
        """Return uint8 pixels ``(crop, crop, 3)`` of a row of the image list, or the reason of a failure."""
        name = self.images.file(row)
        try:
            return self._decode(self.images.store.read(name), name=name)
        except Exception as error:
            return failure_reason(error)


def failure_reason(error: Exception) -> str:
    """Return the reason of an error of reading or decoding in one line, without the path of the image."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{type(error).__name__}: {' '.join(reason.split())}"


def usable_workers(n_workers: int) -> int:
    """Return the smaller of ``n_workers`` and the number of processors of this process."""
    return min(n_workers, n_processors())


def _spans(ranges: Iterable[tuple[int, int]], batch_size: int) -> Iterator[range]:
    """Cut ranges of rows into batches."""
    for first, stop in ranges:
        for start in range(first, stop, batch_size):
            yield range(start, min(start + batch_size, stop))


class _Job:
    """A batch that several threads decode, row by row."""

    def __init__(self, decoder: Decoder, rows: range, *, batch_size: int, pin_memory: bool) -> None:
        # PyTorch reuses pinned memory for the next batches, but only after the GPU has read it.
        shape = (batch_size, decoder.crop, decoder.crop, 3)
        pixels = torch.empty(shape, dtype=torch.uint8, pin_memory=pin_memory)
        pixels[len(rows) :] = 0
        self.batch = Batch(pixels, rows[0], len(rows))
        self.helpers: list[Future[None]] = []
        self._decoder = decoder
        self._todo = deque(rows)

    def work(self) -> None:
        """Decode rows until every row of the batch has been started."""
        while True:
            try:
                row = self._todo.popleft()
            except IndexError:
                return
            self.batch.add(row, self._decoder(row))

    def abandon(self) -> None:
        """Let no thread start another row."""
        self._todo.clear()

    def result(self) -> Batch:
        """Take part in the decoding, wait for the other threads, and return the batch."""
        self.work()
        for helper in self.helpers:
            helper.result()
        self.batch.failures.sort()
        return self.batch


def batches(
    decoder: Decoder,
    *,
    batch_size: int,
    n_workers: int,
    pin_memory: bool = False,
    ranges: Iterable[tuple[int, int]] | None = None,
) -> Generator[Batch, None, None]:
    """Yield batches of the images in row order. Close the generator (``contextlib.closing``) to stop before the end.

    Images are decoded in threads: Pillow releases the interpreter lock while it decodes and resizes. When the next
    batch is not ready, the consumer's thread does not wait but decodes as well.

    Args:
        decoder: decoder of the images.
        batch_size: rows per batch (failed rows included, so that batches do not shift).
        n_workers: number of decoding threads; 0: the calling thread decodes. The result does not depend on it.
        pin_memory: whether the pixels are in pinned memory, from which a GPU copies without waiting.
        ranges: ``(first, stop)`` of the requested rows (default: all); each range is taken from the iterable when its
            decoding begins, a few batches ahead of the current one. No batch crosses the end of a range.
    """
    spans = _spans([(0, len(decoder.images))] if ranges is None else ranges, batch_size)
    pool = ThreadPoolExecutor(max(1, n_workers), thread_name_prefix="cog-decode")
    n_ahead = PREFETCH if n_workers else 0
    jobs: deque[_Job] = deque()

    def finish_first() -> Batch:
        batch = jobs[0].result()
        jobs.popleft()  # not before it is done, so that it can be abandoned
        return batch

    try:
        for rows in spans:
            jobs.append(_Job(decoder, rows, batch_size=batch_size, pin_memory=pin_memory))
            jobs[-1].helpers = [pool.submit(jobs[-1].work) for _ in range(n_workers)]
            if len(jobs) > n_ahead:
                yield finish_first()
        while jobs:
            yield finish_first()
    finally:
        for job in jobs:
            job.abandon()
        pool.shutdown(cancel_futures=True)
