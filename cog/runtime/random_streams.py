"""One independent random stream per choice, all derived from the run's seed.

The validation split, the few-shot draw, the initial weights and the order of the samples each have a
stream of their own, so that none depends on how many numbers another one has used (in the original
toolkit the final few-shot draw depended on the number of trials before it), nor on the device. The cap per class
(``CLF.MAX_PER_CLASS``) belongs to the data set and not to a run: there the position of the class takes the place of
the seed.
"""

from __future__ import annotations

import numpy as np
import torch

#: Position in this tuple is part of the derivation: append, never reorder.
PURPOSES = ("split", "draw", "init", "order", "cap")

#: The search for hyper-parameters and the final training make their own choices (paper Sec. 4.1).
STAGES = ("search", "final")


def derive(seed: int, purpose: str, *, stage: str = "search", n_shot: int = 0) -> np.random.SeedSequence:
    """Return the entropy of one choice: a function of its arguments alone."""
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
