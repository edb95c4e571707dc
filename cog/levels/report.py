"""The tables and texts that explain built levels, and the comparison of levels files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cog import constants
from cog.data.level_files import Levels, read_levels
from cog.errors import CogError
from cog.levels.build import RANDOM, Built, equals_published
from cog.levels.wordnet import NounGraph, word_finder
from cog.runtime.csv_text import write_csv

_SHOWN_MOVES = 20


def write_levels_csv(path: Path, built: Built, graph: NounGraph, counts: Mapping[str, int] | None) -> None:
    """Write one row per ranked concept, in a level or in a gap between levels.

    Ranks count from 0; similarities have all digits; ``images`` is empty when no counts are known. ``average_rank`` is
    the mean rank of all concepts with the same similarity, because the order among them is arbitrary.
    """
    level_of = {rank: f"L{number}" for number, ranks in enumerate(built.ranks, start=1) for rank in ranks}
    similarity, nearest, averages = ([""] * len(built.wnids) for _ in range(3))
    if built.similarity is not None and built.nearest is not None:
        similarity = [repr(value) for value in built.similarity.tolist()]
        nearest = built.nearest
        averages = [f"{value:g}" for value in average_ranks(built.similarity)]
    rows = []
    for rank, wnid in enumerate(built.wnids):
        near = nearest[rank]
        level, n_images = level_of.get(rank, "gap"), (counts or {}).get(wnid, "")
        words, near_words = graph.words(wnid), graph.words(near) if near else ""
        rows.append((rank, wnid, words, similarity[rank], near, near_words, level, n_images, averages[rank]))
    header = "rank,wnid,names,similarity,nearest_seen,nearest_seen_names,level,images,average_rank"
    write_csv(path, header.split(","), rows)


def average_ranks(similarity: np.ndarray) -> np.ndarray:
    """Return ranks by falling similarity, from 0, float64 ``(n,)``; equal similarities get their mean rank."""
    _, codes, counts = np.unique(-similarity, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[codes.ravel()]


def write_concepts_csv(path: Path, built: Built, graph: NounGraph, counts: Mapping[str, int]) -> None:
    """Write one row per concept, ids ascending, with its status: eligible, or the step that removed it, and why."""
    assert built.selection is not None
    reasons = built.selection.removed
    rows = [
        (wnid, graph.words(wnid), counts[wnid], *reasons.get(wnid, ("eligible", "")))
        for wnid in sorted(counts)
    ]
    write_csv(path, ("wnid", "names", "images", "status", "reason"), rows)


def level_facts(
    built: Built, counts: Mapping[str, int] | None, *, n_test: int, max_train: int
) -> list[dict[str, Any]]:
    """Return the facts about each level: ranks, range of similarity, ties, and the number of images of a split.

    A level in which at least half of the concepts share one similarity has a warning.
    """
    facts = []
    for number, (level, ranks) in enumerate(zip(built.levels, built.ranks, strict=True), start=1):
        fact: dict[str, Any] = {"level": number, "concepts": len(level)}
        fact |= {"first_rank": ranks[0], "last_rank": ranks[-1]}
        if built.similarity is not None:
            similarity = built.similarity[ranks.start : ranks.stop]
            values, n_equal = np.unique(-similarity, return_counts=True)
            n_tied, tied = int(n_equal.max()), -values[n_equal.argmax()]
            fact["highest_similarity"], fact["lowest_similarity"] = (
                _plain(similarity[0]),
                _plain(similarity[-1]),
            )
            fact["distinct_similarities"] = len(values)
            fact["largest_tie"] = {"concepts": n_tied, "similarity": _plain(tied)}
            if 2 <= len(level) <= 2 * n_tied:
                fact["warning"] = (
                    f"{n_tied:,} of {len(level):,} concepts share the similarity {tied:.4f} ({len(values):,} different "
                    "values): a rank among them means little"
                )
        if counts is not None and all(wnid in counts for wnid in level):
            available = np.array([counts[wnid] for wnid in level])
            fact["training_images"] = int(np.clip(available - n_test, 0, max_train).sum())
            fact["test_images"] = int(np.minimum(available, n_test).sum())
        facts.append(fact)
    return facts


def _plain(value: float) -> float | str:
    """Return a value that JSON can hold: a number, or for infinity (Jiang-Conrath of equal synsets) its text."""
    return float(value) if np.isfinite(value) else str(float(value))


def summary(built: Built, facts: Sequence[Mapping[str, Any]], *, protocol: str) -> str:
    """Return selection, similarity and levels as text for the terminal."""
    about, lines = built.facts, []
    if built.selection is not None:
        steps = built.selection.steps
        lines.append(f"Selection (protocol {protocol}){'removed':>27} {'left':>9}")
        lines.append(f"  {'concepts':<49} {steps[0].n_left + steps[0].n_removed:>9,}")
        lines += [f"  {step.description:<40.40}{-step.n_removed:>9,} {step.n_left:>9,}" for step in steps]
        lines.append("")
    if about["measure"] == RANDOM:
        lines.append(f"Order: random, seed {about['seed']}")
    else:
        lines.append(
            f"Similarity: {about['measure']}, highest over {len(built.seen):,} seen concepts, "
            f"{about['distinct_values']:,} different values, ties {about['ties']}"
        )
    if "taxonomy_synsets" in about:
        lines[-1] += f"; taxonomy of {about['taxonomy_synsets']:,} synsets"
    if "words_without_vector" in about:
        lines[-1] += f"; {about['words_without_vector']:,} words have no vector, nor have "
        lines[-1] += f"{about['concepts_without_vector']:,} concepts"
    lines += ["", _row("Level", "concepts", "ranks", "similarity", "values", "tied", "training", "test")]
    for fact in facts:
        ends = [fact.get(key, "") for key in ("highest_similarity", "lowest_similarity")]
        lines.append(
            _row(
                f"L{fact['level']}",
                f"{fact['concepts']:,}",
                f"{fact['first_rank']:,}-{fact['last_rank']:,}",
                " to ".join(f"{end:.4f}" if isinstance(end, float) else end for end in ends if end != ""),
                f"{fact['distinct_similarities']:,}" if "distinct_similarities" in fact else "",
                f"{fact['largest_tie']['concepts']:,}" if "largest_tie" in fact else "",
                f"{fact['training_images']:,}" if "training_images" in fact else "?",
                f"{fact['test_images']:,}" if "test_images" in fact else "?",
            )
        )
    lines.append(f"{'gaps':<7}{built.n_in_gaps:>9,}")
    if built.similarity is not None:
        lines.append("values: different similarities; tied: most concepts that share one")
    lines.append(f"equal to the published levels: {'yes' if equals_published(built.levels) else 'no'}")
    return "\n".join(lines)


def _row(level: str, *cells: str) -> str:
    widths = (9, 14, 18, 8, 8, 12, 10)
    return f"{level:<7}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def record(built: Built, facts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a report says about the construction: seen concepts, selection, similarity and levels."""
    selection = built.selection
    return {
        "seen": {"concepts": len(built.seen), "left_out_because_not_among_the_concepts": built.left_out},
        "selection": None if selection is None else [step._asdict() for step in selection.steps],
        "similarity": built.facts,
        "levels": facts,
        "concepts_in_gaps": built.n_in_gaps,
        "equal_to_the_published_levels": equals_published(built.levels),
    }


def compare(paths: Sequence[str]) -> str:
    """Return a table, as text, of the concepts that levels share with the level of the same number of the first file.

    A file with one level (a random draw) is compared with every level. Of two files, the concepts whose levels differ
    follow.

    Args:
        paths: levels files, or output folders of ``build_levels.py``.

    Raises:
        CogError: fewer than two paths, or a file that cannot be read.
    """
    if len(paths) < 2:
        raise CogError("--compare needs two levels files or more")
    files = [Path(path) / constants.LEVELS_FILE if Path(path).is_dir() else Path(path) for path in paths]
    reference, *others = (read_levels(file) for file in files)
    rows = [["", *(f"L{number}" for number in range(1, len(reference) + 1))]]
    rows.append([f"concepts in {paths[0]}", *(f"{len(level):,}" for level in reference)])
    for path, levels in zip(paths[1:], others, strict=True):
        padded = [*levels, *([levels[0]] if len(levels) == 1 else [[]]) * len(reference)]
        shared = [len(set(a) & set(b)) for a, b in zip(reference, padded, strict=False)]
        rows.append([f"shared with {path}", *(f"{n:,}" for n in shared)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]) for name, *cells in rows]
    if len(others) == 1:
        lines += ["", *_moves(reference, others[0])]
    return "\n".join(lines)


def _moves(a: Levels, b: Levels) -> list[str]:
    """Return the number of concepts in the same level, and the first ones whose levels differ, as lines of text."""
    of_a, of_b = ({wnid: f"L{k}" for k, level in enumerate(levels, 1) for wnid in level} for levels in (a, b))
    concepts = sorted(of_a.keys() | of_b.keys())
    moved = [wnid for wnid in concepts if of_a.get(wnid) != of_b.get(wnid)]
    n_same = len(concepts) - len(moved)
    lines = [f"{n_same:,} of {len(concepts):,} concepts are in the same level of both"]
    if moved:
        words = word_finder()
        lines += ["", f"{'concept':<10} {'first':<5} {'other':<5} names"]
        lines += [
            f"{wnid:<10} {of_a.get(wnid, '-'):<5} {of_b.get(wnid, '-'):<5} {words(wnid)}"
            for wnid in moved[:_SHOWN_MOVES]
        ]
    if len(moved) > _SHOWN_MOVES:
        lines.append(f"... and {len(moved) - _SHOWN_MOVES:,} more")
    return lines
