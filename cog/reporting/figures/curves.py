"""Cells sorted into curves: one model from one source, with its label, group and style."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cog.reporting.figures.style as style
from cog.errors import CogError
from cog.reporting.tables.writers import printable
from cog.results import published
from cog.results.labels import METRIC_LABELS, shots_label
from cog.results.scores import RUNS, SeedAverage

LOG = logging.getLogger("cog")

#: The baseline of the paper.
BASELINE = "sup_resnet50"

_LABEL_LENGTH = 28


@dataclass(frozen=True)
class Curve:
    """All cells of one model from one source, and how they are shown."""

    model: str
    source: str
    cells: dict[tuple[str, Any], Any]  # by data set and number of shots; of experiments by data set and key
    label: str
    group: str
    style: style.CurveStyle
    category: str  # key of CATEGORY_LABELS; "" for models of one's own
    own: bool


@dataclass(frozen=True)
class CurveSelection:
    """What can be drawn: the curves, and the settings that all figures share.

    Attributes:
        curves: those of the paper first, in its order.
        references: cells by (source, model) that curves may be compared with, shown or not.
        metric: ``top1`` or ``top5``.
        baseline: model that differences are taken to; None: there is none.
        datasets: wanted by the user; None: each figure's own.
        shots: wanted by the user; None: each figure's own.
    """

    curves: tuple[Curve, ...]
    references: Mapping[tuple[str, str], Mapping[tuple[str, int], SeedAverage]]
    metric: str
    baseline: str | None
    datasets: tuple[str, ...] | None
    shots: tuple[int, ...] | None

    @property
    def baseline_label(self) -> str:
        """The baseline as the paper calls it."""
        assert self.baseline is not None
        return model_label(self.baseline)

    def found(self, part: int) -> set:
        """Return the data sets (0) or shots (1) that have a cell."""
        return {key[part] for curve in self.curves for key in curve.cells}


def select(
    cells: Iterable[SeedAverage],
    published_cells: Iterable[SeedAverage],
    *,
    others: Iterable[SeedAverage] = (),
    metric: str,
    baseline: str | None,
    datasets: Sequence[str] | None,
    shots: Sequence[int] | None,
) -> CurveSelection:
    """Sort cells into curves and give each its style.

    Args:
        cells: of one's own.
        published_cells: of the paper.
        others: not shown, but there to compare with: of the baseline, and on IN-1K.
        metric: ``top1`` or ``top5``; cells without it are left out.
        baseline: model; None: the paper's, if it is there.
        datasets: data sets to show.
        shots: training images per class to show, 0 = all.

    Raises:
        CogError: two cells for one point, nothing to draw, or a baseline without cells.
    """
    if metric not in METRIC_LABELS:
        raise CogError(f"metric {metric!r} is not known, expected one of {', '.join(METRIC_LABELS)}")
    own, of_paper = _group(cells, metric), _group(published_cells, metric)
    everything = [*of_paper.values(), *own.values()]
    references = _group([*others], metric)
    if not everything:
        raise CogError(
            f"no {METRIC_LABELS[metric]} score to draw: there are no results, or none has that score"
        )
    for flag, wanted, part in (("data set", datasets, 0), ("number of shots", shots, 1)):
        there = sorted({key[part] for group in everything for key in group}, key=str)
        absent = [str(value) for value in wanted or () if value not in there]
        if absent:
            LOG.warning("no result to draw for %s %s", flag, ", ".join(absent))
    for groups in (own, of_paper):
        for key in list(groups):
            references[key] = {**references.get(key, {}), **groups[key]}
            groups[key] = {
                place: cell
                for place, cell in groups[key].items()
                if (datasets is None or place[0] in datasets) and (shots is None or place[1] in shots)
            }
            if not groups[key]:
                del groups[key]
    curves = _curves(own, of_paper)
    if not curves:
        raise CogError("nothing to draw: no result has the data sets and shots asked for")
    models = {model for _, model in references}
    if baseline is not None and baseline not in models:
        raise CogError(
            f"no result of the baseline {baseline!r}; there are results of {_listing(sorted(models))}"
        )
    if baseline is None and BASELINE in models:
        baseline = BASELINE
    return CurveSelection(
        curves=curves,
        references=references,
        metric=metric,
        baseline=baseline,
        datasets=None if datasets is None else tuple(dict.fromkeys(datasets)),
        shots=None if shots is None else tuple(dict.fromkeys(shots)),
    )


def of_measures(found: Iterable[SeedAverage]) -> tuple[Curve, ...]:
    """Sort numbers of experiments into curves, those of the paper first, and give each its style.

    Args:
        found: of several for one place the first counts.
    """
    own: _Groups = {}
    of_paper: _Groups = {}
    for measure in found:
        groups = of_paper if measure.source in published.SOURCES.values() else own
        group = groups.setdefault((measure.source, measure.model), {})
        group.setdefault((measure.dataset, measure.key), measure)
    return _curves(own, of_paper)


_Groups = dict[tuple[str, str], dict[tuple[str, Any], Any]]


def _group(cells: Iterable[SeedAverage], metric: str) -> _Groups:
    """Cells that have the metric by (source, model), then by (data set, shots)."""
    groups: _Groups = {}
    for cell in cells:
        if cell.metric != metric or not math.isfinite(cell.value):
            continue
        group = groups.setdefault((cell.source, cell.model), {})
        if (cell.dataset, cell.n_shot) in group:
            raise CogError(
                f"two results for {printable(cell.model)} on {printable(cell.dataset)} with "
                f"{shots_label(cell.n_shot)} from {printable(cell.source)}; keep one of them"
            )
        group[cell.dataset, cell.n_shot] = cell
    return groups


def _curves(own: _Groups, of_paper: _Groups) -> tuple[Curve, ...]:
    """Give every curve its label, group and style.

    A model of the paper looks as in the paper, also when the cells are the user's and the paper's are not
    shown; every other model of the user's is highlighted.
    """
    curves: list[Curve] = []
    as_paper: dict[str, str] = {}  # model -> source of the curve that looks as in the paper
    as_seen: dict[str, str] = {}  # model -> source of its first curve
    sources = {source for source, _ in of_paper}
    order = {model: row.order for model, row in published.MODELS.items()}
    paper_keys = [key for key in of_paper if key[1] in order]
    if not of_paper:
        for source, model in own:
            if model in order and as_paper.setdefault(model, source) == source:
                paper_keys.append((source, model))
    for source, model in sorted(paper_keys, key=lambda key: order[key[1]]):  # stable: sources stay in order
        suffix = f" ({printable(source)})" if len(sources) > 1 else ""
        look = style.published_style(model)
        if as_seen.setdefault(model, source) != source:  # another version's numbers of the same model
            look = dataclasses.replace(look, hollow=True)
        curves.append(
            Curve(
                model=model,
                source=source,
                cells=(of_paper or own)[source, model],
                label=style.legend_label(model) + suffix,
                group=style.legend_group(model),
                style=look,
                category=published.MODELS[model].category,
                own=False,
            )
        )
    taken = {(curve.source, curve.model) for curve in curves}
    rest = {key: group for key, group in [*own.items(), *of_paper.items()] if key not in taken}
    several = {model for _, model in rest if sum(other == model for _, other in rest) > 1}
    labels = {curve.label for curve in curves}
    for position, ((source, model), group) in enumerate(rest.items()):
        suffix = f" ({shorten(printable(source), 12)})" if model in several else ""
        label = _unique(printable(model) or "(unnamed)", suffix, labels)
        labels.add(label)
        curves.append(
            Curve(
                model=model,
                source=source,
                cells=group,
                label=label,
                group=style.OWN if source == RUNS else shorten(printable(source) or "(unnamed)"),
                style=style.own_style(position, total=len(rest)),
                category=published.MODELS[model].category if model in published.MODELS else "",
                own=True,
            )
        )
    return tuple(curves)


def model_label(model: str) -> str:
    """Return the paper's name of a model; others as they are, short enough for a figure."""
    row = published.MODELS.get(model)
    return row.label if row is not None else shorten(printable(model))


def shorten(text: str, length: int = _LABEL_LENGTH, *, head: float = 0.6) -> str:
    """Cut the middle out of a text that is too long for a legend; ``head`` is the part kept of its beginning."""
    if len(text) <= length:
        return text
    first = int((length - 1) * head)
    return f"{text[:first]}…{text[len(text) - (length - 1 - first) :]}"


def _unique(name: str, suffix: str, taken: set[str]) -> str:
    label = shorten(name, max(12, _LABEL_LENGTH - len(suffix))) + suffix
    number = 1
    while label in taken:
        number += 1
        label = f"{shorten(name, max(12, _LABEL_LENGTH - len(suffix) - 4))}{suffix} #{number}"
    return label


def _listing(values: Sequence[str], limit: int = 8) -> str:
    shown = ", ".join(printable(value) for value in values[:limit])
    return f"{shown} and {len(values) - limit} more" if len(values) > limit else shown
