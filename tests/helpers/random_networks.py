"""Networks of other libraries with random values, which take no time to draw."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from unittest import mock

import torch

#: Random numbers from 0 to 1; their number is a prime, so that no two rows of a matrix are the same.
NUMBERS = torch.rand(65_521, generator=torch.Generator().manual_seed(3))
_begin = itertools.count(step=7_919)


def numbers(shape: torch.Size) -> torch.Tensor:
    """Return numbers from 0 to 1, other ones with each call; drawing millions anew would take long."""
    n = math.prod(shape)
    begin = next(_begin) % len(NUMBERS)
    return NUMBERS.repeat((begin + n) // len(NUMBERS) + 1)[begin : begin + n].view(shape)


@contextlib.contextmanager
def quick_initial_values() -> Iterator[None]:
    """Let networks begin with numbers of ``NUMBERS``."""

    def uniform(tensor, low=0.0, high=1.0, **_):
        return tensor.copy_(numbers(tensor.shape) * (high - low) + low)

    def normal(tensor, mean=0.0, std=1.0, **_):
        return tensor.copy_((numbers(tensor.shape) - 0.5) * (math.sqrt(12) * std) + mean)

    with mock.patch.multiple(torch.Tensor, create=True, uniform_=uniform, normal_=normal):
        yield


def randomize(network: torch.nn.Module) -> torch.nn.Module:
    """Give every parameter and every average random values: many are initialized to zeros, which hide faults.

    It is frozen as backbones are: PyTorch computes attention by other kernels then, whose last bits differ.
    """
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if value.is_floating_point():
                shift = 0.0 if name.endswith("running_var") else 0.5
                value.add_(numbers(value.shape) - shift, alpha=0.05)
    return network.requires_grad_(False).eval()
