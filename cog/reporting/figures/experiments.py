"""Figures of other experiments than the protocol's: functions from a selection of curves to a chart.

Figures with ``v1`` in their name are those of the paper's first version.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from cog.errors import CogError
from cog.reporting.figures.chart import Chart, Panel
from cog.reporting.figures.curves import CurveSelection, model_label
from cog.reporting.figures.panels import (
    ABSOLUTE,
    RELATIVE,
    Place,
    XAxis,
    dataset_label,
    in_rows,
    notes,
    over_datasets,
    over_numbers,
    panel,
    plane,
)
from cog.reporting.figures.protocol import OVER_SEEDS
from cog.results import metric_info, relative
from cog.results.analysis_metrics import neighbor_metric
from cog.results.scores import LOGREG, Key, dataset_key

_BARS = ". Error bars: standard deviation over seeds, where there are several."

_ALIGNMENT: Key = ("alignment", "alignment", 0)

# In the paper's sign: higher is more uniform.
_UNIFORMITY: Key = ("alignment", "uniformity_v1", 0)

_RANGES = (
    "The paper's first version gives ranges of uniformity over the six data sets, as positive numbers: "
    "ResNet50 1.8-1.9, SwAV 1.9-2.1, the five others 2.6-3.1."
)


def purity(selection: CurveSelection) -> Chart:
    """Return the purity of k-means clusters on the data sets."""
    titles = {"purity_v1": "Largest cluster of a class", "purity": "Largest class of a cluster"}
    numbers = {("kmeans", metric, 0): title for metric, title in titles.items()}
    panels = _of_numbers(selection, over_datasets(selection, [*numbers]), numbers, y_label="purity")
    return _chart(
        "v1_fig5",
        "v1_fig5_purity",
        "Purity of k-means clusters on {}" + _BARS,
        selection,
        _in_one_row(panels),
    )


def clustering(selection: CurveSelection) -> Chart:
    """Return the agreement of k-means clusters with the classes on the data sets."""
    numbers = {("kmeans", metric, 0): metric.upper() for metric in ("ami", "nmi", "ari")}
    axis = over_datasets(selection, [*numbers])
    panels = _of_numbers(selection, axis, numbers, y_label="agreement (0 to 1)")
    caption = "Agreement of k-means clusters with the classes on {}" + _BARS
    return _chart("v1_fig9", "v1_fig9_clustering", caption, selection, _in_one_row(panels))


def alignment(selection: CurveSelection) -> Chart:
    """Return alignment and uniformity on the data sets, and both in a plane."""
    numbers = {_ALIGNMENT: "Alignment", _UNIFORMITY: "Uniformity"}
    panels = _of_numbers(selection, over_datasets(selection, [*numbers]), numbers)
    title = "Alignment (y), uniformity (x)"
    panels.append(plane(selection, "plane", x_key=_UNIFORMITY, y_key=_ALIGNMENT, title=title))
    caption = "Alignment and uniformity on {}" + _BARS
    chart = _chart("v1_fig10", "v1_fig10_alignment", caption, selection, _in_one_row(panels))
    return dataclasses.replace(chart, notes=(*chart.notes, _RANGES))


def mlp(selection: CurveSelection) -> Chart:
    """Return the change of accuracy by an MLP instead of logistic regression, in percent."""
    titles = {"mlp": "MLP", "mlp_noact": "MLP without activation"}
    numbers = {(name, relative.RELATIVE_TO_LOGREG, 0): title for name, title in titles.items()}
    panels = _of_numbers(
        selection,
        over_datasets(selection, [*numbers]),
        numbers,
        y_label="change of top-1 (%)",
        quantity=RELATIVE,
        unit="percent of the LogReg score",
        y_group=RELATIVE,
    )
    return _chart(
        "mlp",
        "mlp",
        "MLPs relative to logistic regression on {}" + OVER_SEEDS,
        selection,
        _in_one_row(panels),
    )


def fine_tuning(selection: CurveSelection) -> Chart:
    """Return accuracies of frozen features relative to the fine-tuned network, and those of the latter (Fig. 6)."""
    frozen = {("finetune", relative.LOGREG_RELATIVE, 0): "Frozen, relative to fine-tuned"}
    tuned = {("finetune", "top1", 0): "Fine-tuned"}
    axis = over_datasets(selection, [*frozen, *tuned])
    unit = "percent of the fine-tuned score"
    panels = _of_numbers(selection, axis, frozen, y_label="change of top-1 (%)", quantity=RELATIVE, unit=unit)
    panels += _of_numbers(selection, axis, tuned, y_label="top-1 accuracy (%)")
    caption = "Frozen features and fine-tuning on {}" + OVER_SEEDS
    return _chart("fig6", "fig6_finetune", caption, selection, _in_one_row(panels))


def components(selection: CurveSelection) -> Chart:
    """Return accuracies by number of principal components; all features are set apart behind the largest."""
    dims: dict[int, Key] = {}
    for key in selection.numbers():
        name = metric_info.classifier(key[0])
        if name is not None and name.type == LOGREG and not name.max_per_class and key[1:] == ("top1", 0):
            dims[name.pca_dim] = key
    whole = dims.pop(0, None)
    axis = over_numbers(selection, dims, "principal components")
    if whole in {key for curve in selection.curves for d, key in curve.scores if d in axis.datasets}:
        last = axis.places[-1].x
        places = (*axis.places, Place(last + 1.0, "all", None, whole))
        axis = dataclasses.replace(axis, places=places, x_break=last + 0.5)
    if not axis.datasets:
        raise CogError("there is no result on principal components to draw")
    rows = in_rows(_by_dataset(selection, axis, ABSOLUTE, "top-1 (%)"), 3)
    below = in_rows(_by_dataset(selection, axis, RELATIVE, "difference (points)"), 3)
    compared = f", absolute and relative to {model_label(selection.baseline or '')}" if below else ""
    caption = f"Top-1 accuracy on principal components on {{}}{compared}{OVER_SEEDS}"
    return _chart("v1_fig8", "v1_fig8_pca", caption, selection, rows + below)


def neighbors(selection: CurveSelection) -> Chart:
    """Return accuracies by number of neighbors."""
    numbers: dict[int, Key] = {}
    for key in selection.numbers():
        name = neighbor_metric(key[1]) if key[0] == "knn" else None
        if name is not None and name.metric == "top1" and name.k:
            numbers[name.k] = key
    if not numbers:
        raise CogError("there is no result of nearest neighbors to draw")
    axis = over_numbers(selection, numbers, "k")
    rows = in_rows(_by_dataset(selection, axis, ABSOLUTE, "top-1 (%)"), 3)
    caption = f"Top-1 accuracy of the k nearest neighbors, weighted vote on {{}}{OVER_SEEDS}"
    return _chart("knn", "knn", caption, selection, rows)


def _of_numbers(
    selection: CurveSelection,
    axis: XAxis,
    numbers: Mapping[Key, str],
    *,
    y_label: str = "",
    quantity: str = ABSOLUTE,
    unit: str | None = None,
    y_group: str = "",
) -> list[Panel | None]:
    """Return a panel over the data sets for each number, given with its title; None where there are no points."""
    return [
        panel(
            selection,
            axis,
            f"{key[0]}_{key[1]}",
            number=key,
            quantity=quantity,
            title=title,
            y_label=y_label,
            unit=metric_info.describe(*key).unit if unit is None else unit,
            y_group=y_group or f"{key[0]}_{key[1]}",
        )
        for key, title in numbers.items()
    ]


def _by_dataset(selection: CurveSelection, axis: XAxis, quantity: str, y_label: str) -> list[Panel]:
    """Return a panel for each data set with points."""
    made = (
        panel(
            selection,
            axis,
            f"{name}_{quantity}",
            quantity=quantity,
            dataset=name,
            title=dataset_label(name),
            y_label=y_label,
        )
        for name in axis.datasets
    )
    return [drawn for drawn in made if drawn is not None]


def _in_one_row(panels: Sequence[Panel | None]) -> list[tuple[Panel | None, ...]]:
    """Return the panels with points side by side; the title of a single one is that of the figure."""
    there = [made for made in panels if made is not None]
    if len(there) == 1:
        there = [dataclasses.replace(there[0], title="")]
    return in_rows(there, len(there))


def _chart(
    name: str, stem: str, caption: str, selection: CurveSelection, rows: Sequence[tuple[Panel | None, ...]]
) -> Chart:
    """Return the chart; ``{}`` in the caption stands for the data sets."""
    drawn = [made for row in rows for made in row if made is not None]
    if not drawn:
        raise CogError(f"there is no result to draw in {name}")
    on = {point.cell.dataset for made in drawn for series in made.series for point in series.points}
    caption = caption.format(", ".join(map(dataset_label, sorted(on, key=dataset_key))))
    return Chart(name, stem, caption, False, tuple(rows), notes=notes(selection, drawn))
