"""The construction of levels: similarity to the seen concepts, ranking, cut. No file is written."""

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
from cog.levels.vectors import concept_vectors
from cog.levels.wordnet import NounGraph

#: Order of concepts without any similarity, as a control.
RANDOM = "random"

#: SHA-256 (its first 16 digits) of the sorted ids of each published level, separated by blanks.
PUBLISHED = "f5456283223c84d4 17678e28d53d7835 12475eaf7d5ce327 785513da66e0851f 3d24c53be2c10257"


@dataclass(frozen=True, eq=False)
class Built:
    """Concepts by falling similarity to the seen concepts, cut into levels."""

    table: pd.DataFrame  # the columns of levels.csv; nearest_seen is the lowest id of equals
    levels: Levels  # ids of each level, most similar first
    facts: dict[str, Any]  # about the similarity, JSON values


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
    """Build levels of the concepts in ``pool``, by wnid; unknown ids and too few concepts are a CogError.

    ``concepts`` are the numbers of images of all concepts of the data set, which span the taxonomy with the
    ``seen`` ones, ascending. ``measure`` is a key of ``MEASURES``, ``random`` (of the ``seed``), or a file of
    word vectors. Equal similarities have the order of the published levels, or that of their ids.
    """
    pool = sorted(pool)  # the order of equal similarities depends on the order here
    ranks = cut(len(pool), n_levels=n_levels, level_size=level_size)
    rows, columns = graph.nodes(pool), graph.nodes(seen)
    if measure == RANDOM:
        # numpy guarantees the raw output of its bit generators, but not that of the methods built on them.
        raw = np.random.PCG64(np.random.SeedSequence(seed)).random_raw(len(pool))
        order = np.argsort(np.asarray(raw, dtype=np.uint64), kind="stable")
        best, nearest = np.full(len(pool), np.nan), [""] * len(pool)
        facts: dict[str, Any] = {"measure": RANDOM, "seed": seed}
    else:
        values, facts = _similarities(graph, rows, columns, concepts, measure)
        best = values.max(axis=1)
        nearest = [seen[column] for column in values.argmax(axis=1)]  # the first of equals: ids ascend
        facts["distinct_values"] = len(np.unique(best))
        facts["ties"] = "as published" if as_published else "by id"
        order = np.argsort(-best, kind="stable")
        if as_published:
            # The order of numpy's introsort of 2020, which still sorts objects; that of numbers depends on
            # the CPU. Not promised: :func:`equals_published` and the tests would notice a change.
            order = np.argsort((-best).astype(object), kind="quicksort")
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
            "nearest_seen_names": map(graph.words, nearest),
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
    """Return the similarity of every concept to every seen one, float64 ``(N, M)``, and facts about it."""
    spanning = {*graph.nodes(concepts).tolist(), *columns.tolist()}
    if measure not in MEASURES:
        x, missing = concept_vectors(graph, [*rows.tolist(), *columns.tolist()], spanning, Path(measure))
        norms = np.linalg.norm(x, axis=1, keepdims=True)
        x = x / np.where(norms == 0, 1.0, norms)
        facts = {"measure": "word vectors", "definition": "cosine of word vectors of names and glosses"}
        return x[: len(rows)] @ x[len(rows) :].T, facts | missing
    ic = information_content(graph, spanning)
    values = MEASURES[measure](graph, ic, rows, columns)
    if len(outside := rows[np.isnan(values).any(axis=1)]):  # of a measure that needs information contents
        raise CogError(
            f"--similarity {measure} needs all concepts of the data set, and {graph.wnids[outside[0]]} is "
            "outside; give --image_counts with it, or --imagenet_images_root"
        )
    facts = {"measure": measure, "definition": MEASURES[measure].__doc__ or ""}
    n_synsets = int(np.isfinite(ic).sum())
    return values, {**facts, "taxonomy_synsets": n_synsets}


def cut(n_concepts: int, *, n_levels: int, level_size: int) -> list[range]:
    """Return the ranks (from 0) of every level: both ends of the ranking, gaps equal and as wide as possible.

    The remainder widens the last gap: 5,146 concepts give 0, 1036, 2072, 3108, 4146. A single level has the
    most similar concepts. Too few concepts are a CogError.
    """
    spare = n_concepts - n_levels * level_size
    if spare < 0:
        raise CogError(
            f"{n_concepts:,} eligible concepts are too few for {n_levels} levels of {level_size:,}; lower "
            "--n_levels, --level_size or LEVELS.MIN_IMAGES, or give more concepts"
        )
    step = level_size + spare // max(1, n_levels - 1)
    starts = [number * step for number in range(n_levels)]
    if n_levels > 1:
        starts[-1] = n_concepts - level_size
    return [range(start, start + level_size) for start in starts]


def equals_published(levels: Levels) -> bool:
    """Return whether levels have the concepts of the published ones, whatever their order within a level."""
    digests = (hashlib.sha256(" ".join(sorted(level)).encode()).hexdigest()[:16] for level in levels)
    return " ".join(digests) == PUBLISHED
