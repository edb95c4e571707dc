"""The construction of levels from concepts, image counts and seen concepts; no file is written."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cog.data.level_files import Levels
from cog.errors import CogError
from cog.levels.ranking import level_ranks, rank, shuffled
from cog.levels.selection import ConceptSelection, select
from cog.levels.wordnet import embeddings, similarity
from cog.levels.wordnet.graph import NounGraph
from cog.levels.wordnet.ic import build_taxonomy

#: Description of each value of --similarity.
SIMILARITIES = {
    **similarity.MEASURES,
    "embedding": "cosine of text embeddings of names and glosses (needs --embeddings)",
    "random": "no similarity: a random order (needs a --seed per draw)",
}


@dataclass(frozen=True)
class LevelOptions:
    """Options of the construction.

    Attributes:
        protocol: selection of eligible concepts: ``v2`` or ``v1``.
        similarity: a key of ``SIMILARITIES``.
        ties: ``introsort`` or ``wnid``; see :func:`cog.levels.rank`.
        n_levels: number of levels.
        level_size: concepts per level.
        min_images: concepts with fewer images are not eligible.
        excluded_roots: wnids that are not eligible, nor are their descendants.
        discarded: wnids discarded by hand (protocol v2).
        embeddings: file of word vectors for ``embedding``.
        seed: seed of the order ``random``.
    """

    protocol: str
    similarity: str
    ties: str
    n_levels: int
    level_size: int
    min_images: int
    excluded_roots: tuple[str, ...]
    discarded: Collection[str]
    embeddings: Path | None
    seed: int


@dataclass(frozen=True)
class LevelInputs:
    """The input of a construction; all ids are noun synsets of WordNet.

    Attributes:
        counts: wnid -> number of images; None without counts (only with ``pool``).
        concepts: wnids of all concepts of the data set, which span the taxonomy; None: those of ``counts``.
        seen: wnids that the networks were trained on.
        pool: wnids of the levels to rank again, ascending; None: the eligible concepts are selected.
        scanned: whether ``counts`` are those of all folders of the images, counted by this call.
    """

    counts: dict[str, int] | None
    concepts: list[str] | None
    seen: list[str]
    pool: list[str] | None
    scanned: bool


@dataclass(frozen=True)
class Ranking:
    """Concepts by falling similarity to the seen concepts.

    Attributes:
        wnids: n ids, most similar first.
        similarities: float64 ``(n,)``; None for a random order.
        nearest: most similar seen concept of each concept (the lowest id among equals); None for a random order.
        facts: facts about the similarity for reports.
    """

    wnids: list[str]
    similarities: np.ndarray | None
    nearest: list[str] | None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BuiltLevels:
    """Built levels with the ranking and the selection that they come from.

    Attributes:
        levels: ids by level, level 1 first.
        ranks: ranks of each level in the ranking, from 0.
        ranking: ranking that was cut into levels.
        selection: selection of the eligible concepts; None when these were given.
        seen: ids of the seen concepts in use, ascending.
        seen_outside: ids of seen concepts that are not among the concepts and were left out, ascending.
    """

    levels: Levels
    ranks: list[range]
    ranking: Ranking
    selection: ConceptSelection | None
    seen: list[str]
    seen_outside: list[str]

    @property
    def n_in_gaps(self) -> int:
        """Number of ranked concepts in no level."""
        return len(self.ranking.wnids) - sum(map(len, self.levels))


def build(graph: NounGraph, inputs: LevelInputs, options: LevelOptions) -> BuiltLevels:
    """Build levels.

    Seen concepts that are not among the concepts (such as the one class of IN-1K that IN-21K lacks) are left out. If no
    seen concept is among the concepts, all seen concepts are used and join the taxonomy.

    Raises:
        CogError: too few eligible concepts, or a similarity whose further inputs are not given.
    """
    counts = inputs.counts or {}
    universe = set(counts if inputs.concepts is None else inputs.concepts)
    seen = sorted(universe & set(inputs.seen)) or sorted(set(inputs.seen))
    seen_outside = sorted(set(inputs.seen) - set(seen))
    selection, pool = None, inputs.pool
    if pool is None:
        selection = select(
            graph,
            counts={wnid: counts[wnid] for wnid in sorted(universe)},
            seen=seen,
            protocol=options.protocol,
            min_images=options.min_images,
            excluded_roots=options.excluded_roots,
            discarded=options.discarded,
        )
        pool = selection.eligible
    # Too few concepts are an error before the similarities are computed.
    ranks = level_ranks(len(pool), n_levels=options.n_levels, level_size=options.level_size)
    ranking = _rank(graph, pool, seen=seen, universe=universe, options=options)
    levels = [ranking.wnids[level.start : level.stop] for level in ranks]
    return BuiltLevels(levels, ranks, ranking, selection, seen, seen_outside)


def _rank(
    graph: NounGraph, pool: list[str], *, seen: list[str], universe: set[str], options: LevelOptions
) -> Ranking:
    """Rank the concepts ``pool``, whose ids ascend: the order within ties depends on their order."""
    nodes = graph.indices(pool, "the concepts to rank")
    if options.similarity == "random":
        order = shuffled(len(pool), seed=options.seed)
        return Ranking([pool[i] for i in order], None, None, {"measure": "random", "seed": options.seed})
    seen_nodes = graph.indices(seen, "the seen concepts")
    spanning = sorted({*graph.indices(sorted(universe), "the concepts").tolist(), *seen_nodes.tolist()})
    facts: dict[str, Any] = {
        "measure": options.similarity,
        "definition": SIMILARITIES[options.similarity],
        "ties": options.ties,
    }
    if options.similarity == "embedding":
        assert options.embeddings is not None
        values = _cosines(graph, nodes, seen_nodes, spanning, options.embeddings, facts)
    else:
        if options.similarity in similarity.NEEDS_TAXONOMY and not universe:
            raise CogError(
                f"--similarity {options.similarity} needs all concepts of the data set, which span the "
                f"taxonomy; give "
                "--image_counts, --concepts or --imagenet_images_root"
            )
        taxonomy = build_taxonomy(graph, spanning)
        if options.similarity in similarity.NEEDS_TAXONOMY:
            facts["taxonomy_synsets"] = len(taxonomy.nodes)
            facts["taxonomy_synsets_with_several_parents"] = sum(
                len(graph.parents(node)) > 1 for node in taxonomy.nodes.tolist()
            )
        values = similarity.similarities(taxonomy, nodes, seen_nodes, measure=options.similarity)
    best = values.max(axis=1)
    nearest = values.argmax(axis=1)  # the first of equals; the ids of seen concepts ascend
    facts["distinct_values"] = len(np.unique(best))
    order = rank(best, ties=options.ties)
    return Ranking([pool[i] for i in order], best[order], [seen[nearest[i]] for i in order], facts)


def _cosines(
    graph: NounGraph,
    nodes: np.ndarray,
    seen_nodes: np.ndarray,
    documents: list[int],
    path: Path,
    facts: dict[str, Any],
) -> np.ndarray:
    wanted = embeddings.vocabulary(graph, {*nodes.tolist(), *seen_nodes.tolist()})
    vectors = embeddings.read_vectors(path, wanted)
    learned_on = sorted({*documents, *nodes.tolist()})
    both = np.concatenate([nodes, seen_nodes])
    embedded = embeddings.embed_concepts(graph, both.tolist(), learned_on, vectors)
    facts["embeddings"] = embedded.coverage
    facts["tf_idf_documents"] = len(learned_on)
    return embeddings.cosine_similarities(embedded.vectors[: len(nodes)], embedded.vectors[len(nodes) :])
