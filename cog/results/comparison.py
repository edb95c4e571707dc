"""Statements about the difference between a model and a baseline, and how far they can be trusted.

*Paired over seeds.* Runs of two models with the same seed share what the seed decides: the split for the search, the
images drawn in few-shot, the order of training. So the difference is taken seed by seed, and the mean of these n
differences gets a confidence interval of Student's t with n - 1 degrees of freedom, ``mean ± t * s / sqrt(n)``, s being
their sample standard deviation (divided by n - 1). That assumes differences that are independent between seeds and
roughly normal; with five of them neither can be checked, and the interval is as wide as that demands (t = 2.78).

*Unpaired.* Where the values of single seeds are not known (published numbers) or no two seeds are common, there is only
the difference of the means and the combined deviation ``sqrt(s1 ** 2 + s2 ** 2)`` of the two standard deviations, that
is, how much the difference of two single runs would vary. No confidence is claimed for it.

What neither covers: seeds vary the classifier's training (and the images drawn in few-shot) alone. Another
pretraining of the same method, other test images or other concepts would vary the result as well, by how much these
numbers cannot say. And with many comparisons, some intervals miss by chance: at 95 %, one in twenty.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cog.results import published
from cog.results.relative import points
from cog.results.scores import SeedAverage, dataset_key

CONFIDENCE = 0.95

#: Half a unit of the last digit of the published means and deviations.
PUBLISHED_ROUNDING = 0.05

# Decimal fractions are not exact in binary: 75.9 - 75.8 is a little more than 0.1.
_BINARY = 1e-9


@dataclass(frozen=True)
class Difference:
    """A model against a baseline on one data set with one number of shots.

    Attributes:
        model: model.
        source: where its numbers come from (:attr:`cog.results.scores.SeedAverage.source`).
        baseline: baseline.
        baseline_source: where its numbers come from.
        dataset: data set.
        n_shot: training images per class, 0 = all.
        metric: ``"top1"`` or ``"top5"``.
        mean: model minus baseline in points (percent of the test images).
        low: lower end of the confidence interval; None when unpaired, or with one common seed.
        high: upper end.
        deviation: paired: sample standard deviation of the differences (None for one seed); unpaired: combined
            deviation (None when either is not known).
        seeds: the common seeds; empty when unpaired.
        rounding: how far the difference may be off because published means are rounded, in points.
    """

    model: str
    source: str
    baseline: str
    baseline_source: str
    dataset: str
    n_shot: int
    metric: str
    mean: float
    low: float | None
    high: float | None
    deviation: float | None
    seeds: tuple[int, ...]
    rounding: float = 0.0

    @property
    def paired(self) -> bool:
        """Whether it was taken seed by seed."""
        return bool(self.seeds)

    @property
    def sign(self) -> int:
        """1: the model is ahead, -1: the baseline is, 0: the numbers do not tell.

        Paired: the interval excludes zero. Unpaired: the difference exceeds the combined deviation by more than
        rounding can make.
        """
        if self.paired:
            if self.low is None or self.high is None:
                return 0
            return (self.low > 0) - (self.high < 0)
        if self.deviation is None or abs(self.mean) <= self.deviation + self.rounding + _BINARY:
            return 0
        return 1 if self.mean > 0 else -1

    @property
    def reading(self) -> str:
        """The statement in words that claim no more than the numbers."""
        if self.paired and self.low is None:
            return "one common seed, no interval"
        if self.deviation is None:
            return "deviation not known"
        if self.paired:
            return {1: "higher", -1: "lower", 0: "not told apart"}[self.sign]
        return {
            1: "higher, beyond deviations",
            -1: "lower, beyond deviations",
            0: "within deviations",
        }[self.sign]


@dataclass(frozen=True)
class Crossing:
    """Where a model and the baseline change places on the way from the first data set to the last.

    Attributes:
        model: model.
        source: where its numbers come from.
        baseline: baseline.
        n_shot: training images per class, 0 = all.
        before: the data set up to which the one is ahead by its mean.
        after: the next data set, from which the other is; when the means change sides to and fro where the numbers do
            not tell who is ahead, the first from which they do so no more.
        model_leads_after: who is ahead from then on.
        established: whether the numbers tell who is ahead (:attr:`Difference.sign`) on some data set before, and the
            opposite on some data set after, with nothing told in between.
        earliest: when established, the last data set where the old order is told; the crossing is after it.
        latest: when established, the first data set where the new order is told; the crossing is before it.
    """

    model: str
    source: str
    baseline: str
    n_shot: int
    before: str
    after: str
    model_leads_after: bool
    established: bool
    earliest: str | None
    latest: str | None


def difference(cell: SeedAverage, baseline: SeedAverage, *, confidence: float = CONFIDENCE) -> Difference:
    """Compare two averages of the same metric, data set and number of shots.

    Args:
        cell: of the model.
        baseline: of the baseline.
        confidence: of the interval, in (0, 1).

    Raises:
        ValueError: when they are of different metrics, data sets or numbers of shots.

    >>> from cog.results.scores import Score, average
    >>> def top1(model, *values):
    ...     seeds = (22, 37, 45)
    ...     return average(Score(model, "in1k", "logreg", 0, "top1", v, s) for v, s in zip(values, seeds))[0]
    >>> d = difference(top1("my_net", 71.0, 72.0, 73.0), top1("sup_resnet50", 70.0, 71.5, 71.5))
    >>> d.seeds, d.mean, round(d.low, 2), round(d.high, 2), d.reading
    ((22, 37, 45), 1.0, -0.24, 2.24, 'not told apart')
    """
    if (cell.metric, cell.dataset, cell.n_shot) != (baseline.metric, baseline.dataset, baseline.n_shot):
        places = (f"{a.metric} on {a.dataset}, N={a.n_shot}" for a in (cell, baseline))
        raise ValueError(" against ".join(places))
    mine, theirs = cell.values, baseline.values
    seeds = tuple(seed for seed in mine if seed in theirs)
    low = high = deviation = None
    if seeds:
        differences = [mine[seed] - theirs[seed] for seed in seeds]
        mean = statistics.fmean(differences)
        if len(seeds) > 1:
            deviation = statistics.stdev(differences)
            from scipy.special import stdtrit  # quantile of Student's t; imported late: it takes a second

            quantile = float(stdtrit(len(seeds) - 1, (1 + confidence) / 2))
            half = quantile * deviation / math.sqrt(len(seeds))
            low, high = mean - half, mean + half
    else:
        mean, deviation = points(cell, baseline)
    return Difference(
        model=cell.model,
        source=cell.source,
        baseline=baseline.model,
        baseline_source=baseline.source,
        dataset=cell.dataset,
        n_shot=cell.n_shot,
        metric=cell.metric,
        mean=mean,
        low=low,
        high=high,
        deviation=deviation,
        seeds=seeds,
        rounding=PUBLISHED_ROUNDING * sum(a.source in published.SOURCES.values() for a in (cell, baseline)),
    )


def within(mean: float, other_mean: float, deviation: float, *, rounding: float = PUBLISHED_ROUNDING) -> bool:
    """Whether two means agree within the combined deviation.

    Args:
        mean: one mean, in percent.
        other_mean: a published mean.
        deviation: combined deviation.
        rounding: how far the published mean may be off by rounding; the deviation's own rounding is left aside.
    """
    return abs(mean - other_mean) <= deviation + rounding + _BINARY


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
    groups: dict[tuple[str, str, str, str, int, str], list[Difference]] = {}
    for item in differences:
        key = (item.model, item.source, item.baseline, item.baseline_source, item.n_shot, item.metric)
        groups.setdefault(key, []).append(item)
    return [crossing for group in groups.values() for crossing in _crossings(group)]


def _crossings(group: Sequence[Difference]) -> list[Crossing]:
    ordered = sorted(group, key=lambda item: dataset_key(item.dataset))
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
        established = bool(changes) and first is not None and last is not None and first.sign != last.sign
        if established:
            changes = [(changes[0][0], changes[-1][1])]
        for before, after in changes:
            item = ordered[before]
            crossed.append(
                Crossing(
                    model=item.model,
                    source=item.source,
                    baseline=item.baseline,
                    n_shot=item.n_shot,
                    before=item.dataset,
                    after=ordered[after].dataset,
                    model_leads_after=ordered[after].mean > 0,
                    established=established,
                    earliest=first.dataset if established and first else None,
                    latest=last.dataset if established and last else None,
                )
            )
    return crossed
