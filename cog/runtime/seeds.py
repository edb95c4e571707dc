"""One independent random stream per choice, all derived from the run's seed.

No stream depends on the number of draws from another one (in the original toolkit the final few-shot draw
depended on the number of trials before it), or on the device. The cap per class (``CLF.MAX_PER_CLASS``)
belongs to the data set and not to a run: its seed is the position of the class.
"""

from __future__ import annotations

import numpy as np
import torch

#: The position in this tuple is part of the derivation: append, never reorder.
PURPOSES = ("split", "draw", "init", "order", "cap")

#: The hyper-parameter search and the final training have separate streams (paper Sec. 4.1).
STAGES = ("search", "final")


def derive(seed: int, purpose: str, *, stage: str = "search", n_shot: int = 0) -> np.random.SeedSequence:
    """Return the seed sequence of one choice, which depends on the arguments alone."""
    key = (PURPOSES.index(purpose), STAGES.index(stage), n_shot)
    return np.random.SeedSequence(entropy=seed, spawn_key=key)


def numpy_rng(seed: int, purpose: str, *, stage: str = "search", n_shot: int = 0) -> np.random.Generator:
    """Return the numpy generator of one choice."""
    return np.random.default_rng(derive(seed, purpose, stage=stage, n_shot=n_shot))


def torch_seed(seed: int, purpose: str, *, stage: str = "search", n_shot: int = 0) -> int:
    """Return the 63-bit seed of a CPU ``torch.Generator`` for one choice."""
    words = derive(seed, purpose, stage=stage, n_shot=n_shot).generate_state(1, np.uint64)
    return int(words[0] >> np.uint64(1))


def cpu_generator(seed: int) -> torch.Generator:
    """Return a seeded CPU generator: drawing on the CPU makes results the same on every device."""
    return torch.Generator(device="cpu").manual_seed(seed)
