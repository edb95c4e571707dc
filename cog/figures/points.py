"""What stands in a panel: the points of curves, which curves share a panel, and the places on its x axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from cog import names, published
from cog.cells import Cell, dataset_key
from cog.figures import style
from cog.figures.chart import Point, Series, std_of
from cog.figures.curves import Curve, Selection, shorten
from cog.tables import printable
from cog.views.layout import source_key

#: What is shown in the place of a data set beside the paper's six.
OTHER_DATASETS = {names.IN1K_BLURRED: "IN-1K-b", "cog_levels": "All levels"}


def _reference_cells(selection: Selection, curve: Curve) -> Mapping[tuple[str, int], Cell]:
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
Value = Callable[[Curve, Cell], tuple[float, float, Cell | None] | None]


def absolute(selection: Selection) -> Value:
    """Accuracy in percent."""

    def value(curve: Curve, cell: Cell) -> tuple[float, float, Cell | None]:
        score = cell.score(selection.metric)
        assert score is not None
        return score.mean, std_of(score), None

    return value


def relative(selection: Selection) -> Value:
    """Difference to the baseline in points; the error bar is the model's own (the baseline's is on the zero line)."""
    references = {id(curve): _reference_cells(selection, curve) for curve in selection.curves}

    def value(curve: Curve, cell: Cell) -> tuple[float, float, Cell | None] | None:
        other = references[id(curve)].get((cell.dataset, cell.n_shot))
        if other is None:
            return None
        score, against = cell.score(selection.metric), other.score(selection.metric)
        assert score is not None and against is not None
        return score.mean - against.mean, std_of(score), other

    return value


def drop_from_in1k(selection: Selection) -> Value:
    """Change from IN-1K in percent of the IN-1K score, which is taken as given in the error bar."""

    def value(curve: Curve, cell: Cell) -> tuple[float, float, Cell | None] | None:
        other = selection.references[curve.source, curve.model].get((names.IN1K, cell.n_shot))
        against = other.score(selection.metric) if other is not None else None
        score = cell.score(selection.metric)
        if against is None or not against.mean:
            return None
        assert score is not None
        return 100 * (score.mean / against.mean - 1), 100 * std_of(score) / against.mean, other

    return value


def series(
    selection: Selection,
    curves: Iterable[Curve],
    places: Sequence[tuple[float, str, int]],
    value: Value,
) -> tuple[Series, ...]:
    """Return the curves at ``places`` (x, data set, shots) that have at least one point."""
    found = []
    for curve in curves:
        points = []
        for x, dataset, n_shot in places:
            cell = curve.cells.get((dataset, n_shot))
            result = value(curve, cell) if cell is not None else None
            if cell is not None and result is not None:
                points.append(Point(x, result[0], result[1], cell, result[2]))
        if points:
            found.append(
                Series(
                    model=curve.model,
                    source=curve.source,
                    label=curve.label,
                    group=curve.group,
                    style=curve.style,
                    points=tuple(points),
                    own=curve.own,
                    baseline=curve.model == selection.baseline,
                )
            )
    return tuple(found)


def columns(selection: Selection, curves: Sequence[Curve]) -> list[tuple[str, str, list[Curve]]]:
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


def without_own_zero(selection: Selection, curves: Sequence[Curve]) -> list[Curve]:
    """Leave one zero line in a relative panel: the first baseline's that is there."""
    first = next((c for c in curves if c.model == selection.baseline), None)
    return [c for c in curves if c.model != selection.baseline or c is first]


def dataset_label(dataset: str) -> str:
    """Return the paper's name of a data set: ``IN-1K``, ``L3``; others as they are."""
    level = names.cog_level(dataset)
    if dataset == names.IN1K:
        return "IN-1K"
    if dataset in OTHER_DATASETS:
        return OTHER_DATASETS[dataset]
    return shorten(printable(dataset) or "(unnamed)", 14) if level is None else f"L{level}"


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


def level_axis(selection: Selection, n_shot: int) -> tuple[list[tuple[float, str, int]], tuple[str, ...]]:
    """Return the places (x, data set, shots) of all data sets of the curves, and their labels."""
    found = {dataset for c in selection.curves for dataset, n in c.cells if n == n_shot}
    datasets = sorted(found, key=dataset_key)
    places = [(float(x), dataset, n_shot) for x, dataset in enumerate(datasets)]
    return places, tuple(dataset_label(dataset) for dataset in datasets)


def shots_of_levels(selection: Selection) -> int:
    """All images, unless the user's results (or, without any, the others) have only few-shot: the most then."""
    own = {n for c in selection.curves if c.own for _, n in c.cells}
    there = own or selection.found(1)
    return 0 if 0 in there else max(there)
