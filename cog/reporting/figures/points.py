"""The points of a curve: values of a quantity along an axis, or pairs of numbers in a plane."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from cog import constants
from cog.reporting.figures.chart import Panel, Point, std_of
from cog.reporting.figures.curves import Curve, CurveSelection, Key, model_label, shorten
from cog.reporting.tables.layout import source_key
from cog.reporting.tables.writers import printable
from cog.results import labels, metric_info
from cog.results.scores import RUNS, SeedAverage
from cog.runtime.json_fields import number

#: What is drawn of scores: themselves, differences to the baseline, or changes from the model's own IN-1K score.
ABSOLUTE, RELATIVE, DROP = "absolute", "relative", "drop"

SPEARMAN: Key = ("distance", "spearman", 0)

# More lines below a figure would be a table.
_MOST_NOTES = 4


def dataset_label(dataset: str) -> str:
    """Return the paper's name of a data set, short enough for an axis."""
    known = labels.dataset_label(dataset)
    if known != dataset:
        return known[:1].upper() + known[1:]
    return shorten(printable(dataset) or "(unnamed)", 14)


def at_places(
    selection: CurveSelection, curve: Curve, places: Sequence[tuple[float, str, Key | None]], quantity: str
) -> list[Point]:
    """Return the points of a curve at places: x, data set and key.

    Error bars are the curve's own deviation: the baseline's is on the zero line, and an IN-1K score is taken as given.
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
            points.append(Point(x, value, std, score, other))
    return points


def pairs(selection: CurveSelection, curve: Curve, _: str | None, *, x_key: Key, y_key: Key) -> list[Point]:
    """Return two numbers against each other, a point for each data set, in their order."""
    scores = ((curve.scores.get((d, x_key)), curve.scores.get((d, y_key))) for d in selection.on([x_key]))
    return [Point(x.value, y.value, math.nan, y, x) for x, y in scores if x is not None and y is not None]


def bins(selection: CurveSelection, curve: Curve, dataset: str | None) -> list[Point]:
    """Return the mean accuracy of concepts by their similarity to IN-1K, and its standard error.

    Bins are as an analysis records them; those that are not as expected are left out.
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
        # The other coordinate, which would not be in the CSV file otherwise.
        similarity = dataclasses.replace(score, metric="similarity", value=x, std=None)
        points.append(Point(x, y, std_of(score), score, similarity))
    return sorted(points, key=lambda point: point.x)


# ---- notes below figures: what cannot be seen in them ------------------------------------------------------
def protocol_notes(selection: CurveSelection, panels: Sequence[Panel]) -> list[str]:
    """Name the scores that lack seeds, and a second baseline."""
    lacking: dict[str, dict[SeedAverage, str]] = {}
    references: set[str] = set()
    for panel, curve, point in _points(panels):
        score = point.cell
        if point.reference is not None and panel.quantity == RELATIVE and curve.own:
            references.add(point.reference.source)
        if score.missing_seeds:
            shots = f" N={score.n_shot}" if score.n_shot else ""
            count = f"{len(score.seeds)} of {len(score.seeds) + len(score.missing_seeds)} seeds"
            lacking.setdefault(curve.label, {})[score] = f"{dataset_label(score.dataset)}{shots}: {count}"
    notes = []
    for label, scores in lacking.items():
        places = list(scores.values())
        shown = ", ".join(places) if len(places) < 4 else f"{len(places)} points, {places[0]}, ..."
        notes.append(f"Incomplete: {label} ({shown}).")
    if len(notes) > 3:
        notes = [*notes[:2], f"Incomplete as well: {len(notes) - 2} more models; see the CSV file."]
    of_paper = {c.source for c in selection.curves if not c.own and c.model == selection.baseline}
    if of_paper and references - of_paper:
        named = ", ".join(shorten(printable(source)) for source in sorted(references, key=source_key))
        label = model_label(str(selection.baseline))
        notes.append(f"Own models are compared with {label} from {named}, not as published.")
    return notes


def experiment_notes(selection: CurveSelection, panels: Sequence[Panel]) -> list[str]:
    """Name the models that lack seeds."""
    lacking: dict[str, set[str]] = {}
    for _, curve, point in _points(panels):
        if point.cell.missing_seeds:
            lacking.setdefault(curve.label, set()).add(dataset_label(point.cell.dataset))
    listed = [f"{label} ({', '.join(sorted(datasets))})" for label, datasets in lacking.items()]
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return [f"Seeds are missing: {', '.join(listed[:3])}{more}; see the CSV file."] if listed else []


def alignment_notes(selection: CurveSelection, panels: Sequence[Panel]) -> list[str]:
    """Add what the paper says of uniformity."""
    return [
        *experiment_notes(selection, panels),
        "The paper's first version gives ranges of uniformity over the six data sets, as positive numbers: "
        "ResNet50 1.8-1.9, SwAV 1.9-2.1, the five others 2.6-3.1.",
    ]


def correlation_notes(selection: CurveSelection, panels: Sequence[Panel]) -> list[str]:
    """Tell correlations of accuracy and similarity with their intervals; of many, those of one's own models."""
    drawn = [(panel.key, series.curve) for panel in panels for series in panel.series]
    lines: dict[str, list[str]] = {}
    for dataset, curve in sorted(drawn, key=lambda place: not place[1].own):
        names = (SPEARMAN[1], *metric_info.interval_of(SPEARMAN[1]))
        value, *ends = (curve.scores.get((dataset, (SPEARMAN[0], name, 0))) for name in names)
        numbers = [f"{end.value:.2f}" for end in (value, *ends) if end is not None]
        text = f"{numbers[0]} [{', '.join(numbers[1:])}]" if len(numbers) == 3 else numbers[0]
        text = text.replace("-", "\N{MINUS SIGN}")
        lines.setdefault(curve.label, []).append(f"{dataset_label(dataset)} {text}")
    notes = [f"{label}: Spearman {'; '.join(parts)}." for label, parts in lines.items()]
    if len(notes) > _MOST_NOTES:
        more = f"Correlations of {len(notes) - _MOST_NOTES} more models are in the tables."
        notes = [*notes[:_MOST_NOTES], more]
    return notes


def _points(panels: Sequence[Panel]) -> list[tuple[Panel, Curve, Point]]:
    return [
        (panel, series.curve, point) for panel in panels for series in panel.series for point in series.points
    ]
