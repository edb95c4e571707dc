"""Color, marker and line style of every curve.

The paper gives each group of models a color and each model of a group a marker (captions and legends of its
Figs. 3 and 4); :mod:`cog.results.published` has both as facts. This module adds line styles per group, without which
groups look alike in print without color. Curves of the user's models are thick, with hollow markers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cog.results import published

#: The paper's color names, darkened where the pure color is hard to see on white.
_SHADES = {"red": "#d62728", "orange": "#e8820c", "blue": "#1a4fa8", "purple": "#8e3fb0", "green": "#2a8a3a"}

# Table 1 sets the reference on gray, and black is reserved for the user's models.
_REFERENCE = "#6e6e6e"

#: Dashes in line widths (on, off, ...), by the paper's color; the two colors of architectures, red and orange, differ.
_DASHES: dict[str, tuple[float, ...] | None] = {
    "red": (8, 1.2),
    "orange": (3.2, 1.2),
    "blue": None,
    "purple": (1.1, 0.9),
    "green": (4, 1, 1, 1),
}

# Okabe and Ito's palette for color-blind readers, without yellow, which is hard to see on white.
_OWN_COLORS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_OWN_MARKERS = ("o", "s", "^", "D", "v", "P", "<", "X", ">", "p", "h", "d")

#: Greatest number of the user's models with a color and a name; of more models, the others are gray.
MANY = len(_OWN_COLORS)

#: Heading of the paper's models in the legend when they are gray.
PUBLISHED = "Published models"

#: Heading of the user's models in legends, and title of their panels.
OWN = "Own models"

#: Prefixes of the names of transformers, and the groups of the paper's legend, three of which are architectures.
_TRANSFORMERS = ("t2tvit_", "deit_")
_LEGEND_ORDER = (
    "ResNet",
    "Transformer",
    "NAS & other",
    "Self-supervision",
    "Web data",
    "Regularization",
)


@dataclass(frozen=True)
class CurveStyle:
    """Style of one curve; lengths in points, dashes in line widths."""

    color: str
    marker: str
    dashes: tuple[float, ...] | None
    line_width: float
    marker_size: float
    hollow: bool
    zorder: float


# Factors of sizes in points, because markers of the same size look differently large.
_MARKER_SCALE = {"*": 1.35, "P": 1.1, "X": 1.1, "D": 0.82, "s": 0.9, "d": 1.05}


def published_style(model: str) -> CurveStyle:
    """Return the style of a model of the paper; KeyError for others."""
    row = published.MODELS[model]
    reference = row.category == "reference"
    return CurveStyle(
        color=_REFERENCE if reference else _SHADES.get(row.color, row.color),
        marker=row.marker,
        dashes=None if reference else _DASHES.get(row.color),
        line_width=1.3 if reference else 0.9,
        marker_size=4.2 * _MARKER_SCALE.get(row.marker, 1.0),
        hollow=False,
        zorder=3.5 if reference else 3.0,
    )


def own_style(position: int) -> CurveStyle:
    """Return the style of the ``position``-th (from 0) of the user's models; the first 84 styles are all different."""
    marker = _OWN_MARKERS[position % len(_OWN_MARKERS)]
    return CurveStyle(
        color=_OWN_COLORS[position % len(_OWN_COLORS)],
        marker=marker,
        dashes=None,
        line_width=1.9,
        marker_size=4.8 * _MARKER_SCALE.get(marker, 1.0),
        hollow=True,
        zorder=5.0 - position * 0.01,
    )


#: Styles of the user's models without a name, and of the paper's models as a background.
GRAY_OWN = CurveStyle("#8a8a8a", "", None, 0.8, 0.0, hollow=False, zorder=2.6)
GRAY_PUBLISHED = CurveStyle("#cccccc", "", None, 0.8, 0.0, hollow=False, zorder=2.5)


def legend_group(model: str) -> str:
    """Return the group of a model of the paper in the paper's legend; KeyError for others."""
    category = published.MODELS[model].category
    if category != "architecture":
        return published.CATEGORY_LABELS[category]
    if model.startswith(_TRANSFORMERS):
        return "Transformer"
    return "ResNet" if "resnet" in model else "NAS & other"


def legend_key(group: str) -> tuple[int, str]:
    """Return the sort key of a group in the legend: the paper's groups in their order, then others by name."""
    order = _LEGEND_ORDER.index(group) if group in _LEGEND_ORDER else len(_LEGEND_ORDER)
    return order, group


def legend_label(model: str) -> str:
    """Return the paper's name of a model, with the number of parameters of architectures, as in the paper's legend."""
    row = published.MODELS[model]
    with_size = row.params_m is not None and row.category in ("architecture", "reference")
    return f"{row.label} ({row.params_m:g}M)" if with_size else row.label


#: Settings of matplotlib on top of its own defaults, so that a user's matplotlibrc changes nothing.
RC: dict[str, Any] = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so that it is the same on all machines
    "font.size": 7.0,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#333333",
    "axes.unicode_minus": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.2,
    "ytick.major.size": 2.2,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "xtick.major.pad": 2.0,
    "ytick.major.pad": 2.0,
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "pdf.fonttype": 42,  # TrueType: text stays text, and publishers refuse type 3
    "ps.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "imagenet-cog",  # else ids are random
    "text.parse_math": False,  # names may hold dollar signs
    "text.usetex": False,
    "axes.facecolor": "none",
    "path.simplify": False,  # every point stays
}
