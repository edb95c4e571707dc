"""The pivot of all tables: averages over seeds of any metric, arranged by rows and columns.

A row is a model and a source, a column one number on one data set (:class:`Column`). Which number of an average is
shown where they meet is a :class:`Quantity`.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cog.reporting.tables.layout import Row, TableStyle, format_number, only_source, order_rows, seeds_there
from cog.reporting.tables.writers import Note, Table, TableEntry
from cog.results import metric_info, official, uncertainty
from cog.results.scores import Key, SeedAverage, dataset_key, interval_of

#: Note on the intervals of numbers of analyses, unless the metric is declared with another one.
OVER_CONCEPTS = "[ ]: 95 % bootstrap interval over concepts; seeds are averaged before."


class Column(NamedTuple):
    """One number on one data set, with its header."""

    label: str
    dataset: str
    key: Key


class Averages:
    """Averages for the tables, by place; the first of several averages for one place counts.

    Args:
        averages: averages of any metrics.
        models: rows in the order of display, with or without averages; None: see :func:`order_rows`.
        datasets: columns, also of which nothing is known; None: all there are. In the order of
            :func:`cog.results.scores.dataset_key`.
        n_shots: the same of numbers of shots. All images first, then rising.
        others: further averages that a view may refer to (of a baseline), not shown.
    """

    def __init__(
        self,
        averages: Iterable[SeedAverage],
        *,
        models: Sequence[str] | None = None,
        datasets: Iterable[str] | None = None,
        n_shots: Iterable[int] | None = None,
        others: Iterable[SeedAverage] = (),
    ) -> None:
        self.shown = list(averages)
        self.others = list(others)
        self._at: dict[tuple[Row, str, Key], SeedAverage] = {}
        self._datasets: dict[Key, set[str]] = {}
        for average in self.shown:
            self._at.setdefault((Row(average.model, average.source), average.dataset, average.key), average)
            self._datasets.setdefault(average.key, set()).add(average.dataset)
        self.rows = order_rows((row for row, *_ in self._at), models=models)
        self.datasets = sorted(datasets or {average.dataset for average in self.shown}, key=dataset_key)
        self.n_shots = sorted(n_shots or {average.n_shot for average in self.shown})
        self.keys = sorted(self._datasets, key=lambda key: (metric_info.describe(*key).order, str(key)))

    def at(self, row: Row, dataset: str, key: Key) -> SeedAverage | None:
        """Return the average of a number of a row on a data set, or None."""
        return self._at.get((row, dataset, key))

    def ends(self, average: SeedAverage) -> list[SeedAverage]:
        """Return the recorded ends of the interval of an average, which are other metrics of the same evaluation."""
        row, place = Row(average.model, average.source), average.dataset
        keys = ((average.evaluation, name, average.n_shot) for name in interval_of(average.metric))
        return [end for key in keys if (end := self.at(row, place, key)) is not None]

    def on(self, key: Key) -> list[str]:
        """Return the data sets with an average of ``key``, in order."""
        return sorted(self._datasets.get(key, ()), key=dataset_key)

    @functools.cached_property
    def sources(self) -> list[str]:
        """Return the sources of the rows, in order."""
        return list(dict.fromkeys(row.source for row in self.rows))

    @functools.cached_property
    def comparable(self) -> official.Comparable:
        """Return the comparability of all these averages with each other, ``others`` included."""
        return official.compare((*self.shown, *self.others))


@dataclass(frozen=True)
class Number:
    """The displayed number of an average, with its format.

    Attributes:
        value: the number.
        deviation: its standard deviation, or None.
        decimals: digits after the point.
        signed: whether a positive number gets a plus sign.
        interval: lower and upper end of its interval, or None.
        starred: whether the interval gets a star, which a note below the table explains.
        record: values for flat records, by column.
    """

    value: float
    deviation: float | None = None
    decimals: int = 1
    signed: bool = False
    interval: tuple[float, float] | None = None
    starred: bool = False
    record: Mapping[str, Any] = field(default_factory=dict)

    def entry(self, seeds: str = "") -> TableEntry:
        """Return the entry of a table; ``seeds``: share of existing seeds such as ``2/5``, or ""."""
        text = format_number(self.value, self.decimals, signed=self.signed)
        deviation = "" if self.deviation is None else f"{self.deviation:.{self.decimals}f}"
        interval = ""
        if self.interval is not None:
            ends = (format_number(end, self.decimals, signed=self.signed) for end in self.interval)
            interval = f"[{', '.join(ends)}]{' *' * self.starred}"
        return TableEntry(text, deviation, seeds, interval)


@dataclass(frozen=True)
class Quantity:
    """Declaration of the number that a view shows of every average.

    Attributes:
        of: function from an average to its number; None when the number cannot be computed.
        title: title of tables; ``{metric}`` stands for the name of the metric.
        spread: words of the title for deviations.
        notes: notes below every table.
        spread_note: note below tables with deviations, or "".
        interval_note: note below tables with intervals.
        mean_title: header of a further column with the mean of a row, by which rows are sorted; "": no such column.
    """

    of: Callable[[SeedAverage], Number | None]
    title: str = ""
    spread: str = "± std over seeds"
    notes: tuple[Note, ...] = ()
    spread_note: str = ""
    interval_note: str = OVER_CONCEPTS
    mean_title: str = ""


def own_number(average: SeedAverage) -> Number:
    """Return the number of an average in the format of its metric, with an interval if right answers are recorded."""
    metric, estimate = metric_info.describe(*average.key), uncertainty.accuracy(average.concepts)
    return Number(
        average.value,
        average.std,
        metric.decimals,
        metric.signed,
        None if estimate is None else estimate.interval,
    )


class Shown(NamedTuple):
    """A number in a table, with its average and the mean of its row."""

    average: SeedAverage
    number: Number
    row_mean: float


def tabulate(
    averages: Averages,
    columns: Sequence[Column],
    quantity: Quantity,
    *,
    title: str,
    style: TableStyle,
    all_rows: bool = False,
    paper_tables: Mapping[str, str] | None = None,
) -> tuple[Table, list[Shown]]:
    """Return a table of models by columns, and the numbers in it.

    Args:
        averages: all there are; the rows are theirs.
        columns: in this order.
        quantity: the number that is shown.
        title: without the words on deviations and source.
        style: how rows are written.
        all_rows: whether rows without a number stand in the table, and columns that lack the same seeds are named
            together.
        paper_tables: number of the table in a publication, by source; named where all rows are of that source.
    """
    grid: list[tuple[Row, list[Shown | None], float]] = []
    for row in averages.rows:
        line = [averages.at(row, column.dataset, column.key) for column in columns]
        numbers = [None if average is None else quantity.of(average) for average in line]
        values = [number.value for number in numbers if number is not None]
        mean = statistics.fmean(values) if values else math.inf
        places = [
            Shown(average, number, mean) if average is not None and number is not None else None
            for average, number in zip(line, numbers, strict=True)
        ]
        if values or all_rows:
            grid.append((row, places, mean))
    shown = [place for _, places, _ in grid for place in places if place is not None]
    sources = {place.average.source for place in shown} or set(averages.sources)
    labels = {row: style.label(row, sources=sources) for row, _, _ in grid}
    headers = [column.label for column in columns]
    notes = list(quantity.notes)
    missing: list[tuple[str, str]] = []
    for row, places, _ in grid:
        missing += _missing_seeds(labels[row], headers, places)
    if missing:
        notes.insert(0, Note("Missing seeds", tuple(missing)))
    if any(place.number.deviation is not None for place in shown):
        title += f", {quantity.spread}"
        notes += [Note(quantity.spread_note)] if quantity.spread_note else []
    if any(place.number.interval for place in shown):
        notes.append(Note(quantity.interval_note))
    title += only_source(sources, paper_tables)
    if quantity.mean_title:
        # The best rank comes first. Incomplete rows have means that are not comparable, so they come last; rows with
        # equal mean ranks are sorted by their mean score.
        grid.sort(key=lambda line: (None in line[1], line[2], -sum(p.average.value for p in line[1] if p)))
        headers.append(quantity.mean_title)
    rows = []
    for row, places, mean in grid:
        entries = [place and place.number.entry(seeds_there(place.average)) for place in places]
        if quantity.mean_title:
            n_numbers = len(places) - places.count(None)
            some = f"{n_numbers}/{len(places)}" if n_numbers < len(places) else ""
            mean_entry = Number(mean).entry(some)
            entries.append(mean_entry if n_numbers else None)
        rows.append((labels[row], tuple(entries)))
    return Table(title, tuple(headers), tuple(rows), tuple(notes)), shown


def _missing_seeds(
    label: str, headers: Sequence[str], line: Sequence[Shown | None]
) -> Iterator[tuple[str, str]]:
    """Yield columns and their missing seeds; columns that lack the same seeds are one item."""
    lacking: dict[tuple[int, ...], list[str]] = {}
    for header, place in zip(headers, line, strict=True):
        if place is not None and place.average.missing_seeds:
            lacking.setdefault(place.average.missing_seeds, []).append(header)
    for seeds, some in lacking.items():
        names = "every column" if len(some) == len(headers) > 1 else ", ".join(some)
        yield f"{label}, {names}", ", ".join(map(str, seeds))
