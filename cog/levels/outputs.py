"""The tables and reports that explain built levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cog.levels.builder import BuiltLevels
from cog.levels.ranking import Ties, average_ranks
from cog.levels.wordnet.graph import NounGraph
from cog.runtime.csv_text import write_csv

LEVELS_CSV = "levels.csv"
CONCEPTS_CSV = "concepts.csv"
REPORT = "report.json"
COUNTS_CSV = "image_counts.csv"
UNREADABLE_CSV = "unreadable_images.csv"
COMPARISON_CSV = "comparison.csv"
SIMILARITY_FIGURE = "similarity.png"
IMAGES_FIGURE = "images.png"


def show(text: str) -> None:
    """Print text and flush it, so that it stays in order with the log on standard error."""
    print(text, flush=True)


def write_levels_csv(
    path: Path, built: BuiltLevels, graph: NounGraph, counts: Mapping[str, int] | None
) -> None:
    """Write one row per ranked concept, in a level or in a gap between levels.

    Ranks count from 0; similarities have all digits; ``images`` is empty when no counts are known. ``average_rank`` is
    the mean rank of all concepts with the same similarity, because the order among them is arbitrary.
    """
    ranking = built.ranking
    averages = None if ranking.similarities is None else average_ranks(ranking.similarities)
    level_of = {rank: f"L{number}" for number, ranks in enumerate(built.ranks, start=1) for rank in ranks}
    rows = []
    for rank, wnid in enumerate(ranking.wnids):
        nearest = ranking.nearest[rank] if ranking.nearest is not None else None
        rows.append(
            (
                rank,
                wnid,
                graph.words(graph.index(wnid)),
                "" if ranking.similarities is None else repr(float(ranking.similarities[rank])),
                nearest or "",
                graph.words(graph.index(nearest)) if nearest else "",
                level_of.get(rank, "gap"),
                "" if counts is None else counts.get(wnid, ""),
                "" if averages is None else f"{averages[rank]:g}",
            )
        )
    header = (
        "rank", "wnid", "names", "similarity", "nearest_seen", "nearest_seen_names", "level", "images", "average_rank",
    )  # fmt: skip
    write_csv(path, header, rows)


def write_concepts_csv(path: Path, built: BuiltLevels, graph: NounGraph, counts: Mapping[str, int]) -> None:
    """Write one row per concept, ids ascending, with its status: eligible, or the step that removed it, and why."""
    assert built.selection is not None
    removed = built.selection.removed
    rows = []
    for wnid in sorted({*built.selection.eligible, *removed}):
        status, reason = removed.get(wnid, ("eligible", ""))
        rows.append((wnid, graph.words(graph.index(wnid)), counts[wnid], status, reason))
    write_csv(path, ("wnid", "names", "images", "status", "reason"), rows)


def level_facts(
    built: BuiltLevels, counts: Mapping[str, int] | None, *, n_test: int, max_train: int
) -> list[dict[str, Any]]:
    """Return the facts about each level: ranks, range of similarity, ties, and the number of images of a split."""
    facts = []
    similarities = built.ranking.similarities
    for number, (level, ranks) in enumerate(zip(built.levels, built.ranks, strict=True), start=1):
        fact: dict[str, Any] = {
            "level": number,
            "concepts": len(level),
            "first_rank": ranks[0],
            "last_rank": ranks[-1],
        }
        if similarities is not None:
            fact["highest_similarity"] = _plain(similarities[ranks[0]])
            fact["lowest_similarity"] = _plain(similarities[ranks[-1]])
            ties = Ties.of(similarities[ranks.start : ranks.stop])
            fact["distinct_similarities"] = ties.distinct
            fact["largest_tie"] = {"concepts": ties.largest, "similarity": _plain(ties.value)}
            fact["warning"] = ties.warning
        if counts is not None and all(wnid in counts for wnid in level):
            available = np.array([counts[wnid] for wnid in level])
            fact["training_images"] = int(np.clip(available - n_test, 0, max_train).sum())
            fact["test_images"] = int(np.minimum(available, n_test).sum())
        facts.append(fact)
    return facts


def _plain(value: float) -> float | str:
    """Return a value that JSON can hold: a number, or for infinity (Jiang-Conrath of equal synsets) its text."""
    return float(value) if np.isfinite(value) else str(float(value))


def describe(
    built: BuiltLevels, graph: NounGraph, level_rows: Sequence[Mapping[str, Any]], protocol: str
) -> str:
    """Return selection, similarity and levels as text for the terminal."""
    lines: list[str] = []
    selection = built.selection
    if selection is not None:
        lines.append(f"Selection (protocol {protocol}){'removed':>27} {'left':>9}")
        lines.append(f"  {'concepts':<34}{'':>15} {selection.n_concepts:>9,}")
        for step in selection.steps:
            lines.append(f"  {step.description:<40.40}{-step.n_removed:>9,} {step.n_left:>9,}")
        lines.append(f"  {'eligible':<34}{'':>15} {len(selection.eligible):>9,}")
    facts = built.ranking.facts
    ordering = f"Order: random, seed {facts['seed']}" if facts["measure"] == "random" else (
        f"Similarity: {facts['measure']}, highest over {len(built.seen):,} seen concepts, "
        f"{facts['distinct_values']:,} different values, ties by {facts['ties']}"
    )  # fmt: skip
    if "taxonomy_synsets" in facts:
        ordering += f"; taxonomy of {facts['taxonomy_synsets']:,} synsets"
    lines += ["", ordering]
    if "embeddings" in facts:
        words = facts["embeddings"]
        lines.append(
            f"Word vectors: {words['distinct_words_without_vector']:,} of {words['distinct_words']:,} "
            f"different words "
            f"({words['words_without_vector']:,} of {words['words']:,} occurrences) have none; "
            f"{words['concepts_without_vector']:,} concepts are left without a vector; "
            f"{words['entities']:,} names of several words are entities"
        )
    lines += [
        "",
        f"{'Level':<7}{'concepts':>9} {'ranks':>13} {'similarity':>17} {'values':>7} {'tied':>7} {'training':>11} "
        f"{'test':>9}",
    ]
    for row in level_rows:
        ranks = f"{row['first_rank']:,}-{row['last_rank']:,}"
        values = [row.get("highest_similarity"), row.get("lowest_similarity")]
        similar = " to ".join(f"{value:.4f}" if isinstance(value, float) else str(value) for value in values)
        distinct = tied = ""
        if values[0] is not None:
            distinct, tied = f"{row['distinct_similarities']:,}", f"{row['largest_tie']['concepts']:,}"
        train, test = (f"{row[key]:,}" if key in row else "?" for key in ("training_images", "test_images"))
        lines.append(
            f"L{row['level']:<6}{row['concepts']:>9,} {ranks:>13} "
            f"{similar if values[0] is not None else '':>17} "
            f"{distinct:>7} {tied:>7} {train:>11} {test:>9}"
        )
    lines.append(f"{'gaps':<7}{built.n_in_gaps:>9,}")
    if built.ranking.similarities is not None:
        lines += ["values: different similarities; tied: most concepts that share one"]
    return "\n".join(lines)
