"""A chart drawn with matplotlib. Places are computed in inches, so nothing overlaps by accident of content."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cog.reporting.figures.legend as legends
from cog.reporting.figures.chart import Chart, Panel, Series
from cog.reporting.figures.legend import text_width, wrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Width of a page and of a text column of a two-column paper, inches.
PAGE, COLUMN = 7.0, 3.3

_LABEL = 7.0
_TICK = 6.4
_SMALLEST_TICK = 5.2
_TICK_SPACE = 0.03
_NOTE = 5.8
_DIRECT = 6.4
_INK = "#222222"

_EDGE = 0.05
_TITLE = 0.17
_Y_LABEL = 0.13  # per line
_X_TICKS = 0.15
_X_LABEL = 0.14
_GAP = 0.09  # between panels that share their y axis
_LEGEND_GAP = 0.10
_NOTE_ROW = 0.105

# Direct labels beyond this number would be a second legend.
_MAX_DIRECT = 6
_MAX_DIRECT_WIDTH = 0.75

_ROW_HEIGHTS = {
    "fig3": 1.42,
    "drop": 1.42,
    "fig4": 1.6,
    "fig10": 1.12,
    "fig11": 1.12,
    "v1_fig8": 1.3,
    "knn": 1.5,
}
_ALONE_HEIGHT = 2.4
_ONE_ROW_HEIGHT = 2.0


def draw(chart: Chart) -> Figure:
    """Return the drawn figure; call inside :func:`cog.reporting.figures.saving.drawing`.

    Every curve is a line whose ``gid`` is that of :func:`curve_id`; its error bars are one line more, with
    ``.bar`` at the end.
    """
    from matplotlib.figure import Figure

    width = COLUMN if chart.single else PAGE
    limits = _limits(chart)
    plan = _Plan(chart, width, limits)
    figure = Figure(figsize=(width, plan.height))
    for place in plan.places:
        left, bottom, w, h = place.box
        one = figure.add_axes((left / width, bottom / plan.height, w / width, h / plan.height))
        _draw_panel(one, place, limits[place.panel.y_group], width=w, letter=plan.letter(place))
    for text, x, y, rotation in plan.labels:
        figure.text(
            x,
            y,
            text,
            transform=figure.dpi_scale_trans,
            rotation=rotation,
            ha="center",
            va="center",
            fontsize=_LABEL,
            color=_INK,
            linespacing=1.1,
        )
    plan.legend.draw(figure, plan.legend_left, plan.legend_top)
    y = plan.notes_top
    for line in plan.notes:
        figure.text(
            _EDGE, y, line, transform=figure.dpi_scale_trans, va="top", fontsize=_NOTE, color="#444444"
        )
        y -= _NOTE_ROW
    return figure


def curve_id(panel: Panel, order: int) -> str:
    """Return the id, valid in SVG, of the ``order``-th curve of a panel."""
    return f"curve.{re.sub('[^A-Za-z0-9_-]', '-', panel.key)}.{order}"


@dataclass(frozen=True)
class _Place:
    panel: Panel
    box: tuple[float, float, float, float]  # left, bottom, width, height
    y_ticks: tuple[float, ...]
    y_numbers: bool
    x_labels: _TickLabels | None
    direct: tuple[Series, ...]  # labelled at their right end


@dataclass(frozen=True)
class _TickLabels:
    """Labels of an x axis: their size in points, and whether they stand upright for want of room."""

    size: float
    upright: bool
    height: float  # inches


@dataclass(frozen=True)
class _Block:
    """A grid of panels that share their left and right ends, before its height is placed."""

    grid: tuple[tuple[Panel | None, ...], ...]
    left: float  # of the block, with its labels
    columns: tuple[float, ...]  # left ends of the axes
    panel_width: float
    right: float  # of the last axes
    x_labels: _TickLabels


class _Plan:
    """Where everything goes; all lengths in inches from the lower left corner."""

    def __init__(self, chart: Chart, width: float, limits: Mapping[str, tuple[float, float]]) -> None:
        self._chart = chart
        self._limits = limits
        rows = len(chart.grid)
        alone = chart.lead is None and rows == 1 and len(chart.grid[0]) == 1
        self._row_height = _ALONE_HEIGHT if alone else _ROW_HEIGHTS.get(chart.figure, 1.4)
        if rows == 1 and not alone:
            self._row_height = max(self._row_height, _ONE_ROW_HEIGHT)
        self._row_gap = self._gap_between_rows()
        stack = rows * self._row_height + (rows - 1) * self._row_gap
        self.legend = legends.layout(chart.series(), width - 2 * _EDGE - 0.04)
        self.legend_left = _EDGE
        self.notes = [line for note in chart.notes for line in wrap(note, _NOTE, width - 2 * _EDGE)]

        right = width - _EDGE - 0.02
        blocks: list[tuple[_Block, float, float]] = []  # with row height and gap
        left = _EDGE
        if chart.lead is not None:
            end = left + (right - left) * 0.42
            blocks.append((self._block(((chart.lead,),), left, end, stack, 0.0), stack, 0.0))
            left = end + 0.12
        block = self._block(chart.grid, left, right, self._row_height, self._row_gap)
        blocks.append((block, self._row_height, self._row_gap))

        x_label = any(panel.x_label for panel in chart.panels())
        below = max(block.x_labels.height for block, _, _ in blocks) + (_X_LABEL if x_label else 0.02)
        notes_height = len(self.notes) * _NOTE_ROW + (0.07 if self.notes else 0)
        self.notes_top = _EDGE + notes_height - 0.05
        self.legend_top = _EDGE + notes_height + self.legend.height
        base = self.legend_top + _LEGEND_GAP + below
        self.height = base + stack + _TITLE + _EDGE
        self.places: list[_Place] = []
        self.labels: list[tuple[str, float, float, float]] = []
        for block, row_height, row_gap in blocks:
            self._place(block, base, row_height, row_gap, x_label_y=base - below + _X_LABEL / 2)

    def _gap_between_rows(self) -> float:
        """Rows need room between them where titles or labels of the x axis stand."""
        gap = 0.09
        grid = self._chart.grid
        for above, below in itertools.pairwise(grid):
            if any(panel and panel.title for panel in below):
                gap = max(gap, _TITLE + 0.04)
            for upper, lower in zip(above, below, strict=True):
                if upper is not None and not _same_x(upper, lower):
                    gap = max(gap, _TITLE + _X_TICKS + 0.04)
        return gap

    def _y_ticks(self, panel: Panel, height: float) -> tuple[float, ...]:
        from matplotlib.ticker import MaxNLocator

        low, high = self._limits[panel.y_group]
        locator = MaxNLocator(nbins=max(3, round(height / 0.24)), steps=[1, 2, 5, 10])
        return tuple(float(tick) for tick in locator.tick_values(low, high) if low <= tick <= high)

    def _numbers_width(self, panels: Sequence[Panel | None], height: float) -> float:
        """Return the room that the numbers of the panels' y axes need."""
        texts = [
            _number(tick, signed=_signed(panel))
            for panel in panels
            if panel is not None
            for tick in self._y_ticks(panel, height)
        ]
        return max((text_width(text, _TICK) for text in texts), default=0.0) + 0.08

    def _block(
        self,
        grid: tuple[tuple[Panel | None, ...], ...],
        left: float,
        right: float,
        row_height: float,
        row_gap: float,
    ) -> _Block:
        """Divide the width between ``left`` and ``right``."""
        columns = max(map(len, grid))
        spans = _label_spans(grid, 0.0, row_height, row_gap)
        start = left + max((len(lines) for lines, _ in spans), default=0) * _Y_LABEL
        before = [self._numbers_width([row[0] for row in grid], row_height)]
        for column in range(1, columns):
            numbered = [row[column] for row in grid if _shows_y(row, column)]
            before.append(_GAP + (self._numbers_width(numbered, row_height) if any(numbered) else 0.0))
        margin = max((_direct_width(self._direct(row[-1])) for row in grid), default=0.0)
        panel_width = (right - margin - start - sum(before)) / columns
        lefts = []
        x = start
        for room in before:
            lefts.append(x + room)
            x += room + panel_width
        labels = [
            _tick_labels(panel, panel_width)
            for index, row in enumerate(grid)
            for column, panel in enumerate(row)
            if panel is not None and self._shows_x(grid, index, column)
        ]
        worst = min(labels, key=lambda label: (label.size, -label.height))
        return _Block(grid, left, tuple(lefts), panel_width, right - margin, worst)

    @staticmethod
    def _shows_x(grid: Sequence[Sequence[Panel | None]], row: int, column: int) -> bool:
        panel = grid[row][column]
        below = grid[row + 1][column] if row + 1 < len(grid) else None
        return panel is not None and (below is None or not _same_x(panel, below))

    def _place(
        self, block: _Block, base: float, row_height: float, row_gap: float, *, x_label_y: float
    ) -> None:
        grid = block.grid
        for index, row in enumerate(grid):
            bottom = base + (len(grid) - 1 - index) * (row_height + row_gap)
            for column, panel in enumerate(row):
                if panel is None:
                    continue
                self.places.append(
                    _Place(
                        panel=panel,
                        box=(block.columns[column], bottom, block.panel_width, row_height),
                        y_ticks=self._y_ticks(panel, row_height),
                        y_numbers=_shows_y(row, column),
                        x_labels=block.x_labels if self._shows_x(grid, index, column) else None,
                        direct=self._direct(panel) if column == len(block.columns) - 1 else (),
                    )
                )
        spans = _label_spans(grid, base, row_height, row_gap)
        room = max((len(lines) for lines, _ in spans), default=0) * _Y_LABEL
        for lines, middle in spans:
            self.labels.append(("\n".join(lines), block.left + room / 2, middle, 90.0))
        x_label = next((panel.x_label for row in grid for panel in row if panel and panel.x_label), "")
        if x_label:
            self.labels.append((x_label, (block.columns[0] + block.right) / 2, x_label_y, 0.0))

    def _direct(self, panel: Panel | None) -> tuple[Series, ...]:
        """Return the curves to name where they end: the user's, in a lead rather than in the grid beside it."""
        if panel is None or panel.plane or self._chart.lead not in (None, panel):
            return ()
        own = [series for series in panel.series if series.own]
        return tuple(own) if len(own) <= _MAX_DIRECT else ()

    def letter(self, place: _Place) -> str:
        """Return ``(a)`` and so on; nothing for a panel alone or for the many of Figs. 10 and 11."""
        order = [panel.key for panel in self._chart.panels()]
        if len(order) < 2 or self._chart.figure in ("fig10", "fig11"):
            return ""
        return f"({chr(ord('a') + order.index(place.panel.key))}) "


def _label_spans(
    grid: Sequence[Sequence[Panel | None]], base: float, row_height: float, row_gap: float
) -> list[tuple[list[str], float]]:
    """Return the y labels, one for neighbouring rows that share it: (lines, middle)."""
    spans: list[tuple[str, int, int]] = []
    for index, row in enumerate(grid):
        text = next((panel.y_label for panel in row if panel is not None), "")
        if spans and spans[-1][0] == text:
            spans[-1] = (text, spans[-1][1], index)
        else:
            spans.append((text, index, index))
    found = []
    for text, first, last in spans:
        top = base + (len(grid) - first) * row_height + (len(grid) - 1 - first) * row_gap
        bottom = base + (len(grid) - 1 - last) * (row_height + row_gap)
        lines = [part for piece in text.split("\n") for part in wrap(piece, _LABEL, (top - bottom) * 1.05)]
        found.append((lines, (top + bottom) / 2))
    return found


def _x_limits(panel: Panel) -> tuple[float, float]:
    span = panel.ticks[-1] - panel.ticks[0]
    air = max(0.06 * span, 0.35 if span < 1e-9 else 0.0)
    return panel.ticks[0] - air, panel.ticks[-1] + air


def _tick_labels(panel: Panel, width: float) -> _TickLabels:
    """Shrink the labels of the x axis where they would touch; if that is not enough, set them upright."""
    low, high = _x_limits(panel)
    inches = width / (high - low)
    widths = [text_width(label, _TICK) for label in panel.tick_labels]
    widest = max(widths)
    # How much of their places the neighbours that stand closest take; a space belongs between them.
    crowding = max(
        (
            ((a + b) / 2 + _TICK_SPACE) / ((right - left) * inches)
            for (a, b), (left, right) in zip(
                itertools.pairwise(widths), itertools.pairwise(panel.ticks), strict=True
            )
        ),
        default=widest / width,
    )
    if crowding <= 1:
        return _TickLabels(_TICK, False, _X_TICKS)
    size = _TICK / crowding
    if size >= _SMALLEST_TICK:
        return _TickLabels(size, False, _X_TICKS)
    return _TickLabels(_SMALLEST_TICK, True, widest * _SMALLEST_TICK / _TICK + 0.07)


def _signed(panel: Panel) -> bool:
    return panel.quantity != "absolute"


def _shows_y(row: Sequence[Panel | None], column: int) -> bool:
    panel, before = row[column], row[column - 1] if column else None
    return before is None or panel is None or before.y_group != panel.y_group


def _same_x(upper: Panel, lower: Panel | None) -> bool:
    return lower is not None and (upper.ticks, upper.tick_labels) == (lower.ticks, lower.tick_labels)


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


def _draw_panel(axes: Axes, place: _Place, limits: tuple[float, float], *, width: float, letter: str) -> None:
    panel = place.panel
    axes.set_xlim(*_x_limits(panel))
    axes.set_ylim(*limits)
    signed = _signed(panel)
    numbers = [_number(tick, signed=signed) for tick in place.y_ticks] if place.y_numbers else []
    axes.set_yticks(place.y_ticks, numbers or [""] * len(place.y_ticks))
    axes.set_xticks(panel.ticks, panel.tick_labels if place.x_labels else [""] * len(panel.ticks))
    axes.tick_params(labelsize=_TICK)
    if place.x_labels is not None:
        axes.tick_params(
            axis="x", labelsize=place.x_labels.size, labelrotation=90 if place.x_labels.upright else 0
        )
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if panel.x_break is not None:
        axes.axvline(panel.x_break, color="#bbbbbb", linewidth=0.6, dashes=(2, 2), zorder=1)
    if signed:
        axes.axhline(0, color="#888888", linewidth=0.6, zorder=1)
    if panel.title:
        axes.set_title(f"{letter}{panel.title}", fontsize=_LABEL, loc="left", pad=3.0, color=_INK)
    # Rows of points that stand close get smaller markers and thinner lines.
    scale = min(1.0, max(0.74, width / max(len(panel.ticks), 1) / 0.3))
    for order, series in enumerate(panel.series):
        # A model equal to the baseline stays visible on the zero line.
        zorder = 2.0 if panel.quantity == "relative" and series.baseline else series.style.zorder
        _draw_series(
            axes, panel, series, gid=curve_id(panel, order), zorder=zorder + order * 1e-3, scale=scale
        )
    _draw_direct_labels(axes, place)


def _draw_series(axes: Axes, panel: Panel, series: Series, *, gid: str, zorder: float, scale: float) -> None:
    x, value, std = series.columns([p.x for p in series.points] if panel.plane else panel.ticks)
    bars_x: list[float] = []
    bars_y: list[float] = []
    for at, middle, half in zip(x, value, std, strict=True):
        if half > 0 and math.isfinite(middle):
            bars_x += [at, at, math.nan]
            bars_y += [middle - half, middle + half, math.nan]
    style = series.style
    if bars_x:
        axes.plot(bars_x, bars_y, color=style.colour, linewidth=0.7, zorder=zorder - 1e-4, gid=f"{gid}.bar")
    arguments: dict[str, Any] = legends.line_arguments(style, scale=scale)
    axes.plot(x, value, zorder=zorder, gid=gid, **arguments)


def _draw_direct_labels(axes: Axes, place: _Place) -> None:
    """Name the highlighted curves at their right end, in their colour, moved apart where they would touch."""
    # A name far from the end of its curve would be taken for another's.
    low, high = _x_limits(place.panel)
    near = low + 0.7 * (high - low)
    ends = [(series.points[-1].value, series) for series in place.direct if series.points[-1].x >= near]
    if not ends:
        return
    low, high = axes.get_ylim()
    height = place.box[3]
    step = 0.1
    ends.sort(key=lambda end: end[0])
    spots = [(value - low) / (high - low) * height for value, _ in ends]
    for index in range(1, len(spots)):
        spots[index] = max(spots[index], spots[index - 1] + step)
    over = spots[-1] - (height - 0.02)
    if over > 0:
        spots[-1] -= over
        for index in range(len(spots) - 2, -1, -1):
            spots[index] = min(spots[index], spots[index + 1] - step)
    for spot, (_, series) in zip(spots, ends, strict=True):
        axes.annotate(
            _cut(series.label),
            (1.0, spot / height),
            xycoords="axes fraction",
            xytext=(2.5, 0),
            textcoords="offset points",
            ha="left",
            va="center",
            fontsize=_DIRECT,
            fontweight="bold",
            color=series.style.colour,
            annotation_clip=False,
        )


def _direct_width(series: Sequence[Series]) -> float:
    return max((text_width(_cut(one.label), _DIRECT, bold=True) + 0.07 for one in series), default=0.0)


def _cut(label: str) -> str:
    """Cut the middle out of a label that is wider than the room beside a panel; the legend has all of it.

    Names of one family differ at their ends, so that two thirds of what stays are the end.
    """
    keep, cut = len(label), label
    while keep > 1 and text_width(cut, _DIRECT, bold=True) > _MAX_DIRECT_WIDTH:
        keep -= 1
        cut = f"{label[: keep // 3]}…{label[len(label) - (keep - keep // 3) :]}"
    return cut


def _number(value: float, *, signed: bool) -> str:
    text = f"{value:+g}" if signed and abs(value) > 1e-9 else f"{value + 0.0:g}"
    return text.replace("-", "\N{MINUS SIGN}")
