"""Where results stand among the published ones: ranks, neighbors, differences, and sentences about them.

Ranks compare means at the precision of the paper (one decimal); equal means share the better rank. A rank
alone promises more than five seeds can hold, so every rank comes with the span it could have if results within
one combined standard deviation were taken as equal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cog import constants
from cog.errors import some
from cog.results import comparison, official, relative
from cog.results.comparison import Difference
from cog.results.labels import dataset_label, shots_label, signed
from cog.results.published import REFERENCE
from cog.results.scores import SeedAverage, dataset_key, grouped

_DECIMALS = 1

# Fewer places between seen and unseen concepts are not worth a statement: neighbors are often a tenth apart.
_NOTABLE_RANKS = 5


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


def _several(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _score(score: SeedAverage) -> str:
    return f"{score.value:.1f} ± {score.std:.1f} %" if score.std is not None else f"{score.value:.1f} %"


def _rank(place: Place) -> str:
    shared = " (shared)" if place.shared else ""
    return f"rank {place.rank} of {place.of}{shared}"


def describe_places(
    places: Mapping[tuple[str, int], Place], label: Mapping[str, str], *, n_shot: int = 0, unseen: bool = True
) -> list[str]:
    """Say in plain sentences where a model stands with ``n_shot`` images per class.

    Args:
        places: of :func:`places`.
        label: how to call the published models.
        n_shot: training images per class, 0 = all.
        unseen: whether the concepts of the levels are known to be unseen by the model.

    Returns:
        Up to three sentences; none when nothing can be ranked.
    """
    here = [places[key] for key in sorted(places, key=lambda key: dataset_key(key[0])) if key[1] == n_shot]
    if not here:
        return []
    return [
        _describe_ranks(here, label, n_shot=n_shot),
        *_describe_reference(here),
        *_describe_trend(here, unseen),
    ]


def _describe_ranks(here: Sequence[Place], label: Mapping[str, str], *, n_shot: int) -> str:
    seen = next((p for p in here if p.cell.dataset == constants.IN1K), None)
    levels = [p for p in here if p.cell.dataset != constants.IN1K]
    parts = []
    for single in (seen, levels[0] if len(levels) == 1 else None):
        if single is not None:
            text = f"{_score(single.cell)} on {dataset_label(single.cell.dataset)}, {_rank(single)}"
            if single.best_rank != single.worst_rank:
                text += f" ({single.best_rank} to {single.worst_rank} within one combined deviation)"
            parts.append(text)
    if len(levels) > 1:
        best, worst = min(levels, key=lambda p: p.rank), max(levels, key=lambda p: p.rank)
        many = _levels([p.cell.dataset for p in levels])
        if best.rank == worst.rank:
            parts.append(f"rank {best.rank} of {best.of} on {many}")
        else:
            parts.append(
                f"on {many} ranks from {best.rank} ({_where(levels, best.rank)}) to {worst.rank} "
                f"({_where(levels, worst.rank)}) of {best.of}"
            )
    text = f"With {shots_label(n_shot)}: {'; '.join(parts)}."
    first = [p for p in here if p.rank == 1 and not p.about_equal]
    if first:
        names = _several([dataset_label(p.cell.dataset) for p in first])
        text += f" On {names} its mean is above every published one by more than the combined deviation over seeds."
    return text


def _levels(datasets: Sequence[str]) -> str:
    if tuple(datasets) == constants.COG_LEVELS:
        return "the levels L1 to L5"
    return f"the levels {_several([dataset_label(name) for name in datasets])}"


def _where(levels: Sequence[Place], rank: int) -> str:
    return ", ".join(dataset_label(p.cell.dataset) for p in levels if p.rank == rank)


def _describe_reference(here: Sequence[Place]) -> list[str]:
    if here[0].cell.model == REFERENCE:
        return []
    gaps = {p.cell.dataset: p.to_reference for p in here if p.to_reference is not None}
    groups = {
        "beyond the combined deviation over seeds": {d: g.points for d, g in gaps.items() if g.clear},
        "within the combined deviation over seeds": {d: g.points for d, g in gaps.items() if not g.clear},
    }
    parts = [f"{verdict} on {_points(group)}" for verdict, group in groups.items() if group]
    if not parts:
        return []
    return [
        f"Against ResNet50, in percentage points: {'; '.join(parts)}. Whether other concepts would tell the same is "
        "not known: published numbers have no counts per concept."
    ]


def _points(points: Mapping[str, float]) -> str:
    """Name data sets with their differences; all five levels in short, by their smallest and largest."""
    named = {dataset: f"{dataset_label(dataset)} ({signed(value)})" for dataset, value in points.items()}
    if not named.keys() >= set(constants.COG_LEVELS):
        return _several([*named.values()])
    low, high = (end(constants.COG_LEVELS, key=points.__getitem__) for end in (min, max))
    span = signed(points[low])
    if span != signed(points[high]):
        span = f"{span} on {dataset_label(low)} to {signed(points[high])} on {dataset_label(high)}"
    rest = [text for dataset, text in named.items() if dataset not in constants.COG_LEVELS]
    return _several([*rest, f"all levels ({span})"])


def _describe_trend(here: Sequence[Place], unseen: bool) -> list[str]:
    """Compare the rank on seen concepts with those on unseen ones; a verdict only when no spans overlap."""
    seen = next((p for p in here if p.cell.dataset == constants.IN1K), None)
    levels = [p for p in here if constants.cog_level(p.cell.dataset) is not None]
    if seen is None or len(levels) < constants.N_LEVELS:
        return []
    mean = sum(p.rank for p in levels) / len(levels)
    concepts = "unseen concepts" if unseen else "the concepts of the levels"
    notable = abs(mean - seen.rank) >= _NOTABLE_RANKS
    if notable and all(p.worst_rank < seen.best_rank for p in levels):
        verdict = f"it stands better on {concepts} than on those of IN-1K"
    elif notable and all(p.best_rank > seen.worst_rank for p in levels):
        verdict = f"it stands worse on {concepts} than on those of IN-1K"
    else:
        verdict = ""
    among = f": among the published models {verdict}" if verdict else ""
    return [f"Mean rank {mean:.1f} on the levels, rank {seen.rank} on IN-1K{among}."]


def describe_published(places: Mapping[tuple[str, int], Place]) -> list[str]:
    """Say how results of a published model agree with its published ones (all images); none for other models."""
    gaps = [
        (dataset_label(key[0]), places[key].to_published)
        for key in sorted(places, key=lambda key: dataset_key(key[0]))
        if key[1] == 0
    ]
    known = [(name, g) for name, g in gaps if g is not None]
    if not known:
        return []
    apart = [f"{name} ({signed(g.points)})" for name, g in known if g.clear]
    agree = [f"{name} ({signed(g.points)})" for name, g in known if not g.clear]
    parts = []
    if agree:
        parts.append(f"within one combined deviation on {_several(agree)}")
    if apart:
        parts.append(f"further apart on {_several(apart)}")
    return [f"Against the published results of this same model (percentage points): {'; '.join(parts)}."]


def describe_few_shot(places: Mapping[tuple[str, int], Place]) -> list[str]:
    """Say how the ranks move from the fewest images to the most; none without few-shot results."""
    shots = sorted({n_shot for _, n_shot in places}, key=lambda n: (n == 0, n))
    if len(shots) < 2:
        return []
    ends = (shots[0], shots[-1])
    parts = []
    for name, datasets in (("IN-1K", (constants.IN1K,)), ("the levels", constants.COG_LEVELS)):
        ranks = [[places[dataset, n].rank for dataset in datasets if (dataset, n) in places] for n in ends]
        if all(ranks):
            first, last = (str(min(r)) if min(r) == max(r) else f"{min(r)} to {max(r)}" for r in ranks)
            parts.append(f"on {name} {first} with {_images(ends[0])}, {last} with {_images(ends[1])}")
    return [f"Ranks by number of training images: {'; '.join(parts)}."] if parts else []


def _images(n_shot: int) -> str:
    return "all" if n_shot == 0 else f"{n_shot} per class"


def describe_own(cells: Sequence[SeedAverage]) -> list[str]:
    """Say how one model does on data of its own: the score on each data set and the fall from seen to unseen."""
    if not cells:
        return []
    shown = 0 if any(cell.n_shot == 0 for cell in cells) else max(cell.n_shot for cell in cells)
    by_dataset = {cell.dataset: cell for cell in cells if cell.n_shot == shown}
    ordered = sorted(by_dataset.values(), key=lambda cell: dataset_key(cell.dataset))
    scores = _several([f"{_score(c)} on {c.dataset or '(unnamed data)'}" for c in ordered])
    texts = [f"With {shots_label(shown)}: {scores}."]
    seen = by_dataset.get(constants.IN1K)
    levels = [by_dataset[name] for name in by_dataset if constants.cog_level(name) is not None]
    if seen is not None and levels and seen.value > 0:
        last = max(levels, key=lambda cell: dataset_key(cell.dataset))
        drop, share = relative.points(last, seen)[0], relative.relative(last, seen)[0] or 0.0
        texts.append(
            f"From the seen concepts (in1k) to the most distant level here ({last.dataset}): "
            f"{signed(drop)} points, {signed(share)} % of its score on in1k."
        )
    return texts


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


def describe_highest(differences: Iterable[Difference], label: Mapping[tuple[str, str], str]) -> list[str]:
    """Say which of several models is highest on which data set, or that it cannot be told; none for a single model.

    Args:
        differences: of :func:`to_highest`, judged beside all others that are shown.
        label: how to call the models, by model and source.
    """
    told: dict[str, list[str]] = {}
    untold: dict[tuple[str, str], list[str]] = {}
    for dataset, group in itertools.groupby(differences, key=lambda item: item.average.dataset):
        items = list(group)
        first = label[items[0].average.model, items[0].average.source]
        others = [label[item.baseline.model, item.baseline.source] for item in items if item.sign <= 0]
        if others:
            untold.setdefault((first, some(others)), []).append(dataset)
        else:
            told.setdefault(first, []).append(dataset)
    parts = [f"{model} is highest on {_several(names)}" for model, names in told.items()]
    if untold:
        by_mean = [
            f"{first} on {_several(names)} (not told apart from {others})"
            for (first, others), names in untold.items()
        ]
        parts.append(f"highest by the mean alone: {_several(by_mean)}")
    return [f"With all training images: {'; '.join(parts)}."] if parts else []
