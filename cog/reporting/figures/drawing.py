"""A chart drawn with matplotlib: constrained layout places the panels, legends and notes stand below them.

Lengths are inches, sizes of text points.
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cog.reporting.figures.chart import Chart, Panel, Series
from cog.reporting.figures.curves import Curve, shorten
from cog.reporting.figures.style import CurveStyle, legend_key

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Width of a page and of a text column of a two-column paper.
PAGE, COLUMN = 7.0, 3.3

LABEL = 7.0
TICK = 6.4
NOTE = 5.8
INK = "#222222"
_SMALLEST_TICK = 5.2
_EDGE = 0.05

# A letter is about as wide as half its size.
_LETTER = 0.054

# Direct labels beyond this number would be a second legend; a longer one would be wider than the room beside a panel.
_MAX_DIRECT = 6
_DIRECT_LENGTH = 14

# A longer column of a legend would be higher than the panels.
_LEGEND_LINES = 10
_LEGEND_GAP = 0.08

_ALONE_HEIGHT = 2.4
_ONE_ROW_HEIGHT = 2.0


def draw(chart: Chart) -> Figure:
    """Return the drawn figure; call inside :func:`cog.reporting.figures.saving.drawing`.

    Every curve is a line whose ``gid`` is that of :func:`curve_id`; its error bars are one line more, with
    ``.bar`` at the end.
    """
    width = COLUMN if chart.single else PAGE
    rows, columns = len(chart.grid), max(map(len, chart.grid))
    row_height = _row_height(chart)
    figure = new_figure(width, rows * row_height)
    leads = [] if chart.lead is None else [1.2]
    places = figure.add_gridspec(rows, len(leads) + columns, width_ratios=[*leads, *[1.0] * columns])
    limits = _limits(chart)
    panel_width = width / (len(leads) + columns)
    if chart.lead is not None:
        axes = figure.add_subplot(places[:, 0])
        _draw_panel(axes, chart, chart.lead, limits, size=(panel_width, rows * row_height))
        _name_curves(axes, chart.lead, rows * row_height)
    for row, column in itertools.product(range(rows), range(columns)):
        panel = chart.grid[row][column]
        if panel is None:
            continue
        axes = figure.add_subplot(places[row, len(leads) + column])
        before = chart.grid[row][column - 1] if column else None
        below = chart.grid[row + 1][column] if row + 1 < rows else None
        _draw_panel(axes, chart, panel, limits, size=(panel_width, row_height))
        if before is not None and before.y_group == panel.y_group:
            axes.tick_params(labelleft=False)
        if column:
            axes.set_ylabel("")
        if below is not None and (below.ticks, below.tick_labels) == (panel.ticks, panel.tick_labels):
            axes.tick_params(labelbottom=False)
            axes.set_xlabel("")
        if chart.lead is None and column == columns - 1:
            _name_curves(axes, panel, row_height)
    feet = add_notes(figure, chart.notes)
    settle(figure, feet + _add_legends(figure, chart.curves(), feet), rows, row_height)
    return figure


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure with constrained layout, made without pyplot, so that no window system is involved."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.02, wspace=0.01, hspace=0.01)  # type: ignore[call-arg, union-attr]
    return figure


def add_notes(figure: Figure, notes: Sequence[str]) -> float:
    """Write notes at the foot of ``figure``; returns the height they take."""
    if not notes:
        return _EDGE
    text = figure.text(
        _EDGE, _EDGE, "\n".join(notes), transform=figure.dpi_scale_trans, va="bottom", wrap=True,
        fontsize=NOTE, color="#444444",
    )  # fmt: skip
    return text.get_window_extent().height / figure.dpi + 2 * _EDGE


def settle(figure: Figure, feet: float, rows: float, row_height: float) -> None:
    """Fix the layout: the last panel's row gets ``row_height``, and the figure the height that this needs.

    All formats show this layout, whatever their resolution.

    Args:
        figure: drawn, with constrained layout.
        feet: height that notes and legends take below the panels.
        rows: of panels, in heights of the last panel's row.
        row_height: of that row.
    """
    engine = figure.get_layout_engine()
    assert engine is not None
    for again in (False, True, True):
        height = figure.get_figheight()
        if again:
            height += rows * (row_height - height * figure.axes[-1].get_position().height)
        else:
            height += feet + 0.5 * rows
        height = round(height, 3)
        figure.set_figheight(height)
        engine.set(rect=(0, feet / height, 1, 1 - feet / height))  # type: ignore[call-arg]
        engine.execute(figure)
        if not again:
            _fit_tick_labels(figure.axes)
    figure.set_layout_engine("none")
    # The last digits of a solution depend on the order in which its equations lie in memory.
    for axes in figure.axes:
        left, bottom, width, height = (round(part, 4) for part in axes.get_position(original=True).bounds)
        axes.set_position((left, bottom, width, height))


def curve_id(panel: Panel, order: int) -> str:
    """Return the id, valid in SVG, of the ``order``-th curve of a panel."""
    return f"curve.{re.sub('[^A-Za-z0-9_-]', '-', panel.key)}.{order}"


def _row_height(chart: Chart) -> float:
    if len(chart.grid) > 1:
        return chart.row_height
    alone = chart.lead is None and len(chart.grid[0]) == 1
    return _ALONE_HEIGHT if alone else max(chart.row_height, _ONE_ROW_HEIGHT)


def line_arguments(style: CurveStyle, *, scale: float = 1.0) -> dict[str, Any]:
    """Return what ``Line2D`` needs to draw a curve in ``style``, lines and markers scaled."""
    return {
        "color": style.colour,
        "linewidth": style.line_width * scale,
        "linestyle": "-" if style.dashes is None else (0, style.dashes),
        "marker": style.marker,
        "markersize": style.marker_size * scale,
        "markerfacecolor": "white" if style.hollow else style.colour,
        "markeredgecolor": style.colour if style.hollow else "white",
        "markeredgewidth": (1.1 if style.hollow else 0.3) * scale,
        "solid_capstyle": "round",
        "dash_capstyle": "butt",
    }


# ---- legends -----------------------------------------------------------------------------------------------
def _add_legends(figure: Figure, curves: Sequence[Curve], bottom: float) -> float:
    """Add a legend for each group, the user's own first, then in the paper's order, packed into columns.

    Returns:
        The height they take above ``bottom``.
    """
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        groups.setdefault(curve.group, []).append(curve)
    own = {curve.group for curve in curves if curve.own}
    legends = []
    for group in sorted(groups, key=lambda group: (group not in own, legend_key(group))):
        # A group that is too long goes on in the next column.
        for start in range(0, len(groups[group]), _LEGEND_LINES):
            part = groups[group][start : start + _LEGEND_LINES]
            legends.append(_legend(figure, "" if start else group, part))
    extents = [legend.get_window_extent() for legend in legends]
    sizes = [(extent.width / figure.dpi, extent.height / figure.dpi) for extent in extents]
    columns = _pack(sizes, figure.get_figwidth() - 2 * _EDGE)
    widths = [max(sizes[index][0] for index in column) for column in columns]
    heights = [sum(sizes[index][1] for index in column) for column in columns]
    free = figure.get_figwidth() - 2 * _EDGE - sum(widths)
    left = _EDGE
    for column, width in zip(columns, widths, strict=True):
        top = bottom + max(heights)
        for index in column:
            legends[index].set_bbox_to_anchor((left, top), figure.dpi_scale_trans)
            top -= sizes[index][1]
        # Spread the columns over the width, but not beyond what the eye connects.
        left += width + min(0.35, free / max(1, len(columns) - 1))
    return max(heights) + 2 * _EDGE


def _legend(figure: Figure, title: str, curves: Iterable[Curve]) -> Any:
    from matplotlib.lines import Line2D

    return figure.legend(
        handles=[Line2D([], [], label=one.label, **line_arguments(one.style)) for one in curves],
        title=title or " ", title_fontproperties={"size": TICK, "weight": "bold"}, alignment="left",
        fontsize=TICK, loc="upper left", frameon=False, borderpad=0.1, borderaxespad=0, labelspacing=0.25,
        handlelength=3.0, handletextpad=0.7, numpoints=1,
    )  # fmt: skip


def _pack(sizes: Sequence[tuple[float, float]], room: float) -> list[list[int]]:
    """Fill columns in order, as low as a width of ``room`` allows; returns the indices of each column."""
    total = sum(height for _, height in sizes)
    height = max(height for _, height in sizes)
    while True:
        columns: list[list[int]] = [[]]
        for index, (_, own) in enumerate(sizes):
            if columns[-1] and sum(sizes[other][1] for other in columns[-1]) + own > height + 1e-6:
                columns.append([])
            columns[-1].append(index)
        width = sum(max(sizes[index][0] for index in column) + _LEGEND_GAP for column in columns)
        if width <= room or height >= total:
            return columns
        height += 0.05


# ---- panels ------------------------------------------------------------------------------------------------
def _limits(chart: Chart) -> dict[str, tuple[float, float]]:
    """Return the y limits of each group of panels: all points with their error bars, and some air."""
    found: dict[str, list[float]] = {}
    for panel in chart.panels():
        values = found.setdefault(panel.y_group, [])
        if panel.quantity != "absolute":
            values.append(0.0)
        for series in panel.series:
            for point in series.points:
                std = point.std if math.isfinite(point.std) else 0.0
                values += [point.value - std, point.value + std]
    limits = {}
    for group, values in found.items():
        low, high = min(values), max(values)
        air = max((high - low) * 0.05, 0.5 if high - low < 1e-9 else 0.0)
        limits[group] = (low - air, high + air)
    return limits


def _x_limits(panel: Panel) -> tuple[float, float]:
    span = panel.ticks[-1] - panel.ticks[0]
    air = max(0.06 * span, 0.35 if span < 1e-9 else 0.0)
    return panel.ticks[0] - air, panel.ticks[-1] + air


def _draw_panel(
    axes: Axes,
    chart: Chart,
    panel: Panel,
    limits: Mapping[str, tuple[float, float]],
    *,
    size: tuple[float, float],
) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    width, height = size
    signed = panel.quantity != "absolute"
    axes.set_xlim(*_x_limits(panel))
    axes.set_ylim(*limits[panel.y_group])
    axes.set_xticks(panel.ticks, panel.tick_labels)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=max(3, round(height / 0.24)), steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _number(value, signed=signed)))
    y_lines = [fill(line, height) for line in panel.y_label.split("\n")]
    axes.set_ylabel("\n".join(y_lines), fontsize=LABEL, labelpad=1.5, color=INK, linespacing=1.1)
    axes.set_xlabel(fill(panel.x_label, width), fontsize=LABEL, labelpad=1.5, color=INK)
    axes.tick_params(labelsize=TICK)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.x_break is not None:
        axes.axvline(panel.x_break, color="#bbbbbb", linewidth=0.6, dashes=(2, 2), zorder=1)
    if signed:
        axes.axhline(0, color="#888888", linewidth=0.6, zorder=1)
    if panel.title:
        title = _letter(chart, panel) + panel.title
        axes.set_title(title, fontsize=LABEL, loc="left", y=1.0, pad=3.0, color=INK)
    # Rows of points that stand close get smaller markers and thinner lines.
    scale = min(1.0, max(0.74, width / max(len(panel.ticks), 1) / 0.3))
    for order, series in enumerate(panel.series):
        # A model equal to the baseline stays visible on the zero line.
        zorder = 2.0 if panel.quantity == "relative" and series.baseline else series.curve.style.zorder
        _draw_series(
            axes, panel, series, gid=curve_id(panel, order), zorder=zorder + order * 1e-3, scale=scale
        )


def _letter(chart: Chart, panel: Panel) -> str:
    """Return ``(a)`` and so on; nothing for a panel alone or for the many of Figs. 10 and 11."""
    order = [one.key for one in chart.panels()]
    if len(order) < 2 or not chart.letters:
        return ""
    return f"({chr(ord('a') + order.index(panel.key))}) "


def fill(text: str, room: float) -> str:
    """Break text at spaces into lines of about ``room`` inches."""
    return textwrap.fill(text, max(8, int(room / _LETTER)), break_long_words=False)


def _draw_series(axes: Axes, panel: Panel, series: Series, *, gid: str, zorder: float, scale: float) -> None:
    x, value, std = series.columns([p.x for p in series.points] if panel.plane else panel.ticks)
    bars_x: list[float] = []
    bars_y: list[float] = []
    for at, middle, half in zip(x, value, std, strict=True):
        if half > 0 and math.isfinite(middle):
            bars_x += [at, at, math.nan]
            bars_y += [middle - half, middle + half, math.nan]
    colour = series.curve.style.colour
    if bars_x:
        axes.plot(bars_x, bars_y, color=colour, linewidth=0.7, zorder=zorder - 1e-4, gid=f"{gid}.bar")
    axes.plot(x, value, zorder=zorder, gid=gid, **line_arguments(series.curve.style, scale=scale))


def _name_curves(axes: Axes, panel: Panel, height: float) -> None:
    """Name the user's curves at their right end, in their colour, moved apart where they would touch."""
    own = [series for series in panel.series if series.curve.own]
    if panel.plane or len(own) > _MAX_DIRECT:
        return
    # A name far from the end of its curve would be taken for another's.
    low, high = _x_limits(panel)
    ends = [(one.points[-1].value, one) for one in own if one.points[-1].x >= low + 0.7 * (high - low)]
    if not ends:
        return
    low, high = axes.get_ylim()
    ends.sort(key=lambda end: end[0])
    spots = [(value - low) / (high - low) * height for value, _ in ends]
    step = 0.1
    for index in range(1, len(spots)):
        spots[index] = max(spots[index], spots[index - 1] + step)
    over = spots[-1] - (height - 0.02)
    if over > 0:
        spots[-1] -= over
        for index in range(len(spots) - 2, -1, -1):
            spots[index] = min(spots[index], spots[index + 1] - step)
    for spot, (_, series) in zip(spots, ends, strict=True):
        axes.annotate(
            # Names of one family differ at their ends; the legend has all of them.
            shorten(series.curve.label, _DIRECT_LENGTH, head=1 / 3), (1.0, spot / height), xycoords="axes fraction",
            xytext=(2.5, 0), textcoords="offset points", ha="left", va="center", fontsize=TICK, fontweight="bold",
            color=series.curve.style.colour, annotation_clip=False,
        )  # fmt: skip


def _fit_tick_labels(panels: Iterable[Axes]) -> None:
    """Shrink the labels of the x axes where they would touch; if that is not enough, set them upright."""
    panels = list(panels)
    crowding = 0.0  # the part of their places that the neighbours that stand closest take
    for axes in panels:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_visible()]
        boxes = [box for box in boxes if box.width > 1]
        for a, b in itertools.pairwise(boxes):
            crowding = max(crowding, (a.width + b.width + 5) / (b.x0 + b.x1 - a.x0 - a.x1))
        if len(boxes) == 1:
            crowding = max(crowding, boxes[0].width / axes.get_window_extent().width)
    if crowding > 1:
        size = TICK / crowding
        for axes in panels:
            if size >= _SMALLEST_TICK:
                axes.tick_params(axis="x", labelsize=size)
            else:
                axes.tick_params(axis="x", labelsize=_SMALLEST_TICK, labelrotation=90)


def _number(value: float, *, signed: bool) -> str:
    text = f"{value:+g}" if signed and abs(value) > 1e-9 else f"{round(value, 10) + 0.0:g}"
    return text.replace("-", "\N{MINUS SIGN}")
