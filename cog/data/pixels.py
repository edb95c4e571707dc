"""From an image file to the network's pixels, exactly as Pillow computes them.

Decoding is ``PIL.Image.open(path).convert("RGB")`` and nothing else, as in the original toolkit:

* greyscale is repeated over the channels; CMYK is converted by Pillow's formula (no colour profile);
* transparency (RGBA, LA, palette) is dropped, not blended;
* 16-bit greyscale is clipped to 8 bits (values above 255 become 255), which is Pillow's conversion;
* EXIF orientation is not applied;
* of animations the first frame is taken;
* a truncated file is an error, unless asked otherwise (``FT_EXTRACT.LOAD_TRUNCATED_IMAGES``).

Resizing and cropping are those of torchvision's ``Resize`` and ``CenterCrop`` on Pillow images (a test
compares them bit by bit), without importing torchvision into every decoding process.
"""

from __future__ import annotations

import os
import warnings

import numpy as np
from PIL import Image, ImageFile


def load_rgb(path: str | os.PathLike[str], *, load_truncated: bool = False) -> Image.Image:
    """Decode an image file to an RGB Pillow image.

    Args:
        path: any format Pillow reads.
        load_truncated: fill missing data with grey instead of failing.

    Raises:
        Exception: whatever Pillow raises for a file it cannot decode.
    """
    ImageFile.LOAD_TRUNCATED_IMAGES = load_truncated
    with warnings.catch_warnings():
        # Palette transparency and broken EXIF blocks do not change the pixels we take.
        warnings.simplefilter("ignore", UserWarning)
        with Image.open(path) as image:
            return image.convert("RGB")


def can_decode(path: str | os.PathLike[str], *, load_truncated: bool = False) -> bool:
    """Whether :func:`load_rgb` succeeds."""
    try:
        load_rgb(path, load_truncated=load_truncated)
    except Exception:
        return False
    return True


def resize_and_crop(image: Image.Image, *, resize: int, crop: int) -> np.ndarray:
    """Resize the shortest side (bicubic, antialiased) and cut out the centre.

    Args:
        image: RGB.
        resize: length of the shortest side after resizing, in pixels; the longer side is rounded down.
        crop: side of the square cut out, in pixels, at most ``resize``.

    Returns:
        uint8 ``(crop, crop, 3)``.
    """
    width, height = image.size
    if min(width, height) != resize:
        if width <= height:
            width, height = resize, int(resize * height / width)
        else:
            width, height = int(resize * width / height), resize
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = round((width - crop) / 2.0), round((height - crop) / 2.0)
    return np.asarray(image.crop((left, top, left + crop, top + crop)))
