"""Rank statistics, bootstrap intervals and sign tests; numpy only (SciPy is no dependency)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Resamples at a time; a few arrays of this many rows and n columns are held.
_CELLS = 1 << 17


def midranks(values: np.ndarray) -> np.ndarray:
    """Return ranks from 1, equal values sharing their average rank, float64.

    Args:
        values: ``(n,)``, finite or infinite, no NaN.
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.r_[True, ordered[1:] != ordered[:-1]]
    group = np.cumsum(first) - 1
    counts = np.bincount(group)
    rank_of_group = np.cumsum(counts) - (counts - 1) / 2
    ranks = np.empty(len(values))
    ranks[order] = rank_of_group[group]
    return ranks


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Return Spearman's rank correlation (Pearson's of the midranks); NaN when either is constant.

    Args:
        x: ``(n,)``.
        y: ``(n,)``.
    """
    if len(x) < 2:
        return math.nan
    a, b = midranks(x), midranks(y)
    a -= a.mean()
    b -= b.mean()
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(np.clip(a @ b / scale, -1.0, 1.0)) if scale > 0 else math.nan


def auroc(high: np.ndarray, low: np.ndarray) -> float:
    """Return the area under the ROC curve: how often a value of ``high`` is above one of ``low``, ties by half.

    Args:
        high: ``(n,)``, at least one.
        low: ``(m,)``, at least one.
    """
    ranks = midranks(np.concatenate([high, low]))
    n, m = len(high), len(low)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


@dataclass(frozen=True)
class Interval:
    """A correlation with its uncertainty.

    Attributes:
        value: Spearman's rho; NaN when undefined.
        low: lower end of the interval; NaN when undefined.
        high: upper end.
        n: number of points.
        n_resamples: those in which the correlation was defined.
    """

    value: float
    low: float
    high: float
    n: int
    n_resamples: int


def spearman_interval(
    x: np.ndarray,
    y: np.ndarray,
    *,
    n_resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
    strata: np.ndarray | None = None,
) -> Interval:
    """Return Spearman's rho with a percentile bootstrap interval over points (Efron and Tibshirani, 1993, chapter 13).

    Args:
        x: ``(n,)``.
        y: ``(n,)``.
        n_resamples: draws of n points with replacement; 0: no interval.
        seed: of the draws.
        level: of the interval.
        strata: group of each point; points are drawn within their group, as many as it has.
    """
    value = spearman(x, y)
    found = resampled_spearman(x, y, n_resamples=n_resamples, seed=seed, strata=strata)
    found = found[~np.isnan(found)]
    if not len(found) or math.isnan(value):
        return Interval(value, math.nan, math.nan, len(x), len(found))
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high), len(x), len(found))


def resampled_spearman(
    x: np.ndarray, y: np.ndarray, *, n_resamples: int, seed: int, strata: np.ndarray | None = None
) -> np.ndarray:
    """Return rho of every resample, float64 ``(n_resamples,)``; NaN where one side is constant.

    A resample is the number of times each point was drawn. Midranks follow from the counts of each distinct value, so
    nothing is sorted again.
    """
    n = len(x)
    if n < 2 or n_resamples == 0:
        return np.full(n_resamples, math.nan)
    rng = np.random.default_rng(seed)
    # Points in the order of x: the ranks of x then lie side by side, and only those of y have to be looked up.
    order = np.argsort(x, kind="stable")
    x_group, y_group = (np.unique(values[order], return_inverse=True)[1].ravel() for values in (x, y))
    y_order = np.argsort(y_group, kind="stable")
    in_order = (
        np.zeros(n, dtype=np.int64) if strata is None else np.unique(strata, return_inverse=True)[1][order]
    )
    groups = [np.flatnonzero(in_order == group) for group in range(in_order.max() + 1)]
    x_starts, y_starts = _starts(x_group), _starts(y_group[y_order])
    middle = (n + 1) / 2
    size = max(1, _CELLS // n)
    found = []
    for start in range(0, n_resamples, size):
        rows = min(size, n_resamples - start)
        offsets = n * np.arange(rows)[:, None]
        drawn = [members[rng.integers(len(members), size=(rows, len(members)))] for members in groups]
        flat = (np.concatenate(drawn, axis=1) + offsets).ravel()
        counts = np.bincount(flat, minlength=rows * n).reshape(rows, n).astype(np.float64)
        a_counts = np.add.reduceat(counts, x_starts, axis=1)
        b_counts = np.add.reduceat(counts.take(y_order, axis=1), y_starts, axis=1)
        # Midrank of a value: all before it, and the middle of its own; centred.
        a, b = (np.cumsum(c, axis=1) - (c - 1) / 2 - middle for c in (a_counts, b_counts))
        a_squares, b_squares = (
            np.einsum("ij,ij,ij->i", c, ranks, ranks) for c, ranks in ((a_counts, a), (b_counts, b))
        )
        counts *= b.take(y_group, axis=1)
        covariance = np.einsum("ij,ij->i", np.add.reduceat(counts, x_starts, axis=1), a)
        with np.errstate(invalid="ignore", divide="ignore"):
            rho = covariance / np.sqrt(a_squares * b_squares)
        # Centred midranks are multiples of 1/2, so a constant side gives an exact 0.
        rho[(a_squares == 0) | (b_squares == 0)] = math.nan
        found.append(np.clip(rho, -1, 1))
    return np.concatenate(found)


def _starts(group: np.ndarray) -> np.ndarray:
    """Return where each group of an ascending vector begins."""
    return np.flatnonzero(np.r_[True, np.diff(group) > 0])


def sign_test(n_positive: int, n_negative: int) -> float:
    """Return the exact two-sided p-value of a sign test; ties are left out (McNemar's exact test of two classifiers).

    Args:
        n_positive: pairs in which the first is ahead.
        n_negative: pairs in which the second is.
    """
    n, k = n_positive + n_negative, min(n_positive, n_negative)
    if n == 0:
        return 1.0
    tail = term = 1  # whole numbers of any size: nothing overflows
    for i in range(k):
        term = term * (n - i) // (i + 1)
        tail += term
    return min(1.0, 2 * tail / 2**n)


def false_discovery_rates(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the smallest false discovery rate at which each is called (Benjamini and Hochberg, 1995), float64."""
    p = np.asarray(p_values, dtype=np.float64)
    if not len(p):
        return p
    order = np.argsort(p, kind="stable")
    adjusted = p[order] * len(p) / np.arange(1, len(p) + 1)
    adjusted = np.minimum.accumulate(adjusted[::-1])[::-1]
    found = np.empty(len(p))
    found[order] = np.minimum(adjusted, 1.0)
    return found
