"""Intervals over concepts and seeds for accuracies and their differences; Holm's correction.

*Sources of variation.* The concepts of a benchmark are a sample of possible concepts, and its test images a
sample of possible images. A seed decides the split for the search, the images drawn in few-shot and the order
of training. An accuracy is the mean over C concepts and S seeds of ``x[s, k]``, in percent. For a difference
of two models, ``x[s, k]`` is the difference of their accuracies on the same concept with the same seed. In
the random-effects model ``x[s, k] = mean + concept[k] + seed[s] + rest[s, k]`` (Searle, Casella and
McCulloch, Variance Components, 1992, chapter 4), whose rest includes the variation of images, the variance of
the mean has two parts::

    concepts = max(0, V_concepts / C - V_rest / (C S))
    seeds    = V_seeds / S

``V_concepts`` is the sample variance over concepts of the means over seeds, ``V_seeds`` the sample variance
over seeds of the means over concepts, and ``V_rest`` the mean square of the rest, which contributes to both
variances and is counted with the seeds. (Counted with the concepts, it would make the part of the seeds a
difference of two estimates, often negative by chance with few seeds, and the interval would ignore the
seeds.) Images need no part of their own: accuracies of concepts with few images vary more.

*Interval.* Each part has its own degrees of freedom. With the quantiles t of Student's t distribution, the
half width is (Banerjee, Sankhya 22, 1960, for unequal variances)::

    half ** 2 = t(C - 1) ** 2 * concepts + t(S - 1) ** 2 * seeds

With one seed there is no second part, ``concepts`` is ``V_concepts / C``, and the interval is for this seed
only. In simulated studies of this model (20 to 1000 concepts; differences as between few-shot classifiers,
classifiers on all images, and two trainings of one model; 100,000 studies each), 95 % intervals cover the
true value in 95 to 97 % of studies with five seeds (98 % for two trainings of one model on 20 concepts), in
95 to 98 % with three seeds, and in 95 to 99 % with two, which hardly suffice to estimate the part of the
seeds. At most 5 % of studies that compare 6, 24 or 60 pairs of equal models find any difference. Intervals of
accuracies between 10 and 80 % cover 93 to 98 %, up to 99 % with two seeds; down to 84 % if the accuracies of
20 to 100 concepts cluster at an end of the scale (mean 98 % or 2 %, some concepts far from it).

*Few images.* If two models differ on hardly any image, or all answers are right, the variances above are
(nearly) 0, which does not mean certainty. For a difference, two images are added, one in favor of each model
(Bonett and Price, Statistics in Medicine 31, 2012): ``concepts += 2 * (100 / images) ** 2``. The interval of
an accuracy p has Wilson's form: all q with ``(p - q) ** 2 <= k q (1 - q)`` and ``k = half ** 2 / (p (1 -
p))``, which are between 0 and 100 % (for clusters: Dean and Pagano, Journal of Survey Statistics and
Methodology 3, 2015); k is at least its value for independent images, ``t(C - 1) ** 2 / images``.

No interval covers another pretraining of the same method."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cog.results.concept_counts import ConceptCounts

#: Confidence of all intervals.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval."""

    mean: float  # in percent, or in points for a difference
    low: float
    high: float
    #: For a difference, two-sided p-value of the value 0: the interval of confidence 1 - p ends at 0; else
    #: None.
    p: float | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends of the interval."""
        return self.low, self.high


def accuracy(runs: Sequence[ConceptCounts]) -> Estimate | None:
    """Return the mean accuracy of runs on the same data with its interval.

    Args:
        runs: counts of one run for each seed.

    Returns:
        Estimate in percent; None when the runs are on different images, or on a single concept.
    """
    if not same_images(runs):
        return None
    correct, images = _correct(runs), _images(runs[0])
    total = float(images.sum())
    share = float(correct.sum()) / len(runs) / total
    return _share(share, _parts(_scaled(correct, images)), correct.shape, total)


def _share(share: float, parts: tuple[float, float], shape: tuple[int, int], total: float) -> Estimate:
    """Return a share of ``total`` images with its interval in Wilson's form, in percent."""
    degrees = _degrees(shape)
    k = _t_squared(degrees[0], 1 - CONFIDENCE) / total
    if 0 < share < 1:
        k = max(k, _half_squared(parts, degrees, 1 - CONFIDENCE) / 1e4 / (share * (1 - share)))
    center = (share + k / 2) / (1 + k)
    half = math.sqrt(k * share * (1 - share) + k * k / 4) / (1 + k)
    low, high = max(0.0, center - half), min(1.0, center + half)
    # If all answers are wrong, or all are right, an end equals the share up to rounding errors.
    low, high = min(low, share), max(high, share)
    return Estimate(100 * share, 100 * low, 100 * high)


def difference(runs: Sequence[ConceptCounts], baseline: Sequence[ConceptCounts]) -> Estimate | None:
    """Return the mean difference of two models on the same images, paired over concepts and seeds.

    Args:
        runs: counts of one run of the model for each seed.
        baseline: counts of the other model, with the same seeds in the same order.

    Returns:
        Estimate in points; None in the same cases as for :func:`accuracy`.

    >>> from array import array
    >>> runs, baseline = ([ConceptCounts(array("B", n), 50)] for n in ([50, 40, 30, 45], [48, 40, 26, 43]))
    >>> estimate = difference(runs, baseline)
    >>> estimate.mean, round(estimate.low, 1), round(estimate.high, 1), round(estimate.p, 3)
    (4.0, -1.7, 9.7, 0.11)
    """
    if len(runs) != len(baseline) or not same_images([*runs, *baseline]):
        return None
    images = _images(runs[0])
    wins = _correct(runs) - _correct(baseline)
    total = float(images.sum())
    mean = 100 * float(wins.sum()) / len(runs) / total
    return _around(mean, _parts(_scaled(wins, images)), wins.shape, _two_images(total))


def relative_difference(runs: Sequence[ConceptCounts], baseline: Sequence[ConceptCounts]) -> Estimate | None:
    """Return the difference of two models on the same images in percent of the baseline's accuracy.

    It is paired as in :func:`difference`, and None also when the baseline has no right answers. The ratio is
    linearized: the residual of a concept and seed is the number of its right answers minus the overall ratio
    times that of the baseline (Cochran, Sampling Techniques, 1977, section 6.3).
    """
    if len(runs) != len(baseline) or not same_images([*runs, *baseline]):
        return None
    images, correct, base = _images(runs[0]), _correct(runs), _correct(baseline)
    if not base.sum():
        return None
    ratio = float(correct.sum() / base.sum())
    total, share = float(images.sum()), float(base.mean(axis=0).sum() / images.sum())
    residuals = _scaled(correct - ratio * base, images) / share
    few_images = _two_images(total) / share**2
    return _around(100 * (ratio - 1), _parts(residuals), base.shape, few_images, most=math.inf)


def change(accuracy: Estimate, base: Estimate) -> Estimate | None:
    """Return the change from a base accuracy to one on other concepts, in percent; None if the base may be 0.

    The concepts of both accuracies are independent samples, so that their two intervals determine the
    interval of the change (Donner and Zou, Statistical Methods in Medical Research 21, 2012, equation of a
    ratio; in a form that avoids its 0 / 0).

    Args:
        accuracy: accuracy on the new concepts, such as a level.
        base: accuracy on the old concepts, such as IN-1K.
    """
    if base.low <= 0:
        return None
    product = accuracy.mean * base.mean
    to_low, to_high = (end * (2 * accuracy.mean - end) for end in (accuracy.low, accuracy.high))
    from_low, from_high = (end * (2 * base.mean - end) for end in (base.low, base.high))
    low = to_low and to_low / (product + math.sqrt(max(0.0, product**2 - to_low * from_high)))
    high = (product + math.sqrt(max(0.0, product**2 - to_high * from_low))) / from_low
    mean, low, high = (100 * (ratio - 1) for ratio in (accuracy.mean / base.mean, low, high))
    return Estimate(mean, low, high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm, Scandinavian Journal of Statistics 6, 1979).

    If differences with corrected p-values below 0.05 are declared real, at most 5 % of studies contain any
    false declaration, even if the comparisons depend on each other.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [1.0] * len(order)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def same_images(runs: Sequence[ConceptCounts]) -> bool:
    """Return whether there are runs, all on the same test images of the same concepts, at least two."""
    same_counts = bool(runs) and all(
        len(run.correct) == len(runs[0].correct) > 1 and run.images == runs[0].images for run in runs
    )
    return same_counts and len({run.image_list for run in runs} - {None}) <= 1


def _images(run: ConceptCounts) -> np.ndarray:
    """Return the number of images of each concept, int64 or float64 ``(C,)``."""
    if isinstance(run.images, int):
        return np.full(len(run.correct), run.images)
    return np.asarray(run.images, float)


def _correct(runs: Sequence[ConceptCounts]) -> np.ndarray:
    """Return the numbers of right answers, float64 ``(S, C)``."""
    return np.array([np.asarray(run.correct) for run in runs], dtype=np.float64)


def _scaled(counts: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Return the deviation of each concept and seed from the mean, in points, float64 ``(S, C)``.

    Concepts with more images have more weight, and another sample of concepts would have another number of
    images: the deviations are the residuals of a ratio (Cochran, Sampling Techniques, 1977, section 6.3). If
    all concepts have the same number of images, they are the accuracies (or differences) minus their mean.
    """
    n_seeds, n_concepts = counts.shape
    total = images.sum()
    return 100 * n_concepts * (counts - counts.sum() / n_seeds / total * images) / total


def _mean_squares(x: np.ndarray) -> tuple[float, float, float]:
    """Return the variances over concepts, seeds (0 for one seed) and of the rest (likewise) of ``(S, C)``."""
    n_seeds, n_concepts = x.shape
    by_concept, by_seed = x.mean(axis=0), x.mean(axis=1)
    concepts = float(by_concept.var(ddof=1))
    if n_seeds < 2:
        return concepts, 0.0, 0.0
    rest = x - by_concept - by_seed[:, None] + x.mean()
    return concepts, float(by_seed.var(ddof=1)), float((rest**2).sum()) / ((n_concepts - 1) * (n_seeds - 1))


def _parts(x: np.ndarray) -> tuple[float, float]:
    """Return the parts of the variance of the mean of ``(S, C)``: concepts, seeds."""
    n_seeds, n_concepts = x.shape
    concepts, seeds, rest = _mean_squares(x)
    return max(0.0, concepts / n_concepts - rest / (n_concepts * n_seeds)), seeds / n_seeds


def _around(
    mean: float, parts: tuple[float, float], shape: tuple[int, int], few_images: float, *, most: float = 100.0
) -> Estimate:
    """Return a mean over ``shape`` with its interval, which is clipped to ``-most`` and ``most``.

    ``few_images`` is the variance that is added for a difference on few images, see :func:`_two_images`.
    """
    parts = parts[0] + few_images, parts[1]
    degrees = _degrees(shape)
    half = math.sqrt(_half_squared(parts, degrees, 1 - CONFIDENCE))
    low, high = min(mean, max(-most, mean - half)), max(mean, min(most, mean + half))
    return Estimate(mean, low, high, _p_value(mean, parts, degrees))


def _two_images(total: float) -> float:
    """Return the variance of a difference due to two of ``total`` images, one in favor of each model."""
    return 2 * (100 / total) ** 2


@functools.lru_cache(64)
def _t_squared(degrees: int, p: float) -> float:
    """Return the square of the two-sided quantile of Student's t that is exceeded with probability ``p``."""
    from scipy.special import stdtrit  # imported late, since it takes half a second

    return float(stdtrit(degrees, p / 2)) ** 2


def _degrees(shape: tuple[int, int]) -> tuple[int, int]:
    """Return the degrees of freedom of concepts and seeds of a mean over ``shape``: S seeds, C concepts."""
    n_seeds, n_concepts = shape
    return n_concepts - 1, n_seeds - 1


def _half_squared(parts: Sequence[float], degrees: Sequence[int], p: float) -> float:
    """Return the squared half width of the interval of confidence ``1 - p``, without parts of no degrees."""
    return sum(_t_squared(d, p) * part for part, d in zip(parts, degrees, strict=True) if d)


def _p_value(mean: float, parts: Sequence[float], degrees: Sequence[int]) -> float:
    """Return 1 minus the confidence of the interval that ends at 0."""
    from scipy.special import stdtr

    if not mean:
        return 1.0
    t = -abs(mean) / math.sqrt(sum(parts))
    # There is no closed form: bisection between the p-values for the degrees of freedom of single parts.
    of_each = {2 * float(stdtr(d, t)) for part, d in zip(parts, degrees, strict=True) if part and d}
    if len(of_each) == 1:
        return of_each.pop()
    low, high = (math.log(max(end(of_each), 1e-300)) for end in (min, max))
    for _ in range(50):
        middle = (low + high) / 2
        if _half_squared(parts, degrees, math.exp(middle)) > mean * mean:
            low = middle
        else:
            high = middle
    return math.exp(high)
