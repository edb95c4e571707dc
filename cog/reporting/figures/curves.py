"""Curves of figures: the scores of one model from one source, with label, group and style."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import cog.reporting.figures.style as style
from cog import constants
from cog.errors import CogError, printable
from cog.reporting.tables import writers
from cog.reporting.tables.layout import source_key
from cog.results import published
from cog.results.model_facts import ModelFacts, shows_levels
from cog.results.published import REFERENCE
from cog.results.scores import LOGREG, RUNS, Key, SeedAverage, dataset_key

_LABEL_LENGTH = 48

#: Averages by data set and key.
Scores = Mapping[tuple[str, Key], SeedAverage]

_Groups = dict[tuple[str, str], dict[tuple[str, Key], SeedAverage]]


@dataclass(frozen=True)
class Curve:
    """All scores of one model from one source, with their presentation.

    Attributes:
        model: name.
        source: source of its scores.
        scores: averages by data set and key.
        label: label in the legend, short enough for it.
        group: heading in the legend.
        style: color, marker and line.
        category: key of ``CATEGORY_LABELS`` for models of the paper; "" for other models.
        is_own: whether the curve is highlighted as one of the user's.
        named: whether the legend has its label; curves of a group that are not named are counted there.
    """

    model: str
    source: str
    scores: Scores
    label: str
    group: str
    style: style.CurveStyle
    category: str
    is_own: bool
    named: bool = True


@dataclass(frozen=True)
class CurveSelection:
    """The curves that can be drawn, and the settings that all figures share.

    Attributes:
        curves: curves of the paper first, in its order.
        references: scores for comparisons, shown or not, by (source, model) in order of preference.
        baseline: model to which differences are taken, or None.
        datasets: data sets selected by the user; None: those of each figure.
        shots: numbers of shots selected by the user; None: those of each figure.
        mixed: whether the scores of one curve may be compared with baselines of several sources.
    """

    curves: tuple[Curve, ...]
    references: Mapping[tuple[str, str], Scores]
    baseline: str | None
    datasets: Sequence[str] | None
    shots: Sequence[int] | None = None
    mixed: bool = False

    def numbers(self) -> set[Key]:
        """Return the keys of all scores."""
        return {key for curve in self.curves for _, key in curve.scores}

    def on(self, keys: Iterable[Key]) -> list[str]:
        """Return the data sets that have a score of one of ``keys``, in order."""
        wanted = set(keys)
        there = {dataset for curve in self.curves for dataset, key in curve.scores if key in wanted}
        return sorted(there if self.datasets is None else there & {*self.datasets}, key=dataset_key)

    def reference(self, curve: Curve, dataset: str, key: Key) -> SeedAverage | None:
        """Return the score of the baseline with which ``curve`` is compared, by the rule of the tables; None without.

        The score is from the source of the curve, else from the first source that has the baseline.
        """
        sources = [source for source, model in self.references if model == self.baseline]
        sources.sort(key=lambda source: source != curve.source)
        scores = [self.references[source, str(self.baseline)].get((dataset, key)) for source in sources]
        return next((score for score in scores if score is not None or not self.mixed), None)


def select(
    cells: Iterable[SeedAverage],
    published_cells: Iterable[SeedAverage],
    *,
    others: Iterable[SeedAverage] = (),
    baseline: str | None,
    datasets: Sequence[str] | None,
    shots: Sequence[int] | None,
    model_facts: ModelFacts,
) -> CurveSelection:
    """Return the curves of accuracies of the protocol, with their styles; see :func:`cog.reporting.figures.charts`.

    Raises:
        CogError: nothing to draw.
    """
    own_groups, of_paper, references = (_group(part, "top1") for part in (cells, published_cells, others))
    if not own_groups and not of_paper:
        raise CogError("no top-1 score to draw: there are no results, or none has that score")
    for groups in (own_groups, of_paper):
        for name in list(groups):
            references[name] = {**references.get(name, {}), **groups[name]}
            groups[name] = only(groups[name], datasets, shots)
            if not groups[name]:
                del groups[name]
    curves = _curves(own_groups, of_paper, model_facts)
    if not curves:
        raise CogError("nothing to draw: no result has the data sets and shots asked for")
    models = {model for _, model in references}
    return CurveSelection(
        curves=curves,
        references=dict(sorted(references.items(), key=lambda item: source_key(item[0][0]))),
        baseline=REFERENCE if baseline is None and REFERENCE in models else baseline,
        datasets=datasets,
        shots=shots,
    )


def only(
    scores: Scores, datasets: Collection[str] | None, shots: Collection[int] | None
) -> dict[tuple[str, Key], SeedAverage]:
    """Return the scores on some data sets with some numbers of shots; None: all."""
    return {
        (dataset, key): score
        for (dataset, key), score in scores.items()
        if (datasets is None or dataset in datasets) and (shots is None or key[2] in shots)
    }


def of_experiments(
    measures: Iterable[SeedAverage],
    *,
    baseline: str | None = None,
    datasets: Sequence[str] | None = None,
    model_facts: ModelFacts,
) -> CurveSelection:
    """Return the curves of numbers of all experiments with their styles, those of the paper first.

    Of several numbers for one place, the first counts; see :func:`cog.reporting.figures.charts` for the arguments.
    """
    groups = _group(measures)
    papers = published.SOURCES.values()
    curves = _curves(
        {name: scores for name, scores in groups.items() if name[0] not in papers},
        {name: scores for name, scores in groups.items() if name[0] in papers},
        model_facts,
    )
    return CurveSelection(
        curves=curves,
        references={(curve.source, curve.model): curve.scores for curve in curves},
        baseline=baseline or (REFERENCE if any(curve.model == REFERENCE for curve in curves) else None),
        datasets=datasets,
        mixed=True,
    )


def _group(scores: Iterable[SeedAverage], metric: str | None = None) -> _Groups:
    """Return scores by (source, model) and place; with a metric, only its scores, as of logistic regression."""
    groups: _Groups = {}
    for score in scores:
        if metric in (None, score.metric):
            key = score.key if metric is None else (LOGREG, metric, score.n_shot)
            groups.setdefault((score.source, score.model), {}).setdefault((score.dataset, key), score)
    return groups


def _curves(own_groups: _Groups, of_paper: _Groups, facts: ModelFacts) -> tuple[Curve, ...]:
    """Return the curves with their labels, groups and styles.

    A model of the paper looks as in the paper, also when its scores are the user's and those of the paper are not
    shown. All other models are highlighted; if they are many, only those with the highest means over the levels have
    a name and a color.
    """
    on_levels = shows_levels(
        place[0] for groups in (own_groups, of_paper) for scores in groups.values() for place in scores
    )
    mark = facts.mark if on_levels else lambda model, source: ""
    order = {model: row.order for model, row in published.MODELS.items()}
    paper_keys = [key for key in of_paper if key[1] in order]
    if not of_paper:  # the scores of each model of the paper from their first source
        first = {model: source for source, model in reversed(own_groups) if model in order}
        paper_keys = [(source, model) for model, source in first.items()]
    curves: list[Curve] = []
    sources = {source for source, _ in of_paper}
    for source, model in sorted(paper_keys, key=lambda key: order[key[1]]):  # stable: sources stay in order
        look = style.published_style(model)
        if any(curve.model == model for curve in curves):  # the same model in another version of the paper
            look = dataclasses.replace(look, hollow=True)
        label = style.legend_label(model) + (f" ({printable(source)})" if len(sources) > 1 else "")
        label += mark(model, source)
        scores, category = (of_paper or own_groups)[source, model], published.MODELS[model].category
        group = style.legend_group(model)
        curves.append(Curve(model, source, scores, label, group, look, category, is_own=False))
    taken = {(curve.source, curve.model) for curve in curves}
    rest = {key: scores for key, scores in [*own_groups.items(), *of_paper.items()] if key not in taken}
    labels = {curve.label for curve in curves}
    best = sorted(rest, key=lambda name: _level_key(rest[name]))[: style.MANY]
    colors: dict[str, str] = {}
    position = 0
    for (source, model), scores in rest.items():
        several = sum(other == model for _, other in rest) > 1
        suffix = f" ({shorten(printable(source), 12)})" if several else ""
        label = _unique(
            printable(facts.label(model, source)) or "(unnamed)", suffix + mark(model, source), labels
        )
        labels.add(label)
        group = style.OWN if source == RUNS else shorten(printable(source) or "(unnamed)")
        named = (source, model) in best
        look = style.own_style(position) if named else style.GRAY_OWN
        if named and model in facts.groups:
            look = dataclasses.replace(look, color=colors.setdefault(facts.groups[model], look.color))
        position += named
        category = published.MODELS[model].category if model in published.MODELS else ""
        curves.append(Curve(model, source, scores, label, group, look, category, is_own=True, named=named))
    return tuple(curves)


def _level_key(scores: Scores) -> tuple[int, float]:
    """Return a sort key: most levels with all images first, then the highest mean (of all scores without levels)."""
    values = [
        score.value for (dataset, key), score in scores.items() if constants.cog_level(dataset) and not key[2]
    ]
    return -len(values), -statistics.fmean(values or [score.value for score in scores.values()])


def model_label(model: str) -> str:
    """Return the paper's name of a model; other names as they are, shortened for figures."""
    row = published.MODELS.get(model)
    return row.label if row is not None else shorten(printable(model))


def shorten(text: str, length: int = _LABEL_LENGTH) -> str:
    """Return a text without its middle if it is too long for a legend."""
    return writers.shorten(text, length)


def _unique(name: str, suffix: str, taken: set[str]) -> str:
    label = shorten(name, max(12, _LABEL_LENGTH - len(suffix))) + suffix
    number = 1
    while label in taken:
        number += 1
        label = f"{shorten(name, max(12, _LABEL_LENGTH - len(suffix) - 4))}{suffix} #{number}"
    return label
