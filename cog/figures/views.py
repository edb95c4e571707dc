"""From cells to charts: which curves a figure of the paper shows, and relative to what.

The figures are those of the paper's final version (ICCV 2021): Fig. 3 (levels, all images), Fig. 4 (few-shot,
eight models), Figs. 10 and 11 (few-shot, all models), and Fig. 3c of the first version (drop from IN-1K).
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cog import names, published
from cog.cells import RUNS, Cell, dataset_key
from cog.errors import CogError
from cog.figures import style
from cog.figures.chart import Chart, Panel, Point, Series, std_of
from cog.tables import printable
from cog.views.layout import METRIC_LABELS, shots_label, source_key

LOG = logging.getLogger("cog")

#: The baseline of the paper.
BASELINE = "sup_resnet50"

# Above this many models of the paper Fig. 4 shows only its eight.
_MAX_IN_FIG4 = 12

# Above this many curves the drop is shown per group as well.
_MAX_TOGETHER = 12

_FIG4_DATASETS = ("cog_l1", "cog_l3", "cog_l5")

_LABEL_LENGTH = 28

_DIFFERENCE = "relative"


@dataclass(frozen=True)
class _Curve:
    """All cells of one model from one source, and how they are shown."""

    model: str
    source: str
    cells: dict[tuple[str, int], Cell]
    label: str
    group: str
    style: style.Style
    category: str  # key of CATEGORY_LABELS; "" for models of one's own
    own: bool


@dataclass(frozen=True)
class Selection:
    """What can be drawn: the curves, and the settings that all figures share.

    Attributes:
        curves: those of the paper first, in its order.
        references: cells by (source, model) that curves may be compared with, shown or not.
        metric: ``top1`` or ``top5``.
        baseline: model that differences are taken to; None: there is none.
        datasets: wanted by the user; None: each figure's own.
        shots: wanted by the user; None: each figure's own.
    """

    curves: tuple[_Curve, ...]
    references: Mapping[tuple[str, str], Mapping[tuple[str, int], Cell]]
    metric: str
    baseline: str | None
    datasets: tuple[str, ...] | None
    shots: tuple[int, ...] | None

    @property
    def baseline_label(self) -> str:
        """The baseline as the paper calls it."""
        assert self.baseline is not None
        row = published.MODELS.get(self.baseline)
        return row.label if row is not None else shorten(printable(self.baseline))

    def found(self, part: int) -> set:
        """Return the data sets (0) or shots (1) that have a cell."""
        return {key[part] for curve in self.curves for key in curve.cells}


def select(
    cells: Iterable[Cell],
    published_cells: Iterable[Cell],
    *,
    others: Iterable[Cell] = (),
    metric: str,
    baseline: str | None,
    datasets: Sequence[str] | None,
    shots: Sequence[int] | None,
) -> Selection:
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
    return Selection(
        curves=curves,
        references=references,
        metric=metric,
        baseline=baseline,
        datasets=None if datasets is None else tuple(dict.fromkeys(datasets)),
        shots=None if shots is None else tuple(dict.fromkeys(shots)),
    )


_Groups = dict[tuple[str, str], dict[tuple[str, int], Cell]]


def _group(cells: Iterable[Cell], metric: str) -> _Groups:
    """Cells that have the metric by (source, model), then by (data set, shots)."""
    groups: _Groups = {}
    for cell in cells:
        score = cell.score(metric)
        if score is None or not math.isfinite(score.mean):
            continue
        group = groups.setdefault((cell.source, cell.model), {})
        if (cell.dataset, cell.n_shot) in group:
            raise CogError(
                f"two results for {printable(cell.model)} on {printable(cell.dataset)} with "
                f"{shots_label(cell.n_shot)} from {printable(cell.source)}; keep one of them"
            )
        group[cell.dataset, cell.n_shot] = cell
    return groups


def _curves(own: _Groups, of_paper: _Groups) -> tuple[_Curve, ...]:
    """Give every curve its label, group and style.

    A model of the paper looks as in the paper, also when the cells are the user's and the paper's are not
    shown; every other model of the user's is highlighted.
    """
    curves: list[_Curve] = []
    as_paper: dict[str, str] = {}  # model -> source of the curve that looks as in the paper
    sources = {source for source, _ in of_paper}
    order = {model: row.order for model, row in published.MODELS.items()}
    paper_keys = [key for key in of_paper if key[1] in order]
    if not of_paper:
        for source, model in own:
            if model in order and as_paper.setdefault(model, source) == source:
                paper_keys.append((source, model))
    for source, model in sorted(paper_keys, key=lambda key: order[key[1]]):  # stable: sources stay in order
        suffix = f" ({printable(source)})" if len(sources) > 1 else ""
        curves.append(
            _Curve(
                model=model,
                source=source,
                cells=(of_paper or own)[source, model],
                label=style.legend_label(model) + suffix,
                group=style.legend_group(model),
                style=style.published_style(model),
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
            _Curve(
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


def shorten(text: str, length: int = _LABEL_LENGTH) -> str:
    """Cut the middle out of what is too long for a legend: the ends of names tell most."""
    if len(text) <= length:
        return text
    head = (length - 1) * 3 // 5
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"


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


# ---- curves of a panel ------------------------------------------------------------------------------
def _reference_cells(selection: Selection, curve: _Curve) -> Mapping[tuple[str, int], Cell]:
    """Return the baseline's cells that ``curve`` is compared with, never of two sources in one curve.

    Those of its own source, else of the first that has some: the rule of the tables.
    """
    sources = sorted(
        (source for source, model in selection.references if model == selection.baseline), key=source_key
    )
    source = curve.source if curve.source in sources else sources[0]
    assert selection.baseline is not None
    return selection.references[source, selection.baseline]


_Value = Callable[[_Curve, Cell], tuple[float, float, Cell | None] | None]


def _absolute(selection: Selection) -> _Value:
    def value(curve: _Curve, cell: Cell) -> tuple[float, float, Cell | None]:
        score = cell.score(selection.metric)
        assert score is not None
        return score.mean, std_of(score), None

    return value


def _relative(selection: Selection) -> _Value:
    references = {id(curve): _reference_cells(selection, curve) for curve in selection.curves}

    def value(curve: _Curve, cell: Cell) -> tuple[float, float, Cell | None] | None:
        other = references[id(curve)].get((cell.dataset, cell.n_shot))
        if other is None:
            return None
        score, against = cell.score(selection.metric), other.score(selection.metric)
        assert score is not None and against is not None
        return score.mean - against.mean, std_of(score), other

    return value


def _drop(selection: Selection) -> _Value:
    def value(curve: _Curve, cell: Cell) -> tuple[float, float, Cell | None] | None:
        other = selection.references[curve.source, curve.model].get((names.IN1K, cell.n_shot))
        against = other.score(selection.metric) if other is not None else None
        score = cell.score(selection.metric)
        if against is None or not against.mean:
            return None
        assert score is not None
        return 100 * (score.mean / against.mean - 1), 100 * std_of(score) / against.mean, other

    return value


def _series(
    selection: Selection,
    curves: Iterable[_Curve],
    places: Sequence[tuple[float, str, int]],
    value: _Value,
) -> tuple[Series, ...]:
    """Return the curves at ``places`` (x, data set, shots) that have at least one point."""
    found = []
    for curve in curves:
        points = []
        for x, dataset, n_shot in places:
            cell = curve.cells.get((dataset, n_shot))
            result = value(curve, cell) if cell is not None else None
            if cell is not None and result is not None:
                points.append(Point(x, result[0], result[1], cell, result[2]))
        if points:
            found.append(
                Series(
                    model=curve.model,
                    source=curve.source,
                    label=curve.label,
                    group=curve.group,
                    style=curve.style,
                    points=tuple(points),
                    own=curve.own,
                    baseline=curve.model == selection.baseline,
                )
            )
    return tuple(found)


def _columns(selection: Selection, curves: Sequence[_Curve]) -> list[tuple[str, str, list[_Curve]]]:
    """Sort curves into panels by group: (key, title, curves), the reference and the baseline in each.

    Models of one's own are in all of them, unless the paper has the model (then in its group's) or there
    are too many (then in a panel of their own).
    """
    categories = [
        category
        for category in published.CATEGORY_LABELS
        if category != "reference" and any(c.category == category and not c.own for c in curves)
    ]
    free = [c for c in curves if c.own and c.category not in categories]
    shared = [
        c for c in curves if not c.own and (c.category in ("", "reference") or c.model == selection.baseline)
    ]
    everywhere = free if categories and len(free) <= style.MANY else []
    columns = []
    for category in categories:
        members = [c for c in curves if c.category == category]
        chosen = {id(c) for c in [*shared, *members, *everywhere]}
        columns.append(
            (category, published.CATEGORY_LABELS[category], [c for c in curves if id(c) in chosen])
        )
    if free and not everywhere:
        chosen = {id(c) for c in [*shared, *free]}
        columns.append(("own", style.OWN, [c for c in curves if id(c) in chosen]))
    return columns or [("models", "Models", list(curves))]


def _without_own_zero(selection: Selection, curves: Sequence[_Curve]) -> list[_Curve]:
    """Leave one zero line in a relative panel: the first baseline's that is there."""
    first = next((c for c in curves if c.model == selection.baseline), None)
    return [c for c in curves if c.model != selection.baseline or c is first]


# ---- axes -------------------------------------------------------------------------------------------
def dataset_label(dataset: str) -> str:
    """Return the paper's name of a data set: ``IN-1K``, ``L3``; others as they are."""
    level = names.cog_level(dataset)
    if dataset == names.IN1K:
        return "IN-1K"
    return shorten(printable(dataset) or "(unnamed)", 14) if level is None else f"L{level}"


def _shot_places(shots: Iterable[int]) -> tuple[list[int], list[float], list[str], float | None]:
    """Return shots in order, their x positions and labels, and where few-shot ends.

    Positions are log2; "all" is not a number on that axis, so it is set apart behind the largest.
    """
    few = sorted(n for n in set(shots) if n)
    positions = [math.log2(n) for n in few]
    if any(b - a < 0.4 for a, b in itertools.pairwise(positions)):
        positions = [float(index) for index in range(len(few))]  # labels would overlap
    end = None
    labels = [str(n) for n in few]
    if 0 in shots:
        last = positions[-1] if positions else 0.0
        end = last + 0.75 if positions else None
        few.append(0)
        positions.append(last + 1.5 if end is not None else 0.0)
        labels.append("All")
    return few, positions, labels, end


def _level_axis(selection: Selection, n_shot: int) -> tuple[list[tuple[float, str, int]], tuple[str, ...]]:
    found = {dataset for c in selection.curves for dataset, n in c.cells if n == n_shot}
    datasets = sorted(found, key=dataset_key)
    places = [(float(x), dataset, n_shot) for x, dataset in enumerate(datasets)]
    return places, tuple(dataset_label(dataset) for dataset in datasets)


def _shots_of_levels(selection: Selection) -> int:
    """All images, unless the user's results (or, without any, the others) have only few-shot: the most then."""
    own = {n for c in selection.curves if c.own for _, n in c.cells}
    there = own or selection.found(1)
    return 0 if 0 in there else max(there)


# ---- figures ----------------------------------------------------------------------------------------
def levels(selection: Selection) -> Chart:
    """Fig. 3: (a) accuracy over the levels, (b)-(e) difference to the baseline per group of models."""
    n_shot = _shots_of_levels(selection)
    places, tick_labels = _level_axis(selection, n_shot)
    base = _panel(places, tick_labels, x_label="")
    absolute = dataclasses.replace(
        base,
        key="absolute",
        title="All models",
        quantity="absolute",
        unit="percent",
        y_label=_score_label(selection),
        y_group="absolute",
        series=_series(selection, selection.curves, places, _absolute(selection)),
    )
    relative: list[Panel] = []
    if selection.baseline is not None:
        value = _relative(selection)
        others = [c for c in selection.curves if c.model != selection.baseline]
        points = [point for one in _series(selection, others, places, value) for point in one.points]
        compared = {point.cell.dataset for point in points}
        kept = [index for index, place in enumerate(places) if place[1] in compared]
        places = [(float(x), *places[index][1:]) for x, index in enumerate(kept)]
        narrow = _panel(places, tuple(tick_labels[index] for index in kept), x_label="")
        for key, title, curves in _columns(selection, selection.curves):
            series = _series(selection, _without_own_zero(selection, curves), places, value)
            if any(not one.baseline for one in series):
                relative.append(
                    dataclasses.replace(
                        narrow,
                        key=key,
                        title=title,
                        quantity=_DIFFERENCE,
                        unit="points",
                        y_label=_difference_label(selection),
                        y_group=_DIFFERENCE,
                        series=series,
                    )
                )
    what = f"{METRIC_LABELS[selection.metric]} accuracy"
    first = f"{_capital(what)} on {', '.join(tick_labels)}, {shots_label(n_shot)}"
    return Chart(
        figure="fig3",
        stem="fig3_levels" + _suffix(selection, n_shot),
        title=first,
        caption=f"{first}: absolute"
        + (f", and difference to {selection.baseline_label} per group of models" if relative else "")
        + ". Error bars: standard deviation over seeds.",
        metric=selection.metric,
        lead=absolute if relative else None,
        grid=_grid(relative) if relative else ((absolute,),),
        single=not relative,
        notes=_notes(selection, [absolute, *relative]),
    )


def drop(selection: Selection) -> Chart:
    """Fig. 3c of the first version: loss of each level relative to the model's own IN-1K accuracy.

    Raises:
        CogError: when no model has both IN-1K and another data set.
    """
    n_shot = _shots_of_levels(selection)
    places, tick_labels = _level_axis(selection, n_shot)
    value = _drop(selection)
    base = dataclasses.replace(
        _panel(places, tick_labels, x_label=""),
        quantity="drop",
        unit="percent of the IN-1K score",
        y_label=f"change of {METRIC_LABELS[selection.metric]} from IN-1K (%)",
        y_group="drop",
    )
    together = dataclasses.replace(
        base,
        key="all",
        title="All models",
        series=_series(selection, selection.curves, places, value),
    )
    if {point.cell.dataset for series in together.series for point in series.points} <= {names.IN1K}:
        raise CogError(
            "the drop needs, for at least one model, results on in1k and on another data set with the same "
            f"number of shots ({shots_label(n_shot)})"
        )
    panels = []
    if len(together.series) > _MAX_TOGETHER:
        for key, title, curves in _columns(selection, selection.curves):
            series = _series(selection, curves, places, value)
            if series:
                panels.append(dataclasses.replace(base, key=key, title=title, series=series))
    levels_shown = [label for label, place in zip(tick_labels, places, strict=True) if place[1] != names.IN1K]
    title = (
        f"Change of {METRIC_LABELS[selection.metric]} accuracy from IN-1K to {', '.join(levels_shown)}, "
        f"{shots_label(n_shot)}"
    )
    sources = {series.source for series in together.series}
    return Chart(
        figure="drop",
        stem="drop_from_in1k"
        + ("_v1" if sources == {published.SOURCES["v1"]} else "")
        + _suffix(selection, n_shot),
        title=title,
        caption=f"{title}, in percent of each model's own IN-1K score. Error bars: standard deviation over seeds.",
        metric=selection.metric,
        lead=together if panels else None,
        grid=_grid(panels) if panels else ((together,),),
        single=not panels,
        notes=_notes(selection, [together]),
    )


def few_shot(selection: Selection) -> Chart:
    """Fig. 4: accuracy by training images per class, absolute and relative, for eight models and one's own."""
    of_paper = [c for c in selection.curves if not c.own]
    curves: Sequence[_Curve] = selection.curves
    if len(of_paper) > _MAX_IN_FIG4:
        keep = {model for model, row in published.MODELS.items() if row.in_fig4}
        keep.add(selection.baseline or "")
        curves = [c for c in curves if c.own or c.model in keep]
    there = {dataset for c in curves for dataset, _ in c.cells}
    wanted = selection.datasets or _FIG4_DATASETS
    datasets = sorted(there & set(wanted) or there, key=dataset_key)
    shots = {n for c in curves for dataset, n in c.cells if dataset in datasets}
    if selection.shots is None and len(shots - {0, 1}) > 1:
        shots -= {1}  # Sec. 4.2.2 starts at two images per class
    rows = [_few_shot_row(selection, curves, datasets, shots, _absolute(selection), relative=False)]
    if selection.baseline is not None:
        kept = _without_own_zero(selection, curves)
        row = _few_shot_row(selection, kept, datasets, shots, _relative(selection), relative=True)
        if any(not s.baseline for panel in row if panel for s in panel.series):
            rows.append(row)
    title = (
        f"Few-shot {METRIC_LABELS[selection.metric]} accuracy on {', '.join(map(dataset_label, datasets))}"
    )
    return Chart(
        figure="fig4",
        stem="fig4_fewshot" + _suffix(selection, 0),
        title=title,
        caption=f"{title} by training images per class, absolute"
        + (f" and relative to {selection.baseline_label}" if len(rows) > 1 else "")
        + ". Error bars: standard deviation over seeds.",
        metric=selection.metric,
        grid=tuple(rows),
        single=len(rows) == len(rows[0]) == 1,
        notes=_notes(selection, [panel for row in rows for panel in row if panel]),
    )


def _few_shot_row(
    selection: Selection,
    curves: Sequence[_Curve],
    datasets: Sequence[str],
    shots: Iterable[int],
    value: _Value,
    *,
    relative: bool,
) -> tuple[Panel | None, ...]:
    row: list[Panel | None] = []
    for dataset in datasets:
        panel = _few_shot_panel(selection, curves, dataset, shots, value, relative=relative)
        row.append(dataclasses.replace(panel, title=dataset_label(dataset)) if panel else None)
    return tuple(row)


def _few_shot_panel(
    selection: Selection,
    curves: Sequence[_Curve],
    dataset: str,
    shots: Iterable[int],
    value: _Value,
    *,
    relative: bool,
) -> Panel | None:
    few, positions, labels, end = _shot_places(shots)
    places = [(x, dataset, n) for x, n in zip(positions, few, strict=True)]
    series = _series(selection, curves, places, value)
    if not series:
        return None
    panel = _panel(places, tuple(labels), x_label="training images per class")
    return dataclasses.replace(
        panel,
        key=f"{'relative' if relative else 'absolute'}_{dataset}",
        quantity=_DIFFERENCE if relative else "absolute",
        unit="points" if relative else "percent",
        y_label=_difference_label(selection) if relative else _score_label(selection),
        y_group=_DIFFERENCE if relative else "absolute",
        series=series,
        x_break=end,
    )


def few_shot_all(selection: Selection, *, relative: bool) -> Chart:
    """Figs. 10 and 11: few-shot curves of all models; rows are data sets, columns groups of models.

    Raises:
        CogError: when differences are asked for and there is no baseline.
    """
    if relative and selection.baseline is None:
        raise CogError(
            f"fig11 shows differences to a baseline and there is no result of {BASELINE}; name another one, "
            "or show the published results too"
        )
    wanted = selection.datasets or selection.found(0)
    datasets = sorted(selection.found(0) & set(wanted), key=dataset_key)
    shots = selection.found(1)
    value = _relative(selection) if relative else _absolute(selection)
    columns = _columns(selection, selection.curves)
    titled: set[str] = set()  # the first panel of a column names it
    rows = []
    for dataset in datasets:
        row: list[Panel | None] = []
        for key, title, curves in columns:
            kept = _without_own_zero(selection, curves) if relative else curves
            panel = _few_shot_panel(selection, kept, dataset, shots, value, relative=relative)
            if panel is not None:
                unit = (
                    f"points to {selection.baseline_label}"
                    if relative
                    else f"{METRIC_LABELS[selection.metric]} (%)"
                )
                panel = dataclasses.replace(
                    panel,
                    key=f"{dataset}_{key}",
                    title="" if key in titled else title,
                    y_label=f"{dataset_label(dataset)}\n{unit}",
                    y_group=dataset,
                )
                titled.add(key)
            row.append(panel)
        if any(row):
            rows.append(tuple(row))
    if len(columns) == 1:
        rows = _side_by_side([panel for row in rows for panel in row if panel])
    what = f"Few-shot {METRIC_LABELS[selection.metric]} accuracy of all models"
    title = f"{what} relative to {selection.baseline_label}" if relative else what
    return Chart(
        figure="fig11" if relative else "fig10",
        stem=("fig11_fewshot_relative" if relative else "fig10_fewshot_absolute") + _suffix(selection, 0),
        title=title,
        caption=f"{title} by training images per class; rows: {', '.join(map(dataset_label, datasets))}; columns: "
        f"{', '.join(title.lower() for _, title, _ in columns)}. Error bars: standard deviation over seeds.",
        metric=selection.metric,
        grid=tuple(rows),
        single=len(rows) == len(rows[0]) == 1,
        notes=_notes(selection, [panel for row in rows for panel in row if panel]),
    )


def _side_by_side(panels: Sequence[Panel]) -> list[tuple[Panel | None, ...]]:
    """Arrange one column of panels in rows of three, with the data sets as titles."""
    named: list[Panel | None] = []
    for panel in panels:
        dataset = panel.series[0].points[0].cell.dataset
        named.append(
            dataclasses.replace(panel, title=dataset_label(dataset), y_label=panel.y_label.split("\n")[1])
        )
    n = min(3, len(named))
    named += [None] * (-len(named) % n)
    return [tuple(named[start : start + n]) for start in range(0, len(named), n)]


def singles(chart: Chart) -> list[Chart]:
    """Return each panel of ``chart`` as a chart of its own, at the width of a text column."""
    panels = list(chart.panels())
    if len(panels) < 2:
        return []
    made = []
    for panel in panels:
        what = "" if panel.key in ("absolute", "all") else f": {panel.title}"
        kind = f", relative to {_zero_label(panel)}" if panel.quantity == _DIFFERENCE else ""
        made.append(
            dataclasses.replace(
                chart,
                stem=f"{chart.stem}_{_file_part(panel.key)}",
                title=f"{chart.title}{what}{kind}",
                caption=f"{chart.title}{what}{kind}. Error bars: standard deviation over seeds.",
                grid=((panel,),),
                lead=None,
                single=True,
            )
        )
    return made


def _zero_label(panel: Panel) -> str:
    return next((series.label for series in panel.series if series.baseline), "the baseline")


def _file_part(key: str) -> str:
    return "".join(char if char.isascii() and (char.isalnum() or char in "_-.") else "-" for char in key)


def _panel(places: Sequence[tuple[float, str, int]], tick_labels: tuple[str, ...], *, x_label: str) -> Panel:
    return Panel(
        key="",
        title="",
        quantity="",
        unit="",
        y_label="",
        x_label=x_label,
        ticks=tuple(place[0] for place in places),
        tick_labels=tick_labels,
        series=(),
        y_group="",
    )


def _grid(panels: Sequence[Panel]) -> tuple[tuple[Panel | None, ...], ...]:
    """Two columns beside the lead; one when there is a single panel."""
    if len(panels) == 1:
        return ((panels[0],),)
    padded = [*panels, *([None] * (len(panels) % 2))]
    return tuple(tuple(padded[start : start + 2]) for start in range(0, len(padded), 2))


def _score_label(selection: Selection) -> str:
    return f"{METRIC_LABELS[selection.metric]} accuracy (%)"


def _difference_label(selection: Selection) -> str:
    return f"difference to {selection.baseline_label} (points)"


def _suffix(selection: Selection, n_shot: int) -> str:
    top5 = "_top5" if selection.metric == "top5" else ""
    return f"_N{n_shot}{top5}" if n_shot else top5


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _notes(selection: Selection, panels: Sequence[Panel]) -> tuple[str, ...]:
    """Say what a reader of the figure cannot see: seeds that are missing, a second baseline."""
    notes = []
    incomplete: dict[str, list[str]] = {}
    seen: set[tuple[str, str, str, int]] = set()
    references: set[str] = set()
    for panel in panels:
        for series in panel.series:
            for point in series.points:
                cell = point.cell
                if point.reference is not None and panel.quantity == _DIFFERENCE and series.own:
                    references.add(point.reference.source)
                place = (cell.source, cell.model, cell.dataset, cell.n_shot)
                if not cell.missing_seeds or place in seen:
                    continue
                seen.add(place)
                shots = f" N={cell.n_shot}" if cell.n_shot else ""
                count = f"{len(cell.seeds)} of {len(cell.seeds) + len(cell.missing_seeds)} seeds"
                incomplete.setdefault(series.label, []).append(
                    f"{dataset_label(cell.dataset)}{shots}: {count}"
                )
    for label, places in incomplete.items():
        shown = ", ".join(places) if len(places) < 4 else f"{len(places)} points, {places[0]}, ..."
        notes.append(f"Incomplete: {label} ({shown}).")
    if len(notes) > 3:
        notes = [*notes[:2], f"Incomplete as well: {len(notes) - 2} more models; see the CSV file."]
    of_paper = {c.source for c in selection.curves if not c.own and c.model == selection.baseline}
    if of_paper and references - of_paper:
        own = ", ".join(shorten(printable(source)) for source in sorted(references, key=source_key))
        notes.append(f"Own models are compared with {selection.baseline_label} from {own}, not as published.")
    return tuple(notes)
