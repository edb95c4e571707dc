"""Extractions whose features depend on the place in a pass and on its size, which must not matter."""

from __future__ import annotations

import json
from pathlib import Path

import tiny
from PIL import Image

#: On a CPU, each forward pass has 4 images of 224 x 224 for any FT_EXTRACT.BATCH_SIZE.
N_IMAGES, CLASSES = 30, ("crow", "duck", "wren")

#: A network with 5 features: mean colors, place in the pass, size of the pass.
LOADER_SOURCE = """
import torch


class Placed(torch.nn.Module):
    def forward(self, x):
        place = torch.arange(len(x), dtype=x.dtype)[:, None]
        return torch.cat([x.mean((2, 3)), place, torch.full_like(place, len(x))], dim=1)


def load_my_model(init_args):
    return Placed(), None
"""


def write_inputs(root: Path, *, broken: tuple[int, ...] = ()) -> Path:
    """Write images (``birds/test/<class>``) and the loader; those of the rows ``broken`` are damaged."""
    n_images = N_IMAGES // len(CLASSES)
    tiny.write_class_folders(root / "birds/test", classes=CLASSES, n_images=n_images, suffix=".png", seed=7)
    (root / "net.py").write_text(LOADER_SOURCE)
    for row in broken:
        path_of(root, row).write_bytes(b"broken")
    return root


def path_of(root: Path, row: int) -> Path:
    """Return the image file of a row."""
    name, number = CLASSES[row // 10], row % 10
    return root / "birds/test" / name / f"{name}_{number}.png"


def replace_image(root: Path, row: int) -> None:
    """Replace the image of a row by an undamaged one."""
    Image.new("RGB", (20, 16), (10, 20, 30)).save(path_of(root, row))


def outcome(folder: Path) -> dict[str, object]:
    """Return the contents of all files in an output folder, without times."""
    content = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".json"}
    data = json.loads((folder / "features.json").read_text())
    del data["images_per_second"], data["finished"]
    return {**content, "features.json": data}
