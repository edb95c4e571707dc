"""The figures of the page: figures of the paper with own models in them, and figures of other experiments."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from markupsafe import Markup

from cog.errors import CogError
from cog.reporting.html.facts import Facts
from cog.results.model_facts import MARK

#: The figure of the first screen.
ANSWER = "levels"

# Figures of the protocol on the page. The others repeat these for every model or data set, and are large.
_WHICH = ("fig3", "fig4", "drop")

# First figures of other experiments on the page; those with ``on_page`` follow, and the others repeat these.
_EXPERIMENTS = ("v1_fig5", "v1_fig9", "v1_fig10", "v1_fig8", "mlp", "fig6", "knn", "distance")

# With more own models than this, all figures are crowded and large, and the page has only the first ones.
_MANY_MODELS = 8


class Picture(NamedTuple):
    """One figure; its ids are unique on the page, and a wide one has panels side by side, which must not shrink."""

    name: str
    caption: str
    svg: Markup
    wide: bool


def draw(facts: Facts) -> tuple[list[Picture], str]:
    """Draw the figures that have results, without published results if these cannot be compared with the others.

    Returns:
        The figures, that of the answer first; and a sentence on the reason if there are none, else "".
    """
    from cog.reporting import figures
    from cog.reporting.figures.declarations import FIGURES

    results = facts.results
    cells, measures = results.cells, results.all_measures
    many = len({(cell.source, cell.model) for cell in cells}) > _MANY_MODELS
    wanted = [ANSWER, *(_WHICH[:1] if many else _WHICH)]
    if results.has_experiments and not many:
        wanted += [*_EXPERIMENTS, *(name for name, spec in FIGURES.items() if spec.on_page)]
    reasons: dict[str, CogError] = {}
    charts = figures.charts(
        cells, facts.published if facts.compared or not cells else (), measures=measures, analyses=results.analyses,
        which=wanted, singles=False, model_facts=results.model_facts, on_missing=reasons.setdefault,
    )  # fmt: skip
    pictures = []
    for chart in charts:
        # The page explains the mark once, outside of the figures.
        chart = dataclasses.replace(chart, notes=tuple(n for n in chart.notes if not n.startswith(MARK)))
        svg = figures.svg(chart, prefix=f"figure-{chart.stem}")
        pictures.append(Picture(chart.figure, chart.caption, Markup(svg), wide=not chart.single))
    reasons.pop(ANSWER, None)
    reason = next((f"There are no figures: {error}." for error in reasons.values()), "")
    return pictures, "" if pictures else reason
