"""Intervals over concepts and seeds for accuracies and their differences; Holm's correction.

*Variation.* An accuracy is the mean over C concepts (a sample of possible ones) and S seeds (split for the
search, images drawn in few-shot, order of training) of ``x[s, k]``, in percent; for a difference of two
models, ``x[s, k]`` is that on the same concept with the same seed. In the random-effects model ``x[s, k] =
mean + concept[k] + seed[s] + rest[s, k]`` (Searle, Casella and McCulloch, Variance Components, 1992, chapter
4), whose rest includes the variation of images, the variance of the mean has two parts::

    concepts = max(0, V_concepts / C - V_rest / (C S))
    seeds    = V_seeds / S

``V_concepts`` is the sample variance over concepts of the means over seeds, ``V_seeds`` that over seeds of
the means over concepts, and ``V_rest`` the mean square of the rest, which contributes to both and is counted
with the seeds (else their part would often be negative by chance).

*Interval.* With the quantiles t of Student's t distribution for the degrees of freedom of each part, the half
width is (Banerjee, Sankhya 22, 1960, for unequal variances)::

    half ** 2 = t(C - 1) ** 2 * concepts + t(S - 1) ** 2 * seeds

With one seed there is no second part, ``concepts`` is ``V_concepts / C``, and the interval is for this seed
only. In simulated studies of this model (20 to 1000 concepts), 95 % intervals cover the true value in 95 to
97 % of studies with five seeds, 95 to 98 % with three, and 95 to 99 % with two. At most 5 % of studies that
compare 6, 24 or 60 pairs of equal models find any difference. Intervals of accuracies between 10 and 80 %
cover 93 to 98 %; down to 84 % if the accuracies of 20 to 100 concepts cluster at an end of the scale.

*Few images.* If two models differ on hardly any image, or all answers are right, these variances are (nearly)
0, which does not mean certainty. For a difference, two images are added, one in favor of each model (Bonett
and Price, Statistics in Medicine 31, 2012): ``concepts += 2 * (100 / images) ** 2``. The interval of an
accuracy p has Wilson's form: all q with ``(p - q) ** 2 <= k q (1 - q)`` and ``k = half ** 2 / (p (1 - p))``
(for clusters: Dean and Pagano, Journal of Survey Statistics and Methodology 3, 2015), at least as for
independent images.
"""

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
    """A mean with its interval, in percent, or in points for a difference."""

    mean: float
    low: float
    high: float
    p: float | None = None  # of a difference, two-sided: the interval of confidence 1 - p ends at 0


def accuracy(runs: Sequence[ConceptCounts]) -> Estimate | None:
    """Return the mean accuracy, in percent, of one run for each seed with its interval.

    None when the runs are on different images, or on a single concept.
    """
    if not same_images(runs):
        return None
    correct, images = _counts(runs)
    total = float(images.sum())
    share = float(correct.sum()) / len(runs) / total
    degrees = correct.shape[1] - 1, correct.shape[0] - 1
    k = _t_squared(degrees[0], 1 - CONFIDENCE) / total
    if 0 < share < 1:
        half_squared = _half_squared(_parts(_scaled(correct, images)), degrees, 1 - CONFIDENCE)
        k = max(k, half_squared / 1e4 / (share * (1 - share)))
    center = (share + k / 2) / (1 + k)
    half = math.sqrt(k * share * (1 - share) + k * k / 4) / (1 + k)
    low, high = max(0.0, center - half), min(1.0, center + half)
    # If all answers are wrong, or all are right, an end equals the share up to rounding errors.
    return Estimate(100 * share, 100 * min(low, share), 100 * max(high, share))


def difference(runs: Sequence[ConceptCounts], baseline: Sequence[ConceptCounts]) -> Estimate | None:
    """Return the mean difference of two models on the same images, paired over concepts and seeds, in points.

    ``baseline`` has the same seeds in the same order. None in the same cases as for :func:`accuracy`.
    """
    if len(runs) != len(baseline) or not same_images([*runs, *baseline]):
        return None
    wins, images = _counts(runs)[0] - _counts(baseline)[0], _counts(runs)[1]
    total = float(images.sum())
    mean = 100 * float(wins.sum()) / len(runs) / total
    concepts, seeds = _parts(_scaled(wins, images))
    parts = concepts + 2 * (100 / total) ** 2, seeds  # two more images, one in favor of each model
    degrees = wins.shape[1] - 1, wins.shape[0] - 1
    half = math.sqrt(_half_squared(parts, degrees, 1 - CONFIDENCE))
    low, high = min(mean, max(-100.0, mean - half)), max(mean, min(100.0, mean + half))
    return Estimate(mean, low, high, _p_value(mean, parts, degrees))


def change(accuracy: Estimate, base: Estimate) -> Estimate | None:
    """Return the change from a base accuracy to one on other concepts, in percent; None if the base may be 0.

    The concepts of both are independent samples, so that their two intervals determine that of the change
    (Donner and Zou, Statistical Methods in Medical Research 21, 2012, equation of a ratio; in a form that
    avoids its 0 / 0).
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
    """Return p-values corrected for their number (Holm, Scandinavian Journal of Statistics 6, 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, highest = [1.0] * len(order), 0.0
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


def _counts(runs: Sequence[ConceptCounts]) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of right answers ``(S, C)``, and of images of each concept ``(C,)``, float64."""
    images = np.asarray(runs[0].images_of_each, np.float64)
    return np.array([np.asarray(run.correct) for run in runs], np.float64), images


def _scaled(counts: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Return the deviation of each concept and seed from the mean, in points, float64 ``(S, C)``.

    Concepts with more images have more weight, and another sample of concepts would have another number of
    images: the deviations are the residuals of a ratio (Cochran, Sampling Techniques, 1977, section 6.3).
    """
    n_seeds, n_concepts = counts.shape
    total = images.sum()
    return 100 * n_concepts * (counts - counts.sum() / n_seeds / total * images) / total


def _parts(x: np.ndarray) -> tuple[float, float]:
    """Return the parts of the variance of the mean of ``(S, C)``: concepts, seeds (0 for one seed)."""
    n_seeds, n_concepts = x.shape
    by_concept, by_seed = x.mean(axis=0), x.mean(axis=1)
    concepts = float(by_concept.var(ddof=1))
    if n_seeds < 2:
        return concepts / n_concepts, 0.0
    squares = float(((x - by_concept - by_seed[:, None] + x.mean()) ** 2).sum())
    rest = squares / ((n_concepts - 1) * (n_seeds - 1))
    of_seeds = float(by_seed.var(ddof=1)) / n_seeds
    return max(0.0, concepts / n_concepts - rest / (n_concepts * n_seeds)), of_seeds


@functools.lru_cache(64)
def _t_squared(degrees: int, p: float) -> float:
    """Return the square of the two-sided quantile of Student's t that is exceeded with probability ``p``."""
    from scipy.special import stdtrit  # imported late, since it takes half a second

    return float(stdtrit(degrees, p / 2)) ** 2


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
