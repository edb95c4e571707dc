"""The paper's figures from cells of results: drawn, as files, or as pieces of a web page.

``fig3``   accuracy over the levels, and the difference to a baseline per group of models (Fig. 3)
``fig4``   few-shot accuracy, absolute and relative, of eight models and one's own (Fig. 4)
``fig10``  few-shot accuracy of all models, data sets x groups (Fig. 10)
``fig11``  the same relative to the baseline (Fig. 11)
``drop``   loss of each level relative to IN-1K in percent (Fig. 3c of the first version)

and from numbers of other experiments:

``v1_fig5``   purity of k-means clusters (Fig. 5 of the first version)
``v1_fig6``   alignment and uniformity relative to IN-1K (its Fig. 6)
``v1_fig8``   accuracy by number of principal components (its Fig. 8)
``v1_fig9``   AMI, NMI and ARI of k-means clusters (its Fig. 9)
``v1_fig10``  alignment, uniformity, and both in a plane (its Fig. 10)
``mlp``       MLPs relative to logistic regression (its Table 3)
``fig6``      frozen features relative to the fine-tuned network (Fig. 6 of the final version)
``knn``       nearest neighbours by their number
``distance``  accuracy per concept by its similarity to IN-1K

Error bars are the standard deviation of a point's own score over seeds. Every figure comes with its data as
a CSV file (columns: :data:`cog.reporting.figures.chart.CSV_COLUMNS`). Matplotlib is imported when something is drawn.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cog.errors import CogError
from cog.reporting.figures import curves, experiments, saving, views
from cog.reporting.figures.chart import Chart
from cog.reporting.figures.saving import FORMATS
from cog.reporting.tables.writers import printable
from cog.results import official
from cog.results.analysis_records import AnalysisRecord
from cog.results.scores import SeedAverage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOG = logging.getLogger("cog")

__all__ = ["FORMATS", "charts", "names", "svg", "write"]

_VIEWS: dict[str, Callable[[curves.CurveSelection], Chart]] = {
    "fig3": views.levels,
    "fig4": views.few_shot,
    "fig10": lambda selection: views.few_shot_all(selection, relative=False),
    "fig11": lambda selection: views.few_shot_all(selection, relative=True),
    "drop": views.drop,
}

_EXPERIMENTS: dict[str, Callable[[experiments.ExperimentCurves], Chart]] = {
    "v1_fig8": experiments.pca,
    "v1_fig10": experiments.alignment,
    "knn": experiments.nearest_neighbours,
}

#: Names of the figures, in the order in which they are drawn.
_ORDER = (*_VIEWS, "v1_fig5", "v1_fig6", "v1_fig8", "v1_fig9", "v1_fig10", "mlp", "fig6", "knn", "distance")

# Their panels are readable at the width of a text column, so each is written alone too.
_WITH_SINGLES = ("fig3", "fig4", "drop")

_FEW_SHOT = ("fig4", "fig10", "fig11")


def names() -> tuple[str, ...]:
    """Return the names of the figures, those of the papers first."""
    return tuple(dict.fromkeys((*_ORDER, *experiments.LEVEL_FIGURES)))


def charts(
    cells: Iterable[SeedAverage],
    published: Iterable[SeedAverage] = (),
    *,
    others: Iterable[SeedAverage] = (),
    measures: Iterable[SeedAverage] = (),
    analyses: Iterable[AnalysisRecord] = (),
    which: Sequence[str] | None = None,
    shots: Sequence[int] | None = None,
    datasets: Sequence[str] | None = None,
    baseline: str | None = None,
    metric: str = "top1",
    singles: bool = True,
) -> list[Chart]:
    """Return what the figures show, before anything is drawn.

    Own results on other data than the published ones are not drawn beside these (:func:`cog.results.official.split`).

    Args:
        cells: of one's own (also imported ones): highlighted. Without published cells, models of the paper
            look as in the paper.
        published: of the paper, see :func:`cog.results.published.accuracies`.
        others: not shown, but there to compare with: of the baseline, and on IN-1K for the drop.
        measures: numbers of all experiments, with what is derived among them (:func:`cog.results.relative.derive`).
        analyses: results of analyses, for what is not in their numbers.
        which: some of :func:`names`; None: all for which there are data.
        shots: training images per class to show, 0 = all; None: those of each figure.
        datasets: data sets to show; None: those of each figure.
        baseline: model that differences are taken to; None: sup_resnet50 if there are results of it,
            otherwise no differences.
        metric: ``top1`` or ``top5`` (the paper has no top-5).
        singles: whether panels of Figs. 3, 4 and the drop come as charts of their own, too.

    Returns:
        Each figure followed by its single panels.

    Raises:
        CogError: unknown figure or metric, no cell to draw, a figure asked for that cannot be drawn.
    """
    unknown = [name for name in which or () if name not in names()]
    if unknown:
        raise CogError(f"figure {', '.join(unknown)} is not known, expected some of {', '.join(names())}")
    wanted = dict.fromkeys(which or names())
    found: list[Chart] = []
    cells, published, measures = list(cells), list(published), list(measures)
    drawn, refused = official.split(cells, published)
    if refused:
        LOG.warning("figures: %s", printable(refused))
        cells, published, others = (
            [cell for cell in group if drawn(cell.model, cell.source, cell.dataset)]
            for group in (cells, published, others)
        )
        measures = [one for one in measures if drawn(one.model, one.source, one.dataset)]
    selection = None
    if cells or published or not measures or any(name in _VIEWS for name in which or ()):
        selection = curves.select(
            cells, published, others=others, metric=metric, baseline=baseline, datasets=datasets, shots=shots
        )
        baseline = selection.baseline
    source = experiments.source(measures, baseline=baseline, datasets=datasets)
    for name in wanted:
        if name in _VIEWS and selection is None:
            continue
        if which is None and name in _FEW_SHOT and selection is not None and len(selection.found(1)) < 2:
            LOG.info("%s left out: there is one number of shots", name)
            continue
        try:
            if name in experiments.LEVEL_FIGURES:
                chart = experiments.over_levels(source, name, experiments.LEVEL_FIGURES[name])
            elif name in _EXPERIMENTS:
                chart = _EXPERIMENTS[name](source)
            elif name == "distance":
                chart = experiments.distance(source, analyses)
            else:
                assert selection is not None
                chart = _VIEWS[name](selection)
        except CogError as error:
            if which is not None:
                raise
            # Most studies have none of the other experiments: not worth a line each.
            LOG.log(logging.INFO if name in _VIEWS else logging.DEBUG, "%s left out: %s", name, error)
            continue
        if refused:
            chart = dataclasses.replace(chart, notes=(*chart.notes, f"{refused[:1].upper()}{refused[1:]}."))
        found.append(chart)
        if singles and name in _WITH_SINGLES:
            found += views.singles(chart)
    return found


def draw(chart: Chart) -> Figure:
    """Return a chart as a matplotlib figure; call inside :func:`cog.reporting.figures.saving.drawing`."""
    from cog.reporting.figures import drawing

    return drawing.draw(chart)


def write(
    cells: Iterable[SeedAverage],
    published: Iterable[SeedAverage],
    folder: str | os.PathLike[str],
    *,
    others: Iterable[SeedAverage] = (),
    measures: Iterable[SeedAverage] = (),
    analyses: Iterable[AnalysisRecord] = (),
    which: Sequence[str] | None = None,
    formats: Sequence[str] = FORMATS,
    shots: Sequence[int] | None = None,
    datasets: Sequence[str] | None = None,
    baseline: str | None = None,
    metric: str = "top1",
    singles: bool = True,
    overwrite: bool = False,
) -> list[Path]:
    """Draw figures into ``folder`` as ``<stem>.<format>`` and ``<stem>.csv``.

    Stems: ``fig3_levels``, ``fig4_fewshot``, ``fig10_fewshot_absolute``, ``fig11_fewshot_relative``,
    ``drop_from_in1k``, those with ``_<panel>`` of single panels, ``v1_fig5_purity``, ``v1_fig6_alignment_ratio``,
    ``v1_fig8_pca``, ``v1_fig9_clustering``, ``v1_fig10_alignment``, ``mlp``, ``fig6_finetune``, ``knn`` and
    ``distance``.

    Args:
        cells: see :func:`charts`, also for the other arguments.
        published: of the paper.
        folder: created unless it exists.
        others: to compare with.
        measures: numbers of all experiments.
        analyses: results of analyses.
        which: some of :func:`names`.
        formats: some of ``FORMATS``.
        shots: training images per class.
        datasets: data sets.
        baseline: model.
        metric: ``top1`` or ``top5``.
        singles: whether panels are written alone, too.
        overwrite: whether existing files may be replaced.

    Returns:
        The files. The same cells give the same bytes (for one version of matplotlib).

    Raises:
        CogError: see :func:`charts`; unknown format, files that exist. Nothing is
            written then.
    """
    made = charts(
        cells,
        published,
        others=others,
        measures=measures,
        analyses=analyses,
        which=which,
        shots=shots,
        datasets=datasets,
        baseline=baseline,
        metric=metric,
        singles=singles,
    )
    pages = [saving.FigureFile(chart.stem, _page(chart)) for chart in made]
    return saving.write_all(folder, pages, formats=formats, overwrite=overwrite)


def _page(chart: Chart) -> Callable[[], tuple[Figure, dict[str, str]]]:
    return lambda: (draw(chart), {"": chart.csv()})


def svg(chart: Chart, *, prefix: str | None = None) -> str:
    """Return a chart as an ``<svg>`` element for an HTML page.

    No style sheet, script, outside reference or fixed size; text is text in the page's sans-serif font;
    each curve has a tooltip with its name. See :func:`cog.reporting.figures.inline.from_figure`.

    Args:
        chart: what to draw.
        prefix: start of all ids in the element; default: the chart's stem. Two elements of one page need
            different ones.
    """
    from cog.reporting.figures import drawing, inline

    with saving.drawing():
        return inline.from_figure(
            drawing.draw(chart),
            prefix=prefix or chart.stem,
            description=chart.caption,
            tooltips={
                drawing.curve_id(panel, order): series.label
                for panel in chart.panels()
                for order, series in enumerate(panel.series)
            },
        )
