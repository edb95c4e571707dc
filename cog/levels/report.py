"""Facts about built levels, as data and as text; figures of the paper; the comparison of levels files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure
from tabulate import tabulate

from cog import constants
from cog.data.level_files import read_levels
from cog.errors import CogError
from cog.levels.build import Built, equals_published
from cog.levels.selection import Selection, Step
from cog.levels.wordnet import NounGraph, word_finder

_SHOWN_MOVES = 20
_GRAY = "#d9d9d9"


def concepts_table(selection: Selection, graph: NounGraph, counts: Mapping[str, int]) -> pd.DataFrame:
    """Return the columns of concepts.csv, a row per concept: eligible, or the step that removed it, and why."""
    reasons = selection.removed
    ids = sorted(counts)
    rows = [(wnid, graph.words(wnid), counts[wnid], *reasons.get(wnid, ("eligible", ""))) for wnid in ids]
    return pd.DataFrame(rows, columns=["wnid", "names", "images", "status", "reason"])


def level_facts(built: Built, *, n_test: int, max_train: int) -> pd.DataFrame:
    """Return a row per level: number of concepts, ranks, similarity, ties, and numbers of images of a split.

    ``values``: different similarities; ``tied``: most concepts that share one, ``tied_at``. Columns of what is not
    known are missing.
    """
    rows = []
    for level, part in built.table[built.table["level"] != "gap"].groupby("level", sort=False):
        ranks, similarity, images = part["rank"], part["similarity"], part["images"]
        row: dict[str, Any] = {"level": level, "concepts": len(part), "ranks": f"{ranks.min()}-{ranks.max()}"}
        if similarity.notna().all():
            ties = similarity.value_counts()
            row |= {"highest": similarity.iloc[0], "lowest": similarity.iloc[-1], "values": len(ties)}
            row |= {"tied": ties.iloc[0], "tied_at": ties.index[0]}
        if images.notna().all():
            row["training"] = (images - n_test).clip(0, max_train).sum()
            row["test"] = images.clip(upper=n_test).sum()
        rows.append(row)
    return pd.DataFrame(rows)


def tied_levels(facts: pd.DataFrame) -> str:
    """Return the levels in which at least half of the concepts share one similarity, as text; "": none."""
    return ", ".join(
        f"{fact['tied']:,} of the {fact['concepts']:,} of {fact['level']} share {fact['tied_at']:.4f}"
        for fact in facts.to_dict("records")
        if 2 <= fact["concepts"] <= 2 * fact.get("tied", 0)
    )


def summary(built: Built, facts: pd.DataFrame, steps: Sequence[Step] = ()) -> str:
    """Return selection, similarity and levels as text for the terminal."""
    lines = []
    if steps:
        rows: list[tuple[Any, ...]] = [("concepts", "", steps[0].n_left + steps[0].n_removed)]
        rows += [(step.description, -step.n_removed, step.n_left) for step in steps]
        lines += [_table(rows, ["Selection", "removed", "left"]), ""]
    about = {key.replace("_", " "): value for key, value in built.facts.items() if key != "definition"}
    lines += ["; ".join(f"{key}: {value}" for key, value in about.items()), ""]
    shown = facts.drop(columns="tied_at", errors="ignore")
    lines.append(_table([[*row.values()] for row in shown.to_dict("records")], [*shown]))
    lines.append("values: different similarities; tied: most concepts that share one")
    n_in_gaps = (built.table["level"] == "gap").sum()
    lines.append(f"concepts in gaps between levels: {n_in_gaps:,}")
    lines.append(f"equal to the published levels: {'yes' if equals_published(built.levels) else 'no'}")
    return "\n".join(lines)


def compare(paths: Sequence[str]) -> str:
    """Return a table, as text, of the concepts that levels share with the level of the same number of the first file.

    Paths are those of levels files, or output folders of ``build_levels.py``. A file with one level (a random draw) is
    compared with every level. Of two files, the concepts whose levels differ follow.
    """
    if len(paths) < 2:
        raise CogError("--compare needs two levels files or more")
    files = [Path(path) / constants.LEVELS_FILE if Path(path).is_dir() else Path(path) for path in paths]
    reference, *others = (read_levels(file) for file in files)
    rows: list[list[Any]] = [[f"concepts in {paths[0]}", *map(len, reference)]]
    for path, levels in zip(paths[1:], others, strict=True):
        padded = [*levels, *([levels[0]] if len(levels) == 1 else [[]]) * len(reference)]
        shared = [len(set(a) & set(b)) for a, b in zip(reference, padded, strict=False)]
        rows.append([f"shared with {path}", *shared])
    text = _table(rows, ["", *(f"L{number}" for number in range(1, len(reference) + 1))])
    if len(others) > 1:
        return text
    of_a, of_b = (
        {wnid: f"L{k}" for k, level in enumerate(levels, start=1) for wnid in level}
        for levels in (reference, others[0])
    )
    concepts = sorted(of_a.keys() | of_b.keys())
    words = word_finder()
    moved = [
        (wnid, of_a.get(wnid, "-"), of_b.get(wnid, "-"), words(wnid))
        for wnid in concepts
        if of_a.get(wnid) != of_b.get(wnid)
    ]
    n_same = len(concepts) - len(moved)
    text += f"\n\n{n_same:,} of {len(concepts):,} concepts are in the same level of both"
    if moved:
        text += "\n\n" + _table(moved[:_SHOWN_MOVES], ["concept", "first", "other", "names"])
    return text + (f"\n... and {len(moved) - _SHOWN_MOVES:,} more" if len(moved) > _SHOWN_MOVES else "")


def _table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    return tabulate(rows, header, tablefmt="plain", intfmt=",", floatfmt=".4f")


def figures(built: Built, facts: pd.DataFrame, in1k: Sequence[int] | None, *, most: int) -> dict[str, Figure]:
    """Return ``similarity`` by rank (paper, Fig. 2) and ``images`` of every concept (Fig. 9), of what is known.

    ``in1k`` has the number of images of each concept of IN-1K, for a first panel, ``most`` is the largest number of
    images of a concept in a split, and ``facts`` are those of :func:`level_facts`.
    """
    table, n_levels, drawn = built.table, len(built.levels), {}
    shades: list[Any] = [colormaps["viridis"](position) for position in np.linspace(0.15, 0.95, n_levels)]
    if "values" in facts:
        drawn["similarity"] = figure = Figure(figsize=(8.0, 3.6), layout="constrained")
        axes = figure.add_subplot(xlim=(-0.5, len(table) - 0.5))
        axes.axvspan(-0.5, len(table) - 0.5, color=_GRAY, lw=0, zorder=0)
        for number, shade in enumerate(shades, start=1):
            ranks = table.loc[table["level"] == f"L{number}", "rank"]
            ends = (ranks.min() - 0.5, ranks.max() + 0.5)
            axes.axvspan(*ends, color="white", lw=0, zorder=1)
            axes.axvspan(*ends, color=shade, alpha=0.35, lw=0, zorder=1)
            place: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "top"}
            axes.text(ranks.mean(), 0.97, f"L{number}", fontweight="bold", **place)
        finite = table["similarity"].where(np.isfinite(table["similarity"]))
        axes.plot(table["rank"], finite, color="black", lw=1.6, drawstyle="steps-mid", zorder=3)
        axes.margins(y=0.12)
        axes.set_xlabel(f"{len(table):,} concepts ranked by similarity to the seen concepts")
        axes.set_ylabel(f"highest similarity ({built.facts['measure']})")
    if "training" in facts:
        panels = {} if in1k is None else {"IN-1K": np.array(in1k)}
        panels |= {level: part.clip(upper=most) for level, part in table.groupby("level")["images"]}
        panels.pop("gap", None)
        shades = shades if in1k is None else [_GRAY, *shades]
        n_columns = 3 if len(panels) == 6 else min(5, len(panels))  # the layout of six panels is the paper's
        n_rows = -(-len(panels) // n_columns)
        size = (2.3 * n_columns + 0.8, 2.5 * n_rows + 0.3)
        drawn["images"] = figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False).ravel()
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        for axes, (title, images), shade in zip(grid, panels.items(), shades, strict=False):
            falling, x = np.sort(np.array(images, dtype=int))[::-1], np.arange(len(images))
            axes.fill_between(x, falling, color=shade, alpha=0.5, lw=0, step="mid")
            axes.plot(x, falling, color="black", lw=1, drawstyle="steps-mid")
            axes.set_title(f"{title}: {falling.sum():,} images", fontsize=10)
            axes.set(xlim=(0, max(1, len(falling) - 1)), ylim=(0, None))
            axes.label_outer()
        figure.supxlabel("concepts, most images first", fontsize=10)
        figure.supylabel("images (test + training)", fontsize=10)
    return drawn
