"""The network of the miniature, small enough to train in seconds, and its loader, as users write one for their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cog.data.pixels import IMAGENET_MEAN, IMAGENET_STD, load_rgb
from cog.errors import CogError
from cog.runtime import files

#: Number of channels of the three stages; the last is the width of the features, D.
WIDTHS = (16, 32, 64)

#: AdamW under a one-cycle schedule, with label smoothing; images are shifted by some pixels and mirrored.
N_EPOCHS, BATCH_SIZE, PEAK_LR, WEIGHT_DECAY, SMOOTHING, MAX_SHIFT = 20, 64, 3e-3, 0.05, 0.1, 4


class _Block(nn.Module):
    """The basic residual block (He et al., 2016)."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(n_out)
        self.shortcut: nn.Module = nn.Identity()
        if n_in != n_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(inner + self.shortcut(x))


class ConvNet(nn.Module):
    """A network from images ``(B, 3, H, W)`` to logits ``(B, C)``; :meth:`forward_features` returns ``(B, 64)``.

    The initial weights, which are those of the untrained network, are PyTorch's, drawn with a fixed seed.
    """

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        a, b, c = WIDTHS
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            # With stride 4 before the first block, a 64-pixel image takes 3 million multiplications.
            stem = [nn.Conv2d(3, a, 3, 2, 1, bias=False), nn.BatchNorm2d(a), nn.ReLU(), nn.MaxPool2d(2)]
            self.stages = nn.Sequential(*stem, _Block(a, a, 1), _Block(a, b, 2), _Block(b, c, 2))
            self.fc = nn.Linear(c, n_classes)

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        """Return the global average of the last activations."""
        return self.stages(x).mean((2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.fc(self.forward_features(x))


def load_my_model(init_args: dict[str, Any]) -> tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    """Return the network of a checkpoint, and the function from images to features.

    ``--model_loader cog/miniature/network.py:load_my_model`` gives ``model_name``, ``ckpt_file`` (may be None) and
    ``model_dir``.
    """
    ckpt_file = init_args["ckpt_file"] or Path(init_args["model_dir"]) / "model.ckpt"
    checkpoint = torch.load(ckpt_file, map_location="cpu", weights_only=True)
    model = ConvNet(n_classes=len(checkpoint["classes"]))
    model.load_state_dict(checkpoint["state_dict"])
    return model.eval(), model.forward_features


def train_network(images: Path, ckpt_file: Path, *, n_epochs: int = N_EPOCHS) -> None:
    """Train the network on class folders and write its checkpoint, a dict with ``state_dict`` and ``classes``.

    An existing checkpoint is kept. Equal images give equal networks on the same CPU with the same number of threads. A
    GPU is used if there is one. With 0 epochs, only the batch norm statistics are measured. An unreadable image is a
    CogError.
    """
    if ckpt_file.exists():
        return
    classes = sorted(folder.name for folder in files.require_dir(images, "--output_dir").iterdir())
    pictures, labels = [], []
    for label, wnid in enumerate(classes):
        for path in sorted((images / wnid).glob("*.JPEG")):
            try:
                pictures.append(np.asarray(load_rgb(path)))
            except OSError as error:
                raise CogError(f"cannot read {path} ({error}); make the miniature again") from error
            labels.append(label)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    x = (torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255 - mean) / std
    network = fit(
        x.to(device), torch.tensor(labels, device=device), ConvNet(len(classes)).to(device), n_epochs
    )
    ckpt_file.parent.mkdir(parents=True, exist_ok=True)
    with files.atomic_write(ckpt_file) as handle:
        torch.save({"state_dict": network.cpu().state_dict(), "classes": classes}, handle)


def fit(x: torch.Tensor, y: torch.Tensor, network: ConvNet, n_epochs: int) -> ConvNet:
    """Train on normalized images ``(n, 3, H, W)`` of classes ``(n,)``; order and augmentation are drawn on the CPU."""
    generator = torch.Generator().manual_seed(0)
    network.train()
    if n_epochs == 0:  # the statistics of an untrained network are those of the images, as for a trained one
        with torch.no_grad():
            for batch in torch.randperm(len(x), generator=generator).split(BATCH_SIZE):
                network(x[batch])
    n_batches = max(1, len(x) // BATCH_SIZE)
    optimizer = torch.optim.AdamW(network.parameters(), lr=PEAK_LR, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_LR, total_steps=max(1, n_epochs * n_batches)
    )
    for _ in range(n_epochs):
        for batch in torch.randperm(len(x), generator=generator).split(BATCH_SIZE)[:n_batches]:
            logits = network(_augment(x[batch], generator))
            loss = nn.functional.cross_entropy(logits, y[batch], label_smoothing=SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def _augment(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Shift a batch by a random number of pixels, and mirror each image with probability 1/2."""
    side = x.shape[-1]
    padded = nn.functional.pad(x, (MAX_SHIFT,) * 4, mode="reflect")
    top, left = torch.randint(0, 2 * MAX_SHIFT + 1, (2,), generator=generator).tolist()
    moved = padded[:, :, top : top + side, left : left + side]
    mirrored = (torch.rand(len(x), generator=generator) < 0.5).to(x.device)
    return torch.where(mirrored.view(-1, 1, 1, 1), moved.flip(3), moved)
