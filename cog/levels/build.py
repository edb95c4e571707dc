"""The construction of levels: selection, similarity to the seen concepts, ranking, cut. No file is written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cog.data.level_files import Levels
from cog.errors import CogError
from cog.levels.similarity import MEASURES, information_content
from cog.levels.vectors import cosines
from cog.levels.wordnet import NounGraph

#: Order of concepts without any similarity, as a control.
RANDOM = "random"

#: SHA-256 (its first 16 digits) of the sorted ids of each published level, separated by blanks.
PUBLISHED = (
    "f5456283223c84d4",
    "17678e28d53d7835",
    "12475eaf7d5ce327",
    "785513da66e0851f",
    "3d24c53be2c10257",
)


@dataclass(frozen=True, eq=False)
class Built:
    """Concepts by falling similarity to the seen concepts, cut into levels.

    Attributes:
        table: the columns of levels.csv, a row per ranked concept: ``rank`` from 0; ``wnid``; ``names``; highest
            ``similarity`` to a seen concept, float64; ``nearest_seen``, the most similar one (the lowest id among
            equals), and its names; ``level``, ``L1`` ... or ``gap``; ``images``; ``average_rank``, the mean rank of all
            concepts with the same similarity, as text. What is not known is empty.
        levels: ids of each level, most similar first.
        facts: facts about the similarity, JSON values.
    """

    table: pd.DataFrame
    levels: Levels
    facts: dict[str, Any]


def build(
    graph: NounGraph,
    pool: Iterable[str],
    concepts: Mapping[str, int],
    seen: Sequence[str],
    *,
    measure: str = "lin",
    as_published: bool = True,
    n_levels: int = 5,
    level_size: int = 1000,
    seed: int = 22,
) -> Built:
    """Build levels.

    Args:
        graph: the nouns.
        pool: wnids to rank.
        concepts: number of images of all concepts of the data set, by wnid; with the seen ones they span the taxonomy.
        seen: wnids that the networks were trained on, ascending.
        measure: a key of ``MEASURES``, ``random`` (with its ``seed``), or the path of a text file of word vectors.
        as_published: order of equal similarities, see :func:`rank`.

    Raises:
        CogError: unknown ids, too few concepts to rank, or concepts outside the taxonomy.
    """
    pool = sorted(pool)  # the order of equal similarities depends on the order here
    ranks = cut(len(pool), n_levels=n_levels, level_size=level_size)
    rows = graph.indices(pool, "the concepts to rank")
    if measure == RANDOM:
        order, best, nearest = shuffled(len(pool), seed=seed), np.full(len(pool), np.nan), [""] * len(pool)
        facts: dict[str, Any] = {"measure": RANDOM, "seed": seed}
    else:
        values, facts = _similarities(
            graph, rows, graph.indices(seen, "the seen concepts"), concepts, measure
        )
        best = values.max(axis=1)
        order = rank(best, as_published=as_published)
        nearest = [seen[column] for column in values.argmax(axis=1)]  # the first of equals: ids ascend
        facts |= {
            "distinct_values": len(np.unique(best)),
            "ties": "as published" if as_published else "by id",
        }
    ids, nearest = [pool[i] for i in order], [nearest[i] for i in order]
    level_of = np.full(len(pool), "gap", dtype=object)
    for number, level in enumerate(ranks, start=1):
        level_of[level] = f"L{number}"
    table = pd.DataFrame(
        {
            "rank": range(len(pool)),
            "wnid": ids,
            "names": map(graph.words, ids),
            "similarity": best[order],
            "nearest_seen": nearest,
            "nearest_seen_names": [graph.words(wnid) if wnid else "" for wnid in nearest],
            "level": level_of,
            "images": pd.array([concepts.get(wnid) for wnid in ids], dtype="Int64"),
        }
    )
    averages = table["similarity"].rank(ascending=False) - 1
    table["average_rank"] = averages.map("{:g}".format, na_action="ignore")
    return Built(table, [ids[level.start : level.stop] for level in ranks], facts)


def _similarities(
    graph: NounGraph, rows: np.ndarray, columns: np.ndarray, concepts: Iterable[str], measure: str
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the similarity of every concept to every seen concept, float64 ``(N, M)``, and facts about it."""
    spanning = {*graph.indices(concepts, "the concepts").tolist(), *columns.tolist()}
    if measure not in MEASURES:
        values, missing = cosines(graph, rows, columns, spanning, Path(measure))
        definition = "cosine of word vectors of names and glosses"
        return values, {"measure": "word vectors", "definition": definition, **missing}
    information = information_content(graph, spanning)
    outside = rows[np.isnan(information[rows])]
    if measure != "wup" and len(outside):  # which needs no taxonomy
        raise CogError(
            f"--similarity {measure} needs all concepts of the data set, which span the taxonomy, and the concept "
            f"{graph.wnids[outside[0]]} is outside; give --image_counts with it, or --imagenet_images_root"
        )
    facts: dict[str, Any] = {"measure": measure, "definition": MEASURES[measure].__doc__}
    facts["taxonomy_synsets"] = int(np.isfinite(information).sum())
    return MEASURES[measure](graph, information, rows, columns), facts


def rank(similarity: np.ndarray, *, as_published: bool) -> np.ndarray:
    """Return the positions of similarities, float64 ``(n,)`` without NaN, in falling order, int64 ``(n,)``.

    Equal ones have the order of the published levels, which is that of numpy's introsort of 2020, else that of their
    positions.
    """
    if as_published:
        # numpy sorts numbers by algorithms that depend on the CPU, but still sorts objects by that introsort. It does
        # not promise this: :func:`equals_published` and the tests would notice a change.
        return np.argsort((-similarity).astype(object), kind="quicksort")
    return np.argsort(-similarity, kind="stable")


def shuffled(n: int, *, seed: int) -> np.ndarray:
    """Return a random order of ``n`` concepts, int64 ``(n,)``, the same on every machine and numpy version.

    numpy guarantees the raw output of its bit generators, but not that of the methods built on them.
    """
    raw = np.random.PCG64(np.random.SeedSequence(seed)).random_raw(n)
    return np.argsort(np.asarray(raw, dtype=np.uint64), kind="stable")


def cut(n_concepts: int, *, n_levels: int, level_size: int) -> list[range]:
    """Return the ranks (from 0) of every level.

    The levels include both ends of the ranking, with equal gaps in between as wide as possible; the remainder of the
    division widens the last gap. For 5,146 concepts the first ranks are 0, 1036, 2072, 3108, 4146. A single level has
    the most similar concepts. Too few concepts are a CogError.
    """
    spare = n_concepts - n_levels * level_size
    if spare < 0:
        raise CogError(
            f"{n_concepts:,} eligible concepts are too few for {n_levels} levels of {level_size:,}; lower --n_levels, "
            "--level_size or LEVELS.MIN_IMAGES, or give more concepts"
        )
    step = level_size + spare // max(1, n_levels - 1)
    starts = [number * step for number in range(n_levels)]
    if n_levels > 1:
        starts[-1] = n_concepts - level_size
    return [range(start, start + level_size) for start in starts]


def equals_published(levels: Levels) -> bool:
    """Return whether levels have the concepts of the published ones, whatever their order within a level."""
    digests = (hashlib.sha256(" ".join(sorted(level)).encode()).hexdigest()[:16] for level in levels)
    return tuple(digests) == PUBLISHED
