"""Decoding and resizing: what Pillow and torchvision do, and nothing else."""

import functools
import io
import os

import numpy as np
import pytest
import torch
from PIL import Image
from plain_pixels import plain_input
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision import transforms

from cog.data.pixels import Preprocess, load_rgb, normalizer, resize_and_crop, to_input

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
expected_input = functools.partial(plain_input, mean=MEAN, std=STD)


def our_input(pixels):
    return to_input(torch.from_numpy(pixels.copy())[None], *normalizer(MEAN, STD, torch.device("cpu")))[0]


def noise(width, height, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize(
    "size", [(64, 48), (48, 64), (50, 50), (301, 97), (33, 500), (224, 224), (225, 224), (7, 9), (1, 3)]
)
@pytest.mark.parametrize(("resize", "crop"), [(32, 32), (65, 56), (224, 224)])
def test_input_equals_torchvision_bit_for_bit(size, resize, crop):
    image = noise(*size)
    reference = expected_input(image, resize=resize, crop=crop)
    pixels = resize_and_crop(image, Preprocess(crop, resize))
    assert pixels.shape == (crop, crop, 3) and pixels.dtype == np.uint8
    statistics = normalizer(MEAN, STD, torch.device("cpu"))
    for memory_format in (torch.contiguous_format, torch.channels_last):
        ours = to_input(torch.from_numpy(np.stack([pixels] * 2)), *statistics, memory_format=memory_format)
        assert ours.is_contiguous(memory_format=memory_format)
        assert torch.equal(ours[1], reference)
    for squash in (False, True):
        sides, bilinear = (resize,) * 2 if squash else resize, transforms.InterpolationMode.BILINEAR
        plain = transforms.Compose([transforms.Resize(sides, bilinear), transforms.CenterCrop(crop)])
        ours = resize_and_crop(image, Preprocess(crop, resize, interpolation="bilinear", squash=squash))
        assert np.array_equal(ours, np.asarray(plain(image)))


def test_real_photographs_bit_for_bit(shared_dir):
    files = sorted((shared_dir / "miniature").rglob("*.JPEG"))
    files = files[:: len(files) // 60]
    assert {Image.open(file).mode for file in files} == {"RGB", "L"}
    for file in files:
        pixels = resize_and_crop(load_rgb(file), Preprocess())
        assert torch.equal(our_input(pixels), expected_input(Image.open(file), resize=224, crop=224)), file


@pytest.mark.filterwarnings("ignore:Palette images")
def test_hard_files_bit_for_bit(tmp_path):
    """Of every kind that is not a plain RGB photograph: how they become RGB is Pillow's choice."""
    colors, grey = noise(40, 30), noise(40, 30).convert("L")
    exif = Image.Exif()
    exif[0x0112] = 6
    alpha = colors.copy()
    alpha.putalpha(grey)
    kinds = {
        "palette_alpha.png": (colors.quantize(16), {"transparency": bytes(range(16))}),
        "animation.gif": (grey, {"save_all": True, "append_images": [Image.new("L", grey.size)]}),
        "bilevel.png": (grey.convert("1"), {}),
        "grey.jpg": (grey, {}),
        "grey_alpha.png": (alpha.convert("LA"), {}),
        "alpha.png": (alpha, {}),
        "key.png": (colors, {"transparency": (1, 2, 3)}),
        "cmyk.jpg": (colors.convert("CMYK"), {}),
        "lab.tif": (Image.merge("LAB", colors.split()), {}),
        "rotated.jpg": (colors, {"exif": exif}),
        "progressive.jpg": (colors, {"progressive": True, "quality": 30}),
        "point.jpg": (noise(1, 1), {}),
        "bitmap.bmp": (colors, {}),
        "map.ppm": (colors, {}),
    }
    for name, (image, options) in kinds.items():
        image.save(tmp_path / name, **options)
        pixels = resize_and_crop(load_rgb(tmp_path / name), Preprocess(20, 24))
        expected = expected_input(Image.open(tmp_path / name), resize=24, crop=20)
        assert torch.equal(our_input(pixels), expected), name


def test_images_that_pillow_would_clip_fail(tmp_path):
    kinds = {"a.png": np.uint16, "b.tif": np.uint16, "c.tif": np.float32, "d.tif": np.int32}
    for name, dtype in kinds.items():
        Image.fromarray((np.arange(1200).reshape(30, 40) * 50).astype(dtype)).save(tmp_path / name)
        with pytest.raises(OSError, match="more than 8 bits"):
            load_rgb(tmp_path / name)


def test_postscript_is_not_given_to_ghostscript(tmp_path, monkeypatch):
    """A file that begins like PostScript is no image, whatever it is called and whatever is installed."""
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(OSError, match="cannot identify image file"):
        load_rgb(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n")
    assert not (tmp_path / "called").exists()


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "device", tmp_path):
        with pytest.raises(OSError, match="not a regular file|folder"):
            load_rgb(path)


def test_truncated_files_fail_unless_asked():
    noise(64, 64).save(buffer := io.BytesIO(), "JPEG")
    cut = buffer.getvalue()[: buffer.tell() // 2]
    for _ in range(2):  # the option does not stick
        with pytest.raises(OSError):
            load_rgb(cut)
        assert load_rgb(cut, load_truncated=True).size == (64, 64)


def test_bytes_are_divided_by_a_tensor():
    """CUDA multiplies by the reciprocal of a number instead, which differs in the last bit."""
    divisors = []

    class Recording(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if "div" in function._schema.name:
                divisors.append(args[1])
            return function(*args, **(kwargs or {}))

    with Recording():
        to_input(torch.zeros(1, 4, 4, 3, dtype=torch.uint8), *normalizer(MEAN, STD, torch.device("cpu")))
    assert len(divisors) == 2 and all(isinstance(divisor, torch.Tensor) for divisor in divisors)
