"""ResNet-50 with the published padding, or with that of TensorFlow and Haiku."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


def resnet50(*, convolutions: str = "symmetric", max_pool: str = "symmetric") -> nn.Module:
    """Build torchvision's ResNet-50 (stride in the 3x3 convolutions), with a choice of padding.

    Args:
        convolutions: padding of the convolutions with stride 2: "symmetric" (PyTorch's) or "same"
            (Haiku's: only the right and bottom edges get the odd pixel).
        max_pool: padding of the max-pooling after the stem, "symmetric" or "same".

    Returns:
        The network, ``(B, 3, H, W)`` to ``(B, 1000)``; parameter names are torchvision's.
    """
    from torchvision.models import resnet50 as torchvision_resnet50

    network = torchvision_resnet50(weights=None)
    if convolutions == "same":
        for module in list(network.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Conv2d) and child.stride == (2, 2) and child.kernel_size > (1, 1):
                    setattr(module, name, SameConv2d(child))
    if max_pool == "same":
        network.maxpool = SameMaxPool2d()
    return network


def pad_same(x: torch.Tensor, kernel: int, stride: int, value: float = 0.0) -> torch.Tensor:
    """Pad ``(B, C, H, W)`` as TensorFlow's padding "SAME" does: the odd pixel goes right and bottom."""
    padding: list[int] = []
    for size in (x.shape[-1], x.shape[-2]):
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        padding += [total // 2, total - total // 2]
    return F.pad(x, padding, value=value)


class SameConv2d(nn.Conv2d):
    """A square convolution without bias whose padding depends on the input's size, see :func:`pad_same`."""

    def __init__(self, like: nn.Conv2d) -> None:
        super().__init__(like.in_channels, like.out_channels, like.kernel_size[0], like.stride[0], bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(pad_same(x, self.kernel_size[0], self.stride[0]))


class SameMaxPool2d(nn.Module):
    """Max-pooling of 3x3 pixels with stride 2 and padding "SAME"."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(pad_same(x, 3, 2, value=float("-inf")), 3, 2)
