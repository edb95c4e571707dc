"""Results beside the published ones of the same model."""

from __future__ import annotations

import math
from typing import Any

from cog.reporting.tables.layout import (
    Shown,
    TableStyle,
    View,
    cell_record,
    format_number,
    seeds_mark,
)
from cog.reporting.tables.writers import Note, Table, TableEntry
from cog.results import comparison, published
from cog.results.labels import shots_label
from cog.results.scores import RUNS, SeedAverage


def beside_published(shown: Shown, *, version: str, style: TableStyle) -> View | None:
    """Set results beside the published ones of the same model, data set and number of shots (top-1).

    Returns:
        One table for each number of shots; None when no model shown is in the paper, or none on the official data.
    """
    genuine = {(cell.model, cell.dataset, cell.n_shot): cell for cell in published.accuracies(version)}
    records: list[dict[str, Any]] = []
    tables = []
    place = published.SOURCES[version]
    for n_shot in shown.n_shots:
        rows: list[tuple[str, tuple[TableEntry | None, ...]]] = []
        for row in shown.rows:
            for dataset in shown.datasets:
                cell, other = (
                    shown.get(row, dataset, n_shot, "top1"),
                    genuine.get((row.model, dataset, n_shot)),
                )
                if cell is None or other is None or row.source in published.SOURCES.values():
                    continue
                if not shown.comparable.verdict(cell).match.comparable:
                    continue
                record = _beside(cell, other)
                records.append(record)
                d = style.decimals
                rows.append(
                    (
                        style.label(row, sources=[RUNS]),
                        (
                            TableEntry(dataset),
                            TableEntry(f"{cell.value:.{d}f}", _optional(cell.std, d), seeds_mark(cell)),
                            TableEntry(f"{other.value:.1f}", _optional(other.std, 1)),
                            TableEntry(format_number(record["difference"], d, signed=True)),
                            TableEntry(_optional(record["combined_deviation"], d) or "?"),
                            TableEntry({True: "yes", False: "no", None: "?"}[record["within"]]),
                        ),
                    )
                )
        if rows:
            tables.append(
                Table(
                    title=f"top-1 accuracy (%) beside the published one, {shots_label(n_shot)}, mean ± std",
                    columns=("data set", "here", place, "difference", "combined std", "within"),
                    rows=tuple(rows),
                    notes=(
                        Note(
                            "within: the difference is at most the combined deviation sqrt(s1^2 + s2^2) plus "
                            f"{comparison.PUBLISHED_ROUNDING} for the rounding of the published mean."
                        ),
                    ),
                    words=frozenset({0, 5}),
                )
            )
    if not tables:
        return None
    return View(
        tuple(tables),
        (
            "model", "source", "dataset", "n_shot", "mean", "std", "n_seeds", "missing_seeds", "published_mean",
            "published_std", "difference", "combined_deviation", "within",
        ),
        tuple(records),
    )  # fmt: skip


def with_columns(view: View, beside: View) -> View:
    """Return the records of ``view`` with the columns of ``beside`` that it lacks; its tables, then those beside."""
    key = ("model", "source", "dataset", "n_shot", "metric")
    known = {tuple(record[name] for name in key): record for record in beside.records}
    more = tuple(column for column in beside.columns if column not in view.columns)
    records = tuple(
        {**known.get(tuple(record[name] for name in key), {}), **record} for record in view.records
    )
    return View(view.tables + beside.tables, view.columns + more, records)


def _optional(value: float | None, decimals: int) -> str:
    return "" if value is None else f"{value:.{decimals}f}"


def _beside(cell: SeedAverage, other: SeedAverage) -> dict[str, Any]:
    deviation = None
    if cell.std is not None and other.std is not None:
        deviation = math.hypot(cell.std, other.std)
    return {
        **cell_record(cell),
        "mean": cell.value,
        "std": cell.std,
        "published_mean": other.value,
        "published_std": other.std,
        "difference": cell.value - other.value,
        "combined_deviation": deviation,
        "within": None if deviation is None else comparison.within(cell.value, other.value, deviation),
    }
