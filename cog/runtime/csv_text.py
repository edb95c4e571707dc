"""The CSV writer of the package: UTF-8 text and line feeds."""

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
    writer.writerows(rows)
    return stream.getvalue()


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a CSV table atomically; arguments as of :func:`csv_text`."""
    files.write_text(path, csv_text(header, rows))
