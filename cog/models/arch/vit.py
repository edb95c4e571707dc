"""Vision transformers: DeiT (Touvron et al. 2021), with or without a distillation token.

Parameter names are those of the released files.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Multi-head self-attention, ``(B, N, D)`` to ``(B, N, D)``; logits are scaled by head width ** -0.5."""

    def __init__(self, dim: int, heads: int, *, qkv_bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v)  # (B, heads, N, D / heads)
        return self.proj(x.transpose(1, 2).reshape(b, n, d))


class Mlp(nn.Module):
    """Two linear layers with an exact (erf) GELU between them."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, dim: int, heads: int, *, mlp_ratio: float, qkv_bias: bool, eps: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=eps)
        self.attn = Attention(dim, heads, qkv_bias=qkv_bias)
        self.norm2 = nn.LayerNorm(dim, eps=eps)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class DeiT(nn.Module):
    """DeiT: the feature is the class token after the final LayerNorm.

    Args:
        dim: width D.
        heads: attention heads per block.
        image_size: side of the input, in pixels.
        distilled: whether the network has a distillation token. Its output is not part of the feature: the original
            toolkit takes the class token alone (timm's pooled feature is the mean of both tokens).
    """

    def __init__(self, *, dim: int, heads: int, image_size: int, distilled: bool) -> None:
        super().__init__()
        self.distilled = distilled
        self.num_prefix_tokens = 1 + distilled
        patch = 16
        self.patch_embed = nn.Sequential(
            OrderedDict(proj=nn.Conv2d(3, dim, patch, stride=patch), flatten=nn.Flatten(2))
        )
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        if distilled:
            self.dist_token = nn.Parameter(torch.zeros(1, 1, dim))
        n_tokens = (image_size // patch) ** 2 + 1 + distilled
        self.pos_embed = nn.Parameter(torch.zeros(1, n_tokens, dim))
        self.blocks = nn.Sequential(
            *(Block(dim, heads, mlp_ratio=4.0, qkv_bias=True, eps=1e-6) for _ in range(12))
        )
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, 1000)
        if distilled:
            self.head_dist = nn.Linear(dim, 1000)

    def tokens(self, x: torch.Tensor) -> torch.Tensor:
        """Return all tokens after the final LayerNorm, ``(B, N, D)``."""
        x = self.patch_embed(x).transpose(1, 2)  # (B, N, D)
        first = [self.cls_token, self.dist_token] if self.distilled else [self.cls_token]
        x = torch.cat([*(token.expand(len(x), -1, -1) for token in first), x], dim=1)
        return self.norm(self.blocks(x + self.pos_embed))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.tokens(x)[:, 0])

    def classify(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits that the authors evaluate: with distillation, the mean of both classifiers."""
        tokens = self.tokens(x)
        if not self.distilled:
            return self.head(tokens[:, 0])
        return (self.head(tokens[:, 0]) + self.head_dist(tokens[:, 1])) / 2
