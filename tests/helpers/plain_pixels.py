"""The input of a network as torchvision computes it, for comparison with that of the toolkit."""

from collections.abc import Sequence

import torch
from PIL import Image
from torchvision import transforms


def plain_input(
    image: Image.Image, *, resize: int, crop: int, mean: Sequence[float], std: Sequence[float]
) -> torch.Tensor:
    """Return the image resized by its shorter side (bicubic), cropped at its center, and normalized."""
    steps: list = [transforms.Resize(resize, interpolation=transforms.InterpolationMode.BICUBIC)]
    steps += [transforms.CenterCrop(crop), transforms.ToTensor(), transforms.Normalize(mean, std)]
    return transforms.Compose(steps)(image.convert("RGB"))


def plain_inputs(folder, images_root, **settings) -> torch.Tensor:
    """Return the inputs of all images of an output folder of features, in the order of its rows."""
    names = (folder / "image_paths.txt").read_text().splitlines()
    return torch.stack([plain_input(Image.open(images_root / name), **settings) for name in names])
