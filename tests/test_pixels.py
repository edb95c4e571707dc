"""Decoding and resizing: what Pillow and torchvision do, and nothing else."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from cog.data.pixels import decode_exact, decode_fast, load_rgb, resize_and_crop
from cog.extract import normalizer, to_input

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def plain_input(image, *, resize=224, crop=224):
    """The network's input as torchvision computes it."""
    return transforms.Compose(
        [
            transforms.Resize(resize, interpolation=transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(crop),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )(image.convert("RGB"))


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
    reference = plain_input(image, resize=resize, crop=crop)
    pixels = resize_and_crop(image, resize=resize, crop=crop)
    assert pixels.shape == (crop, crop, 3)
    assert pixels.dtype == np.uint8
    statistics = normalizer(MEAN, STD, torch.device("cpu"))
    for memory_format in (torch.contiguous_format, torch.channels_last):
        ours = to_input(np.stack([pixels] * 2), *statistics, memory_format=memory_format)
        assert ours.is_contiguous(memory_format=memory_format)
        assert torch.equal(ours[1], reference)


@pytest.mark.parametrize("seed", range(12))
def test_any_shape(seed):
    """Narrow, tall and enlarged images too: Pillow's order of passes depends on the shape."""
    random = np.random.default_rng(seed)
    for _ in range(5):
        width, height = (int(side) for side in random.integers(1, (500, 60)[seed % 2], 2))
        resize = int(random.integers(1, 200))
        crop = int(random.integers(1, resize + 1))
        if max(width, height) * resize > 20_000 * min(width, height):
            continue
        image = noise(width, height, seed)
        pixels = resize_and_crop(image, resize=resize, crop=crop)
        ours = to_input(np.stack([pixels]), *normalizer(MEAN, STD, torch.device("cpu")))[0]
        assert torch.equal(ours, plain_input(image, resize=resize, crop=crop)), (width, height, resize, crop)


def photographs(shared_dir, n):
    files = sorted((shared_dir / "miniature").rglob("*.JPEG"))
    return files[:: len(files) // n]


def test_real_photographs_bit_for_bit(shared_dir):
    files = photographs(shared_dir, 60)
    assert {Image.open(file).mode for file in files} == {"RGB", "L"}
    for file in files:
        pixels = decode_exact(file, resize=224, crop=224)
        ours = to_input(np.stack([pixels]), *normalizer(MEAN, STD, torch.device("cpu")))[0]
        assert torch.equal(ours, plain_input(Image.open(file))), file


def hard_files(folder):
    """Files of every kind that is not a plain RGB photograph."""
    colours, grey = noise(40, 30), noise(40, 30).convert("L")
    exif = Image.Exif()
    exif[0x0112] = 6
    alpha = colours.copy()
    alpha.putalpha(grey)
    deep = Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40) * 50)
    kinds = {
        "palette.png": (colours.quantize(16), {}),
        "palette_alpha.png": (colours.quantize(16), {"transparency": bytes(range(16))}),
        "palette.gif": (colours.quantize(200), {}),
        "bilevel.png": (grey.convert("1"), {}),
        "grey.jpg": (grey, {}),
        "grey_alpha.png": (alpha.convert("LA"), {}),
        "alpha.png": (alpha, {}),
        "key.png": (colours, {"transparency": (1, 2, 3)}),
        "deep.png": (deep, {}),
        "cmyk.jpg": (colours.convert("CMYK"), {}),
        "cmyk.tif": (colours.convert("CMYK"), {}),
        "lab.tif": (Image.merge("LAB", colours.split()), {}),
        "rotated.jpg": (colours, {"exif": exif}),
        "progressive.jpg": (colours, {"progressive": True, "quality": 30}),
        "full_chroma.jpg": (colours, {"subsampling": 0}),
        "point.jpg": (noise(1, 1), {}),
        "column.jpg": (noise(1, 50), {}),
        "row.png": (noise(50, 1), {}),
        "bitmap.bmp": (colours, {}),
        "map.ppm": (colours, {}),
    }
    return {name: saved(folder, image, name, **options) for name, (image, options) in kinds.items()}


@pytest.mark.filterwarnings("ignore:Palette images")
def test_hard_files_bit_for_bit(tmp_path):
    for name, path in hard_files(tmp_path).items():
        pixels = decode_exact(path, resize=24, crop=20)
        ours = to_input(np.stack([pixels]), *normalizer(MEAN, STD, torch.device("cpu")))[0]
        assert torch.equal(ours, plain_input(Image.open(path), resize=24, crop=20)), name


@pytest.mark.filterwarnings("ignore:Palette images")
def test_fast_takes_every_file_and_stays_close(tmp_path):
    for name, path in hard_files(tmp_path).items():
        exact = decode_exact(path, resize=24, crop=20).astype(int)
        fast = decode_fast(path, resize=24, crop=20)
        assert fast.shape == (20, 20, 3) and fast.dtype == np.uint8, name
        assert np.abs(fast - exact).max() <= 2, name


def test_fast_on_real_photographs(shared_dir):
    for file in photographs(shared_dir, 30):
        assert max(Image.open(file).size) < 448  # nothing to decode at half size
        difference = decode_fast(file, resize=224, crop=224) - decode_exact(
            file, resize=224, crop=224
        ).astype(int)
        assert np.abs(difference).max() <= 2
        assert (difference != 0).mean() < 0.02


def test_fast_decodes_large_files_at_a_fraction_of_their_size(tmp_path, monkeypatch):
    smooth = noise(12, 9).resize((903, 680), Image.Resampling.BICUBIC)
    path = saved(tmp_path, smooth, "large.jpg", quality=95)
    sizes = []
    load = Image.Image.load
    monkeypatch.setattr(Image.Image, "load", lambda self: (sizes.append(self.size), load(self))[1])
    fast = decode_fast(path, resize=100, crop=96)
    assert sizes[0] == (452, 340)  # a half, rounded up: a quarter would be less than 2 * (132, 100)
    assert np.abs(fast - decode_exact(path, resize=100, crop=96).astype(int)).max() <= 4


@pytest.mark.parametrize("decode", [decode_exact, decode_fast])
def test_damaged_files_fail_in_both(tmp_path, decode):
    path = saved(tmp_path, noise(64, 64), "cut.jpg")
    path.write_bytes(path.read_bytes()[:-900])
    with pytest.raises(OSError):
        decode(path, resize=24, crop=20)
    assert decode(path, resize=24, crop=20, load_truncated=True).shape == (20, 20, 3)


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


@pytest.mark.filterwarnings("ignore:Palette images")
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
