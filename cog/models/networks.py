"""Networks of the paper; torchvision and timm have most. Parameter names are those of the released files."""

from collections import OrderedDict
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.layers import Conv2dSame, make_divisible
from timm.layers.pool2d_same import MaxPool2dSame
from timm.models.vision_transformer import Mlp, VisionTransformer
from torch import nn
from torchvision.models import get_model

from cog.models.spec import PaperModel


def build(row: PaperModel, *, classifier: bool = False) -> nn.Module:
    """Build a model's network on the meta device, without weights, and without classifier by default."""
    library, _, name = row.network.partition(":")
    with torch.device("meta"):  # no memory and no random values for weights that are loaded later
        if library == "timm":
            network = timm.create_model(name)
        elif library == "torchvision":
            inception = {"init_weights": False, "aux_logits": False, "transform_input": False}
            network = get_model(name, weights=None, **(inception if name == "inception_v3" else {}))
        else:
            network = globals()[name]()
    for head in () if classifier else row.head:
        network.set_submodule(head, nn.Identity())
    return network


def resnet50_same_pool() -> nn.Module:
    """Build a ResNet-50 with TensorFlow's padding in the max-pooling: right and bottom edges alone."""
    network = get_model("resnet50", weights=None)
    network.maxpool = MaxPool2dSame(3, 2)
    return network


def resnet50_same() -> nn.Module:
    """Build :func:`resnet50_same_pool` with this padding in the convolutions with stride 2, as in Haiku."""
    network = resnet50_same_pool()
    for name, child in list(network.named_modules()):
        if isinstance(child, nn.Conv2d) and child.stride == (2, 2) and child.kernel_size > (1, 1):
            size = child.in_channels, child.out_channels, child.kernel_size[0]
            network.set_submodule(name, Conv2dSame(*size, stride=2, bias=False))
    return network


# ---- T2T-ViT_t-14 (Yuan et al. 2021), whose tokens-to-token module uses transformers
# Differences to DeiT: no bias in qkv, LayerNorm eps 1e-5, MLP ratio 3, fixed position embedding.


class TokenTransformer(nn.Module):
    """A block of the tokens-to-token module, with one head, from ``(B, N, in_dim)`` to ``(B, N, dim)``."""

    def __init__(self, in_dim: int, dim: int) -> None:
        super().__init__()
        self.scale = in_dim**-0.5  # of the width of the input, as in the authors' code
        self.norm1 = nn.LayerNorm(in_dim)
        self.attn: Any = nn.Module()
        self.attn.qkv = nn.Linear(in_dim, 3 * dim, bias=False)
        self.attn.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.attn.qkv(self.norm1(x)).chunk(3, dim=-1)
        # The skip connection starts at the values, since the widths differ.
        x = v + self.attn.proj(F.scaled_dot_product_attention(q, k, v, scale=self.scale))
        return x + self.mlp(self.norm2(x))


class TokensToToken(nn.Module):
    """Three overlapping unfoldings (strides 4, 2, 2) with a transformer after the first two."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attention1 = TokenTransformer(3 * 7 * 7, 64)
        self.attention2 = TokenTransformer(64 * 3 * 3, 64)
        self.project = nn.Linear(64 * 3 * 3, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention1(F.unfold(x, 7, stride=4, padding=2).transpose(1, 2))
        x = self.attention2(_unfold_tokens(x))
        return self.project(_unfold_tokens(x))


def _unfold_tokens(x: torch.Tensor) -> torch.Tensor:
    """Lay ``(B, N, C)`` out as a square and unfold it with 3x3 windows of stride 2."""
    b, n, c = x.shape
    side = round(n**0.5)
    return F.unfold(x.transpose(1, 2).reshape(b, c, side, side), 3, stride=2, padding=1).transpose(1, 2)


class T2TViT(VisionTransformer):
    """T2T-ViT: the feature is the class token after the final LayerNorm."""

    def __init__(self) -> None:
        sizes: dict[str, Any] = {"embed_dim": 384, "depth": 14, "num_heads": 6, "mlp_ratio": 3.0}
        super().__init__(**sizes, qkv_bias=False, norm_layer=nn.LayerNorm)
        del self.patch_embed
        self.tokens_to_token = TokensToToken(384)
        # Fixed sinusoids, but stored in the file: a buffer, and not counted as a parameter.
        fixed: Any = self.pos_embed
        del self.pos_embed
        self.register_buffer("pos_embed", fixed.data)

    @property
    def patch_embed(self) -> nn.Module:  # type: ignore[override]
        return self.tokens_to_token


# ---- NAT-M4 (Lu et al. 2021), a MobileNetV3-like network found by neural architecture transfer

# Its published net.config: width in, width out, kernel, stride, width inside (0: no expansion; not always a
# multiple of the width in), squeeze-excite.
_BLOCKS = (
    (24, 24, 3, 1, 0, False),
    (24, 32, 3, 2, 72, False),
    (32, 32, 5, 1, 128, False),
    (32, 32, 3, 1, 96, False),
    (32, 48, 5, 2, 128, True),
    (48, 48, 5, 1, 192, True),
    (48, 48, 3, 1, 288, True),
    (48, 48, 5, 1, 144, True),
    (48, 96, 7, 2, 288, False),
    (96, 96, 5, 1, 576, False),
    (96, 96, 3, 1, 288, False),
    (96, 96, 5, 1, 384, False),
    (96, 136, 3, 1, 576, True),
    (136, 136, 5, 1, 816, True),
    (136, 136, 7, 1, 816, True),
    (136, 136, 3, 1, 544, True),
    (136, 192, 3, 2, 816, True),
    (192, 192, 3, 1, 1152, True),
    (192, 192, 5, 1, 1152, True),
    (192, 192, 3, 1, 576, True),
)


class _SqueezeExcite(nn.Module):
    """Channel gates from the global average, with a hard sigmoid."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inside = make_divisible(width // 4)
        reduce, expand = nn.Conv2d(width, inside, 1), nn.Conv2d(inside, width, 1)
        layers = OrderedDict(reduce=reduce, relu=nn.ReLU(), expand=expand, gate=nn.Hardsigmoid())
        self.fc = nn.Sequential(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.fc(x.mean((2, 3), keepdim=True))


def _layer(
    w_in: int, w_out: int, kernel: int = 1, stride: int = 1, groups: int = 1, **parts: Any
) -> nn.Module:
    """Build a convolution, followed by ``parts``."""
    conv = nn.Conv2d(w_in, w_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, **parts))


class _Block(nn.Module):
    """Expansion (optional), depthwise convolution, linear projection: a row of ``_BLOCKS``."""

    def __init__(self, w_in: int, w_out: int, kernel: int, stride: int, width: int, excites: bool) -> None:
        super().__init__()
        self.skips = w_in == w_out and stride == 1
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if width:
            layers["inverted_bottleneck"] = _layer(w_in, width, bn=nn.BatchNorm2d(width), act=nn.Mish())
        width = width or w_in
        parts = {"bn": nn.BatchNorm2d(width), "act": nn.Mish()}
        parts |= {"se": _SqueezeExcite(width)} if excites else {}
        layers["depth_conv"] = _layer(width, width, kernel, stride, width, **parts)
        layers["point_linear"] = _layer(width, w_out, bn=nn.BatchNorm2d(w_out))
        self.mobile_inverted_conv = nn.Sequential(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.mobile_inverted_conv(x)
        return x + y if self.skips else y


class NatM4(nn.Module):
    """NAT-M4: the feature is the output of the 1x1 layer after the global average, after its mish."""

    def __init__(self) -> None:
        super().__init__()
        self.first_conv = _layer(3, 24, 3, 2, bn=nn.BatchNorm2d(24), act=nn.Mish())
        self.blocks = nn.Sequential(*(_Block(*row) for row in _BLOCKS))
        self.final_expand_layer = _layer(192, 1152, bn=nn.BatchNorm2d(1152), act=nn.Mish())
        self.feature_mix_layer = _layer(1152, 1536, act=nn.Mish())
        self.classifier = nn.Sequential(OrderedDict(linear=nn.Linear(1536, 1000)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.final_expand_layer(self.blocks(self.first_conv(x)))
        x = self.feature_mix_layer(x.mean((2, 3), keepdim=True))
        return self.classifier(x.flatten(1))
