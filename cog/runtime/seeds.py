"""One independent random stream per choice, all derived from the run's seed.

No stream depends on the number of draws from another one (in the original toolkit the final few-shot draw
depended on the number of trials before it), or on the device.
"""

from __future__ import annotations

import numpy as np
import torch

#: The position in these tuples is part of the derivation: append, never reorder. The hyper-parameter search and
#: the final training have separate streams (paper Sec. 4.1).
PURPOSES = ("split", "draw", "init", "order", "cap")
STAGES = ("search", "final")


def numpy_rng(seed: int, purpose: str, *, stage: str = "search", n_shot: int = 0) -> np.random.Generator:
    """Return the numpy generator of one choice."""
    return np.random.default_rng(_derive(seed, purpose, stage, n_shot))


def torch_seed(seed: int, purpose: str, *, stage: str = "search", n_shot: int = 0) -> int:
    """Return the 63-bit seed of a CPU ``torch.Generator`` for one choice."""
    return int(_derive(seed, purpose, stage, n_shot).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _derive(seed: int, purpose: str, stage: str, n_shot: int) -> np.random.SeedSequence:
    key = (PURPOSES.index(purpose), STAGES.index(stage), n_shot)
    return np.random.SeedSequence(entropy=seed, spawn_key=key)


def cpu_generator(seed: int) -> torch.Generator:
    """Return a seeded CPU generator: drawing on the CPU makes results the same on every device."""
    return torch.Generator(device="cpu").manual_seed(seed)
