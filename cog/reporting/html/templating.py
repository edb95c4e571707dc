"""Templates of the page: all inserted values are escaped, on one line, and without control characters."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable
from typing import Any

import jinja2
from markupsafe import Markup, escape

from cog.errors import some
from cog.reporting.tables.writers import Note, printable
from cog.results import uncertainty
from cog.results.labels import counted, dataset_label, shots_label, shots_title, signed
from cog.results.scores import dataset_key

# Number of letters that fit into about a third of the width of a phone.
_LONG_NAME = 18

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?")

_ISO_UTC = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d\+00:00")


@functools.cache
def environment() -> jinja2.Environment:
    """Return the environment of the page's templates; an undefined name is an error."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("cog.reporting.html"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
    )
    made.filters |= {
        "breakable": breakable,
        "column_of_shots": lambda n_shot: shots_title(n_shot) if n_shot else "all",
        "counted": counted,
        "dataset_label": dataset_label,
        "date": date,
        "fixed": lambda value, digits=1: f"{value:.{digits}f}",
        "groupby_in_order": _groups,
        "interval": lambda average: uncertainty.accuracy(average.concepts),
        "is_long": lambda text: len(text.striptags() if isinstance(text, Markup) else text) > _LONG_NAME,
        "minus": lambda text: text.replace("-", "−"),
        "note_text": _note_text,
        "prose": prose,
        "shots_label": shots_label,
        "shots_title": shots_title,
        "signed": signed,
        "some": some,
        "sort_datasets": lambda names: sorted(set(names), key=dataset_key),
        "sort_value": lambda text: f"{float(text):g}" if _NUMBER.fullmatch(text) else "",
        "sort_shots": lambda shots: sorted(shots, key=lambda n: (n == 0, n)),
        "thousands": lambda value: f"{value:,}",
    }
    return made


def _finalize(value: Any) -> Any:
    if type(value) is str:  # the most frequent type, therefore first
        return printable(value)
    return value if isinstance(value, (Markup, int, float)) else printable(str(value))


def prose(text: str) -> Markup:
    """Return a sentence without line breaks between numbers and their units and signs, nor in ``IN-1K``."""
    escaped = str(escape(printable(text)))
    for parts in (" %", " = ", " ± "):
        escaped = escaped.replace(parts, parts.replace(" ", "&nbsp;"))
    escaped = re.sub(r"(\d) (points)", r"\1&nbsp;\2", escaped)
    return Markup(escaped.replace("IN-1K", "IN&#8209;1K"))


def breakable(name: str) -> Markup:
    """Return a name that may wrap after underscores."""
    return name if isinstance(name, Markup) else Markup(str(escape(printable(name))).replace("_", "_<wbr>"))


def date(text: str) -> str:
    """Return ``2026-11-18 10:00 UTC`` for the ISO 8601 form with seconds and offset 0; other texts as they are."""
    match = _ISO_UTC.fullmatch(text)
    return f"{match[1]} {match[2]} UTC" if match else text


def duration(seconds: float) -> str:
    """Return a duration as ``12.3 s``, ``4 min 5 s`` or ``3 h 20 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def _groups(items: Iterable[Any], attribute: str) -> list[tuple[Any, list[Any]]]:
    """Return consecutive items in groups by an attribute, in their order; the filter of jinja would sort them."""
    return [
        (key, list(group))
        for key, group in itertools.groupby(items, key=lambda item: getattr(item, attribute))
    ]


def _note_text(note: Note) -> Markup:
    items = "; ".join(f"{place}: {remark}" for place, remark in note.items)
    return prose(note.text) + (f": {printable(items)}" if items else "")
