"""Figures of results, as files or as pictures of a web page.

A figure is a function from a selection of curves to a :class:`~cog.reporting.figures.chart.Chart`: its panels with
their points, which :mod:`~cog.reporting.figures.drawing` draws. Error bars are the standard deviation of a point's own
score over seeds. Files of a figure come with its data as a CSV file (columns:
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

from cog.errors import CogError, printable
from cog.reporting.figures import curves, drawing, experiments, protocol, saving
from cog.reporting.figures.chart import Chart
from cog.reporting.figures.curves import CurveSelection
from cog.results import official
from cog.results.model_facts import MARK, ModelFacts
from cog.results.scores import SeedAverage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOG = logging.getLogger("cog")

#: Figures of accuracies of the protocol's classifier, by name.
PROTOCOL: dict[str, Callable[[CurveSelection], Chart]] = {
    "fig3": protocol.fig3,
    "fig4": protocol.fig4,
    "fig10": protocol.fig10,
    "fig11": protocol.fig11,
    "drop": protocol.drop,
    "levels": protocol.levels,
}

#: Figures of other experiments, by name.
EXPERIMENTS: dict[str, Callable[[CurveSelection], Chart]] = {
    "v1_fig5": experiments.purity,
    "v1_fig8": experiments.components,
    "v1_fig9": experiments.clustering,
    "v1_fig10": experiments.alignment,
    "mlp": experiments.mlp,
    "fig6": experiments.fine_tuning,
    "knn": experiments.neighbors,
}

# Figures over numbers of shots, of which there must be several.
_FEW_SHOT = ("fig4", "fig10", "fig11")


def names() -> tuple[str, ...]:
    """Return the names of all figures."""
    return (*PROTOCOL, *EXPERIMENTS)


def charts(
    cells: Iterable[SeedAverage],
    published: Iterable[SeedAverage] = (),
    *,
    others: Iterable[SeedAverage] = (),
    measures: Iterable[SeedAverage] = (),
    which: Sequence[str] | None = None,
    shots: Sequence[int] | None = None,
    datasets: Sequence[str] | None = None,
    baseline: str | None = None,
    model_facts: ModelFacts | None = None,
) -> list[Chart]:
    """Return the contents of the figures, before drawing.

    Own results on other data than the published ones are not drawn beside these (:func:`cog.results.official.split`).

    Args:
        cells: the user's accuracies, imported ones included, which are highlighted. Without published cells, models of
            the paper look as in the paper.
        published: accuracies of the paper, see :func:`cog.results.published.accuracies`.
        others: accuracies for comparisons, which are not shown: of the baseline, and on IN-1K for the drop.
        measures: numbers of all experiments with the derived ones (:func:`cog.results.relative.derive`).
        which: some of :func:`names`; None: all with data.
        shots: training images per class to show, 0 = all; None: those of each figure.
        datasets: data sets to show; None: those of each figure.
        baseline: model to which differences are taken; None: sup_resnet50 if there are results of it.
        model_facts: labels and pretraining of models; None: those that follow from their names.

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
    model_facts = model_facts or ModelFacts()
    selection = None
    if cells or published or not measures:
        selection = curves.select(
            cells, published, others=others, baseline=baseline, datasets=datasets, shots=shots,
            model_facts=model_facts,
        )  # fmt: skip
        baseline = selection.baseline
    of_measures = curves.of_experiments(
        measures, baseline=baseline, datasets=datasets, model_facts=model_facts
    )
    made: list[Chart] = []
    for name in which or names():
        try:
            if name in EXPERIMENTS:
                chart = EXPERIMENTS[name](of_measures)
            elif selection is None:
                raise CogError("there is no accuracy of the protocol's classifier to draw")
            elif which is None and name in _FEW_SHOT and len({key[2] for key in selection.numbers()}) < 2:
                raise CogError("there is one number of shots")
            else:
                chart = PROTOCOL[name](selection)
        except CogError as error:
            if which is not None:
                raise
            LOG.debug("%s left out: %s", name, error)
            continue
        marked = {
            (c.model, c.source): c.label.removesuffix(f" {MARK}") for c in chart.curves() if MARK in c.label
        }
        footnote = model_facts.footnote(marked, label=lambda *model, of=marked: of[model], advice=False)
        further = [*map(official.as_sentence, remarks), *filter(None, [footnote])]
        made.append(dataclasses.replace(chart, notes=(*chart.notes, *map(printable, further))))
    return made


def write(
    cells: Iterable[SeedAverage],
    published: Iterable[SeedAverage],
    folder: str | os.PathLike[str],
    **shown: Any,
) -> list[Path]:
    """Draw figures into ``folder`` as ``<stem>.pdf``, ``.png``, ``.svg`` and ``.csv``.

    Args:
        cells: the user's accuracies, see :func:`charts`.
        published: accuracies of the paper.
        folder: output folder, created unless it exists.
        **shown: other arguments of :func:`charts`.

    Returns:
        The files. The same cells give the same bytes (with the same version of matplotlib).

    Raises:
        CogError: see :func:`charts`. Nothing is written then.
    """
    pages = {chart.stem: functools.partial(_page, chart) for chart in charts(cells, published, **shown)}
    return saving.save_all(folder, pages)


def _page(chart: Chart) -> tuple[Figure, dict[str, str]]:
    return drawing.draw(chart), {"": chart.csv()}
