"""ImageNet-1K validation accuracy of a released classifier, to compare with the published figure.

A wrong layer, class order or normalization clearly lowers the accuracy. Images are resized and cropped as by the
weights' authors, not as in the benchmark.
"""

from __future__ import annotations

import contextlib
import dataclasses
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
from cog.models.spec import ModelSpec
from cog.runtime.device import exact_float32
from cog.runtime.progress import Progress

#: Largest difference, in percentage points, that the decoder or the resampling explains.
TOLERANCE = 0.5


def measure(
    spec: ModelSpec,
    ckpt_file: str | os.PathLike[str],
    in1k_images_root: str | os.PathLike[str],
    *,
    device: torch.device,
    batch_size: int = 128,
    n_workers: int = 8,
    limit: int = 0,
) -> tuple[float, int]:
    """Classify the ImageNet-1K validation images.

    Args:
        spec: a model with a published accuracy.
        ckpt_file: checkpoint of the model, with the original classifier.
        in1k_images_root: folder with ``val/<wnid>/*.JPEG``.
        device: device of the computation.
        batch_size: images per forward pass.
        n_workers: number of decoding threads.
        limit: number of images, spread evenly over the classes; 0 takes all.

    Returns:
        The accuracy in percent, and the number of images.

    Raises:
        CogError: no published accuracy of the model is known, or the checkpoint or an image cannot be read.
    """
    if spec.release.accuracy is None:
        raise CogError(
            f"no published ImageNet-1K accuracy is known for {spec.name}: it was released without an ImageNet-1K "
            "classifier, or without a figure for it; there is nothing to compare"
        )
    images = datasets.DATASETS[IN1K].images(IN1K, "test", {"in1k_images_root": os.fspath(in1k_images_root)})
    order = {wnid: label for label, wnid in enumerate(sorted(IN1K_LIST.read_text().split()))}
    foreign = [name for name in images.classes if name not in order]
    if foreign:
        raise CogError(f"{images.root}: {foreign[0]} is not one of the 1000 classes of ImageNet-1K")
    chosen = slice(None, None, max(1, len(images) // limit) if limit else 1)
    images = dataclasses.replace(
        images, files=images.files[chosen][: limit or None], labels=images.labels[chosen][: limit or None]
    )
    labels = torch.tensor([order[images.classes[label]] for label in images.labels])
    network = load_network(spec, Path(ckpt_file), classifier=True).eval().to(device)
    classify = getattr(network, "classify", network)
    authors = spec.release.accuracy
    decoder = Decoder(images, resize=authors.resize, crop=authors.crop, interpolation=authors.interpolation)
    mean, std = normalizer(spec.preprocess.mean, spec.preprocess.std, device)
    hits = 0
    with (
        exact_float32(),
        torch.inference_mode(),
        Progress(len(images), spec.name) as progress,
        contextlib.closing(
            batches(decoder, batch_size=batch_size, n_workers=usable_workers(n_workers))
        ) as stream,
    ):
        for batch in stream:
            for row, reason in batch.failures:
                raise CogError(f"cannot decode {images.root / images.file(row)}: {reason}")
            logits = classify(to_input(batch.pixels[: batch.n], mean, std))
            if logits.ndim != 2 or logits.shape[1] != 1000:
                raise CogError(f"{ckpt_file}: its classifier does not have the 1000 classes of ImageNet-1K")
            hits += int((logits.argmax(1).cpu() == labels[batch.first : batch.first + batch.n]).sum())
            progress.update(batch.n)
    return 100 * hits / len(images), len(images)


def verdict(spec: ModelSpec, top1: float, n_images: int) -> str:
    """Return one line that compares an accuracy in percent with the published one."""
    assert spec.release.accuracy is not None
    published = spec.release.accuracy.top1
    difference = top1 - published
    # For a sample of the validation images, the tolerance grows by two standard deviations of a proportion.
    noise = 0.0
    if n_images < 50_000:
        p = published / 100
        noise = 200 * (p * (1 - p) / max(n_images, 1)) ** 0.5
    comparison = "as published" if abs(difference) <= TOLERANCE + noise else "NOT as published"
    return (
        f"{spec.name}: top-1 {top1:.2f} % on {n_images} images, published {published:.2f} % "
        f"(difference {difference:+.2f}): {comparison}"
    )
