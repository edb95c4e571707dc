"""ImageNet-1K validation accuracy of a released classifier, to compare with the published figure.

A wrong layer, class order or normalization shows at once. Images are treated as the weights' authors do
(their resizing and crop), not as in the benchmark.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from cog.constants import IN1K
from cog.data import datasets, image_lists
from cog.data.loader import usable_workers
from cog.data.pixels import load_rgb, normalizer, to_input
from cog.data.wnids import IN1K_LIST
from cog.errors import CogError
from cog.models.backbone import load_network
from cog.models.spec import ModelSpec, Published
from cog.runtime.device import exact_float32
from cog.runtime.progress import Progress

logger = logging.getLogger(__name__)

#: Larger differences, in percentage points, are not explained by the decoder or the resampling.
TOLERANCE = 0.5


@dataclass(frozen=True)
class Accuracy:
    """Result of :func:`measure`.

    Attributes:
        top1: accuracy in percent.
        n_images: number of images it was measured on.
    """

    top1: float
    n_images: int


class _Images(Dataset):
    """Decoded images as uint8 ``(crop, crop, 3)``, with labels 0..999."""

    def __init__(self, images: image_lists.ImageList, rows: list[int], protocol: Published) -> None:
        self._images = images
        self._rows = rows
        self._protocol = protocol
        order = {wnid: label for label, wnid in enumerate(sorted(IN1K_LIST.read_text().split()))}
        foreign = [name for name in images.classes if name not in order]
        if foreign:
            raise CogError(f"{images.root}: {foreign[0]} is not one of the 1000 classes of ImageNet-1K")
        self._labels = [order[name] for name in images.classes]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, str]:
        """Return pixels, label and the reason why there are no pixels (exceptions of workers lose their type)."""
        import numpy as np
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms import functional as transforms

        row = self._rows[index]
        name = self._images.file(row)
        try:
            image: Image.Image = load_rgb(self._images.store.read(name), name=name)
        except Exception as error:
            return (
                torch.zeros(self._protocol.crop, self._protocol.crop, 3, dtype=torch.uint8),
                -1,
                f"{self._images.root / name}: {error}",
            )
        image = transforms.resize(
            image, self._protocol.resize, InterpolationMode(self._protocol.interpolation)
        )
        image = transforms.center_crop(image, [self._protocol.crop, self._protocol.crop])
        return torch.from_numpy(np.array(image)), self._labels[int(self._images.labels[row])], ""


def in1k_validation_images(in1k_images_root: str | os.PathLike[str]) -> image_lists.ImageList:
    """Return the images in ``val/<wnid>/`` of a root."""
    return datasets.DATASETS[IN1K].images(IN1K, "test", {"in1k_images_root": os.fspath(in1k_images_root)})


def measure(
    spec: ModelSpec,
    ckpt_file: str | os.PathLike[str],
    in1k_images_root: str | os.PathLike[str],
    *,
    device: torch.device,
    batch_size: int = 128,
    n_workers: int = 8,
    limit: int = 0,
) -> Accuracy:
    """Classify the ImageNet-1K validation images.

    Args:
        spec: a model with a published accuracy.
        ckpt_file: its checkpoint, with the original classifier.
        in1k_images_root: holds ``val/<wnid>/*.JPEG``.
        device: device of the computation.
        batch_size: images per forward pass.
        n_workers: decoding processes.
        limit: number of images, spread evenly over the classes; 0 takes all.

    Raises:
        CogError: no published accuracy of the model is known, or the checkpoint or an image cannot be read.
    """
    if spec.release.accuracy is None:
        raise CogError(
            f"no published ImageNet-1K accuracy is known for {spec.name}: it was released without an ImageNet-1K "
            "classifier, or without a figure for it; there is nothing to compare"
        )
    images = in1k_validation_images(in1k_images_root)
    network = load_network(spec, Path(ckpt_file), classifier=True).eval().to(device)
    classify = getattr(network, "classify", network)
    step = max(1, len(images) // limit) if limit else 1
    rows = list(range(0, len(images), step))[: limit or None]
    dataset = _Images(images, rows, spec.release.accuracy)
    mean, std = normalizer(spec.preprocess.mean, spec.preprocess.std, device)
    hits = 0
    with exact_float32(), torch.inference_mode(), Progress(len(rows), spec.name) as progress:
        for pixels, labels, problems in DataLoader(
            dataset, batch_size, num_workers=usable_workers(n_workers)
        ):
            if any(problems):
                raise CogError(f"cannot decode {next(filter(None, problems))}")
            logits = classify(to_input(pixels.numpy(), mean, std))
            if logits.ndim != 2 or logits.shape[1] != 1000:
                raise CogError(f"{ckpt_file}: its classifier does not have the 1000 classes of ImageNet-1K")
            hits += int((logits.argmax(1).cpu() == labels).sum())
            progress.update(len(labels))
    return Accuracy(100 * hits / len(rows), len(rows))


def verdict(spec: ModelSpec, accuracy: Accuracy) -> str:
    """Return one line that compares an accuracy with the published one."""
    assert spec.release.accuracy is not None
    difference = accuracy.top1 - spec.release.accuracy.top1
    # Two standard deviations of a proportion, on top, for samples of the validation images.
    noise = 0.0
    if accuracy.n_images < 50_000:
        p = spec.release.accuracy.top1 / 100
        noise = 200 * (p * (1 - p) / max(accuracy.n_images, 1)) ** 0.5
    comparison = "as published" if abs(difference) <= TOLERANCE + noise else "NOT as published"
    return (
        f"{spec.name}: top-1 {accuracy.top1:.2f} % on {accuracy.n_images} images, published "
        f"{spec.release.accuracy.top1:.2f} % (difference {difference:+.2f}): {comparison}"
    )
