"""The points of a curve: values of a quantity along an axis, or pairs of numbers in a plane."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from cog import constants
from cog.reporting.figures.chart import Point, std_of
from cog.reporting.figures.curves import Curve, CurveSelection, shorten
from cog.reporting.tables.writers import printable
from cog.results import comparison, labels, uncertainty
from cog.results.comparison import Difference
from cog.results.relative import change_from
from cog.results.scores import RUNS, Key, SeedAverage, interval_of
from cog.results.uncertainty import Estimate
from cog.runtime.json_fields import number

#: Quantities: scores, differences to the baseline, or changes from the model's own IN-1K score.
ABSOLUTE, RELATIVE, DROP = "absolute", "relative", "drop"

SPEARMAN: Key = ("distance", "spearman", 0)


def dataset_label(dataset: str) -> str:
    """Return the paper's name of a data set; other names shortened for an axis."""
    known = labels.dataset_label(dataset)
    if known != dataset:
        return known[:1].upper() + known[1:]
    return shorten(printable(dataset) or "(unnamed)", 14)


def at_places(
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
        value, std, other = score.value, std_of(score), None
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


def pairs(selection: CurveSelection, curve: Curve, _: str | None, *, x_key: Key, y_key: Key) -> list[Point]:
    """Return a point for each data set, in order: the number of ``y_key`` over that of ``x_key``."""
    scores = ((curve.scores.get((d, x_key)), curve.scores.get((d, y_key))) for d in selection.on([x_key]))
    return [Point(x.value, y.value, math.nan, y, x) for x, y in scores if x is not None and y is not None]


def bins(selection: CurveSelection, curve: Curve, dataset: str | None) -> list[Point]:
    """Return the mean accuracies of bins of concepts over their similarity to IN-1K, with standard errors.

    The bins are those in the record of the analysis; invalid ones are left out.
    """
    dataset = dataset or ""
    correlation = curve.scores.get((dataset, SPEARMAN))
    recorded = selection.bins.get((curve.model, dataset)) if curve.source == RUNS else None
    points = []
    for entry in recorded if isinstance(recorded, list) and correlation is not None else ():
        fields = entry if isinstance(entry, dict) else {}
        x, y, error = (number(fields.get(name)) for name in ("similarity", "accuracy", "standard_error"))
        if x is None or y is None or correlation is None:
            continue
        std = None if error is None else abs(error)
        score = dataclasses.replace(
            correlation, metric="accuracy_in_bin", value=y, std=std, by_seed=(), missing_seeds=()
        )
        # As reference of the point, the x coordinate gets into the CSV file.
        similarity = dataclasses.replace(score, metric="similarity", value=x, std=None)
        points.append(Point(x, y, std_of(score), score, similarity))
    return sorted(points, key=lambda point: point.x)
