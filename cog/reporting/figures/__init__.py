"""Figures of results, as files or as elements of a web page.

All figures are declared in :data:`cog.reporting.figures.declarations.FIGURES`. Error bars are the standard deviation of
a point's own score over seeds. Files of a figure come with its data as a CSV file (columns:
:data:`cog.reporting.figures.chart.CSV_COLUMNS`). Matplotlib is imported only for drawing.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog.errors import CogError
from cog.reporting.figures import axes, building, curves, drawing, inline, saving
from cog.reporting.figures.chart import Chart
from cog.reporting.figures.declarations import FIGURES
from cog.reporting.figures.saving import FORMATS
from cog.reporting.tables.writers import printable
from cog.results import official
from cog.results.analysis_records import AnalysisRecord
from cog.results.model_facts import MARK, ModelFacts
from cog.results.scores import SeedAverage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOG = logging.getLogger("cog")

__all__ = ["FORMATS", "charts", "names", "svg", "write"]


def names() -> tuple[str, ...]:
    """Return the names of the figures in the order of their declarations."""
    return tuple(FIGURES)


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
    model_facts: ModelFacts | None = None,
    on_missing: Callable[[str, CogError], object] | None = None,
) -> list[Chart]:
    """Return the contents of the figures, before drawing.

    Own results on other data than the published ones are not drawn beside these (:func:`cog.results.official.split`).

    Args:
        cells: the user's accuracies, imported ones included, which are highlighted. Without published cells, models of
            the paper look as in the paper.
        published: accuracies of the paper, see :func:`cog.results.published.accuracies`.
        others: accuracies for comparisons, which are not shown: of the baseline, and on IN-1K for the drop.
        measures: numbers of all experiments with the derived ones (:func:`cog.results.relative.derive`).
        analyses: results of analyses, for values beside their numbers.
        which: some of :func:`names`; None: all with data.
        shots: training images per class to show, 0 = all; None: those of each figure.
        datasets: data sets to show; None: those of each figure.
        baseline: model to which differences are taken; None: sup_resnet50 if there are results of it.
        metric: ``top1`` or ``top5`` (the paper has no top-5).
        singles: whether panels of Figs. 3, 4 and the drop are returned as separate charts, too.
        model_facts: labels and pretraining of models; None: those that follow from their names.
        on_missing: called with the name of a figure that cannot be drawn and the error; None: the error is raised.

    Returns:
        Each figure followed by its single panels.

    Raises:
        CogError: no cell to draw, a figure asked for that cannot be drawn.
    """
    cells, published, measures = list(cells), list(published), list(measures)
    drawn, remarks = official.split(cells, published)
    for remark in remarks:
        LOG.warning("figures: %s", printable(remark))
    cells, published, others, measures = (
        [score for score in group if drawn(score.model, score.source, score.dataset)]
        for group in (cells, published, others, measures)
    )
    wanted = list(dict.fromkeys(which or names()))
    model_facts = model_facts or ModelFacts()
    protocol, nothing = None, CogError("there are no results")
    if cells or published or not measures or any(FIGURES[name].of_protocol for name in which or ()):
        try:
            protocol = curves.select(
                cells, published, others=others, metric=metric, baseline=baseline, datasets=datasets, shots=shots,
                model_facts=model_facts,
            )  # fmt: skip
            baseline = protocol.baseline
        except CogError as error:
            if on_missing is None:
                raise
            nothing = error
    experiments = curves.of_experiments(
        measures, baseline=baseline, datasets=datasets, analyses=analyses, model_facts=model_facts
    )
    made: list[Chart] = []
    for name in wanted:
        spec = FIGURES[name]
        selection = protocol if spec.of_protocol else experiments
        if selection is None:
            if on_missing is not None:
                on_missing(name, nothing)
            continue
        if which is None and spec.x is axes.over_shots and len({key[2] for key in selection.numbers()}) < 2:
            LOG.info("%s left out: there is one number of shots", name)
            continue
        try:
            chart = building.build(name, selection)
        except CogError as error:
            if on_missing is not None:
                on_missing(name, error)
                continue
            if which is not None:
                raise
            # Most studies lack the other experiments, so their absence is no information at the usual level.
            LOG.log(logging.INFO if spec.of_protocol else logging.DEBUG, "%s left out: %s", name, error)
            continue
        marked = {
            (c.model, c.source): c.label.removesuffix(f" {MARK}") for c in chart.curves() if MARK in c.label
        }
        footnote = model_facts.footnote(marked, label=lambda *model, of=marked: of[model], advice=False)
        further = [*map(official.as_sentence, remarks), *filter(None, [footnote])]
        chart = dataclasses.replace(chart, notes=(*chart.notes, *map(printable, further)))
        made += [chart, *(building.singles(chart) if singles and spec.singles else ())]
    return made


def write(
    cells: Iterable[SeedAverage],
    published: Iterable[SeedAverage],
    folder: str | os.PathLike[str],
    *,
    formats: Sequence[str] = FORMATS,
    overwrite: bool = False,
    **shown: Any,
) -> list[Path]:
    """Draw figures into ``folder`` as ``<stem>.<format>`` and ``<stem>.csv``.

    Stems are declared; those of single panels have ``_<panel>`` at the end.

    Args:
        cells: the user's accuracies, see :func:`charts`.
        published: accuracies of the paper.
        folder: output folder, created unless it exists.
        formats: some of ``FORMATS``.
        overwrite: whether existing files may be replaced.
        **shown: other arguments of :func:`charts`.

    Returns:
        The files. The same cells give the same bytes (with the same version of matplotlib).

    Raises:
        CogError: see :func:`charts`; files that exist. Nothing is written then.
    """
    pages = {chart.stem: functools.partial(_page, chart) for chart in charts(cells, published, **shown)}
    return saving.save_all(folder, pages, formats=formats, overwrite=overwrite)


def _page(chart: Chart) -> tuple[Figure, dict[str, str]]:
    return drawing.draw(chart), {"": chart.csv()}


def svg(chart: Chart, *, prefix: str | None = None) -> str:
    """Return a chart as an ``<svg>`` element for an HTML page, with the name of each curve as a tooltip.

    Args:
        chart: contents of the figure.
        prefix: start of all ids in the element, different for every element of a page; None: the stem of the chart.
    """
    tooltips = {
        drawing.curve_id(panel, order): series.curve.label
        for panel in chart.panels()
        for order, series in enumerate(panel.series)
    }
    with saving.drawing():
        figure = drawing.draw(chart)
        return inline.from_figure(
            figure, prefix=prefix or chart.stem, description=chart.caption, tooltips=tooltips
        )
