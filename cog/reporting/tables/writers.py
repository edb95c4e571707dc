"""Tables drawn as text, Markdown or LaTeX, and flat records as CSV or JSON; what is in them is none of its business."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cog.runtime.csv_text import csv_text

FORMATS = ("text", "markdown", "csv", "latex", "json")

#: Formats that :func:`draw` knows; the others are flat.
DRAWN = ("text", "markdown", "latex")

#: Columns of a terminal that text tables fit into, if one column of numbers does.
WIDTH = 100

_LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    **{character: "\\" + character for character in "&%$#_{}"},
}
_GAP = "  "


@dataclass(frozen=True)
class TableEntry:
    """One place in a table: a formatted number with what belongs to it, or a word.

    Attributes:
        number: ``71.0``, ``+0.4``, or any text.
        deviation: what follows the plus-minus sign, or "".
        mark: a remark on the number, such as ``(2/5)``, or "".
    """

    number: str
    deviation: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Note:
    """Lines below a table: a heading with a list of ``where: what``, or a sentence (no items)."""

    text: str
    items: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Table:
    """What is drawn.

    Attributes:
        title: one line; may contain the plus-minus sign.
        columns: headers, without that of the labels.
        rows: label and entries (None: nothing known) of each row.
        notes: drawn below.
        corner: header of the labels, where the format needs one.
        words: whether entries are words, which are aligned at the left, and not numbers.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[TableEntry | None, ...]], ...]
    notes: tuple[Note, ...] = ()
    corner: str = "model"
    words: frozenset[int] = frozenset()  # columns of words


def printable(text: str) -> str:
    """Return ``text`` on one line and encodable: odd characters of folder names become escapes."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text
    )


def draw(tables: Iterable[Table], fmt: str, *, width: int = WIDTH) -> str:
    """Draw tables one below the other.

    Args:
        tables: what to draw.
        fmt: one of ``DRAWN``.
        width: columns of the terminal, for text: wider tables are drawn in blocks of columns, one below the other;
            0: any width.

    Returns:
        The text, ending with one newline.
    """
    drawing: dict[str, Callable[[Table], str]] = {
        "text": lambda table: _text(table, width),
        "markdown": _markdown,
        "latex": _latex,
    }
    return "\n".join(drawing[fmt](table) if table.columns else _title(table, fmt, width) for table in tables)


def flat(
    records: Iterable[Mapping[str, Any]], columns: Sequence[str], fmt: str, *, decimals: int | None
) -> str:
    """Write records as CSV, or as JSON with all digits.

    Args:
        records: values by column; None where there is none; lists of numbers are joined by spaces in CSV.
        columns: in this order.
        fmt: ``"csv"`` or ``"json"``.
        decimals: digits after the point of floats in CSV; None: all.
    """
    if fmt == "json":
        rows = [{column: record.get(column) for column in columns} for record in records]
        body = ",\n".join("  " + json.dumps(row, ensure_ascii=True) for row in rows)
        return f"[\n{body}\n]\n" if rows else "[]\n"
    rows_of_text = ((_csv_value(record.get(column), decimals) for column in columns) for record in records)
    return csv_text(columns, rows_of_text)


def _csv_value(value: Any, decimals: int | None) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return repr(value) if decimals is None else f"{value:.{decimals}f}"
    if isinstance(value, tuple | list):
        return " ".join(map(str, value))
    return printable(str(value))


def _title(table: Table, fmt: str, width: int) -> str:
    """Draw a table without columns, which is a statement."""
    lines = _wrap(table.title, width) if fmt == "text" else [_latex_comment(table.title)]
    return "\n".join([_markdown_text(table.title)] if fmt == "markdown" else lines) + "\n"


def _text(table: Table, width: int) -> str:
    labels = ["", *(printable(label) for label, _ in table.rows)]
    label_width = max(map(len, labels))
    columns = [_text_column(table, index) for index in range(len(table.columns))]
    lines = [*_wrap(table.title, width), ""]
    for number, block in enumerate(_blocks(columns, label_width, width)):
        if number:
            lines.append("")
        widths = [max(map(len, column)) for column in block]
        for row, label in enumerate(labels):
            cells = [column[row].ljust(size) for column, size in zip(block, widths, strict=True)]
            lines.append(_GAP.join([label.ljust(label_width), *cells]).rstrip())
    for note in table.notes:
        text = note.text + (":" if note.items else "")
        lines += ["", *_wrap(text[:1].lower() + text[1:] if note.items else text, width)]
        for where, what in note.items:
            lines += _wrap(f"  {where}: {what}", width, indent=4)
    return "\n".join(lines) + "\n"


def _text_column(table: Table, index: int) -> list[str]:
    """Header and entries of one column, decimal points below each other."""
    header = printable(table.columns[index])
    entries = [row[index] for _, row in table.rows]
    numbers = ["-" if entry is None else printable(entry.number) for entry in entries]
    deviations = [
        "" if entry is None or not entry.deviation else f" ± {entry.deviation}" for entry in entries
    ]
    marks = ["" if entry is None else entry.mark for entry in entries]
    if index in table.words:
        return [header, *numbers]
    if not any(deviations):
        size = max(map(len, numbers), default=0)
        numbers = [
            number if entry is None else number.rjust(size)
            for number, entry in zip(numbers, entries, strict=True)
        ]
    else:
        # Of equal decimals, so that aligning the right ends aligns the points.
        size = max(map(len, numbers))
        numbers = [
            (number.rjust(size) if entry is not None else number) + deviation
            for number, deviation, entry in zip(numbers, deviations, entries, strict=True)
        ]
    size = max(map(len, numbers), default=0)
    return [
        header,
        *(f"{number.ljust(size)} {mark}".rstrip() for number, mark in zip(numbers, marks, strict=True)),
    ]


def _blocks(columns: list[list[str]], label_width: int, width: int) -> list[list[list[str]]]:
    """Distribute columns over as few blocks as fit, evenly, so that the last one is not a lonely column."""
    sizes = [max(map(len, column)) + len(_GAP) for column in columns]
    if not columns:
        return [[]]
    for n_blocks in range(1, len(columns) + 1):
        per_block = -(-len(columns) // n_blocks)
        blocks = [columns[start : start + per_block] for start in range(0, len(columns), per_block)]
        widest = max(sum(sizes[start : start + per_block]) for start in range(0, len(columns), per_block))
        if width <= 0 or label_width + widest <= width:
            break
    return blocks


def _wrap(text: str, width: int, *, indent: int = 0) -> list[str]:
    """Break a sentence at spaces; leading spaces are kept."""
    import textwrap

    if width <= 0 or len(text) <= width:
        return [text]
    return textwrap.wrap(
        text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def _markdown_text(text: str) -> str:
    """Return text that Markdown shows as it is: without a table's bars, HTML, links and images."""
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace("\\", "\\\\")
    text = text.replace("|", "\\|")
    for link in ("(", "[", ":"):  # [text](address), [text][name], [name]: address
        text = text.replace(f"]{link}", f"]\\{link}")
    # GitHub makes links of bare addresses as well.
    return text.replace("://", ":\\/\\/").replace("www.", "www\\.")


def _markdown(table: Table) -> str:
    escape = _markdown_text

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    def entry(value: TableEntry | None) -> str:
        if value is None:
            return "-"
        number = escape(value.number) + (f" ± {value.deviation}" if value.deviation else "")
        return f"{number} {value.mark}".rstrip()

    rules = ["---" if index in table.words else "---:" for index in range(len(table.columns))]
    lines = [
        escape(table.title),
        "",
        line([table.corner, *map(escape, table.columns)]),
        line(["---", *rules]),
    ]
    lines += [line([escape(label), *map(entry, row)]) for label, row in table.rows]
    for note in table.notes:
        if note.items:
            lines += [
                "",
                f"{escape(note.text)}:",
                "",
                *(f"- {escape(where)}: {escape(what)}" for where, what in note.items),
            ]
        else:
            lines += ["", escape(note.text)]
    return "\n".join(lines) + "\n"


def _latex_comment(text: str) -> str:
    return "% " + printable(text).replace("±", "+-")


def _latex(table: Table) -> str:
    def escape(text: str) -> str:
        return "".join(_LATEX_ESCAPES.get(character, character) for character in printable(text))

    def entry(index: int, value: TableEntry | None) -> str:
        if value is None:
            return "--"
        if index in table.words:
            return escape(value.number)
        number = value.number + (rf" \pm {value.deviation}" if value.deviation else "")
        return f"${number}$ {value.mark}".rstrip()

    kinds = "".join("l" if index in table.words else "r" for index in range(len(table.columns)))
    lines = [
        f"{_latex_comment(table.title)}; needs \\usepackage{{booktabs}}",
        rf"\begin{{tabular}}{{l{kinds}}}",
        r"\toprule",
        " & ".join([escape(table.corner), *map(escape, table.columns)]) + r" \\",
        r"\midrule",
    ]
    for label, row in table.rows:
        lines.append(
            " & ".join([escape(label), *(entry(index, value) for index, value in enumerate(row))]) + r" \\"
        )
    lines += [r"\bottomrule", r"\end{tabular}"]
    for note in table.notes:
        if note.items:
            lines.append(_latex_comment(note.text[:1].lower() + note.text[1:] + ":"))
            lines += [_latex_comment(f"  {where}: {what}") for where, what in note.items]
        else:
            lines.append(_latex_comment(note.text))
    return "\n".join(lines) + "\n"
