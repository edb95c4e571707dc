"""The statements of the page as plain values, which can be tested and used without HTML."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cog.errors import CogError, some
from cog.results import comparison, diagnostics, official, ranking, search_history
from cog.results.comparison import Difference, SharedRank
from cog.results.diagnostics import ModelResults
from cog.results.model_facts import ModelFacts, shows_levels
from cog.results.notices import Notice
from cog.results.official import Match
from cog.results.published import CATEGORY_LABELS, MODELS, REFERENCE, SOURCES
from cog.results.query import QueryResult
from cog.results.ranking import RankSummary
from cog.results.scores import (
    LOGREG,
    RUNS,
    SeedAverage,
    dataset_key,
    grouped,
    is_classifier,
    natural_key,
    of_metric,
)
from cog.results.search_history import FeatureDescription

# Equal notices of more models than this are one card of the page.
_MANY_MODELS = 4


@dataclass(frozen=True, kw_only=True)
class PageModel(ModelResults):
    """A model on the page: an own model, which is one of the user's, or a model of the paper.

    Attributes:
        key: id of the model on the page.
        source: ``"runs"``, the label of the file of imported results, or the version of the paper.
        label: name of the model on the page.
        kind: ``own``, or the category of the model in the paper.
        mark: text after the label of a model that may have seen the levels on which it is tested, or "".
        top5: top-5 accuracies of an own model.
        places: ranks of an own model among the published results by data set and number of shots; only on comparable
            data.
    """

    key: str
    source: str
    label: str
    kind: str
    mark: str
    top5: Sequence[SeedAverage] = ()
    places: Mapping[tuple[str, int], RankSummary] = dataclasses.field(default_factory=dict)

    @property
    def title(self) -> str:
        """Return the label with the mark."""
        return self.label + self.mark

    @property
    def is_own(self) -> bool:
        """Return whether the model is one of the user's."""
        return self.kind == "own"

    @property
    def group(self) -> str:
        """Return the words beside the name of the model in tables."""
        return "own result" if self.is_own else CATEGORY_LABELS.get(self.kind, self.kind)

    def cell(self, dataset: str, n_shot: int) -> SeedAverage | None:
        """Return the top-1 accuracy of the model on a data set, or None."""
        return next((c for c in self.cells if (c.dataset, c.n_shot) == (dataset, n_shot)), None)

    @property
    def has_all_images(self) -> bool:
        """Return whether the model has a result with all images."""
        return any(cell.n_shot == 0 for cell in self.cells)

    @property
    def shown_shots(self) -> int:
        """Return the number of shots of the displayed ranks: 0 (all images) if there are such, else the largest."""
        shots = {n_shot for _, n_shot in self.places}
        return 0 if 0 in shots else max(shots)

    def n_classes(self, dataset: str) -> str:
        """Return the numbers of classes in the records of its runs on a data set as text; ``?`` without records."""
        numbers = {
            run.details.n_classes for run in self.runs if run.dataset == dataset and run.details.n_classes
        }
        return ", ".join(f"{n:,}" for n in sorted(numbers)) or "?"


@dataclass(frozen=True)
class Standing:
    """Ranks of a compared model among all models on the page, and among the published ones.

    Attributes:
        index: index of the model in ``own_models``.
        model: the model.
        mean: mean over the levels in percent; None when a level is missing.
        rank: rank by the mean among the models on the page with the same number of images, 1 = best, or None.
        of: number of these models.
        published: rank by the mean among the published models and this one, or None.
        among_all: ranks among all models on the page, by data set.
    """

    index: int
    model: PageModel
    mean: float | None
    rank: int | None
    of: int
    published: SharedRank | None
    among_all: Mapping[str, RankSummary]


@dataclass(frozen=True)
class NoticeGroup:
    """Notices on one card of the page: one notice, or the equal notices of many models.

    Attributes:
        number: index of the first notice in ``Facts.notices``.
        notices: the notices, with the same severity, kind, text and advice.
        models: labels of their models, each once.
    """

    number: int
    notices: tuple[Notice, ...]
    models: tuple[str, ...]

    @property
    def first(self) -> Notice:
        """Return the first notice, which has the severity, text and advice of all."""
        return self.notices[0]

    @property
    def title(self) -> str:
        """Return the title of a single notice, or the name of the kind, since titles have the numbers of one model."""
        return self.first.title if len(self.notices) == 1 else _capitalized(self.first.kind)


@dataclass(frozen=True)
class Facts:
    """All statements of the report.

    Attributes:
        own_models: the user's models in natural order.
        papers: published models in the paper's order; none if own results are on data that forbid a comparison.
        published: results of the paper; none beside results of other experiments alone.
        compared: whether any own result may be compared with published ones.
        standings: ranks of compared models, the highest mean over the levels first; empty with fewer than two own
            models.
        differences: differences of own models to ``baseline`` with all images, by index in ``own_models`` and data set.
        to_highest: differences of the highest own model on a data set to the others; empty if ``compared``.
        baseline: model with which own models are compared; None with fewer than two own models.
        footnote: explanation of the mark of models; "" if no model has one.
        notices: problems, warnings and notes, the most severe first.
        results: results as they were read, with those numbers of other experiments that the page shows.
    """

    own_models: tuple[PageModel, ...]
    papers: tuple[PageModel, ...]
    published: tuple[SeedAverage, ...]
    compared: bool
    standings: tuple[Standing, ...]
    differences: Mapping[tuple[int, str], Difference]
    to_highest: tuple[Difference, ...]
    baseline: PageModel | None
    footnote: str
    notices: tuple[Notice, ...]
    results: QueryResult

    @property
    def baseline_label(self) -> str:
        """Return the label of the baseline on the page; "" without a baseline."""
        if self.baseline is None or self.baseline.is_own:
            return self.baseline.title if self.baseline else ""
        return f"{self.baseline.label} (published){self.baseline.mark}"

    @property
    def other_classifiers(self) -> list[str]:
        """Return the evaluations of own results that are not the protocol's."""
        evaluations = {cell.evaluation for model in self.own_models for cell in model.cells}
        return sorted(evaluations - {LOGREG})

    @property
    def incomplete(self) -> bool:
        """Return whether an own result has fewer seeds than expected."""
        return any(cell.missing_seeds for model in self.own_models for cell in model.cells)

    @property
    def has_intervals(self) -> bool:
        """Return whether an own result has recorded right answers per concept."""
        return any(cell.concepts for model in self.own_models for cell in model.cells)

    @property
    def counts_unknown(self) -> bool:
        """Return whether the official data are assumed for an own result without records of its data."""
        verdicts = (verdict for model in self.own_models for verdict in model.counts.values())
        return any(verdict.match is Match.UNKNOWN for verdict in verdicts)

    def label_of(self, model: str) -> str:
        """Return the label of a model that a notice names."""
        labels = {model.name: model.label for model in self.own_models if model.source == RUNS}
        return labels.get(model, model)

    @property
    def notice_groups(self) -> list[NoticeGroup]:
        """Return the notices in display order, with the equal notices of many models in one group."""

        def content(place: tuple[int, Notice]) -> tuple[str, ...]:
            notice = place[1]
            return notice.severity, notice.kind, notice.text, notice.action

        groups = []
        for equal in grouped(enumerate(self.notices), content).values():
            together = len({notice.model for _, notice in equal}) > _MANY_MODELS
            for group in [equal] if together else [[place] for place in equal]:
                models = dict.fromkeys(self.label_of(notice.model) for _, notice in group if notice.model)
                groups.append(NoticeGroup(group[0][0], tuple(notice for _, notice in group), tuple(models)))
        return sorted(groups, key=lambda group: group.number)

    @property
    def alerts(self) -> list[tuple[str, list[tuple[int, str, str]]]]:
        """Return the kinds of problems and warnings for the callout at the top of the page.

        The list has at most one pair: the worst severity, and a tuple for each kind of problem or warning with the
        index of its first notice, its name and its models.
        """
        kinds: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for i, notice in enumerate(self.notices):
            # The headline names other data already if they rule out any comparison.
            if notice.severity != "note" and (self.compared or notice.kind != Match.DIFFERENT.value):
                kinds.setdefault((notice.severity, notice.kind), []).append((i, notice.model))
        items = []
        for (_, kind), places in kinds.items():
            models = list(dict.fromkeys(self.label_of(model) for _, model in places if model))
            items.append((places[0][0], _capitalized(kind), some(models) if len(self.own_models) > 1 else ""))
        return [(next(iter(kinds))[0], items)] if kinds else []


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]


def collect(
    results: QueryResult,
    *,
    published: Sequence[SeedAverage] = (),
    root: str | None = None,
    baseline: str | None = None,
) -> Facts:
    """Return the statements of the page.

    Args:
        results: results without published accuracies.
        published: accuracies of the paper.
        root: folder of all models, for commands in notices.
        baseline: model with which own models are compared; None: the best published model that has seen nothing beyond
            IN-1K, or without published models, the paper's reference or the own model with the most results.

    Raises:
        CogError: when the page has no result of the baseline.
    """
    root = root or "<models_root_dir>"
    if not results.cells and results.has_experiments:
        # A page on other experiments leaves out the published classifiers.
        published = ()
    features = search_history.features_of(results.runs)
    own_models = _own_models(results, features, published)
    compared = any(model.places for model in own_models)
    if not compared and own_models:  # published numbers are on other data
        kept = [average for average in results.all_measures if average.source not in SOURCES.values()]
        results = dataclasses.replace(results, all_measures=kept)
    notices = diagnostics.collect(results, [model for model in own_models if model.runs], root=root)
    papers = _papers(published, results.model_facts) if compared or not own_models else []
    base = _choose_baseline(own_models, papers, baseline)
    marked = {(model.name, model.source): model.label for model in (*own_models, *papers) if model.mark}
    by_place = _differences(own_models, base)
    to_highest = (
        [] if compared else ranking.to_highest([cell for model in own_models for cell in model.cells])
    )
    # All comparisons of the page are corrected together for their number.
    judged = comparison.judge([*by_place.values(), *to_highest])
    return Facts(
        own_models=tuple(own_models),
        papers=tuple(papers),
        published=tuple(published),
        compared=compared,
        standings=_standings(own_models, papers) if compared and len(own_models) > 1 else (),
        differences=dict(zip(by_place, judged, strict=False)),
        to_highest=tuple(judged[len(by_place) :]),
        baseline=base,
        footnote=results.model_facts.footnote(marked, label=lambda *model: marked[model]),
        notices=tuple(notices),
        results=results,
    )


def _own_models(
    results: QueryResult,
    features: Mapping[tuple[str, str, str], FeatureDescription],
    published: Sequence[SeedAverage],
) -> list[PageModel]:
    cells = sorted(results.cells, key=lambda cell: (dataset_key(cell.dataset), cell.n_shot))
    groups = grouped(cells, lambda cell: (cell.model, cell.source))
    n_sources = collections.Counter(model for model, _ in groups)
    n_labels = collections.Counter(results.model_facts.label(*place) for place in groups)
    published_labels = {row.label for row in MODELS.values()}
    models = []
    ordered = sorted(groups, key=lambda key: (natural_key(key[0]), key[1] != RUNS, key[1]))
    for i, (model, source) in enumerate(ordered):
        cells = of_metric(groups[model, source], "top1")
        verdicts = {dataset: verdict for (*_, dataset), verdict in official.compare(cells).verdicts.items()}
        # Published are accuracies of logistic regression; the classifier of a user's own EVAL.NAME is not known.
        alike = [c for c in cells if c.evaluation == LOGREG or not is_classifier(c.evaluation)]
        places = ranking.places([c for c in alike if verdicts[c.dataset].match.comparable], published)
        label = results.model_facts.label(model, source) or "(unnamed model)"
        if n_sources[model] > 1 or model in MODELS:
            label += f" ({'own runs' if source == RUNS else source})"
        elif label != model and (n_labels[label] > 1 or label in published_labels):
            label += f" ({model})"
        here = model if source == RUNS else None  # imported results come without their runs
        models.append(
            PageModel(
                key=f"own-{i}",
                name=model,
                source=source,
                label=label,
                kind="own",
                mark=results.model_facts.mark(model, source) if shows_levels(verdicts) else "",
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


def _papers(published: Sequence[SeedAverage], model_facts: ModelFacts) -> list[PageModel]:
    groups = grouped(published, lambda cell: (cell.model, cell.source))
    order = {model: i for i, model in enumerate(MODELS)}
    papers = []
    for name, source in sorted(groups, key=lambda place: (order.get(place[0], len(order)), place)):
        known, cells = MODELS.get(name), tuple(groups[name, source])
        label, kind = (name, "published") if known is None else (known.label, known.category)
        mark = model_facts.mark(name, source)
        key = f"paper-{name}"
        papers.append(
            PageModel(key=key, name=name, source=source, label=label, kind=kind, mark=mark, cells=cells)
        )
    return papers


def _standings(own_models: Sequence[PageModel], papers: Sequence[PageModel]) -> tuple[Standing, ...]:
    """Return the ranks of compared models among all on the page: on each data set, and by means over the levels."""
    compared = [(i, model) for i, model in enumerate(own_models) if model.places]
    allowed = {
        i: [cell for cell in model.cells if (cell.dataset, cell.n_shot) in model.places]
        for i, model in compared
    }
    standings = []
    for i, model in compared:
        n_shot = model.shown_shots
        others = (paper.cells for paper in papers if paper.name != model.name)
        peers = [j for j, other in compared if j != i and _on_same_classes(model, other)]
        mean = ranking.level_mean(allowed[i], n_shot)
        published, mine = (
            [value for cells in groups if (value := ranking.level_mean(cells, n_shot)) is not None]
            for groups in (others, (allowed[j] for j in peers))
        )
        among_papers = among_here = None
        if mean is not None:
            among_papers, among_here = (
                comparison.rank([round(v, 1) for v in (mean, *values)])[0]
                for values in (published, published + mine)
            )
        rivals = [
            *(cell for paper in papers for cell in paper.cells),
            *(cell for j in peers for cell in allowed[j]),
        ]
        among_all = ranking.places([cell for cell in allowed[i] if cell.n_shot == n_shot], rivals)
        standings.append(
            Standing(
                i, model, mean, None if among_here is None else among_here.rank, len(published) + len(mine) + 1,
                among_papers, {dataset: place for (dataset, _), place in among_all.items()},
            )
        )  # fmt: skip
    return tuple(sorted(standings, key=lambda s: (s.model.shown_shots, s.mean is None, -(s.mean or 0))))


def _on_same_classes(model: PageModel, other: PageModel) -> bool:
    shared = model.counts.keys() & other.counts.keys()
    return all(model.counts[dataset].on_same_classes(other.counts[dataset]) for dataset in shared)


def _choose_baseline(
    own_models: Sequence[PageModel], papers: Sequence[PageModel], wanted: str | None
) -> PageModel | None:
    """Return the wanted model, or the best published one that has seen nothing beyond IN-1K; an own run of it first.

    Without published ones: the paper's reference if it was run, else the model with the most results and the highest.
    """
    if len(own_models) < 2:
        return None
    if wanted is None and not papers:
        return max(
            own_models,
            key=lambda m: (m.name == REFERENCE, len(m.cells), sum(cell.value for cell in m.cells)),
        )
    if wanted is None:
        clean = [paper for paper in papers if not paper.mark] or papers
        wanted = max(clean, key=lambda paper: ranking.level_mean(paper.cells) or 0.0).name
    chosen = next((model for model in (*own_models, *papers) if model.name == wanted), None)
    if chosen is None:
        raise CogError(
            f"--baseline {wanted}: no result of it on the page; expected a model of yours or a published one"
        )
    return chosen


def _differences(
    own_models: Sequence[PageModel], baseline: PageModel | None
) -> dict[tuple[int, str], Difference]:
    return {
        (index, cell.dataset): comparison.difference(cell, base)
        for index, model in enumerate(own_models)
        for cell in model.cells
        if baseline is not None and model is not baseline and not cell.n_shot
        if (base := baseline.cell(cell.dataset, 0)) is not None
        and official.compare([cell, base]).allows(cell, base)
    }
