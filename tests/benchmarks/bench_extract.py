"""Images per second of feature extraction, in turns with a plain DataLoader loop on the same files.

The plain loop is what one writes first: processes open images with Pillow, torchvision's transforms resize,
crop and normalize them. The command is measured from its own record. With a GPU, the network is ResNet-50 in
fp16, alone and eight times in one pass, else a cheap one, alone and three times.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms

from cog.data import loader
from cog.data.datasets import ImageSources
from cog.data.images import ImageList
from cog.data.pixels import IMAGENET_MEAN, IMAGENET_STD, Preprocess, normalizer, to_input

HERE, DISTINCT = Path(__file__).resolve().parents[2], 256
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

LOADERS = """
import torch, torchvision


def cheap(args):
    return torch.nn.Sequential(torch.nn.AvgPool2d(16), torch.nn.Flatten(), torch.nn.Linear(588, 512)), None


def resnet50(args):
    network = torchvision.models.resnet50(weights=None)
    network.fc = torch.nn.Identity()
    return network, None
"""


def draw(index: int) -> bytes:
    """Return a JPEG file like most photographs of ImageNet: smooth colors, some noise, quality 90."""
    generator, data = np.random.default_rng(index), io.BytesIO()
    coarse = Image.fromarray(generator.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC)).astype(np.int16)
    noisy = smooth + generator.normal(0, 10, (375, 500, 1)).astype(np.int16)
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(data, "JPEG", quality=90)
    return data.getvalue()


def write_images(root: Path, n: int) -> ImageList:
    """Write ``n`` images as hard links to some different files, and return their list."""
    shutil.rmtree(root / "images", ignore_errors=True)
    for row in range(n):
        file, folder = root / f"files/{row % DISTINCT}.jpg", root / f"images/test/c{row // 1000:04d}"
        for place in (file.parent, folder):
            place.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.write_bytes(draw(row))
        os.link(file, folder / f"{row:07d}.jpg")
    return ImageSources({"images_root": str(root / "images")}).list_images("bench", "test")


class Plain:
    """The plain loop's data set."""

    def __init__(self, images: ImageList) -> None:
        self.paths = [images.root / images.file(row) for row in range(len(images))]
        resize = transforms.Resize(224, interpolation=transforms.InterpolationMode.BICUBIC)
        to_tensor = transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)
        self.transform = transforms.Compose([resize, transforms.CenterCrop(224), *to_tensor])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> torch.Tensor:
        return self.transform(Image.open(self.paths[row]).convert("RGB"))


def rate(batches, forward) -> float:
    """Return the images per second from the first batch on."""
    start, n = 0.0, 0
    with torch.inference_mode(), torch.autocast(DEVICE.type, torch.float16, DEVICE.type == "cuda"):
        for x in batches:
            start = start or time.perf_counter()
            y = forward(x)
            n += len(y)
        float(y.sum())  # synchronizes
    return n / (time.perf_counter() - start)


def plain(images: ImageList, workers: int) -> float:
    network = (
        torchvision.models.resnet50().to(DEVICE).eval() if DEVICE.type == "cuda" else torch.nn.Identity()
    )
    batches = DataLoader(Plain(images), 128, num_workers=workers, pin_memory=DEVICE.type == "cuda")
    return rate(
        batches, lambda x: network(x.to(DEVICE, non_blocking=True, memory_format=torch.channels_last))
    )


def decoding(images: ImageList, workers: int) -> float:
    pieces = [(0, row, min(row + 32, len(images))) for row in range(0, len(images), 32)]
    stream, statistics_ = (
        [loader.Decoder(images, Preprocess())],
        normalizer(IMAGENET_MEAN, IMAGENET_STD, DEVICE),
    )
    batches = loader.decoded(stream, pieces, n_workers=workers, pin_memory=DEVICE.type == "cuda")
    return rate(batches, lambda piece: to_input(piece.pixels, *statistics_))


def command(root: Path, workers: int, n_models: int) -> float:
    """Return the images per second of ``extract_features.py`` for models in one pass."""
    shutil.rmtree(root / "models", ignore_errors=True)
    (root / "models").mkdir()
    network, precision = ("resnet50", "fp16") if DEVICE.type == "cuda" else ("cheap", "fp32")
    words = [
        sys.executable,
        str(HERE / "extract_features.py"),
        "--dataset",
        "bench",
        "--split",
        "test",
        "--model",
        *[f"bench_{chr(97 + number)}" for number in range(n_models)],
        "--images_root",
        str(root / "images"),
        "--models_root_dir",
        str(root / "models"),
        "--model_loader",
        f"{root / 'loaders.py'}:{network}",
        "FT_EXTRACT.N_WORKERS",
        str(workers),
        "FT_EXTRACT.PRECISION",
        precision,
    ]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    subprocess.run(words, check=True, cwd=HERE, env=environment, stderr=subprocess.DEVNULL)
    record = json.loads((root / "models/bench/a/bench/features_test/features.json").read_text())
    return record["images_per_second"]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="least duration of a run (default: 30)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind, in turns (default: 3)")
    args = parser.parse_args()
    workers, many = loader.usable_workers(-1), 8 if DEVICE.type == "cuda" else 3
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "loaders.py").write_text(LOADERS)
        # Decoding alone is the fastest of all: the other runs take longer.
        n = int(decoding(write_images(root, 2048), workers) * args.seconds) + 256
        images, run = write_images(root, n), functools.partial(command, root, workers)
        jobs = {
            "plain loop": (1, lambda: plain(images, workers)),
            "decoding and normalization": (1, lambda: decoding(images, workers)),
            "one model": (1, lambda: run(1)),
            f"{many} models in one pass": (many, lambda: run(many)),
        }
        rates = {job: [] for job in jobs}
        for _ in range(args.rounds):
            for job, (_, measure) in jobs.items():
                rates[job].append(measure())
    print(f"{DEVICE}, {workers} decoding processes, {n} images; images/s: median, least-most; model-images/s")
    for job, values in rates.items():
        middle, span = statistics.median(values), f"{min(values):.0f}-{max(values):.0f}"
        print(f"{job:28} {middle:9.0f} {span:>15} {middle * jobs[job][0]:9.0f}")


if __name__ == "__main__":
    main()
