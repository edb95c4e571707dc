"""Decoding and resizing: what Pillow and torchvision do, and nothing else."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from cog.data.pixels import load_rgb, resize_and_crop
from cog.extract import normalizer, to_input

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def noise(width, height, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize(
    "size",
    [(64, 48), (48, 64), (50, 50), (224, 300), (301, 97), (33, 500), (224, 224), (225, 224), (7, 9), (1, 3)],
)
@pytest.mark.parametrize(("resize", "crop"), [(32, 32), (64, 56), (65, 64), (224, 224)])
def test_input_equals_torchvision_bit_for_bit(size, resize, crop):
    image = noise(*size)
    reference = transforms.Compose(
        [
            transforms.Resize(resize, interpolation=transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(crop),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )(image)
    pixels = resize_and_crop(image, resize=resize, crop=crop)
    assert pixels.shape == (crop, crop, 3)
    assert pixels.dtype == np.uint8
    ours = to_input(np.stack([pixels]), *normalizer(MEAN, STD, torch.device("cpu")))[0]
    assert torch.equal(ours, reference)


def saved(tmp_path, image, name, **options):
    path = tmp_path / name
    image.save(path, **options)
    return path


def test_grey_is_repeated(tmp_path):
    image = noise(5, 4).convert("L")
    rgb = np.asarray(load_rgb(saved(tmp_path, image, "grey.png")))
    assert (rgb == np.asarray(image)[:, :, None]).all()


def test_cmyk_uses_pillows_formula(tmp_path):
    image = Image.new("CMYK", (2, 2), (255, 0, 128, 64))
    rgb = np.asarray(load_rgb(saved(tmp_path, image, "cmyk.tif")))
    # (255 - c) * (255 - k) / 255 per channel
    expected = [round((255 - ink) * (255 - 64) / 255) for ink in (255, 0, 128)]
    assert np.abs(rgb[0, 0].astype(int) - expected).max() <= 1


def test_transparency_is_dropped_not_blended(tmp_path):
    image = Image.new("RGBA", (2, 2), (200, 100, 50, 0))
    assert np.asarray(load_rgb(saved(tmp_path, image, "rgba.png")))[0, 0].tolist() == [200, 100, 50]


def test_palette_with_transparency(tmp_path):
    image = Image.new("P", (3, 3), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    path = saved(tmp_path, image, "palette.png", transparency=bytes([0, 0]))
    assert np.asarray(load_rgb(path))[0, 0].tolist() == [10, 20, 30]


def test_16_bit_grey_is_clipped(tmp_path):
    values = np.array([[0, 100, 255, 256, 1000, 65535]], dtype=np.uint16)
    path = saved(tmp_path, Image.fromarray(values), "deep.png")
    assert np.asarray(load_rgb(path))[0, :, 0].tolist() == [0, 100, 255, 255, 255, 255]


def test_exif_orientation_is_not_applied(tmp_path):
    image = noise(20, 10)
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees
    assert load_rgb(saved(tmp_path, image, "rotated.jpg", exif=exif)).size == (20, 10)


def test_first_frame_of_an_animation(tmp_path):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    path = saved(tmp_path, frames[0], "two.gif", save_all=True, append_images=frames[1:])
    assert np.asarray(load_rgb(path))[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_truncated_files_fail_unless_asked(tmp_path, kind):
    buffer = io.BytesIO()
    noise(64, 64).save(buffer, kind)
    path = tmp_path / "cut"
    path.write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    with pytest.raises(OSError):
        load_rgb(path)
    assert load_rgb(path, load_truncated=True).size == (64, 64)
    with pytest.raises(OSError):  # the option does not stick
        load_rgb(path)


def test_not_an_image(tmp_path):
    path = tmp_path / "text.jpg"
    path.write_text("no pixels")
    with pytest.raises(OSError):
        load_rgb(path)
