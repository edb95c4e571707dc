"""Contents of a figure before drawing, without matplotlib: charts of panels of series of points."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
        value: drawn number, in the panel's unit.
        std: length of the error bar to each side in the panel's unit: the deviation of this score over seeds, without
            that of the reference; NaN if unknown.
        cell: score of the point.
        reference: score with which ``cell`` is compared (in a plane: the score on the x axis), or None.
        low: lower end of the 95 % interval over concepts and seeds, in the panel's unit; NaN if unknown.
        high: upper end of this interval.
    """

    x: float
    value: float
    std: float
    cell: SeedAverage
    reference: SeedAverage | None = None
    low: float = math.nan
    high: float = math.nan


class Series(NamedTuple):
    """The points of one curve in a panel, sorted by x; ``baseline``: whether the curve is that of the baseline."""

    curve: Curve
    points: tuple[Point, ...]
    baseline: bool

    def values(self, ticks: Sequence[float]) -> list[float]:
        """Return the values at ``ticks``; NaN where there is no point, which interrupts the line."""
        at = {point.x: point.value for point in self.points}
        return [at.get(x, math.nan) for x in ticks]


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        key: unique name in the chart.
        title: text above the axes.
        quantity: ``absolute``, ``relative`` or ``drop``.
        unit: unit of the values, for the CSV file.
        y_label: label of the y axis.
        x_label: label of the x axis.
        ticks: positions on the x axis; empty in a plane, where x is a measured number as well.
        tick_labels: one label per tick.
        series: curves, the first at the bottom.
        y_group: name that panels with common y limits share.
        x_break: position of a thin vertical line between ticks of different kinds, or None.
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


@dataclass(frozen=True)
class Chart:
    """One figure.

    Attributes:
        figure: name, one of :func:`cog.reporting.figures.names`.
        stem: stem of the names of its files.
        caption: description of the contents.
        of_protocol: whether all numbers are of one metric of the protocol's classifier; if not, the rows of the data
            name evaluation and metric.
        grid: rows of panels; None leaves a place empty.
        lead: panel left of the grid, as high as all its rows, or None.
        notes: lines below the panels, such as those on missing seeds.
        letters: whether panels are lettered (a), (b) and so on.
    """

    figure: str
    stem: str
    caption: str
    of_protocol: bool
    grid: tuple[tuple[Panel | None, ...], ...]
    lead: Panel | None = None
    notes: tuple[str, ...] = ()
    letters: bool = True

    @property
    def single(self) -> bool:
        """Whether the chart is one panel at the width of a text column (3.3 inches), else of a page (7 inches)."""
        return self.lead is None and [len(row) for row in self.grid] == [1]

    def panels(self) -> Iterator[Panel]:
        """Yield the panels: the lead, then the grid row by row."""
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


def _number(value: float | None) -> str:
    """Return a number with ten digits: far finer than the rounding of scores, far coarser than that of floats."""
    return "" if value is None or not math.isfinite(value) else f"{value + 0.0:.10g}"
