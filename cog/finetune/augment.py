"""Training images: a random crop, resized, mirrored half of the time.

The crop is that of torchvision's ``RandomResizedCrop`` on Pillow images (Szegedy et al., 2015), with a generator of its
own for every image and epoch; the pixels are Pillow's, as in :mod:`cog.data.pixels`.
"""

from __future__ import annotations

import math
import os

import numpy as np
from PIL import Image

from cog.data.pixels import load_rgb

_ATTEMPTS = 10


def random_box(
    width: int,
    height: int,
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    rng: np.random.Generator,
) -> tuple[int, int, int, int]:
    """Draw the part of an image that a training image shows.

    Args:
        width: of the image, in pixels.
        height: of the image, in pixels.
        scale: share of the area, from and to.
        ratio: width / height, from and to; log-uniform.
        rng: source of the random choice.

    Returns:
        ``(left, top, right, bottom)``. When ten attempts do not fit into the image: as much as possible of its centre
        within ``ratio``.
    """
    area = width * height
    for _ in range(_ATTEMPTS):
        target = area * rng.uniform(*scale)
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


def training_pixels(
    source: str | os.PathLike[str] | bytes,
    *,
    name: str | None = None,
    crop: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    flip: bool,
    rng: np.random.Generator,
    load_truncated: bool = False,
) -> np.ndarray:
    """Decode an image and show a random part of it.

    Args:
        source: its bytes, or the path of a file.
        name: of the image in messages; default: the path.
        crop: side of the result, in pixels.
        scale: see :func:`random_box`.
        ratio: see :func:`random_box`.
        flip: mirror it with probability one half.
        rng: source of the random choices.
        load_truncated: see :func:`cog.data.pixels.load_rgb`.

    Returns:
        uint8 ``(crop, crop, 3)``.

    Raises:
        Exception: whatever Pillow raises for a file it cannot decode.
    """
    image = load_rgb(source, name=name, load_truncated=load_truncated)
    box = random_box(*image.size, scale=scale, ratio=ratio, rng=rng)
    # Cut out first: Image.resize(box=...) would look at pixels outside the box, and RandomResizedCrop does not.
    pixels = np.asarray(image.crop(box).resize((crop, crop), Image.Resampling.BICUBIC))
    return pixels[:, ::-1] if flip and rng.random() < 0.5 else pixels
