"""Drawing of lines: a :class:`Sheet` of panels, into which frames of numbers are drawn, a line per model.

Lengths are in inches, text sizes in points. Error bars are the population deviation over seeds; paler and
thinner, where it is known, the 95 % interval over concepts and seeds.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from cog.reporting.figures import style
from cog.results.frame import PLACE, dataset_key, dataset_label
from cog.results.published import SOURCES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Width of a page and of a text column of a two-column paper.
PAGE, COLUMN = 7.0, 3.3

_LEGEND_ROW, _NOTE_ROW = 0.115, 0.1

#: Columns of the CSV file of a figure.
CSV_COLUMNS = ["panel", *PLACE, "value", "std", "low", "high"]


class Sheet:
    """A figure with its panels and the frames drawn in them.

    ``looks`` are by source and model (:func:`cog.reporting.figures.style.looks`). With ``lead``, a panel over
    all rows stands before the others. With ``share_y``, the panels of a row, whose ``height`` is given, share
    their axis.
    """

    def __init__(
        self,
        looks: Mapping[tuple[str, str], style.Look],
        rows: int = 1,
        columns: int = 1,
        *,
        lead: bool = False,
        share_y: bool = False,
        width: float = PAGE,
        height: float = 2.0,
    ) -> None:
        from matplotlib.figure import Figure

        self.looks = looks
        self.figure = Figure(figsize=(width, rows * height), layout="constrained")
        ratios = [1.2] * lead + [1.0] * columns
        grid = self.figure.add_gridspec(rows, len(ratios), width_ratios=ratios)
        self.lead = self.figure.add_subplot(grid[:, 0]) if lead else None
        self.panels: list[list[Axes]] = []
        for row in range(rows):
            self.panels.append([])
            for column in range(columns):
                shared = self.panels[row][0] if share_y and column else None
                self.panels[row].append(self.figure.add_subplot(grid[row, column + lead], sharey=shared))
                self.panels[row][column].tick_params(labelleft=shared is None)
        self.frames: list[pd.DataFrame] = []

    @property
    def data(self) -> pd.DataFrame:
        """What was drawn, with the columns :data:`CSV_COLUMNS`."""
        return pd.concat(self.frames)[CSV_COLUMNS] if self.frames else pd.DataFrame(columns=CSV_COLUMNS)

    def lines(
        self,
        axes: Axes,
        frame: pd.DataFrame,
        ticks: Mapping[Any, str],
        *,
        x: str = "dataset",
        title: str = "",
        signed: bool = False,
        names: bool = False,
        **labels: str,
    ) -> None:
        """Draw a line for each source and model of a frame with ``value``, ``std``, ``low`` and ``high``.

        Args:
            frame: numbers, one for each source, model and value of ``x``, the column of the axis.
            ticks: labels of the values of column ``x``, in order. Lines break where one is missing.
            signed: whether values are differences, with a line at zero.
            names: whether to write the names of the user's models at the right ends of their lines.
            labels: ``xlabel`` and ``ylabel``.
        """
        self.frames.append(frame.assign(panel=title))
        at, ends = np.arange(len(ticks)), []
        for place, part in frame.groupby(["source", "model"], sort=False):
            look = self.looks[place]
            line = part.set_index(x).reindex([*ticks])
            axes.plot(at, line["value"], **look.line)
            if not look.label:
                continue
            bars = {"color": look.line["color"], "zorder": look.line["zorder"] - 1e-3}
            axes.vlines(at, line["value"] - line["std"], line["value"] + line["std"], lw=0.9, **bars)
            axes.vlines(at, line["low"], line["high"], lw=0.5, alpha=0.5, **bars)
            if place[0] not in SOURCES.values() and math.isfinite(line["value"].iloc[-1]):
                ends.append((line["value"].iloc[-1], look.label.replace(style.MARK, ""), look.line["color"]))
        axes.set_xticks(at, [*ticks.values()])
        axes.set_xlim(-0.4, len(ticks) - 0.6)
        if max(map(len, ticks.values()), default=0) * len(ticks) > 50:
            axes.tick_params(axis="x", labelrotation=90)
        if signed:
            axes.axhline(0, color="#888888", linewidth=0.6, zorder=1)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:+g}" if abs(value) > 1e-9 else "0")
        axes.set(title=title, **labels)
        if names:
            _write_names(axes, ends)

    def finish(self, *notes: str) -> Sheet:
        """Add notes and the legend below the panels, fix the layout, and return the sheet."""
        from matplotlib.lines import Line2D

        for axes in (axes for row in self.panels for axes in row if not axes.has_data()):
            axes.set_axis_off()
        drawn = {of for part in self.frames for of in zip(part["source"], part["model"], strict=True)}
        shown = sorted((self.looks[of] for of in drawn if self.looks[of].label), key=lambda look: look.rank)
        handles = [Line2D([], [], label=look.label, **look.line) for look in shown]
        words = {style.GRAY_OWN: "more own models", style.GRAY_PUBLISHED: "models of the paper"}
        for color, text in words.items():
            if n := sum(self.looks[of].line["color"] == color for of in drawn):
                handles.append(Line2D([], [], color=color, linewidth=0.8, label=f"{n} {text}"))
        if any(style.MARK in look.label for look in shown):
            notes = (*notes, style.MARK_NOTE)
        width, height = self.figure.get_size_inches()
        longest = max((len(str(line.get_label())) for line in handles), default=1)
        columns = max(1, int(width / (0.05 * longest + 0.5)))
        lines = textwrap.wrap(" ".join(filter(None, notes)), int(width / 0.048))
        below = _NOTE_ROW * len(lines) + _LEGEND_ROW * math.ceil(len(handles) / columns) + 0.15
        self.figure.set_figheight(round(height + below, 2))
        if handles or lines:
            self.figure.legend(
                handles=handles,
                loc="outside lower center",
                ncols=columns,
                title="\n".join(lines) or None,
                title_fontsize=5.8,
                alignment="left",
                labelspacing=0.25,
                columnspacing=1.4,
                handlelength=3.0,
            )
        self.fix()
        return self

    def fix(self) -> None:
        """Fix the layout for all formats: its last digits depend on the order of equations in memory."""
        engine = self.figure.get_layout_engine()
        assert engine is not None
        engine.execute(self.figure)
        self.figure.set_layout_engine(None)  # with "none", each file is drawn twice
        for axes in self.figure.axes:
            left, bottom, width, height = (round(part, 4) for part in axes.get_position(original=True).bounds)
            axes.set_position((left, bottom, width, height))


def draw_datasets(
    shown: pd.DataFrame,
    ticks: Mapping[Any, str],
    *notes: str,
    x: str,
    xlabel: str,
    ylabel: str,
    gray: bool = False,
) -> Sheet:
    """Draw a panel for each data set of a frame, three in a row; see :meth:`Sheet.lines`."""
    names = over_datasets(shown)
    columns = min(3, len(names))
    looks = style.looks(shown, gray=gray)
    sheet = Sheet(looks, rows=-(-len(names) // columns), columns=columns, height=1.7)
    panels = (axes for row in sheet.panels for axes in row)
    for position, (axes, (dataset, title)) in enumerate(zip(panels, names.items(), strict=False)):
        label, part = "" if position % columns else ylabel, shown[shown["dataset"] == dataset]
        sheet.lines(axes, part, ticks, x=x, title=title, xlabel=xlabel, ylabel=label)
    return sheet.finish(*notes)


def over_datasets(frame: pd.DataFrame) -> dict[str, str]:
    """Return the data sets of a frame in order, with their names in the paper."""
    return {name: dataset_label(name) for name in sorted(frame["dataset"].unique(), key=dataset_key)}


def over_numbers(column: pd.Series) -> dict[int, str]:
    """Return the numbers of a column, such as training images per class, ascending; 0 is "all", the last."""
    numbers = sorted(column.unique(), key=lambda number: (number == 0, number))
    return {int(number): str(number) if number else "all" for number in numbers}


def _write_names(axes: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Write names at the right edge, at the heights of the lines' ends, apart from each other."""
    bottom, top = axes.get_ylim()
    step, height = 0.05 * (top - bottom), bottom - 1.0
    for value, name, color in sorted(ends):
        height = max(value, height + step)
        axes.annotate(
            name if len(name) < 29 else f"{name[:9]}...{name[-16:]}",
            (1.0, (height - bottom) / (top - bottom)),
            xycoords="axes fraction",
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=6.2,
            color=color,
            annotation_clip=False,
        )
