"""Drawing of lines: a :class:`Sheet` of panels, into which frames of numbers are drawn, a line per source and model.

Lengths are in inches, text sizes in points. Error bars are the population deviation over seeds; paler and thinner,
where it is known, the 95 % interval over concepts and seeds.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from cog.reporting.figures import style
from cog.results.frame import dataset_key, dataset_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

#: Width of a page and of a text column of a two-column paper.
PAGE, COLUMN = 7.0, 3.3

_LEGEND_ROW, _NOTE_ROW = 0.115, 0.1

#: Columns of the CSV file of a figure.
CSV_COLUMNS = (
    *("panel", "source", "model", "dataset", "evaluation", "n_shot", "metric", "value", "std", "low", "high"),
)

Place = tuple[str, str]  # source and model


class Sheet:
    """A figure with its panels and the frames drawn in them.

    Args:
        looks: look of each model (:func:`cog.reporting.figures.style.looks`).
        rows: rows of panels.
        columns: columns of panels.
        lead: whether a panel over all rows stands before them, :attr:`lead`.
        share_y: whether the panels of a row share their axis.
        width: width of the figure.
        height: height of a row.
    """

    def __init__(
        self,
        looks: Mapping[Place, style.Look],
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
        return pd.concat(self.frames)[[*CSV_COLUMNS]] if self.frames else pd.DataFrame(columns=[*CSV_COLUMNS])

    def lines(
        self,
        axes: Axes,
        frame: pd.DataFrame,
        ticks: Mapping[Any, str],
        *,
        x: str = "dataset",
        title: str = "",
        x_label: str = "",
        y_label: str = "",
        signed: bool = False,
        names: bool = False,
    ) -> None:
        """Draw a line for each source and model of a frame.

        Args:
            axes: panel.
            frame: numbers with ``value``, ``std``, ``low``, ``high``, one for each source, model and value of ``x``.
            ticks: labels of the values of column ``x``, in the order of the axis. Lines break where one is missing.
            x: column of the axis.
            title: title of the panel.
            x_label: label of the axis.
            y_label: label of the values.
            signed: whether values are differences, with a line at zero.
            names: whether to write the names of the user's models at the right ends of their lines.
        """
        self.frames.append(frame.assign(panel=title))
        at = np.arange(len(ticks))
        ends = []
        for place, part in frame.groupby(["source", "model"], sort=False):
            look = self.looks[place]
            line = part.set_index(x).reindex([*ticks])
            axes.plot(at, line["value"], **look.line)
            if not look.label:
                continue
            bars = {"color": look.color, "zorder": look.line["zorder"] - 1e-3}
            axes.vlines(at, line["value"] - line["std"], line["value"] + line["std"], lw=0.9, **bars)
            axes.vlines(at, line["low"], line["high"], lw=0.5, alpha=0.5, **bars)
            if not style.is_published(place[0]) and math.isfinite(line["value"].iloc[-1]):
                ends.append((line["value"].iloc[-1], place[1], look.color))
        axes.set_xticks(at, [*ticks.values()])
        axes.set_xlim(-0.4, len(ticks) - 0.6)
        if max(map(len, ticks.values()), default=0) * len(ticks) > 50:
            axes.tick_params(axis="x", labelrotation=90)
        if signed:
            axes.axhline(0, color="#888888", linewidth=0.6, zorder=1)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:+g}" if abs(value) > 1e-9 else "0")
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
        if names:
            _write_names(axes, ends)

    def finish(self, *notes: str) -> Sheet:
        """Add notes and the legend below the panels, fix the layout, and return the sheet."""
        for row in self.panels:
            for axes in row:
                if not axes.has_data():
                    axes.set_axis_off()
        width, height = self.figure.get_size_inches()
        handles = self._handles()
        longest = max((len(str(line.get_label())) for line in handles), default=1)
        columns = max(1, int(width / (0.05 * longest + 0.5)))
        letters = int(width / 0.048)
        if any(style.MARK in str(line.get_label()) for line in handles):
            notes = (*notes, style.MARK_NOTE)
        lines = textwrap.wrap(" ".join(filter(None, notes)), letters)
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
        """Fix the layout, equal in all formats: its last digits depend on the order of equations in memory."""
        engine = self.figure.get_layout_engine()
        assert engine is not None
        engine.execute(self.figure)
        self.figure.set_layout_engine("none")
        for axes in self.figure.axes:
            left, bottom, width, height = (round(part, 4) for part in axes.get_position(original=True).bounds)
            axes.set_position((left, bottom, width, height))

    def _handles(self) -> list[Line2D]:
        from matplotlib.lines import Line2D

        drawn = {
            place for frame in self.frames for place in zip(frame["source"], frame["model"], strict=True)
        }
        lines = [
            Line2D([], [], label=self.looks[place].label, **self.looks[place].line)
            for place in style.in_legend(dict(self.looks), drawn)
        ]
        for color, words in (
            (style.GRAY_OWN, "more own models"),
            (style.GRAY_PUBLISHED, "models of the paper"),
        ):
            crowd = [place for place in drawn if self.looks[place].color == color]
            if crowd:
                lines.append(Line2D([], [], color=color, linewidth=0.8, label=f"{len(crowd)} {words}"))
        return lines


def over_datasets(frame: pd.DataFrame) -> dict[str, str]:
    """Return the data sets of a frame in order, with their names in the paper."""
    return {name: dataset_label(name) for name in sorted(frame["dataset"].unique(), key=dataset_key)}


def over_shots(frame: pd.DataFrame) -> dict[int, str]:
    """Return the numbers of training images per class in a frame, ascending, all images last."""
    numbers = sorted(frame["n_shot"].unique(), key=lambda n_shot: (n_shot == 0, n_shot))
    return {int(n_shot): str(n_shot) if n_shot else "all" for n_shot in numbers}


def _write_names(axes: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Write names at the right edge, at the heights of the lines' ends, apart from each other."""
    bottom, top = axes.get_ylim()
    step, heights = 0.05 * (top - bottom), [bottom - 1.0]
    for value, name, color in sorted(ends):
        heights.append(max(value, heights[-1] + step))
        text = textwrap.shorten(name, 28, placeholder="...") if " " in name else name[:28]
        axes.annotate(
            text,
            (1.0, (heights[-1] - bottom) / (top - bottom)),
            xycoords="axes fraction",
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=6.2,
            color=color,
            annotation_clip=False,
        )
