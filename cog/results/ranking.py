"""Where results stand among the published ones: ranks, neighbors and differences.

Ranks compare means at the precision of the paper (one decimal); equal means share the better rank. A rank
alone promises more than five seeds can hold, so every rank comes with the span it could have if results within
one combined standard deviation were taken as equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cog import constants
from cog.results import comparison, official
from cog.results.comparison import Difference
from cog.results.published import REFERENCE
from cog.results.scores import SeedAverage, dataset_key, grouped

_DECIMALS = 1


class Gap(NamedTuple):
    """How far one result is from another.

    Attributes:
        other: the result of the other model.
        points: own mean minus the other mean, in percentage points.
        clear: whether the difference is larger than the combined standard deviation of both (see
            :func:`cog.results.comparison.within`); False when neither gives one.
    """

    other: SeedAverage
    points: float
    clear: bool

    @property
    def model(self) -> str:
        """The other one."""
        return self.other.model


@dataclass(frozen=True)
class Place:
    """One result among the published ones of the same data set and number of shots.

    Attributes:
        cell: the result.
        rank: 1 is best.
        of: number of models ranked, this one included.
        shared: whether a published model has the same mean at the paper's precision.
        best_rank: if all within one combined deviation were equal, and this one the first of them.
        worst_rank: the same, and this one the last of them.
        above: the published model with the next higher mean; None for the best.
        level_with: published models with the same mean at the paper's precision.
        below: the published model with the next lower mean; None for the last.
        about_equal: published models within one combined deviation, best first.
        to_reference: difference to the published ResNet50.
        to_published: difference to the published result of the same model, which is then not ranked.
        field: the published means, best first.
    """

    cell: SeedAverage
    rank: int
    of: int
    shared: bool
    best_rank: int
    worst_rank: int
    above: Gap | None
    level_with: tuple[str, ...]
    below: Gap | None
    about_equal: tuple[str, ...]
    to_reference: Gap | None
    to_published: Gap | None
    field: tuple[float, ...]


def gap(average: SeedAverage, other: SeedAverage) -> Gap:
    """Compare two top-1 scores.

    The combined deviation is the root of the summed variances over seeds: the spread of a single difference, not
    the error of the mean. It needs no assumption beyond independent seeds, and errs on the side of "about equal".
    The spread of a result with a single seed is unknown; the other's stands in for it.
    """
    mine = None if len(average.seeds) == 1 and not average.std else average.std
    theirs = None if len(other.seeds) == 1 and not other.std else other.std
    if mine is None:
        mine = theirs
    elif theirs is None:
        theirs = mine
    combined = None if mine is None or theirs is None else math.hypot(mine, theirs)
    clear = combined is not None and not comparison.within(average.value, other.value, combined)
    return Gap(other, average.value - other.value, clear)


def place(average: SeedAverage, published: Sequence[SeedAverage]) -> Place | None:
    """Rank one result among published ones of its data set and number of shots; None without any.

    Args:
        average: the result.
        published: any cells, of other data sets and shots as well. The one of the same model (a published
            model run again) takes no rank of its own.
    """
    rivals = [c for c in published if (c.dataset, c.n_shot) == (average.dataset, average.n_shot)]
    itself = next((c for c in rivals if c.model == average.model), None)
    reference = next((c for c in rivals if c.model == REFERENCE), None)
    rivals = sorted((c for c in rivals if c is not itself), key=lambda c: -c.value)
    if not rivals:
        return None
    mean, *others = (round(c.value, _DECIMALS) for c in (average, *rivals))
    rank = comparison.rank([mean, *others])[0]
    gaps = [gap(average, rival) for rival in rivals]
    higher, below = gaps[: rank.rank - 1], gaps[rank.rank + rank.n_tied - 2 :]
    return Place(
        cell=average,
        rank=rank.rank,
        of=rank.n_ranked,
        shared=rank.n_tied > 1,
        best_rank=1 + sum(g.clear and g.points < 0 for g in gaps),
        worst_rank=rank.n_ranked - sum(g.clear and g.points > 0 for g in gaps),
        above=higher[-1] if higher else None,
        level_with=tuple(g.model for g, other in zip(gaps, others, strict=True) if other == mean),
        below=below[0] if below else None,
        about_equal=tuple(g.model for g in gaps if not g.clear),
        to_reference=gap(average, reference) if reference is not None else None,
        to_published=gap(average, itself) if itself is not None else None,
        field=tuple(c.value for c in rivals),
    )


def places(averages: Iterable[SeedAverage], published: Sequence[SeedAverage]) -> dict[tuple[str, int], Place]:
    """Rank the results of one model; by data set and number of shots."""
    rivals = grouped(published, lambda cell: (cell.dataset, cell.n_shot))
    ranked = ((cell, place(cell, rivals.get((cell.dataset, cell.n_shot), ()))) for cell in averages)
    return {(cell.dataset, cell.n_shot): p for cell, p in ranked if p is not None}


def level_mean(averages: Iterable[SeedAverage], n_shot: int = 0) -> float | None:
    """Return the mean over the levels L1 to L5 of one model's accuracies; None when it lacks one of them."""
    values = {
        a.dataset: a.value for a in averages if a.n_shot == n_shot and a.dataset in constants.COG_LEVELS
    }
    return sum(values.values()) / len(values) if len(values) == constants.N_LEVELS else None


def to_highest(cells: Sequence[SeedAverage]) -> list[Difference]:
    """Return what the model with the highest mean is above each other one, by data set, with all images.

    Nothing is said of a data set where others are on other data (:mod:`cog.results.official`).
    """
    known = official.compare(cells)
    by_dataset = grouped((cell for cell in cells if cell.n_shot == 0), lambda cell: cell.dataset)
    differences = []
    for dataset in sorted(by_dataset, key=dataset_key):
        highest, *others = sorted(by_dataset[dataset], key=lambda cell: -cell.value)
        if all(known.allows(highest, other) for other in others):
            differences += [comparison.difference(highest, other) for other in others]
    return differences
