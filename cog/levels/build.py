"""The construction of levels: selection, similarity to the seen concepts, ranking, cut. No file is written."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cog.data.level_files import Levels
from cog.errors import CogError
from cog.levels.selection import Selection, select
from cog.levels.similarity import MEASURES, information_content
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


@dataclass(frozen=True)
class Built:
    """Concepts by falling similarity to the seen concepts, cut into levels.

    Attributes:
        wnids: n ids, most similar first.
        similarity: highest similarity to a seen concept, float64 ``(n,)``; None for a random order.
        nearest: most similar seen concept of each concept (the lowest id among equals); None for a random order.
        ranks: ranks of the concepts of each level, from 0.
        selection: selection of the eligible concepts; None when these were given.
        seen: ids of the seen concepts in use, ascending.
        left_out: ids of the seen concepts that are not among the concepts, ascending.
        facts: facts about the similarity, JSON values.
    """

    wnids: list[str]
    similarity: np.ndarray | None
    nearest: list[str] | None
    ranks: list[range]
    selection: Selection | None
    seen: list[str]
    left_out: list[str]
    facts: dict[str, Any]

    @property
    def levels(self) -> Levels:
        """The ids of each level, most similar first."""
        return [self.wnids[ranks.start : ranks.stop] for ranks in self.ranks]

    @property
    def n_in_gaps(self) -> int:
        """Number of ranked concepts in no level."""
        return len(self.wnids) - sum(map(len, self.ranks))


def build(
    graph: NounGraph,
    counts: Mapping[str, int] | None,
    seen: Collection[str],
    *,
    measure: str = "lin",
    vectors: Path | None = None,
    pool: Collection[str] | None = None,
    protocol: str = "v2",
    n_levels: int = 5,
    level_size: int = 1000,
    min_images: int = 782,
    excluded_roots: Sequence[str] = ("n00007846",),
    discarded: Collection[str] = (),
    seed: int = 22,
) -> Built:
    """Build levels.

    Seen concepts that are not among the concepts (such as the one class of IN-1K that IN-21K lacks) are left out. If no
    seen concept is among the concepts, all seen concepts are used and join the taxonomy.

    Args:
        graph: the nouns.
        counts: number of images of all concepts of the data set, which span the taxonomy, by wnid; None only with
            ``pool`` and a measure that needs no taxonomy.
        seen: wnids that the networks were trained on.
        measure: a key of ``MEASURES``, or ``random``; without effect with ``vectors``.
        vectors: text file of word vectors that replace the graph.
        pool: wnids to rank; None: the eligible concepts are selected, see :func:`cog.levels.selection.select` for
            ``protocol``, ``min_images``, ``excluded_roots`` and ``discarded``.
        n_levels: number of levels.
        level_size: concepts per level.
        seed: seed of the order ``random``.

    Raises:
        CogError: unknown ids, too few eligible concepts, or missing input of the measure.
    """
    concepts = set(counts or ())
    in_use = sorted(concepts & set(seen)) or sorted(set(seen))
    if not in_use:
        raise CogError("there are no seen concepts; --seen_wnids lists no ids")
    left_out = sorted(set(seen) - set(in_use))
    selection = None
    if pool is None:
        selection = select(
            graph,
            counts or {},
            in_use,
            protocol=protocol,
            min_images=min_images,
            excluded_roots=excluded_roots,
            discarded=discarded,
        )
        pool = selection.eligible
    pool = sorted(pool)  # the order of equal similarities depends on the order here
    ranks = cut(len(pool), n_levels=n_levels, level_size=level_size)
    rows = graph.indices(pool, "the concepts to rank")
    if measure == RANDOM and vectors is None:
        wnids = [pool[i] for i in shuffled(len(pool), seed=seed)]
        return Built(wnids, None, None, ranks, selection, in_use, left_out, {"measure": RANDOM, "seed": seed})
    columns = graph.indices(in_use, "the seen concepts")
    values, facts = _similarities(graph, rows, columns, concepts, measure=measure, vectors=vectors)
    best = values.max(axis=1)
    nearest = values.argmax(axis=1)  # the first of equals: the ids of seen concepts ascend
    facts |= {
        "distinct_values": len(np.unique(best)),
        "ties": "as published" if protocol == "v2" else "by id",
    }
    order = rank(best, as_published=protocol == "v2")
    return Built(
        [pool[i] for i in order],
        best[order],
        [in_use[nearest[i]] for i in order],
        ranks,
        selection,
        in_use,
        left_out,
        facts,
    )


def _similarities(
    graph: NounGraph,
    rows: np.ndarray,
    columns: np.ndarray,
    concepts: Collection[str],
    *,
    measure: str,
    vectors: Path | None,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the similarity of every concept to every seen concept, float64 ``(N, M)``, and facts about it."""
    spanning = {*graph.indices(concepts, "the concepts").tolist(), *columns.tolist()}
    if vectors is not None:
        from cog.levels.vectors import cosines

        values, missing = cosines(graph, rows, columns, spanning, vectors)
        definition = "cosine of word vectors of names and glosses"
        return values, {"measure": "word vectors", "definition": definition, **missing}
    information = information_content(graph, spanning)
    if measure != "wup":  # which needs no taxonomy
        if not concepts:
            raise CogError(
                f"--similarity {measure} needs all concepts of the data set, which span the taxonomy; give "
                "--image_counts or --imagenet_images_root"
            )
        outside = rows[np.isnan(information[rows])]
        if len(outside):
            raise CogError(
                f"the concept {graph.wnids[outside[0]]} is outside the taxonomy that the concepts span; add a row to "
                "--image_counts"
            )
    facts: dict[str, Any] = {"measure": measure, "definition": MEASURES[measure].__doc__}
    facts["taxonomy_synsets"] = int(np.isfinite(information).sum())
    return MEASURES[measure](graph, information, rows, columns), facts


def rank(similarity: np.ndarray, *, as_published: bool) -> np.ndarray:
    """Return the positions of concepts by falling similarity, int64 ``(n,)``.

    Args:
        similarity: float64 ``(n,)``, without NaN.
        as_published: whether equal similarities have the order of the published levels, which is that of numpy's
            introsort of 2020; else their positions ascend.
    """
    if as_published:
        # numpy sorts numbers by algorithms that depend on the CPU, but still sorts objects by that introsort. It does
        # not promise this: :func:`equals_published` and the tests would notice a change.
        return np.argsort((-similarity).astype(object), kind="quicksort")
    return np.argsort(-similarity, kind="stable")


def shuffled(n: int, *, seed: int) -> np.ndarray:
    """Return a random order of ``n`` concepts, the same on every machine and numpy version.

    numpy guarantees the raw output of its bit generators, but not that of the methods built on them.
    """
    raw = np.random.PCG64(np.random.SeedSequence(seed)).random_raw(n)
    return np.argsort(np.asarray(raw, dtype=np.uint64), kind="stable")


def cut(n_concepts: int, *, n_levels: int, level_size: int) -> list[range]:
    """Return the ranks (from 0) of every level.

    The levels include both ends of the ranking, with equal gaps in between as wide as possible; the remainder of the
    division widens the last gap. For 5,146 concepts the first ranks are 0, 1036, 2072, 3108, 4146. A single level has
    the most similar concepts.

    Raises:
        CogError: there are too few concepts.
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
