"""Colors, markers and names of models in figures, and the settings of matplotlib.

The paper gives each group of models a color and each model of a group a marker (captions and legends of its
Figs. 3 and 4); :mod:`cog.results.published` has both as facts. Line styles per group are added here, without
which groups look alike in print without color. Curves of the user's models are thick, with hollow markers.
"""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from cog.constants import PRETRAINING
from cog.errors import printable
from cog.results import published
from cog.results.frame import RUNS, is_published, natural_key, shows_levels

#: The paper's color names, darkened where the pure color is hard to see on white; black is for the user's.
_SHADES = {
    "red": "#d62728",
    "orange": "#e8820c",
    "blue": "#1a4fa8",
    "purple": "#8e3fb0",
    "green": "#2a8a3a",
    "black": "#6e6e6e",
}

#: Line styles of matplotlib by the paper's color; the two colors of architectures, red and orange, differ.
_DASHES: dict[str, Any] = {
    "red": (0, (8, 1.2)),
    "orange": (0, (3.2, 1.2)),
    "purple": (0, (1.1, 0.9)),
    "green": (0, (4, 1, 1, 1)),
}

# Okabe and Ito's palette for color-blind readers, without yellow, which is hard to see on white.
_OWN_COLORS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_OWN_MARKERS = ("o", "s", "^", "D", "v", "P", "<", "X", ">", "p", "h", "d")

GRAY_OWN, GRAY_PUBLISHED = "#8a8a8a", "#cccccc"

#: Mark of models whose pretraining may have seen concepts of the levels, and its explanation.
MARK, MARK_NOTE = " †", "†: the pretraining may have seen concepts of the levels."


@dataclass(frozen=True)
class Look:
    """How a model is drawn."""

    line: dict[str, Any]  # arguments of Line2D
    label: str = ""  # name in the legend, "" for a gray crowd
    rank: tuple[Any, ...] = ()  # place in the legend: the user's first, then the paper's by group and order


def looks(means: pd.DataFrame, *, gray: bool = False) -> dict[tuple[str, str], Look]:
    """Return how the models of a frame of means are drawn, by source and model.

    The best seven models of the user have colors and names, in natural order of their names; others are gray.
    With ``gray``, models of the paper are a gray background, except its reference.
    """
    made: dict[tuple[str, str], Look] = {}
    own = means[~is_published(means)]
    best = own.groupby(["source", "model"])["value"].mean().nlargest(len(_OWN_COLORS)).index
    named = sorted(best, key=lambda place: (natural_key(place[1]), place[0]))
    places = means.assign(paper=is_published(means))[["source", "model", "pretraining", "paper"]]
    marks = shows_levels(means["dataset"].unique())
    for source, model, pretraining, paper in places.drop_duplicates().itertuples(index=False):
        mark = MARK if marks and pretraining != PRETRAINING[0] else ""
        origin = f" [{printable(source)}]" if source != RUNS and own["source"].nunique() > 1 else ""
        if paper and gray and model != published.REFERENCE:
            made[source, model] = Look({"color": GRAY_PUBLISHED, "linewidth": 0.8, "zorder": 2.5})
        elif paper:
            made[source, model] = _published_look(model, mark)
        elif (source, model) in named:
            made[source, model] = own_look(named.index((source, model)), model + mark + origin)
        else:
            made[source, model] = Look({"color": GRAY_OWN, "linewidth": 0.8, "zorder": 2.5})
    return made


def own_look(position: int, label: str) -> Look:
    """Return the look of the ``position``-th (from 0) model of the user; the first 84 are all different."""
    line = {
        "color": _OWN_COLORS[position % len(_OWN_COLORS)],
        "marker": _OWN_MARKERS[position % len(_OWN_MARKERS)],
        "markersize": 4.4,
        "markerfacecolor": "white",
        "markeredgewidth": 1.1,
        "linewidth": 1.8,
        "zorder": 5.0 - position * 0.01,
    }
    return Look(line, label, (0, position))


def _published_look(model: str, mark: str) -> Look:
    row = published.MODELS[model]
    size = f" ({row.params_m}M)" if row.params_m else ""  # as in the paper's legend
    line = {
        "color": _SHADES.get(row.color, row.color),
        "marker": row.marker,
        "markersize": 4.2,
        "markeredgecolor": "white",
        "markeredgewidth": 0.3,
        "linestyle": _DASHES.get(row.color, "-"),
        "linewidth": 1.3 if model == published.REFERENCE else 0.9,
        "zorder": 3.0,
    }
    group = list(published.CATEGORY_LABELS).index(row.category)
    return Look(line, row.label + size + mark, (1, group, row.order))


#: Settings of matplotlib on top of its own defaults, so that a user's matplotlibrc changes nothing.
RC: dict[str, Any] = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so that it is the same on all machines
    "font.size": 7.0,
    "axes.labelsize": 7.0,
    "axes.labelpad": 1.5,
    "axes.titlesize": 7.0,
    "axes.titlelocation": "left",
    "axes.titlepad": 3.0,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#333333",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.2,
    "ytick.major.size": 2.2,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "xtick.labelsize": 6.4,
    "ytick.labelsize": 6.4,
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "legend.fontsize": 6.4,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # TrueType: text stays text, and publishers refuse type 3
    "svg.fonttype": "none",
    "svg.hashsalt": "imagenet-cog",  # else ids are random
    "text.parse_math": False,  # names may hold dollar signs
    "text.usetex": False,
}
