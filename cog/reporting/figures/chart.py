"""What a figure shows, before it is drawn: charts of panels of series of points. No matplotlib here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cog.reporting.figures.curves import Curve
from cog.results.scores import SeedAverage
from cog.runtime.csv_text import csv_text

#: Columns of the CSV file beside every figure: one row per point.
CSV_COLUMNS = (
    "figure", "panel", "model", "label", "group", "source", "dataset", "n_shot", "metric", "quantity", "unit", "value",
    "std", "low", "high", "score", "score_std", "n_seeds", "missing_seeds", "reference", "reference_source",
    "reference_score", "reference_std",
)  # fmt: skip


@dataclass(frozen=True)
class Point:
    """One point of a curve.

    Attributes:
        x: position on the panel's axis.
        value: what is drawn, in the panel's unit.
        std: length of the error bar to each side in the panel's unit: the spread of this score over seeds
            (that of the reference is not in it); NaN where unknown.
        cell: the score behind it.
        reference: the score it is compared with, if any.
        low: lower end of the 95 % interval over concepts and seeds, in the panel's unit; NaN where unknown.
        high: its upper end.
    """

    x: float
    value: float
    std: float
    cell: SeedAverage
    reference: SeedAverage | None = None
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Series:
    """The points of one curve in a panel, in the order of x; ``baseline``: the others are drawn relative to it."""

    curve: Curve
    points: tuple[Point, ...]
    baseline: bool = False

    def values(self, ticks: Sequence[float]) -> list[float]:
        """Return the values at ``ticks``; NaN where there is no point, which interrupts the line."""
        at = {point.x: point.value for point in self.points}
        return [at.get(x, math.nan) for x in ticks]


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        key: unique in the chart, usable in a file name.
        title: above it.
        quantity: ``absolute``, ``relative`` or ``drop``.
        unit: of the values, for the CSV file.
        y_label: of the axis.
        x_label: of the axis.
        ticks: positions on the x axis.
        tick_labels: one per tick.
        series: curves, first at the bottom.
        y_group: panels with the same one share their y limits.
        x_break: position of a thin vertical line, if any: what is right of it is of another kind.
        plane: whether x is a measured number as well: points stand anywhere, not at the ticks.
    """

    key: str
    title: str
    quantity: str
    unit: str
    y_label: str
    x_label: str
    ticks: tuple[float, ...]
    tick_labels: tuple[str, ...]
    series: tuple[Series, ...]
    y_group: str
    x_break: float | None = None
    plane: bool = False


@dataclass(frozen=True)
class Chart:
    """One figure.

    Attributes:
        figure: its name, one of :func:`cog.reporting.figures.names`.
        stem: of its files.
        title: one line, for a heading or as a short description.
        caption: what is to be seen, in words.
        of_protocol: whether all numbers are of one metric of the protocol's classifier; else the data say which.
        grid: rows of panels; None leaves a place empty.
        lead: a panel left of the grid, as high as all its rows.
        notes: lines below the figure: what is incomplete.
        single: whether it is one panel at the width of a text column (3.3 inches), else a page's (7).
        letters: whether panels are called (a), (b) and so on.
    """

    figure: str
    stem: str
    title: str
    caption: str
    of_protocol: bool
    grid: tuple[tuple[Panel | None, ...], ...]
    lead: Panel | None = None
    notes: tuple[str, ...] = ()
    single: bool = False
    letters: bool = True

    def panels(self) -> Iterator[Panel]:
        """Yield the panels, the lead first, then row by row."""
        if self.lead is not None:
            yield self.lead
        for row in self.grid:
            yield from (panel for panel in row if panel is not None)

    def curves(self) -> list[Curve]:
        """Return every curve once, in order of appearance."""
        curves: dict[tuple[str, str, str], Curve] = {}
        for panel in self.panels():
            for series in panel.series:
                curves.setdefault((series.curve.source, series.curve.model, series.curve.label), series.curve)
        return list(curves.values())

    def csv(self) -> str:
        """Return the data as a CSV file with a header, one row per point of every panel."""
        rows = (
            self._row(panel, series.curve, point)
            for panel in self.panels()
            for series in panel.series
            for point in series.points
        )
        return csv_text(CSV_COLUMNS, rows)

    def _row(self, panel: Panel, curve: Curve, point: Point) -> tuple[str, ...]:
        cell, other = point.cell, point.reference
        metric = cell.metric if self.of_protocol else f"{cell.evaluation}/{cell.metric}"
        return (
            self.figure, panel.key, cell.model, curve.label, curve.group, cell.source, cell.dataset, str(cell.n_shot),
            metric, panel.quantity, panel.unit,
            *map(_number, (point.value, point.std, point.low, point.high, cell.value, cell.std)),
            str(len(cell.seeds) or ""), " ".join(map(str, cell.missing_seeds)),
            *((f"{other.model} {other.dataset}", other.source) if other is not None else ("", "")),
            *map(_number, (other.value, other.std) if other is not None else (None, None)),
        )  # fmt: skip


def std_of(average: SeedAverage) -> float:
    """Return the deviation of an average; NaN where it is unknown."""
    return math.nan if average.std is None else average.std


def _number(value: float | None) -> str:
    """Ten digits: far below any rounding of the scores, far above that of binary fractions."""
    return "" if value is None or not math.isfinite(value) else f"{value + 0.0:.10g}"
