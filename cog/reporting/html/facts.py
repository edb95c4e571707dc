"""Everything the page states, as plain values, which can be tested, or used, without any HTML."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import cog.reporting.html.experiment_notices as experiment_notices
from cog import constants
from cog.results import comparison, diagnostics, official, ranking, search_history
from cog.results.comparison import Difference
from cog.results.diagnostics import Evidence, Notice
from cog.results.official import Match, Verdict
from cog.results.published import MODELS, SOURCES
from cog.results.query import QueryResult
from cog.results.ranking import Place
from cog.results.run_records import Run
from cog.results.scores import LOGREG, RUNS, SeedAverage, dataset_key, natural_key, of_metric
from cog.results.search_history import FeatureDescription

_FIRST_VERSION = (
    "Compared with the first version of the paper (January 2021), whose levels were built differently: only IN-1K "
    "compares, unless these results are on that version's levels."
)


@dataclass(frozen=True)
class OwnModel:
    """One model with results that are not the paper's.

    Attributes:
        name: as everywhere in the toolkit.
        source: ``"runs"``, or the label of the file the results were imported from.
        label: how the page calls it.
        cells: its top-1 accuracies.
        top5: its top-5 accuracies.
        runs: behind them; empty for imported results.
        counts: verdict on the data, by data set.
        features: how its features were made, by data set and split.
        places: among the published results, by data set and number of shots; only where the data allow it.
    """

    name: str
    source: str
    label: str
    cells: tuple[SeedAverage, ...]
    top5: tuple[SeedAverage, ...]
    runs: tuple[Run, ...]
    counts: Mapping[str, Verdict]
    features: Mapping[tuple[str, str], FeatureDescription]
    places: Mapping[tuple[str, int], Place]

    def cell(self, dataset: str, n_shot: int) -> SeedAverage | None:
        """Return its top-1 accuracy on a data set."""
        return next((c for c in self.cells if (c.dataset, c.n_shot) == (dataset, n_shot)), None)

    @property
    def has_all_images(self) -> bool:
        """Whether there is a result with all images."""
        return any(cell.n_shot == 0 for cell in self.cells)

    @property
    def shown_shots(self) -> int:
        """The number of shots that its places are shown for: all images, else the most."""
        shots = {n_shot for _, n_shot in self.places}
        return 0 if 0 in shots else max(shots)

    @functools.cached_property
    def sentences(self) -> tuple[str, ...]:
        """The answer, in plain words."""
        return tuple(_sentences(self))

    def mean_rank(self, n_shot: int) -> float | None:
        """Return its mean rank on the levels; None when it has no rank on some of them."""
        places = [self.places.get((dataset, n_shot)) for dataset in constants.COG_LEVELS]
        ranks = [place.rank for place in places if place is not None]
        return sum(ranks) / len(ranks) if len(ranks) == constants.N_LEVELS else None

    def n_classes(self, dataset: str) -> str:
        """Return the numbers of classes that its runs on a data set recorded."""
        numbers = {
            run.details.n_classes for run in self.runs if run.dataset == dataset and run.details.n_classes
        }
        return ", ".join(f"{n:,}" for n in sorted(numbers)) or "?"


@dataclass(frozen=True)
class Facts:
    """The whole report.

    Attributes:
        own: models in natural order.
        published: the paper's results; none beside results of other experiments alone.
        compared: whether any own result may be compared with published ones.
        headline: what to say before all models, in sentences.
        differences: of own models to ``baseline`` with all images, by model (index in ``own``) and data set.
        baseline: index in ``own`` of the model the others are compared with; None with fewer than two.
        notices: what to know, the most severe first.
        results: as they were read; numbers of other experiments are those that the page shows.
    """

    own: tuple[OwnModel, ...]
    published: tuple[SeedAverage, ...]
    compared: bool
    headline: tuple[str, ...]
    differences: Mapping[tuple[int, str], Difference]
    baseline: int | None
    notices: tuple[Notice, ...]
    results: QueryResult

    @property
    def has_experiments(self) -> bool:
        """Whether there is more than logistic regression on all features."""
        return _has_experiments(self.results)

    @property
    def incomplete(self) -> bool:
        """Whether an own result has fewer seeds than expected."""
        return any(cell.missing_seeds for model in self.own for cell in model.cells)

    @property
    def counts_unknown(self) -> bool:
        """Whether the official data are assumed for an own result."""
        verdicts = (verdict for model in self.own for verdict in model.counts.values())
        return any(verdict.match is Match.UNKNOWN for verdict in verdicts)

    @property
    def ranked(self) -> list[tuple[int, OwnModel, float | None]]:
        """Index in ``own``, model and mean rank of compared models, the best on unseen concepts first."""
        rows = [
            (i, model, model.mean_rank(model.shown_shots)) for i, model in enumerate(self.own) if model.places
        ]
        return sorted(rows, key=lambda row: math.inf if row[2] is None else row[2])

    @property
    def alerts(self) -> list[tuple[str, list[tuple[int, str, str]]]]:
        """Kinds of problems and warnings, which belong at the top, where nobody misses them.

        At most one pair: the worst severity, and index of the first notice, kind and models of each kind.
        """
        kinds: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for i, notice in enumerate(self.notices):
            # That the data are others is said already, where it rules out any comparison.
            if notice.severity != "note" and (self.compared or notice.kind != Match.DIFFERENT.value):
                kinds.setdefault((notice.severity, notice.kind), []).append((i, notice.model))
        items = []
        for (_, kind), places in kinds.items():
            models = [model for _, model in places if model]
            names = ", ".join(models[:3]) + (f" and {len(models) - 3} more" if len(models) > 3 else "")
            items.append((places[0][0], kind[0].upper() + kind[1:], names if len(self.own) > 1 else ""))
        return [(next(iter(kinds))[0], items)] if kinds else []


def collect(results: QueryResult, *, published: Sequence[SeedAverage] = (), root: str | None = None) -> Facts:
    """Derive everything that the page states.

    Args:
        results: as they were read; none of them published accuracies.
        published: accuracies of the paper.
        root: the folder of all models, for commands.
    """
    root = root or "<models_root_dir>"
    if not results.cells and _has_experiments(results):
        # The published classifiers are not what the page is about.
        published = ()
    features = search_history.features_of(results.runs)
    own = _own_models(results, features, published)
    compared = any(model.places for model in own)
    if not compared and own:  # published numbers are on other data
        kept = [average for average in results.all_measures if average.source not in SOURCES.values()]
        results = dataclasses.replace(results, all_measures=kept)
    notices = diagnostics.collect(
        Evidence(
            runs=results.runs,
            cells=[cell for cell in of_metric(results.cells, "top1") if cell.source == RUNS],
            problems=results.problems,
            counts={(m.name, dataset): v for m in own if m.source == RUNS for dataset, v in m.counts.items()},
            features=features,
            root=root,
        )
    )
    notices += experiment_notices.collect(results, root=root)
    baseline = _choose_baseline(own)
    facts = Facts(
        own=tuple(own),
        published=tuple(published),
        compared=compared,
        headline=(),
        differences=_differences(own, baseline),
        baseline=baseline,
        notices=tuple(sorted(notices, key=lambda notice: diagnostics.SEVERITIES.index(notice.severity))),
        results=results,
    )
    return dataclasses.replace(facts, headline=tuple(_headline(facts)))


def _has_experiments(results: QueryResult) -> bool:
    return any(average.evaluation != LOGREG for average in results.all_measures)


def _own_models(
    results: QueryResult,
    features: Mapping[tuple[str, str, str], FeatureDescription],
    published: Sequence[SeedAverage],
) -> list[OwnModel]:
    groups: dict[tuple[str, str], list[SeedAverage]] = {}
    for cell in sorted(results.cells, key=lambda cell: (dataset_key(cell.dataset), cell.n_shot)):
        groups.setdefault((cell.model, cell.source), []).append(cell)
    n_sources = collections.Counter(model for model, _ in groups)
    models = []
    for model, source in sorted(groups, key=lambda key: (natural_key(key[0]), key[1] != RUNS, key[1])):
        cells = of_metric(groups[model, source], "top1")
        verdicts = {dataset: verdict for (*_, dataset), verdict in official.compare(cells).verdicts.items()}
        places = ranking.places(
            [cell for cell in cells if verdicts[cell.dataset].match.comparable], published
        )
        label = model or "(unnamed model)"
        if n_sources[model] > 1 or model in MODELS:
            label += f" ({'own runs' if source == RUNS else source})"
        here = model if source == RUNS else None  # imported results come without their runs
        models.append(
            OwnModel(
                name=model,
                source=source,
                label=label,
                cells=tuple(cells),
                top5=tuple(of_metric(groups[model, source], "top5")),
                runs=tuple(run for run in results.runs if run.model == here),
                counts=verdicts,
                features={
                    (dataset, split): made
                    for (name, dataset, split), made in features.items()
                    if name == here
                },
                places=places,
            )
        )
    return models


def _choose_baseline(own: Sequence[OwnModel]) -> int | None:
    """The reference model if it was run, else the one with the most results, the first of equals."""
    if len(own) < 2:
        return None
    return max(range(len(own)), key=lambda i: (own[i].name == ranking.REFERENCE, len(own[i].cells), -i))


def _differences(own: Sequence[OwnModel], baseline: int | None) -> dict[tuple[int, str], Difference]:
    if baseline is None:
        return {}
    base = {cell.dataset: cell for cell in own[baseline].cells if cell.n_shot == 0}
    differences = {
        (index, cell.dataset): comparison.difference(cell, base[cell.dataset])
        for index, model in enumerate(own)
        for cell in model.cells
        if index != baseline and cell.n_shot == 0 and cell.dataset in base
    }
    return dict(zip(differences, comparison.judge(differences.values()), strict=True))


def _sentences(model: OwnModel) -> list[str]:
    if not model.places:
        return [*ranking.describe_own(model.cells), *_certainty(model.cells)]
    labels = {name: published.label for name, published in MODELS.items()}
    texts = ranking.describe_places(model.places, labels, n_shot=model.shown_shots)
    texts += [*ranking.describe_published(model.places), *ranking.describe_few_shot(model.places)]
    left_out = [dataset for dataset, verdict in model.counts.items() if not verdict.match.comparable]
    if left_out:
        texts.append(f"Not compared, because the data are others: {', '.join(left_out)}.")
    return [*texts, *_certainty(model.cells)]


def _certainty(cells: Sequence[SeedAverage]) -> list[str]:
    """Say on how many seeds the numbers rest."""
    sizes = sorted({len(cell.seeds) for cell in cells if cell.seeds})
    if not sizes:
        return []
    if sizes[0] == 1:
        which = "All" if sizes == [1] else "Some"
        return [
            f"{which} results have a single seed, so their spread is unknown: the deviation of the other "
            "result stands in for it. Read small differences as undecided."
        ]
    few = sizes[0] < len(constants.SEEDS)
    span = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    return [
        f"Means over {span} seeds; the paper has {len(constants.SEEDS)}. With so few, read differences near one "
        "combined deviation as undecided."
        if few
        else f"Means over {span} seeds."
    ]


def _headline(facts: Facts) -> list[str]:
    own = facts.own
    if not own:
        if facts.has_experiments and not facts.published:
            return [
                "There are no linear classifiers here; what follows are the results of other experiments."
            ]
        return ["There are no results of your own here: the tables and figures show the published ones."]
    if facts.compared:
        first_version = any(cell.source == SOURCES["v1"] for cell in facts.published)
        return [*[_FIRST_VERSION] * first_version, *_best_on_levels(own)]
    each_other = "compares your models with each other" if len(own) > 1 else "is about them alone"
    verdicts = [v for m in own if any(d in constants.DATASETS for d in m.counts) for v in m.counts.values()]
    text = "There are no published results on these data sets."
    if verdicts and facts.published:
        example = next((f" ({v.differences[0]}, for example)" for v in verdicts if v.differences), "")
        text = (
            f"These results are not on the official data{example}, so comparing them with published numbers is not "
            "meaningful."
        )
    labels = {(model.name, model.source): model.label for model in own}
    best = ranking.best_own([cell for model in own for cell in model.cells], labels)
    return [f"{text} What follows {each_other}.", *best]


def _best_on_levels(own: Sequence[OwnModel]) -> list[str]:
    """Say which of several compared models stands best on unseen concepts."""
    ranks = {model.label: mean for model in own if (mean := model.mean_rank(0)) is not None}
    if len(ranks) < 2:
        return []
    best = min(ranks.values())
    *others, last = [label for label, rank in ranks.items() if rank == best]
    names, verb = (f"{', '.join(others)} and {last}", "stand") if others else (last, "stands")
    return [
        f"Of {len(ranks)} models, {names} {verb} best on unseen concepts: mean rank {best:.1f} on the levels L1 to L5 "
        "among the published models, with all training images."
    ]
