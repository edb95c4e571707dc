"""Rank correlation of two quantities given others: partial correlation, and correlation within groups.

Spearman's partial correlation is the correlation of the ranks after both are regressed on the groups (one indicator per
group) and on the ranks of further quantities (Kendall and Stuart, 1979, chapter 27).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from cog.analysis import statistics

#: Share of the sum of squares below which a residual is rounding, so that the correlation is undefined.
_ROUNDING = 1e-10

#: Smallest number of concepts of a group in the mean correlation within groups.
MIN_GROUP = 10


def partial_spearman(
    x: np.ndarray, y: np.ndarray, groups: np.ndarray, others: Sequence[np.ndarray] = ()
) -> float:
    """Return the rank correlation of ``x`` and ``y`` given groups and other quantities.

    Args:
        x: first quantity, ``(n,)``.
        y: second quantity, ``(n,)``.
        groups: number of the group of each point, int64 ``(n,)``.
        others: further given quantities, ``(n,)`` each; constant quantities have no effect.

    Returns:
        A number in [-1, 1]; NaN where ``x`` or ``y`` is constant given groups and other quantities.
    """
    from scipy import stats

    ranks = [stats.rankdata(values) for values in (x, y, *others)]
    sizes = np.maximum(np.bincount(groups), 1)
    # Regression on indicators subtracts group means; then x and y are regressed on the residuals of the others (Frisch
    # and Waugh, 1933).
    a, b, *rest = (r - (np.bincount(groups, weights=r) / sizes)[groups] for r in ranks)
    if rest:
        design = np.stack(rest, axis=1)
        a, b = (v - design @ np.linalg.lstsq(design, v, rcond=_ROUNDING)[0] for v in (a, b))
    totals = [float(np.square(r - r.mean()).sum()) for r in ranks[:2]]
    if any(v @ v <= _ROUNDING * max(total, 1.0) for v, total in zip((a, b), totals, strict=True)):
        return math.nan
    return float(np.clip(a @ b / math.sqrt((a @ a) * (b @ b)), -1, 1))


def within_spearman(x: np.ndarray, y: np.ndarray, groups: np.ndarray) -> float:
    """Return the mean of the rank correlations within groups, weighted by their sizes.

    Groups of fewer than ``MIN_GROUP`` points, and groups in which ``x`` or ``y`` is constant, are left out; NaN without
    any other group.
    """
    total, weight = 0.0, 0
    for group in np.flatnonzero(np.bincount(groups) >= MIN_GROUP):
        inside = groups == group
        rho = statistics.spearman(x[inside], y[inside])
        if not math.isnan(rho):
            n = int(inside.sum())
            total, weight = total + n * rho, weight + n
    return total / weight if weight else math.nan


def intervals(
    numbers: Callable[[np.ndarray], Sequence[float]], strata: np.ndarray, *, n_resamples: int
) -> list[tuple[float, float]]:
    """Return 95 % percentile bootstrap intervals of several numbers of the same points.

    Args:
        numbers: function from the positions of drawn points, int64 ``(n,)``, to their numbers; NaN where undefined.
        strata: group of each point, ``(n,)``; a resample draws as many points of a group as the group has, with
            replacement.
        n_resamples: number of draws; 0: no intervals.

    Returns:
        Both ends of the interval of each number; NaN where the number is undefined.
    """
    rng = np.random.default_rng(0)
    members = [np.flatnonzero(strata == group) for group in np.unique(strata)]
    drawn = [
        numbers(np.concatenate([m[rng.integers(len(m), size=len(m))] for m in members]))
        for _ in range(n_resamples)
    ]
    return [statistics.percentile_interval(column) for column in np.array(drawn, dtype=np.float64).T]
