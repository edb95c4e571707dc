"""Networks of other libraries with random values that are quick to generate."""

import itertools
import math

import torch

#: Random numbers from 0 to 1. Their count is prime, so that repetition makes no two rows of a matrix equal.
NUMBERS = torch.rand(65_521, generator=torch.Generator().manual_seed(3))
_begin = itertools.count(step=7_919)


def randomize(network: torch.nn.Module) -> torch.nn.Module:
    """Add random values to every parameter and average, many of which are zeros, and freeze the network.

    PyTorch uses other kernels for the attention of frozen networks, whose last bits differ.
    """
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if value.is_floating_point():
                n, begin = math.prod(value.shape), next(_begin) % len(NUMBERS)
                numbers = NUMBERS.repeat((begin + n) // len(NUMBERS) + 1)[begin : begin + n].view(value.shape)
                value.add_(numbers - (0.0 if name.endswith("running_var") else 0.5), alpha=0.05)
    return network.requires_grad_(False).eval()
