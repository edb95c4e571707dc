"""Statements about the difference between a model and a baseline, and how far they can be trusted.

*Paired over seeds and concepts.* Runs of two models with the same seed share what the seed decides: the split for the
search, the images drawn in few-shot, the order of training. They are tested on the same images of the same concepts.
So the difference is taken seed by seed and concept by concept, and gets an interval over both
(:mod:`cog.results.uncertainty`). A verdict ("higher", "lower") is given only where the interval excludes zero after
Holm's correction for the number of comparisons shown beside each other (:func:`judge`).

*No verdict* is given where right answers per concept are not known (published numbers, files that do not have them,
runs that do not and whose predictions cannot be read), where two models have no two seeds in common, and where they
were tested on different images: there is the difference and the deviation over seeds, paired where seeds are common,
else the combined one ``sqrt(s1 ** 2 + s2 ** 2)`` of two single runs. Seeds vary the classifier's training (and the
images drawn in few-shot) alone, and a difference that all seeds agree on may rest on a handful of images.

What none of these covers: another pretraining of the same method.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import statistics
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from cog.results import uncertainty
from cog.results.concept_counts import ConceptCounts
from cog.results.relative import points
from cog.results.scores import SeedAverage, dataset_key, grouped

#: Probability of any false verdict among the comparisons shown beside each other.
ERROR_RATE = 0.05

#: Half a unit of the last digit of the published means and deviations.
PUBLISHED_ROUNDING = 0.05

# Decimal fractions are not exact in binary: 75.9 - 75.8 is a little more than 0.1.
_BINARY = 1e-9


@dataclass(frozen=True)
class Difference:
    """A model against a baseline on one data set with one number of shots.

    Attributes:
        average: of the model.
        baseline: of the baseline: the same metric, data set and number of shots.
        mean: model minus baseline in points (percent of the test images).
        low: lower end of the 95 % interval over concepts, or images of these, and common seeds; None where it is not
            known.
        high: upper end.
        deviation: over seeds. Paired: sample standard deviation of the differences (None for one seed); unpaired:
            combined deviation of single runs (None when either is not known).
        seeds: the common seeds; empty when unpaired.
        p: two-sided p-value of its being zero, over concepts whatever the interval; None where there is none.
        p_holm: the same after Holm's correction; None before :func:`judge`.
        unknown: why there is no interval over concepts, or no verdict; "" when there may be one.
    """

    average: SeedAverage
    baseline: SeedAverage
    mean: float
    low: float | None
    high: float | None
    deviation: float | None
    seeds: tuple[int, ...]
    p: float | None = None
    p_holm: float | None = None
    unknown: str = ""

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends; None where they are not known."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def paired(self) -> bool:
        """Whether it was taken seed by seed."""
        return bool(self.seeds)

    @property
    def sign(self) -> int:
        """1: the model is ahead, -1: the baseline is, 0: the numbers do not tell."""
        if self.unknown or self.p_holm is None or self.p_holm >= ERROR_RATE:
            return 0
        return 1 if self.mean > 0 else -1

    @property
    def reading(self) -> str:
        """The statement in words that claim no more than the numbers."""
        if self.unknown:
            return f"not told: {self.unknown}"
        return {1: "higher", -1: "lower", 0: "not told apart"}[self.sign]


@dataclass(frozen=True)
class Crossing:
    """Where a model and the baseline change places on the way from the first data set to the last.

    Attributes:
        before: the difference on the data set up to which the one is ahead by its mean.
        after: that on the next data set, from which the other is; when the means change sides to and fro where the
            numbers do not tell who is ahead, on the first from which they do so no more.
        earliest: the last one that tells the old order (:attr:`Difference.sign`); the crossing is after it. None when
            it is not told on some data set before, and the opposite on some data set after.
        latest: when ``earliest`` is known, the first one that tells the new order; the crossing is before it.
    """

    before: Difference
    after: Difference
    earliest: Difference | None = None
    latest: Difference | None = None

    @property
    def model_leads_after(self) -> bool:
        """Whether the model is ahead from then on, and not the baseline."""
        return self.after.mean > 0


def difference(cell: SeedAverage, baseline: SeedAverage, *, over: str = uncertainty.CONCEPTS) -> Difference:
    """Compare two averages of the same metric, data set and number of shots; :func:`judge` adds the verdict.

    Args:
        cell: of the model.
        baseline: of the baseline.
        over: what varies in the interval, one of :data:`cog.results.uncertainty.OVER`; verdicts are over concepts.

    Raises:
        ValueError: when they are of different metrics, data sets or numbers of shots.

    >>> from cog.results.scores import Score, average
    >>> def top1(model, *values):
    ...     seeds = (22, 37, 45)
    ...     return average(Score(model, "in1k", "logreg", 0, "top1", v, s) for v, s in zip(values, seeds))[0]
    >>> d = difference(top1("my_net", 71.0, 72.0, 73.0), top1("sup_resnet50", 70.0, 71.5, 71.5))
    >>> d.seeds, d.mean, d.deviation, d.low, d.reading
    ((22, 37, 45), 1.0, 0.5, None, 'not told: counts per concept are not known')
    """
    if (cell.metric, cell.dataset, cell.n_shot) != (baseline.metric, baseline.dataset, baseline.n_shot):
        places = (f"{a.metric} on {a.dataset}, N={a.n_shot}" for a in (cell, baseline))
        raise ValueError(" against ".join(places))
    mine, theirs = cell.values, baseline.values
    seeds = tuple(seed for seed in mine if seed in theirs)
    if seeds:
        differences = [mine[seed] - theirs[seed] for seed in seeds]
        mean = statistics.fmean(differences)
        deviation = statistics.stdev(differences) if len(seeds) > 1 else None
    else:
        mean, deviation = points(cell, baseline)
    estimate = shown = None
    if not (cell.concepts and baseline.concepts):
        unknown = "counts per concept are not known"
    elif not seeds:
        unknown = "no common seed"
    else:
        paired = with_common_seeds(cell, baseline)
        estimate = shown = uncertainty.difference(*paired)
        if over != uncertainty.CONCEPTS:
            shown = uncertainty.difference(*paired, over=over)
        unknown = "one common seed" if len(seeds) == 1 else ""
        if estimate is None:
            unknown = "not the same test images" if len(cell.concepts[0].correct) > 1 else "a single concept"
    return Difference(
        average=cell,
        baseline=baseline,
        mean=mean,
        low=None if shown is None else shown.low,
        high=None if shown is None else shown.high,
        deviation=deviation,
        seeds=seeds,
        p=None if estimate is None else estimate.p,
        unknown=unknown,
    )


def with_common_seeds(*averages: SeedAverage) -> list[list[ConceptCounts]]:
    """Return the right answers per concept of each average, which are known, with the seeds that all of them have."""
    runs = [dict(zip(average.seeds, average.concepts, strict=True)) for average in averages]
    seeds = [seed for seed in runs[0] if all(seed in by_seed for by_seed in runs)]
    return [[by_seed[seed] for seed in seeds] for by_seed in runs]


def judge(differences: Iterable[Difference]) -> list[Difference]:
    """Return differences that are shown beside each other with p-values corrected for their number (Holm).

    Of two models on one data set, whichever of them is the baseline, there is one comparison.
    """
    items = list(differences)
    p_values = {_comparison(item): item.p for item in items if item.p is not None and not item.unknown}
    adjusted = dict(zip(p_values, uncertainty.holm([*p_values.values()]), strict=True))
    return [dataclasses.replace(item, p_holm=adjusted.get(_comparison(item))) for item in items]


def _comparison(item: Difference) -> tuple[Hashable, ...]:
    """Return what is compared, the two models in any order."""
    models = frozenset((a.model, a.source) for a in (item.average, item.baseline))
    return models, item.average.dataset, item.average.n_shot, item.average.metric


def within(mean: float, other_mean: float, deviation: float) -> bool:
    """Whether two means agree within the combined deviation and the rounding of the published one.

    Args:
        mean: one mean, in percent.
        other_mean: a published mean.
        deviation: combined deviation, whose own rounding is left aside.
    """
    return abs(mean - other_mean) <= deviation + PUBLISHED_ROUNDING + _BINARY


@dataclass(frozen=True)
class SharedRank:
    """Where a number stands among others.

    Attributes:
        rank: 1 is best; equal numbers share the better rank (1, 2, 2, 4).
        n_tied: numbers that are equal to this one, itself included.
        n_ranked: numbers in all.
    """

    rank: int
    n_tied: int
    n_ranked: int


def rank(values: Sequence[float]) -> list[SharedRank]:
    """Rank numbers of which higher ones are better: ``1 + number of higher ones``.

    >>> [(r.rank, r.n_tied) for r in rank([70.0, 72.5, 70.0, 68.1])]
    [(2, 2), (1, 1), (2, 2), (4, 1)]
    """
    rising = sorted(values)
    ranks = []
    for value in values:
        first, end = bisect.bisect_left(rising, value), bisect.bisect_right(rising, value)
        ranks.append(SharedRank(1 + len(rising) - end, end - first, len(rising)))
    return ranks


def crossings(differences: Iterable[Difference]) -> list[Crossing]:
    """Find where model and baseline change places over the data sets, in the order of IN-1K, L1, L2, ...

    Args:
        differences: of any models, sources and numbers of shots; each combination is looked at by itself.

    Returns:
        In the order of the first appearance of the model and number of shots, then of the data sets. A mean of exactly
        zero counts as no change.
    """
    groups = grouped(
        differences,
        lambda item: (*((a.model, a.source, a.n_shot, a.metric) for a in (item.average, item.baseline)),),
    )
    return [crossing for group in groups.values() for crossing in _crossings(group)]


def _crossings(group: Sequence[Difference]) -> list[Crossing]:
    ordered = sorted(group, key=lambda item: dataset_key(item.average.dataset))
    nonzero = [index for index, item in enumerate(ordered) if item.mean]
    told = [index for index, item in enumerate(ordered) if item.sign]
    crossed = []
    # Between two data sets where the order is told, the means may change sides more than once, which says nothing.
    for gap, pairs in itertools.groupby(
        itertools.pairwise(nonzero), lambda pair: bisect.bisect(told, pair[0])
    ):
        changes = [
            (before, after)
            for before, after in pairs
            if (ordered[before].mean > 0) != (ordered[after].mean > 0)
        ]
        first = ordered[told[gap - 1]] if gap else None
        last = ordered[told[gap]] if gap < len(told) else None
        if changes and first is not None and last is not None and first.sign != last.sign:
            crossed.append(Crossing(ordered[changes[0][0]], ordered[changes[-1][1]], first, last))
        else:
            crossed += [Crossing(ordered[before], ordered[after]) for before, after in changes]
    return crossed
