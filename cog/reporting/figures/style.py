"""Colors, markers and names of models in figures, and the settings of matplotlib.

The paper gives each group of models a color and each model of a group a marker (captions and legends of its
Figs. 3 and 4); :mod:`cog.results.published` has both as facts. Line styles per group are added here, without which
groups look alike in print without color. Curves of the user's models are thick, with hollow markers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from cog.models.spec import PRETRAINING
from cog.results import published
from cog.results.frame import natural_key, shows_levels

#: The paper's color names, darkened where the pure color is hard to see on white. Table 1 sets the reference on gray,
#: and black is reserved for the user's models.
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
OWN_COLORS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
OWN_MARKERS = ("o", "s", "^", "D", "v", "P", "<", "X", ">", "p", "h", "d")

#: Greatest number of the user's models with a color and a name; of more models, the others are gray.
MANY = len(OWN_COLORS)

GRAY_OWN, GRAY_PUBLISHED = "#8a8a8a", "#cccccc"

#: Mark of models whose pretraining may have seen concepts of the levels, and its explanation.
MARK, MARK_NOTE = " †", "†: the pretraining may have seen concepts of the levels."

#: Heading of the user's models, and the groups of the paper's Fig. 3 (b) to (e) by category of Table 1.
OWN = "Own models"
GROUPS = {name: label for name, label in published.CATEGORY_LABELS.items() if name != "reference"}


@dataclass(frozen=True)
class Look:
    """How a model is drawn: arguments of ``Line2D``, and its name in the legend, "" for a gray crowd."""

    line: dict[str, Any]
    label: str

    @property
    def color(self) -> str:
        """Color of its line."""
        return str(self.line["color"])


def is_published(source: str) -> bool:
    """Return whether a source of results is one of the papers."""
    return source in published.SOURCES.values()


def name_of(model: str, source: str = "") -> str:
    """Return the paper's name of a published model, else the name of the model."""
    return published.MODELS[model].label if is_published(source) and model in published.MODELS else model


def group_of(model: str, source: str) -> str:
    """Return the category of a published model (Table 1 of the paper), :data:`OWN` for others."""
    return published.MODELS[model].category if is_published(source) and model in published.MODELS else OWN


def looks(means: pd.DataFrame, *, gray: bool = False) -> dict[tuple[str, str], Look]:
    """Return how the models of a frame are drawn, by source and model.

    The best :data:`MANY` models of the user have colors and names, in natural order of their names; others are gray.

    Args:
        means: frame of :func:`cog.results.frame.average`.
        gray: whether models of the paper are a gray background, except its reference.
    """
    made: dict[tuple[str, str], Look] = {}
    own = means[~means["source"].map(is_published)]
    best = own.groupby(["source", "model"])["value"].mean().nlargest(MANY).index
    named = sorted(best, key=lambda place: (natural_key(place[1]), place[0]))
    marks = shows_levels(means["dataset"].unique())
    for source, model, pretraining in (
        means[["source", "model", "pretraining"]].drop_duplicates().itertuples(index=False)
    ):
        if is_published(source) and model in published.MODELS:
            look = _published_look(model, gray=gray and model != published.REFERENCE)
        elif (source, model) in named:
            look = own_look(named.index((source, model)), model)
        else:
            look = _gray(GRAY_OWN)
        mark = MARK if marks and look.label and pretraining != PRETRAINING[0] else ""
        made[source, model] = Look(look.line, look.label + mark)
    return made


def own_look(position: int, label: str) -> Look:
    """Return the look of the ``position``-th (from 0) model of the user; the first 84 are all different."""
    color = OWN_COLORS[position % len(OWN_COLORS)]
    line = {
        "color": color,
        "marker": OWN_MARKERS[position % len(OWN_MARKERS)],
        "markersize": 4.4,
        "markerfacecolor": "white",
        "markeredgewidth": 1.1,
        "linewidth": 1.8,
        "zorder": 5.0 - position * 0.01,
    }
    return Look(line, label)


def _published_look(model: str, *, gray: bool) -> Look:
    if gray:
        return _gray(GRAY_PUBLISHED)
    row = published.MODELS[model]
    size = f" ({row.params_m:g}M)" if row.params_m is not None else ""  # as in the paper's legend
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
    return Look(line, row.label + size)


def _gray(color: str) -> Look:
    return Look({"color": color, "linewidth": 0.8, "zorder": 2.5}, "")


def in_legend(looks_: dict[tuple[str, str], Look], drawn: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the named ones of the drawn models, the user's first, then the paper's by group and order."""
    order = [OWN, *published.CATEGORY_LABELS]

    def key(place: tuple[str, str]) -> tuple[Any, ...]:
        known = published.MODELS.get(place[1])
        group = order.index(group_of(place[1], place[0]))
        return group, known.order if known and group else 0, natural_key(place[1])

    return sorted((place for place in set(drawn) if looks_[place].label), key=key)


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
