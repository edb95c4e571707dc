"""T2T-ViT_t-14 (Yuan et al. 2021), whose tokens-to-token module uses transformers.

Parameter names are those of the released file. The code follows the paper and the authors' description of
the file; differences to DeiT: no bias in qkv, LayerNorm eps 1e-5, MLP ratio 3, fixed position embedding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from cog.models.arch.vit import Block, Mlp


class TokenAttention(nn.Module):
    """Single-head attention from ``(B, N, in_dim)`` to ``(B, N, dim)``.

    The skip connection starts at the values, since the widths differ, and the logits are scaled by the
    INPUT width ** -0.5, as in the authors' code.
    """

    def __init__(self, in_dim: int, dim: int) -> None:
        super().__init__()
        self.scale = in_dim**-0.5
        self.qkv = nn.Linear(in_dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return v + self.proj(F.scaled_dot_product_attention(q, k, v, scale=self.scale))


class TokenTransformer(nn.Module):
    """One block of the tokens-to-token module."""

    def __init__(self, in_dim: int, dim: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(in_dim)
        self.attn = TokenAttention(in_dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TokensToToken(nn.Module):
    """Three overlapping unfoldings (strides 4, 2, 2) with a transformer after the first two."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        token_dim = 64
        self.attention1 = TokenTransformer(3 * 7 * 7, token_dim)
        self.attention2 = TokenTransformer(token_dim * 3 * 3, token_dim)
        self.project = nn.Linear(token_dim * 3 * 3, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention1(F.unfold(x, 7, stride=4, padding=2).transpose(1, 2))
        x = self.attention2(_unfold_tokens(x))
        return self.project(_unfold_tokens(x))


def _unfold_tokens(x: torch.Tensor) -> torch.Tensor:
    """Lay ``(B, N, C)`` out as a square and unfold it with 3x3 windows of stride 2."""
    b, n, c = x.shape
    side = round(n**0.5)
    return F.unfold(x.transpose(1, 2).reshape(b, c, side, side), 3, stride=2, padding=1).transpose(1, 2)


class T2TViT(nn.Module):
    """T2T-ViT: the feature is the class token after the final LayerNorm."""

    pos_embed: torch.Tensor
    num_prefix_tokens = 1

    def __init__(self) -> None:
        super().__init__()
        dim = 384
        self.tokens_to_token = TokensToToken(dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        # Fixed sinusoids, but stored in the file: a buffer, and not counted as a parameter.
        self.register_buffer("pos_embed", torch.zeros(1, (224 // 16) ** 2 + 1, dim))
        self.blocks = nn.Sequential(
            *(Block(dim, heads=6, mlp_ratio=3.0, qkv_bias=False, eps=1e-5) for _ in range(14))
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 1000)

    def tokens(self, x: torch.Tensor) -> torch.Tensor:
        """Return all tokens after the final LayerNorm, ``(B, N, D)``."""
        x = self.tokens_to_token(x)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1)
        return self.norm(self.blocks(x + self.pos_embed))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.tokens(x)[:, 0])
