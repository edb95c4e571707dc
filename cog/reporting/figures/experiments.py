"""Charts of other experiments than the protocol's: the remaining figures of the first version, and what it lacks.

Most are declared (:data:`LEVEL_FIGURES`), the others are functions; without their numbers CogError is raised.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import cog.reporting.figures.curves as curve_sorting
import cog.reporting.figures.points as points
from cog.analysis.knn import neighbor_metric
from cog.errors import CogError
from cog.reporting.figures.chart import Chart, Panel, Point, std_of
from cog.reporting.figures.curves import BASELINE, Curve
from cog.reporting.figures.points import Value, dataset_label
from cog.results import metric_info, relative
from cog.results.analysis_records import AnalysisRecord
from cog.results.scores import LOGREG, RUNS, SeedAverage, dataset_key
from cog.runtime.json_fields import number

Key = tuple[str, str, int]

# More lines below a figure would be a table.
_MOST_NOTES = 4


@dataclass(frozen=True)
class ExperimentCurves:
    """What can be drawn.

    Attributes:
        curves: models, with their numbers by data set and key.
        baseline: model that differences are taken to, or None.
        datasets: wanted by the user; None: all.
    """

    curves: tuple[Curve, ...]
    baseline: str | None
    datasets: tuple[str, ...] | None

    def on(self, keys: Iterable[Key]) -> list[str]:
        """Return the data sets that have one of these numbers, in order."""
        wanted = set(keys)
        found = {dataset for curve in self.curves for dataset, key in curve.cells if key in wanted}
        if self.datasets is not None:
            found &= set(self.datasets)
        return sorted(found, key=dataset_key)

    def numbers(self) -> set[Key]:
        """Return which numbers there are."""
        return {key for curve in self.curves for _, key in curve.cells}


def source(
    found: Iterable[SeedAverage], *, baseline: str | None = None, datasets: Sequence[str] | None = None
) -> ExperimentCurves:
    """Sort numbers into curves.

    Args:
        found: all numbers, with what is derived among them.
        baseline: model; None: the paper's, if it is there.
        datasets: to draw.
    """
    curves = curve_sorting.of_measures(found)
    if baseline is None and any(curve.model == BASELINE for curve in curves):
        baseline = BASELINE
    return ExperimentCurves(curves, baseline, None if datasets is None else tuple(datasets))


@dataclass(frozen=True)
class LevelPanel:
    """One number over the data sets."""

    key: Key
    title: str
    y_label: str


@dataclass(frozen=True)
class LevelFigure:
    """A figure of numbers over the data sets, a panel for each.

    Attributes:
        stem: of its files.
        what: what is shown, for title and caption.
        panels: in their order; those without a number are left out.
        quantity: ``absolute`` or ``relative``.
        unit: of relative numbers.
        share_y: whether panels share their y axis.
        absolute: metrics that are absolute all the same.
        on_page: whether the report shows it; the others repeat what is there.
    """

    stem: str
    what: str
    panels: tuple[LevelPanel, ...]
    quantity: str = "absolute"
    unit: str = ""
    share_y: bool = False
    absolute: tuple[str, ...] = ()
    on_page: bool = True


def _panels(evaluation: str, y_label: str, **titles: str) -> tuple[LevelPanel, ...]:
    return tuple(LevelPanel((evaluation, metric, 0), title, y_label) for metric, title in titles.items())


#: Figures that are nothing but numbers over the data sets: one more is one entry here.
LEVEL_FIGURES = {
    # Figs. 5, 6 and 9 and Table 3 of the first version
    "v1_fig5": LevelFigure(
        "v1_fig5_purity",
        "Purity of k-means clusters",
        _panels(
            "kmeans", "purity", purity_v1="Largest cluster of a class", purity="Largest class of a cluster"
        ),
    ),
    "v1_fig6": LevelFigure(
        "v1_fig6_alignment_ratio",
        "Alignment and uniformity relative to IN-1K",
        tuple(
            LevelPanel(("alignment", f"{name}_{relative.RATIO_TO_IN1K}", 0), title, "relative to IN-1K")
            for name, title in (
                ("alignment_by_uniformity", "Alignment / uniformity"),
                ("alignment", "Alignment"),
                ("uniformity", "Uniformity"),
            )
        ),
        on_page=False,
    ),
    "v1_fig9": LevelFigure(
        "v1_fig9_clustering",
        "Agreement of k-means clusters with the classes",
        _panels("kmeans", "agreement (0 to 1)", ami="AMI", nmi="NMI", ari="ARI"),
    ),
    "mlp": LevelFigure(
        "mlp",
        "MLPs relative to logistic regression",
        tuple(
            LevelPanel((name, relative.RELATIVE_TO_LOGREG, 0), title, "change of top-1 (%)")
            for name, title in (("mlp", "MLP"), ("mlp_noact", "MLP without activation"))
        ),
        quantity="relative",
        unit="percent of the LogReg score",
        share_y=True,
    ),
    # Fig. 6 of the final version
    "fig6": LevelFigure(
        "fig6_finetune",
        "Frozen features and fine-tuning",
        (
            LevelPanel(
                ("finetune", relative.LOGREG_RELATIVE, 0),
                "Frozen, relative to fine-tuned",
                "change of top-1 (%)",
            ),
            LevelPanel(("finetune", "top1", 0), "Fine-tuned", "top-1 accuracy (%)"),
        ),
        quantity="relative",
        unit="percent of the fine-tuned score",
        absolute=("top1",),
    ),
}


def over_levels(found: ExperimentCurves, name: str, declared: LevelFigure) -> Chart:
    """Return a declared figure.

    Raises:
        CogError: when none of its numbers is there.
    """
    datasets = found.on([one.key for one in declared.panels])
    panels: list[Panel | None] = []
    for one in declared.panels:
        places = [(float(x), dataset, one.key) for x, dataset in enumerate(datasets)]
        series = points.series(found.curves, places, points.absolute, found.baseline)
        if not series:
            continue
        kind = declared.quantity if one.key[1] not in declared.absolute else "absolute"
        panels.append(
            Panel(
                key=f"{one.key[0]}_{one.key[1]}",
                title=one.title,
                quantity=kind,
                unit=declared.unit
                if kind != "absolute" and declared.unit
                else metric_info.describe(*one.key).unit,
                y_label=one.y_label,
                x_label="",
                ticks=tuple(place[0] for place in places),
                tick_labels=tuple(map(dataset_label, datasets)),
                series=series,
                y_group=kind if declared.share_y else f"{one.key[0]}_{one.key[1]}",
            )
        )
    if not panels:
        evaluations = dict.fromkeys(one.key[0] for one in declared.panels)
        raise CogError(f"there is no number of {' or '.join(evaluations)} to draw")
    if len(panels) == 1:
        panels = [dataclasses.replace(panel, title="") for panel in panels if panel is not None]
    title = f"{declared.what} on {', '.join(map(dataset_label, datasets))}"
    return Chart(
        figure=name,
        stem=declared.stem,
        title=title,
        caption=f"{title}. Error bars: standard deviation over seeds, where there are several.",
        of_protocol=False,
        grid=(tuple(panels),),
        single=len(panels) == 1,
        notes=_notes(panels),
    )


def alignment(found: ExperimentCurves) -> Chart:
    """Fig. 10 of the first version: alignment, uniformity, and both in a plane."""
    # As in the paper, where a higher number is a more uniform distribution.
    signed = ("alignment", "uniformity_v1", 0) in found.numbers()
    uniformity = "uniformity_v1" if signed else "uniformity"
    panels = _panels("alignment", "", **{"alignment": "Alignment", uniformity: "Uniformity"})
    declared = LevelFigure("v1_fig10_alignment", "Alignment and uniformity", panels)
    chart = over_levels(found, "v1_fig10", declared)
    plane = _plane(found, x_key=panels[1].key, y_key=panels[0].key)
    note = (
        "The paper's first version gives ranges of uniformity over the six data sets, as positive numbers: "
        "ResNet50 1.8-1.9, SwAV 1.9-2.1, the five others 2.6-3.1."
    )
    drawn = [panel for row in chart.grid for panel in row]
    return dataclasses.replace(chart, grid=((*drawn, plane),), single=False, notes=(*chart.notes, note))


def _plane(found: ExperimentCurves, *, x_key: Key, y_key: Key) -> Panel | None:
    """Draw two numbers against each other, a point for each data set, joined in their order."""
    datasets = found.on([x_key])
    series = []
    for curve in found.curves:
        there = []
        for dataset in datasets:
            x, y = curve.cells.get((dataset, x_key)), curve.cells.get((dataset, y_key))
            if x is not None and y is not None:
                there.append(Point(x.value, y.value, math.nan, y, x))
        if there:
            series.append(points.one_series(curve, there, found.baseline))
    if not series:
        return None
    low = min(point.x for one in series for point in one.points)
    high = max(point.x for one in series for point in one.points)
    ticks = _round_numbers(low, high)
    return Panel(
        key="plane",
        title="Alignment (y), uniformity (x)",
        quantity="absolute",
        unit="",
        y_label="",
        x_label="",
        ticks=ticks,
        tick_labels=tuple(f"{tick:g}".replace("-", "\N{MINUS SIGN}") for tick in ticks),
        series=tuple(series),
        y_group=f"{y_key[0]}_{y_key[1]}_plane",
        plane=True,
    )


def _round_numbers(low: float, high: float) -> tuple[float, ...]:
    """Return three to six round numbers that enclose an interval."""
    span = high - low or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(span))
    for factor in (0.2, 0.5, 1, 2, 5):
        size = step * factor
        first, last = math.floor(low / size), math.ceil(high / size)
        last = max(last, first + 1)
        if last - first <= 5:
            return tuple(round(index * size, 12) for index in range(first, last + 1))
    return (low, high)


def pca(found: ExperimentCurves) -> Chart:
    """Fig. 8 of the first version: accuracy by number of principal components, absolute and relative.

    Raises:
        CogError: when there are no runs on principal components.
    """
    dims: dict[int, Key] = {}
    for key in found.numbers():
        one = metric_info.classifier(key[0])
        if (
            one is not None
            and one.type == LOGREG
            and one.pca_dim
            and not one.max_per_class
            and key[1:] == ("top1", 0)
        ):
            dims[one.pca_dim] = key
    datasets = found.on(dims.values())
    if not datasets:
        raise CogError("there is no result on principal components to draw (CLF.PCA_DIM)")
    places = [(math.log2(dim), dims[dim]) for dim in sorted(dims)]
    x_break = places[-1][0] + 0.5
    labels = [str(dim) for dim in sorted(dims)]
    whole: Key = (LOGREG, "top1", 0)
    if any((dataset, whole) in curve.cells for curve in found.curves for dataset in datasets):
        places.append((places[-1][0] + 1.0, whole))
        labels.append("all")
    return _by_dataset(
        found,
        datasets,
        places,
        labels,
        figure="v1_fig8",
        stem="v1_fig8_pca",
        what="Top-1 accuracy on principal components",
        x_label="principal components",
        x_break=x_break if labels[-1] == "all" else None,
    )


def nearest_neighbours(found: ExperimentCurves) -> Chart:
    """Accuracy of the k-nearest-neighbour classifier by k.

    Raises:
        CogError: when there is none.
    """
    votes: dict[str, dict[int, Key]] = {}
    for key in found.numbers():
        one = neighbor_metric(key[1]) if key[0] == "knn" else None
        if one is not None and one.metric == "top1":
            votes.setdefault(one.vote, {})[one.k] = key
    if not votes:
        raise CogError("there is no result of nearest neighbours to draw")
    vote = "weighted" if "weighted" in votes else min(votes)
    by_k = votes[vote]
    labels = [str(k) for k in sorted(by_k)]
    return _by_dataset(
        found,
        found.on(by_k.values()),
        [(math.log2(k), by_k[k]) for k in sorted(by_k)],
        labels,
        figure="knn",
        stem="knn",
        what=f"Top-1 accuracy of the k nearest neighbours, {vote} vote",
        x_label="k",
        x_break=None,
        relative=False,
    )


@dataclass(frozen=True)
class _Bin:
    """Concepts of similar similarity to IN-1K: means over them."""

    similarity: float
    accuracy: float
    standard_error: float


def distance(found: ExperimentCurves, analyses: Iterable[AnalysisRecord]) -> Chart:
    """Accuracy per concept by its similarity to IN-1K, in bins; a panel for each data set.

    Args:
        found: the models, and the correlations with their intervals.
        analyses: the bins are in the details of ``distance``.

    Raises:
        CogError: when there is none.
    """
    bins: dict[tuple[str, str], list[_Bin]] = {}
    for record in analyses:
        if record.analysis == "distance" and record.model and record.dataset:
            bins[record.model, record.dataset] = _bins(record.details.get("bins"))
    key: Key = ("distance", "spearman", 0)
    panels: list[Panel | None] = []
    notes: dict[str, list[str]] = {}
    # Of many correlations, those of the user's own models are told.
    for curve in sorted(found.curves, key=lambda one: not one.own):
        notes[curve.label] = []
    for dataset in found.on([key]):
        series = []
        for curve in found.curves:
            measure = curve.cells.get((dataset, key))
            there = bins.get((curve.model, dataset), []) if curve.source == RUNS else []
            if measure is None or not there:
                continue
            series.append(points.one_series(curve, [_binned(one, measure) for one in there], found.baseline))
            notes[curve.label].append(f"{dataset_label(dataset)} {_correlation(curve, measure)}")
        if series:
            xs = [point.x for one in series for point in one.points]
            ticks = _round_numbers(min(xs), max(xs))
            panels.append(
                Panel(
                    key=dataset,
                    title=dataset_label(dataset),
                    quantity="absolute",
                    unit="percent",
                    y_label="top-1 of a concept (%)",
                    x_label="similarity to IN-1K",
                    ticks=ticks,
                    tick_labels=tuple(f"{tick:g}" for tick in ticks),
                    series=tuple(series),
                    y_group="accuracy",
                    plane=True,
                )
            )
    if not panels:
        raise CogError("there is no result of accuracy against semantic distance to draw")
    where = ", ".join(panel.title for panel in panels if panel is not None)
    title = f"Accuracy per concept by similarity to IN-1K on {where}"
    lines = [f"{label}: Spearman {'; '.join(parts)}." for label, parts in notes.items() if parts]
    if len(lines) > _MOST_NOTES:
        lines = [
            *lines[:_MOST_NOTES],
            f"Correlations of {len(lines) - _MOST_NOTES} more models are in the tables.",
        ]
    return Chart(
        figure="distance",
        stem="distance",
        title=title,
        caption=f"{title}: means over concepts of similar similarity. Error bars: standard error over these concepts.",
        of_protocol=False,
        grid=points.in_rows(panels, 3),
        single=len(panels) == 1,
        notes=tuple(lines),
    )


def _bins(given: Any) -> list[_Bin]:
    """Read bins as an analysis records them; those that are not as expected are left out."""
    found = []
    for entry in given if isinstance(given, list) else ():
        values = [
            number(entry.get(name)) if isinstance(entry, dict) else None
            for name in ("similarity", "accuracy", "standard_error")
        ]
        if values[0] is not None and values[1] is not None:
            found.append(_Bin(values[0], values[1], abs(values[2]) if values[2] is not None else math.nan))
    return sorted(found, key=lambda one: one.similarity)


def _binned(one: _Bin, measure: SeedAverage) -> Point:
    std = None if math.isnan(one.standard_error) else one.standard_error
    cell = dataclasses.replace(
        measure, metric="accuracy_in_bin", value=one.accuracy, std=std, by_seed=(), missing_seeds=()
    )
    # The other coordinate, which would not be in the CSV file otherwise.
    similarity = dataclasses.replace(cell, metric="similarity", value=one.similarity, std=None)
    return Point(one.similarity, one.accuracy, one.standard_error, cell, similarity)


def _correlation(curve: Curve, measure: SeedAverage) -> str:
    ends = [
        curve.cells.get((measure.dataset, (measure.evaluation, name, measure.n_shot)))
        for name in metric_info.interval_of(measure.metric)
    ]
    text = f"{measure.value:.2f}"
    if ends[0] is not None and ends[1] is not None:
        text += f" [{ends[0].value:.2f}, {ends[1].value:.2f}]"
    return text.replace("-", "\N{MINUS SIGN}")


def _by_dataset(
    found: ExperimentCurves,
    datasets: Sequence[str],
    places: Sequence[tuple[float, Key]],
    labels: Sequence[str],
    *,
    figure: str,
    stem: str,
    what: str,
    x_label: str,
    x_break: float | None,
    relative: bool = True,
) -> Chart:
    """Draw a panel for each data set, three in a row, absolute; below the same relative to the baseline."""

    def panels(value: Value, kind: str, curves: Sequence[Curve]) -> list[Panel | None]:
        made: list[Panel | None] = []
        for dataset in datasets:
            series = points.series(curves, [(x, dataset, key) for x, key in places], value, found.baseline)
            if not series:
                continue
            against = "" if kind == "absolute" else "difference (points)"
            made.append(
                Panel(
                    key=f"{dataset}_{kind}",
                    title=dataset_label(dataset),
                    quantity=kind,
                    unit="percent" if kind == "absolute" else "points",
                    y_label=against or "top-1 (%)",
                    x_label=x_label,
                    ticks=tuple(x for x, _ in places),
                    tick_labels=tuple(labels),
                    series=series,
                    y_group=f"{kind}_{len(made) // 3}",
                    x_break=x_break,
                )
            )
        return made

    above = panels(points.absolute, "absolute", found.curves)
    below: list[Panel | None] = []
    if relative and any(curve.model == found.baseline for curve in found.curves):
        kept = points.without_own_zero(found.curves, found.baseline)
        below = [
            panel
            for panel in panels(_difference(found), "relative", kept)
            if panel is not None and any(not series.baseline for series in panel.series)
        ]
    title = f"{what} on {', '.join(map(dataset_label, datasets))}"
    label = curve_sorting.model_label(found.baseline) if below and found.baseline else ""
    return Chart(
        figure=figure,
        stem=stem,
        title=title,
        caption=f"{title}{f', absolute and relative to {label}' if below else ''}. Error bars: standard deviation over "
        "seeds.",
        of_protocol=False,
        grid=(*points.in_rows(above, 3), *points.in_rows(below, 3)),
        single=len(above) == 1 and not below,
        notes=_notes([*above, *below]),
    )


def _difference(found: ExperimentCurves) -> Value:
    """Difference to the baseline of the same source, else of the first that has one, in points."""

    def value(curve: Curve, measure: SeedAverage) -> tuple[float, float, SeedAverage | None] | None:
        for base in sorted(
            (one for one in found.curves if one.model == found.baseline),
            key=lambda one: one.source != curve.source,
        ):
            other = base.cells.get((measure.dataset, measure.key))
            if other is not None:
                return measure.value - other.value, std_of(measure), other
        return None

    return value


def _notes(panels: Iterable[Panel | None]) -> tuple[str, ...]:
    """Name what is incomplete."""
    incomplete: dict[str, set[str]] = {}
    for panel in panels:
        for series in panel.series if panel is not None else ():
            for point in series.points:
                if point.cell.missing_seeds:
                    incomplete.setdefault(series.label, set()).add(dataset_label(point.cell.dataset))
    if not incomplete:
        return ()
    listed = [f"{label} ({', '.join(sorted(where))})" for label, where in incomplete.items()]
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return (f"Seeds are missing: {', '.join(listed[:3])}{more}; see the CSV file.",)
