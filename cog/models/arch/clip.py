"""The image tower of CLIP RN50 (Radford et al. 2021); parameter names are those of the released file.

Differences to ResNet-50: a stem of three 3x3 convolutions with average pooling, average pooling instead
of strided convolutions (also in the shortcuts), attention pooling at the end.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn


class Bottleneck(nn.Module):
    """Residual block without strided convolutions."""

    def __init__(self, w_in: int, width: int, stride: int) -> None:
        super().__init__()
        w_out = 4 * width
        self.conv1 = nn.Conv2d(w_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, w_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(w_out)
        self.pool = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or w_in != w_out:
            self.downsample = nn.Sequential(
                OrderedDict(
                    [
                        ("-1", nn.AvgPool2d(stride) if stride > 1 else nn.Identity()),
                        ("0", nn.Conv2d(w_in, w_out, 1, bias=False)),
                        ("1", nn.BatchNorm2d(w_out)),
                    ]
                )
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.pool(F.relu(self.bn2(self.conv2(y))))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class AttentionPool(nn.Module):
    """One query, the mean position, attends to all positions: ``(B, C, H, W)`` to ``(B, D)``."""

    def __init__(self, positions: int, width: int, heads: int, w_out: int) -> None:
        super().__init__()
        self.heads = heads
        self.positional_embedding = nn.Parameter(torch.zeros(positions + 1, width))
        self.k_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.c_proj = nn.Linear(width, w_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(2).transpose(1, 2)  # (B, N, C)
        x = torch.cat([x.mean(1, keepdim=True), x], dim=1) + self.positional_embedding
        q, k, v = (
            projection(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection, tokens in ((self.q_proj, x[:, :1]), (self.k_proj, x), (self.v_proj, x))
        )
        y = F.scaled_dot_product_attention(q, k, v)  # (B, heads, 1, C / heads)
        return self.c_proj(y.transpose(1, 2).flatten(1))


class ClipResNet50(nn.Module):
    """CLIP's image encoder, ``(B, 3, 224, 224)`` to ``(B, 1024)``.

    Args:
        pool: "attention" (the output of ``encode_image``) or "average" (the 2048-d global average of the last stage,
            without the attention pooling).
    """

    def __init__(self, *, pool: str = "attention") -> None:
        super().__init__()
        self.pool = pool
        self.conv1 = nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 32, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(32)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(64)
        w_in = 64
        for layer, (depth, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
            blocks = []
            for block in range(depth):
                blocks.append(Bottleneck(w_in, width, 2 if layer > 1 and block == 0 else 1))
                w_in = 4 * width
            self.add_module(f"layer{layer}", nn.Sequential(*blocks))
        self.attnpool = AttentionPool(positions=7 * 7, width=2048, heads=32, w_out=1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in ((self.conv1, self.bn1), (self.conv2, self.bn2), (self.conv3, self.bn3)):
            x = F.relu(norm(conv(x)))
        x = F.avg_pool2d(x, 2)
        for layer in range(1, 5):
            x = self.get_submodule(f"layer{layer}")(x)
        return x.mean((2, 3)) if self.pool == "average" else self.attnpool(x)
