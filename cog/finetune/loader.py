"""Augmented images of the rows that a process asks for, decoded ahead by threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from cog.data.image_lists import ImageList
from cog.data.loader import failure_reason
from cog.finetune import streams
from cog.finetune.augment import training_pixels
from cog.finetune.recipe import FineTuneRecipe

#: Passes decoded ahead of the one in use.
PREFETCH = 3

#: Label of an image that could not be decoded: it has no part in the loss (``ignore_index`` of PyTorch's losses).
NO_LABEL = -100


@dataclass(eq=False)
class Pass:
    """The images of one forward pass.

    Attributes:
        pixels: uint8 ``(b, crop, crop, 3)``; black where an image could not be decoded.
        labels: int64 ``(b,)``; :data:`NO_LABEL` there.
        failures: row -> reason of those images.
    """

    pixels: torch.Tensor
    labels: torch.Tensor
    failures: dict[int, str]


class _Work:
    """A pass that is being decoded: whoever has time takes the next of its images."""

    def __init__(
        self, images: ImageList, rows: np.ndarray, recipe: FineTuneRecipe, epoch: int, *, pin_memory: bool
    ) -> None:
        shape = (len(rows), recipe.crop, recipe.crop, 3)
        self.result = Pass(
            torch.empty(shape, dtype=torch.uint8, pin_memory=pin_memory),
            torch.from_numpy(images.labels[rows]),
            {},
        )
        self.helpers: list[Future[None]] = []
        self._images, self._rows, self._recipe, self._epoch = images, rows, recipe, epoch
        self._todo = deque(range(len(rows)))

    def run(self) -> None:
        recipe, pixels = self._recipe, self.result.pixels.numpy()
        while True:
            try:
                place = self._todo.popleft()
            except IndexError:
                return
            row = int(self._rows[place])
            name = self._images.file(row)
            try:
                pixels[place] = training_pixels(
                    self._images.store.read(name),
                    name=name,
                    crop=recipe.crop,
                    scale=recipe.crop_scale,
                    ratio=recipe.crop_ratio,
                    flip=recipe.flip,
                    rng=streams.generator(recipe.seed, "image", self._epoch, row),
                    load_truncated=recipe.load_truncated,
                )
            except Exception as error:  # whatever a damaged file makes Pillow raise
                pixels[place] = 0
                self.result.labels[place] = NO_LABEL
                self.result.failures[row] = failure_reason(error)

    def abandon(self) -> None:
        self._todo.clear()

    def wait(self) -> Pass:
        self.run()
        for helper in self.helpers:
            helper.result()
        return self.result


def passes(
    images: ImageList,
    rows: Iterable[np.ndarray],
    recipe: FineTuneRecipe,
    *,
    epoch: int,
    n_workers: int,
    pin_memory: bool = False,
) -> Generator[Pass, None, None]:
    """Yield the augmented images of one array of rows after the other; to be closed (``contextlib.closing``).

    Args:
        images: the training images.
        rows: int64 rows of each pass.
        recipe: says how images are cropped.
        epoch: counted from 0; with the seed and an image's row it determines the crop.
        n_workers: decoding threads; 0 decodes in this one. The result does not depend on it.
        pin_memory: put pixels where a GPU can fetch them without waiting.
    """
    waiting: Iterator[_Work] = (_Work(images, part, recipe, epoch, pin_memory=pin_memory) for part in rows)
    if not n_workers:
        for work in waiting:
            yield work.wait()
        return
    pool = ThreadPoolExecutor(n_workers, thread_name_prefix="cog-decode")
    ahead: deque[_Work] = deque()
    try:
        for work in waiting:
            work.helpers = [pool.submit(work.run) for _ in range(n_workers)]
            ahead.append(work)
            if len(ahead) > PREFETCH:
                yield ahead[0].wait()
                ahead.popleft()
        while ahead:
            yield ahead[0].wait()
            ahead.popleft()
    finally:
        for work in ahead:
            work.abandon()
        pool.shutdown(cancel_futures=True)
