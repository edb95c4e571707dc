"""Pixels of an image for the network, exactly as torchvision's transforms compute them with Pillow."""

from __future__ import annotations

import dataclasses
import io
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFile, UnidentifiedImageError

from cog.runtime import files

#: Accepted formats, whatever the suffix; Pillow has more: it would pass PostScript to Ghostscript.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")

# Palette transparency and broken EXIF blocks do not change the pixels used here.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")

RGB = tuple[float, float, float]
IMAGENET_MEAN: RGB = (0.485, 0.456, 0.406)
IMAGENET_STD: RGB = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocess:
    """From an image to the input of a network; ``dataclasses.asdict`` is the record."""

    size: int = 224  # side of the center crop, in pixels
    resize: int = 224  # length of the shortest side before; of both sides with squash
    mean: RGB = IMAGENET_MEAN  # of channels in [0, 1]
    std: RGB = IMAGENET_STD
    interpolation: str = "bicubic"  # one of Pillow's filters, antialiased
    squash: bool = False  # whether the shape of the image is ignored

    def protocol(self) -> Preprocess:
        """Return this with the benchmark's geometry: shortest side resized to the crop, bicubic."""
        return dataclasses.replace(self, resize=self.size, interpolation="bicubic", squash=False)

    def decoding(self) -> Preprocess:
        """Return the part before the normalization; models for which it is equal share decoded images."""
        return dataclasses.replace(self, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def load_rgb(source: str | os.PathLike[str] | bytes, *, load_truncated: bool = False) -> Image.Image:
    """Decode an image, given as a file or its bytes, to an RGB Pillow image, or raise an error of Pillow."""
    ImageFile.LOAD_TRUNCATED_IMAGES = load_truncated  # Pillow has one setting for the whole process
    with io.BytesIO(source) if isinstance(source, bytes) else files.open_regular(source) as handle:
        try:
            image = Image.open(handle, formats=FORMATS)
        except UnidentifiedImageError:  # its message has the address of the object
            raise UnidentifiedImageError("cannot identify image file") from None
        if image.mode[0] in "IF":
            raise OSError(f"mode {image.mode} has more than 8 bits, which Pillow would clip")
        image.load()
        return image if image.mode == "RGB" else image.convert("RGB")


def resize_and_crop(image: Image.Image, preprocess: Preprocess) -> np.ndarray:
    """Return the center of a resized RGB image, uint8 ``(size, size, 3)``, with the bits of torchvision."""
    shortest, side = min(image.size), preprocess.size
    if preprocess.squash:
        width = height = preprocess.resize
    else:  # the longer side is rounded down
        width, height = (preprocess.resize * length // shortest for length in image.size)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling[preprocess.interpolation.upper()])
    if (width, height) != (side, side):
        left, top = round((width - side) / 2.0), round((height - side) / 2.0)  # as torchvision rounds them
        image = image.crop((left, top, left + side, top + side))
    return np.asarray(image)


def normalizer(mean: Sequence[float], std: Sequence[float], device: torch.device) -> list[torch.Tensor]:
    """Return mean and std as float32 ``(1, 3, 1, 1)`` on ``device``."""
    return list(torch.tensor([[*mean], [*std]], dtype=torch.float32, device=device).view(2, 1, 3, 1, 1))


def to_input(
    pixels: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, *, memory_format: Any = None
) -> torch.Tensor:
    """Turn uint8 pixels ``(b, h, w, 3)`` into float32 ``(b, 3, h, w)`` with the bits of torchvision."""
    x, divisor = pixels.to(mean.device, non_blocking=True), mean.new_full((), 255.0)
    # By a tensor, because CUDA would multiply by the reciprocal of a number, which differs in the last bit.
    if memory_format is torch.channels_last:  # row by row: an image takes a CPU 0.2 ms, by channels 0.5 ms
        mean, std = (each.view(-1).repeat(x.shape[2]) for each in (mean, std))
        return x.flatten(2).float().div_(divisor).sub_(mean).div_(std).view(x.shape).permute(0, 3, 1, 2)
    return x.permute(0, 3, 1, 2).contiguous().float().div_(divisor).sub_(mean).div_(std)
