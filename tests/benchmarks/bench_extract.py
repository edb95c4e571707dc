"""Images per second of feature extraction, side by side with a plain DataLoader loop.

The plain loop is what one writes first, and what the original toolkit does: worker processes open images with Pillow,
torchvision's transforms resize (bicubic), crop, convert to float and normalize, and the network sees one batch at a
time. Both sides are measured in turns in the same run, so that other load on the machine hits both. Examples::

    python tests/benchmarks/bench_extract.py
    python tests/benchmarks/bench_extract.py --images in1k/val --limit 1000
    python tests/benchmarks/bench_extract.py --images DIR --model resnet50
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from cog.data.classes import IMAGE_SUFFIXES
from cog.data.images import ImageList
from cog.data.loader import Decoder, batches, usable_workers
from cog.data.pixels import normalizer, to_input
from cog.data.stores import FolderImages
from cog.features.extract import Extractor
from cog.models.backbone import Backbone
from cog.runtime.device import exact_float32

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SIDE = 224
PLAIN_BATCH = 128


def generate(folder: Path, n_images: int) -> None:
    """Write JPEG files of the sizes most photographs of ImageNet have: smooth colors, some noise, quality 90."""
    sizes = [(500, 375), (500, 375), (500, 375), (375, 500), (500, 333), (333, 500), (500, 500), (640, 480)]
    for index in range(n_images):
        generator = np.random.default_rng(index)
        width, height = sizes[index % len(sizes)]
        coarse = Image.fromarray(generator.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
        noisy = smooth + generator.normal(0, 10, (height, width, 1)).astype(np.int16)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"{index:05d}.jpg", quality=90)


def list_files(folder: Path, limit: int) -> ImageList:
    """Return ``limit`` images below a folder, spread evenly."""
    files = sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.name.lower().endswith(IMAGE_SUFFIXES)
    )
    files = files[:: max(1, len(files) // limit)][:limit]
    if not files:
        sys.exit(f"no images in {folder}")
    names = np.array([os.fsencode(file) for file in files])
    return ImageList(
        "images", "test", FolderImages(folder), names, np.zeros(len(files), dtype=np.int64), ("all",)
    )


class PlainImages(Dataset):
    """The plain loop's data set."""

    def __init__(self, images: ImageList) -> None:
        self._paths = [images.root / images.file(row) for row in range(len(images))]
        self._transform = transforms.Compose(
            [
                transforms.Resize(SIDE, interpolation=transforms.InterpolationMode.BICUBIC),
                transforms.CenterCrop(SIDE),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, row: int) -> torch.Tensor:
        with open(self._paths[row], "rb") as handle:
            return self._transform(Image.open(handle).convert("RGB"))


def plain(
    images: ImageList, n_workers: int, device: torch.device, network: Backbone | None
) -> list[torch.Tensor]:
    """Return the plain loop's inputs (without a network: of the last batch) or features."""
    found: list[torch.Tensor] = []
    loader = DataLoader(
        PlainImages(images), PLAIN_BATCH, num_workers=n_workers, pin_memory=device.type == "cuda"
    )
    with exact_float32(), torch.inference_mode():
        for x in loader:
            x = x.to(device, non_blocking=True)
            found = [x] if network is None else [*found, network(x).cpu()]
    return found


def ours(
    images: ImageList, n_workers: int, device: torch.device, network: Backbone | None
) -> list[torch.Tensor]:
    """Do the same with the toolkit."""
    if network is not None:
        extractor = Extractor(
            network, resize=SIDE, crop=SIDE, mean=MEAN, std=STD, device=device, n_workers=n_workers,
            batch_size=PLAIN_BATCH,
        )  # fmt: skip
        return [torch.cat([part.x for part in extractor.stream(images)])]
    found: list[torch.Tensor] = []
    decoder = Decoder(images, resize=SIDE, crop=SIDE)
    mean, std = normalizer(MEAN, STD, device)
    per_pass = 4 if device.type == "cpu" else PLAIN_BATCH
    stream = batches(decoder, batch_size=PLAIN_BATCH, n_workers=n_workers, pin_memory=device.type == "cuda")
    with torch.inference_mode(), contextlib.closing(stream):
        for batch in stream:
            found = [
                to_input(part, mean, std, memory_format=torch.channels_last)
                for part in batch.pixels[: batch.n].split(per_pass)
            ]
    return found


def check_equal(images: ImageList) -> None:
    """Stop unless every pixel that reaches the network is the plain loop's."""
    mean, std = normalizer(MEAN, STD, torch.device("cpu"))
    reference = PlainImages(images)
    for batch in batches(Decoder(images, resize=SIDE, crop=SIDE), batch_size=PLAIN_BATCH, n_workers=2):
        if batch.failures:
            sys.exit(f"{images.file(batch.failures[0][0])}: {batch.failures[0][1]}")
        for row, x in zip(batch.rows, to_input(batch.pixels[: batch.n], mean, std), strict=True):
            if not torch.equal(x, reference[int(row)]):
                sys.exit(f"{images.file(int(row))}: the network's input differs from the plain loop's")
    print(f"the network's input equals the plain loop's bit for bit on all {len(images)} images")


def measure(
    contenders: dict[str, Callable[[int], object]], *, n_images: int, workers: list[int], repeats: int
) -> None:
    """Time all contenders in turns and print medians."""
    print(f"{'workers':>7}  " + "  ".join(f"{name:>26}" for name in contenders))
    for n_workers in workers:
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(repeats):
            for name, run in contenders.items():
                start = time.perf_counter()
                run(n_workers)
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                rates[name].append(n_images / (time.perf_counter() - start))
        base = statistics.median(next(iter(rates.values())))
        cells = []
        for values in rates.values():
            middle = statistics.median(values)
            cells.append(f"{middle:7.1f} ({min(values):.0f}-{max(values):.0f}) {middle / base:5.2f}x")
        print(f"{n_workers:>7}  " + "  ".join(f"{cell:>26}" for cell in cells), flush=True)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--images", type=Path, help="folder of images (default: generated ones of about 500 x 375)"
    )
    parser.add_argument("--limit", type=int, default=512, help="number of images, spread over the folder")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--network_limit", type=int, default=128, help="images for the runs with a network on a CPU"
    )
    parser.add_argument("--model", default="mobilenet_v2", help="torchvision's name; its weights are random")
    parser.add_argument("--threads", type=int, help="threads of the network on a CPU (default: PyTorch's)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    with tempfile.TemporaryDirectory() as folder:
        if args.images is None:
            generate(Path(folder), min(args.limit, 256))
        images = list_files(args.images or Path(folder), args.limit)
        fewer = list_files(args.images or Path(folder), min(args.limit, args.network_limit))
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
        print(
            f"{name}, {usable_workers(10**6)} processors, {torch.get_num_threads()} threads for the network, torch "
            f"{torch.__version__}; images per second, median (least-most) of {args.repeats}, ratio to the plain loop"
        )
        check_equal(images)
        cpu = torch.device("cpu")
        print(f"\nwithout a network, {len(images)} images, input on the CPU, PyTorch with one thread")
        n_threads = torch.get_num_threads()
        torch.set_num_threads(1)  # else idle threads of PyTorch spin on the processors that decode
        measure(
            {
                "plain": lambda n: plain(images, n, cpu, None),
                "ours": lambda n: ours(images, n, cpu, None),
            },
            n_images=len(images), workers=args.workers, repeats=args.repeats,
        )  # fmt: skip
        torch.set_num_threads(n_threads)
        network = Backbone(torchvision.models.get_model(args.model), name=args.model).to(device)
        some = images if device.type == "cuda" else fewer
        print(f"\nwith {network.name}, {len(some)} images, float32 on {name}")
        contenders: dict[str, Callable[[int], object]] = {
            "plain": lambda n: plain(some, n, device, network),
            "ours": lambda n: ours(some, n, device, network),
        }
        plain(list_files(images.root, 8), 0, device, network)  # first use of the device
        measure(contenders, n_images=len(some), workers=args.workers, repeats=args.repeats)


if __name__ == "__main__":
    main()
