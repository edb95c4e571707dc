"""Figures of built levels: similarity by rank (paper, Fig. 2) and images per concept (Fig. 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cog import constants
from cog.data import datasets
from cog.data.level_files import Levels
from cog.levels.builder import BuiltLevels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GRAY = "#d9d9d9"
_DPI = 150


def save_similarity_figure(path: Path, built: BuiltLevels) -> None:
    """Plot similarity to the seen concepts by rank, with a band per level; gaps are gray."""
    values = built.ranking.similarities
    assert values is not None  # a random order has none
    figure = _figure(8.0, 3.6)
    axes = figure.add_subplot()
    finite = np.where(np.isfinite(values), values, np.nan)
    axes.axvspan(-0.5, len(values) - 0.5, color=_GRAY, lw=0, zorder=0)
    shades = _colors(len(built.levels))
    for number, (ranks, shade) in enumerate(zip(built.ranks, shades, strict=True), start=1):
        axes.axvspan(ranks[0] - 0.5, ranks[-1] + 0.5, color="white", lw=0, zorder=1)
        axes.axvspan(ranks[0] - 0.5, ranks[-1] + 0.5, color=shade, alpha=0.35, lw=0, zorder=1)
        axes.annotate(
            f"L{number}",
            ((ranks[0] + ranks[-1]) / 2, 0.97),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="top",
            fontsize=11,
            fontweight="bold",
        )
    axes.plot(np.arange(len(values)), finite, color="black", lw=1.6, drawstyle="steps-mid", zorder=3)
    axes.set_xlim(-0.5, len(values) - 0.5)
    axes.margins(y=0.12)
    axes.set_xlabel(f"{len(values):,} concepts ranked by similarity to {len(built.seen):,} seen concepts")
    axes.set_ylabel(f"highest similarity ({built.ranking.facts['measure']})")
    if built.n_in_gaps:
        axes.set_title("gray: concepts between levels, in none of them", fontsize=9, loc="right")
    _save(figure, path)


def save_images_figure(
    path: Path,
    levels: Levels,
    counts: Mapping[str, int],
    *,
    n_test: int,
    max_train: int,
    in1k: Sequence[int] | None = None,
) -> None:
    """Plot the number of images of every concept that the split uses, most images first, one panel per level.

    Args:
        path: the PNG file.
        levels: the levels.
        counts: images on disk per concept.
        n_test: test images per concept.
        max_train: cap on training images per concept.
        in1k: number of images of each concept of IN-1K, shown in a first panel; None: no such panel.
    """
    used = {
        f"L{number}": [min(counts[wnid], n_test + max_train) for wnid in level]
        for number, level in enumerate(levels, start=1)
    }
    colors = dict(zip(used, _colors(len(levels)), strict=True))
    if in1k is not None:
        used = {datasets.DATASETS[constants.IN1K].label: list(in1k), **used}
    columns = 3 if len(used) == 6 else min(5, len(used))  # the layout of six panels is that of the paper
    rows = -(-len(used) // columns)
    figure = _figure(2.3 * columns + 0.8, 2.5 * rows + 0.3)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for panel in panels.flat[len(used) :]:
        panel.set_axis_off()
    for (label, images), panel in zip(used.items(), panels.flat, strict=False):
        falling = np.sort(images)[::-1]
        x, shade = np.arange(len(falling)), colors.get(label, _GRAY)
        panel.fill_between(x, falling, color=shade, alpha=0.5, lw=0, step="mid")
        panel.plot(x, falling, color="black", lw=1, drawstyle="steps-mid")
        panel.set_title(f"{label}: {_short(int(falling.sum()))} images", fontsize=10)
        panel.set_xlim(0, max(1, len(falling) - 1))
        panel.set_ylim(0, None)
        panel.label_outer()
    figure.supxlabel("concepts, most images first", fontsize=10)
    figure.supylabel("images (test + training)", fontsize=10)
    _save(figure, path)


def _short(number: int) -> str:
    return f"{number / 1e6:.3f} M" if number >= 100_000 else f"{number:,}"


def _colors(n: int) -> list[Any]:
    """Return ``n`` colors from dark (near levels) to light (far levels)."""
    from matplotlib import colormaps

    return [colormaps["viridis"](position) for position in np.linspace(0.15, 0.95, n)]


def _figure(width: float, height: float) -> Figure:
    # pyplot is not used: it has global state and can need a window system.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})
