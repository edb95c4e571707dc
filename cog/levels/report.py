"""Facts about built levels, as data and as text; figures of the paper; the comparison of levels files."""

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
from cog.levels.build import Built, equals_published
from cog.levels.selection import Selection
from cog.levels.wordnet import NounGraph


def concepts_table(selection: Selection, graph: NounGraph, counts: Mapping[str, int]) -> pd.DataFrame:
    """Return the columns of concepts.csv, a row per concept: eligible, or the step that removed it, why."""
    status = {wnid: selection.removed.get(wnid, ("eligible", "")) for wnid in sorted(counts)}
    rows = [(wnid, graph.words(wnid), counts[wnid], *why) for wnid, why in status.items()]
    return pd.DataFrame(rows, columns=["wnid", "names", "images", "status", "reason"])


def level_facts(built: Built, *, n_test: int, max_train: int) -> pd.DataFrame:
    """Return a row per level; ``values``: different similarities, ``tied``: concepts of the commonest one."""
    rows = []
    for level, part in _levels(built).items():
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


def _levels(built: Built) -> dict[str, pd.DataFrame]:
    return dict(iter(built.table[built.table["level"] != "gap"].groupby("level", sort=False)))


def tied_levels(facts: pd.DataFrame) -> str:
    """Return the levels in which at least half of the concepts share one similarity, as text; "": none."""
    return ", ".join(
        f"{fact['tied']:,} of the {fact['concepts']:,} of {fact['level']} share {fact['tied_at']:.4f}"
        for fact in facts.to_dict("records")
        if 2 <= fact["concepts"] <= 2 * fact.get("tied", 0)
    )


def summary(built: Built, facts: pd.DataFrame, steps: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return selection, similarity and levels as text for the terminal."""
    lines = []
    if steps:
        rows: list[list[Any]] = [["concepts", "", steps[0]["n_left"] + steps[0]["n_removed"]]]
        rows += [[step["description"], -step["n_removed"], step["n_left"]] for step in steps]
        lines += [_table(rows, ["Selection", "removed", "left"]), ""]
    about = {key.replace("_", " "): value for key, value in built.facts.items() if key != "definition"}
    shown = facts.drop(columns="tied_at", errors="ignore")
    lines += [
        "; ".join(f"{key}: {value}" for key, value in about.items()),
        "",
        _table(shown.astype(object).to_numpy().tolist(), [*shown]),
        f"concepts in gaps between levels: {(built.table['level'] == 'gap').sum():,}",
        f"equal to the published levels: {'yes' if equals_published(built.levels) else 'no'}",
    ]
    return "\n".join(lines)


def compare(paths: Sequence[str]) -> str:
    """Return a table, as text, of the numbers of concepts that levels (or one draw) share with the first."""
    files = [Path(path) / constants.LEVELS_FILE if Path(path).is_dir() else Path(path) for path in paths]
    reference, *others = map(read_levels, files)
    rows: list[list[Any]] = [[f"concepts in {paths[0]}", *map(len, reference)]]
    for path, levels in zip(paths[1:], others, strict=True):
        padded = [*levels, *([levels[0]] if len(levels) == 1 else [[]]) * len(reference)]
        shared = [len({*a} & {*b}) for a, b in zip(reference, padded, strict=False)]
        rows.append([f"shared with {path}", *shared])
    return _table(rows, ["", *(f"L{number}" for number in range(1, len(reference) + 1))])


def _table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    return tabulate(rows, header, tablefmt="plain", intfmt=",", floatfmt=".4f")


def figures(built: Built, facts: pd.DataFrame, in1k: Sequence[int] | None, *, most: int) -> dict[str, Figure]:
    """Return ``similarity`` by rank (paper, Fig. 2) and ``images`` per concept, at ``most`` (Fig. 9)."""
    levels, drawn = _levels(built), {}
    shades = dict(zip(levels, colormaps["viridis"](np.linspace(0.15, 0.95, len(levels))), strict=True))
    if "values" in facts:
        drawn["similarity"] = figure = Figure(figsize=(8.0, 3.6), layout="constrained")
        axes = figure.add_subplot(xlim=(-0.5, len(built.table) - 0.5))
        for level, part in levels.items():
            ranks = part["rank"]
            axes.axvspan(ranks.min() - 0.5, ranks.max() + 0.5, color=shades[level], alpha=0.35, lw=0)
            axes.text(ranks.mean(), 0.97, level, transform=axes.get_xaxis_transform(), ha="center", va="top")
        finite = built.table["similarity"].replace(np.inf, np.nan)
        axes.plot(built.table["rank"], finite, color="black", drawstyle="steps-mid")
        axes.set_xlabel(f"{len(built.table):,} concepts ranked by similarity to the seen concepts")
        axes.set_ylabel(f"highest similarity ({built.facts['measure']})")
    if "training" in facts:
        panels = {} if in1k is None else {"IN-1K": np.array(in1k)}
        panels |= {level: part["images"].clip(upper=most) for level, part in levels.items()}
        n_columns = 3 if len(panels) == 6 else min(5, len(panels))  # the layout of six panels is the paper's
        n_rows = -(-len(panels) // n_columns)
        drawn["images"] = figure = Figure(figsize=(2.3 * n_columns, 2.5 * n_rows), layout="constrained")
        grid = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, (title, images) in zip(grid, panels.items(), strict=False):
            falling = np.sort(np.array(images, dtype=int))[::-1]
            axes.fill_between(range(len(falling)), falling, color=shades.get(title, "gray"), step="mid")
            axes.set_title(f"{title}: {falling.sum():,} images", fontsize=10)
        figure.supxlabel("concepts, most images first", fontsize=10)
        figure.supylabel("images (test + training)", fontsize=10)
    return drawn
