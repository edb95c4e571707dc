"""Training of the miniature's network on the training images of the seen concepts."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch

from cog import constants
from cog.data.pixels import load_rgb
from cog.errors import CogError
from cog.miniature.network import ConvNet
from cog.miniature.world import IN1K_DIR
from cog.models.spec import IMAGENET_MEAN, IMAGENET_STD
from cog.runtime import files
from cog.runtime.log import Progress, duration

logger = logging.getLogger(__name__)

#: AdamW under a one-cycle schedule, with label smoothing.
N_EPOCHS = 20
_BATCH_SIZE = 64
_PEAK_LR = 3e-3
_WEIGHT_DECAY = 0.05
_LABEL_SMOOTHING = 0.1
_MAX_SHIFT = 4  # of training images, in pixels


def train_network(world_dir: Path, ckpt_file: Path, *, n_epochs: int) -> None:
    """Train the network and write its checkpoint, unless there is one.

    Equal worlds give equal networks on the same CPU with the same number of threads. A GPU is used if there is one.

    Args:
        world_dir: folder of a world, whose ``in1k/train`` is read.
        ckpt_file: output file, a dict with ``state_dict`` and ``classes`` (wnids in the order of the logits).
        n_epochs: number of passes over the training images; 0: only the batch norm statistics are measured.

    Raises:
        CogError: there are no images, or one is unreadable.
    """
    if ckpt_file.exists():
        logger.info("%s exists", ckpt_file)
        return
    train_dir = files.require_dir(
        world_dir / IN1K_DIR / constants.IN1K_FOLDERS["train"], "the seen training images"
    )
    classes = sorted(folder.name for folder in train_dir.iterdir())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x, y = _read_images(train_dir, classes)
    network = _fit(x.to(device), y.to(device), ConvNet(n_classes=len(classes)).to(device), n_epochs).cpu()
    ckpt_file.parent.mkdir(parents=True, exist_ok=True)
    with files.atomic_write(ckpt_file) as handle:
        torch.save({"state_dict": network.state_dict(), "classes": classes}, handle)
    logger.info("wrote %s", ckpt_file)


def _read_images(train_dir: Path, classes: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (N, 3, SIZE, SIZE) uint8 and labels (N,) int64."""
    pictures, labels = [], []
    for label, wnid in enumerate(classes):
        for path in sorted((train_dir / wnid).glob("*.JPEG")):
            try:
                pictures.append(np.asarray(load_rgb(path)))
            except OSError as error:
                raise CogError(
                    f"cannot read {path} ({error}); delete the miniature and make it again"
                ) from error
            labels.append(label)
    if not pictures:
        raise CogError(f"{train_dir} holds no *.JPEG images; make the miniature first")
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels)


def _normalize(x: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(v, device=x.device).view(1, 3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    return (x.float() / 255 - mean) / std


def _fit(x: torch.Tensor, y: torch.Tensor, network: ConvNet, n_epochs: int) -> ConvNet:
    """Train the network and return it; order and augmentation are drawn on the CPU."""
    generator = torch.Generator().manual_seed(0)
    network.train()
    if n_epochs == 0:
        # The batch norm statistics of an untrained network are those of the images, as for a trained network.
        with torch.no_grad():
            for batch in torch.randperm(len(x), generator=generator).split(_BATCH_SIZE):
                network(_normalize(x[batch]))
        return network.eval()
    optimizer = torch.optim.AdamW(network.parameters(), lr=_PEAK_LR, weight_decay=_WEIGHT_DECAY)
    n_batches = max(1, len(x) // _BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _PEAK_LR, total_steps=n_epochs * n_batches)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=_LABEL_SMOOTHING)
    n_right = n_seen = 0
    with Progress(n_epochs, "training", unit="epochs", interval=10) as progress:
        for _ in range(n_epochs):
            n_right = n_seen = 0
            for batch in torch.randperm(len(x), generator=generator).split(_BATCH_SIZE)[:n_batches]:
                logits = network(_augment(_normalize(x[batch]), generator))
                loss = criterion(logits, y[batch])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                schedule.step()
                n_right += int((logits.argmax(1) == y[batch]).sum())
                n_seen += len(batch)
            progress.update()
    logger.info(
        "trained on %d images in %s (%s): top-1 %.1f %% on (augmented) training images",
        len(x),
        duration(progress.seconds),
        x.device.type,
        100 * n_right / n_seen,
    )
    return network.eval()


def _augment(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Shift a batch by a random number of pixels, and mirror each image with probability 1/2."""
    side = x.shape[-1]
    padded = torch.nn.functional.pad(x, (_MAX_SHIFT,) * 4, mode="reflect")
    top, left = torch.randint(0, 2 * _MAX_SHIFT + 1, (2,), generator=generator).tolist()
    moved = padded[:, :, top : top + side, left : left + side]
    mirrored = (torch.rand(len(x), generator=generator) < 0.5).to(x.device)
    return torch.where(mirrored.view(-1, 1, 1, 1), moved.flip(3), moved)
