"""The one CSV writer: UTF-8 text, line feeds, and no cell that a spreadsheet takes for a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any


def csv_text(header: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a CSV table.

    Args:
        header: names of the columns.
        rows: cells of each row, of any type; None is an empty cell.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_harmless(cell) for cell in row] for row in rows)
    return stream.getvalue()


def _harmless(cell: Any) -> Any:
    """Put an apostrophe in front of text that a spreadsheet would run.

    That is text which begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return, and is neither made of
    numbers nor a dash alone, which says that there is nothing (https://owasp.org/www-community/attacks/CSV_Injection).
    """
    if not isinstance(cell, str) or cell == "-" or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        return cell if [float(part) for part in cell.split(" ")] else f"'{cell}"
    except ValueError:
        return f"'{cell}"
