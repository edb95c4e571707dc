"""The network of the miniature: a residual network that is small enough to train in minutes."""

from __future__ import annotations

import torch
from torch import nn

#: Number of channels of the three stages; the last is the width of the features, D.
WIDTHS = (32, 64, 128)


class _Block(nn.Module):
    """The basic residual block (He et al., 2016)."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(n_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(inner + self.shortcut(x))


class ConvNet(nn.Module):
    """A network from images (B, 3, H, W) to logits (B, n_classes); :meth:`forward_features` returns features (B, 128).

    The convolutions have PyTorch's default initialization, drawn with ``seed``, so the seed also determines an
    untrained network.
    """

    def __init__(self, *, n_classes: int, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            # With stride 4 before the first block, a 64-pixel image takes 13 million multiplications.
            self.stem = nn.Sequential(
                nn.Conv2d(3, WIDTHS[0], 3, 2, 1, bias=False),
                nn.BatchNorm2d(WIDTHS[0]),
                nn.ReLU(),
                nn.MaxPool2d(2),
            )
            self.stages = nn.Sequential(
                _Block(WIDTHS[0], WIDTHS[0], 1),
                _Block(WIDTHS[0], WIDTHS[1], 2),
                _Block(WIDTHS[1], WIDTHS[2], 2),
            )
            self.fc = nn.Linear(WIDTHS[-1], n_classes)

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        """Return features (B, 128), the global average of the last activations."""
        return self.stages(self.stem(x)).mean((2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (B, n_classes)."""
        return self.fc(self.forward_features(x))
