"""JPEG files decoded on a GPU by nvJPEG (``FT_EXTRACT.DECODE cuda``).

nvJPEG's inverse cosine transform and colour conversion are not libjpeg's, so the pixels are near Pillow's, not equal.
"""

from __future__ import annotations

import io
import os
import warnings

import numpy as np
import torch
from PIL import Image

from cog.data.pixels import crop_corner, resized_size
from cog.errors import CogError

_END_OF_IMAGE = b"\xff\xd9"

#: The bytes of a file.
Encoded = bytes


def read_for_device(path: str | os.PathLike[str]) -> Encoded | None:
    """Read a file that the device can decode as Pillow would.

    Returns:
        The file's bytes; None for what has to be decoded by Pillow: other formats, CMYK, files without an end (a
        truncated file is a failure, and nvJPEG may not notice).

    Raises:
        OSError: for a file that cannot be read.
    """
    with open(path, "rb") as handle:
        data = handle.read()
    if not data.startswith(b"\xff\xd8\xff") or _END_OF_IMAGE not in data[-64:]:
        return None
    with Image.open(io.BytesIO(data)) as image:  # the header only
        return data if image.format == "JPEG" and image.mode in ("RGB", "L") else None


def require_decoder(device: torch.device) -> None:
    """Check that files can be decoded on the device.

    Raises:
        CogError: the device is no GPU, or torchvision has no decoder for JPEG files.
    """
    if device.type != "cuda":
        raise CogError(
            f"FT_EXTRACT.DECODE cuda decodes on a GPU, and --device is {device}; use exact or fast"
        )
    try:
        from torchvision.io import decode_jpeg  # noqa: F401
    except (ImportError, RuntimeError) as error:
        raise CogError(
            "FT_EXTRACT.DECODE cuda needs torchvision.io.decode_jpeg, which the installed torchvision does not have; "
            "use exact or fast"
        ) from error


def decode_on_device(
    files: list[Encoded], *, resize: int, crop: int, device: torch.device
) -> list[torch.Tensor | None]:
    """Decode, resize and crop on a device.

    Args:
        files: JPEG files.
        resize: see :func:`cog.data.pixels.resize_and_crop`.
        crop: see :func:`cog.data.pixels.resize_and_crop`.
        device: a GPU (a CPU is accepted, for tests).

    Returns:
        One uint8 ``(crop, crop, 3)`` on ``device`` per file, None for a file that the decoder refuses.
    """
    blobs = [torch.from_numpy(np.frombuffer(file, dtype=np.uint8).copy()) for file in files]
    images: list[torch.Tensor | None]
    try:
        images = list(_decode(blobs, device))
    except RuntimeError:  # one bad file fails them all: find out which
        images = [_try_decode(blob, device) for blob in blobs]
    return [None if image is None else _resize_and_crop(image, resize=resize, crop=crop) for image in images]


def _decode(blobs: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    from torchvision.io import ImageReadMode, decode_jpeg

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # torchvision announces that the function will move to another package
        return decode_jpeg(blobs, mode=ImageReadMode.RGB, device=device)


def _try_decode(blob: torch.Tensor, device: torch.device) -> torch.Tensor | None:
    try:
        return _decode([blob], device)[0]
    except RuntimeError:
        return None


def _resize_and_crop(image: torch.Tensor, *, resize: int, crop: int) -> torch.Tensor:
    """Do on uint8 ``(3, h, w)`` what :func:`cog.data.pixels.resize_and_crop` does, in float32."""
    height, width = image.shape[1:]
    if min(width, height) != resize:
        width, height = resized_size(width, height, resize=resize)
        planes = torch.nn.functional.interpolate(
            image[None].float(), (height, width), mode="bicubic", antialias=True
        )
        image = planes[0].round_().clamp_(0, 255).to(torch.uint8)
    left, top = crop_corner(width, height, crop=crop)
    return image[:, top : top + crop, left : left + crop].permute(1, 2, 0)
