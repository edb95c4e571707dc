"""Tables of a quantity: models by data sets, or models by numbers of shots."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cog import constants
from cog.errors import CogError
from cog.reporting.tables.layout import (
    Row,
    Shown,
    TableStyle,
    View,
    cell_record,
    format_number,
    seeds_mark,
)
from cog.reporting.tables.quantities import Number, Quantity
from cog.reporting.tables.writers import Note, Table, TableEntry, printable
from cog.results import published
from cog.results.labels import METRIC_LABELS, shots_label
from cog.results.scores import RUNS, SeedAverage, dataset_key

#: ``datasets``: models by data sets, one table for each number of shots (Fig. 3's data); ``shots``: models by numbers
#: of shots, one table for each data set (Tables 5-10); ``table``: ``shots``, then ``datasets`` for all images.
LAYOUTS = ("datasets", "shots", "table")

_TABLE_NUMBERS = {dataset: 5 + index for index, dataset in enumerate(constants.DATASETS)}


def tabulate(
    shown: Shown,
    quantity: Callable[[str], Quantity],
    *,
    metrics: Sequence[str],
    layout: str,
    style: TableStyle,
) -> View:
    """Show a quantity of every cell.

    Args:
        shown: cells, rows and columns.
        quantity: of a metric.
        metrics: ``"top1"``, ``"top5"`` or both.
        layout: one of ``LAYOUTS``; of its tables, those without any number are left out.
        style: how numbers and labels are written.

    Raises:
        CogError: when no cell has a number.
    """
    tables: list[Table] = []
    records: list[dict[str, Any]] = []
    columns: tuple[str, ...] = ()
    by_metric = {metric: quantity(metric) for metric in metrics}
    # One record for each cell: in the order of the first layout, whose tables also decide on the mean rank.
    for number, one in enumerate(("shots", "datasets") if layout == "table" else (layout,)):
        for panel in _panels(shown, one, only_all=layout == "table"):
            for metric in metrics:
                table, rows = _table(shown, by_metric[metric], panel, metric=metric, style=style)
                if rows or layout == "datasets":
                    tables.append(table)
                if number == 0:
                    records += rows
    for metric in metrics:
        columns = by_metric[metric].columns
    if not records:
        raise CogError(
            shown.comparable.refused
            or f"nothing to show: no {' or '.join(METRIC_LABELS[m] for m in metrics)} accuracy among the results read"
        )
    order = {row: index for index, row in enumerate(shown.rows)}
    if layout == "datasets":
        records.sort(
            key=lambda record: (record["n_shot"], order[record["_row"]], dataset_key(record["dataset"]))
        )
    source = ("source",) if style.with_source else ()
    return View(
        tables=tuple(tables),
        columns=("model", "dataset", "n_shot", "metric", *columns, "n_seeds", "missing_seeds", *source),
        records=tuple(records),
    )


@dataclass(frozen=True)
class _Panel:
    """One table of a layout: what all of it shares, and its columns."""

    name: str
    columns: tuple[tuple[str, str, int], ...]  # header, data set, number of shots


def _panels(shown: Shown, layout: str, *, only_all: bool) -> list[_Panel]:
    if layout == "datasets":
        n_shots = [n for n in shown.n_shots if n == 0] or list(shown.n_shots) if only_all else shown.n_shots
        return [
            _Panel(shots_label(n_shot), tuple((dataset, dataset, n_shot) for dataset in shown.datasets))
            for n_shot in n_shots
        ]
    rising = [n_shot for n_shot in shown.n_shots if n_shot] + [0] * (0 in shown.n_shots)
    headers = {n_shot: f"N={n_shot}" if n_shot else "all" for n_shot in rising}
    return [
        _Panel(
            f"{dataset}{_table_number(shown, dataset)}",
            tuple((headers[n_shot], dataset, n_shot) for n_shot in rising),
        )
        for dataset in shown.datasets
    ]


def _table_number(shown: Shown, dataset: str) -> str:
    number = _TABLE_NUMBERS.get(dataset)
    only_paper = shown.sources == (published.SOURCES["v2"],)
    return f" (Table {number} of the paper)" if only_paper and number else ""


def _table(
    shown: Shown, quantity: Quantity, panel: _Panel, *, metric: str, style: TableStyle
) -> tuple[Table, list[dict[str, Any]]]:
    decimals = style.decimals if quantity.decimals is None else quantity.decimals
    lines: list[tuple[Row, list[TableEntry | None], float | None]] = []
    records: list[dict[str, Any]] = []
    incomplete: list[tuple[str, str]] = []
    used: set[str] = set()
    has_deviation = False
    for row in shown.rows:
        entries: list[TableEntry | None] = []
        numbers: list[float] = []
        of_row: list[dict[str, Any]] = []
        missing: dict[tuple[int, ...], list[str]] = {}
        for header, dataset, n_shot in panel.columns:
            cell = shown.get(row, dataset, n_shot, metric)
            number = None if cell is None else quantity.of(cell)
            if cell is None or number is None:
                entries.append(None)
                continue
            used.add(row.source)
            numbers.append(number.value)
            has_deviation |= number.deviation is not None
            entries.append(_entry(number, cell, decimals=decimals, signed=quantity.signed))
            of_row.append({**cell_record(cell), **number.record, "_row": row})
            if cell.missing_seeds:
                missing.setdefault(cell.missing_seeds, []).append(header)
        incomplete += _incomplete(
            style.label(row, sources=shown.sources), missing, n_columns=len(panel.columns)
        )
        mean = statistics.fmean(numbers) if numbers else None
        if quantity.mean_title:
            mark = f"({len(numbers)}/{len(panel.columns)})" if 0 < len(numbers) < len(panel.columns) else ""
            entries.append(None if mean is None else TableEntry(f"{mean:.{style.decimals}f}", mark=mark))
            for record in of_row:
                record["mean_rank"] = mean
        records += of_row
        lines.append((row, entries, mean))
    sources = used or set(shown.sources)
    if quantity.mean_title:
        # A ranking is read from the top. Rows without all columns have a mean that is not comparable.
        lines.sort(key=lambda line: (None in line[1], math.inf if line[2] is None else line[2]))
    title = quantity.title.format(metric=METRIC_LABELS[metric])
    title += f", {panel.name}"
    if has_deviation:
        title += ", mean ± std over seeds" if quantity.columns[:1] == ("mean",) else ", ± combined deviation"
    if len(sources) == 1 and RUNS not in sources:
        title += f" [{printable(next(iter(sources)))}]"
    notes = list(quantity.notes)
    if incomplete:
        notes.insert(0, Note("Missing seeds", tuple(incomplete)))
    headers = [header for header, _, _ in panel.columns]
    table = Table(
        title=title,
        columns=(*headers, *([quantity.mean_title] if quantity.mean_title else [])),
        rows=tuple((style.label(row, sources=sources), tuple(entries)) for row, entries, _ in lines),
        notes=tuple(notes),
    )
    return table, records


def _incomplete(
    label: str, missing: Mapping[tuple[int, ...], Sequence[str]], *, n_columns: int
) -> list[tuple[str, str]]:
    """Name the missing seeds of a row, columns that lack the same ones together."""
    return [
        (
            printable(f"{label}, {'every column' if len(headers) == n_columns > 1 else ', '.join(headers)}"),
            ", ".join(map(str, seeds)),
        )
        for seeds, headers in missing.items()
    ]


def _entry(number: Number, cell: SeedAverage, *, decimals: int, signed: bool) -> TableEntry:
    return TableEntry(
        format_number(number.value, decimals, signed=signed),
        "" if number.deviation is None else f"{number.deviation:.{decimals}f}",
        seeds_mark(cell),
    )
