"""Extractions whose features depend on the place in a pass and on its size, which must not matter."""

import json
from pathlib import Path

import tiny

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


def write_inputs(root: Path) -> Path:
    """Write images (``birds/test/<class>``) and the loader."""
    n_images = N_IMAGES // len(CLASSES)
    tiny.write_class_folders(root / "birds/test", classes=CLASSES, n_images=n_images, suffix=".png", seed=7)
    (root / "net.py").write_text(LOADER_SOURCE)
    return root


def outcome(folder: Path) -> dict[str, object]:
    """Return the contents of all files in an output folder, without times."""
    content = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".json"}
    data = json.loads((folder / "features.json").read_text())
    del data["images_per_second"], data["finished"]
    return {**content, "features.json": data}
