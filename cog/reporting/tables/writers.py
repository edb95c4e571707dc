"""Writers of all formats: tables as text, Markdown or LaTeX, flat records as CSV or JSON."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cog.errors import printable
from cog.runtime.csv_text import csv_text

FORMATS = ("text", "markdown", "csv", "latex", "json")

#: Formats of :func:`draw`; the others are those of :func:`flat`.
DRAWN = ("text", "markdown", "latex")

#: Width of text tables in columns of a terminal, unless a single column of numbers is wider.
WIDTH = 100

_LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$^\dagger$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{character: "\\" + character for character in "&%$#_{}"},
}
_GAP = "  "

# Least length in characters of labels that are cut because no column fits beside them.
_SHORTEST = 16


@dataclass(frozen=True)
class TableEntry:
    """One entry of a table: a formatted number with its deviation, seeds and interval, or a word.

    Attributes:
        number: ``71.0``, ``+0.4``, or any text.
        deviation: number after the plus-minus sign, or "".
        seeds: share of existing seeds such as ``2/5``; "" when none is missing.
        interval: such as ``[0.1, 0.3]``, or "".
    """

    number: str
    deviation: str = ""
    seeds: str = ""
    interval: str = ""

    @property
    def mark(self) -> str:
        """Return the text behind the number: seeds in parentheses, and interval."""
        return " ".join(filter(None, (f"({self.seeds})" if self.seeds else "", self.interval)))


@dataclass(frozen=True)
class Note:
    """Lines below a table: a heading with a list of ``place: remark``, or a sentence (no items)."""

    text: str
    items: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Table:
    """A table for readers; without columns it is a statement.

    Attributes:
        title: one line; may contain the plus-minus sign.
        columns: headers, without that of the labels.
        rows: label and entries (None: no number) of each row.
        notes: notes below the table.
        corner: header of the labels, for the formats that need one.
        words: indices of the columns that hold words instead of numbers, which are aligned at the left.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[TableEntry | None, ...]], ...]
    notes: tuple[Note, ...] = ()
    corner: str = "model"
    words: frozenset[int] = frozenset()


def words_table(
    title: str,
    corner: str,
    columns: Sequence[str],
    rows: Iterable[tuple[str, Sequence[str]]],
    notes: Iterable[Note] = (),
) -> Table:
    """Return a table of words.

    Args:
        title: one line.
        corner: header of the labels.
        columns: headers.
        rows: label and words of each row.
        notes: notes below the table.
    """
    entries = tuple((label, tuple(map(TableEntry, words))) for label, words in rows)
    return Table(title, tuple(columns), entries, tuple(notes), corner, frozenset(range(len(columns))))


def draw(tables: Iterable[Table], fmt: str, *, width: int = WIDTH) -> str:
    """Return the text of tables, one below the other; a sentence of several tables stands below the last of them only.

    Args:
        tables: tables in their order in the text.
        fmt: one of ``DRAWN``.
        width: columns of the terminal, for text: wider tables are split into blocks of columns, one below the other;
            0: no limit.

    Returns:
        The text, ending with one newline.
    """
    lines = {"text": lambda table: _text(table, width), "markdown": _markdown, "latex": _latex}[fmt]
    shown = without_repeated_notes(tables)
    return "\n".join("".join(f"{printable(line)}\n" for line in lines(table)) for table in shown)


def without_repeated_notes(tables: Iterable[Table]) -> list[Table]:
    """Return the tables with each note that is a sentence kept only in the last table that has it."""
    later: set[Note] = set()
    kept = []
    for table in reversed(list(tables)):
        kept.append(
            replace(table, notes=tuple(note for note in table.notes if note.items or note not in later))
        )
        later.update(table.notes)
    return kept[::-1]


def flat(records: Iterable[Mapping[str, Any]], columns: Sequence[str], fmt: str) -> str:
    """Return records as CSV or JSON with all digits.

    Args:
        records: values by column; None for a missing value; lists of numbers are joined by spaces in CSV.
        columns: names in the order of the file.
        fmt: ``"csv"`` or ``"json"``.
    """
    if fmt == "json":
        rows = [json.dumps({column: record.get(column) for column in columns}) for record in records]
        return "[\n" + ",\n".join(f"  {row}" for row in rows) + "\n]\n" if rows else "[]\n"

    def text(value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, bool):
            return "yes" if value else "no"
        return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)

    return csv_text(columns, ([text(record.get(column)) for column in columns] for record in records))


def _cells(
    table: Table, escape: Callable[[str], str], entry: Callable[[int, TableEntry], str], none: str
) -> Iterator[list[str]]:
    """Yield the cells of every line of a table as text, the header first; ``none`` stands for missing entries."""
    yield [escape(table.corner), *map(escape, table.columns)]
    for label, row in table.rows:
        yield [escape(label), *(none if cell is None else entry(i, cell) for i, cell in enumerate(row))]


# --- text


def _text(table: Table, width: int) -> list[str]:
    return [
        *_wrap(table.title, width),
        *(_text_grid(table, width) if table.columns else ()),
        *_text_notes(table, width),
    ]


def _text_grid(table: Table, width: int) -> list[str]:
    lines: list[str] = []
    columns = [_text_column(table, index) for index in range(len(table.columns))]
    room = (
        width - len(_GAP) - max(len(text) for column in columns for text in column)
        if width > 0
        else sys.maxsize
    )
    labels = ["", *(shorten(label, max(_SHORTEST, room)) for label, _ in table.rows)]
    label_width = max(map(len, labels))
    for block in _blocks(columns, label_width, width):
        sizes = [label_width, *(max(map(len, column)) for column in block)]
        lines.append("")
        for cells in zip(labels, *block, strict=True):
            lines.append(_GAP.join(map(str.ljust, cells, sizes)).rstrip())
    return lines


def _text_notes(table: Table, width: int) -> list[str]:
    lines: list[str] = []
    for note in table.notes:
        text = note.text[:1].lower() + note.text[1:] + ":" if note.items else note.text
        lines += ["", *_wrap(text, width)]
        for place, remark in note.items:
            lines += _wrap(f"  {place}: {remark}", width, indent=4)
    return lines


def shorten(text: str, length: int) -> str:
    """Return a text of at most ``length`` characters: a longer one loses its middle."""
    first = (length - 1) * 3 // 5
    return text if len(text) <= length else f"{text[:first]}…{text[len(text) - (length - 1 - first) :]}"


def _text_column(table: Table, index: int) -> list[str]:
    """Return the header and the entries of a column, aligned at their decimal points."""
    entries = [row[index] for _, row in table.rows]
    numbers = ["-" if entry is None else entry.number for entry in entries]
    if index not in table.words:
        # All numbers of a column have as many decimals, so right alignment puts the points below each other.
        size = max(map(len, numbers), default=0)
        numbers = [
            number
            if entry is None
            else number.rjust(size) + (f" ± {entry.deviation}" if entry.deviation else "")
            for number, entry in zip(numbers, entries, strict=True)
        ]
        size = max(map(len, numbers), default=0)
        marks = ("" if entry is None else entry.mark for entry in entries)
        numbers = [
            f"{number.ljust(size)} {mark}".rstrip() for number, mark in zip(numbers, marks, strict=True)
        ]
    return [table.columns[index], *numbers]


def _blocks(columns: list[list[str]], label_width: int, width: int) -> list[list[list[str]]]:
    """Return columns in as few blocks as the width allows, of even sizes, so that the last is not much smaller."""
    for n_blocks in range(1, len(columns) + 1):
        size = -(-len(columns) // n_blocks)
        blocks = [columns[start : start + size] for start in range(0, len(columns), size)]
        widest = max(sum(max(map(len, column)) + len(_GAP) for column in block) for block in blocks)
        if width <= 0 or label_width + widest <= width:
            break
    return blocks


def _wrap(text: str, width: int, *, indent: int = 0) -> list[str]:
    """Return the lines of a sentence that is broken at spaces; leading spaces are kept."""
    if width <= 0 or len(text) <= width:
        return [text]
    return textwrap.wrap(
        text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


# --- Markdown


def _markdown(table: Table) -> list[str]:
    return [
        _markdown_text(table.title),
        *(_markdown_grid(table) if table.columns else ()),
        *_markdown_notes(table),
    ]


def _markdown_grid(table: Table) -> list[str]:
    def entry(_: int, cell: TableEntry) -> str:
        deviation = f" ± {cell.deviation}" if cell.deviation else ""
        return f"{_markdown_text(cell.number)}{deviation} {cell.mark}".rstrip()

    header, *rows = _cells(table, _markdown_text, entry, "-")
    rules = ["---", *("---" if index in table.words else "---:" for index in range(len(table.columns)))]
    return ["", *("| " + " | ".join(cells) + " |" for cells in (header, rules, *rows))]


def _markdown_notes(table: Table) -> list[str]:
    lines: list[str] = []
    for note in table.notes:
        text = _markdown_text(note.text)
        items = [f"- {_markdown_text(place)}: {_markdown_text(remark)}" for place, remark in note.items]
        lines += ["", f"{text}:", "", *items] if items else ["", text]
    return lines


def _markdown_text(text: str) -> str:
    """Return text with the characters escaped that Markdown takes for table bars, HTML, links or images."""
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace("\\", "\\\\")
    text = text.replace("|", "\\|")
    for link in ("(", "[", ":"):  # [text](address), [text][name], [name]: address
        text = text.replace(f"]{link}", f"]\\{link}")
    # GitHub turns bare addresses into links, too.
    return text.replace("://", ":\\/\\/").replace("www.", "www\\.")


# --- LaTeX


def _latex(table: Table) -> list[str]:
    title = _latex_comment(table.title)
    lines = _latex_grid(table, title) if table.columns else [title]
    for note in table.notes:
        text = note.text[:1].lower() + note.text[1:] + ":" if note.items else note.text
        lines += map(_latex_comment, (text, *(f"  {place}: {remark}" for place, remark in note.items)))
    return lines


def _latex_grid(table: Table, title: str) -> list[str]:
    def entry(index: int, cell: TableEntry) -> str:
        if index in table.words:
            return _latex_text(cell.number)
        deviation = rf" \pm {cell.deviation}" if cell.deviation else ""
        return f"${cell.number}{deviation}$ {cell.mark}".rstrip()

    # At the beginning of a row, LaTeX would take [ and * for an argument of the end of the row before.
    joined = (" & ".join(cells) + r" \\" for cells in _cells(table, _latex_text, entry, "--"))
    header, *rows = ("{}" * line.startswith(("[", "*")) + line for line in joined)
    kinds = "".join("l" if index in table.words else "r" for index in range(len(table.columns)))
    lines = [f"{title}; needs \\usepackage{{booktabs}}", rf"\begin{{tabular}}{{l{kinds}}}", r"\toprule"]
    return [*lines, header, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"]


def _latex_text(text: str) -> str:
    return "".join(_LATEX_ESCAPES.get(character, character) for character in printable(text))


def _latex_comment(text: str) -> str:
    return "% " + text.replace("±", "+-")
