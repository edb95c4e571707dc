"""What is known of the experiments whose numbers are shown: names, units, digits, which direction is better, order.

An experiment that is not described here (a later analysis, somebody's own ``EVAL.NAME``) is shown under its own name.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from dataclasses import dataclass
from typing import NamedTuple

from cog.results import measures
from cog.results.cells import natural_key

#: Units of numbers, as titles have them; "" for numbers without one.
PERCENT, POINTS, UNIT, NONE = "%", "points", "0 to 1", ""

_TYPES = {"logreg": "LogReg", "mlp": "MLP", "mlp_noact": "MLP without activation", "finetune": "fine-tuned"}

_SHORT_TYPES = _TYPES | {"mlp_noact": "MLP no activation"}

_DERIVED = {
    measures.RELATIVE_TO_LOGREG: ("{name} relative to LogReg", PERCENT),
    measures.POINTS_TO_LOGREG: ("{name} minus LogReg", POINTS),
    measures.LOGREG_RELATIVE: ("LogReg on frozen features relative to the {name} model", PERCENT),
    measures.LOGREG_POINTS: ("LogReg on frozen features minus the {name} model", POINTS),
    measures.POINTS_TO_IN1K: ("{name}, blurred minus original IN-1K", POINTS),
}

_METRICS = {"top1": "top-1", "top5": "top-5"}


@dataclass(frozen=True)
class Kind:
    """What one number of one experiment is.

    Attributes:
        group: what it belongs to: an analysis, or a kind of classifier.
        label: a few words, for titles and rows.
        unit: one of the constants of this module.
        decimals: digits after the point that are worth showing.
        significant: whether these are significant digits instead (p-values, which end near zero).
        better: 1: higher, -1: lower, 0: neither.
        signed: whether it is a difference.
        headline: whether it is in overviews.
        note: what a reader of deviations must know, or "".
        order: position among the others.
        short: fewer words, for the rows of overviews; "": the label.
    """

    group: str
    label: str
    unit: str = NONE
    decimals: int = 3
    significant: bool = False
    better: int = 1
    signed: bool = False
    headline: bool = True
    note: str = ""
    order: tuple = ()
    short: str = ""

    @property
    def title(self) -> str:
        """Label and unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def short_title(self) -> str:
        """Few words, and percent."""
        label = self.short or self.label
        return f"{label} (%)" if self.unit == PERCENT else label

    @property
    def arrow(self) -> str:
        """Which direction is better, as one character, unlike those that sort tables."""
        return {1: "▲", -1: "▼", 0: ""}[self.better]


@dataclass(frozen=True)
class ClassifierName:
    """What the name of an evaluation tells.

    Attributes:
        type: ``logreg``, ``mlp``, ``mlp_noact`` or ``finetune``.
        pca_dim: principal components, 0 = none.
        max_per_class: training images per class at most, 0 = all.
    """

    type: str
    pca_dim: int
    max_per_class: int

    @property
    def label(self) -> str:
        """A few words."""
        parts = [_TYPES[self.type]]
        if self.pca_dim:
            parts.append(f"{self.pca_dim} principal components")
        if self.max_per_class:
            parts.append(f"{self.max_per_class} images per class")
        return ", ".join(parts)

    @property
    def short(self) -> str:
        """Fewer words."""
        parts = [_SHORT_TYPES[self.type]]
        if self.pca_dim:
            parts.append(f"PCA {self.pca_dim}")
        if self.max_per_class:
            parts.append(f"max {self.max_per_class} images")
        return ", ".join(parts)


def classifier(experiment: str) -> ClassifierName | None:
    """Return what the name of an evaluation tells; None for analyses and names of one's own."""
    match = measures.CLASSIFIER.fullmatch(experiment)
    if match is None:
        return None
    return ClassifierName(match["type"], int(match["pca"] or 0), int(match["max"] or 0))


@functools.lru_cache(4096)
def describe(experiment: str, quantity: str, n_shot: int = 0) -> Kind:
    """Return what a number is."""
    return (
        _classifier(experiment, quantity, n_shot)
        or _analysis(experiment, quantity)
        or _other(experiment, quantity)
    )


def interval_of(quantity: str) -> tuple[str, str]:
    """Return the names of the ends of the interval of a quantity."""
    return f"{quantity}_low", f"{quantity}_high"


#: What comes with another number and is shown with it, or says it again.
_COMPANIONS = re.compile(r"(?P<base>.+)_(?:low|high|std)")


def companion_of(quantity: str) -> str | None:
    """Return the quantity that this one is an end of the interval of, or the deviation; None for others."""
    match = _COMPANIONS.fullmatch(quantity)
    return match["base"] if match else None


def _other(experiment: str, quantity: str) -> Kind:
    """Describe a number by its name."""
    words = quantity.replace("_", " ")
    unit, decimals = NONE, 3
    if quantity.endswith("_percent"):
        unit, decimals, words = PERCENT, 2, words.removesuffix(" percent")
    elif quantity.startswith("n_"):
        words, decimals = words.replace("n ", "number of ", 1), 0
    elif quantity == "mean_accuracy":
        unit, decimals = PERCENT, 1
    elif quantity == "mean_difference":
        unit, decimals = POINTS, 2
    return Kind(
        group=experiment.split("_")[0],
        label=f"{_analysis_label(experiment)}: {words}",
        unit=unit,
        decimals=decimals,
        better=0,
        signed=unit == POINTS,
        headline=False,
        order=(9, natural_key(experiment), quantity.startswith("n_"), natural_key(quantity)),
    )


def _analysis_label(experiment: str) -> str:
    name, _, rest = experiment.partition("_")
    if name == "cross" and rest:
        return f"classifier of {rest} on other test images"
    if name == "winners" and rest:
        return f"concept by concept against {rest}"
    return f"accuracy and distance{f', {rest}' if rest else ''}" if name == "distance" else experiment


def _classifier(experiment: str, quantity: str, n_shot: int) -> Kind | None:
    found = classifier(experiment)
    if found is None:
        return None
    few = f", N={n_shot}" if n_shot else ""
    place = list(_TYPES).index(found.type)
    order = (
        0 if place == 0 and not found.pca_dim and not found.max_per_class else 6 + 0.1 * place,
        found.max_per_class,
        found.pca_dim,
        n_shot or 1 << 62,
    )
    group = found.type if found.type != "mlp_noact" else "mlp"
    if found.pca_dim:
        group = "pca"
    elif found.max_per_class:
        group = "balanced"
    if quantity in _METRICS:
        return Kind(
            group=group,
            label=f"{found.label}{few}, {_METRICS[quantity]}",
            unit=PERCENT,
            decimals=1,
            headline=quantity == "top1",
            order=(*order, list(_METRICS).index(quantity)),
            short=f"{found.short}{few}{', top-5' if quantity == 'top5' else ''}",
        )
    if quantity in _DERIVED:
        template, unit = _DERIVED[quantity]
        name = found.label if found.type != "finetune" else "fine-tuned"
        return Kind(
            group=group,
            label=template.format(name=name) + few,
            unit=unit,
            decimals=1,
            better=0 if found.type == "finetune" else 1,
            signed=True,
            headline=False,
            order=(*order, 2 + list(_DERIVED).index(quantity)),
            short=f"{found.short}{few} rel. LogReg" if quantity == measures.RELATIVE_TO_LOGREG else "",
        )
    return None


# Label, short label, unit, direction, headline.
_KMEANS = {
    "purity": ("purity, largest class of each cluster", "purity", UNIT, 1, True),
    "purity_v1": (
        "purity as in the paper's first version, largest cluster of each class",
        "purity (v1's)",
        UNIT,
        1,
        True,
    ),
    "ami": ("AMI", "AMI", UNIT, 1, True),
    "nmi": ("NMI", "NMI", UNIT, 1, False),
    "ari": ("ARI", "ARI", UNIT, 1, False),
    "inertia": ("inertia", "inertia", NONE, 0, False),
}
_CLUSTER_NOTE = (
    "k-means: of several initialisations the one with the lowest inertia; "
    "±: standard deviation over all of them."
)
# Label, direction, headline.
_ALIGNMENT = {
    "alignment": ("alignment, distance of images of a class", -1, True),
    "uniformity": ("uniformity, of all images", 0, True),
    "uniformity_v1": ("uniformity with the sign of the paper's first version", 0, False),
    "alignment_by_uniformity": ("alignment divided by uniformity (with v1's sign)", -1, True),
}
_NEIGHBOURS = re.compile(r"(?P<metric>top1|top5)_k(?P<k>\d{1,9})_(?P<vote>[a-z]+)")
_CLASS_MEANS = re.compile(r"(?P<metric>top1|top5)(?:_(?P<distance>[a-z]+))?")


class NeighbourMetric(NamedTuple):
    """Which number of the k-nearest-neighbour analysis one is."""

    k: int
    vote: str
    metric: str


def neighbours(quantity: str) -> NeighbourMetric | None:
    """Return what the name of a number of the k-nearest-neighbour analysis tells; None for others."""
    match = _NEIGHBOURS.fullmatch(quantity)
    return None if match is None else NeighbourMetric(int(match["k"]), match["vote"], match["metric"])


def _analysis(experiment: str, quantity: str) -> Kind | None:
    name = experiment.split("_")[0]
    if name == "kmeans":
        return _kmeans(quantity)
    if name == "knn":
        found = neighbours(quantity)
        if found is None:
            return None
        return Kind(
            group="knn",
            label=f"kNN, k={found.k}, {found.vote}, {_METRICS[found.metric]}",
            unit=PERCENT,
            decimals=1,
            headline=found.k == 20 and found.vote == "weighted" and found.metric == "top1",
            order=(1, found.metric, found.vote != "weighted", found.vote, found.k),
            short=f"kNN, k={found.k}",
        )
    if name == "ncm":
        return _class_means(quantity)
    if name == "alignment":
        return _alignment(quantity)
    if name == "distance":
        return _distance(experiment, quantity)
    if name == "cross":
        return _cross(experiment, quantity)
    if name == "winners":
        return _winners(experiment, quantity)
    return None


def _distance(experiment: str, quantity: str) -> Kind | None:
    _, _, variant = experiment.partition("_")
    rest = f", {variant}" if variant else ""
    if quantity == "spearman":
        return Kind(
            group="distance",
            label="Spearman correlation of accuracy per concept with its similarity to IN-1K" + rest,
            decimals=2,
            better=0,
            headline=not variant,
            order=(5, natural_key(variant), 0),
            short="accuracy ~ similarity, Spearman",
        )
    if quantity in ("nearest_accuracy", "farthest_accuracy"):
        which = quantity.removesuffix("_accuracy")
        where = {"nearest": "nearest to", "farthest": "farthest from"}[which]
        return Kind(
            group="distance",
            label=f"accuracy on the tenth of the concepts {where} IN-1K{rest}",
            unit=PERCENT,
            decimals=1,
            headline=which == "farthest" and not variant,
            order=(5, natural_key(variant), 1 + (which == "farthest")),
            short=f"{which} tenth of the concepts",
        )
    if quantity.startswith("spearman_") and companion_of(quantity) is None:  # of all levels, within one
        level = quantity.removeprefix("spearman_")
        return Kind(
            group="distance",
            label=f"Spearman correlation of accuracy per concept with its similarity to IN-1K within {level}{rest}",
            decimals=2,
            better=0,
            headline=False,
            order=(5, natural_key(variant), 3, natural_key(level)),
        )
    return None


def _cross(experiment: str, quantity: str) -> Kind | None:
    _, _, trained_on = experiment.partition("_")
    if quantity == "confident_percent":
        return Kind(
            group="cross",
            label=f"classifier of {trained_on} on other test images: confident",
            unit=PERCENT,
            decimals=2,
            better=0,
            order=(5.5, natural_key(trained_on), 0),
            short=f"{trained_on} classifier confident here",
        )
    if quantity == "auroc":
        return Kind(
            group="cross",
            label=f"classifier of {trained_on}: its own test images more confident than others, AUROC",
            unit=PERCENT,
            decimals=1,
            order=(5.5, natural_key(trained_on), 1),
            short=f"{trained_on} classifier, AUROC own/here",
        )
    if quantity == "n_confident":  # a mean over seeds
        return dataclasses.replace(_other(experiment, quantity), decimals=1)
    if quantity.startswith("own_"):
        kind = _other(experiment, quantity.removeprefix("own_"))
        label = kind.label.replace(" on other test images: ", " on its own test images: ", 1)
        return dataclasses.replace(kind, label=label)
    return None


def _winners(experiment: str, quantity: str) -> Kind | None:
    _, _, other = experiment.partition("_")
    ahead = {"n_surely_better": "better", "n_surely_worse": "worse"}.get(quantity)
    if quantity == "p_sign_test":
        return dataclasses.replace(
            _other(experiment, quantity),
            label=f"{_analysis_label(experiment)}: p-value of the sign test over images",
            decimals=2,
            significant=True,
        )
    if ahead is None:
        return None
    return Kind(
        group="winners",
        label=f"concepts {ahead} than {other}, beyond chance",
        decimals=0,
        better=1 if ahead == "better" else -1,
        order=(5.6, natural_key(other), ahead == "worse"),
        short=f"concepts surely {ahead} than {other}",
    )


def _class_means(quantity: str) -> Kind | None:
    match = _CLASS_MEANS.fullmatch(quantity)
    if match is None:
        return None
    distance = f", {match['distance']}" if match["distance"] else ""
    return Kind(
        group="ncm",
        label=f"nearest class mean{distance}, {_METRICS[match['metric']]}",
        unit=PERCENT,
        decimals=1,
        headline=match["metric"] == "top1" and match["distance"] in (None, "cosine"),
        order=(2, match["metric"], match["distance"] or ""),
        short="nearest class mean",
    )


def _kmeans(quantity: str) -> Kind | None:
    if quantity not in _KMEANS:
        return None
    label, short, unit, better, headline = _KMEANS[quantity]
    return Kind(
        group="kmeans",
        label=f"k-means {label}",
        unit=unit,
        better=better,
        headline=headline,
        note=_CLUSTER_NOTE,
        order=(3, list(_KMEANS).index(quantity)),
        short=f"k-means {short}",
    )


def _alignment(quantity: str) -> Kind | None:
    base = quantity.removesuffix(f"_{measures.RATIO_TO_IN1K}")
    if base not in _ALIGNMENT:
        return None
    label, better, headline = _ALIGNMENT[base]
    ratio = base != quantity
    return Kind(
        group="alignment",
        label=f"{base.replace('_', ' ')}, relative to the model's own on IN-1K" if ratio else label,
        better=0 if ratio else better,
        headline=headline and not ratio,
        order=(4, ratio, list(_ALIGNMENT).index(base)),
        short=base.replace("_", " "),
    )
