"""A figure as one ``<svg>`` element that can stand in an HTML page beside others.

Matplotlib writes SVG as a document of its own: with a style sheet that would apply to the whole page, ids that
repeat in every figure, fonts by name and sizes in points. Here these become attributes, prefixed ids, the
generic sans-serif and a view box.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from cog.errors import CogError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SVG = "http://www.w3.org/2000/svg"
_XLINK_HREF = "{http://www.w3.org/1999/xlink}href"

_PIXELS_PER_POINT = 96 / 72 * 1.35

_NUMBER = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")
_FONT_FAMILY = re.compile(r"('[^']*'|[\w-]+)(, *('[^']*'|[\w-]+))*$")
_PATH_SPACE = re.compile(r" ?([MLCQzZ]) ?")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


def from_figure(figure: Figure, *, prefix: str, description: str, tooltips: Mapping[str, str]) -> str:
    """Return ``figure`` as an ``<svg>`` element; call inside :func:`cog.reporting.figures.saving.drawing`.

    Args:
        figure: any figure of this package.
        prefix: start of every id in the element.
        description: what screen readers say.
        tooltips: ``gid`` of an artist -> text of its tooltip.

    Raises:
        CogError: when ``prefix`` cannot start an id.
    """
    if not _PREFIX.fullmatch(prefix):
        raise CogError(f"{prefix!r} cannot start an id: expected a letter, then letters, digits and _.- only")
    stream = io.BytesIO()
    figure.savefig(
        stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
    )
    # Written by matplotlib from our own figure a moment ago, so not a hostile document.
    root = ElementTree.fromstring(stream.getvalue())
    _clean(root)
    _tooltips(root, tooltips)
    _rename_ids(root, prefix)
    _compact(root)
    width = float(root.attrib["viewBox"].split()[2])
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {
        "role": "img",
        "aria-label": description,
        "preserveAspectRatio": "xMidYMid meet",
        # On paper the text has 6 to 7 points; screens are read from further away.
        "style": f"width:100%;max-width:{width * _PIXELS_PER_POINT:.0f}px;height:auto;"
        "stroke-linejoin:round;stroke-linecap:butt",
    }
    ElementTree.register_namespace("", _SVG)
    text = ElementTree.tostring(root, encoding="unicode")
    return re.sub(r"\s*\n\s*", " ", text).replace("> <", "><").strip()


def _clean(root: ElementTree.Element) -> None:
    """Drop metadata and the style sheet, shorten numbers, name the generic font."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        if _XLINK_HREF in element.attrib:
            element.attrib["href"] = element.attrib.pop(_XLINK_HREF)
        for name, value in element.attrib.items():
            if name == "style":
                value = ";".join(_declaration(part) for part in value.split(";") if part.strip())
            if name == "d":
                value = _PATH_SPACE.sub(r"\1", " ".join(value.split()))
            if name != "id":
                value = _NUMBER.sub(lambda match: _short(float(match[0])), value)
            element.attrib[name] = value


def _declaration(text: str) -> str:
    name, _, value = (part.strip() for part in text.partition(":"))
    if name == "font":
        value = _FONT_FAMILY.sub("sans-serif", value)
    if name == "font-family":
        value = "sans-serif"
    return f"{name}:{value}"


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if abs(value) >= 0.05 else "0"


def _compact(root: ElementTree.Element) -> None:
    """Drop groups that say nothing and styles that all children of a group repeat: half of the bytes."""
    for child in list(root):
        _compact(child)
    group, definitions = f"{{{_SVG}}}g", f"{{{_SVG}}}defs"
    children: list[ElementTree.Element] = []
    for child in root:
        if child.attrib.get("transform", "").startswith("rotate(-0 "):
            del child.attrib["transform"]
        if child.tag == group and not child.attrib and child.find(f"{{{_SVG}}}title") is None:
            children += list(child)
        elif len(child) or child.tag not in (group, definitions):
            children.append(child)
    root[:] = _grouped(children)
    drawn = [child for child in root if child.tag not in (f"{{{_SVG}}}title", definitions)]
    styles = {child.attrib.get("style") for child in drawn}
    if root.tag == group and len(drawn) > 1 and len(styles) == 1 and "style" not in root.attrib:
        style = styles.pop()
        if style is not None:
            root.attrib["style"] = style
            for child in drawn:
                del child.attrib["style"]


def _grouped(children: Iterable[ElementTree.Element]) -> list[ElementTree.Element]:
    """Put points that follow each other in one style into a group: it says the style once."""
    result: list[ElementTree.Element] = []
    for (tag, style), members in itertools.groupby(
        children, key=lambda one: (one.tag, one.attrib.get("style"))
    ):
        run = list(members)
        if tag == f"{{{_SVG}}}use" and style is not None and len(run) > 2:
            for child in run:
                del child.attrib["style"]
            group = ElementTree.Element(f"{{{_SVG}}}g", {"style": style})
            group.extend(run)
            run = [group]
        result += run
    return result


def _tooltips(root: ElementTree.Element, tooltips: Mapping[str, str]) -> None:
    for element in root.iter(f"{{{_SVG}}}g"):
        text = tooltips.get(element.attrib.get("id", ""))
        if text is not None:
            title = ElementTree.Element(f"{{{_SVG}}}title")
            title.text = text
            element.insert(0, title)


def _rename_ids(root: ElementTree.Element, prefix: str) -> None:
    """Keep the ids that something refers to, numbered behind the prefix."""
    used: set[str] = set()
    for element in root.iter():
        for name, value in element.attrib.items():
            used |= {value[1:]} if name == "href" else set(_REFERENCE.findall(value))
    renamed: dict[str, str] = {}
    for element in root.iter():
        old = element.attrib.pop("id", None)
        if old in used and old is not None:
            element.attrib["id"] = renamed.setdefault(old, f"{prefix}-{len(renamed)}")
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "href":
                element.attrib[name] = "#" + renamed[value[1:]]
            elif "url(#" in value:
                element.attrib[name] = _REFERENCE.sub(lambda match: f"url(#{renamed[match[1]]})", value)
