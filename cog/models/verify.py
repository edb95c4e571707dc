"""Checks of checkpoints: hash, parameters, a forward pass, ImageNet-1K accuracy of the classifier."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from cog.constants import IN1K
from cog.data import datasets
from cog.data.pixels import load_rgb
from cog.data.wnids import IN1K_LIST
from cog.errors import CogError, first_line
from cog.models.checkpoint import load_paper_model
from cog.models.choice import load_backbone
from cog.models.fetch import checkpoint_files, sha256
from cog.models.spec import PaperModel
from cog.paths import ModelDir
from cog.runtime.device import exact_float32
from cog.runtime.log import Progress

#: Largest difference, in percentage points, that the decoder or the resampling explains.
TOLERANCE = 0.5

_BATCH_SIZE = 128


def check(models: Iterable[PaperModel], root: str | os.PathLike[str]) -> Iterator[tuple[str, str, str]]:
    """Check the checkpoints under a root; each network is run once, on the CPU.

    Yields:
        Name of the model, "ok", "absent" or "bad", and facts about the checkpoint, after each model.
    """
    for row in models:
        path = ModelDir(Path(root), row.name).checkpoint
        if not checkpoint_files(path):
            yield row.name, "absent", f"there is no {path}"
            continue
        try:
            yield row.name, "ok", _facts(row, path)
        except CogError as error:
            yield row.name, "bad", str(error)


def _facts(row: PaperModel, path: Path) -> str:
    digest = sha256(path)
    published = {True: "as published", False: "not the published file", None: "none is published"}
    backbone = load_backbone(row.name, path)
    x = torch.linspace(-1, 1, 2 * 3 * row.size * row.size).view(2, 3, row.size, row.size)
    with torch.inference_mode():
        y = backbone(x)
    if not y.isfinite().all():
        raise CogError(f"{path}: the features of a test pattern are NaN or infinite")
    n_parameters = sum(p.numel() for p in backbone.parameters())
    return (
        f"SHA-256 {digest[:8]}... ({published[row.is_published(digest)]}), {n_parameters / 1e6:.1f}M "
        f"parameters fit, features {tuple(y.shape)}, rms {float(y.square().mean().sqrt()):.3g}"
    )


class _Validation(Dataset[Any]):
    """The validation images of IN-1K, as a model's authors prepare them, with the labels of ILSVRC."""

    def __init__(self, row: PaperModel, root: str | os.PathLike[str]) -> None:
        self.images = datasets.DATASETS[IN1K].images(IN1K, "test", {"in1k_images_root": os.fspath(root)})
        order = {wnid: label for label, wnid in enumerate(sorted(IN1K_LIST.read_text().split()))}
        if foreign := [name for name in self.images.classes if name not in order]:
            raise CogError(f"{self.images.root}: {foreign[0]} is not one of the 1000 classes of ImageNet-1K")
        self.labels = [order[self.images.classes[label]] for label in self.images.labels]
        resize, size, interpolation = row.authors
        self.transform = transforms.Compose(
            [
                transforms.Resize(resize, transforms.InterpolationMode(interpolation)),
                transforms.CenterCrop(size),
                transforms.ToTensor(),
                transforms.Normalize(row.mean, row.std),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        try:
            return self.transform(load_rgb(self.images.read(index))), self.labels[index]
        except Exception as error:
            path = self.images.root / self.images.file(index)
            raise CogError(f"cannot decode {path}: {first_line(error)}") from None


def top1(
    row: PaperModel,
    checkpoint: str | os.PathLike[str],
    in1k_images_root: str | os.PathLike[str],
    *,
    device: torch.device,
    n_workers: int = 0,
) -> tuple[float, int]:
    """Classify the ImageNet-1K validation images with the released classifier, as its authors did.

    A wrong layer, class order or normalization clearly lowers the accuracy.

    Args:
        row: a model with a published accuracy.
        checkpoint: checkpoint of the model, with the classifier.
        in1k_images_root: folder with ``val/<wnid>/*.JPEG``.
        device: device of the computation.
        n_workers: processes that decode.

    Returns:
        The accuracy in percent, and the number of images.

    Raises:
        CogError: no published accuracy of the model is known, or the checkpoint or an image cannot be read.
    """
    if row.top1 is None:
        raise CogError(
            f"no published ImageNet-1K accuracy is known for {row.name}: it was released without an "
            "ImageNet-1K classifier, or without a figure for it; there is nothing to compare"
        )
    images = _Validation(row, in1k_images_root)
    network = load_paper_model(row, checkpoint, classifier=True).eval().to(device)
    hits = 0
    batches = DataLoader(images, _BATCH_SIZE, num_workers=n_workers)
    with exact_float32(), torch.inference_mode(), Progress(len(images), row.name) as progress:
        for x, labels in batches:
            logits = network(x.to(device))
            if logits.ndim != 2 or logits.shape[1] != 1000:
                raise CogError(f"{checkpoint}: its classifier does not have the 1000 classes of ImageNet-1K")
            hits += int((logits.argmax(1).cpu() == labels).sum())
            progress.update(len(labels))
    return 100 * hits / len(images), len(images)


def verdict(row: PaperModel, accuracy: float, n_images: int) -> str:
    """Return one line that compares an accuracy in percent with the published one."""
    assert row.top1 is not None
    comparison = "as published" if abs(accuracy - row.top1) <= TOLERANCE else "NOT as published"
    return (
        f"{row.name}: top-1 {accuracy:.2f} % on {n_images} images, published {row.top1:.2f} % "
        f"(difference {accuracy - row.top1:+.2f}): {comparison}"
    )
