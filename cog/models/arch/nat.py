"""NAT-M4 (Lu et al. 2021), a MobileNetV3-like network found by neural architecture transfer.

Parameter names are those of the released file; the table below is the published ``net.config`` of M4.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn

# Width in, width out, kernel, stride, width inside (0: no expansion), squeeze-excite, skip connection.
# The inner width is taken from the config: it is not always a multiple of the input width.
_BLOCKS = (
    (24, 24, 3, 1, 0, False, True),
    (24, 32, 3, 2, 72, False, False),
    (32, 32, 5, 1, 128, False, True),
    (32, 32, 3, 1, 96, False, True),
    (32, 48, 5, 2, 128, True, False),
    (48, 48, 5, 1, 192, True, True),
    (48, 48, 3, 1, 288, True, True),
    (48, 48, 5, 1, 144, True, True),
    (48, 96, 7, 2, 288, False, False),
    (96, 96, 5, 1, 576, False, True),
    (96, 96, 3, 1, 288, False, True),
    (96, 96, 5, 1, 384, False, True),
    (96, 136, 3, 1, 576, True, False),
    (136, 136, 5, 1, 816, True, True),
    (136, 136, 7, 1, 816, True, True),
    (136, 136, 3, 1, 544, True, True),
    (136, 192, 3, 2, 816, True, False),
    (192, 192, 3, 1, 1152, True, True),
    (192, 192, 5, 1, 1152, True, True),
    (192, 192, 3, 1, 576, True, True),
)


def _squeezed_width(width: int) -> int:
    """Return a quarter of ``width``, rounded to a multiple of 8 but never below 90 % of the quarter."""
    quarter = width // 4
    rounded = max(8, (quarter + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * quarter else rounded


class _SqueezeExcite(nn.Module):
    """Channel gates from the global average, with a hard sigmoid."""

    def __init__(self, width: int) -> None:
        super().__init__()
        squeezed = _squeezed_width(width)
        self.fc = nn.Sequential(
            OrderedDict(
                reduce=nn.Conv2d(width, squeezed, 1),
                relu=nn.ReLU(),
                expand=nn.Conv2d(squeezed, width, 1),
                gate=nn.Hardsigmoid(),
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.fc(x.mean((2, 3), keepdim=True))


class ConvLayer(nn.Module):
    """Convolution, BatchNorm, mish, squeeze-excite; all but the convolution optional."""

    def __init__(
        self,
        w_in: int,
        w_out: int,
        kernel: int = 1,
        stride: int = 1,
        *,
        groups: int = 1,
        norm: bool = True,
        activation: bool = True,
        squeeze_excite: bool = False,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.conv = nn.Conv2d(
            w_in, w_out, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False
        )
        self.bn = nn.BatchNorm2d(w_out) if norm else nn.Identity()
        self.se = _SqueezeExcite(w_out) if squeeze_excite else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.bn(self.conv(x))
        return self.se(F.mish(x) if self.activation else x)


class _Block(nn.Module):
    """Expansion (optional), depthwise convolution with squeeze-excite, linear projection: a row of ``_BLOCKS``."""

    def __init__(
        self,
        w_in: int,
        w_out: int,
        kernel: int,
        stride: int,
        width: int,
        squeeze_excite: bool,
        has_skip: bool,
    ) -> None:
        super().__init__()
        self.has_skip = has_skip
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if width:
            layers["inverted_bottleneck"] = ConvLayer(w_in, width)
        width = width or w_in
        layers["depth_conv"] = ConvLayer(
            width, width, kernel, stride, groups=width, squeeze_excite=squeeze_excite
        )
        layers["point_linear"] = ConvLayer(width, w_out, activation=False)
        self.mobile_inverted_conv = nn.Sequential(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.mobile_inverted_conv(x)
        return x + y if self.has_skip else y


class NATM4(nn.Module):
    """NAT-M4: the feature is the output of the 1x1 layer after the global average, after its mish."""

    def __init__(self) -> None:
        super().__init__()
        self.first_conv = ConvLayer(3, 24, 3, 2)
        self.blocks = nn.Sequential(*(_Block(*row) for row in _BLOCKS))
        self.final_expand_layer = ConvLayer(192, 1152)
        self.feature_mix_layer = ConvLayer(1152, 1536, norm=False)
        self.classifier = nn.Sequential(OrderedDict(linear=nn.Linear(1536, 1000)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.final_expand_layer(self.blocks(self.first_conv(x)))
        x = self.feature_mix_layer(x.mean((2, 3), keepdim=True))
        return self.classifier(x.flatten(1))
