"""Images per second of feature extraction, in turns with a plain DataLoader loop on the same files.

    python tests/benchmarks/bench_extract.py [--previous ../previous] [--seconds 30] [--repeats 3]

The plain loop is what one writes first: processes open images with Pillow, torchvision's transforms resize,
crop and normalize them. The command is measured from its own record. With a GPU, the network is ResNet-50 in
fp16, alone and eight times in one pass, else one that takes no time beside decoding, alone and three times.
"""

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
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms
from turns import add_previous, in_turns, ratio

from cog.data import loader
from cog.data.datasets import ImageSources
from cog.data.images import ImageList
from cog.data.pixels import IMAGENET_MEAN, IMAGENET_STD, Preprocess, normalizer, to_input

HERE, DISTINCT = Path(__file__).resolve().parents[2], 256
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

LOADERS = """
import torch, torchvision


class Cheap(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x[:, :, ::16, ::16].flatten(1))


def cheap(args):
    return Cheap(588, 512), None


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
    is_cuda, layout = DEVICE.type == "cuda", torch.channels_last
    network = torchvision.models.resnet50().to(DEVICE).eval() if is_cuda else torch.nn.Identity()
    batches = DataLoader(Plain(images), 128, num_workers=workers, pin_memory=is_cuda)
    return rate(batches, lambda x: network(x.to(DEVICE, non_blocking=True, memory_format=layout)))


def decoding(images: ImageList, workers: int) -> float:
    spans = [(row, min(row + 32, len(images))) for row in range(0, len(images), 32)]
    decoder, scale = loader.Decoder(images, Preprocess()), normalizer(IMAGENET_MEAN, IMAGENET_STD, DEVICE)
    batches = loader.decoded(decoder, spans, n_workers=workers, pin_memory=DEVICE.type == "cuda")
    return rate(batches, lambda piece: to_input(piece.pixels, *scale))


def command(root: Path, workers: int, n_models: int, checkout: Path = HERE) -> float:
    """Return the images per second of ``extract_features.py`` of a work tree for models in one pass."""
    shutil.rmtree(root / "models", ignore_errors=True)
    (root / "models").mkdir()
    network, precision = ("resnet50", "fp16") if DEVICE.type == "cuda" else ("cheap", "fp32")
    names = " ".join(f"bench_{chr(97 + number)}" for number in range(n_models))
    words = (
        f"--model {names} --dataset bench --split test --images_root {root}/images "
        f"--models_root_dir {root}/models --model_loader {root}/loaders.py:{network} "
        f"FT_EXTRACT.N_WORKERS {workers} FT_EXTRACT.PRECISION {precision}"
    )
    line = [sys.executable, str(checkout / "extract_features.py"), *words.split()]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    subprocess.run(line, check=True, cwd=checkout, env=environment, stderr=subprocess.DEVNULL)
    record = json.loads((root / "models/bench/a/bench/features_test/features.json").read_text())
    return record["images_per_second"]


def with_cpu(measure: Callable[[], float]) -> tuple[float, float]:
    """Return images per second, and seconds of processors in this process and those that ended."""
    start = sum(os.times()[:4])
    return measure(), sum(os.times()[:4]) - start


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_previous(parser)
    parser.add_argument("--seconds", type=float, default=30, help="least duration of a run (default: 30)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each kind, in turns (default: 3)")
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
            "plain loop": lambda: plain(images, workers),
            "decoding and normalization": lambda: decoding(images, workers),
            "one model": lambda: run(1),
            f"{many} models in one pass": lambda: run(many),
        }
        if args.previous:
            jobs["one model, previous"] = lambda: run(1, args.previous)
        found = in_turns({job: functools.partial(with_cpu, jobs[job]) for job in jobs}, args.repeats)
    print(f"{DEVICE}, {workers} decoding processes, {n} images. Medians of images/s, (least-most), time of")
    print("processors per image in ms (with the start of commands), time as a multiple of that of one model")
    rates = {job: [rate for rate, _ in values] for job, values in found.items()}
    for job, values in rates.items():
        span = f"({min(values):.0f}-{max(values):.0f})"
        cpu = 1000 / n * statistics.median(seconds for _, seconds in found[job])
        multiple = ratio(rates["one model"], values)
        print(f"{job:28} {statistics.median(values):9.0f} {span:>15} {cpu:9.2f} {multiple:9.2f}")


if __name__ == "__main__":
    main()
