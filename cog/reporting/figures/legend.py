"""A legend outside the axes: groups with headings, packed into columns. Lengths are inches."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cog.reporting.figures.chart import Series
from cog.reporting.figures.style import CurveStyle, legend_key

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FONT_SIZE = 6.4
_ROW = 0.118
_HANDLE = 0.27
_PAD = 0.06
_COLUMN_GAP = 0.12
_POINTS_PER_INCH = 72
_SHORTEST = 4  # lines of a column, heading included, before groups are split


@functools.lru_cache(maxsize=4096)
def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of one line of text; matplotlib is set up (:func:`cog.reporting.figures.saving.drawing`)."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size, weight="bold" if bold else "normal")
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return width / _POINTS_PER_INCH


def wrap(text: str, size: float, width: float) -> list[str]:
    """Break text at spaces into lines no wider than ``width`` (words are not broken)."""
    lines: list[str] = []
    for word in text.split(" "):
        if lines and text_width(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


@dataclass(frozen=True)
class _Line:
    text: str
    style: CurveStyle | None  # None: a heading


@dataclass(frozen=True)
class Legend:
    """A legend that knows its size before it is drawn."""

    columns: tuple[tuple[_Line, ...], ...]
    width: float

    @property
    def height(self) -> float:
        """Height of the longest column."""
        return _ROW * max((len(column) for column in self.columns), default=0)

    def draw(self, figure: Figure, left: float, top: float) -> None:
        """Draw with the upper left corner at ``left``, ``top`` (inches from the figure's lower left)."""
        from matplotlib.lines import Line2D

        x = left
        for column in self.columns:
            y = top - _ROW / 2
            for line in column:
                heading = line.style is None
                if line.style is not None:
                    figure.add_artist(
                        Line2D(
                            [x, x + _HANDLE / 2, x + _HANDLE],
                            [y, y, y],
                            transform=figure.dpi_scale_trans,
                            markevery=[1],
                            **line_arguments(line.style),
                        )
                    )
                if line.text:
                    figure.text(
                        x if heading else x + _HANDLE + _PAD,
                        y,
                        line.text,
                        transform=figure.dpi_scale_trans,
                        va="center_baseline",
                        fontsize=FONT_SIZE,
                        fontweight="bold" if heading else "normal",
                    )
                y -= _ROW
            x += _column_width(column) + self._gap()

    def _gap(self) -> float:
        """Spread the columns over the width, but not beyond what the eye connects."""
        used = sum(_column_width(column) for column in self.columns)
        if len(self.columns) < 2:
            return _COLUMN_GAP
        return max(_COLUMN_GAP, min(0.35, (self.width - used) / (len(self.columns) - 1)))


def line_arguments(style: CurveStyle, *, scale: float = 1.0) -> dict:
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


def _column_width(column: Sequence[_Line]) -> float:
    return max(
        text_width(line.text, FONT_SIZE, bold=line.style is None)
        + (0 if line.style is None else _HANDLE + _PAD)
        for line in column
    )


def layout(series: Sequence[Series], width: float) -> Legend:
    """Pack the curves' labels into columns of about equal height that fit ``width``.

    Groups follow the paper's order, the user's own come first; a group is split where that makes the
    legend shorter.
    """
    groups: dict[str, list[_Line]] = {}
    own = {one.group for one in series if one.own}
    for one in series:
        groups.setdefault(one.group, []).append(_Line(one.label, one.style))
    order = sorted(groups, key=lambda group: (group not in own, legend_key(group)))
    blocks = [[_Line(group, None), *groups[group]] for group in order]
    total = sum(map(len, blocks))
    in_order = [_pack(blocks, height) for height in range(min(_SHORTEST, total), total + 1)]
    balanced = [_balance(blocks, n) for n in range(1, len(blocks) + 1)]

    def fits(columns: list[list[_Line]]) -> bool:
        return sum(map(_column_width, columns)) + _COLUMN_GAP * (len(columns) - 1) <= width

    def height(columns: list[list[_Line]]) -> int:
        return max(map(len, columns))

    def whole(columns: list[list[_Line]]) -> bool:
        return all(line.text for column in columns for line in column)

    fitting = [columns for columns in in_order if fits(columns)] or [_pack(blocks, total)]
    best = min(filter(whole, fitting), key=height, default=fitting[0])
    # Groups in one piece are worth a line, the paper's order of groups two more.
    split = min(fitting, key=height)
    if height(split) < height(best) - 1:
        best = split
    other = min(filter(fits, balanced), key=height, default=best)
    if height(other) < height(best) - 2:
        best = other
    return Legend(tuple(tuple(column) for column in best), width)


def _balance(blocks: Sequence[list[_Line]], n: int) -> list[list[_Line]]:
    """Distribute whole groups over ``n`` columns of similar height: the longest first, to the shortest."""
    chosen: list[list[int]] = [[] for _ in range(n)]
    for index in sorted(range(len(blocks)), key=lambda index: -len(blocks[index])):
        min(chosen, key=lambda column: sum(len(blocks[i]) for i in column)).append(index)
    columns = sorted(sorted(column) for column in chosen if column)
    return [[line for index in column for line in blocks[index]] for column in columns]


def _pack(blocks: Sequence[Sequence[_Line]], height: int) -> list[list[_Line]]:
    """Fill columns of ``height`` lines in order; no heading is left alone at the foot of a column."""
    columns: list[list[_Line]] = [[]]
    for block in blocks:
        rest = list(block)
        if columns[-1] and len(columns[-1]) + len(rest) > height:
            columns.append([])
        while len(rest) > height:
            columns[-1] += rest[:height]
            # An empty heading keeps the lines of a continued group level with those of its first part.
            rest = [_Line("", None), *rest[height:]]
            columns.append([])
        columns[-1] += rest
    return [column for column in columns if column]
