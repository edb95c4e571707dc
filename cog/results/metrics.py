"""The register of metrics: label, unit, digits, direction and order of every number that is shown.

A number of one's own analysis or ``EVAL.NAME`` is shown under its own name, or as :data:`DECLARED` says.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cog.results.frame import CLASSIFIER, natural_key

METRIC_LABELS = {"top1": "top-1", "top5": "top-5"}

#: Units of numbers in titles.
PERCENT, UNIT, NONE = "%", "0 to 1", ""

_TYPES = {"logreg": "LogReg", "mlp": "MLP", "mlp_noact": "MLP without activation", "finetune": "fine-tuned"}

#: Numbers of classifiers (:func:`cog.results.compare.derived`), with places for the classifier and the shots.
_OF_CLASSIFIERS = {
    **{name: f"{{}}{{}}, {label}" for name, label in METRIC_LABELS.items()},
    "relative_to_logreg": "{} relative to LogReg{}",
    "logreg_relative": "LogReg on frozen features relative to the {} model{}",
}


@dataclass(frozen=True)
class Metric:
    """Description of one number of one evaluation."""

    #: Name in a few words; of a declared number, ``{0}`` and ``{1}`` stand for what the groups of its pattern
    #: match, and ``{of}`` for the rest of the name of the evaluation ("in1k" of confident_in1k).
    label: str
    unit: str = NONE
    decimals: int = 3
    better: int = 1  # 1 if higher is better, -1 if lower is better, 0 if neither
    signed: bool = False  # for differences
    note: str = ""  # for readers of its deviations
    shows_range: bool = False  # of repetitions, whose one is the number, instead of a deviation
    group: str = ""  # name of an analysis, or of a kind of classifier
    order: tuple = ()  # sort key among all metrics

    @property
    def title(self) -> str:
        """Label and unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


_BEST = "k-means: of several initializations that of the lowest inertia; [ ]: lowest and highest value."
_KMEANS = {
    "purity": "purity, largest class of each cluster",
    "purity_v1": "purity as in the paper's first version, largest cluster of each class",
    **{name: name.upper() for name in ("ami", "nmi", "ari")},
}

#: Metrics by the name of the analysis up to its first underscore, then by a pattern of their names, in order.
DECLARED: dict[str, Mapping[str, Metric]] = {
    "knn": {"(top[15])_k([0-9]{1,9})_weighted": Metric("kNN, k={1}, weighted, {0}", PERCENT, 1)},
    "ncm": {
        "(top[15])": Metric("nearest class mean, {0}", PERCENT, 1),
        "(top[15])_([a-z]+)": Metric("nearest class mean, {1}, {0}", PERCENT, 1),
    },
    "kmeans": {
        **{n: Metric(f"k-means {label}", UNIT, note=_BEST, shows_range=True) for n, label in _KMEANS.items()},
        "inertia": Metric("k-means inertia", better=0, note=_BEST, shows_range=True),
    },
    "alignment": {
        "alignment": Metric("alignment, distance of images of a class", better=-1),
        "uniformity": Metric("uniformity, of all images", better=0),
        "uniformity_v1": Metric("uniformity with the sign of the paper's first version", better=0),
        "alignment_by_uniformity": Metric("alignment divided by uniformity (with v1's sign)", better=-1),
    },
    "confident": {
        "confident_percent": Metric("classifier of {of} on other test images: confident", PERCENT, 2, 0),
    },
}


def describe(evaluation: str, metric: str, n_shot: int = 0) -> Metric:
    """Return the description of a number."""
    if (match := CLASSIFIER.fullmatch(evaluation)) and metric in _OF_CLASSIFIERS:
        return _of_classifier(match, metric, n_shot)
    name, _, rest = evaluation.partition("_")
    for row, (pattern, declared) in enumerate(DECLARED.get(name, {}).items()):
        if found := re.fullmatch(pattern, metric):
            parts = [METRIC_LABELS.get(word, word) for word in found.groups()]
            label = declared.label.format(*parts, of=rest)
            place = (1, list(DECLARED).index(name), row, natural_key(rest), natural_key(metric))
            return replace(declared, label=label, group=name, order=place)
    is_percent, is_count = metric.endswith("_percent"), metric.startswith("n_")
    words = re.sub("^n ", "number of ", metric.removesuffix("_percent").replace("_", " "))
    unit, decimals = (PERCENT, 2) if is_percent else (NONE, 0 if is_count else 3)
    order = (3, natural_key(evaluation), is_count, natural_key(metric))
    return Metric(f"{evaluation}: {words}", unit, decimals, better=0, group=name, order=order)


def classifier_label(match: re.Match[str]) -> str:
    """Return the words for a name of a classifier."""
    pca = f", {match['pca']} principal components" if match["pca"] else ""
    most = f", {match['max']} images per class" if match["max"] else ""
    return _TYPES[match["type"]] + pca + most


def _of_classifier(match: re.Match[str], metric: str, n_shot: int) -> Metric:
    is_change, few = metric not in METRIC_LABELS, f", N={n_shot}" if n_shot else ""
    label = _OF_CLASSIFIERS[metric].format(classifier_label(match), few)
    group = "pca" if match["pca"] else "balanced" if match["max"] else match["type"].removesuffix("_noact")
    better = 0 if is_change and match["type"] == "finetune" else 1
    kind, sizes = list(_TYPES).index(match["type"]), (int(match[name] or 0) for name in ("max", "pca"))
    sort = kind, *sizes, n_shot or 1 << 62, list(_OF_CLASSIFIERS).index(metric)
    order = (0 if match[0] == "logreg" else 2, *sort)
    return Metric(label, PERCENT, 1, better, signed=is_change, group=group, order=order)
