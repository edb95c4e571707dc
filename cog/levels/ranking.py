"""Ranking of concepts by similarity, and levels cut from the ranking."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cog.errors import CogError
from cog.levels.introsort import argsort_introsort

#: Orders of concepts with equal similarity: that of the published levels, or by id.
TIES = ("introsort", "wnid")


def rank(similarities: np.ndarray, *, ties: str) -> np.ndarray:
    """Order concepts by falling similarity to the seen concepts.

    Args:
        similarities: float64 ``(n,)`` of concepts in ascending order of their ids, without NaN.
        ties: ``introsort``, the order of the published levels (see :mod:`cog.levels.introsort`), or ``wnid``:
            ascending ids.

    Returns:
        int64 ``(n,)``: positions, most similar first.
    """
    if ties == "introsort":
        return argsort_introsort(-similarities)
    return np.argsort(-similarities, kind="stable")


@dataclass(frozen=True)
class Ties:
    """The equal similarities among n concepts, which limit the meaning of their order.

    Attributes:
        n: number of concepts, at least 1.
        distinct: number of different similarities.
        largest: number of concepts that share the most frequent similarity (the highest of equally frequent ones).
        value: most frequent similarity.
    """

    n: int
    distinct: int
    largest: int
    value: float

    @classmethod
    def of(cls, similarities: np.ndarray) -> Ties:
        """Count the ties of similarities, float64 ``(n,)``."""
        values, counts = np.unique(similarities, return_counts=True)
        most = len(counts) - 1 - int(counts[::-1].argmax())
        return cls(len(similarities), len(values), int(counts[most]), float(values[most]))

    @property
    def warning(self) -> str:
        """A warning, when at least half of the concepts share one similarity; else ""."""
        if self.n < 2 or 2 * self.largest < self.n:
            return ""
        return (
            f"{self.largest:,} of {self.n:,} concepts share the similarity {self.value:.4f} ({self.distinct:,} "
            "different values): a rank among them means little"
        )


def average_ranks(similarities: np.ndarray) -> np.ndarray:
    """Return ranks by falling similarity, from 0, float64 ``(n,)``; equal similarities get their mean rank."""
    _, codes, counts = np.unique(-similarities, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[codes.ravel()]


def shuffled(n: int, *, seed: int) -> np.ndarray:
    """Return a random order of ``n`` concepts, the same on every machine and numpy version.

    numpy guarantees the raw output of its bit generators, but not that of the methods built on them; hence the
    sort of raw numbers.
    """
    raw = np.random.PCG64(np.random.SeedSequence(seed)).random_raw(n)
    return np.argsort(np.asarray(raw, dtype=np.uint64), kind="stable")


def level_ranks(n_concepts: int, *, n_levels: int, level_size: int) -> list[range]:
    """Return the ranks (from 0) of every level.

    The levels include both ends of the ranking, with equal gaps in between as wide as possible: ``(n_concepts -
    n_levels * level_size) // (n_levels - 1)`` concepts; the remainder of the division widens the last gap. For
    5,146 concepts the first ranks are 0, 1036, 2072, 3108, 4146. A single level has the most similar concepts.

    Raises:
        CogError: there are too few concepts.
    """
    spare = n_concepts - n_levels * level_size
    if spare < 0:
        raise CogError(
            f"{n_concepts:,} eligible concepts are too few for {n_levels} levels of {level_size:,}; "
            "lower --n_levels, --level_size or LEVELS.MIN_IMAGES, or give more concepts"
        )
    step = level_size + spare // max(1, n_levels - 1)
    starts = [number * step for number in range(n_levels)]
    if n_levels > 1:
        starts[-1] = n_concepts - level_size
    return [range(start, start + level_size) for start in starts]
