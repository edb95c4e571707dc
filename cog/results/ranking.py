"""Comparison of results with the published ones: ranks, neighbors and differences.

Ranks compare means at the precision of the paper (one decimal); equal means share the better rank. Five seeds do not
determine a rank exactly, so every rank has a range: the possible ranks if results within one combined standard
deviation count as equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cog import constants
from cog.results import comparison, official, uncertainty
from cog.results.comparison import Difference
from cog.results.published import REFERENCE
from cog.results.scores import SeedAverage, dataset_key, grouped

#: Digits of published means after the point, at which means are compared for ranks.
DECIMALS = 1


class Gap(NamedTuple):
    """The difference between two results."""

    other: SeedAverage
    points: float  # mean of the result minus the other mean, in percentage points
    clear: bool  # larger than the combined deviation (comparison.within); False if neither result has a deviation

    @property
    def model(self) -> str:
        """Name of the other model."""
        return self.other.model


@dataclass(frozen=True)
class RankSummary:
    """The rank of one result among the published ones of the same data set and number of shots."""

    cell: SeedAverage
    rank: int  # 1 for the best
    of: int  # number of ranked models, this one included
    best_rank: int  # rank as the first of all models within one combined deviation
    worst_rank: int  # rank as the last of all models within one combined deviation
    above: Gap | None  # difference to the published model with the next higher mean; None for the best
    level_with: tuple[str, ...]  # names of published models with the same mean at the paper's precision
    below: Gap | None  # difference to the published model with the next lower mean; None for the last
    about_equal: tuple[str, ...]  # names of published models within one combined deviation, best first
    #: Difference to the published ResNet50; None if it is not among the published results.
    to_reference: Gap | None
    #: Difference to the published result of the same model, which is not ranked; None without one.
    to_published: Gap | None
    field: tuple[float, ...]  # the published means, best first


def gap(average: SeedAverage, other: SeedAverage) -> Gap:
    """Return the difference between two top-1 scores.

    The combined deviation is the square root of the sum of both variances over seeds: the spread of a single
    difference, not the error of the mean. It assumes nothing but independent seeds, and errs on the side of "about
    equal". The deviation of a result with a single seed is unknown; the deviation of the other result replaces it.
    """
    stds = [a.std for a in (average, other) if a.std is not None and (a.std or len(a.seeds) != 1)]
    combined = math.hypot(stds[0], stds[-1]) if stds else 0.0
    clear = bool(stds) and not comparison.within(average.value, other.value, combined)
    return Gap(other, average.value - other.value, clear)


def place(average: SeedAverage, published: Sequence[SeedAverage]) -> RankSummary | None:
    """Return the rank of a result among published ones of its data set and number of shots; None without any.

    The published result of the same model (a repetition of a published experiment) is not ranked.
    """
    rivals = [c for c in published if (c.dataset, c.n_shot) == (average.dataset, average.n_shot)]
    itself = next((c for c in rivals if c.model == average.model), None)
    reference = next((c for c in rivals if c.model == REFERENCE), None)
    rivals = sorted((c for c in rivals if c is not itself), key=lambda c: -c.value)
    if not rivals:
        return None
    mean, *others = (round(c.value, DECIMALS) for c in (average, *rivals))
    rank = comparison.rank([mean, *others])[0]
    gaps = [gap(average, rival) for rival in rivals]
    higher, below = gaps[: rank.rank - 1], gaps[rank.rank + rank.n_tied - 2 :]
    return RankSummary(
        cell=average,
        rank=rank.rank,
        of=rank.n_ranked,
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


def places(
    averages: Iterable[SeedAverage], published: Sequence[SeedAverage]
) -> dict[tuple[str, int], RankSummary]:
    """Return the ranks of the results of one model by data set and number of shots."""
    rivals = grouped(published, lambda cell: (cell.dataset, cell.n_shot))
    ranked = ((cell, place(cell, rivals.get((cell.dataset, cell.n_shot), ()))) for cell in averages)
    return {(cell.dataset, cell.n_shot): p for cell, p in ranked if p is not None}


def level_mean(averages: Iterable[SeedAverage], n_shot: int = 0) -> float | None:
    """Return the mean accuracy of one model over the levels L1 to L5; None if an accuracy is missing."""
    values = [average.value for average in _by_level(averages, n_shot).values()]
    return sum(values) / len(values) if len(values) == constants.N_LEVELS else None


def _by_level(averages: Iterable[SeedAverage], n_shot: int) -> dict[str, SeedAverage]:
    return {a.dataset: a for a in averages if a.n_shot == n_shot and a.dataset in constants.COG_LEVELS}


def told_from(
    first: Sequence[SeedAverage], others: Sequence[Sequence[SeedAverage]], n_shot: int = 0
) -> list[bool]:
    """Return whether the mean of a model over the levels L1 to L5 is told apart from that of each other model.

    It is if the means differ at the paper's precision, and their difference, paired over concepts and common seeds, is
    not zero after Holm's correction for the number of other models. Without counts per concept and two common seeds it
    is not.

    Args:
        first: accuracies of the model.
        others: accuracies of each other model.
        n_shot: number of shots of all accuracies.
    """
    mine = _by_level(first, n_shot)
    p_values = []
    for other in others:
        theirs = _by_level(other, n_shot)
        terms = [(1 / constants.N_LEVELS, a, theirs[level]) for level, a in mine.items() if level in theirs]
        difference = sum(weight * (a.value - b.value) for weight, a, b in terms)
        p = comparison.p_of_sum(difference, terms) if len(terms) == constants.N_LEVELS else None
        if len({round(level_mean(cells, n_shot) or 0.0, DECIMALS) for cells in (first, other)}) == 1:
            p = None
        p_values.append(1.0 if p is None else p)
    return [p < comparison.ERROR_RATE for p in uncertainty.holm(p_values)]


def to_highest(cells: Sequence[SeedAverage]) -> list[Difference]:
    """Return the differences of the model with the highest mean to each other model, by data set, with all images.

    Data sets on which some models cannot be compared with the highest one (:mod:`cog.results.official`) are left out.
    """
    known = official.compare(cells)
    by_dataset = grouped((cell for cell in cells if cell.n_shot == 0), lambda cell: cell.dataset)
    differences = []
    for dataset in sorted(by_dataset, key=dataset_key):
        highest, *others = sorted(by_dataset[dataset], key=lambda cell: -cell.value)
        if all(known.allows(highest, other) for other in others):
            differences += [comparison.difference(highest, other) for other in others]
    return differences
