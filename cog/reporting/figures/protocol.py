"""The paper's figures of accuracies of the protocol: functions from a selection of curves to a chart."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import cog.reporting.figures.style as style
from cog import constants
from cog.errors import CogError
from cog.reporting.figures.chart import Chart, Panel
from cog.reporting.figures.curves import CurveSelection, model_label, only
from cog.reporting.figures.panels import (
    ABSOLUTE,
    DROP,
    RELATIVE,
    Place,
    XAxis,
    dataset_label,
    groups,
    in_rows,
    notes,
    over_datasets,
    panel,
)
from cog.results import published
from cog.results.labels import shots_label
from cog.results.scores import LOGREG

OVER_SEEDS = (
    ". Error bars: standard deviation over seeds; paler, where known: 95 % interval over concepts and seeds."
)

# With more models of the paper than this, Fig. 4 shows only its eight.
_MAX_IN_FIG4 = 12

_FIG4_DATASETS = ("cog_l1", "cog_l3", "cog_l5")

# Data sets of Fig. 4 of the first version, which begins with one image.
_V1_FIG4_DATASETS = ("in1k", "cog_l1", "cog_l5")

# With more models than this, the drop is drawn per group as well.
_CROWD = 12


def fig3(selection: CurveSelection) -> Chart:
    """Return accuracies on IN-1K and the levels, and differences to the baseline per group of models."""
    axis = levels_axis(selection)
    lead = panel(selection, axis, "absolute", title="All models", y_label="top-1 accuracy (%)")
    beside = [
        panel(
            selection, axis, group.name, quantity=RELATIVE, curves=group.curves, title=group.title,
            y_label=f"difference to {_baseline(selection)} (points)",
        )
        for group in groups(selection)
    ]  # fmt: skip
    relative = f", and difference to {_baseline(selection)} per group of models" if any(beside) else ""
    caption = f"Top-1 accuracy on {_names(axis)}, {shots_label(axis.n_shot)}: absolute{relative}"
    return _chart(
        "fig3", "fig3_levels", caption, selection, lead=lead, rows=_present(beside, 2), n_shot=axis.n_shot
    )


def drop(selection: CurveSelection) -> Chart:
    """Return the change from each model's own IN-1K score (Fig. 3c of the paper's first version)."""
    axis = levels_axis(selection)
    shots = shots_label(axis.n_shot)
    y_label = "change of top-1 from IN-1K (%)"
    lead = panel(selection, axis, "all", quantity=DROP, title="All models", y_label=y_label)
    if lead is None:
        raise CogError(
            "the drop needs, for at least one model, results on in1k and on another data set with the same number of "
            f"shots ({shots})"
        )
    beside = [
        panel(
            selection,
            axis,
            group.name,
            quantity=DROP,
            curves=group.curves,
            title=group.title,
            y_label=y_label,
        )
        for group in (groups(selection) if len(lead.series) > _CROWD else ())
    ]
    levels = ", ".join(dataset_label(name) for name in axis.datasets if name != constants.IN1K)
    caption = f"Change of top-1 accuracy from IN-1K to {levels}, {shots}, in percent of each model's own IN-1K score"
    first_version = {series.curve.source for series in lead.series} == {published.SOURCES["v1"]}
    stem = "drop_from_in1k" + "_v1" * first_version
    return _chart("drop", stem, caption, selection, lead=lead, rows=_present(beside, 2), n_shot=axis.n_shot)


def levels(selection: CurveSelection) -> Chart:
    """Return accuracies of own models among the paper's models, which are gray, except the baseline."""
    if not any(curve.is_own for curve in selection.curves):
        raise CogError("there is no model of your own to show among the published ones")
    of_paper = {
        dataset for curve in selection.curves if not curve.is_own for dataset, _ in curve.scores
    } or None
    curves = [
        dataclasses.replace(curve, scores=only(curve.scores, of_paper, None))
        if curve.is_own
        else dataclasses.replace(curve, group=style.PUBLISHED)
        if curve.model == selection.baseline
        else dataclasses.replace(curve, group=style.PUBLISHED, style=style.GRAY_PUBLISHED, named=False)
        for curve in selection.curves
    ]
    selection = dataclasses.replace(selection, curves=tuple(curves))
    axis = levels_axis(selection)
    made = panel(selection, axis, "absolute", y_label="top-1 accuracy (%)")
    among = ": own models among the published ones" if of_paper else ""
    caption = f"Top-1 accuracy on {_names(axis)}, {shots_label(axis.n_shot)}{among}"
    return _chart("levels", "levels", caption, selection, rows=_present([made], 1), n_shot=axis.n_shot)


def fig4(selection: CurveSelection) -> Chart:
    """Return few-shot accuracies, absolute and relative: of the user's models and eight of the paper on three levels.

    Sec. 4.2.2 of the paper begins with two images. With numbers of the first version, the figure has the data sets of
    that version, from one image on.
    """
    selection = _of_fig4(selection)
    axis = shots_axis(selection)
    rows = []
    for quantity, y_label in (
        (ABSOLUTE, "top-1 accuracy (%)"),
        (RELATIVE, f"difference to {_baseline(selection)} (points)"),
    ):
        panels = [
            panel(
                selection, axis, f"{quantity}_{name}", quantity=quantity, dataset=name, title=dataset_label(name),
                y_label=y_label,
            )
            for name in axis.datasets
        ]  # fmt: skip
        if any(panels):
            rows.append(tuple(panels))
    titles = dict.fromkeys(made.title for row in rows for made in row if made is not None)
    relative = f" and relative to {_baseline(selection)}" if len(rows) > 1 else ""
    caption = (
        f"Few-shot top-1 accuracy on {', '.join(titles)} by training images per class, absolute{relative}"
    )
    return _chart("fig4", "fig4_fewshot", caption, selection, rows=rows)


def fig10(selection: CurveSelection) -> Chart:
    """Return few-shot accuracies of all models; rows are data sets, columns are groups of models."""
    caption = "Few-shot top-1 accuracy of all models"
    rows = _by_dataset(selection, ABSOLUTE, "top-1 (%)")
    return _all_models("fig10", "fig10_fewshot_absolute", caption, selection, rows)


def fig11(selection: CurveSelection) -> Chart:
    """Return few-shot accuracies of all models relative to the baseline; rows and columns as in Fig. 10."""
    label = _baseline(selection)
    rows = _by_dataset(selection, RELATIVE, f"points to {label}")
    if not rows:
        raise CogError(
            f"fig11 shows differences to a baseline, and there is no result of {published.REFERENCE} on the same data; "
            "name another one, or show the published results too"
        )
    caption = f"Few-shot top-1 accuracy of all models relative to {label}"
    return _all_models("fig11", "fig11_fewshot_relative", caption, selection, rows)


def _by_dataset(selection: CurveSelection, quantity: str, y_label: str) -> list[tuple[Panel | None, ...]]:
    """Return a row of panels of groups for each data set; those of a single group stand in rows of three."""
    axis, parts = shots_axis(selection), groups(selection)
    rows = []
    titled: set[str] = set()
    for dataset in axis.datasets:
        row = []
        for group in parts:
            alone = len(parts) == 1
            made = panel(
                selection, axis, f"{dataset}_{group.name}", quantity=quantity, dataset=dataset, curves=group.curves,
                title=dataset_label(dataset) if alone else "" if group.title in titled else group.title,
                y_label=y_label if alone else f"{dataset_label(dataset)}\n{y_label}", y_group=dataset,
            )  # fmt: skip
            titled |= {group.title} if made is not None else set()
            row.append(made)
        if any(row):
            rows.append(tuple(row))
    return in_rows([row[0] for row in rows], 3) if len(parts) == 1 else rows


def _all_models(
    name: str, stem: str, caption: str, selection: CurveSelection, rows: Sequence[tuple[Panel | None, ...]]
) -> Chart:
    datasets = ", ".join(map(dataset_label, shots_axis(selection).datasets))
    columns = ", ".join(group.title.lower() for group in groups(selection))
    caption += f" by training images per class; rows: {datasets}; columns: {columns}"
    return dataclasses.replace(_chart(name, stem, caption, selection, rows=rows), letters=False)


def _of_fig4(selection: CurveSelection) -> CurveSelection:
    curves = selection.curves
    is_v1 = published.SOURCES["v1"] in {curve.source for curve in curves}
    usual = _V1_FIG4_DATASETS if is_v1 else _FIG4_DATASETS
    if sum(not curve.is_own for curve in curves) > _MAX_IN_FIG4:
        keep = {model for model, row in published.MODELS.items() if row.in_fig4} | {selection.baseline}
        curves = tuple(curve for curve in curves if curve.is_own or curve.model in keep)
    there = {dataset for curve in curves for dataset, _ in curve.scores}
    datasets = there & {*(selection.datasets or usual)} or there
    shots = {key[2] for curve in curves for dataset, key in curve.scores if dataset in datasets}
    if selection.shots is None and not is_v1 and len(shots - {0, 1}) > 1:
        shots -= {1}
    curves = tuple(dataclasses.replace(c, scores=only(c.scores, datasets, shots)) for c in curves)
    return dataclasses.replace(selection, curves=curves)


def _baseline(selection: CurveSelection) -> str:
    return model_label(selection.baseline) if selection.baseline else ""


def _names(axis: XAxis) -> str:
    return ", ".join(map(dataset_label, axis.datasets))


def _present(panels: Sequence[Panel | None], most: int) -> list[tuple[Panel | None, ...]]:
    """Return the panels with points in rows of at most ``most``."""
    return in_rows([made for made in panels if made is not None], most)


def _chart(
    name: str,
    stem: str,
    caption: str,
    selection: CurveSelection,
    *,
    rows: Sequence[tuple[Panel | None, ...]],
    lead: Panel | None = None,
    n_shot: int = 0,
) -> Chart:
    """Return the chart; a lead without rows stands alone."""
    if not rows and lead is not None:
        rows, lead = [(lead,)], None
    drawn = [made for made in (lead, *(made for row in rows for made in row)) if made is not None]
    if not drawn:
        raise CogError("there is no number of logreg to draw")
    suffix = f"_N{n_shot}" if n_shot else ""
    return Chart(
        name, stem + suffix, caption + OVER_SEEDS, True, tuple(rows), lead, notes=notes(selection, drawn)
    )


def shots_axis(selection: CurveSelection) -> XAxis:
    """Return the axis of training images per class; "All" is not a number, so it is set apart behind the largest."""
    shots = {key[2] for key in selection.numbers()}
    few = sorted(shots - {0})
    positions = [math.log2(n) for n in few]
    if any(b - a < 0.4 for a, b in itertools.pairwise(positions)):
        positions = [float(index) for index in range(len(few))]  # labels would overlap
    named = {n: (x, str(n)) for x, n in zip(positions, few, strict=True)}
    if 0 in shots:
        named[0] = (positions[-1] + 1.5 if positions else 0.0, "All")
    x_break = positions[-1] + 0.75 if positions and 0 in named else None
    places = tuple(Place(*named[n], None, (LOGREG, "top1", n)) for n in named)
    return XAxis(places, tuple(selection.on(selection.numbers())), "training images per class", x_break)


def levels_axis(selection: CurveSelection) -> XAxis:
    """Return the axis of the data sets for accuracies of the protocol with one number of shots.

    The number of shots is that of all images if the user's results (without any, the others) have it, else the largest.
    IN-1K with blurred faces, which is no step between IN-1K and the levels, is left out unless it is selected. Data
    sets other than the paper's are set apart behind the levels.
    """
    highlighted = {key[2] for curve in selection.curves if curve.is_own for _, key in curve.scores}
    there = highlighted or {key[2] for key in selection.numbers()}
    n_shot = 0 if 0 in there else max(there, default=0)
    key = (LOGREG, "top1", n_shot)
    axis = over_datasets(selection, [key])
    if selection.datasets is None:
        axis = axis.only([name for name in axis.datasets if name != constants.IN1K_BLURRED] or axis.datasets)
    others = [place.x for place in axis.places if place.dataset not in constants.DATASETS]
    return dataclasses.replace(
        axis,
        places=tuple(place._replace(key=key) for place in axis.places),
        n_shot=n_shot,
        x_break=others[0] - 0.5 if others and others[0] else None,
    )
