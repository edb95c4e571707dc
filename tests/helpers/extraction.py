"""Extractions of a few images whose features depend on the place in a batch and on its size, which must not matter."""

from __future__ import annotations

import json
import types
from pathlib import Path

import numpy as np
import tiny
from PIL import Image

from cog.data.loader import Decoder
from cog.data.pixels import Preprocess
from cog.features.extract import Extractor, extract

#: Eight forward passes: on a CPU, each has 4 images of 224 x 224 for any FT_EXTRACT.BATCH_SIZE.
N_IMAGES, PER_PASS = 30, 4

#: A network with 5 features: mean colors, place in the pass, size of the pass. Each pass sleeps COG_TEST_SLEEP seconds.
LOADER_SOURCE = """
import os, time, torch


class Placed(torch.nn.Module):
    def forward(self, x):
        time.sleep(float(os.environ.get("COG_TEST_SLEEP", "0")))
        place = torch.arange(len(x), dtype=x.dtype)[:, None]
        return torch.cat([x.mean((2, 3)), place, torch.full_like(place, len(x))], dim=1)


def load_my_model(init_args):
    return Placed(), None
"""


def write_inputs(root: Path, *, broken: tuple[int, ...] = ()) -> Path:
    """Write images (class folders in ``birds/test``) and the loader; the images of the rows ``broken`` are damaged."""
    tiny.write_class_folders(
        root / "birds/test", classes=("crow", "duck", "wren"), n_images=N_IMAGES // 3, suffix=".png", seed=7
    )
    (root / "net.py").write_text(LOADER_SOURCE)
    for row in broken:
        path_of(root, row).write_bytes(b"broken")
    return root


def path_of(root: Path, row: int) -> Path:
    """Return the image file of a row."""
    name = ("crow", "duck", "wren")[row // (N_IMAGES // 3)]
    return root / "birds/test" / name / f"{name}_{row % (N_IMAGES // 3)}.png"


def replace_image(root: Path, row: int) -> None:
    """Replace the image of a row by an undamaged one."""
    Image.new("RGB", (20, 16), (10, 20, 30)).save(path_of(root, row))


def arguments(root: Path, output: Path, *more: str, workers: int = 0) -> list[str]:
    """Return the arguments of an extraction in batches of four images."""
    return [
        "--model", "placed_net", "--dataset", "birds", "--split", "test", "--images_root", str(root / "birds"),
        "--model_loader", f"{root / 'net.py'}:load_my_model", "--output_dir", str(output),
        "FT_EXTRACT.N_WORKERS", str(workers), "FT_EXTRACT.BATCH_SIZE", "4", *more,
    ]  # fmt: skip


def in_memory(backbone, images, *, n_workers=0, device="cpu", **settings):
    """Extract all images in this process; return features ``x``, their ``rows`` and ``(file, reason)`` failures."""
    preprocess = Preprocess(112, 120, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    extractor = Extractor(backbone, preprocess, device, **settings)
    x, failures = extract(extractor, Decoder(images, preprocess), n_workers=n_workers)
    failed = dict(failures)
    return types.SimpleNamespace(
        x=x,
        rows=np.array([row for row in range(len(images)) if row not in failed]),
        failures=[(images.file(row), reason) for row, reason in failures],
    )


def outcome(folder: Path) -> dict[str, object]:
    """Return the contents of all files in an output folder, without times."""
    contents: dict[str, object] = {
        path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.suffix != ".json"
    }
    data = json.loads((folder / "features.json").read_text())
    for key in ("seconds", "images_per_second", "started", "finished"):
        del data[key]
    return contents | {"features.json": data, "all": sorted(path.name for path in folder.iterdir())}
