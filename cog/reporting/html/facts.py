"""Everything the page states, as plain values: it can be tested, or used, without any HTML."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import cog.reporting.html.experiment_notices as experiment_notices
from cog import constants
from cog.reporting.html.experiments import Experiments
from cog.results import comparison, diagnostics, official, ranking, search_history
from cog.results.comparison import Difference
from cog.results.diagnostics import Evidence, Notice
from cog.results.official import Match, Verdict
from cog.results.published import SOURCES
from cog.results.ranking import Place
from cog.results.run_records import Problem, Run
from cog.results.scores import RUNS, SeedAverage, dataset_key, natural_key, of_metric
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
        sentences: the answer, in plain words.
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
    sentences: tuple[str, ...]

    def cell(self, dataset: str, n_shot: int) -> SeedAverage | None:
        """Return its top-1 accuracy on a data set."""
        return next((c for c in self.cells if (c.dataset, c.n_shot) == (dataset, n_shot)), None)

    @property
    def has_all_images(self) -> bool:
        """Whether there is a result with all images."""
        return any(cell.n_shot == 0 for cell in self.cells)


@dataclass(frozen=True)
class Facts:
    """The whole report.

    Attributes:
        own: models in natural order.
        published: the paper's results, as given.
        compared: whether any own result may be compared with published ones.
        headline: what to say before all models, in sentences.
        differences: of own models to ``baseline`` with all images, by model (index in ``own``) and data set.
        baseline: index in ``own`` of the model the others are compared with; None with fewer than two.
        notices: what to know, the most severe first.
        problems: folders that are not counted.
        experiments: what the section on other experiments shows.
    """

    own: tuple[OwnModel, ...]
    published: tuple[SeedAverage, ...]
    compared: bool
    headline: tuple[str, ...]
    differences: Mapping[tuple[int, str], Difference]
    baseline: int | None
    notices: tuple[Notice, ...]
    problems: tuple[Problem, ...]
    experiments: Experiments = field(default_factory=Experiments)

    @property
    def incomplete(self) -> bool:
        """Whether an own result has fewer seeds than expected."""
        return any(cell.missing_seeds for model in self.own for cell in model.cells)

    @property
    def counts_unknown(self) -> bool:
        """Whether the official data are assumed for an own result."""
        verdicts = (verdict for model in self.own for verdict in model.counts.values())
        return any(verdict.match is Match.UNKNOWN for verdict in verdicts)


def collect(
    *,
    runs: Sequence[Run],
    cells: Sequence[SeedAverage],
    published: Sequence[SeedAverage],
    problems: Sequence[Problem],
    labels: Mapping[str, str],
    root: str | None = None,
    experiments: Experiments | None = None,
) -> Facts:
    """Derive everything that the page states.

    Args:
        runs: what was found.
        cells: their averages, and any imported ones.
        published: of the paper.
        problems: what was not counted.
        labels: names of the published models, as the paper has them.
        root: the folder of all models, for commands.
        experiments: numbers of all experiments.
    """
    features = search_history.features_of(runs)
    groups: dict[tuple[str, str], list[SeedAverage]] = {}
    for cell in cells:
        groups.setdefault((cell.model, cell.source), []).append(cell)
    n_sources = collections.Counter(model for model, _ in groups)
    runs_of: dict[str, list[Run]] = {}
    for run in runs:
        runs_of.setdefault(run.model, []).append(run)
    features_of: dict[str, dict[tuple[str, str], FeatureDescription]] = {}
    for (model, dataset, split), made in features.items():
        features_of.setdefault(model, {})[dataset, split] = made
    own = []
    for model, source in sorted(groups, key=lambda key: (natural_key(key[0]), key[1] != RUNS, key[1])):
        found = sorted(groups[model, source], key=lambda cell: (dataset_key(cell.dataset), cell.n_shot))
        on_disk = source == RUNS
        own.append(
            _own_model(
                model,
                source,
                of_metric(found, "top1"),
                of_metric(found, "top5"),
                runs_of.get(model, []) if on_disk else [],
                features_of.get(model, {}) if on_disk else {},
                published,
                labels,
                distinguish=n_sources[model] > 1 or model in labels,
            )
        )
    compared = any(model.places for model in own)
    baseline = _choose_baseline(own)
    found_notices = diagnostics.collect(
        Evidence(
            runs=runs,
            cells=[cell for cell in of_metric(cells, "top1") if cell.source == RUNS],
            problems=problems,
            counts={(m.name, dataset): v for m in own if m.source == RUNS for dataset, v in m.counts.items()},
            features=features,
            root=root or "<models_root_dir>",
        )
    )
    shown = experiments or Experiments()
    if not compared and own:  # published numbers are on other data
        shown = dataclasses.replace(
            shown, measures=[one for one in shown.measures if one.source not in SOURCES.values()]
        )
    found_notices += experiment_notices.collect(shown, runs, root=root or "<models_root_dir>")
    found_notices.sort(key=lambda notice: diagnostics.SEVERITIES.index(notice.severity))
    return Facts(
        own=tuple(own),
        published=tuple(published),
        compared=compared,
        headline=tuple(_headline(own, published, compared=compared, others=shown.present)),
        differences=_differences(own, baseline),
        baseline=baseline,
        notices=tuple(found_notices),
        problems=tuple(problems),
        experiments=shown,
    )


def _choose_baseline(own: Sequence[OwnModel]) -> int | None:
    """The reference model if it was run, else the one with the most results, the first of equals."""
    if len(own) < 2:
        return None
    return max(range(len(own)), key=lambda i: (own[i].name == ranking.REFERENCE, len(own[i].cells), -i))


def _differences(own: Sequence[OwnModel], baseline: int | None) -> dict[tuple[int, str], Difference]:
    if baseline is None:
        return {}
    base = {cell.dataset: cell for cell in own[baseline].cells if cell.n_shot == 0}
    found = {}
    for index, model in enumerate(own):
        for cell in model.cells:
            if index != baseline and cell.n_shot == 0 and cell.dataset in base:
                found[index, cell.dataset] = comparison.difference(cell, base[cell.dataset])
    return found


def _own_model(
    model: str,
    source: str,
    cells: Sequence[SeedAverage],
    top5: Sequence[SeedAverage],
    runs: Sequence[Run],
    features: Mapping[tuple[str, str], FeatureDescription],
    published: Sequence[SeedAverage],
    labels: Mapping[str, str],
    *,
    distinguish: bool,
) -> OwnModel:
    verdicts = {dataset: verdict for (_, _, dataset), verdict in official.compare(cells).verdicts.items()}
    places = ranking.places([cell for cell in cells if verdicts[cell.dataset].match.comparable], published)
    name = model or "(unnamed model)"
    if distinguish:
        name = f"{name} ({'own runs' if source == RUNS else source})"
    return OwnModel(
        name=model,
        source=source,
        label=name,
        cells=tuple(cells),
        top5=tuple(top5),
        runs=tuple(runs),
        counts=verdicts,
        features=features,
        places=places,
        sentences=tuple(_sentences(cells, places, verdicts, labels)),
    )


def _sentences(
    cells: Sequence[SeedAverage],
    places: Mapping[tuple[str, int], Place],
    verdicts: Mapping[str, Verdict],
    labels: Mapping[str, str],
) -> list[str]:
    if not places:
        texts = ranking.describe_own(cells)
    else:
        shown = 0 if any(n_shot == 0 for _, n_shot in places) else max(n_shot for _, n_shot in places)
        texts = ranking.describe_places(places, labels, n_shot=shown)
        texts += ranking.describe_published(places)
        texts += ranking.describe_few_shot(places)
        left_out = [dataset for dataset, found in verdicts.items() if not found.match.comparable]
        if left_out:
            texts.append(f"Not compared, because the data are others: {', '.join(left_out)}.")
    return [*texts, *_certainty(cells)]


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


def _headline(
    own: Sequence[OwnModel], published: Sequence[SeedAverage], *, compared: bool, others: bool
) -> list[str]:
    if not own and not published and others:
        return ["There are no linear classifiers here; what follows are the results of other experiments."]
    if not own:
        return ["There are no results of your own here: the tables and figures show the published ones."]
    if compared:
        first_version = any(cell.source == SOURCES["v1"] for cell in published)
        return [*([_FIRST_VERSION] if first_version else []), *_best_on_levels(own)]
    each_other = (
        "What follows compares your models with each other."
        if len(own) > 1
        else "What follows is about them alone."
    )
    levels = [m for m in own if any(d in constants.DATASETS for d in m.counts)]
    if levels and published:
        first = next((f for m in levels for f in m.counts.values() if f.differences), None)
        reason = f" ({first.differences[0]}, for example)" if first is not None else ""
        texts = [
            f"These results are not on the official data{reason}, so comparing them with published numbers is not "
            f"meaningful. {each_other}"
        ]
    else:
        texts = [f"There are no published results on these data sets. {each_other}"]
    return texts + ranking.best_own(
        [cell for model in own for cell in model.cells], {(m.name, m.source): m.label for m in own}
    )


def _best_on_levels(own: Sequence[OwnModel]) -> list[str]:
    """Say which of several compared models stands best on unseen concepts."""
    ranks = {
        model.label: sum(found) / len(found)
        for model in own
        if len(found := [model.places[d, 0].rank for d in constants.COG_LEVELS if (d, 0) in model.places])
        == constants.N_LEVELS
    }
    if len(ranks) < 2:
        return []
    best = min(ranks.values())
    first = [label for label, rank in ranks.items() if rank == best]
    which = first[0] if len(first) == 1 else f"{', '.join(first[:-1])} and {first[-1]}"
    return [
        f"Of {len(ranks)} models, {which} stand{'s' * (len(first) == 1)} best on unseen concepts: mean rank "
        f"{best:.1f} on the levels L1 to L5 among the published models, with all training images."
    ]
