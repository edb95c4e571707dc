"""The first answers of the page in plain sentences: ranks of models, and the certainty of these ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from cog import constants
from cog.errors import some
from cog.reporting.html.facts import Facts, PageModel, Standing
from cog.results import metric_info, ranking, relative
from cog.results.comparison import Difference
from cog.results.labels import dataset_label, shots_label, signed
from cog.results.published import REFERENCE, SOURCES
from cog.results.ranking import RankSummary
from cog.results.scores import SeedAverage, dataset_key

# Least difference of ranks on seen and unseen concepts for a statement: neighbors often differ by a tenth of a point.
_NOTABLE_RANKS = 5

_FIRST_VERSION = (
    "Compared with the first version of the paper (January 2021), whose levels were built differently: only IN-1K "
    "compares, unless these results are on that version's levels."
)


def headline(facts: Facts) -> list[str]:
    """Return sentences on the subject of the page, and on the best of several models."""
    models = facts.own_models
    if not models:
        if facts.results.has_experiments and not facts.published:
            return [
                "There are no linear classifiers here; what follows are the results of other experiments."
            ]
        return ["There are no results of your own here: the tables and figures show the published ones."]
    names = " and ".join(map(metric_info.evaluation_label, facts.other_classifiers))
    if facts.compared:
        first_version = any(cell.source == SOURCES["v1"] for cell in facts.published)
        classifier = [f"The classifier of these results is {names}."] if names else []
        return [*classifier, *[_FIRST_VERSION] * first_version, *_best_on_levels(facts.standings)]
    each_other = "compares your models with each other" if len(models) > 1 else "is about them alone"
    verdicts = [
        v for m in models if any(d in constants.DATASETS for d in m.counts) for v in m.counts.values()
    ]
    text = "There are no published results on these data sets."
    if verdicts and facts.published:
        example = next((f" ({v.differences[0]}, for example)" for v in verdicts if v.differences), "")
        text = (
            f"These results are not on the official data{example}, so comparing them with published numbers is not "
            "meaningful."
        )
    if names:
        text = f"The classifier of these results is {names}; published numbers are of logistic regression."
    labels = {(model.name, model.source): model.label for model in models}
    return [f"{text} What follows {each_other}.", *describe_highest(facts.to_highest, labels)]


def _best_on_levels(standings: Sequence[Standing]) -> list[str]:
    """Return sentences on the highest mean over the levels, and on that of the models that have not seen them.

    "Best" is said only of a model that is told apart from all others (:func:`cog.results.ranking.told_from`).
    """
    ranked = [s for s in standings if s.mean is not None and s.model.shown_shots == 0]
    if len(ranked) < 2:
        return []
    first, unseen = ranked[0], [s for s in ranked if not s.model.mark]
    over = "over L1 to L5 with all training images"
    rank = f"rank {first.rank} of {first.of} models here"
    if unseen and unseen[0] is first:
        best, not_told = _best(ranked)
        return [f"Of {len(ranked)} models, {best}: mean {first.mean:.1f} % {over}, {rank}{not_told}."]
    text = (
        f"Of {len(ranked)} models, {first.model.title} has the highest mean {over}, {first.mean:.1f} %, {rank}"
        f"{_best(ranked)[1]}; its pretraining may have held these concepts."
    )
    if not unseen:
        return [text + " None of them is known to have seen nothing beyond IN-1K."]
    among = (
        f"Of the {len(unseen)} that saw nothing beyond IN-1K"
        if len(unseen) > 1
        else "Alone in having seen only IN-1K"
    )
    best, not_told = _best(unseen)
    return [f"{text} {among}, {best}: {unseen[0].mean:.1f} %, rank {unseen[0].rank}{not_told}."]


def _best(ranked: Sequence[Standing]) -> tuple[str, str]:
    """Return words for the first of ranked models, and for the others that are not told apart from it."""
    first, *others = ([c for c in s.model.cells if (c.dataset, c.n_shot) in s.model.places] for s in ranked)
    told = ranking.told_from(first, others)
    not_told = [s.model.title for s, is_told in zip(ranked[1:], told, strict=True) if not is_told]
    name = ranked[0].model.title
    if not_told:
        which = not_told[0] if len(not_told) == 1 else f"{len(not_told):,} others"
        return f"{name} has the highest mean on unseen concepts", f" (not told apart from {which})"
    return f"{name} is best on unseen concepts", ""


def of_model(model: PageModel) -> list[str]:
    """Return sentences on the ranks of a model, or on its scores without ranks, and on their certainty."""
    if not model.places:
        return [*describe_own(model.cells), *_certainty(model.cells)]
    texts = describe_places(model.places, n_shot=model.shown_shots, unseen=not model.mark)
    texts += [*describe_published(model.places), *describe_few_shot(model.places)]
    left_out = [dataset for dataset, verdict in model.counts.items() if not verdict.match.comparable]
    if left_out:
        texts.append(f"Not compared, because the data are others: {', '.join(left_out)}.")
    return [*texts, *_certainty(model.cells)]


def _certainty(cells: Sequence[SeedAverage]) -> list[str]:
    """Return a sentence on the number of seeds behind the means."""
    sizes = sorted({len(cell.seeds) for cell in cells if cell.seeds})
    if not sizes:
        return []
    if sizes[0] == 1:
        which = "All" if sizes == [1] else "Some"
        return [
            f"{which} results have a single seed, so their spread is unknown: the deviation of the other "
            "result stands in for it. Read small differences as undecided."
        ]
    span = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    if sizes[0] >= len(constants.SEEDS):
        return [f"Means over {span} seeds."]
    return [
        f"Means over {span} seeds; the paper has {len(constants.SEEDS)}. With so few, read differences near one "
        "combined deviation as undecided."
    ]


def _several(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _score(score: SeedAverage) -> str:
    return f"{score.value:.1f} ± {score.std:.1f} %" if score.std is not None else f"{score.value:.1f} %"


def _rank(place: RankSummary) -> str:
    shared = " (shared)" if place.level_with else ""
    return f"rank {place.rank} of {place.of}{shared}"


def describe_places(
    places: Mapping[tuple[str, int], RankSummary], *, n_shot: int = 0, unseen: bool = True
) -> list[str]:
    """Return sentences on ranks, reference and trend of a model with ``n_shot`` images per class (0 = all), if any.

    Args:
        places: ranks as returned by :func:`cog.results.ranking.places`.
        n_shot: training images per class, 0 = all.
        unseen: whether the concepts of the levels are known to be unseen by the model.
    """
    here = [places[key] for key in sorted(places, key=lambda key: dataset_key(key[0])) if key[1] == n_shot]
    if not here:
        return []
    return [_describe_ranks(here, n_shot), *_describe_reference(here), *_describe_trend(here, unseen)]


def _describe_ranks(here: Sequence[RankSummary], n_shot: int) -> str:
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
    # The published result of the same model is not ranked, but may be above this one.
    first = [
        p
        for p in here
        if p.rank == 1 and not p.about_equal
        if p.to_published is None or (p.to_published.clear and p.to_published.points > 0)
    ]
    if first:
        names = _several([dataset_label(p.cell.dataset) for p in first])
        text += f" On {names} its mean is above every published one by more than the combined deviation over seeds."
    return text


def _levels(datasets: Sequence[str]) -> str:
    if tuple(datasets) == constants.COG_LEVELS:
        return "the levels L1 to L5"
    return f"the levels {_several([dataset_label(name) for name in datasets])}"


def _where(levels: Sequence[RankSummary], rank: int) -> str:
    return ", ".join(dataset_label(p.cell.dataset) for p in levels if p.rank == rank)


def _describe_reference(here: Sequence[RankSummary]) -> list[str]:
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
    """Return the names of data sets with their differences; all five levels together with their range."""
    named = {dataset: f"{dataset_label(dataset)} ({signed(value)})" for dataset, value in points.items()}
    if not named.keys() >= set(constants.COG_LEVELS):
        return _several([*named.values()])
    low, high = (end(constants.COG_LEVELS, key=points.__getitem__) for end in (min, max))
    span = signed(points[low])
    if span != signed(points[high]):
        span = f"{span} on {dataset_label(low)} to {signed(points[high])} on {dataset_label(high)}"
    rest = [text for dataset, text in named.items() if dataset not in constants.COG_LEVELS]
    return _several([*rest, f"all levels ({span})"])


def _describe_trend(here: Sequence[RankSummary], unseen: bool) -> list[str]:
    """Return a sentence on the ranks on seen and unseen concepts.

    It has a verdict only if the mean rank differs by ``_NOTABLE_RANKS`` or more, and the span of ranks of no level
    overlaps that of IN-1K.
    """
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


def describe_published(places: Mapping[tuple[str, int], RankSummary]) -> list[str]:
    """Return a sentence on the agreement with published results of the same model (all images); none without them."""
    known = [
        (dataset_label(key[0]), g)
        for key in sorted(places, key=lambda key: dataset_key(key[0]))
        if key[1] == 0 and (g := places[key].to_published) is not None
    ]
    if not known:
        return []
    apart = [f"{name} ({signed(g.points)})" for name, g in known if g.clear]
    agree = [f"{name} ({signed(g.points)})" for name, g in known if not g.clear]
    groups = (("within one combined deviation", agree), ("further apart", apart))
    parts = [f"{verdict} on {_several(names)}" for verdict, names in groups if names]
    return [f"Against the published results of this same model (percentage points): {'; '.join(parts)}."]


def describe_few_shot(places: Mapping[tuple[str, int], RankSummary]) -> list[str]:
    """Return a sentence on the ranks with the fewest and the most images; none without two numbers of shots."""
    shots = sorted({n_shot for _, n_shot in places}, key=lambda n: (n == 0, n))
    if len(shots) < 2:
        return []
    ends = (shots[0], shots[-1])
    parts = []
    for group in ((constants.IN1K,), constants.COG_LEVELS):
        both = [dataset for dataset in group if all((dataset, n) in places for n in ends)]
        if both:
            ranks = ([places[dataset, n].rank for dataset in both] for n in ends)
            first, last = (str(min(r)) if min(r) == max(r) else f"{min(r)} to {max(r)}" for r in ranks)
            name = dataset_label(both[0]) if len(both) == 1 else _levels(both)
            parts.append(f"on {name} {first} with {_images(ends[0])}, {last} with {_images(ends[1])}")
    return [f"Ranks by number of training images: {'; '.join(parts)}."] if parts else []


def _images(n_shot: int) -> str:
    return "all" if n_shot == 0 else f"{n_shot} per class"


def describe_own(cells: Sequence[SeedAverage]) -> list[str]:
    """Return sentences on the scores of a model on its data sets, and on the drop from seen to unseen concepts."""
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


def describe_highest(differences: Iterable[Difference], label: Mapping[tuple[str, str], str]) -> list[str]:
    """Return a sentence on the highest of several models on each data set, as far as it is established.

    Args:
        differences: differences of :func:`cog.results.ranking.to_highest`, corrected for all comparisons of the page;
            empty for a single model, which gives no sentence.
        label: labels of the models by model and source.
    """
    established: dict[str, list[str]] = {}
    open_cases: dict[tuple[str, str], list[str]] = {}
    for dataset, group in itertools.groupby(differences, key=lambda item: item.average.dataset):
        items = list(group)
        first = label[items[0].average.model, items[0].average.source]
        others = [label[item.baseline.model, item.baseline.source] for item in items if item.sign <= 0]
        if others:
            open_cases.setdefault((first, some(others)), []).append(dataset)
        else:
            established.setdefault(first, []).append(dataset)
    parts = [f"{model} is highest on {_several(names)}" for model, names in established.items()]
    if open_cases:
        by_mean = [
            f"{first} on {_several(names)} (not told apart from {others})"
            for (first, others), names in open_cases.items()
        ]
        parts.append(f"highest by the mean alone: {_several(by_mean)}")
    return [f"With all training images: {'; '.join(parts)}."] if parts else []
