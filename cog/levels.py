"""Concept generalization levels: the levels file, and cutting a ranking into levels."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from cog import files, safe_load
from cog.errors import CogError
from cog.introsort import argsort_introsort
from cog.wordnet.graph import is_wnid

Levels = list[list[str]]

#: How concepts of equal similarity are ordered: as in the published levels, or by id.
TIES = ("introsort", "wnid")


def read_levels(path: str | os.PathLike[str]) -> Levels:
    """Read a levels file: a pickle of a list of lists of wnids, level L1 first.

    Any number of levels of any sizes is accepted. The same concept may stand in two levels (random
    draws overlap), but not twice in one.

    Raises:
        CogError: when the file is missing, unsafe, or holds anything else.
    """
    data = safe_load.load_pickle(path)
    if not isinstance(data, list | tuple) or not data:
        raise CogError(
            f"{path} holds {_shown(data)}, expected a list of levels, each a list of ids such as 'n02084071'"
        )
    return check_levels([_to_list(level) for level in data], source=str(path))


def write_levels(path: str | os.PathLike[str], levels: Sequence[Sequence[str]]) -> None:
    """Write ``levels`` atomically as a pickle of a plain list of lists of strings.

    Raises:
        CogError: when ``levels`` are not valid, or the file cannot be written.
    """
    files.write_pickle(
        path, check_levels([[str(wnid) for wnid in level] for level in levels], source="the levels")
    )


def check_levels(levels: Sequence[object], *, source: str) -> Levels:
    """Return ``levels`` when every one is a list of different noun ids.

    Raises:
        CogError: naming ``source``, the level and the entry.
    """
    checked: Levels = []
    for number, level in enumerate(levels, start=1):
        if not isinstance(level, list) or not level:
            raise CogError(f"{source}: level {number} is {_shown(level)}, expected a non-empty list of ids")
        for wnid in level:
            if not isinstance(wnid, str) or not is_wnid(wnid):
                raise CogError(
                    f"{source}: level {number} contains {wnid!r}, expected ids such as 'n02084071'"
                )
        if len(set(level)) < len(level):
            twice = next(wnid for position, wnid in enumerate(level) if wnid in level[:position])
            raise CogError(f"{source}: level {number} lists {twice} twice, expected every concept once")
        checked.append(level)
    return checked


def _to_list(level: object) -> object:
    """Accept tuples and numpy arrays of ids for lists."""
    if hasattr(level, "tolist"):
        level = level.tolist()
    return list(level) if isinstance(level, list | tuple) else level


def _shown(value: object) -> str:
    if isinstance(value, list | tuple | dict) and not value:
        return f"an empty {type(value).__name__}"
    return f"a {type(value).__name__}"


def rank(similarities: np.ndarray, *, ties: str) -> np.ndarray:
    """Order concepts by falling similarity to the seen concepts.

    Args:
        similarities: float64 ``(n,)`` of concepts in ascending order of their ids, without NaN.
        ties: ``introsort``, the order of the published levels (see :mod:`cog.introsort`), or ``wnid``:
            ascending ids.

    Returns:
        int64 ``(n,)``: positions, most similar first.

    Raises:
        CogError: on an unknown ``ties``.
    """
    if ties not in TIES:
        raise CogError(f"{ties!r} is not an order of ties, expected one of {', '.join(TIES)}")
    if ties == "introsort":
        return argsort_introsort(-similarities)
    return np.argsort(-similarities, kind="stable")


def shuffled(n: int, *, seed: int) -> np.ndarray:
    """Return a random order of ``n`` concepts, the same on every machine and numpy version.

    numpy promises the raw output of its bit generators, not the methods built on it; hence the sort of
    raw numbers.
    """
    raw = np.random.PCG64(np.random.SeedSequence(seed)).random_raw(n)
    return np.argsort(np.asarray(raw, dtype=np.uint64), kind="stable")


def level_starts(n_concepts: int, *, n_levels: int, level_size: int) -> list[int]:
    """Return the first rank (from 0) of every level.

    Both ends of the ranking are used, with equal gaps in between as wide as they can be: ``(n_concepts -
    n_levels * level_size) // (n_levels - 1)`` concepts; what the division leaves widens the last gap. For
    5,146 concepts that is 0, 1036, 2072, 3108, 4146. A single level takes the most similar concepts.

    Raises:
        CogError: when there are too few concepts.
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
        The levels, each in the order of the ranking, and per rank the level (from 1), None in a gap.

    Raises:
        CogError: see :func:`level_starts`.
    """
    starts = level_starts(len(ranked), n_levels=n_levels, level_size=level_size)
    level_of: list[int | None] = [None] * len(ranked)
    for number, start in enumerate(starts, start=1):
        level_of[start : start + level_size] = [number] * level_size
    return [list(ranked[start : start + level_size]) for start in starts], level_of
