"""Rows, columns and their order: what all views share."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cog.errors import CogError
from cog.reporting.tables.writers import Table
from cog.results import official, published
from cog.results.scores import RUNS, SeedAverage, dataset_key, natural_key


@dataclass(frozen=True)
class Row:
    """One row of a table: a model's numbers from one source."""

    model: str
    source: str


@dataclass(frozen=True)
class View:
    """What a view shows: tables for readers, and the same as flat records for programs."""

    tables: tuple[Table, ...]
    columns: tuple[str, ...]
    records: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class TableStyle:
    """How rows and numbers are written.

    Attributes:
        decimals: digits after the point.
        paper_labels: whether the paper's models get the paper's names (``a-DeiT-S``).
        with_source: whether records have the column ``source``, and rows that are not runs are marked with it.
    """

    decimals: int = 1
    paper_labels: bool = False
    with_source: bool = True

    def label(self, row: Row, *, sources: Iterable[str]) -> str:
        """Return the label of a row in a table that shows ``sources``."""
        model = row.model
        if self.paper_labels and model in published.MODELS:
            model = published.MODELS[model].table_label
        if row.source == RUNS or set(sources) == {row.source}:
            return model
        return f"{model} [{row.source}]"


@dataclass(frozen=True)
class Shown:
    """The cells of a view, and the order of its rows and columns.

    Attributes:
        cells: what may be shown.
        rows: in this order.
        datasets: in this order.
        n_shots: in this order.
        others: further cells that a view may refer to (the baseline's), not shown.
        comparable: which of all these may be set beside each other.
    """

    cells: tuple[SeedAverage, ...]
    rows: tuple[Row, ...]
    datasets: tuple[str, ...]
    n_shots: tuple[int, ...]
    others: tuple[SeedAverage, ...] = ()
    comparable: official.Comparable = field(init=False, repr=False, compare=False)
    _by_place: dict[tuple[Row, str, int, str], SeedAverage] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "comparable", official.compare((*self.cells, *self.others)))
        places = {
            (Row(cell.model, cell.source), cell.dataset, cell.n_shot, cell.metric): cell
            for cell in self.cells
        }
        object.__setattr__(self, "_by_place", places)

    def get(self, row: Row, dataset: str, n_shot: int, metric: str) -> SeedAverage | None:
        """Return the accuracy of a place, or None."""
        return self._by_place.get((row, dataset, n_shot, metric))

    @functools.cached_property
    def sources(self) -> tuple[str, ...]:
        """Sources of the rows, in order."""
        return tuple(dict.fromkeys(row.source for row in self.rows))


def arrange(
    cells: Iterable[SeedAverage],
    *,
    models: Sequence[str] | None = None,
    datasets: Iterable[str] | None = None,
    n_shots: Iterable[int] | None = None,
    others: Iterable[SeedAverage] = (),
) -> Shown:
    """Put cells into the order in which they are shown.

    Args:
        cells: what to show.
        models: rows, in this order, also when nothing is known of them; default: those of ``cells``: in natural
            order, or, when any cell is not from a run, the paper's models in the paper's order, then the others.
        datasets: columns; default: those of ``cells``. Always in the order of :func:`cog.results.scores.dataset_key`.
        n_shots: default: those of ``cells``. All images first, then rising.
        others: further cells that a view may refer to.
    """
    cells = list(cells)
    if models is not None:
        cells = [cell for cell in cells if cell.model in set(models)]
    rows = order_rows((Row(cell.model, cell.source) for cell in cells), models=models)
    columns = sorted(
        set(datasets if datasets is not None else (cell.dataset for cell in cells)), key=dataset_key
    )
    shots = sorted(set(n_shots if n_shots is not None else (cell.n_shot for cell in cells)))
    kept = tuple(cell for cell in cells if cell.dataset in columns and cell.n_shot in shots)
    return Shown(kept, tuple(rows), tuple(columns), tuple(shots), tuple(others))


def order_rows(rows: Iterable[Row], *, models: Sequence[str] | None = None) -> list[Row]:
    """Return each row once, in the order in which rows are shown.

    Args:
        rows: of any numbers.
        models: see :func:`arrange`.
    """
    ordered = list(dict.fromkeys(rows))
    sources = sorted({row.source for row in ordered}, key=source_key)
    if models is not None:
        position = {model: index for index, model in enumerate(models)}
        absent = [model for model in models if model not in {row.model for row in ordered}]
        ordered += [Row(model, sources[0] if len(sources) == 1 else RUNS) for model in absent]
        ordered.sort(key=lambda row: (position[row.model], source_key(row.source)))
    else:
        in_paper = any(source != RUNS for source in sources)
        ordered.sort(key=lambda row: (*_model_order(row.model, in_paper=in_paper), source_key(row.source)))
    return ordered


def _model_order(model: str, *, in_paper: bool) -> tuple[Any, ...]:
    known = published.MODELS.get(model) if in_paper else None
    return (1, natural_key(model)) if known is None else (0, known.order)


def source_key(source: str) -> tuple[int, tuple[Any, ...]]:
    """Order of sources: runs, the paper, files by their labels."""
    if source == RUNS:
        return 0, ()
    return (1, natural_key(source)) if source in published.SOURCES.values() else (2, natural_key(source))


def find_baseline(shown: Shown, model: str) -> tuple[dict[str, dict[tuple[str, int, str], SeedAverage]], str]:
    """Return the cells of a baseline by source, then by data set, shots and metric; and the first source.

    A row is compared with the baseline of its own source where there is one, otherwise with that of the first source
    that has one (runs, the paper, files).

    Raises:
        CogError: when nothing is known of the baseline.
    """
    found: dict[str, dict[tuple[str, int, str], SeedAverage]] = {}
    for cell in (*shown.cells, *shown.others):
        if cell.model == model:
            found.setdefault(cell.source, {})[cell.dataset, cell.n_shot, cell.metric] = cell
    if not found:
        raise CogError(f"there is nothing to compare with: no result of {model} among those read")
    return found, min(found, key=source_key)


def format_number(value: float, decimals: int, *, signed: bool = False) -> str:
    """Return ``value`` with a fixed number of digits after the point, never as ``-0.0``."""
    text = f"{value:{'+' if signed else ''}.{decimals}f}"
    if float(text) == 0:
        return text.lstrip("+-")
    return text


def seeds_mark(cell: SeedAverage) -> str:
    """Return ``(2/5)`` when only two of five seeds are there, else nothing."""
    if not cell.missing_seeds:
        return ""
    return f"({len(cell.seeds)}/{len(cell.seeds) + len(cell.missing_seeds)})"


def cell_record(cell: SeedAverage) -> dict[str, Any]:
    """Return what flat records of all views say about a cell."""
    return {
        "model": cell.model,
        "dataset": cell.dataset,
        "n_shot": cell.n_shot,
        "metric": cell.metric,
        "n_seeds": len(cell.seeds) or None,
        "missing_seeds": cell.missing_seeds,
        "source": cell.source,
    }
