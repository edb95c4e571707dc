"""Text to HTML: all that comes from folders or files passes through :func:`esc`."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from cog.reporting.tables.writers import printable
from cog.results.cells import SeedAverage

# About what fits into a third of a phone.
_LONG_NAME = 18

_ISO_UTC = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d\+00:00")


def esc(text: object) -> str:
    """Return ``text`` for HTML content and quoted attributes, in one line, without control characters."""
    return html.escape(printable(str(text)), quote=True)


def prose(text: str) -> str:
    """Return a sentence as HTML whose numbers stay on one line with what belongs to them."""
    found = esc(text)
    for parts in (" %", " = ", " ± "):
        found = found.replace(parts, parts.replace(" ", "&nbsp;"))
    found = re.sub(r"(\d) (points)", r"\1&nbsp;\2", found)
    return found.replace("IN-1K", "IN&#8209;1K")


def date(text: str) -> str:
    """Return ``2026-11-18 10:00 UTC`` for the ISO 8601 form with seconds and offset 0; others as they are."""
    match = _ISO_UTC.fullmatch(text)
    return f"{match[1]} {match[2]} UTC" if match else text


def score(found: SeedAverage | None, *, decimals: int = 1) -> str:
    """Return ``75.8 ± 0.1``, its parts marked for style and script; short, as pages hold thousands."""
    if found is None:
        return ""
    text = f"<b>{found.value:.{decimals}f}</b>"
    return text if found.std is None else f"{text} <i>± {found.std:.{decimals}f}</i>"


def signed(value: float) -> str:
    """Return a difference with a true minus sign: ``+1.2``, ``−0.3``, ``0.0``."""
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def duration(seconds: float) -> str:
    """Return ``12.3 s``, ``4 min 5 s`` or ``3 h 20 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def hidden(text: str) -> str:
    """Return text for screen readers only."""
    return f'<span class="unseen">{esc(text)}</span>'


def scroll(content: str, label: str) -> str:
    """Wrap what may be wider than a phone: it scrolls by itself, also from the keyboard."""
    return f'<div class="scroll" role="group" tabindex="0" aria-label="{esc(label)}">{content}</div>'


def listing(items: Iterable[str], *, cls: str = "") -> str:
    """Return a list; the items are HTML."""
    attribute = f' class="{cls}"' if cls else ""
    return f"<ul{attribute}>{''.join(f'<li>{item}</li>' for item in items)}</ul>"


def breakable(name: str) -> str:
    """Return a name as HTML that may wrap after underscores."""
    return esc(name).replace("_", "_<wbr>")


def _row_name(name: str) -> str:
    """Let long names wrap, so that the first column, which stays in view, leaves room for the others."""
    return f'<span class="name">{name}</span>' if len(re.sub("<[^>]*>", "", name)) > _LONG_NAME else name


def table(
    *,
    caption: str,
    head: Sequence[str],
    rows: Iterable[tuple[str, Sequence[str]]],
    cls: str = "",
    hide_caption: bool = False,
) -> str:
    """Return a table whose first column names the rows; all texts are HTML.

    Args:
        caption: what it shows.
        head: column titles.
        rows: name and ``<td>`` contents of each.
        cls: class of the table.
        hide_caption: leave the caption to screen readers.
    """
    columns = "".join(f'<th scope="col">{title}</th>' for title in head)
    body = "".join(
        f'<tr><th scope="row">{_row_name(name)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for name, cells in rows
    )
    unseen = ' class="unseen"' if hide_caption else ""
    return (
        f'<table class="{cls}"><caption{unseen}><span>{caption}</span></caption><thead><tr>{columns}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )
