"""Drawings of runs: the search for learning rate and weight decay, and the final training.

A drawing shows all seeds of one model, data set and number of shots: the trials over both hyper-parameters, colored by
validation accuracy, the best accuracy so far, and the accuracies of the final training. The sources are
``results.json`` (trials, intervals) and ``logs.pkl`` (curves). Runs of the original toolkit have only curves, because
their trials are in ``study.pkl``, a pickled Optuna object, which cannot be read safely.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import cog.reporting.figures.saving as saving
import cog.reporting.figures.style as style
from cog.errors import CogError, printable
from cog.reporting.figures.curves import shorten
from cog.reporting.figures.drawing import INK, LABEL, PAGE, TICK, finish, new_figure
from cog.reporting.figures.panels import dataset_label
from cog.results import search_history
from cog.results.labels import shots_label
from cog.results.run_records import Run
from cog.results.scores import grouped
from cog.results.search_history import SearchRecord
from cog.runtime.csv_text import csv_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

TRIAL_COLUMNS = (
    "seed", "trial", "lr", "wd", "val_top1", "best_so_far", "diverged", "chosen", "seconds",
)  # fmt: skip

CURVES_SUFFIX = "_curves"

_HEIGHT = 2.3

_GRAY, _RED = "#888888", "#c0392b"

# Range of the colors in points below the best: most good trials lie within a few points; lower ones share one color.
_COLOR_RANGE = 10.0

_DASHES = (0, (2.4, 1.2))


class SearchPage(NamedTuple):
    """The runs of one model, data set and number of shots, sorted by seed, with the stem of their files."""

    stem: str
    title: str
    runs: tuple[Run, ...]


def pages(runs: Iterable[Run]) -> list[SearchPage]:
    """Return the drawings to make of runs, in the order of the runs.

    Raises:
        CogError: when there is no run.
    """
    groups = grouped(runs, lambda run: (run.model, run.dataset, run.n_shot))
    if not groups:
        raise CogError("there is no run whose search could be drawn")
    made: dict[str, SearchPage] = {}
    for (model, dataset, n_shot), group in groups.items():
        name = "_".join(part for part in ("search", model, dataset, f"N{n_shot}" if n_shot else "") if part)
        plain = stem = re.sub(r"[^A-Za-z0-9._+-]", "-", name)
        number = 1
        while stem.casefold() in made:  # names that differ only in case or in replaced characters
            number += 1
            stem = f"{plain}_{number}"
        model_name = shorten(printable(model), 60) or "unnamed model"
        title = f"{model_name}, {dataset_label(dataset)}, {shots_label(n_shot)}"
        by_seed = tuple(sorted(group, key=lambda run: run.seed))
        made[stem.casefold()] = SearchPage(stem, title, by_seed)
    return list(made.values())


def write(runs: Iterable[Run], folder: str | os.PathLike[str]) -> list[Path]:
    """Draw one figure per model, data set and shots into ``folder``, with ``<stem>.csv`` and ``<stem>_curves.csv``.

    Args:
        runs: runs as :func:`cog.results.find.find_runs` returns them.
        folder: output folder, created unless it exists.

    Returns:
        The files; ``search_<model>_<dataset>[_N<shots>]`` is their stem.

    Raises:
        CogError: no runs, a run that is gone.
    """
    made = {page.stem: functools.partial(_draw, page) for page in pages(runs)}
    return saving.save_all(folder, made, data=("", CURVES_SUFFIX))


def _draw(page: SearchPage) -> tuple[Figure, dict[str, str]]:
    searches = [search_history.read_search(run) for run in page.runs]
    return draw(page.title, searches), {"": trials_csv(searches), CURVES_SUFFIX: curves_csv(searches)}


def trials_csv(searches: Sequence[SearchRecord]) -> str:
    """Return the trials as CSV, one row each."""
    rows = (
        (
            search.seed, trial.number, *map(_text, (trial.lr, trial.wd, trial.val_top1, best)),
            *map(int, (trial.diverged, trial is search.chosen)), _text(trial.seconds),
        )
        for search in searches
        for trial, best in zip(search.trials, search.best_so_far(), strict=True)
    )  # fmt: skip
    return csv_text(TRIAL_COLUMNS, rows)


def curves_csv(searches: Sequence[SearchRecord]) -> str:
    """Return the curves as CSV, one row per seed and epoch (from 1)."""
    rows: list[tuple[Any, ...]] = []
    for search in searches:
        curves = [search.curves.get(key, ()) for key in search_history.CURVES]
        for epoch, values in enumerate(itertools.zip_longest(*curves, fillvalue=math.nan), 1):
            rows.append((search.seed, epoch, *map(_text, values)))
    return csv_text(("seed", "epoch", *search_history.CURVES), rows)


def _text(value: float) -> str:
    return "" if math.isnan(value) else repr(value)


# --- drawing


def draw(title: str, searches: Sequence[SearchRecord]) -> Figure:
    """Return the drawing; call inside :func:`cog.reporting.figures.saving.drawing`."""
    figure = new_figure(PAGE)
    figure.suptitle(title, x=0.012, ha="left", fontsize=LABEL + 1, fontweight="bold", color=INK)
    plane, best, curves = figure.subplots(1, 3)
    _draw_plane(figure, plane, searches)
    _name(best, "(b) Best validation top-1 so far (%)", "trial")
    _name(curves, "(c) Top-1 of the final training (%)", "epoch")
    for position, search in enumerate(searches):
        look = style.own_style(position)
        numbers = [trial.number + 1 for trial in search.trials]
        scores = [math.nan if trial.diverged else trial.val_top1 for trial in search.trials]
        marks = {"marker": look.marker, "markersize": 2.6, "markerfacecolor": "white"}
        best.plot(numbers, scores, linestyle="none", color=look.color, markeredgewidth=0.6, **marks)
        best.plot(numbers, search.best_so_far(), color=look.color, linewidth=1.2, drawstyle="steps-post")
        for key, dashes in (("train/top1", _DASHES), ("test/top1", "-")):
            values = search.curves.get(key, ())
            marker = "o" if len(values) == 1 else None
            curves.plot(
                range(1, len(values) + 1), values, color=look.color, linewidth=0.9, linestyle=dashes, marker=marker,
                markersize=3,
            )  # fmt: skip
    reached = [value for search in searches for value in search.best_so_far() if math.isfinite(value)]
    if reached:
        # The first trials are often far below the best, and only differences near the best matter.
        low, high = max(min(reached), max(reached) - 2 * _COLOR_RANGE), max(reached)
        air = max(0.06 * (high - low), 0.2)
        best.set_ylim(low - air, high + air)
    finish(figure, _HEIGHT, _legend(searches), _notes(searches))
    return figure


def _name(axes: Axes, title: str, x_label: str, y_label: str = "") -> None:
    axes.set_title(title, fontsize=LABEL, loc="left", y=1.0, pad=3.0, color=INK)
    axes.set_xlabel(x_label, fontsize=LABEL, labelpad=1.5, color=INK)
    axes.set_ylabel(y_label, fontsize=LABEL, labelpad=1.5, color=INK)
    axes.tick_params(labelsize=TICK)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_plane(figure: Figure, axes: Axes, searches: Sequence[SearchRecord]) -> None:
    """Draw the trials with positive values, which alone have a place on logarithmic axes, and the chosen pairs."""
    from matplotlib.colors import Normalize
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    _name(axes, "(a) Trials and chosen pairs", "learning rate", "weight decay")
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(numticks=7))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    scores = [t.val_top1 for s in searches for t in s.trials if not (t.diverged or math.isnan(t.val_top1))]
    norm = Normalize(max(min(scores), max(scores) - _COLOR_RANGE), max(scores)) if scores else None
    drawn = None
    for position, search in enumerate(searches):
        look = style.own_style(position)
        placed = [trial for trial in search.trials if trial.lr > 0 and trial.wd > 0]
        scored = [t for t in placed if not (t.diverged or math.isnan(t.val_top1))]
        scored.sort(key=lambda trial: trial.val_top1)  # the best on top
        lost = [trial for trial in placed if trial.diverged]
        if scored:
            # Better trials are darker, which is readable in gray.
            drawn = axes.scatter(
                [t.lr for t in scored], [t.wd for t in scored], c=[t.val_top1 for t in scored], cmap="viridis_r",
                norm=norm, s=13, marker=look.marker, edgecolors=look.color, linewidths=0.4, zorder=3,
            )  # fmt: skip
        axes.plot([t.lr for t in lost], [t.wd for t in lost], "x", markersize=3.5, color=_RED)
        if search.lr > 0 and search.wd > 0:
            axes.plot(
                search.lr, search.wd, "o", markersize=7.5, markerfacecolor="none", markeredgecolor=look.color,
                markeredgewidth=1.3, zorder=4,
            )  # fmt: skip
        for ends, line in ((search.lr_interval, axes.axvline), (search.wd_interval, axes.axhline)):
            for end in (ends or ()) if search.trials else ():
                line(end, color=_GRAY, linewidth=0.6, dashes=(4, 2), zorder=1)
    if drawn is not None:
        bar = figure.colorbar(drawn, ax=axes, pad=0.02, extend="min")
        bar.set_label("validation top-1 (%)", fontsize=TICK, labelpad=2, color=INK)
        bar.ax.tick_params(labelsize=TICK - 0.4)


def _legend(searches: Sequence[SearchRecord]) -> list[Line2D]:
    from matplotlib.lines import Line2D

    lines = []
    for position, search in enumerate(searches):
        look = style.own_style(position)
        label = f"seed {search.seed} (lr {search.lr:.3g}, wd {search.wd:.3g})"
        lines.append(
            Line2D([], [], color=look.color, marker=look.marker, markersize=3.6, label=label, linewidth=1.2)
        )
    ring = {"marker": "o", "markersize": 7.5, "markerfacecolor": "none", "linestyle": "none"}
    cross = {"marker": "x", "markersize": 3.5, "color": _RED, "linestyle": "none"}
    entries: list[tuple[str, dict[str, Any]]] = [("chosen", ring)]
    if any(trial.diverged for search in searches for trial in search.trials):
        entries.append(("diverged", cross))
    entries += [("training", {"linestyle": _DASHES}), ("test", {})]
    return lines + [Line2D([], [], label=label, **{"color": INK} | look) for label, look in entries]


def _notes(searches: Sequence[SearchRecord]) -> list[str]:
    """Return notes on missing parts, with the seeds concerned."""
    seeds: dict[str, list[int]] = {}
    for search in searches:
        for text in search.missing:
            seeds.setdefault(text, []).append(search.seed)
    return [f"Seed {', '.join(map(str, numbers))}: {text}." for text, numbers in seeds.items()]
