"""Conversion of a figure to one ``<svg>`` element that can stand in an HTML page beside others.

Matplotlib writes SVG as a separate document: with a style sheet that would apply to the whole page, ids that repeat in
every figure, a font by name and sizes in points. This module replaces them by attributes, prefixed ids, the generic
sans-serif and a view box, which takes half of the bytes.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

from cog.errors import CogError
from cog.reporting.figures.style import FONT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The text has 6 to 7 points on paper; on screens, which are read from further away, it is enlarged.
_PIXELS_PER_POINT = 96 / 72 * 1.35

_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_REFERENCE = re.compile(r'((?:href="|url\()#)([^")]+)')
_ID = re.compile(r' id="([^"]*)"')
_STYLE = re.compile(r' style="[^"]*"')


def from_figure(figure: Figure, *, prefix: str, description: str, tooltips: Mapping[str, str]) -> str:
    """Return ``figure`` as an ``<svg>`` element; call inside :func:`cog.reporting.figures.saving.drawing`.

    Args:
        figure: any figure of this package.
        prefix: start of every id in the element.
        description: text for screen readers.
        tooltips: texts of tooltips by the ``gid`` of their artist.

    Raises:
        CogError: when ``prefix`` cannot start an id.
    """
    if not _PREFIX.fullmatch(prefix):
        raise CogError(f"{prefix!r} cannot start an id: expected a letter, then letters, digits and _.- only")
    stream = io.BytesIO()
    figure.savefig(stream, format="svg")
    text = stream.getvalue().decode()
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text[text.index("<svg") :], flags=re.S)
    text = re.sub(r"\s*\n\s*", " ", text).replace("> <", "><").replace("<defs></defs>", "")
    used = dict.fromkeys(name for _, name in _REFERENCE.findall(text))
    ids = {name: f"{prefix}-{number}" for number, name in enumerate(used)}
    parts: list[str] = []
    groups: list[bool] = []  # whether each open group is kept: groups without attributes have no effect
    # Names of models are text between tags; matplotlib has escaped their markup characters.
    for tag, content in re.findall(r"(<[^>]*>)([^<]*)", text):
        name = _ID.search(tag)
        title = tooltips.get(name[1]) if name else None
        tag = _shorten(tag, ids)
        if tag == "</g>":
            tag = tag if groups.pop() else ""
        elif tag.startswith("<g") and not tag.endswith("/>"):
            groups.append(tag != "<g>" or title is not None)
            tag = tag if groups[-1] else ""
        parts += [tag, "" if title is None else f"<title>{escape(title)}</title>", content]
    text = re.sub(r"(?:<use [^>]*/>){3,}", _group_by_style, "".join(parts[3:]))
    width, height = figure.get_size_inches() * 72
    look = f"width:100%;max-width:{width * _PIXELS_PER_POINT:.0f}px;height:auto;"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(description)}" preserveAspectRatio="xMidYMid meet" '
        f'style="{look}stroke-linejoin:round;stroke-linecap:butt">{text.strip()}'
    )


def _shorten(tag: str, ids: Mapping[str, str]) -> str:
    """Return a tag with short numbers and styles, and without its id unless another tag refers to it."""
    tag = re.sub(r"-?\d+\.\d{3,}(?:e-?\d+)?", lambda match: _short(float(match[0])), tag)
    tag = _STYLE.sub(lambda match: match[0].replace(": ", ":").replace("; ", ";"), tag)
    tag = tag.replace(f"'{FONT}'", "sans-serif").replace("xlink:href", "href")
    tag = re.sub(r' transform="rotate\(-0 [^"]*"', "", re.sub(r" ?\b([MLCQZz]) ?", r"\1", tag))
    tag = _ID.sub(lambda match: f' id="{ids[match[1]]}"' if match[1] in ids else "", tag)
    return _REFERENCE.sub(lambda match: match[1] + ids[match[2]], tag)


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if abs(value) >= 0.05 else "0"


def _group_by_style(match: re.Match[str]) -> str:
    """Return consecutive points grouped by their style, which the groups have instead of the points."""
    uses = re.findall(r"<use [^>]*/>", match[0])
    text = ""
    for style, members in itertools.groupby(uses, key=lambda use: "".join(_STYLE.findall(use))):
        text += f"<g{style}>{''.join(use.replace(style, '') for use in members)}</g>"
    return text
