"""Templates of the page: all inserted values are escaped, on one line, and without control characters."""

from __future__ import annotations

import functools
import re
from typing import Any

import jinja2
from markupsafe import Markup, escape

from cog.errors import printable
from cog.reporting.tables.writers import Note
from cog.results.labels import counted

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
        "counted": counted,
        "date": date,
        "minus": lambda text: text.replace("-", "−"),
        "note_text": _note_text,
        "sort_value": lambda text: f"{float(text):g}" if _NUMBER.fullmatch(text) else "",
    }
    return made


def _finalize(value: Any) -> Any:
    if type(value) is str:  # the most frequent type, therefore first
        return printable(value)
    return value if isinstance(value, (Markup, int, float)) else printable(str(value))


def breakable(name: str) -> Markup:
    """Return a name that may wrap after underscores."""
    return Markup(str(escape(printable(name))).replace("_", "_<wbr>"))


def date(text: str) -> str:
    """Return ``2026-11-18 10:00 UTC`` for the ISO 8601 form with seconds and offset 0; other texts as they are."""
    match = _ISO_UTC.fullmatch(text)
    return f"{match[1]} {match[2]} UTC" if match else text


def _note_text(note: Note) -> str:
    return note.text + (": " if note.items else "") + "; ".join(f"{at}: {text}" for at, text in note.items)
