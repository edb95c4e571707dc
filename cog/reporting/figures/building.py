"""Construction of charts: declared figures filled with scores, before drawing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import cog.reporting.figures.points as points
import cog.reporting.figures.style as style
from cog import constants
from cog.errors import CogError
from cog.reporting.figures.axes import XAxis, round_numbers
from cog.reporting.figures.chart import Chart, Panel, Series
from cog.reporting.figures.curves import Curve, CurveSelection, model_label
from cog.reporting.figures.declarations import FIGURES, PanelSpec
from cog.reporting.figures.points import ABSOLUTE, DROP, RELATIVE, dataset_label
from cog.results import metric_info, published
from cog.results.labels import METRIC_LABELS, shots_label

_Y_LABELS = {
    ABSOLUTE: "{metric} accuracy (%)",
    RELATIVE: "difference to {baseline} (points)",
    DROP: "change of {metric} from IN-1K (%)",
}

_UNITS = {ABSOLUTE: "percent", RELATIVE: "points", DROP: "percent of the IN-1K score"}


@dataclass(frozen=True)
class _Share:
    """The part of a figure that a panel shows: curves of all models or of a group, on all data sets or on one."""

    curves: Sequence[Curve]
    dataset: str | None = None
    group: str = ""
    title: str = ""


def build(name: str, selection: CurveSelection) -> Chart:
    """Return the chart of a declared figure with the points of its curves.

    Args:
        name: name of the declaration.
        selection: accuracies of the protocol or numbers of experiments, as the declaration requires.

    Raises:
        CogError: when there is nothing to draw.
    """
    spec = FIGURES[name]
    if spec.narrow is not None:
        selection = spec.narrow(selection)
    keys = [panel.key for panel in (*spec.panels, *spec.below) if panel.key is not None]
    axis = spec.x(selection, keys)
    groups = _groups(selection)
    words = {
        "metric": METRIC_LABELS[selection.metric],
        "Metric": METRIC_LABELS[selection.metric].capitalize(),
        "baseline": model_label(selection.baseline) if selection.baseline else "",
        "shots": shots_label(axis.n_shot),
        "variant": axis.variant,
        "groups": ", ".join(group.title.lower() for group in groups),
        "levels": ", ".join(dataset_label(name) for name in axis.datasets if name != constants.IN1K),
    }
    everything = _Share(selection.curves)
    shares = {
        "": [everything],
        "groups": groups,
        "datasets": [_Share(selection.curves, name, title=dataset_label(name)) for name in axis.datasets],
    }
    lead = None if spec.lead is None else _panel(spec.lead, selection, axis, everything, words)
    wanted = [
        [(panel, share) for panel in row for share in shares[panel.by]] for row in (spec.panels, spec.below)
    ]
    if spec.per_dataset:
        wanted = [
            [(panel, dataclasses.replace(share, dataset=dataset)) for panel, share in wanted[0]]
            for dataset in axis.datasets
        ]
    if spec.lead is not None and (lead is None or len(lead.series) <= spec.crowd):
        wanted = []
    rows: list[list[Panel | None]] = []
    for row in wanted:
        panels = [_panel(panel, selection, axis, share, words) for panel, share in row]
        if spec.per_row or not any(panel.by for panel, _ in row):  # else gaps keep columns aligned
            panels = [panel for panel in panels if panel is not None]
        if any(panels):
            rows += _in_rows(panels, spec.per_row)
    if spec.per_dataset and rows:
        rows = _with_column_titles(rows)
    if not rows and lead is not None:
        rows, lead = [[lead]], None
    drawn = [panel for panel in (lead, *(panel for row in rows for panel in row)) if panel is not None]
    if not drawn:
        evaluations = " or ".join(dict.fromkeys(key[0] for key in keys))
        raise CogError(spec.missing.format_map(words) or f"there is no number of {evaluations} to draw")
    labels = [dataset_label(dataset) for dataset in axis.datasets]
    if spec.panels[0].by == "datasets":
        labels = list(dict.fromkeys(panel.title for panel in drawn))
    elif len(drawn) == 1 and keys:
        rows = [[dataclasses.replace(drawn[0], title="")]]  # the title of the figure is enough
    words["datasets"] = ", ".join(labels)
    compared = any(panel.quantity == RELATIVE for panel in drawn)
    title = spec.title.format_map(words)
    sources = {series.curve.source for panel in drawn for series in panel.series}
    words["version"] = "_v1" if sources == {published.SOURCES["v1"]} else ""
    words["relative"] = spec.relative.format_map(words) if compared else ""
    suffix = (f"_N{axis.n_shot}" if axis.n_shot else "") + ("_top5" if selection.metric == "top5" else "")
    return Chart(
        figure=name,
        stem=spec.stem.format_map(words) + suffix,
        title=title,
        caption=title + spec.caption.format_map(words),
        of_protocol=spec.of_protocol,
        grid=tuple(map(tuple, rows)),
        lead=lead,
        notes=tuple(spec.notes(selection, drawn)),
        single=lead is None and [len(row) for row in rows] == [1],
        letters=not spec.per_dataset,
    )


def _panel(
    spec: PanelSpec, selection: CurveSelection, axis: XAxis, share: _Share, words: Mapping[str, str]
) -> Panel | None:
    """Return a panel; None when it would have no points beside those of the zero line."""
    quantity = spec.quantity if spec.key is None else ABSOLUTE
    curves = share.curves
    if quantity == RELATIVE:
        if selection.baseline is None:
            return None
        # There is one zero line: that of the first curve of the baseline.
        zero = next((curve for curve in curves if curve.model == selection.baseline), None)
        curves = [curve for curve in curves if curve.model != selection.baseline or curve is zero]
        axis = _with_reference(selection, axis)
    places = [(x, dataset or share.dataset or "", key or spec.key) for x, _, dataset, key in axis.places]
    series = []
    for curve in curves:
        if spec.points is not None:
            drawn = spec.points(selection, curve, share.dataset)
        else:
            drawn = points.at_places(selection, curve, places, quantity)
        if drawn:
            series.append(Series(curve, tuple(drawn), curve.model == selection.baseline))
    on = {point.cell.dataset for line in series for point in line.points}
    only_zero = (quantity == RELATIVE and all(line.baseline for line in series)) or (
        quantity == DROP and on <= {constants.IN1K}
    )
    if not series or only_zero:
        return None
    words = {
        **words,
        "quantity": spec.quantity,
        "group": share.group,
        "title": share.title,
        "dataset": share.dataset or "",
        "place": dataset_label(share.dataset or ""),
    }
    words["name"] = name = (
        "_".join(spec.key[:2]) if spec.key and not spec.name else spec.name.format_map(words)
    )
    ticks = tuple(place[0] for place in axis.places)
    tick_labels = tuple(place[1] for place in axis.places)
    if spec.points is not None:
        xs = [point.x for line in series for point in line.points]
        ticks = round_numbers(min(xs), max(xs))
        tick_labels = tuple(f"{tick:g}".replace("-", "\N{MINUS SIGN}") for tick in ticks)
    unit = spec.unit
    if unit is None:
        unit = metric_info.describe(*spec.key).unit if spec.key else _UNITS[quantity]
    y_label = _Y_LABELS[quantity] if spec.y_label is None else spec.y_label
    return Panel(
        key=name,
        title=spec.title.format_map(words),
        quantity=spec.quantity,
        unit=unit,
        y_label=y_label.format_map(words),
        x_label=axis.label if spec.x_label is None else spec.x_label,
        ticks=ticks,
        tick_labels=tick_labels,
        series=tuple(series),
        y_group=(spec.y_group or ("{name}" if spec.key else "{quantity}")).format_map(words),
        x_break=axis.x_break,
        plane=spec.points is not None,
    )


def _with_reference(selection: CurveSelection, axis: XAxis) -> XAxis:
    """Return an axis over data sets without those on which nothing can be compared; other axes as they are."""
    compared = {
        dataset
        for _, _, dataset, key in axis.places
        for curve in selection.curves
        if dataset and key and curve.model != selection.baseline and (dataset, key) in curve.scores
        if selection.reference(curve, dataset, key) is not None
    }
    return axis.only(compared) if any(place[2] for place in axis.places) else axis


def _groups(selection: CurveSelection) -> list[_Share]:
    """Return the curves by group of models, with the reference and the baseline in each group.

    The user's models are in all groups, except models of the paper, which are in their group of the paper. If they are
    more than ``style.MANY``, or if there is no other group, they have a separate group.
    """
    curves = selection.curves
    categories = [
        category
        for category in published.CATEGORY_LABELS
        if category != "reference" and any(c.category == category and not c.is_own for c in curves)
    ]
    free = [c for c in curves if c.is_own and c.category not in categories]
    shared = [
        c
        for c in curves
        if not c.is_own and (c.category in ("", "reference") or c.model == selection.baseline)
    ]
    everywhere = free if categories and len(free) <= style.MANY else []
    members = {
        category: [*shared, *everywhere, *(c for c in curves if c.category == category)]
        for category in categories
    }
    titles = {**published.CATEGORY_LABELS, "own": style.OWN, "models": "Models"}
    if free and not everywhere:
        members["own"] = [*shared, *free]
    chosen = {group: {id(c) for c in some} for group, some in (members or {"models": [*curves]}).items()}
    return [
        _Share([c for c in curves if id(c) in ids], group=group, title=titles[group])
        for group, ids in chosen.items()
    ]


def _in_rows(panels: Sequence[Panel | None], most: int) -> list[list[Panel | None]]:
    """Return panels in rows of at most ``most`` (0: one row); the last row is filled up with None."""
    n = min(most or len(panels), len(panels))
    padded = [*panels, *([None] * (-len(panels) % n))]
    return [padded[start : start + n] for start in range(0, len(padded), n)]


def _with_column_titles(rows: Sequence[Sequence[Panel | None]]) -> list[list[Panel | None]]:
    """Return rows with a title on the first panel of each column only.

    The panels of a single column are arranged in rows of three instead, with their data sets as titles.
    """
    made: list[list[Panel | None]] = []
    titled: set[str] = set()
    for row in rows:
        made.append([])
        for panel in row:
            if panel is not None and len(row) == 1:
                dataset = dataset_label(panel.series[0].points[0].cell.dataset)
                panel = dataclasses.replace(panel, title=dataset, y_label=panel.y_label.split("\n")[1])
            elif panel is not None and panel.title in titled:
                panel = dataclasses.replace(panel, title="")
            titled |= {panel.title} if panel is not None else set()
            made[-1].append(panel)
    return _in_rows([row[0] for row in made], 3) if len(made[0]) == 1 else made


def singles(chart: Chart) -> list[Chart]:
    """Return each of several panels of ``chart`` as a separate chart, at the width of a text column."""
    panels = list(chart.panels())
    made = []
    for panel in panels if len(panels) > 1 else ():
        title = chart.title + ("" if panel.key in ("absolute", "all") else f": {panel.title}")
        if panel.quantity == RELATIVE:
            zero = next((line.curve.label for line in panel.series if line.baseline), "the baseline")
            title += f", relative to {zero}"
        part = "".join(c if c.isascii() and (c.isalnum() or c in "_-.") else "-" for c in panel.key)
        made.append(
            dataclasses.replace(
                chart,
                stem=f"{chart.stem}_{part}",
                title=title,
                caption=title + "".join(chart.caption.partition(". Error bars:")[1:]),
                grid=((panel,),),
                lead=None,
                single=True,
            )
        )
    return made
