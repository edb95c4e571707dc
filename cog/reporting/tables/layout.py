"""Rows of tables, their order and their labels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cog.errors import printable
from cog.reporting.tables.writers import Table
from cog.results import published
from cog.results.model_facts import ModelFacts
from cog.results.scores import RUNS, SeedAverage, natural_key


class Row(NamedTuple):
    """One row of a table: a model's numbers from one source."""

    model: str
    source: str


@dataclass(frozen=True)
class View:
    """The tables of a view for readers, and the same numbers as flat records for programs."""

    tables: list[Table]
    records: list[dict[str, Any]]

    @property
    def columns(self) -> list[str]:
        """Return the keys of the records, in the order of their first appearance."""
        return list(dict.fromkeys(key for record in self.records for key in record))


@dataclass(frozen=True)
class TableStyle:
    """Style of rows and numbers.

    Attributes:
        paper_labels: whether the paper's models get the paper's names (``a-DeiT-S``), and own models their labels.
        with_source: whether records of accuracies have the column ``source``.
        model_facts: labels and pretraining of models; None: neither labels nor marks.
        marks: whether models that may have seen the levels are marked.
    """

    paper_labels: bool = False
    with_source: bool = True
    model_facts: ModelFacts | None = None
    marks: bool = True

    def name(self, model: str, source: str) -> str:
        """Return the name of a model in tables, without its mark and source."""
        if self.paper_labels and model in published.MODELS:
            return published.MODELS[model].table_label
        return self.model_facts.label(model, source) if self.paper_labels and self.model_facts else model

    def label(self, row: Row, *, sources: Iterable[str]) -> str:
        """Return the label of a row in a table of ``sources``, with its source unless it is runs or the only one."""
        model = self.name(*row)
        mark = self.model_facts.mark(*row) if self.model_facts and self.marks else ""
        return (
            f"{model}{mark}"
            if row.source == RUNS or set(sources) == {row.source}
            else f"{model}{mark} [{row.source}]"
        )


def only_source(sources: Collection[str], more: Mapping[str, str] | None = None) -> str:
    """Return the words of a title for the common source of all numbers; "" for runs and for several sources.

    Args:
        sources: sources of the numbers.
        more: further words by source.
    """
    if len(sources) != 1 or RUNS in sources:
        return ""
    (source,) = sources
    return f" [{printable(source)}{(more or {}).get(source, '')}]"


def order_rows(rows: Iterable[Row], *, models: Sequence[str] | None = None) -> list[Row]:
    """Return the distinct rows in the order of display.

    Args:
        rows: rows of any numbers.
        models: models in the order of display; those without a row get one. None: natural order, or, when any row is
            not of runs, the paper's models in the paper's order, then the others.
    """
    rows = set(rows)
    sources = {row.source for row in rows}
    if models is None:
        known = published.MODELS if sources - {RUNS} else {}
        order = {
            model: (0, known[model].order) if model in known else (1, natural_key(model)) for model, _ in rows
        }
    else:
        order = {model: (0, position) for position, model in enumerate(models)}
        source = min(sources) if len(sources) == 1 else RUNS
        rows |= {Row(model, source) for model in set(models) - {row.model for row in rows}}
    return sorted(rows, key=lambda row: (order[row.model], source_key(row.source)))


def source_key(source: str) -> tuple[int, tuple[Any, ...]]:
    """Return the sort key of a source: runs, then the paper, then files by their labels."""
    if source == RUNS:
        return 0, ()
    return (1, natural_key(source)) if source in published.SOURCES.values() else (2, natural_key(source))


def format_number(value: float, decimals: int, *, signed: bool = False) -> str:
    """Return ``value`` with a fixed number of digits after the point, never as ``-0.0``."""
    text = f"{value:{'+' if signed else ''}.{decimals}f}"
    return text.lstrip("+-") if float(text) == 0 else text


def seeds_there(average: SeedAverage) -> str:
    """Return ``2/5`` when only two of five expected seeds exist; "" when none is missing."""
    return f"{len(average.seeds)}/{average.n_expected}" if average.missing_seeds else ""
