"""The register of metrics: label, unit, digits, direction and order of every number that is shown.

Classifiers are described here; an analysis declares its metrics in the file that computes them (:func:`declare`). An
undeclared number (of a user's own analysis or ``EVAL.NAME``) is shown under its own name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cog.results.frame import CLASSIFIER, natural_key

METRIC_LABELS = {"top1": "top-1", "top5": "top-5"}

#: Metrics that :func:`cog.results.compare.derived` computes from two numbers.
RELATIVE_TO_LOGREG, LOGREG_RELATIVE, POINTS_TO_IN1K = (
    "relative_to_logreg",
    "logreg_relative",
    "points_to_in1k",
)
RATIO_TO_IN1K = "ratio_to_in1k"

#: Units of numbers in titles; "" for numbers without a unit.
PERCENT, POINTS, UNIT, NONE = "%", "points", "0 to 1", ""

#: Note of tables on the intervals of accuracies and of their differences (:mod:`cog.results.uncertainty`).
OVER_CONCEPTS_AND_SEEDS = (
    "[ ]: 95 % interval over concepts (with their images) and seeds; of one seed over concepts."
)

_TYPES = {"logreg": "LogReg", "mlp": "MLP", "mlp_noact": "MLP without activation", "finetune": "fine-tuned"}

_DERIVED = {
    RELATIVE_TO_LOGREG: ("{name} relative to LogReg", PERCENT),
    LOGREG_RELATIVE: ("LogReg on frozen features relative to the {name} model", PERCENT),
    POINTS_TO_IN1K: ("{name}, blurred minus original IN-1K", POINTS),
}

#: Function of the rest of the name of an analysis ("in1k" of cross_in1k) and the quantity; None: unknown quantity.
Describe = Callable[[str, str], "Metric | None"]

_DECLARED: dict[str, tuple[Describe, Callable[[str], str]]] = {}


@dataclass(frozen=True)
class Metric:
    """Description of one number of one experiment."""

    group: str  # name of an analysis, or of a kind of classifier
    label: str  # name of the number in a few words, for titles and rows
    unit: str = NONE  # one of the constants of this module
    decimals: int = 3
    better: int = 1  # 1 if higher is better, -1 if lower is better, 0 if neither
    signed: bool = False  # for differences
    note: str = ""  # note for readers of its deviations, or ""
    order: tuple = ()  # sort key among all metrics
    #: Whether the number is that of one repetition, and the range of all is shown instead of a deviation.
    shows_range: bool = False

    @property
    def title(self) -> str:
        """Label and unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


@dataclass(frozen=True)
class ClassifierName:
    """The parts of the name of an evaluation."""

    type: str  # logreg, mlp, mlp_noact or finetune
    pca_dim: int  # number of principal components, 0 = no reduction
    max_per_class: int  # maximal number of training images per class, 0 = all

    @property
    def label(self) -> str:
        """Name in a few words."""
        parts = [
            _TYPES[self.type],
            f"{self.pca_dim} principal components" if self.pca_dim else "",
            f"{self.max_per_class} images per class" if self.max_per_class else "",
        ]
        return ", ".join(filter(None, parts))


def classifier(experiment: str) -> ClassifierName | None:
    """Return the parts of the name of an evaluation; None for analyses and names given by users."""
    match = CLASSIFIER.fullmatch(experiment)
    if match is None:
        return None
    return ClassifierName(match["type"], int(match["pca"] or 0), int(match["max"] or 0))


def evaluation_label(evaluation: str) -> str:
    """Return the name of a classifier in words, with the name of its evaluation: ``MLP (mlp)``, ``my_name``."""
    name = classifier(evaluation)
    return evaluation if name is None else f"{name.label} ({evaluation})"


def declare(
    analysis: str, metrics: Describe | Mapping[str, Metric], *, title: Callable[[str], str] = lambda rest: ""
) -> None:
    """Declare the metrics of an analysis.

    Args:
        analysis: name of the analysis up to the first underscore: ``cross`` for ``cross_in1k``.
        metrics: metrics by quantity, or a function that returns them.
        title: function that returns the prefix of labels of undeclared numbers, given the rest of the name of the
            analysis; "": the whole name.
    """
    by_rest = metrics if callable(metrics) else lambda _, quantity: metrics.get(quantity)
    _DECLARED[analysis] = (by_rest, title)
    describe.cache_clear()


@functools.lru_cache(4096)
def describe(experiment: str, quantity: str, n_shot: int = 0) -> Metric:
    """Return the description of a number.

    >>> describe("mlp", "top1", 8).title, describe("own_analysis", "depth_percent").title
    ('MLP, N=8, top-1 (%)', 'own_analysis: depth (%)')
    """
    name, _, rest = experiment.partition("_")
    declared = _DECLARED[name][0](rest, quantity) if name in _DECLARED else None
    return _classifier(experiment, quantity, n_shot) or declared or by_name(experiment, quantity)


#: Quantities that are shown together with another one: the ends of its interval, and its deviation.
_COMPANIONS = re.compile(r"(?P<base>.+)_(?P<end>low|high|std|min|max)")


def companion_of(quantity: str) -> str | None:
    """Return the quantity to which an end of an interval or a deviation belongs; None for other quantities."""
    match = _COMPANIONS.fullmatch(quantity)
    return match["base"] if match else None


def by_name(experiment: str, quantity: str) -> Metric:
    """Return a description of a number derived from its name, which identifies percentages, counts and differences."""
    name, _, rest = experiment.partition("_")
    title = _DECLARED[name][1](rest) if name in _DECLARED else ""
    words = quantity.replace("_", " ")
    unit, decimals = NONE, 3
    if quantity.endswith("_percent"):
        unit, decimals, words = PERCENT, 2, words.removesuffix(" percent")
    elif quantity.startswith("n_"):
        words, decimals = words.replace("n ", "number of ", 1), 0
    return Metric(
        group=name,
        label=f"{title or experiment}: {words}",
        unit=unit,
        decimals=decimals,
        better=0,
        order=(9, natural_key(experiment), quantity.startswith("n_"), natural_key(quantity)),
    )


def _classifier(experiment: str, quantity: str, n_shot: int) -> Metric | None:
    name = classifier(experiment)
    if name is None:
        return None
    few = f", N={n_shot}" if n_shot else ""
    place = list(_TYPES).index(name.type)
    order = (
        0 if place == 0 and not name.pca_dim and not name.max_per_class else 6 + 0.1 * place,
        name.max_per_class,
        name.pca_dim,
        n_shot or 1 << 62,
    )
    group = name.type.removesuffix("_noact")
    group = "pca" if name.pca_dim else "balanced" if name.max_per_class else group
    if quantity in METRIC_LABELS:
        return Metric(
            group=group,
            label=f"{name.label}{few}, {METRIC_LABELS[quantity]}",
            unit=PERCENT,
            decimals=1,
            order=(*order, list(METRIC_LABELS).index(quantity)),
        )
    if quantity in _DERIVED:
        template, unit = _DERIVED[quantity]
        group = "blurred" if quantity == POINTS_TO_IN1K else group
        label = name.label if name.type != "finetune" else "fine-tuned"
        return Metric(
            group=group,
            label=template.format(name=label) + few,
            unit=unit,
            decimals=1,
            better=0 if name.type == "finetune" else 1,
            signed=True,
            order=(*order, 2 + list(_DERIVED).index(quantity)),
        )
    return None
