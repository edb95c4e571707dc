"""Checks of checkpoints: hash, parameters, a forward pass, ImageNet-1K accuracy of the classifier."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from cog.constants import IN1K
from cog.data import datasets
from cog.data.loader import PIECE, Decoder, decoded, worker_failures_explained
from cog.data.pixels import normalizer, to_input
from cog.data.wnids import IN1K_LIST
from cog.errors import CogError
from cog.models.choice import load_backbone
from cog.models.fetch import checkpoint_files, sha256
from cog.models.spec import PaperModel
from cog.paths import ModelDir
from cog.runtime.device import exact_float32
from cog.runtime.log import progress_of


def check(models: Iterable[PaperModel], root: str | os.PathLike[str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, "ok", "absent" or "bad", and facts of each checkpoint; its network is run once."""
    for row in models:
        path = ModelDir(Path(root), row.name).checkpoint
        try:
            found = checkpoint_files(path)
            yield row.name, *(("ok", _facts(row, path)) if found else ("absent", f"there is no {path}"))
        except CogError as error:
            yield row.name, "bad", str(error)


def _facts(row: PaperModel, path: Path) -> str:
    digest, backbone = sha256(path), load_backbone(row.name, path)
    published = {True: "as published", False: "not the published file", None: "none is published"}
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


@worker_failures_explained()
def top1(row: PaperModel, checkpoint: Path, images_root: str, device: torch.device, n_workers: int) -> str:
    """Return one line with the accuracy of the released classifier on ImageNet-1K, and the published one.

    Images are prepared as by the authors; a wrong layer, class order or normalization clearly lowers it.
    """
    from cog.models.checkpoint import load_paper_model

    if row.top1 is None:
        raise CogError(f"no published ImageNet-1K accuracy is known for {row.name}: nothing to compare")
    images = datasets.DATASETS[IN1K].images(IN1K, "test", {"in1k_images_root": images_root})
    order = {wnid: label for label, wnid in enumerate(sorted(IN1K_LIST.read_text().split()))}
    if foreign := [name for name in images.classes if name not in order]:
        raise CogError(f"{images.root}: {foreign[0]} is not one of the 1000 classes of ImageNet-1K")
    labels = torch.tensor([order[name] for name in images.classes])[torch.from_numpy(images.labels)]
    pre, n, hits = row.declared["model"], len(images), 0
    network = load_paper_model(row, checkpoint, classifier=True).eval().to(device)
    spans = [(first, min(first + PIECE, n)) for first in range(0, n, PIECE)]
    with exact_float32(), torch.inference_mode(), progress_of(n, row.name) as progress:
        made = decoded(Decoder(images, pre), spans, n_workers=n_workers)
        for (first, stop), piece in zip(spans, made, strict=True):
            for number, reason in piece.failures:
                raise CogError(f"cannot decode {images.root / images.file(number)}: {reason}")
            logits = network(to_input(piece.pixels, *normalizer(pre.mean, pre.std, device)))
            hits += int((logits.argmax(1).cpu() == labels[first:stop]).sum())
            progress.update(stop - first)
    accuracy = 100 * hits / n
    comparison = "as published" if abs(accuracy - row.top1) <= 0.5 else "NOT as published"  # decoders differ
    found = f"top-1 {accuracy:.2f} % on {n} images, published {row.top1:.2f} %"
    return f"{row.name}: {found} (difference {accuracy - row.top1:+.2f}): {comparison}"
