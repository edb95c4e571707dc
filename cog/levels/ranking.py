"""Ranking of concepts by similarity, and levels cut from the ranking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cog.data.level_files import Levels
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


def level_starts(n_concepts: int, *, n_levels: int, level_size: int) -> list[int]:
    """Return the first rank (from 0) of every level.

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
            f"lower --n_levels, "
            "--level_size or LEVELS.MIN_IMAGES, or give more concepts"
        )
    if n_levels == 1:
        return [0]
    step = level_size + spare // (n_levels - 1)
    return [*(number * step for number in range(n_levels - 1)), n_concepts - level_size]


def cut(ranked: Sequence[str], *, n_levels: int, level_size: int) -> tuple[Levels, list[int | None]]:
    """Cut a ranking into levels.

    Args:
        ranked: wnids, most similar to the seen concepts first.
        n_levels: number of levels.
        level_size: concepts per level.

    Returns:
        The levels, each in the order of the ranking, and the level of each rank (from 1), None in a gap.

    Raises:
        CogError: see :func:`level_starts`.
    """
    starts = level_starts(len(ranked), n_levels=n_levels, level_size=level_size)
    level_of: list[int | None] = [None] * len(ranked)
    for number, start in enumerate(starts, start=1):
        level_of[start : start + level_size] = [number] * level_size
    return [list(ranked[start : start + level_size]) for start in starts], level_of
