"""Differences between a model and a baseline, with intervals and verdicts.

*Paired over seeds and concepts.* Runs of two models with the same seed have the same split for the search, images drawn
in few-shot, and order of training. They are tested on the same images of the same concepts. So the difference is
taken per seed and concept, with an interval over both (:mod:`cog.results.uncertainty`). A verdict ("higher", "lower")
is given only if the interval excludes zero after Holm's correction for the number of comparisons that are shown
together (:func:`judge`).

*No verdict* is given without right answers per concept (published numbers, runs of the authors' toolkit), for tests on
different images, and for fewer than two common seeds. With one common seed
there is an interval; otherwise there are only the difference and its deviation over seeds: paired over common seeds,
else the combined deviation ``sqrt(s1 ** 2 + s2 ** 2)`` of two single runs. Seeds vary only the training of the
classifier (and the images drawn in few-shot): a difference with the same sign for all seeds may rest on a handful of
images.

No interval covers another pretraining of the same method.
"""

from __future__ import annotations

import bisect
import dataclasses
import statistics
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from cog.results import uncertainty
from cog.results.relative import points
from cog.results.scores import SeedAverage

#: Probability of any false verdict among the comparisons that are shown together.
ERROR_RATE = 0.05

#: Half a unit of the last digit of the published means and deviations.
PUBLISHED_ROUNDING = 0.05

# Decimal fractions are not exact in binary: 75.9 - 75.8 is a little more than 0.1.
_BINARY = 1e-9


@dataclass(frozen=True)
class Difference:
    """The difference between a model and a baseline on one data set, with one number of shots; None: not known."""

    average: SeedAverage  # of the model
    baseline: SeedAverage  # the same metric, data set and number of shots
    mean: float  # model minus baseline in points (percent of the test images)
    low: float | None  # lower end of the 95 % interval over concepts and common seeds
    high: float | None  # upper end of the interval
    #: Deviation over seeds. Paired: sample standard deviation of the differences; unpaired: combined deviation of
    #: single runs.
    deviation: float | None
    seeds: tuple[int, ...]  # the common seeds; empty when unpaired
    p: float | None = None  # two-sided p-value of a difference of zero
    p_holm: float | None = None  # p-value after Holm's correction; None before judge
    #: Reason for the lack of an interval over concepts, or of a verdict; "" when a verdict is possible.
    unknown: str = ""

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the interval; None when they are not known."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def sign(self) -> int:
        """The verdict: 1 if the model is ahead, -1 if the baseline is, 0 if it is undecided."""
        if self.unknown or self.p_holm is None or self.p_holm >= ERROR_RATE:
            return 0
        return 1 if self.mean > 0 else -1

    @property
    def reading(self) -> str:
        """The verdict in words."""
        if self.unknown:
            return f"not told: {self.unknown}"
        return {1: "higher", -1: "lower", 0: "cannot be told apart"}[self.sign]


def difference(cell: SeedAverage, baseline: SeedAverage) -> Difference:
    """Compare two averages of the same metric, data set and number of shots; :func:`judge` adds the verdict.

    Raises:
        ValueError: when the averages differ in metric, data set or number of shots.
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
    outcome = Difference(cell, baseline, mean, None, None, deviation, seeds)
    if not (cell.concepts and baseline.concepts):
        return dataclasses.replace(outcome, unknown="counts per concept are not known")
    if not seeds:
        return dataclasses.replace(outcome, unknown="no common seed")
    counts = (dict(zip(average.seeds, average.concepts, strict=True)) for average in (cell, baseline))
    estimate = uncertainty.difference(*([by_seed[seed] for seed in seeds] for by_seed in counts))
    if estimate is None:
        unknown = "not the same test images" if len(cell.concepts[0].correct) > 1 else "a single concept"
        return dataclasses.replace(outcome, unknown=unknown)
    low, high = estimate.interval
    unknown = "one common seed" if len(seeds) == 1 else ""
    return dataclasses.replace(outcome, low=low, high=high, p=estimate.p, unknown=unknown)


def judge(differences: Iterable[Difference]) -> list[Difference]:
    """Return differences that are shown together with p-values corrected for their number (Holm).

    Two models on one data set are one comparison, no matter which of them is the baseline.
    """
    items = list(differences)
    p_values = {_comparison(item): item.p for item in items if item.p is not None and not item.unknown}
    adjusted = dict(zip(p_values, uncertainty.holm([*p_values.values()]), strict=True))
    return [dataclasses.replace(item, p_holm=adjusted.get(_comparison(item))) for item in items]


def _comparison(item: Difference) -> tuple[Hashable, ...]:
    """Return the key of a comparison, which does not depend on the order of the two models."""
    models = frozenset((a.model, a.source) for a in (item.average, item.baseline))
    return models, item.average.dataset, item.average.n_shot, item.average.metric


def within(mean: float, other_mean: float, deviation: float) -> bool:
    """Return whether a mean and a published one (percent) agree within their combined deviation and its rounding."""
    return abs(mean - other_mean) <= deviation + PUBLISHED_ROUNDING + _BINARY


@dataclass(frozen=True)
class SharedRank:
    """The rank of a number among others."""

    rank: int  # 1 for the best; equal numbers share the better rank (1, 2, 2, 4)
    n_tied: int  # count of numbers that are equal to this one, itself included
    n_ranked: int


def rank(values: Sequence[float]) -> list[SharedRank]:
    """Return the ranks of numbers, higher ones first: ``1 + number of higher ones``.

    >>> [(r.rank, r.n_tied) for r in rank([70.0, 72.5, 70.0, 68.1])]
    [(2, 2), (1, 1), (2, 2), (4, 1)]
    """
    rising = sorted(values)
    ranks = []
    for value in values:
        first, end = bisect.bisect_left(rising, value), bisect.bisect_right(rising, value)
        ranks.append(SharedRank(1 + len(rising) - end, end - first, len(rising)))
    return ranks
