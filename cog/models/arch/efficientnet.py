"""EfficientNet-B1 and -B4 as trained by pycls ("dds baselines").

Parameter names are those of the released files, so nothing is renamed. Symmetric padding and BatchNorm
eps 1e-5, unlike the TensorFlow original; the input channels are reversed, see :class:`EfficientNet`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
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


class MBConv(nn.Sequential):
    """Inverted residual: 1x1 expansion, depthwise convolution, squeeze-excite, linear 1x1 projection."""

    def __init__(self, w_in: int, w_out: int, *, expansion: int, kernel: int, stride: int) -> None:
        width = w_in * expansion
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if expansion != 1:
            layers["exp"] = nn.Conv2d(w_in, width, 1, bias=False)
            layers["exp_bn"] = nn.BatchNorm2d(width)
            layers["exp_act"] = nn.SiLU()
        layers["dwise"] = nn.Conv2d(
            width, width, kernel, stride=stride, padding=kernel // 2, groups=width, bias=False
        )
        layers["dwise_bn"] = nn.BatchNorm2d(width)
        layers["dwise_act"] = nn.SiLU()
        layers["se"] = SqueezeExcite(width, int(w_in * 0.25))
        layers["lin_proj"] = nn.Conv2d(width, w_out, 1, bias=False)
        layers["lin_proj_bn"] = nn.BatchNorm2d(w_out)
        super().__init__(layers)
        self.has_skip = stride == 1 and w_in == w_out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return x + y if self.has_skip else y


class EfficientNet(nn.Sequential):
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
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        layers["stem"] = _named(
            conv=nn.Conv2d(3, stem, 3, stride=2, padding=1, bias=False),
            bn=nn.BatchNorm2d(stem),
            act=nn.SiLU(),
        )
        w_in = stem
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
            layers[f"s{stage + 1}"] = nn.Sequential(blocks)
        layers["head"] = _named(
            conv=nn.Conv2d(w_in, head, 1, bias=False), conv_bn=nn.BatchNorm2d(head), act=nn.SiLU(),
            pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(head, 1000),
        )  # fmt: skip
        super().__init__(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.flip(1))


def _named(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))
