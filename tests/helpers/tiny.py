"""Inputs of a few kilobytes in every format that the scripts read: images, a model, level files, features."""

import hashlib
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

#: Classes of the folders below, in the order of the labels.
WNIDS = ("n01440764", "n01443537", "n01484850")

#: Loader of a user's model: deterministic, 4 features, no checkpoint needed.
LOADER_SOURCE = """
import torch


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Parameter(torch.tensor([0.5, -0.25, 0.125]))

    def forward(self, x):
        mean = x.mean((2, 3))
        return torch.cat([mean, mean @ self.mix[:, None]], dim=1)


def load_my_model(init_args):
    assert set(init_args) == {"model_name", "ckpt_file", "model_dir"}
    model = Tiny()
    if init_args["ckpt_file"]:
        model.load_state_dict(torch.load(init_args["ckpt_file"], map_location="cpu", weights_only=True))
    return model, None
"""


def write_image(path: Path, *, size: tuple[int, int] = (20, 16), seed: int = 0) -> Path:
    """Write a small RGB image; the suffix determines the format."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def write_class_folders(
    folder: Path, *, classes: Sequence[str] = WNIDS, n_images: int = 3, suffix: str = ".JPEG", seed: int = 0
) -> Path:
    """Write ``<folder>/<class>/<class>_<i><suffix>``."""
    for row, name in enumerate(classes):
        for index in range(n_images):
            write_image(folder / name / f"{name}_{index}{suffix}", seed=1000 * seed + 100 * row + index)
    return folder


def write_loader(path: Path) -> Path:
    """Write the file of :data:`LOADER_SOURCE`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(LOADER_SOURCE)
    return path


def write_levels_file(path: Path, levels: Sequence[Sequence[str]]) -> Path:
    """Write a levels file like the authors' one."""
    path.write_bytes(pickle.dumps([list(level) for level in levels], protocol=4))
    return path


def write_split_file(path: Path, images_root: Path, *, n_test: int = 1) -> Path:
    """Write a split file over all class folders of ``images_root``: the first files are for testing."""
    split = {}
    for folder in sorted(images_root.iterdir()):
        files = np.array(sorted(f"{folder.name}/{file.name}" for file in folder.iterdir()))
        split[folder.name] = {"train": files[n_test:], "test": files[:n_test]}
    path.write_bytes(pickle.dumps(split, protocol=4))
    return path


def make_xy(*, n_per_class: int = 10, n_classes: int = 3, dim: int = 8, seed: int = 0, spread: float = 0.5):
    """Return ``X`` and ``Y``: a Gaussian cloud per class, whose center is the same for all seeds."""
    import torch

    centers = torch.randn(n_classes, dim, generator=torch.Generator().manual_seed(12345))
    y = torch.arange(n_classes).repeat_interleave(n_per_class)
    noise = torch.randn(len(y), dim, generator=torch.Generator().manual_seed(seed))
    return centers[y] + spread * noise, y


def write_features(folder: Path, x=None, y=None, *, name: str = "tiny_net_birds_train", **kwargs) -> Path:
    """Write ``X_Y.pth`` as the original toolkit does, and return the folder."""
    import torch

    if x is None:
        x, y = make_xy(**kwargs)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"X": x, "Y": y, "name": name}, folder / "X_Y.pth")
    return folder


def empty_list(dataset: str, split: str, counts: Sequence[int]):
    """Return an image list with these numbers of images per class, without file names."""
    from cog.data.images import ImageList

    return ImageList(
        dataset=dataset,
        split=split,
        root=Path("images"),
        files=np.zeros(sum(counts), dtype="S1"),
        labels=np.repeat(np.arange(len(counts)), counts),
        classes=tuple(map(str, range(len(counts)))),
    )


@dataclass(frozen=True)
class Workshop:
    """A folder with all kinds of inputs of the scripts."""

    root: Path
    models: Path  # <models_root_dir>; tiny_net has a checkpoint and features of birds
    loader: Path  # file with load_my_model
    birds: Path  # {train,test}/<class>/*.png: a data set of a user
    in1k: Path  # {train,val}/<wnid>/*.JPEG
    in21k: Path  # <wnid>/*.JPEG
    levels_file: Path  # two levels over in21k
    split_file: Path  # one test image per concept

    @property
    def checkpoint(self) -> Path:
        return self.models / "tiny/net/model.ckpt"

    def features(self, split: str) -> Path:
        return self.models / f"tiny/net/birds/features_{split}"


def build_workshop(root: Path) -> Workshop:
    """Write a :class:`Workshop` into an empty folder."""
    import torch

    birds, in1k = root / "birds", root / "in1k"
    for seed, split in enumerate(("train", "test"), start=1):
        write_class_folders(birds / split, classes=("crow", "duck", "wren"), suffix=".png", seed=seed)
    for seed, split in enumerate(("train", "val"), start=3):
        write_class_folders(in1k / split, n_images=2, seed=seed)
    in21k = write_class_folders(root / "in21k", classes=("n02000001", *WNIDS), n_images=3, seed=5)
    levels = write_levels_file(root / "levels.pkl", [WNIDS[:2], ("n02000001", WNIDS[2])])
    split_file = write_split_file(root / "split.pkl", in21k)
    loader = write_loader(root / "my_net.py")
    workshop = Workshop(root, root / "models", loader, birds, in1k, in21k, levels, split_file)
    for split, seed in (("train", 0), ("test", 1)):
        write_features(workshop.features(split), name=f"tiny_net_birds_{split}", seed=seed)
    torch.save({"mix": torch.tensor([1.0, 2.0, 3.0])}, workshop.checkpoint)
    return workshop


def snapshot(root: Path) -> dict[str, str]:
    """Return kind or digest of all files and folders below ``root``, but for bytecode of loaders."""
    entries = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for path in (Path(folder, name) for name in (*folders, *files)):
            is_file = path.is_file() and not path.is_symlink()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if is_file else f"folder: {path.is_dir()}"
            link = os.readlink(path) if path.is_symlink() else ""
            entries[str(path.relative_to(root))] = link or content
    return entries
