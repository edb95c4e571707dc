"""Images per second of feature extraction, in turns with a plain DataLoader loop on the same files; prints one table.

The plain loop is what one writes first: processes open images with Pillow, torchvision's transforms resize (bicubic),
crop and normalize them. Everything else is measured through the command ``extract_features.py``, from its own record of
the time after the start. Examples::

    python tests/benchmarks/bench_extract.py                              # decoding, three cheap models in one pass
    python tests/benchmarks/bench_extract.py --old DIR                    # the command of another checkout, too
    python tests/benchmarks/bench_extract.py --device cuda --rounds 1     # ResNet-50 in fp16: one, eight in one pass
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from cog.data import loader
from cog.data.datasets import ImageSources
from cog.data.images import ImageList
from cog.data.pixels import IMAGENET_MEAN, IMAGENET_STD, Preprocess, normalizer, to_input

BATCH = 128
PLACES = 1000  # images per class folder
DISTINCT = 1024

#: Networks: one that costs little, as real ones do on a GPU, and ResNet-50; weights are random.
LOADERS = """
import torch, torchvision


def cheap(args):
    return torch.nn.Sequential(torch.nn.AvgPool2d(16), torch.nn.Flatten(), torch.nn.Linear(3 * 14 * 14, 512)), None


def resnet50(args):
    network = torchvision.models.resnet50(weights=None)
    network.fc = torch.nn.Identity()
    return network, None
"""


def draw(index: int) -> bytes:
    """Return a JPEG file of a size that most photographs of ImageNet have: smooth colors, some noise, quality 90."""
    import io

    sizes = [(500, 375), (500, 375), (375, 500), (500, 333), (333, 500), (500, 500), (640, 480)]
    generator = np.random.default_rng(index)
    width, height = sizes[index % len(sizes)]
    coarse = Image.fromarray(generator.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    noisy = smooth + generator.normal(0, 10, (height, width, 1)).astype(np.int16)
    data = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(data, "JPEG", quality=90)
    return data.getvalue()


def write_images(root: Path, n: int) -> ImageList:
    """Write ``n`` images as hard links to a thousand different files, and return their list."""
    first = root / "files"
    if not first.exists():
        first.mkdir(parents=True)
        with get_context("fork").Pool(loader.usable_workers(-1)) as pool:
            for index, data in enumerate(pool.imap(draw, range(DISTINCT), chunksize=16)):
                (first / f"{index}.jpg").write_bytes(data)
    shutil.rmtree(root / "images", ignore_errors=True)
    for row in range(n):
        folder = root / "images/test" / f"c{row // PLACES:04d}"
        if row % PLACES == 0:
            folder.mkdir(parents=True)
        os.link(first / f"{row % DISTINCT}.jpg", folder / f"{row:07d}.jpg")
    return ImageSources({"images_root": str(root / "images")}).list_images("bench", "test")


class Plain(Dataset):
    """The plain loop's data set."""

    def __init__(self, images: ImageList) -> None:
        self.paths = [images.root / images.file(row) for row in range(len(images))]
        self.transform = transforms.Compose(
            [
                transforms.Resize(224, interpolation=transforms.InterpolationMode.BICUBIC),
                transforms.CenterCrop(224),
                transforms.ToTensor(),
                transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> torch.Tensor:
        with open(self.paths[row], "rb") as handle:
            return self.transform(Image.open(handle).convert("RGB"))


def plain(images: ImageList, workers: int, device: str, network: bool) -> float:
    """Return the plain loop's images per second, from its first batch on; with ``network``, of a ResNet-50 in fp16."""
    layout, model = torch.channels_last, None
    if network:
        model = torchvision.models.resnet50(weights=None).to(device, memory_format=layout).eval()
    batches = DataLoader(Plain(images), BATCH, num_workers=workers, pin_memory=device == "cuda")
    start, n = 0.0, 0
    with torch.inference_mode(), torch.autocast(device, dtype=torch.float16, enabled=network):
        for x in batches:
            if not start:
                start = time.perf_counter()
                continue
            y = x.to(device, non_blocking=True, memory_format=layout)
            if model is not None:
                y = model(y)
            n += len(y)
        float(y.sum())  # synchronizes
    return n / (time.perf_counter() - start)


def decoded(images: ImageList, workers: int, device: str) -> float:
    """Return the images per second that are decoded and normalized without a network."""
    n, start, done = len(images), 0.0, 0
    pieces = [(0, row, min(row + loader.PIECE, n)) for row in range(0, n, loader.PIECE)]
    statistics_ = normalizer(IMAGENET_MEAN, IMAGENET_STD, torch.device(device))
    stream = loader.decoded(
        [loader.Decoder(images, Preprocess())], pieces, n_workers=workers, pin_memory=device == "cuda"
    )
    with torch.inference_mode():
        for piece in stream:
            if not start:
                start = time.perf_counter()
                continue
            x = to_input(piece.pixels, *statistics_, memory_format=torch.channels_last)
            done += len(x)
    return done / (time.perf_counter() - start)


def command(
    root: Path, workers: int, device: str, network: str, n_models: int, checkout: Path, *settings: str
) -> float:
    """Return the images per second of ``extract_features.py`` for models in one pass, from the record."""
    models = [f"bench_{chr(97 + number)}" for number in range(n_models)]
    shutil.rmtree(root / "models", ignore_errors=True)
    (root / "models").mkdir()
    words = [sys.executable, str(checkout / "extract_features.py"), "--model", *models, "--dataset", "bench"]
    words += [
        "--split",
        "test",
        "--images_root",
        str(root / "images"),
        "--models_root_dir",
        str(root / "models"),
    ]
    words += ["--model_loader", f"{root / 'loaders.py'}:{network}"]
    words += ["FT_EXTRACT.N_WORKERS", str(workers), *settings]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "COG_RANKS": "0"}
    environment |= {} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(words, check=False, cwd=checkout, env=environment, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(ended.stderr[-2000:])
    record = json.loads((root / "models/bench/a/bench/features_test/features.json").read_text())
    return record["images_per_second"]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30, help="least duration of a run (default: 30)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind, in turns (default: 3)")
    parser.add_argument(
        "--workers", type=int, default=-1, help="decoding processes (default: one per processor)"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (with ResNet-50 in fp16)")
    parser.add_argument("--old", type=Path, help="checkout whose command is measured, too")
    args = parser.parse_args()
    here, workers = Path(__file__).resolve().parents[2], loader.usable_workers(args.workers)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "loaders.py").write_text(LOADERS)
        rate = decoded(write_images(root, 4 * DISTINCT), workers, "cpu")
        # Decoding alone is the fastest of all: the other runs take longer.
        images = write_images(root, int(rate * args.seconds) + 2 * BATCH)
        run = functools.partial(command, root, workers, args.device)
        fp16 = "FT_EXTRACT.PRECISION", "fp16"
        jobs: dict[str, tuple[int, Callable[[], float]]] = {
            "plain loop, no network": (1, functools.partial(plain, images, workers, args.device, False)),
            "decoding and normalization": (1, functools.partial(decoded, images, workers, args.device)),
            "one cheap model": (1, functools.partial(run, "cheap", 1, here)),
            "three cheap models in one pass": (3, functools.partial(run, "cheap", 3, here)),
        }
        if args.old:
            old = functools.partial(run, "cheap", 1, args.old.resolve())
            jobs["one cheap model, other checkout"] = (1, old)
        if args.device == "cuda":
            jobs = {
                "plain loop, ResNet-50 fp16": (1, functools.partial(plain, images, workers, "cuda", True)),
                "one ResNet-50 fp16": (1, functools.partial(run, "resnet50", 1, here, *fp16)),
                "eight ResNet-50 fp16 in one pass": (8, functools.partial(run, "resnet50", 8, here, *fp16)),
            }
        rates: dict[str, list[float]] = {job: [] for job in jobs}
        for _ in range(args.rounds):
            for job, (_, measure) in jobs.items():
                rates[job].append(measure())
        place = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
        print(
            f"{place}, {workers} decoding processes, torch {torch.__version__}, {len(images)} images of 500 x 375"
        )
        title = f"median of {args.rounds}"
        print(f"{title:34} {'images/s':>9} {'least-most':>15} {'to first':>9} {'model-images/s':>15}")
        base = statistics.median(next(iter(rates.values())))
        for job, values in rates.items():
            middle, span = statistics.median(values), f"{min(values):.0f}-{max(values):.0f}"
            print(f"{job:34} {middle:9.0f} {span:>15} {middle / base:8.2f}x {middle * jobs[job][0]:15.0f}")


if __name__ == "__main__":
    main()
