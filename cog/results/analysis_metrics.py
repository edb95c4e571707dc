"""Labels, units and directions of the numbers of the analyses of this toolkit."""

from __future__ import annotations

import re
from typing import NamedTuple

from cog.results.labels import METRIC_LABELS
from cog.results.metric_info import NONE, PERCENT, UNIT, Metric, declare
from cog.results.relative import RATIO_TO_IN1K
from cog.results.scores import natural_key

_NEIGHBORS = re.compile(r"(?P<metric>top1|top5)_k(?P<k>\d{1,9})_weighted")
_MEANS = re.compile(r"(?P<metric>top1|top5)(?:_(?P<distance>[a-z]+))?")


class NeighborMetric(NamedTuple):
    """The parts of the name of a number of the k-nearest-neighbor analysis."""

    k: int
    metric: str


def neighbor_metric(quantity: str) -> NeighborMetric | None:
    """Return the parts of the name of a number of the k-nearest-neighbor analysis; None for other names."""
    match = _NEIGHBORS.fullmatch(quantity)
    return None if match is None else NeighborMetric(int(match["k"]), match["metric"])


def _knn(_: str, quantity: str) -> Metric | None:
    name = neighbor_metric(quantity)
    if name is None:
        return None
    return Metric(
        group="knn",
        label=f"kNN, k={name.k}, weighted, {METRIC_LABELS[name.metric]}",
        unit=PERCENT,
        decimals=1,
        order=(1, name.metric, name.k),
    )


def _ncm(_: str, quantity: str) -> Metric | None:
    match = _MEANS.fullmatch(quantity)
    if match is None:
        return None
    distance = f", {match['distance']}" if match["distance"] else ""
    return Metric(
        group="ncm",
        label=f"nearest class mean{distance}, {METRIC_LABELS[match['metric']]}",
        unit=PERCENT,
        decimals=1,
        order=(2, match["metric"], match["distance"] or ""),
    )


_KMEANS = {
    "purity": ("purity, largest class of each cluster", UNIT, 1),
    "purity_v1": ("purity as in the paper's first version, largest cluster of each class", UNIT, 1),
    "ami": ("AMI", UNIT, 1),
    "nmi": ("NMI", UNIT, 1),
    "ari": ("ARI", UNIT, 1),
    "inertia": ("inertia", NONE, 0),
}
_NOTE = (
    "k-means: of several initializations the one with the lowest inertia; "
    "[ ]: the lowest and the highest value of all of them."
)
_ALIGNMENT = {
    "alignment": ("alignment, distance of images of a class", -1),
    "uniformity": ("uniformity, of all images", 0),
    "uniformity_v1": ("uniformity with the sign of the paper's first version", 0),
    "alignment_by_uniformity": ("alignment divided by uniformity (with v1's sign)", -1),
}


def _alignment(_: str, quantity: str) -> Metric | None:
    base = quantity.removesuffix(f"_{RATIO_TO_IN1K}")
    if base not in _ALIGNMENT:
        return None
    label, better = _ALIGNMENT[base]
    ratio = base != quantity
    return Metric(
        group="alignment",
        label=f"{base.replace('_', ' ')}, relative to the model's own on IN-1K" if ratio else label,
        better=0 if ratio else better,
        order=(4, ratio, list(_ALIGNMENT).index(base)),
    )


def _confident(trained_on: str, quantity: str) -> Metric | None:
    if quantity != "confident_percent":
        return None
    return Metric(
        group="confident",
        label=f"classifier of {trained_on} on other test images: confident",
        unit=PERCENT,
        decimals=2,
        better=0,
        order=(5.5, natural_key(trained_on)),
    )


declare("knn", _knn)
declare("ncm", _ncm)
declare(
    "kmeans",
    {
        name: Metric(
            group="kmeans",
            label=f"k-means {label}",
            unit=unit,
            better=better,
            note=_NOTE,
            order=(3, place),
            shows_range=True,
        )
        for place, (name, (label, unit, better)) in enumerate(_KMEANS.items())
    },
)
declare("alignment", _alignment)
declare(
    "confident", _confident, title=lambda data: f"classifier of {data} on other test images" if data else ""
)
