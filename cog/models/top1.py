"""ImageNet-1K validation accuracy of a released classifier, to compare with the published figure.

A wrong layer, class order or normalization clearly lowers the accuracy. Images are resized and cropped as by the
weights' authors, not as in the benchmark.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import torch

from cog.constants import IN1K
from cog.data import datasets
from cog.data.loader import Decoder, batches, usable_workers
from cog.data.pixels import normalizer, to_input
from cog.data.wnids import IN1K_LIST
from cog.errors import CogError
from cog.models.backbone import load_network
from cog.models.spec import PaperModel
from cog.runtime.device import exact_float32
from cog.runtime.progress import Progress

#: Largest difference, in percentage points, that the decoder or the resampling explains.
TOLERANCE = 0.5

_BATCH_SIZE = 128
_N_WORKERS = 8


def measure(
    spec: PaperModel,
    ckpt_file: str | os.PathLike[str],
    in1k_images_root: str | os.PathLike[str],
    *,
    device: torch.device,
) -> tuple[float, int]:
    """Classify the ImageNet-1K validation images.

    Args:
        spec: a model with a published accuracy.
        ckpt_file: checkpoint of the model, with the original classifier.
        in1k_images_root: folder with ``val/<wnid>/*.JPEG``.
        device: device of the computation.

    Returns:
        The accuracy in percent, and the number of images.

    Raises:
        CogError: no published accuracy of the model is known, or the checkpoint or an image cannot be read.
    """
    authors = spec.published
    if authors is None:
        raise CogError(
            f"no published ImageNet-1K accuracy is known for {spec.name}: it was released without an ImageNet-1K "
            "classifier, or without a figure for it; there is nothing to compare"
        )
    images = datasets.DATASETS[IN1K].images(IN1K, "test", {"in1k_images_root": os.fspath(in1k_images_root)})
    order = {wnid: label for label, wnid in enumerate(sorted(IN1K_LIST.read_text().split()))}
    foreign = [name for name in images.classes if name not in order]
    if foreign:
        raise CogError(f"{images.root}: {foreign[0]} is not one of the 1000 classes of ImageNet-1K")
    labels = torch.tensor([order[images.classes[label]] for label in images.labels])
    network = load_network(spec, Path(ckpt_file), classifier=True).eval().to(device)
    decoder = Decoder(images, resize=authors.resize, crop=authors.crop, interpolation=authors.interpolation)
    mean, std = normalizer(spec.preprocess.mean, spec.preprocess.std, device)
    hits = 0
    with (
        exact_float32(),
        torch.inference_mode(),
        Progress(len(images), spec.name) as progress,
        contextlib.closing(
            batches(decoder, batch_size=_BATCH_SIZE, n_workers=usable_workers(_N_WORKERS))
        ) as stream,
    ):
        for batch in stream:
            for row, reason in batch.failures:
                raise CogError(f"cannot decode {images.root / images.file(row)}: {reason}")
            logits = network(to_input(batch.pixels[: batch.n], mean, std))
            if logits.ndim != 2 or logits.shape[1] != 1000:
                raise CogError(f"{ckpt_file}: its classifier does not have the 1000 classes of ImageNet-1K")
            hits += int((logits.argmax(1).cpu() == labels[batch.first : batch.first + batch.n]).sum())
            progress.update(batch.n)
    return 100 * hits / len(images), len(images)


def verdict(spec: PaperModel, top1: float, n_images: int) -> str:
    """Return one line that compares an accuracy in percent with the published one."""
    assert spec.published is not None
    published = spec.published.top1
    difference = top1 - published
    comparison = "as published" if abs(difference) <= TOLERANCE else "NOT as published"
    return (
        f"{spec.name}: top-1 {top1:.2f} % on {n_images} images, published {published:.2f} % "
        f"(difference {difference:+.2f}): {comparison}"
    )
