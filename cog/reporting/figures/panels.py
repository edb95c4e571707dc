"""Panels of figures: the points of curves at the places of an x axis."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import cog.reporting.figures.style as style
from cog import constants
from cog.errors import printable, some
from cog.reporting.figures.chart import Panel, Point, Series
from cog.reporting.figures.curves import Curve, CurveSelection, model_label, shorten
from cog.reporting.tables.layout import source_key
from cog.results import comparison, labels, published, uncertainty
from cog.results.comparison import Difference
from cog.results.relative import change_from
from cog.results.scores import Key, SeedAverage, interval_of
from cog.results.uncertainty import Estimate

#: Quantities: scores, differences to the baseline, or changes from the model's own IN-1K score.
ABSOLUTE, RELATIVE, DROP = "absolute", "relative", "drop"

UNITS = {ABSOLUTE: "percent", RELATIVE: "points", DROP: "percent of the IN-1K score"}


class Place(NamedTuple):
    """A tick of an x axis with its label; a data set or key of None is filled in by the panel."""

    x: float
    label: str
    dataset: str | None
    key: Key | None


@dataclass(frozen=True)
class XAxis:
    """The x axis of a panel.

    Attributes:
        places: its ticks.
        datasets: data sets with a number on this axis; empty: there is nothing to draw.
        label: label of the axis.
        x_break: position of a line between ticks of different kinds, or None.
        n_shot: training images per class of all numbers, 0 = all.
    """

    places: tuple[Place, ...]
    datasets: tuple[str, ...]
    label: str = ""
    x_break: float | None = None
    n_shot: int = 0

    def only(self, datasets: Iterable[str]) -> XAxis:
        """Return an axis over data sets restricted to ``datasets``."""
        wanted = set(datasets)
        kept = [place for place in self.places if place.dataset in wanted]
        return dataclasses.replace(
            self,
            places=tuple(place._replace(x=float(x)) for x, place in enumerate(kept)),
            datasets=tuple(name for name in self.datasets if name in wanted),
        )


class ModelGroup(NamedTuple):
    """Curves of a group of models, with its name and title."""

    name: str
    title: str
    curves: Sequence[Curve]


def dataset_label(dataset: str) -> str:
    """Return the paper's name of a data set; other names shortened for an axis."""
    known = labels.dataset_label(dataset)
    if known != dataset:
        return known[:1].upper() + known[1:]
    return shorten(printable(dataset) or "(unnamed)", 14)


def over_datasets(selection: CurveSelection, keys: Sequence[Key]) -> XAxis:
    """Return the axis of the data sets that have one of the panels' numbers."""
    datasets = selection.on(keys)
    return XAxis(
        tuple(Place(float(x), dataset_label(name), name, None) for x, name in enumerate(datasets)),
        tuple(datasets),
    )


def over_numbers(selection: CurveSelection, keys: Mapping[int, Key], label: str) -> XAxis:
    """Return a logarithmic axis of the numbers that ``keys`` stand for."""
    places = tuple(Place(math.log2(n), str(n), None, keys[n]) for n in sorted(keys))
    return XAxis(places, tuple(selection.on(keys.values())), label)


def panel(
    selection: CurveSelection,
    axis: XAxis,
    key: str,
    *,
    quantity: str = ABSOLUTE,
    number: Key | None = None,
    dataset: str = "",
    curves: Sequence[Curve] | None = None,
    title: str = "",
    y_label: str = "",
    unit: str | None = None,
    y_group: str = "",
) -> Panel | None:
    """Return a panel; None when it would have no points beside those of the zero line.

    Args:
        selection: the curves, and the baseline.
        axis: x axis.
        key: name of the panel.
        quantity: what is drawn of scores; the numbers of ``number`` are drawn as they are.
        number: key of the displayed numbers; None: the keys of the axis.
        dataset: data set where the axis has none.
        curves: curves to draw; None: all.
        title: text above the axes.
        y_label: label of the y axis.
        unit: unit of the numbers; None: that of the quantity.
        y_group: name that panels with common y limits share; "": the quantity.
    """
    drawn = quantity if number is None else ABSOLUTE
    curves = selection.curves if curves is None else curves
    if drawn == RELATIVE:
        if selection.baseline is None:
            return None
        # There is one zero line: that of the first curve of the baseline.
        zero = next((curve for curve in curves if curve.model == selection.baseline), None)
        curves = [curve for curve in curves if curve.model != selection.baseline or curve is zero]
        axis = _with_reference(selection, axis)
    places = [(p.x, p.dataset or dataset, p.key or number) for p in axis.places]
    series = [
        Series(curve, tuple(points), curve.model == selection.baseline)
        for curve in curves
        if (points := _points(selection, curve, places, drawn))
    ]
    on = {point.cell.dataset for line in series for point in line.points}
    only_zero = (drawn == RELATIVE and all(line.baseline for line in series)) or (
        drawn == DROP and on <= {constants.IN1K}
    )
    if not series or only_zero:
        return None
    return Panel(
        key=key,
        title=title,
        quantity=quantity,
        unit=UNITS[quantity] if unit is None else unit,
        y_label=y_label,
        x_label=axis.label,
        ticks=tuple(place.x for place in axis.places),
        tick_labels=tuple(place.label for place in axis.places),
        series=tuple(series),
        y_group=y_group or quantity,
        x_break=axis.x_break,
    )


def _with_reference(selection: CurveSelection, axis: XAxis) -> XAxis:
    """Return an axis over data sets without those on which nothing can be compared; other axes as they are."""
    if not any(place.dataset for place in axis.places):
        return axis
    return axis.only(
        place.dataset
        for place in axis.places
        for curve in selection.curves
        if place.dataset and place.key and curve.model != selection.baseline
        if (place.dataset, place.key) in curve.scores
        if selection.reference(curve, place.dataset, place.key) is not None
    )


def _points(
    selection: CurveSelection, curve: Curve, places: Sequence[tuple[float, str, Key | None]], quantity: str
) -> list[Point]:
    """Return the points of a curve at ``places``: x, data set and key.

    Error bars show the deviation of the curve alone: that of the baseline is on the zero line, and IN-1K scores are
    taken as exact.
    """
    points = []
    for x, dataset, key in places:
        score = None if key is None else curve.scores.get((dataset, key))
        if score is None or key is None:
            continue
        value, other = score.value, None
        std = math.nan if score.std is None else score.std
        if quantity == RELATIVE:
            other = selection.reference(curve, dataset, key)
            value -= other.value if other is not None else 0.0
        elif quantity == DROP:
            other = selection.references[curve.source, curve.model].get((constants.IN1K, key))
            if other is not None and other.value:
                value, std = 100 * (value / other.value - 1), 100 * std / other.value
            else:
                other = None
        if quantity == ABSOLUTE or other is not None:
            points.append(Point(x, value, std, score, other, *_interval(curve, score, other, quantity)))
    return points


def _interval(
    curve: Curve, score: SeedAverage, other: SeedAverage | None, quantity: str
) -> tuple[float, float]:
    """Return the ends of the interval over concepts and seeds of a score or difference; NaN if they are unknown.

    Analyses record the ends as separate numbers beside the score.
    """
    ends = (
        curve.scores.get((score.dataset, (score.evaluation, name, score.n_shot)))
        for name in interval_of(score.metric)
    )
    stated = [end.value for end in ends if end is not None]
    if quantity == ABSOLUTE and len(stated) == 2:
        return stated[0], stated[1]
    estimate: Estimate | Difference | None = None
    if quantity == ABSOLUTE:
        estimate = uncertainty.accuracy(score.concepts)
    elif other is None:
        estimate = None
    elif quantity == RELATIVE:
        # The interval of a difference is over the common seeds, the point over all seeds of both.
        has_interval = score.seeds == other.seeds and score.model != other.model
        estimate = comparison.difference(score, other) if has_interval else None
    elif quantity == DROP and other is not score:
        estimate = change_from(score, other)
    return (estimate and estimate.interval) or (math.nan, math.nan)


def plane(selection: CurveSelection, key: str, *, x_key: Key, y_key: Key, title: str) -> Panel | None:
    """Return a panel with a point of each curve and data set: the number of ``y_key`` over that of ``x_key``."""
    series = []
    for curve in selection.curves:
        pairs = (
            (curve.scores.get((name, x_key)), curve.scores.get((name, y_key)))
            for name in selection.on([x_key])
        )
        points = [
            Point(x.value, y.value, math.nan, y, x) for x, y in pairs if x is not None and y is not None
        ]
        if points:
            series.append(Series(curve, tuple(points), curve.model == selection.baseline))
    return Panel(key, title, ABSOLUTE, "", "", "", (), (), tuple(series), key) if series else None


def groups(selection: CurveSelection) -> list[ModelGroup]:
    """Return the curves by group of models, with the reference and the baseline in each group.

    The user's models are in all groups, except models of the paper, which are in their group of the paper. If they are
    more than ``style.MANY``, or if there is no other group, they have a separate group.
    """
    curves = selection.curves
    categories = [
        category
        for category in published.CATEGORY_LABELS
        if category != "reference" and any(c.category == category and not c.is_own for c in curves)
    ]
    free = [c for c in curves if c.is_own and c.category not in categories]
    shared = [
        c
        for c in curves
        if not c.is_own and (c.category in ("", "reference") or c.model == selection.baseline)
    ]
    everywhere = free if categories and len(free) <= style.MANY else []
    members = {
        category: [*shared, *everywhere, *(c for c in curves if c.category == category)]
        for category in categories
    }
    if free and not everywhere:
        members["own"] = [*shared, *free]
    titles = {**published.CATEGORY_LABELS, "own": style.OWN, "models": "Models"}
    chosen = {name: {id(c) for c in some} for name, some in (members or {"models": [*curves]}).items()}
    return [
        ModelGroup(name, titles[name], [c for c in curves if id(c) in ids]) for name, ids in chosen.items()
    ]


def in_rows(panels: Sequence[Panel | None], most: int) -> list[tuple[Panel | None, ...]]:
    """Return panels in rows of at most ``most``; the last row is filled up with None."""
    n = min(most, len(panels))
    padded = [*panels, *([None] * (-len(panels) % n if n else 0))]
    return [tuple(padded[start : start + n]) for start in range(0, len(padded), n or 1)]


def notes(selection: CurveSelection, panels: Iterable[Panel]) -> tuple[str, ...]:
    """Return notes on models that lack seeds, and on a baseline of another source than the published one."""
    lacking: dict[str, dict[str, None]] = {}
    references: set[str] = set()
    for drawn in panels:
        for series in drawn.series:
            for point in series.points:
                if point.cell.missing_seeds:
                    lacking.setdefault(series.curve.label, {})[dataset_label(point.cell.dataset)] = None
                if point.reference is not None and drawn.quantity == RELATIVE and series.curve.is_own:
                    references.add(point.reference.source)
    listed = [f"{label} ({', '.join(datasets)})" for label, datasets in lacking.items()]
    made = [f"Seeds are missing: {some(listed)}; see the CSV file."] if listed else []
    of_paper = {c.source for c in selection.curves if not c.is_own and c.model == selection.baseline}
    if of_paper and references - of_paper:
        named = ", ".join(shorten(printable(source)) for source in sorted(references, key=source_key))
        label = model_label(str(selection.baseline))
        made.append(f"Own models are compared with {label} from {named}, not as published.")
    return tuple(made)
