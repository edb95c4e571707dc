"""The figures of the paper with the own models in them, as pieces of the page."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from markupsafe import Markup

from cog.errors import CogError
from cog.reporting.html.facts import Facts
from cog.results.model_facts import MARK

#: The figure of the first screen.
ANSWER = "levels"

# The others repeat these for every model or data set, and are large; --figures writes all.
_WHICH = ("fig3", "fig4", "drop")

# Of other experiments, before any more that are declared; those left out repeat these.
_EXPERIMENTS = ("v1_fig5", "v1_fig9", "v1_fig10", "v1_fig8", "mlp", "fig6", "knn", "distance")

# With more own models than this every figure is crowded and large: the first must do.
_MANY_MODELS = 8


@dataclass(frozen=True)
class Picture:
    """One figure.

    Attributes:
        caption: what it shows.
        svg: an ``<svg>`` element whose ids are its own.
        wide: whether it has panels side by side, which a phone must not shrink.
        name: of the figure.
    """

    caption: str
    svg: Markup
    wide: bool
    name: str = ""


def draw(facts: Facts) -> tuple[list[Picture], str]:
    """Draw the figures for which there are results; published ones are left out where they may not be compared.

    Returns:
        The figures, first that of the answer; and a hint for the reader: why there are none, or "".
    """
    from cog.reporting import figures
    from cog.reporting.figures.declarations import FIGURES

    results = facts.results
    cells, measures = results.cells, results.all_measures
    many = len({(cell.source, cell.model) for cell in cells}) > _MANY_MODELS
    wanted = [ANSWER, *(_WHICH[:1] if many else _WHICH)]
    if results.has_experiments and not many:
        wanted += [*_EXPERIMENTS, *(name for name, one in FIGURES.items() if one.on_page)]
    reasons: dict[str, CogError] = {}
    charts = figures.charts(
        cells, facts.published if facts.compared or not cells else (), measures=measures, analyses=results.analyses,
        which=wanted, singles=False, model_facts=results.model_facts, on_missing=reasons.setdefault,
    )  # fmt: skip
    pictures = []
    for chart in charts:
        # The page says once what the mark means.
        chart = dataclasses.replace(chart, notes=tuple(n for n in chart.notes if not n.startswith(MARK)))
        svg = figures.svg(chart, prefix=f"figure-{chart.stem}")
        pictures.append(Picture(chart.caption, Markup(svg), wide=not chart.single, name=chart.figure))
    reasons.pop(ANSWER, None)
    reason = next((f"There are no figures: {error}." for error in reasons.values()), "")
    return pictures, "" if pictures else reason
