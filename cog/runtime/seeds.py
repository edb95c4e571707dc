"""One independent random stream per choice, derived from the seed: not from the device or other draws."""

import numpy as np

#: The position in these tuples is part of the derivation: append, never reorder (phases: paper Sec. 4.1).
PURPOSES = ("split", "draw", "init", "order", "cap")
PHASES = ("search", "final")


def numpy_rng(seed: int, purpose: str, *, phase: str = "search", n_shot: int = 0) -> np.random.Generator:
    """Return the numpy generator of one choice."""
    key = (PURPOSES.index(purpose), PHASES.index(phase), n_shot)
    return np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=key))


def torch_seed(seed: int, purpose: str, *, phase: str = "search", n_shot: int = 0) -> int:
    """Return the 63-bit seed of a ``torch.Generator`` on the CPU, whose draws all devices share."""
    key = (PURPOSES.index(purpose), PHASES.index(phase), n_shot)
    state = np.random.SeedSequence(entropy=seed, spawn_key=key).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))
