"""The network of the miniature, which trains in seconds, and its loader, as users write one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cog.data.pixels import IMAGENET_MEAN, IMAGENET_STD, load_rgb
from cog.errors import os_errors_explained
from cog.paths import require_dir
from cog.runtime import files

#: AdamW under a one-cycle schedule, with label smoothing; images are shifted by some pixels and mirrored.
N_EPOCHS, BATCH_SIZE, PEAK_LR, WEIGHT_DECAY, SMOOTHING, MAX_SHIFT = 20, 64, 3e-3, 0.05, 0.1, 4


def _conv(n_in: int, n_out: int, size: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(n_in, n_out, size, stride, size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(n_out))


class _Block(nn.Module):
    """The basic residual block (He et al., 2016)."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(_conv(n_in, n_out, 3, stride), nn.ReLU(), _conv(n_out, n_out, 3))
        self.shortcut = nn.Identity() if n_in == n_out else _conv(n_in, n_out, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x) + self.shortcut(x))


class ConvNet(nn.Module):
    """A network from images ``(B, 3, H, W)`` to logits ``(B, C)``; its first weights are always the same."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        a, b, c = 16, 32, 64
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            # With stride 4 before the first block, a 64-pixel image takes 3 million multiplications.
            stem = (_conv(3, a, 3, 2), nn.ReLU(), nn.MaxPool2d(2))
            self.stages = nn.Sequential(*stem, _Block(a, a, 1), _Block(a, b, 2), _Block(b, c, 2))
            self.fc = nn.Linear(c, n_classes)

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        """Return the average of the last activations, ``(B, 64)``."""
        return self.stages(x).mean((2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.fc(self.forward_features(x))


def load_my_model(init_args: dict[str, Any]) -> tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    """Return the network of a checkpoint, and the function from images to features."""
    ckpt_file = init_args["ckpt_file"] or Path(init_args["model_dir"]) / "model.ckpt"
    checkpoint = torch.load(ckpt_file, map_location="cpu", weights_only=True)
    model = ConvNet(n_classes=len(checkpoint["classes"]))
    model.load_state_dict(checkpoint["state_dict"])
    return model.eval(), model.forward_features


def train_network(images: Path, ckpt_file: Path, *, n_epochs: int = N_EPOCHS) -> None:
    """Train the network on class folders and write its checkpoint; an existing one is kept.

    With 0 epochs, only the batch norm statistics are measured. An unreadable image is a CogError.
    """
    if ckpt_file.exists():
        return
    pictures, paths = [], sorted(require_dir(images, "--output_dir").glob("*/*.JPEG"))
    for path in paths:
        with os_errors_explained(f"cannot read {path}, make the miniature again"):
            pictures.append(np.asarray(load_rgb(path)))
    classes = sorted({path.parent.name for path in paths})
    y = torch.tensor([classes.index(path.parent.name) for path in paths])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    x = (torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255 - mean) / std
    network = ConvNet(len(classes)).to(device)
    _fit(network, x.to(device), y.to(device), n_epochs)
    ckpt_file.parent.mkdir(parents=True, exist_ok=True)
    with files.atomic_write(ckpt_file) as handle:
        torch.save({"state_dict": network.cpu().state_dict(), "classes": classes}, handle)


def _fit(network: ConvNet, x: torch.Tensor, y: torch.Tensor, n_epochs: int) -> None:
    """Train on images ``(n, 3, H, W)`` of classes ``(n,)``; order and augmentation are drawn on the CPU."""
    generator, side = torch.Generator().manual_seed(0), x.shape[-1]
    network.train()
    if n_epochs == 0:  # the statistics of an untrained network are those of the images, as for a trained one
        with torch.no_grad():
            for batch in torch.randperm(len(x), generator=generator).split(BATCH_SIZE):
                network(x[batch])
        return  # without an optimizer, which takes seconds to import
    n_batches = max(1, len(x) // BATCH_SIZE)
    optimizer = torch.optim.AdamW(network.parameters(), lr=PEAK_LR, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LR, total_steps=n_epochs * n_batches)
    for _ in range(n_epochs):
        for batch in torch.randperm(len(x), generator=generator).split(BATCH_SIZE)[:n_batches]:
            padded = nn.functional.pad(x[batch], (MAX_SHIFT,) * 4, mode="reflect")
            top, left = torch.randint(0, 2 * MAX_SHIFT + 1, (2,), generator=generator).tolist()
            moved = padded[:, :, top : top + side, left : left + side]
            mirrored = (torch.rand(len(batch), generator=generator) < 0.5).to(x.device).view(-1, 1, 1, 1)
            logits = network(torch.where(mirrored, moved.flip(3), moved))
            loss = nn.functional.cross_entropy(logits, y[batch], label_smoothing=SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    network.eval()
