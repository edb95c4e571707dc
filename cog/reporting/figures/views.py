"""The charts: which curves and panels each figure of the paper shows.

The figures are those of the paper's final version (ICCV 2021): Fig. 3 (levels, all images), Fig. 4 (few-shot,
eight models), Figs. 10 and 11 (few-shot, all models), and Fig. 3c of the first version (drop from IN-1K).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import cog.reporting.figures.points as points
from cog import constants
from cog.errors import CogError
from cog.reporting.figures.chart import Chart, Panel
from cog.reporting.figures.curves import BASELINE, Curve, CurveSelection, shorten
from cog.reporting.figures.points import Value, dataset_label
from cog.reporting.tables.layout import source_key
from cog.reporting.tables.writers import printable
from cog.results import published
from cog.results.labels import METRIC_LABELS, shots_label
from cog.results.scores import dataset_key

# Above this many models of the paper Fig. 4 shows only its eight.
_MAX_IN_FIG4 = 12

# Above this many curves the drop is shown per group as well.
_MAX_TOGETHER = 12

_FIG4_DATASETS = ("cog_l1", "cog_l3", "cog_l5")

_DIFFERENCE = "relative"


def levels(selection: CurveSelection) -> Chart:
    """Fig. 3: (a) accuracy over the levels, (b)-(e) difference to the baseline per group of models."""
    n_shot = points.shots_of_levels(selection)
    places, tick_labels = points.level_axis(selection, n_shot)
    base = _panel(places, tick_labels, x_label="")
    absolute = dataclasses.replace(
        base,
        key="absolute",
        title="All models",
        quantity="absolute",
        unit="percent",
        y_label=_score_label(selection),
        y_group="absolute",
        series=points.series(selection.curves, places, points.absolute, selection.baseline),
    )
    relative: list[Panel] = []
    if selection.baseline is not None:
        value = points.relative(selection)
        others = [c for c in selection.curves if c.model != selection.baseline]
        drawn = [
            point for one in points.series(others, places, value, selection.baseline) for point in one.points
        ]
        compared = {point.cell.dataset for point in drawn}
        kept = [index for index, place in enumerate(places) if place[1] in compared]
        places = [(float(x), *places[index][1:]) for x, index in enumerate(kept)]
        narrow = _panel(places, tuple(tick_labels[index] for index in kept), x_label="")
        for key, title, curves in points.columns(selection, selection.curves):
            series = points.series(
                points.without_own_zero(curves, selection.baseline),
                places,
                value,
                baseline=selection.baseline,
            )
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
        of_protocol=True,
        lead=absolute if relative else None,
        grid=points.in_rows(relative, 2) if relative else ((absolute,),),
        single=not relative,
        notes=_notes(selection, [absolute, *relative]),
    )


def drop(selection: CurveSelection) -> Chart:
    """Fig. 3c of the first version: loss of each level relative to the model's own IN-1K accuracy.

    Raises:
        CogError: when no model has both IN-1K and another data set.
    """
    n_shot = points.shots_of_levels(selection)
    places, tick_labels = points.level_axis(selection, n_shot)
    value = points.drop_from_in1k(selection)
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
        series=points.series(selection.curves, places, value, selection.baseline),
    )
    if {point.cell.dataset for series in together.series for point in series.points} <= {constants.IN1K}:
        raise CogError(
            "the drop needs, for at least one model, results on in1k and on another data set with the same "
            f"number of shots ({shots_label(n_shot)})"
        )
    panels = []
    if len(together.series) > _MAX_TOGETHER:
        for key, title, curves in points.columns(selection, selection.curves):
            series = points.series(curves, places, value, selection.baseline)
            if series:
                panels.append(dataclasses.replace(base, key=key, title=title, series=series))
    levels_shown = [
        label for label, place in zip(tick_labels, places, strict=True) if place[1] != constants.IN1K
    ]
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
        of_protocol=True,
        lead=together if panels else None,
        grid=points.in_rows(panels, 2) if panels else ((together,),),
        single=not panels,
        notes=_notes(selection, [together]),
    )


def few_shot(selection: CurveSelection) -> Chart:
    """Fig. 4: accuracy by training images per class, absolute and relative, for eight models and one's own."""
    of_paper = [c for c in selection.curves if not c.own]
    curves: Sequence[Curve] = selection.curves
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
    rows = [_few_shot_row(selection, curves, datasets, shots, points.absolute, relative=False)]
    if selection.baseline is not None:
        kept = points.without_own_zero(curves, selection.baseline)
        row = _few_shot_row(selection, kept, datasets, shots, points.relative(selection), relative=True)
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
        of_protocol=True,
        grid=tuple(rows),
        single=len(rows) == len(rows[0]) == 1,
        notes=_notes(selection, [panel for row in rows for panel in row if panel]),
    )


def _few_shot_row(
    selection: CurveSelection,
    curves: Sequence[Curve],
    datasets: Sequence[str],
    shots: Iterable[int],
    value: Value,
    *,
    relative: bool,
) -> tuple[Panel | None, ...]:
    row: list[Panel | None] = []
    for dataset in datasets:
        panel = _few_shot_panel(selection, curves, dataset, shots, value, relative=relative)
        row.append(dataclasses.replace(panel, title=dataset_label(dataset)) if panel else None)
    return tuple(row)


def _few_shot_panel(
    selection: CurveSelection,
    curves: Sequence[Curve],
    dataset: str,
    shots: Iterable[int],
    value: Value,
    *,
    relative: bool,
) -> Panel | None:
    few, positions, labels, end = points.shot_places(shots)
    places = [(x, dataset, n) for x, n in zip(positions, few, strict=True)]
    series = points.series(curves, places, value, selection.baseline)
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


def few_shot_all(selection: CurveSelection, *, relative: bool) -> Chart:
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
    value = points.relative(selection) if relative else points.absolute
    columns = points.columns(selection, selection.curves)
    titled: set[str] = set()  # the first panel of a column names it
    rows = []
    for dataset in datasets:
        row: list[Panel | None] = []
        for key, title, curves in columns:
            kept = points.without_own_zero(curves, selection.baseline) if relative else curves
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
        of_protocol=True,
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
    return list(points.in_rows(named, 3))


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


def _score_label(selection: CurveSelection) -> str:
    return f"{METRIC_LABELS[selection.metric]} accuracy (%)"


def _difference_label(selection: CurveSelection) -> str:
    return f"difference to {selection.baseline_label} (points)"


def _suffix(selection: CurveSelection, n_shot: int) -> str:
    top5 = "_top5" if selection.metric == "top5" else ""
    return f"_N{n_shot}{top5}" if n_shot else top5


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _notes(selection: CurveSelection, panels: Sequence[Panel]) -> tuple[str, ...]:
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
