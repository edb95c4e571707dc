"""The x axes of figures: positions of the ticks, with their labels, data sets and keys."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cog import constants
from cog.analysis.knn import neighbor_metric
from cog.reporting.figures.curves import CurveSelection
from cog.reporting.figures.points import dataset_label
from cog.results import metric_info
from cog.results.scores import LOGREG, Key


@dataclass(frozen=True)
class XAxis:
    """The x axis of a panel.

    Attributes:
        places: x, label, data set and key of each tick; a data set or key of None is filled in by the panel.
        datasets: data sets with a number on this axis; empty: there is nothing to draw.
        label: label of the axis.
        x_break: position of a line between ticks of different kinds, or None.
        n_shot: training images per class of all numbers, 0 = all.
        variant: variant of the numbers, such as the vote of neighbors, for titles.
    """

    places: tuple[tuple[float, str, str | None, Key | None], ...]
    datasets: tuple[str, ...]
    label: str = ""
    x_break: float | None = None
    n_shot: int = 0
    variant: str = ""

    def only(self, datasets: Collection[str]) -> XAxis:
        """Return an axis over data sets restricted to ``datasets``."""
        kept = [place[1:] for place in self.places if place[2] in datasets]
        places = tuple((float(x), *place) for x, place in enumerate(kept))
        return dataclasses.replace(
            self, places=places, datasets=tuple(name for name in self.datasets if name in datasets)
        )


def over_datasets(selection: CurveSelection, keys: Sequence[Key]) -> XAxis:
    """Return the axis of the data sets that have one of the panels' numbers."""
    datasets = selection.on(keys)
    places = tuple((float(x), dataset_label(name), name, None) for x, name in enumerate(datasets))
    return XAxis(places, tuple(datasets))


def over_levels(selection: CurveSelection, keys: Sequence[Key]) -> XAxis:
    """Return the axis of the data sets for accuracies of the protocol with one number of shots.

    The number of shots is that of all images if the user's results (without any, the others) have it, else the largest.
    IN-1K with blurred faces, which is no step between IN-1K and the levels, is left out unless it is selected. Data
    sets other than the paper's are set apart behind the levels.
    """
    highlighted = {key[2] for curve in selection.curves if curve.is_own for _, key in curve.scores}
    there = highlighted or {key[2] for key in selection.numbers()}
    n_shot = 0 if 0 in there else max(there, default=0)
    key = (LOGREG, selection.metric, n_shot)
    axis = over_datasets(selection, [key])
    if selection.datasets is None:
        axis = axis.only([name for name in axis.datasets if name != constants.IN1K_BLURRED] or axis.datasets)
    places = tuple((x, label, dataset, key) for x, label, dataset, _ in axis.places)
    others = [x for x, _, dataset, _ in places if dataset not in constants.DATASETS]
    x_break = others[0] - 0.5 if others and others[0] else None
    return dataclasses.replace(axis, places=places, n_shot=n_shot, x_break=x_break)


def over_shots(selection: CurveSelection, keys: Sequence[Key]) -> XAxis:
    """Return the axis of training images per class; "All" is not a number, so it is set apart behind the largest."""
    keys = sorted(selection.numbers())
    few = sorted({key[2] for key in keys} - {0})
    positions = [math.log2(n) for n in few]
    if any(b - a < 0.4 for a, b in itertools.pairwise(positions)):
        positions = [float(index) for index in range(len(few))]  # labels would overlap
    named = {n: (x, str(n)) for x, n in zip(positions, few, strict=True)}
    if any(key[2] == 0 for key in keys):
        named[0] = (positions[-1] + 1.5 if positions else 0.0, "All")
    x_break = positions[-1] + 0.75 if positions and 0 in named else None
    places = tuple((*named[n], None, (LOGREG, selection.metric, n)) for n in named)
    return XAxis(places, tuple(selection.on(keys)), "training images per class", x_break)


def over_components(selection: CurveSelection, keys: Sequence[Key]) -> XAxis:
    """Return the axis of numbers of principal components; all features are set apart behind the largest."""
    dims: dict[int, Key] = {}
    for key in selection.numbers():
        name = metric_info.classifier(key[0])
        if name is not None and name.type == LOGREG and not name.max_per_class and key[1:] == ("top1", 0):
            dims[name.pca_dim] = key
    whole = dims.pop(0, None)
    axis = _over_numbers(selection, dims, "principal components")
    if whole not in {key for curve in selection.curves for d, key in curve.scores if d in axis.datasets}:
        return axis
    last = axis.places[-1][0]
    return dataclasses.replace(
        axis, places=(*axis.places, (last + 1.0, "all", None, whole)), x_break=last + 0.5
    )


def over_neighbors(selection: CurveSelection, keys: Sequence[Key]) -> XAxis:
    """Return the axis of numbers of neighbors, for the weighted vote if there are results of it."""
    votes: dict[str, dict[int, Key]] = {}
    for key in selection.numbers():
        name = neighbor_metric(key[1]) if key[0] == "knn" else None
        if name is not None and name.metric == "top1" and name.k:
            votes.setdefault(name.vote, {})[name.k] = key
    vote = "weighted" if "weighted" in votes else min(votes, default="")
    return dataclasses.replace(_over_numbers(selection, votes.get(vote, {}), "k"), variant=vote)


def over_columns(selection: CurveSelection, keys: Sequence[Key], *, evaluation: str) -> XAxis:
    """Return the axis of the numbers of an evaluation that are columns of its table, in their order."""
    metrics = {key: metric_info.describe(*key) for key in selection.numbers() if key[0] == evaluation}
    columns = sorted((metric.order, metric.column, key) for key, metric in metrics.items() if metric.column)
    places = tuple((float(x), column, None, key) for x, (_, column, key) in enumerate(columns))
    return XAxis(places, tuple(selection.on(key for _, _, key in columns)))


def _over_numbers(selection: CurveSelection, keys: Mapping[int, Key], label: str) -> XAxis:
    places = tuple((math.log2(n), str(n), None, keys[n]) for n in sorted(keys))
    return XAxis(places, tuple(selection.on(keys.values())), label)


def round_numbers(low: float, high: float) -> tuple[float, ...]:
    """Return three to six round numbers that enclose an interval."""
    span = high - low or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(span))
    for factor in (0.2, 0.5, 1, 2, 5):
        size = step * factor
        first, last = math.floor(low / size), math.ceil(high / size)
        last = max(last, first + 1)
        if last - first <= 5:
            return tuple(round(index * size, 12) for index in range(first, last + 1))
    return (low, high)
