"""Training images: random crops, resized, and mirrored half of the time.

The crop is that of torchvision's ``RandomResizedCrop`` on Pillow images (Szegedy et al., 2015), with a generator of its
own for every image and epoch; the pixels are Pillow's, as in :mod:`cog.data.pixels`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from cog.data.images import ImageList
from cog.data.loader import Decoder, Piece
from cog.data.pixels import Preprocess, load_rgb
from cog.finetune.recipe import FineTuneRecipe

#: Label of an image that could not be decoded, which is excluded from the loss (``ignore_index`` of PyTorch's losses).
NO_LABEL = -100

#: Smallest and largest width / height of a crop.
CROP_RATIO = (3 / 4, 4 / 3)

_ATTEMPTS = 10


class TrainingDecoder(Decoder):
    """Decoder of the training images of an epoch, by their place in its order; see :class:`cog.data.loader.Decoder`.

    Attributes:
        order: rows of the images in the order of their use, int64.
    """

    def __init__(self, images: ImageList, recipe: FineTuneRecipe, epoch: int) -> None:
        super().__init__(images, Preprocess(recipe.crop, recipe.resize), recipe.load_truncated)
        self.recipe, self.epoch = recipe, epoch
        self.order = recipe.generator("order", epoch).permutation(len(images))

    def read(self, row: int) -> bytes:
        """Return the bytes of the image at a place."""
        return super().read(int(self.order[row]))

    def decode(self, data: bytes, row: int) -> np.ndarray:
        """Return the pixels of the image at a place, uint8 ``(crop, crop, 3)``."""
        rng = self.recipe.generator("image", self.epoch, int(self.order[row]))
        return training_pixels(data, self.recipe, rng)

    def labels(self, first: int, piece: Piece) -> torch.Tensor:
        """Return the labels of places from ``first``, int64 ``(b,)``; :data:`NO_LABEL` where images failed."""
        labels = self.images.labels[self.order[first : first + len(piece.pixels)]]
        labels[[place - first for place, _ in piece.failures]] = NO_LABEL
        return torch.from_numpy(labels)


def training_pixels(
    source: str | os.PathLike[str] | bytes, recipe: FineTuneRecipe, rng: np.random.Generator
) -> np.ndarray:
    """Return a random part of an image, uint8 ``(crop, crop, 3)``.

    Raises:
        Exception: any exception of Pillow for a file that cannot be decoded.
    """
    image = load_rgb(source, load_truncated=recipe.load_truncated)
    box = random_box(*image.size, scale=recipe.crop_scale, ratio=CROP_RATIO, rng=rng)
    # The box is cut out first: Image.resize(box=...) would use pixels outside it, unlike RandomResizedCrop.
    pixels = np.asarray(image.crop(box).resize((recipe.crop, recipe.crop), Image.Resampling.BICUBIC))
    return pixels[:, ::-1] if rng.random() < 0.5 else pixels


def random_box(
    width: int, height: int, *, scale: Sequence[float], ratio: Sequence[float], rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Draw the box ``(left, top, right, bottom)`` of an image, in pixels, that becomes a training image.

    The share of the area is uniform in ``scale``, width / height is log-uniform in ``ratio``. When ten draws do not fit
    into the image, the box is the largest centered one within ``ratio``.
    """
    area = width * height
    for _ in range(_ATTEMPTS):
        target = area * rng.uniform(scale[0], scale[1])
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    w, h = width, height
    if width / height < ratio[0]:
        h = max(1, round(width / ratio[0]))
    elif width / height > ratio[1]:
        w = max(1, round(height * ratio[1]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
