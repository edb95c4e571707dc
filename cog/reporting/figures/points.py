"""What stands in a panel: the points of curves, which curves share a panel, and the places on its x axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import cog.reporting.figures.style as style
from cog import constants
from cog.reporting.figures.chart import Panel, Point, Series, std_of
from cog.reporting.figures.curves import Curve, CurveSelection, shorten
from cog.reporting.tables.layout import source_key
from cog.reporting.tables.writers import printable
from cog.results import labels, published
from cog.results.scores import SeedAverage, dataset_key


def _reference_cells(selection: CurveSelection, curve: Curve) -> Mapping[tuple[str, int], SeedAverage]:
    """Return the baseline's cells that ``curve`` is compared with, never of two sources in one curve.

    Those of its own source, else of the first that has some: the rule of the tables.
    """
    sources = sorted(
        (source for source, model in selection.references if model == selection.baseline), key=source_key
    )
    source = curve.source if curve.source in sources else sources[0]
    assert selection.baseline is not None
    return selection.references[source, selection.baseline]


#: Value, error bar and the cell compared with, of a curve's cell; None when there is nothing to compare with.
Value = Callable[[Curve, SeedAverage], tuple[float, float, SeedAverage | None] | None]


def absolute(curve: Curve, cell: SeedAverage) -> tuple[float, float, SeedAverage | None]:
    """The number itself."""
    return cell.value, std_of(cell), None


def relative(selection: CurveSelection) -> Value:
    """Difference to the baseline in points; the error bar is the model's own (the baseline's is on the zero line)."""
    references = {id(curve): _reference_cells(selection, curve) for curve in selection.curves}

    def value(curve: Curve, cell: SeedAverage) -> tuple[float, float, SeedAverage | None] | None:
        other = references[id(curve)].get((cell.dataset, cell.n_shot))
        if other is None:
            return None
        return cell.value - other.value, std_of(cell), other

    return value


def drop_from_in1k(selection: CurveSelection) -> Value:
    """Change from IN-1K in percent of the IN-1K score, which is taken as given in the error bar."""

    def value(curve: Curve, cell: SeedAverage) -> tuple[float, float, SeedAverage | None] | None:
        other = selection.references[curve.source, curve.model].get((constants.IN1K, cell.n_shot))
        if other is None or not other.value:
            return None
        return 100 * (cell.value / other.value - 1), 100 * std_of(cell) / other.value, other

    return value


def series(
    curves: Iterable[Curve], places: Sequence[tuple[float, str, Any]], value: Value, baseline: str | None
) -> tuple[Series, ...]:
    """Return the curves at ``places`` (x, data set, and shots or key) that have at least one point."""
    found = []
    for curve in curves:
        points = []
        for x, dataset, key in places:
            cell = curve.cells.get((dataset, key))
            result = value(curve, cell) if cell is not None else None
            if cell is not None and result is not None:
                points.append(Point(x, result[0], result[1], cell, result[2]))
        if points:
            found.append(one_series(curve, points, baseline))
    return tuple(found)


def one_series(curve: Curve, points: Sequence[Point], baseline: str | None) -> Series:
    """Return the points of a curve with its label, group and style."""
    return Series(
        model=curve.model,
        source=curve.source,
        label=curve.label,
        group=curve.group,
        style=curve.style,
        points=tuple(points),
        own=curve.own,
        baseline=curve.model == baseline,
    )


def columns(selection: CurveSelection, curves: Sequence[Curve]) -> list[tuple[str, str, list[Curve]]]:
    """Sort curves into panels by group: (key, title, curves), the reference and the baseline in each.

    Models of one's own are in all of them, unless the paper has the model (then in its group's) or there
    are too many (then in a panel of their own).
    """
    categories = [
        category
        for category in published.CATEGORY_LABELS
        if category != "reference" and any(c.category == category and not c.own for c in curves)
    ]
    free = [c for c in curves if c.own and c.category not in categories]
    shared = [
        c for c in curves if not c.own and (c.category in ("", "reference") or c.model == selection.baseline)
    ]
    everywhere = free if categories and len(free) <= style.MANY else []
    columns = []
    for category in categories:
        members = [c for c in curves if c.category == category]
        chosen = {id(c) for c in [*shared, *members, *everywhere]}
        columns.append(
            (category, published.CATEGORY_LABELS[category], [c for c in curves if id(c) in chosen])
        )
    if free and not everywhere:
        chosen = {id(c) for c in [*shared, *free]}
        columns.append(("own", style.OWN, [c for c in curves if id(c) in chosen]))
    return columns or [("models", "Models", list(curves))]


def without_own_zero(curves: Sequence[Curve], baseline: str | None) -> list[Curve]:
    """Leave one zero line in a relative panel: the first baseline's that is there."""
    first = next((c for c in curves if c.model == baseline), None)
    return [c for c in curves if c.model != baseline or c is first]


def in_rows(panels: Sequence[Panel | None], most: int) -> tuple[tuple[Panel | None, ...], ...]:
    """Arrange panels in rows of at most ``most``; the last row is filled up with None."""
    n = max(1, min(most, len(panels)))
    padded = [*panels, *([None] * (-len(panels) % n))]
    return tuple(tuple(padded[start : start + n]) for start in range(0, len(padded), n))


def dataset_label(dataset: str) -> str:
    """Return the paper's name of a data set, short enough for an axis."""
    known = labels.dataset_label(dataset)
    if known != dataset:
        return known[:1].upper() + known[1:]
    return shorten(printable(dataset) or "(unnamed)", 14)


def shot_places(shots: Iterable[int]) -> tuple[list[int], list[float], list[str], float | None]:
    """Return shots in order, their x positions and labels, and where few-shot ends.

    Positions are log2; "all" is not a number on that axis, so it is set apart behind the largest.
    """
    few = sorted(n for n in set(shots) if n)
    positions = [math.log2(n) for n in few]
    if any(b - a < 0.4 for a, b in itertools.pairwise(positions)):
        positions = [float(index) for index in range(len(few))]  # labels would overlap
    end = None
    labels = [str(n) for n in few]
    if 0 in shots:
        last = positions[-1] if positions else 0.0
        end = last + 0.75 if positions else None
        few.append(0)
        positions.append(last + 1.5 if end is not None else 0.0)
        labels.append("All")
    return few, positions, labels, end


def level_axis(
    selection: CurveSelection, n_shot: int
) -> tuple[list[tuple[float, str, int]], tuple[str, ...]]:
    """Return the places (x, data set, shots) of all data sets of the curves, and their labels."""
    found = {dataset for c in selection.curves for dataset, n in c.cells if n == n_shot}
    datasets = sorted(found, key=dataset_key)
    places = [(float(x), dataset, n_shot) for x, dataset in enumerate(datasets)]
    return places, tuple(dataset_label(dataset) for dataset in datasets)


def shots_of_levels(selection: CurveSelection) -> int:
    """All images, unless the user's results (or, without any, the others) have only few-shot: the most then."""
    own = {n for c in selection.curves if c.own for _, n in c.cells}
    there = own or selection.found(1)
    return 0 if 0 in there else max(there)
