"""Declarations of the figures: their scores, axes and panels.

Figures of the paper have the numbers of its final version (ICCV 2021); ``drop`` and the figures with ``v1`` in their
name are from its first version.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cog.reporting.figures.axes as axes
import cog.reporting.figures.notes as notes
import cog.reporting.figures.points as points
import cog.reporting.figures.style as style
from cog.errors import CogError
from cog.reporting.figures.chart import Panel, Point
from cog.reporting.figures.curves import Curve, CurveSelection, only
from cog.reporting.figures.points import ABSOLUTE, DROP, RELATIVE
from cog.results import published, relative
from cog.results.scores import Key

_OVER_SEEDS = (
    ". Error bars: standard deviation over seeds; paler, where known: 95 % interval over concepts and seeds."
)

# With more models of the paper than this, Fig. 4 shows only its eight.
_MAX_IN_FIG4 = 12

_FIG4_DATASETS = ("cog_l1", "cog_l3", "cog_l5")

# Data sets of Fig. 4 of the first version, which begins with one image.
_V1_FIG4_DATASETS = ("in1k", "cog_l1", "cog_l5")


@dataclass(frozen=True)
class PanelSpec:
    """Declaration of a panel, or of one panel for each data set or group of models.

    Texts may contain ``{metric}``, ``{baseline}``, ``{quantity}``, ``{dataset}`` and its label ``{place}``,
    ``{group}``, ``{title}`` (of the data set or group) and ``{name}`` (of the panel).

    Attributes:
        key: key of the displayed numbers; None: the keys of the x axis.
        title: text above the panel.
        y_label: label of the y axis; None: that of the quantity.
        quantity: quantity of the scores of the x axis: ``absolute``, ``relative`` to the baseline, or the ``drop`` from
            the model's own IN-1K score. Numbers of a key are drawn without change.
        by: ``datasets`` or ``groups`` of models; "" for one panel.
        name: unique name in the figure, usable in a file name.
        unit: unit of values, for the CSV file; None: that of the key or the quantity.
        y_group: name that panels with common y limits share; "": the quantity of the x axis, or the panel's own name
            with a key.
        points: function that returns the points of a curve on a data set in a plane, where x is a number, too; None:
            points stand at the ticks.
        x_label: label of the x axis; None: that of :class:`~cog.reporting.figures.axes.XAxis`.
    """

    key: Key | None = None
    title: str = "{title}"
    y_label: str | None = None
    quantity: str = ABSOLUTE
    by: str = ""
    name: str = ""
    unit: str | None = None
    y_group: str = ""
    points: Callable[[CurveSelection, Curve, str | None], Sequence[Point]] | None = None
    x_label: str | None = None


@dataclass(frozen=True)
class FigureSpec:
    """Declaration of a figure.

    Texts may contain ``{metric}``, ``{Metric}``, ``{baseline}``, ``{datasets}``, ``{levels}`` (data sets without
    IN-1K), ``{shots}``, ``{variant}`` (of the x axis), ``{groups}``, ``{version}`` (``_v1`` if all numbers are of the
    paper's first version, else "") and ``{relative}``.

    Attributes:
        stem: stem of the names of its files.
        title: one line.
        panels: first row of panels.
        x: function from selection and keys to the common x axis of the panels.
        caption: text after the title below the figure.
        relative: part of the caption for relative panels, if there are any.
        missing: message of the error when there are no results.
        below: second row of panels.
        lead: panel left of the others, as high as all of them; alone when there are no others.
        crowd: number of curves in the lead above which the other panels are drawn.
        per_row: greatest number of panels in a row; 0: no limit.
        per_dataset: whether there is a row for each data set, and panels keep their columns.
        narrow: function that returns the selection restricted to the contents of the figure.
        notes: function that returns the lines below the figure.
        of_protocol: whether the figure shows accuracies of the protocol, of one metric, instead of numbers of
            experiments.
        singles: whether each panel is also written alone, readable at the width of a text column.
        on_page: whether the report may show the figure without naming it; other figures repeat numbers of these, or are
            named by :mod:`cog.reporting.html.pictures`.
    """

    stem: str
    title: str
    panels: tuple[PanelSpec, ...]
    x: Callable[[CurveSelection, Sequence[Key]], axes.XAxis] = axes.over_datasets
    caption: str = ". Error bars: standard deviation over seeds, where there are several."
    relative: str = ""
    missing: str = ""
    below: tuple[PanelSpec, ...] = ()
    lead: PanelSpec | None = None
    crowd: int = 0
    per_row: int = 0
    per_dataset: bool = False
    narrow: Callable[[CurveSelection], CurveSelection] | None = None
    notes: Callable[[CurveSelection, Sequence[Panel]], Sequence[str]] = notes.of_experiments
    of_protocol: bool = False
    singles: bool = False
    on_page: bool = True


def _of_fig4(selection: CurveSelection) -> CurveSelection:
    """Return the selection of Fig. 4: the user's models and eight of the paper on three levels, from two images on.

    Sec. 4.2.2 of the paper begins with two images. With numbers of the first version, the selection has its three data
    sets, from one image on.
    """
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


def _numbers(evaluation: str, y_label: str, **titles: str) -> tuple[PanelSpec, ...]:
    return tuple(PanelSpec((evaluation, metric, 0), title, y_label) for metric, title in titles.items())


_protocol = functools.partial(FigureSpec, of_protocol=True, notes=notes.of_protocol)


def _all_models(stem: str, title: str, quantity: str, y_label: str, missing: str = "") -> FigureSpec:
    """Return the declaration of few-shot curves of all models; rows are data sets, columns are groups of models."""
    panel = PanelSpec(None, "{title}", y_label, quantity, "groups", "{dataset}_{group}", y_group="{dataset}")
    caption = " by training images per class; rows: {datasets}; columns: {groups}" + _OVER_SEEDS
    return _protocol(
        stem, title, (panel,), axes.over_shots, caption, missing=missing, per_dataset=True, on_page=False
    )


def _among_published(selection: CurveSelection) -> CurveSelection:
    """Return the selection on the data sets of the paper's models, with these in gray, except the baseline."""
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
    return dataclasses.replace(selection, curves=tuple(curves))


_BY_DATASET = PanelSpec(by="datasets", name="{dataset}_{quantity}")

# In the paper's sign: higher is more uniform.
_UNIFORMITY = ("alignment", "uniformity_v1", 0)

#: The figures by name, in the order in which they are drawn.
FIGURES = {
    "fig3": _protocol(
        "fig3_levels",
        "{Metric} accuracy on {datasets}, {shots}",
        (PanelSpec(quantity=RELATIVE, by="groups", name="{group}"),),
        axes.over_levels,
        ": absolute{relative}" + _OVER_SEEDS,
        relative=", and difference to {baseline} per group of models",
        lead=PanelSpec(title="All models", name="absolute"),
        per_row=2,
        singles=True,
    ),
    "fig4": _protocol(
        "fig4_fewshot",
        "Few-shot {metric} accuracy on {datasets}",
        (PanelSpec(by="datasets", name="absolute_{dataset}"),),
        axes.over_shots,
        " by training images per class, absolute{relative}" + _OVER_SEEDS,
        relative=" and relative to {baseline}",
        below=(PanelSpec(quantity=RELATIVE, by="datasets", name="relative_{dataset}"),),
        narrow=_of_fig4,
        singles=True,
    ),
    "fig10": _all_models(
        "fig10_fewshot_absolute",
        "Few-shot {metric} accuracy of all models",
        ABSOLUTE,
        "{place}\n{metric} (%)",
    ),
    "fig11": _all_models(
        "fig11_fewshot_relative",
        "Few-shot {metric} accuracy of all models relative to {baseline}",
        RELATIVE,
        "{place}\npoints to {baseline}",
        f"fig11 shows differences to a baseline, and there is no result of {published.REFERENCE} on the same data; "
        "name another one, or show the published results too",
    ),
    "drop": _protocol(
        "drop_from_in1k{version}",
        "Change of {metric} accuracy from IN-1K to {levels}, {shots}",
        (PanelSpec(quantity=DROP, by="groups", name="{group}"),),
        axes.over_levels,
        ", in percent of each model's own IN-1K score" + _OVER_SEEDS,
        lead=PanelSpec(quantity=DROP, title="All models", name="all"),
        crowd=12,
        per_row=2,
        missing="the drop needs, for at least one model, results on in1k and on another data set with the same number "
        "of shots ({shots})",
        singles=True,
    ),
    "v1_fig5": FigureSpec(
        "v1_fig5_purity",
        "Purity of k-means clusters on {datasets}",
        _numbers(
            "kmeans", "purity", purity_v1="Largest cluster of a class", purity="Largest class of a cluster"
        ),
    ),
    "v1_fig6": FigureSpec(
        "v1_fig6_alignment_ratio",
        "Alignment and uniformity relative to IN-1K on {datasets}",
        _numbers(
            "alignment",
            "relative to IN-1K",
            **{
                f"alignment_by_uniformity_{relative.RATIO_TO_IN1K}": "Alignment / uniformity",
                f"alignment_{relative.RATIO_TO_IN1K}": "Alignment",
                f"uniformity_{relative.RATIO_TO_IN1K}": "Uniformity",
            },
        ),
        on_page=False,
    ),
    "v1_fig8": FigureSpec(
        "v1_fig8_pca",
        "Top-1 accuracy on principal components on {datasets}",
        (dataclasses.replace(_BY_DATASET, y_label="top-1 (%)"),),
        below=(dataclasses.replace(_BY_DATASET, quantity=RELATIVE, y_label="difference (points)"),),
        x=axes.over_components,
        per_row=3,
        caption="{relative}" + _OVER_SEEDS,
        relative=", absolute and relative to {baseline}",
        missing="there is no result on principal components to draw (CLF.PCA_DIM)",
    ),
    "v1_fig9": FigureSpec(
        "v1_fig9_clustering",
        "Agreement of k-means clusters with the classes on {datasets}",
        _numbers("kmeans", "agreement (0 to 1)", ami="AMI", nmi="NMI", ari="ARI"),
    ),
    "v1_fig10": FigureSpec(
        "v1_fig10_alignment",
        "Alignment and uniformity on {datasets}",
        (
            *_numbers("alignment", "", alignment="Alignment", uniformity_v1="Uniformity"),
            PanelSpec(
                title="Alignment (y), uniformity (x)",
                y_label="",
                name="plane",
                unit="",
                y_group="plane",
                points=functools.partial(
                    points.pairs, x_key=_UNIFORMITY, y_key=("alignment", "alignment", 0)
                ),
            ),
        ),
        notes=notes.of_alignment,
    ),
    "mlp": FigureSpec(
        "mlp",
        "MLPs relative to logistic regression on {datasets}",
        tuple(
            PanelSpec(
                (name, relative.RELATIVE_TO_LOGREG, 0),
                title,
                "change of top-1 (%)",
                RELATIVE,
                unit="percent of the LogReg score",
                y_group="{quantity}",
            )
            for name, title in (("mlp", "MLP"), ("mlp_noact", "MLP without activation"))
        ),
        caption=_OVER_SEEDS,
    ),
    "fig6": FigureSpec(
        "fig6_finetune",
        "Frozen features and fine-tuning on {datasets}",
        (
            PanelSpec(
                ("finetune", relative.LOGREG_RELATIVE, 0),
                "Frozen, relative to fine-tuned",
                "change of top-1 (%)",
                RELATIVE,
                unit="percent of the fine-tuned score",
            ),
            PanelSpec(("finetune", "top1", 0), "Fine-tuned", "top-1 accuracy (%)"),
        ),
        caption=_OVER_SEEDS,
    ),
    "knn": FigureSpec(
        "knn",
        "Top-1 accuracy of the k nearest neighbors, {variant} vote on {datasets}",
        (dataclasses.replace(_BY_DATASET, y_label="top-1 (%)"),),
        x=axes.over_neighbors,
        per_row=3,
        caption=_OVER_SEEDS,
        missing="there is no result of nearest neighbors to draw",
    ),
    "distance": FigureSpec(
        "distance",
        "Accuracy per concept by similarity to IN-1K on {datasets}",
        (
            PanelSpec(
                points.SPEARMAN,
                y_label="top-1 of a concept (%)",
                by="datasets",
                name="{dataset}",
                unit="percent",
                y_group="{quantity}",
                points=points.bins,
                x_label="similarity to IN-1K",
            ),
        ),
        per_row=3,
        caption=": means over concepts of similar similarity. Error bars: standard error over these concepts.",
        missing="there is no result of accuracy against semantic distance to draw",
        notes=notes.of_correlations,
    ),
    "subtrees": FigureSpec(
        "subtrees",
        "Accuracy by WordNet subtree on {datasets}",
        (dataclasses.replace(_BY_DATASET, y_label="top-1 (%)", name="{dataset}"),),
        x=functools.partial(axes.over_columns, evaluation="subtrees"),
        per_row=2,
        caption=": means over the concepts of a subtree" + _OVER_SEEDS,
        missing="there is no result of accuracy by subtree to draw",
        notes=notes.of_subtrees,
    ),
    "levels": _protocol(
        "levels",
        "{Metric} accuracy on {datasets}, {shots}",
        (PanelSpec(name="absolute"),),
        axes.over_levels,
        ": own models among the published ones" + _OVER_SEEDS,
        narrow=_among_published,
        on_page=False,
    ),
}
