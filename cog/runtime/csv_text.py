"""The CSV writer of the package: UTF-8 text, line feeds, and no cells that a spreadsheet evaluates as formulas."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cog.runtime import files


def csv_text(header: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a CSV table as text.

    Args:
        header: names of the columns.
        rows: cells of each row, of any type; None is an empty cell.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_harmless(cell) for cell in row] for row in rows)
    return stream.getvalue()


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a CSV table atomically; arguments as of :func:`csv_text`."""
    files.write_text(path, csv_text(header, rows))


def _harmless(cell: Any) -> Any:
    """Put an apostrophe in front of text that a spreadsheet would evaluate as a formula.

    Such text begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return
    (https://owasp.org/www-community/attacks/CSV_Injection). Exceptions are numbers separated by spaces, and a dash
    alone, which marks a missing value.
    """
    if not isinstance(cell, str) or cell == "-" or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        return cell if [float(part) for part in cell.split(" ")] else f"'{cell}"
    except ValueError:
        return f"'{cell}"
