"""Random choices of fine-tuning: each is a function of the seed and of its position, of nothing that happened before.

Whoever draws an image's crop, in whatever order and process, draws the same; and nothing about random numbers has to be
saved for going on after an interruption.
"""

from __future__ import annotations

import numpy as np

#: Apart from the purposes of :mod:`cog.runtime.random_streams`. Position in this tuple is part of the derivation:
#: append only.
PURPOSES = ("head", "order", "image", "pass")
_FIRST = 1000


def sequence(seed: int, purpose: str, *position: int) -> np.random.SeedSequence:
    """Return the entropy of one choice.

    Args:
        seed: of the run.
        purpose: one of :data:`PURPOSES`.
        position: whatever tells choices of that purpose apart, such as epoch and row.
    """
    return np.random.SeedSequence(entropy=seed, spawn_key=(_FIRST + PURPOSES.index(purpose), *position))


def generator(seed: int, purpose: str, *position: int) -> np.random.Generator:
    """Return the numpy generator of one choice."""
    return np.random.Generator(np.random.PCG64(sequence(seed, purpose, *position)))


def torch_seed(seed: int, purpose: str, *position: int) -> int:
    """Return the 63-bit seed for torch of one choice."""
    return int(sequence(seed, purpose, *position).generate_state(1, np.uint64)[0] >> np.uint64(1))
