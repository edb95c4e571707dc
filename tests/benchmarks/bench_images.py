"""Time per image from archives, side by side with class folders, on a warm disk.

The same images are read from both in turns, a few at a time, so that other load on the machine hits both; told is the
median of the ratios of processor time (archive : folders; 1.05 is 5 % slower), as for reading alone and for reading,
decoding, resizing and cropping. Examples::

    python tests/benchmarks/bench_images.py
    python tests/benchmarks/bench_images.py --images in21k --forms tar_per_class zip_stored
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [
    str(Path(__file__).resolve().parents[2]),
    str(Path(__file__).resolve().parents[1] / "helpers"),
]

import archive_forms
from bench_extract import generate

from cog.data.images import open_store
from cog.data.pixels import Preprocess, load_rgb, resize_and_crop
from cog.data.stores import ImageStore

N_TOGETHER = 20


def decode(store: ImageStore, name: str) -> None:
    """Read, decode and crop an image, as extraction does."""
    resize_and_crop(load_rgb(store.read(name)), Preprocess())


def ratios(
    read: Callable[[ImageStore, str], object], folders: ImageStore, other: ImageStore, names: list[str]
) -> list[float]:
    """Return the ratio of the times of each few images; which store comes first alternates."""
    found = []
    for first in range(0, len(names), N_TOGETHER):
        seconds = {}
        for store in (folders, other) if first // N_TOGETHER % 2 else (other, folders):
            start = time.process_time()
            for name in names[first : first + N_TOGETHER]:
                read(store, name)
            seconds[store] = time.process_time() - start
        found.append(seconds[other] / seconds[folders])
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--images", type=Path, help="class folders named by WordNet ids (default: generated ones)"
    )
    parser.add_argument("--limit", type=int, default=1000, help="number of images, spread over the folders")
    parser.add_argument(
        "--forms",
        nargs="+",
        default=["tar_per_class", "tar_of_tars", "zip_stored", "zip_deflated"],
        choices=archive_forms.FORMS,
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        os.environ["COG_CACHE_DIR"] = f"{place}/cache"
        source = args.images or Path(place, "generated")
        if args.images is None:
            for number in range(4):
                folder = source / f"n{number:08d}"
                folder.mkdir(parents=True)
                generate(folder, 32)
        folders = open_store(source)
        names = [name for wnid in folders.classes() for name in folders.names(wnid)]
        names = names[:: max(1, len(names) // args.limit)]
        names *= max(1, 400 // len(names))
        print(f"{len(names)} readings in parts of {N_TOGETHER}; median ratio to folders (middle half)")
        for form in args.forms:
            root = Path(place, form)
            root.mkdir()
            archive_forms.FORMS[form](source, root)
            packed = open_store(root)
            packed.prepare()
            if any(packed.read(name) != folders.read(name) for name in names):  # warms the disk's cache, too
                sys.exit(f"{form}: other bytes than in the folders")
            for label, read in (("read", lambda store, name: store.read(name)), ("read and decode", decode)):
                low, middle, high = statistics.quantiles(ratios(read, folders, packed, names), n=4)
                print(f"{form:>16} {label:<16} {middle:.3f} ({low:.3f}-{high:.3f})", flush=True)


if __name__ == "__main__":
    main()
