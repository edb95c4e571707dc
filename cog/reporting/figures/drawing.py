"""Drawing of charts with matplotlib: constrained layout places the panels, and the legend with the notes below them.

Lengths are in inches, text sizes in points.
"""

from __future__ import annotations

import collections
import itertools
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cog.reporting.figures.chart import Chart, Panel
from cog.reporting.figures.curves import Curve, shorten
from cog.reporting.figures.panels import ABSOLUTE, RELATIVE
from cog.reporting.figures.style import CurveStyle, legend_key

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

#: Resolution of bitmaps; texts are measured at it.
DPI = 300

#: Width of a page and of a text column of a two-column paper.
PAGE, COLUMN = 7.0, 3.3

LABEL, TICK, NOTE = 7.0, 6.4, 5.8
INK = "#222222"

# Widths: of a mean letter in a text of size LABEL, of a wide one in a note, and of a sample of a line in the legend.
_LETTER, _NOTE_LETTER, _SAMPLE = 0.054, 0.05, 0.42

# More names at the ends of curves would be a second legend.
_MAX_DIRECT = 8

# Least distance of these names.
_DIRECT_STEP = 0.1

# Heights of a row of panels with its titles, by the number of rows; and of the labels of the x axes below the last.
_ROW_HEIGHTS = {1: 2.15, 2: 1.65, 3: 1.6, 4: 1.5}
_MANY_ROWS_HEIGHT, _ALONE_HEIGHT, _X_LABELS = 1.27, 2.55, 0.3


def draw(chart: Chart) -> Figure:
    """Return the drawn figure; call inside :func:`cog.reporting.figures.saving.drawing`."""
    width = COLUMN if chart.single else PAGE
    rows, columns = len(chart.grid), len(chart.grid[0])
    height = _ALONE_HEIGHT if chart.single else _ROW_HEIGHTS.get(rows, _MANY_ROWS_HEIGHT)
    figure = new_figure(width)
    leads = [] if chart.lead is None else [1.2]
    grid = figure.add_gridspec(rows, len(leads) + columns, width_ratios=[*leads, *[1.0] * columns])
    panel_width = width / (len(leads) + columns)
    shared: dict[str, Axes] = {}  # axes by the name of their y limits
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    several = chart.letters and len(list(chart.panels())) > 1

    def add(place: Any, panel: Panel, panel_height: float) -> Axes:
        axes = figure.add_subplot(place, sharey=shared.get(panel.y_group))
        shared.setdefault(panel.y_group, axes)
        _draw_panel(axes, panel, panel_width, panel_height)
        title = f"({next(letters)}) {panel.title}" if several and panel.title else panel.title
        axes.set_title(title, fontsize=LABEL, loc="left", y=1.0, pad=3.0, color=INK)
        return axes

    named = []
    if chart.lead is not None:
        named.append((add(grid[:, 0], chart.lead, rows * height), chart.lead, rows * height))
    for row, column in itertools.product(range(rows), range(columns)):
        panel = chart.grid[row][column]
        if panel is None:
            continue
        axes = add(grid[row, len(leads) + column], panel, height)
        before = chart.grid[row][column - 1] if column else None
        below = chart.grid[row + 1][column] if row + 1 < rows else None
        if before is not None and before.y_group == panel.y_group:
            axes.tick_params(labelleft=False)
        if before is not None and before.y_label == panel.y_label:
            axes.set_ylabel("")
        if below is not None and (below.ticks, below.tick_labels) == (panel.ticks, panel.tick_labels):
            axes.tick_params(labelbottom=False)
            axes.set_xlabel("")
        if chart.lead is None and column == columns - 1:
            named.append((axes, panel, height))
    for axes, panel, panel_height in named:
        _name_curves(axes, panel, panel_height)
    finish(figure, rows * height + _X_LABELS, _legend(chart.curves()), chart.notes)
    return figure


def new_figure(width: float) -> Figure:
    """Return an empty figure with constrained layout, made without pyplot, which may need a window system."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, width), dpi=DPI, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.02, wspace=0.01, hspace=0.01)  # type: ignore[call-arg, union-attr]
    return figure


def finish(figure: Figure, height: float, handles: Sequence[Line2D], notes: Sequence[str]) -> None:
    """Add the legend below the panels, with the notes above its entries, and fix the layout, equal in all formats.

    Args:
        figure: figure with constrained layout.
        height: height of the panels with their titles and labels.
        handles: lines of the legend with their labels.
        notes: lines of text.
    """
    room = figure.get_figwidth()
    longest = max((len(str(line.get_label())) for line in handles), default=0)
    letters = int((room - 0.1) / _NOTE_LETTER)
    legend = figure.legend(
        handles=list(handles), loc="outside lower center", frameon=False, fontsize=TICK, numpoints=1,
        ncols=max(1, int(room / (longest * _LETTER * TICK / LABEL + _SAMPLE + 0.12))),
        title="\n".join(textwrap.fill(note, letters) for note in notes) or None, title_fontsize=NOTE,
        alignment="left", borderpad=0, labelspacing=0.25, columnspacing=1.4, handlelength=3.0, handletextpad=0.7,
    )  # fmt: skip
    legend.get_title().set_color("#444444")
    figure.set_figheight(round(height + legend.get_window_extent().height / figure.dpi + 0.1, 3))
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.execute(figure)
    figure.set_layout_engine("none")
    # The last digits of the layout depend on the order of the solver's equations in memory.
    for axes in figure.axes:
        left, bottom, width, height = (round(part, 4) for part in axes.get_position(original=True).bounds)
        axes.set_position((left, bottom, width, height))


def line_arguments(style: CurveStyle, *, scale: float = 1.0) -> dict[str, Any]:
    """Return the arguments of ``Line2D`` for a curve in ``style``, with lines and markers scaled."""
    return {
        "color": style.color,
        "linewidth": style.line_width * scale,
        "linestyle": "-" if style.dashes is None else (0, style.dashes),
        "marker": style.marker,
        "markersize": style.marker_size * scale,
        "markerfacecolor": "white" if style.hollow else style.color,
        "markeredgecolor": style.color if style.hollow else "white",
        "markeredgewidth": (1.1 if style.hollow else 0.3) * scale,
        "solid_capstyle": "round",
        "dash_capstyle": "butt",
    }


def _legend(curves: Sequence[Curve]) -> list[Line2D]:
    """Return the lines of the legend: those of the user's models first, then the others by the paper's groups."""
    from matplotlib.lines import Line2D

    unnamed = collections.Counter(curve.group for curve in curves if not curve.named)
    lines = []
    for curve in sorted(curves, key=lambda c: (not c.is_own, legend_key(c.group), not c.named)):
        label = curve.label
        if not curve.named:
            n = unnamed.pop(curve.group, 0)
            label = f"{n} more ({curve.group})" if n else ""
        if label:
            lines.append(Line2D([], [], label=label, **line_arguments(curve.style)))
    return lines


def _draw_panel(axes: Axes, panel: Panel, width: float, height: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    signed = panel.quantity != ABSOLUTE
    if panel.ticks:
        span = panel.ticks[-1] - panel.ticks[0]
        air = max(0.06 * span, 0.35 if span < 1e-9 else 0.0)
        axes.set_xlim(panel.ticks[0] - air, panel.ticks[-1] + air)
        axes.set_xticks(panel.ticks, panel.tick_labels)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=max(3, round(height / 0.24)), steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _number(value, signed=signed)))
    y_label = "\n".join(fill(line, height) for line in panel.y_label.split("\n"))
    axes.set_ylabel(y_label, fontsize=LABEL, labelpad=1.5, color=INK, linespacing=1.1)
    axes.set_xlabel(fill(panel.x_label, width), fontsize=LABEL, labelpad=1.5, color=INK)
    axes.tick_params(labelsize=TICK)
    room = 0.85 * width / max(1, len(panel.tick_labels))
    if max(map(len, panel.tick_labels), default=0) * _LETTER > room:  # they would touch each other
        axes.tick_params(axis="x", labelrotation=90, labelsize=0.85 * TICK)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.x_break is not None:
        axes.axvline(panel.x_break, color="#bbbbbb", linewidth=0.6, dashes=(2, 2), zorder=1)
    if signed:
        axes.axhline(0, color="#888888", linewidth=0.6, zorder=1)
    # Points at narrow distances get smaller markers and thinner lines.
    scale = min(1.0, max(0.74, width / max(len(panel.ticks), 1) / 0.3))
    for order, series in enumerate(panel.series):
        look, points = series.curve.style, series.points
        # A model equal to the baseline stays visible on the zero line.
        zorder = 2.0 if panel.quantity == RELATIVE and series.baseline else look.zorder
        zorder += order * 1e-3
        for spans, line_width, alpha in (
            ([(p.x, p.value - p.std, p.value + p.std) for p in points if p.std > 0], 0.7, 1.0),
            ([(p.x, p.low, p.high) for p in points if p.low < p.high], 0.5, 0.45),
        ):
            if spans:
                axes.vlines(
                    *zip(*spans, strict=True), color=look.color, linewidth=line_width, alpha=alpha,
                    zorder=zorder - 1e-4,
                )  # fmt: skip
        x = panel.ticks or [p.x for p in points]
        axes.plot(
            x, series.values(x), zorder=zorder, label=series.curve.label, **line_arguments(look, scale=scale)
        )


def fill(text: str, room: float) -> str:
    """Return text broken at spaces into lines of about ``room`` inches."""
    return textwrap.fill(text, max(8, int(room / _LETTER)), break_long_words=False)


def _name_curves(axes: Axes, panel: Panel, height: float) -> None:
    """Write names at the right ends of the user's curves, and of another curve if it is the only other named one."""
    named = [series for series in panel.series if series.curve.named]
    others = [series for series in named if not series.curve.is_own]
    own_series = [series for series in named if series.curve.is_own or len(others) == 1 < len(panel.series)]
    if not panel.ticks or len(own_series) > _MAX_DIRECT:
        return
    low, high = axes.get_ylim()
    previous = -math.inf
    # At the right edge, the name of a curve that ends far from it would be taken for that of another curve.
    ending = [series for series in own_series if series.points[-1].x == panel.ticks[-1]]
    for series in sorted(ending, key=lambda series: series.points[-1].value):
        previous = max((series.points[-1].value - low) / (high - low) * height, previous + _DIRECT_STEP)
        axes.annotate(
            shorten(series.curve.label, 22), (1.0, previous / height), xycoords="axes fraction", xytext=(3, 0),
            textcoords="offset points", va="center", fontsize=NOTE, color=_darker(series.curve.style.color),
            annotation_clip=False,
        )  # fmt: skip


def _darker(color: str) -> tuple[float, ...]:
    """Return a darker color, for readable text on white."""
    from matplotlib.colors import to_rgb

    return tuple(0.72 * part for part in to_rgb(color))


def _number(value: float, *, signed: bool) -> str:
    text = f"{value:+g}" if signed and abs(value) > 1e-9 else f"{round(value, 10) + 0.0:g}"
    return text.replace("-", "\N{MINUS SIGN}")
