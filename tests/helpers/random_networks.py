"""Networks of other libraries with random values that are quick to generate."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from unittest import mock

import torch

#: Random numbers from 0 to 1. Their count is prime, so that repetition makes no two rows of a matrix equal.
NUMBERS = torch.rand(65_521, generator=torch.Generator().manual_seed(3))
_begin = itertools.count(step=7_919)


def numbers(shape: torch.Size) -> torch.Tensor:
    """Return numbers from 0 to 1, from elsewhere in ``NUMBERS`` in each call; drawing is slow."""
    n = math.prod(shape)
    begin = next(_begin) % len(NUMBERS)
    return NUMBERS.repeat((begin + n) // len(NUMBERS) + 1)[begin : begin + n].view(shape)


@contextlib.contextmanager
def quick_initial_values() -> Iterator[None]:
    """Initialize networks with numbers of ``NUMBERS``."""

    def uniform(tensor, low=0.0, high=1.0, **_):
        return tensor.copy_(numbers(tensor.shape) * (high - low) + low)

    def normal(tensor, mean=0.0, std=1.0, **_):
        return tensor.copy_((numbers(tensor.shape) - 0.5) * (math.sqrt(12) * std) + mean)

    with mock.patch.multiple(torch.Tensor, create=True, uniform_=uniform, normal_=normal):
        yield


def randomize(network: torch.nn.Module) -> torch.nn.Module:
    """Add random values to every parameter and average, many of which are zeros, and freeze the network.

    PyTorch uses other kernels for the attention of frozen networks, whose last bits differ.
    """
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if value.is_floating_point():
                shift = 0.0 if name.endswith("running_var") else 0.5
                value.add_(numbers(value.shape) - shift, alpha=0.05)
    return network.requires_grad_(False).eval()
