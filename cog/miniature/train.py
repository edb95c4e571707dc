"""Training of the miniature's network on the training images of the seen concepts."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cog import constants
from cog.data.pixels import load_rgb
from cog.errors import CogError
from cog.miniature.network import ConvNet
from cog.miniature.render import SIZE
from cog.miniature.world import IN1K_DIR
from cog.models.spec import IMAGENET_MEAN, IMAGENET_STD
from cog.runtime import files, safe_load
from cog.runtime.progress import Progress, duration

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainSettings:
    """Settings of the training: AdamW under a one-cycle schedule, with label smoothing.

    Attributes:
        n_epochs: number of passes over the training images; 0: only the batch norm statistics are measured.
        batch_size: number of images per step.
        lr: peak learning rate.
        weight_decay: weight decay of AdamW.
        label_smoothing: share of the target spread over all classes.
        max_shift: largest shift of training images, in pixels.
        seed: seed of initialization, order and augmentation.
    """

    n_epochs: int = 20
    batch_size: int = 64
    lr: float = 3e-3
    weight_decay: float = 0.05
    label_smoothing: float = 0.1
    max_shift: int = 4
    seed: int = 0


def train_network(
    world_dir: Path, ckpt_file: Path, settings: TrainSettings, *, overwrite: bool = False
) -> None:
    """Train the network and write its checkpoint, unless the checkpoint exists already.

    Equal settings give equal networks on the same machine with the same number of threads.

    Args:
        world_dir: folder of a world, whose ``in1k/train`` is read.
        ckpt_file: output file, a dict with ``state_dict``, ``classes`` (wnids in the order of the logits) and
            ``settings``; its folder must exist.
        settings: settings of the training.
        overwrite: whether to replace a checkpoint of other settings.

    Raises:
        CogError: an image is missing or unreadable, or a checkpoint of other settings exists and ``overwrite`` is
            False.
    """
    train_dir = files.require_dir(
        world_dir / IN1K_DIR / constants.IN1K_FOLDERS["train"], "the seen training images"
    )
    classes = sorted(folder.name for folder in train_dir.iterdir() if folder.is_dir())
    if len(classes) < 2:
        raise CogError(
            f"{train_dir} holds {len(classes)} class folders, expected 2 or more; make the miniature first"
        )
    if ckpt_file.exists() and not overwrite:
        if not _same(safe_load.load_torch(ckpt_file), classes, settings):
            raise CogError(f"{ckpt_file} was trained with other settings; give --overwrite to train again")
        logger.info("%s exists, trained with the same settings", ckpt_file)
        return
    x, y = _read_images(train_dir, classes)
    network = _fit(x, y, n_classes=len(classes), settings=settings)
    with files.atomic_write(ckpt_file) as handle:
        torch.save(
            {"state_dict": network.state_dict(), "classes": classes, "settings": asdict(settings)}, handle
        )
    logger.info("wrote %s", ckpt_file)


def _same(checkpoint: Any, classes: list[str], settings: TrainSettings) -> bool:
    return (
        isinstance(checkpoint, dict)
        and checkpoint.get("classes") == classes
        and checkpoint.get("settings") == asdict(settings)
    )


def _read_images(train_dir: Path, classes: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (N, 3, SIZE, SIZE) uint8 and labels (N,) int64."""
    pictures, labels = [], []
    for label, wnid in enumerate(classes):
        for path in sorted((train_dir / wnid).glob("*.JPEG")):
            try:
                picture = np.asarray(load_rgb(path))
            except OSError as error:
                raise CogError(
                    f"cannot read {path} ({error}); delete its folder and make the miniature again"
                ) from error
            if picture.shape != (SIZE, SIZE, 3):
                raise CogError(f"{path} is not {SIZE} x {SIZE} pixels; it is no image of this miniature")
            pictures.append(picture)
            labels.append(label)
    if not pictures:
        raise CogError(f"{train_dir} holds no *.JPEG images; make the miniature first")
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels)


def _normalize(x: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    return (x.float() / 255 - mean) / std


def _fit(x: torch.Tensor, y: torch.Tensor, *, n_classes: int, settings: TrainSettings) -> ConvNet:
    network = ConvNet(n_classes=n_classes, seed=settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    network.train()
    if settings.n_epochs == 0:
        # The batch norm statistics of an untrained network are those of the images, as for a trained network.
        with torch.no_grad():
            for batch in torch.randperm(len(x), generator=generator).split(settings.batch_size):
                network(_normalize(x[batch]))
        return network.eval()
    optimizer = torch.optim.AdamW(network.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    n_batches = max(1, len(x) // settings.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.lr, total_steps=settings.n_epochs * n_batches
    )
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=settings.label_smoothing)
    loss_sum, n_right, n_seen = 0.0, 0, 0
    with Progress(settings.n_epochs, "training", unit="epochs", interval=10) as progress:
        for _ in range(settings.n_epochs):
            loss_sum, n_right, n_seen = 0.0, 0, 0
            for batch in torch.randperm(len(x), generator=generator).split(settings.batch_size)[:n_batches]:
                logits = network(_augment(_normalize(x[batch]), settings.max_shift, generator))
                loss = criterion(logits, y[batch])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                schedule.step()
                loss_sum += loss.item() * len(batch)
                n_right += int((logits.argmax(1) == y[batch]).sum())
                n_seen += len(batch)
            progress.update()
    logger.info(
        "trained on %d images of %d concepts in %s: loss %.2f, top-1 %.1f %% on (augmented) training images",
        len(x), n_classes, duration(progress.seconds), loss_sum / n_seen, 100 * n_right / n_seen,
    )  # fmt: skip
    return network.eval()


def _augment(x: torch.Tensor, max_shift: int, generator: torch.Generator) -> torch.Tensor:
    """Shift a batch by a random number of pixels, and mirror each image with probability 1/2."""
    side = x.shape[-1]
    padded = torch.nn.functional.pad(x, (max_shift,) * 4, mode="reflect")
    top, left = torch.randint(0, 2 * max_shift + 1, (2,), generator=generator).tolist()
    moved = padded[:, :, top : top + side, left : left + side]
    mirrored = torch.rand(len(x), generator=generator) < 0.5
    return torch.where(mirrored.view(-1, 1, 1, 1), moved.flip(3), moved)
