"""Numbers of all kinds in one form: accuracies of classifiers, results of analyses, published means, imported numbers.

A :class:`Score` is one number of one seed, a :class:`SeedAverage` an average over several seeds. The scores of runs
(:mod:`cog.results.run_records`) are averaged here. Analyses (:mod:`cog.results.analysis_records`), papers
(:mod:`cog.results.published`) and imported files (:mod:`cog.results.exchange`) contain averages. Tables, figures and
reports show averages in the same way for all sources.

>>> runs = [Score("my_net", "in1k", "logreg", 0, "top1", value, seed) for seed, value in ((22, 70.0), (37, 71.0))]
>>> (mean,) = average(runs, seeds=(22, 37, 45))
>>> mean.value, mean.std, mean.seeds, mean.missing_seeds
(70.5, 0.5, (22, 37), (45,))
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cog import constants
from cog.data import datasets
from cog.errors import CogError
from cog.results.concept_counts import ConceptCounts

_Item = TypeVar("_Item")
_Group = TypeVar("_Group")

#: ``source`` of runs and analyses found on disk.
RUNS = "runs"

#: ``evaluation`` of the protocol's classifier on all features.
LOGREG = "logreg"

#: Pattern of the names of classifiers of known kinds (:func:`cog.config.evaluation_name`).
CLASSIFIER = re.compile(
    rf"(?P<type>{LOGREG}|mlp_noact|mlp|finetune)(?:_pca(?P<pca>\d{{1,9}}))?(?:_max(?P<max>\d{{1,9}}))?"
)


@dataclass(frozen=True)
class Counts:
    """Numbers of classes and images behind results: ascending, empty if not recorded, several if results disagree."""

    classes: tuple[int, ...] = ()
    train_images: tuple[int, ...] = ()  # of the whole training set; few-shot runs do not record them
    test_images: tuple[int, ...] = ()
    class_lists: tuple[str, ...] = ()  # digests (cog.data.wnids.class_list_digest)

    def __add__(self, other: Counts) -> Counts:
        """Return the counts behind the results of both."""
        return Counts(
            *(
                tuple(sorted({*getattr(self, name), *getattr(other, name)}))
                for name in self.__dataclass_fields__
            )
        )


@dataclass(frozen=True)
class Score:
    """One number of one model on one data set.

    Attributes:
        model: ``<title>_<architecture>``.
        dataset: ``in1k``, ``cog_l1``, ...
        evaluation: name of the classifier (``logreg``, ``mlp``, any ``EVAL.NAME``) or of the analysis (``kmeans``).
        n_shots: training images per class, 0 = all.
        metric: ``top1``, ``ami``, ...; accuracies are in percent.
        value: the number.
        seed: seed of the run; None without randomness, or when only a mean over seeds is known.
        std: population standard deviation over seeds of such a mean; None when it is not known.
        source: ``runs`` (found on disk), ``paper v2``, ``paper v1``, or the label of an imported file.
        epochs: planned number of epochs of the run; None without training, or when it is not known.
        counts: numbers of classes and images behind the number.
        concepts: right answers per concept of a top-1 accuracy; None when they are not known.
    """

    model: str
    dataset: str
    evaluation: str
    n_shots: int
    metric: str
    value: float
    seed: int | None = None
    std: float | None = None
    source: str = RUNS
    epochs: int | None = None
    counts: Counts = Counts()
    concepts: ConceptCounts | None = field(default=None, compare=False, repr=False)


#: Key of a number without model and data set: evaluation, metric, training images per class (0 = all).
Key = tuple[str, str, int]


@dataclass(frozen=True)
class SeedAverage:
    """One number of one model on one data set, averaged over seeds: of runs, an analysis, a publication, or a file.

    Attributes beside those of a :class:`Score`:
        n_shot: training images per class of a classifier, 0 = all.
        value: the number; accuracies in percent. For a classifier, the mean over seeds; for an analysis, possibly
            another value (k-means: that of the best seed).
        std: population standard deviation over seeds; None without randomness, or when it is not known.
        seeds: seeds, ascending; empty without randomness, or when they are not known.
        missing_seeds: expected but absent seeds, ascending.
        by_seed: values in the order of ``seeds``; empty when only ``value`` is known.
        epochs: planned number of epochs of each run, in the order of ``seeds``; or empty.
        concepts: right answers per concept of each run, in the order of ``seeds``; empty when some are not known.
        pretraining: pretraining of the model in the shared file that contains, or will contain, the average; or None.
    """

    model: str
    dataset: str
    evaluation: str
    metric: str
    n_shot: int
    value: float
    std: float | None = None
    seeds: tuple[int, ...] = ()
    missing_seeds: tuple[int, ...] = ()
    by_seed: tuple[float, ...] = ()
    source: str = RUNS
    epochs: tuple[int, ...] = ()
    counts: Counts = Counts()
    concepts: tuple[ConceptCounts, ...] = field(default=(), compare=False, repr=False)
    pretraining: str | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> Key:
        """Evaluation, metric and number of shots."""
        return self.evaluation, self.metric, self.n_shot

    @property
    def place(self) -> tuple[str, str, Key, str]:
        """Model, data set, :attr:`key` and source, which together identify an average."""
        return self.model, self.dataset, self.key, self.source

    @property
    def values(self) -> dict[int, float]:
        """Values by seed; empty when they are not known."""
        return dict(zip(self.seeds, self.by_seed, strict=True)) if self.by_seed else {}

    @property
    def n_expected(self) -> int:
        """Number of seeds that should be there."""
        return len(self.seeds) + len(self.missing_seeds)


#: Fields of a score that identify an average over seeds.
PLACE = ("model", "dataset", "evaluation", "n_shots", "metric", "source")


def average(scores: Iterable[Score], *, seeds: Iterable[int] = ()) -> list[SeedAverage]:
    """Return averages over seeds: mean and population standard deviation ``sqrt(sum((x - mean) ** 2) / n)``.

    A score without a seed is already an average and keeps its values; a single seed has no deviation.

    Args:
        scores: scores of any models, data sets, evaluations and metrics.
        seeds: seeds that each average of runs should have; empty: :func:`expected_seeds` of its evaluation.

    Returns:
        One average for each combination of the fields in :data:`PLACE`, in the order of first appearance.

    Raises:
        CogError: when a combination has two scores of the same seed, or both an average and single seeds.
    """
    groups = grouped(scores, operator.attrgetter(*PLACE))
    there: dict[str, set[int]] = {}
    for place, group in groups.items():
        if place[-1] == RUNS:
            there.setdefault(group[0].evaluation, set()).update(s.seed for s in group if s.seed is not None)
    expected = {name: sorted(set(seeds)) or expected_seeds(name, some) for name, some in there.items()}
    return [
        _average(group, expected[group[0].evaluation] if group[0].source == RUNS else ())
        for group in groups.values()
    ]


def expected_seeds(evaluation: str, seeds: set[int]) -> Sequence[int]:
    """Return the seeds that averages of an evaluation should have, given the seeds of all its runs.

    They are the protocol's five seeds if these include all seeds, else the seeds; none for fine-tuning, since a
    backbone is usually fine-tuned once, and not once for each seed.
    """
    if evaluation.startswith("finetune"):
        return ()
    return constants.SEEDS if seeds <= set(constants.SEEDS) else sorted(seeds)


def _average(group: Sequence[Score], expected: Sequence[int]) -> SeedAverage:
    first = group[0]
    by_seed = {score.seed: score for score in group}
    seeds = tuple(sorted(seed for seed in by_seed if seed is not None))
    if len(by_seed) < len(group) or (seeds and None in by_seed):
        wrong = (
            "an average beside single seeds" if len(by_seed) == len(group) else "two numbers of the same seed"
        )
        raise CogError(f"{first.model} on {first.dataset} ({first.evaluation}, {first.metric}) has {wrong}")
    ordered = [by_seed[seed] for seed in seeds]
    values = tuple(score.value for score in ordered)
    mean, std = mean_std(values) if values else (first.value, first.std)
    std = None if len(values) == 1 else std
    epochs = [score.epochs for score in ordered if score.epochs is not None]
    concepts = [score.concepts for score in ordered if score.concepts is not None]
    counts, *other_counts = {score.counts for score in group}
    return SeedAverage(
        first.model,
        first.dataset,
        first.evaluation,
        first.metric,
        first.n_shots,
        mean,
        std,
        seeds,
        tuple(seed for seed in expected if seed not in by_seed) if seeds else (),
        values,
        first.source,
        tuple(epochs) if len(epochs) == len(seeds) else (),
        sum(other_counts, counts),
        tuple(concepts) if len(concepts) == len(seeds) else (),
    )


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the population standard deviation of at least one number."""
    mean = statistics.fmean(values)
    # statistics.pstdev computes with fractions and is a hundred times slower; fsum also rounds only once.
    variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
    return mean, 0.0 if min(values) == max(values) else math.sqrt(variance)


def single(averages: Iterable[SeedAverage]) -> list[Score]:
    """Return scores: one for each seed of averages of classifiers, one for each other average.

    >>> single([SeedAverage("my_net", "in1k", "logreg", "top1", 0, 70.5, 0.5, (22,), by_seed=(70.5,))])[0].seed
    22
    """
    scores = []
    for a in averages:
        place = a.model, a.dataset, a.evaluation, a.n_shot, a.metric
        if a.by_seed and is_classifier(a.evaluation):
            epochs, concepts = a.epochs or (None,) * len(a.seeds), a.concepts or (None,) * len(a.seeds)
            scores += [
                Score(*place, value, seed, None, a.source, n, a.counts, c)
                for seed, value, n, c in zip(a.seeds, a.by_seed, epochs, concepts, strict=True)
            ]
        else:
            scores.append(Score(*place, a.value, None, a.std, a.source, None, a.counts))
    return scores


def of_metric(averages: Iterable[SeedAverage], metric: str) -> list[SeedAverage]:
    """Return the averages of one metric."""
    return [average for average in averages if average.metric == metric]


def interval_of(metric: str) -> tuple[str, str]:
    """Return the names of the metrics that are the lower and upper end of the interval of a metric."""
    return f"{metric}_low", f"{metric}_high"


def as_logreg(averages: Iterable[SeedAverage]) -> list[SeedAverage]:
    """Return averages of another evaluation renamed to logistic regression, for display in its place."""
    return [a if a.evaluation == LOGREG else dataclasses.replace(a, evaluation=LOGREG) for a in averages]


def is_classifier(evaluation: str) -> bool:
    """Return whether an evaluation is a classifier of a known kind, and not an analysis or a user's own name."""
    return CLASSIFIER.fullmatch(evaluation) is not None


def is_protocol(average: SeedAverage) -> bool:
    """Return whether an average is an accuracy of the protocol's classifier: logistic regression on all features."""
    return average.evaluation == LOGREG and average.metric in ("top1", "top5")


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Group]) -> dict[_Group, list[_Item]]:
    """Return items grouped by a key, groups and items in the order of first appearance.

    >>> grouped(["cog_l1", "in1k", "cog_l5"], lambda dataset: dataset[:3])
    {'cog': ['cog_l1', 'cog_l5'], 'in1': ['in1k']}
    """
    groups: dict[_Group, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


@functools.lru_cache(4096)
def natural_key(name: str) -> tuple[Any, ...]:
    """Return a sort key that orders ``x2`` before ``x10``; ties are broken by the plain spelling."""
    parts = re.split(r"([0-9]+)", name)
    return tuple(int(part) if index % 2 else part.casefold() for index, part in enumerate(parts)), name


@functools.lru_cache(4096)
def dataset_key(dataset: str) -> tuple[Any, ...]:
    """Return the sort key of a data set: order of :mod:`cog.data.datasets`, then other data sets by name."""
    position = datasets.position(dataset)
    return (1, (), natural_key(dataset)) if position is None else (0, position, ())
