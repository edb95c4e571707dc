"""Ties among the trials of a search: if many trials are equally good, the choice of one is arbitrary."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Maximal difference in validation accuracy of equally good trials, in points: the standard error of an accuracy of
#: 70 % on 200,000 images (the held-out part of a level); with fewer images it is larger.
TIE_POINTS = 0.1


def tied(val_top1: Sequence[float]) -> list[int]:
    """Return the positions of the trials within ``TIE_POINTS`` of the best, ascending; empty if all have diverged.

    Args:
        val_top1: validation accuracies in percent; NaN for trials that diverged.

    >>> tied([70.0, math.nan, 70.1, 69.9])
    [0, 2]
    """
    known = [value for value in val_top1 if not math.isnan(value)]
    if not known:
        return []
    floor = max(known) - TIE_POINTS - 1e-9  # in floating point, 70.1 - 70.0 is more than 0.1
    return [position for position, value in enumerate(val_top1) if value >= floor]


def describe(n_tied: int, n_trials: int) -> str:
    """Return the number of ties in words."""
    return f"{n_tied} of {n_trials} trials within {TIE_POINTS:g} points"
