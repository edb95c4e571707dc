"""Figures of built levels: similarity by rank (paper, Fig. 2) and images per concept (Fig. 9)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from cog.levels.build import Built

_GRAY = "#d9d9d9"


def save_similarity_figure(path: Path, built: Built) -> None:
    """Plot similarity to the seen concepts by rank, with a band per level; gaps are gray."""
    assert built.similarity is not None  # a random order has none
    n = len(built.similarity)
    figure = Figure(figsize=(8.0, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.axvspan(-0.5, n - 0.5, color=_GRAY, lw=0, zorder=0)
    for number, (ranks, shade) in enumerate(
        zip(built.ranks, _shades(len(built.ranks)), strict=True), start=1
    ):
        ends, middle = (ranks[0] - 0.5, ranks[-1] + 0.5), (ranks[0] + ranks[-1]) / 2
        axes.axvspan(*ends, color="white", lw=0, zorder=1)
        axes.axvspan(*ends, color=shade, alpha=0.35, lw=0, zorder=1)
        axes.text(
            middle,
            0.97,
            f"L{number}",
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            fontweight="bold",
        )
    finite = np.where(np.isfinite(built.similarity), built.similarity, np.nan)
    axes.plot(np.arange(n), finite, color="black", lw=1.6, drawstyle="steps-mid", zorder=3)
    axes.set_xlim(-0.5, n - 0.5)
    axes.margins(y=0.12)
    axes.set_xlabel(f"{n:,} concepts ranked by similarity to {len(built.seen):,} seen concepts")
    axes.set_ylabel(f"highest similarity ({built.facts['measure']})")
    _save(figure, path)


def save_images_figure(path: Path, levels: Sequence[Sequence[int]], in1k: Sequence[int] | None) -> None:
    """Plot the number of images of every concept, most images first, one panel per level.

    Args:
        path: the PNG file.
        levels: number of images of each concept of each level that the split uses.
        in1k: number of images of each concept of IN-1K, for a first, gray panel; None: no such panel.
    """
    panels = [(f"L{number}", images) for number, images in enumerate(levels, start=1)]
    shades: list[Any] = _shades(len(levels))
    if in1k is not None:
        panels, shades = [("IN-1K", in1k), *panels], [_GRAY, *shades]
    columns = 3 if len(panels) == 6 else min(5, len(panels))  # the layout of six panels is that of the paper
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(2.3 * columns + 0.8, 2.5 * rows + 0.3), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, images), shade in zip(grid, panels, shades, strict=False):
        falling = np.sort(images)[::-1]
        axes.fill_between(np.arange(len(falling)), falling, color=shade, alpha=0.5, lw=0, step="mid")
        axes.plot(np.arange(len(falling)), falling, color="black", lw=1, drawstyle="steps-mid")
        axes.set_title(f"{title}: {falling.sum():,} images", fontsize=10)
        axes.set_xlim(0, max(1, len(falling) - 1))
        axes.set_ylim(0, None)
        axes.label_outer()
    figure.supxlabel("concepts, most images first", fontsize=10)
    figure.supylabel("images (test + training)", fontsize=10)
    _save(figure, path)


def _shades(n: int) -> list[tuple[float, ...]]:
    """Return ``n`` colors from dark (near levels) to light (far levels)."""
    return [colormaps["viridis"](position) for position in np.linspace(0.15, 0.95, n)]


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=150, metadata={"Software": None})
