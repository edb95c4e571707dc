"""EfficientNet-B1 and -B4 as trained by pycls ("dds baselines").

Parameter names are those of the released files, so nothing is renamed. Symmetric padding and BatchNorm
eps 1e-5, unlike the TensorFlow original; the input channels are reversed, see :class:`EfficientNet`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn


class SqueezeExcite(nn.Module):
    """Channel gates from the global average."""

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.f_ex = nn.Sequential(
            nn.Conv2d(width, squeezed, 1), nn.SiLU(), nn.Conv2d(squeezed, width, 1), nn.Sigmoid()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.f_ex(x.mean((2, 3), keepdim=True))


class MBConv(nn.Module):
    """Inverted residual: 1x1 expansion, depthwise convolution, squeeze-excite, linear 1x1 projection."""

    def __init__(self, w_in: int, w_out: int, *, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        width = w_in * expansion
        self.expands = expansion != 1
        if self.expands:
            self.exp = nn.Conv2d(w_in, width, 1, bias=False)
            self.exp_bn = nn.BatchNorm2d(width)
        self.dwise = nn.Conv2d(
            width, width, kernel, stride=stride, padding=kernel // 2, groups=width, bias=False
        )
        self.dwise_bn = nn.BatchNorm2d(width)
        self.se = SqueezeExcite(width, int(w_in * 0.25))
        self.lin_proj = nn.Conv2d(width, w_out, 1, bias=False)
        self.lin_proj_bn = nn.BatchNorm2d(w_out)
        self.has_skip = stride == 1 and w_in == w_out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.exp_bn(self.exp(x))) if self.expands else x
        y = self.se(F.silu(self.dwise_bn(self.dwise(y))))
        y = self.lin_proj_bn(self.lin_proj(y))
        return x + y if self.has_skip else y


class Stem(nn.Module):
    """3x3 convolution with stride 2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.bn(self.conv(x)))


class Head(nn.Module):
    """1x1 convolution, global average, classifier."""

    def __init__(self, w_in: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(w_in, width, 1, bias=False)
        self.conv_bn = nn.BatchNorm2d(width)
        self.fc = nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(F.silu(self.conv_bn(self.conv(x))).mean((2, 3)))


class EfficientNet(nn.Module):
    """EfficientNet, ``(B, 3, H, W)`` to ``(B, 1000)``.

    The input is RGB, normalized with RGB statistics, as for every other model here. The weights were trained on that
    input with its channels reversed (pycls reads images with OpenCV), so ``forward`` reverses the channels.

    Args:
        stem: width of the stem.
        depths: blocks per stage.
        widths: width of each stage.
        head: width before the classifier.
    """

    _STRIDES = (1, 2, 2, 2, 1, 2, 1)
    _KERNELS = (3, 3, 5, 3, 5, 5, 3)
    _EXPANSIONS = (1, 6, 6, 6, 6, 6, 6)

    def __init__(self, *, stem: int, depths: Sequence[int], widths: Sequence[int], head: int) -> None:
        super().__init__()
        self.stem = Stem(stem)
        w_in = stem
        self.n_stages = len(depths)
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            blocks: OrderedDict[str, nn.Module] = OrderedDict()
            for block in range(depth):
                blocks[f"b{block + 1}"] = MBConv(
                    w_in,
                    width,
                    expansion=self._EXPANSIONS[stage],
                    kernel=self._KERNELS[stage],
                    stride=self._STRIDES[stage] if block == 0 else 1,
                )
                w_in = width
            self.add_module(f"s{stage + 1}", nn.Sequential(blocks))
        self.head = Head(w_in, head)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x.flip(1))
        for stage in range(self.n_stages):
            x = self.get_submodule(f"s{stage + 1}")(x)
        return self.head(x)
