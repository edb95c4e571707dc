"""A chart drawn with matplotlib: constrained layout places the panels; the legend and notes stand below them.

Lengths are inches, sizes of text points.
"""

from __future__ import annotations

import collections
import itertools
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cog.reporting.figures.chart import Chart, Panel
from cog.reporting.figures.curves import Curve
from cog.reporting.figures.points import ABSOLUTE, RELATIVE
from cog.reporting.figures.style import CurveStyle, legend_key
from cog.results.model_facts import MARK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

#: Width of a page and of a text column of a two-column paper.
PAGE, COLUMN = 7.0, 3.3

LABEL, TICK, NOTE = 7.0, 6.4, 5.8
_SMALLEST_TICK = 5.2
INK = "#222222"
_EDGE = 0.05

# A letter is about as wide as half its size.
_LETTER = 0.054

# Direct labels beyond this number would be a second legend; a longer one would be wider than the room beside a panel.
_MAX_DIRECT = 8
_DIRECT_LENGTH = 18
_DIRECT_STEP = 0.1

# A longer column of a legend would be higher than the panels.
_LEGEND_LINES = 11

# Heights of a row of panels with its titles, by the number of rows; and of the labels of the x axes below the last.
_ROW_HEIGHTS = {1: 2.15, 2: 1.65, 3: 1.6, 4: 1.5}
_MANY_ROWS_HEIGHT, _ALONE_HEIGHT, _X_LABELS = 1.27, 2.55, 0.3


def draw(chart: Chart) -> Figure:
    """Return the drawn figure; call inside :func:`cog.reporting.figures.saving.drawing`.

    Every curve is a line whose ``gid`` is that of :func:`curve_id`; its error bars are one line more, with
    ``.bar`` at the end.
    """
    width = COLUMN if chart.single else PAGE
    rows, columns = len(chart.grid), len(chart.grid[0])
    height = _ALONE_HEIGHT if chart.single else _ROW_HEIGHTS.get(rows, _MANY_ROWS_HEIGHT)
    figure = new_figure(width)
    leads = [] if chart.lead is None else [1.2]
    grid = figure.add_gridspec(rows, len(leads) + columns, width_ratios=[*leads, *[1.0] * columns])
    panel_width = width / (len(leads) + columns)
    groups: dict[str, Axes] = {}  # panels that share their y limits

    def add(place: Any, panel: Panel, panel_height: float) -> Axes:
        axes = figure.add_subplot(place, sharey=groups.get(panel.y_group))
        groups.setdefault(panel.y_group, axes)
        _draw_panel(axes, panel, panel_width, panel_height)
        axes.set_title(
            _letter(chart, panel) + panel.title, fontsize=LABEL, loc="left", y=1.0, pad=3.0, color=INK
        )
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
    """Return an empty figure with constrained layout, made without pyplot, so that no window system is involved."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, width), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.02, wspace=0.01, hspace=0.01)  # type: ignore[call-arg, union-attr]
    return figure


def finish(
    figure: Figure, height: float, legend: Mapping[str, Sequence[Line2D]], notes: Sequence[str]
) -> None:
    """Add legend and notes below the panels and fix the layout, so that all formats show the same.

    Args:
        figure: with constrained layout.
        height: of the panels with their titles and labels.
        legend: heading of each group, or "", and its lines.
        notes: a line each.
    """
    foot = _EDGE
    if notes:
        text = figure.text(
            _EDGE, _EDGE, "\n".join(notes), transform=figure.dpi_scale_trans, va="bottom", wrap=True,
            fontsize=NOTE, color="#444444",
        )  # fmt: skip
        foot += text.get_window_extent().height / figure.dpi + _EDGE
    foot += _add_legend(figure, legend, foot) + _EDGE
    figure.set_figheight(round(height + foot, 3))
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0, foot / (height + foot), 1, height / (height + foot)))  # type: ignore[call-arg]
    for size, rotation in ((TICK, 0), (_SMALLEST_TICK, 0), (_SMALLEST_TICK, 90)):
        for axes in figure.axes:
            axes.tick_params(axis="x", labelsize=size, labelrotation=rotation)
        engine.execute(figure)
        if not any(map(_is_crowded, figure.axes)):
            break
    figure.set_layout_engine("none")
    # The last digits of a solution depend on the order in which its equations lie in memory.
    for axes in figure.axes:
        left, bottom, width, height = (round(part, 4) for part in axes.get_position(original=True).bounds)
        axes.set_position((left, bottom, width, height))


def _is_crowded(axes: Axes) -> bool:
    """Whether labels of the x axis touch, or stand out of a narrow panel."""
    boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_visible()]
    boxes = [box for box in boxes if box.width > 1]
    touching = any(a.x1 + 2 > b.x0 for a, b in itertools.pairwise(boxes))
    return touching or any(box.width > axes.bbox.width for box in boxes)


def curve_id(panel: Panel, order: int) -> str:
    """Return the id, valid in SVG, of the ``order``-th curve of a panel."""
    return f"curve.{re.sub('[^A-Za-z0-9_-]', '-', panel.key)}.{order}"


def line_arguments(style: CurveStyle, *, scale: float = 1.0) -> dict[str, Any]:
    """Return what ``Line2D`` needs to draw a curve in ``style``, lines and markers scaled."""
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


# ---- legend ------------------------------------------------------------------------------------------------
def _legend(curves: Sequence[Curve]) -> dict[str, list[Line2D]]:
    """Return the lines of each group, the user's own first, then in the paper's order."""
    from matplotlib.lines import Line2D

    highlighted = {curve.group for curve in curves if curve.own}
    groups: dict[str, list[Line2D]] = {}
    unnamed = collections.Counter(curve.group for curve in curves if not curve.named)
    for curve in sorted(curves, key=lambda c: (c.group not in highlighted, legend_key(c.group), not c.named)):
        lines = groups.setdefault(curve.group, [])
        label = (
            curve.label if curve.named else f"{unnamed.pop(curve.group, 0)} {'more' if lines else 'models'}"
        )
        if curve.named or not label.startswith("0 "):
            lines.append(Line2D([], [], label=label, **line_arguments(curve.style)))
    return groups


def _add_legend(figure: Figure, groups: Mapping[str, Sequence[Line2D]], bottom: float) -> float:
    """Add a legend whose columns hold whole groups, as low as the width allows; returns its height."""
    from matplotlib.lines import Line2D

    def text(label: str) -> Line2D:
        return Line2D([], [], linestyle="none", label=label)

    # A group that is too long goes on in the next column; without a heading it may be divided anywhere.
    blocks = []
    for heading, lines in groups.items():
        most = _LEGEND_LINES - 1 if heading else 1
        for start in range(0, len(lines), most):
            title = [text(" " if start else heading)] if heading else []
            blocks.append([*title, *lines[start : start + most]])
    previous = 0
    for height in range(max(map(len, blocks)), sum(map(len, blocks)) + 1):
        columns: list[list[Line2D]] = [[]]
        for block in blocks:
            if len(columns[-1]) + len(block) > height:
                columns.append([])
            columns[-1] += block
        if len(columns) == previous:
            continue
        previous = len(columns)
        height = max(map(len, columns))
        legend = figure.legend(
            handles=[line for column in columns for line in [*column, *map(text, " " * (height - len(column)))]],
            ncols=len(columns), fontsize=TICK, loc="lower left", frameon=False, borderpad=0, borderaxespad=0,
            labelspacing=0.25, columnspacing=1.4, handlelength=3.0, handletextpad=0.7, numpoints=1,
            bbox_to_anchor=(_EDGE, bottom), bbox_transform=figure.dpi_scale_trans,
        )  # fmt: skip
        for label in legend.get_texts():
            label.set_fontweight("bold" if label.get_text() in groups else "normal")
        extent = legend.get_window_extent()
        if extent.width / figure.dpi <= figure.get_figwidth() - 2 * _EDGE or len(columns) == 1:
            break
        legend.remove()
    return extent.height / figure.dpi + _EDGE


# ---- panels ------------------------------------------------------------------------------------------------
def _draw_panel(axes: Axes, panel: Panel, width: float, height: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    signed = panel.quantity != ABSOLUTE
    span = panel.ticks[-1] - panel.ticks[0]
    air = max(0.06 * span, 0.35 if span < 1e-9 else 0.0)
    axes.set_xlim(panel.ticks[0] - air, panel.ticks[-1] + air)
    axes.set_xticks(panel.ticks, panel.tick_labels)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=max(3, round(height / 0.24)), steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _number(value, signed=signed)))
    y_label = "\n".join(fill(line, height) for line in panel.y_label.split("\n"))
    axes.set_ylabel(y_label, fontsize=LABEL, labelpad=1.5, color=INK, linespacing=1.1)
    axes.set_xlabel(fill(panel.x_label, width), fontsize=LABEL, labelpad=1.5, color=INK)
    axes.tick_params(labelsize=TICK)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.x_break is not None:
        axes.axvline(panel.x_break, color="#bbbbbb", linewidth=0.6, dashes=(2, 2), zorder=1)
    if signed:
        axes.axhline(0, color="#888888", linewidth=0.6, zorder=1)
    # Rows of points that stand close get smaller markers and thinner lines.
    scale = min(1.0, max(0.74, width / max(len(panel.ticks), 1) / 0.3))
    for order, series in enumerate(panel.series):
        look, gid = series.curve.style, curve_id(panel, order)
        # A model equal to the baseline stays visible on the zero line.
        zorder = 2.0 if panel.quantity == RELATIVE and series.baseline else look.zorder
        zorder += order * 1e-3
        bars = [(p.x, p.value - p.std, p.value + p.std) for p in series.points if p.std > 0]
        intervals = [(p.x, p.low, p.high) for p in series.points if p.low < p.high]
        for name, spans, line_width, alpha, below in (
            ("bar", bars, 0.7, None, 1e-4),
            ("interval", intervals, 0.5, 0.45, 2e-4),
        ):
            if spans:
                x = [part for at, _, _ in spans for part in (at, at, math.nan)]
                y = [part for _, low, high in spans for part in (low, high, math.nan)]
                axes.plot(
                    x, y, color=look.color, linewidth=line_width, alpha=alpha, zorder=zorder - below,
                    gid=f"{gid}.{name}",
                )  # fmt: skip
        x = [p.x for p in series.points] if panel.plane else list(panel.ticks)
        axes.plot(x, series.values(x), zorder=zorder, gid=gid, **line_arguments(look, scale=scale))


def _letter(chart: Chart, panel: Panel) -> str:
    """Return ``(a)`` and so on; nothing for a panel without a title or alone."""
    order = [other.key for other in chart.panels()]
    if len(order) < 2 or not chart.letters or not panel.title:
        return ""
    return f"({chr(ord('a') + order.index(panel.key))}) "


def fill(text: str, room: float) -> str:
    """Break text at spaces into lines of about ``room`` inches."""
    return textwrap.fill(text, max(8, int(room / _LETTER)), break_long_words=False)


def _name_curves(axes: Axes, panel: Panel, height: float) -> None:
    """Name the user's curves, and another that alone has a name, at their right end, moved apart where they touch."""
    named = [series for series in panel.series if series.curve.named]
    others = [series for series in named if not series.curve.own]
    own_series = [series for series in named if series.curve.own or len(others) == 1 < len(panel.series)]
    if panel.plane or len(own_series) > _MAX_DIRECT:
        return
    # A name far from the end of its curve would be taken for another's.
    low, high = axes.get_xlim()
    ends = [
        (series.points[-1].value, series.curve, _wrap_name(series.curve.label))
        for series in own_series
        if series.points[-1].x >= low + 0.7 * (high - low)
    ]
    ends.sort(key=lambda end: end[0])
    low, high = axes.get_ylim()
    halves = [len(lines) * _DIRECT_STEP / 2 for *_, lines in ends]
    spots = [(value - low) / (high - low) * height for value, *_ in ends]
    if 2 * sum(halves) > height:  # the legend has the names
        return
    floor = 0.0
    for i, half in enumerate(halves):
        spots[i] = max(spots[i], floor + half)
        floor = spots[i] + half
    ceiling = height
    for i, half in reversed([*enumerate(halves)]):
        spots[i] = min(spots[i], ceiling - half)
        ceiling = spots[i] - half
    for spot, (_, curve, lines) in zip(spots, ends, strict=True):
        axes.annotate(
            "\n".join(lines), (1.0, spot / height), xycoords="axes fraction", xytext=(2.5, 0), linespacing=1.0,
            textcoords="offset points", ha="left", va="center", fontsize=TICK, fontweight="bold",
            color=_darker(curve.style.color), annotation_clip=False,
        )  # fmt: skip


def _wrap_name(name: str) -> list[str]:
    """Break a name after underscores, hyphens and points into lines that fit beside a panel."""
    lines = [""]
    for part in re.findall(rf"[^_. -]* {MARK}|[^_. -]*[_. -]?", name):
        if lines[-1] and len(lines[-1]) + len(part) > _DIRECT_LENGTH:
            lines.append("")
        lines[-1] += part
    return [line.strip() for line in lines]


def _darker(color: str) -> str:
    """Return a color that can be read as text on white."""
    from matplotlib.colors import to_hex, to_rgb

    red, green, blue = to_rgb(color)
    return to_hex((0.72 * red, 0.72 * green, 0.72 * blue))


def _number(value: float, *, signed: bool) -> str:
    text = f"{value:+g}" if signed and abs(value) > 1e-9 else f"{round(value, 10) + 0.0:g}"
    return text.replace("-", "\N{MINUS SIGN}")
