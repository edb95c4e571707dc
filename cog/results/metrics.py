"""The register of metrics: label, unit, digits, direction and order of every number that is shown.

A number of one's own analysis or ``EVAL.NAME`` is shown under its own name, or as :func:`declare` describes
it.

>>> describe("mlp", "top1", 8).title, describe("own_analysis", "depth_percent").title
('MLP, N=8, top-1 (%)', 'own_analysis: depth (%)')
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

from cog.results.frame import CLASSIFIER, natural_key

METRIC_LABELS = {"top1": "top-1", "top5": "top-5"}

#: Metrics that :func:`cog.results.compare.derived` computes from two numbers.
RELATIVE_TO_LOGREG, LOGREG_RELATIVE = "relative_to_logreg", "logreg_relative"
POINTS_TO_IN1K, RATIO_TO_IN1K = "points_to_in1k", "ratio_to_in1k"

#: Units of numbers in titles; "" for numbers without a unit.
PERCENT, POINTS, UNIT, NONE = "%", "points", "0 to 1", ""

_TYPES = {"logreg": "LogReg", "mlp": "MLP", "mlp_noact": "MLP without activation", "finetune": "fine-tuned"}

_DERIVED = {
    RELATIVE_TO_LOGREG: ("{} relative to LogReg", PERCENT),
    LOGREG_RELATIVE: ("LogReg on frozen features relative to the {} model", PERCENT),
    POINTS_TO_IN1K: ("{}, blurred minus original IN-1K", POINTS),
}

# Numbers that belong to another one: the ends of its interval, its deviation, its range over repetitions.
_COMPANION = re.compile(r"(?P<base>.+)_(?:low|high|std|min|max)")


@dataclass(frozen=True)
class Metric:
    """Description of one number of one evaluation."""

    group: str  # name of an analysis, or of a kind of classifier
    label: str  # name of the number in a few words, for titles and rows
    unit: str = NONE
    decimals: int = 3
    better: int = 1  # 1 if higher is better, -1 if lower is better, 0 if neither
    signed: bool = False  # for differences
    note: str = ""  # note for readers of its deviations
    order: tuple = ()  # sort key among all metrics
    #: Whether the number is that of one repetition, and the range of all is shown instead of a deviation.
    shows_range: bool = False

    @property
    def title(self) -> str:
        """Label and unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


#: Function of the rest of the name of an evaluation ("in1k" of confident_in1k) and the metric; None: not
#: known.
Describe = Callable[[str, str], Metric | None]

_DECLARED: dict[str, Describe] = {}


def declare(analysis: str, metric: Describe) -> None:
    """Declare the metrics of an analysis, named up to its first underscore: ``cross`` for ``cross_x``."""
    _DECLARED[analysis] = metric
    describe.cache_clear()


@functools.lru_cache(4096)
def describe(evaluation: str, metric: str, n_shot: int = 0) -> Metric:
    """Return the description of a number."""
    name, _, rest = evaluation.partition("_")
    declared = _DECLARED[name](rest, metric) if name in _DECLARED else None
    return _classifier(evaluation, metric, n_shot) or declared or _by_name(evaluation, metric)


def companion_of(metric: str) -> str | None:
    """Return the number to which an end of an interval or a deviation belongs; None for other numbers."""
    match = _COMPANION.fullmatch(metric)
    return match["base"] if match else None


def evaluation_label(evaluation: str) -> str:
    """Return the name of a classifier in words, and that of its evaluation: ``MLP (mlp)``, ``my_name``."""
    match = CLASSIFIER.fullmatch(evaluation)
    return evaluation if match is None else f"{_label(match)} ({evaluation})"


def _label(match: re.Match[str]) -> str:
    pca = f"{match['pca']} principal components" if match["pca"] else ""
    most = f"{match['max']} images per class" if match["max"] else ""
    return ", ".join(filter(None, (_TYPES[match["type"]], pca, most)))


def _by_name(evaluation: str, metric: str) -> Metric:
    """Return a description derived from the name of a number, which identifies percentages and counts."""
    words, unit, decimals = metric.replace("_", " "), NONE, 3
    if metric.endswith("_percent"):
        unit, decimals, words = PERCENT, 2, words.removesuffix(" percent")
    elif metric.startswith("n_"):
        words, decimals = words.replace("n ", "number of ", 1), 0
    order = (9, natural_key(evaluation), metric.startswith("n_"), natural_key(metric))
    group = evaluation.partition("_")[0]
    return Metric(group, f"{evaluation}: {words}", unit, decimals, better=0, order=order)


def _classifier(evaluation: str, metric: str, n_shot: int) -> Metric | None:
    match = CLASSIFIER.fullmatch(evaluation)
    if match is None or metric not in {**METRIC_LABELS, **_DERIVED}:
        return None
    few, place = f", N={n_shot}" if n_shot else "", list(_TYPES).index(match["type"])
    is_plain = place == 0 and not match["pca"] and not match["max"]
    sizes = int(match["max"] or 0), int(match["pca"] or 0), n_shot or 1 << 62
    order = (0 if is_plain else 6 + 0.1 * place, *sizes, list({**METRIC_LABELS, **_DERIVED}).index(metric))
    group = "pca" if match["pca"] else "balanced" if match["max"] else match["type"].removesuffix("_noact")
    if metric in METRIC_LABELS:
        label = f"{_label(match)}{few}, {METRIC_LABELS[metric]}"
        return Metric(group, label, PERCENT, 1, order=order)
    template, unit = _DERIVED[metric]
    tuned = match["type"] == "finetune"
    label = template.format("fine-tuned" if tuned else _label(match)) + few
    group = "blurred" if metric == POINTS_TO_IN1K else group
    return Metric(group, label, unit, 1, better=0 if tuned else 1, signed=True, order=order)


# --- the analyses of this toolkit

_NEIGHBORS = re.compile(r"(top1|top5)_k(\d{1,9})_weighted")
_MEANS = re.compile(r"(top1|top5)(?:_([a-z]+))?")
_KMEANS = {
    "purity": "purity, largest class of each cluster",
    "purity_v1": "purity as in the paper's first version, largest cluster of each class",
    "ami": "AMI",
    "nmi": "NMI",
    "ari": "ARI",
    "inertia": "inertia",
}
_BEST = (
    "k-means: of several initializations that of the lowest inertia; [ ]: lowest and highest value of all."
)
_ALIGNMENT = {
    "alignment": "alignment, distance of images of a class",
    "uniformity": "uniformity, of all images",
    "uniformity_v1": "uniformity with the sign of the paper's first version",
    "alignment_by_uniformity": "alignment divided by uniformity (with v1's sign)",
}


def _knn(_: str, metric: str) -> Metric | None:
    if (match := _NEIGHBORS.fullmatch(metric)) is None:
        return None
    top, k = match.groups()
    return Metric("knn", f"kNN, k={k}, weighted, {METRIC_LABELS[top]}", PERCENT, 1, order=(1, top, int(k)))


def _ncm(_: str, metric: str) -> Metric | None:
    if (match := _MEANS.fullmatch(metric)) is None:
        return None
    top, distance = match.groups("")
    label = ", ".join(filter(None, ("nearest class mean", distance, METRIC_LABELS[top])))
    return Metric("ncm", label, PERCENT, 1, order=(2, top, distance))


def _kmeans(_: str, metric: str) -> Metric | None:
    if metric not in _KMEANS:
        return None
    unit, better = (NONE, 0) if metric == "inertia" else (UNIT, 1)
    order, label = (3, list(_KMEANS).index(metric)), f"k-means {_KMEANS[metric]}"
    return Metric("kmeans", label, unit, better=better, note=_BEST, order=order, shows_range=True)


def _alignment(_: str, metric: str) -> Metric | None:
    base = metric.removesuffix(f"_{RATIO_TO_IN1K}")
    if base not in _ALIGNMENT:
        return None
    order = (4, base != metric, list(_ALIGNMENT).index(base))
    if base != metric:
        label = f"{base.replace('_', ' ')}, relative to the model's own on IN-1K"
        return Metric("alignment", label, better=0, order=order)
    better = 0 if base.startswith("uniformity") else -1
    return Metric("alignment", _ALIGNMENT[base], better=better, order=order)


def _confident(trained_on: str, metric: str) -> Metric | None:
    if metric != "confident_percent":
        return None
    label = f"classifier of {trained_on} on other test images: confident"
    return Metric("confident", label, PERCENT, 2, better=0, order=(5.5, natural_key(trained_on)))


_DECLARED |= {"knn": _knn, "ncm": _ncm, "kmeans": _kmeans, "alignment": _alignment, "confident": _confident}
