"""Results in a notebook: scores that can be selected, put into a table or handed to pandas.

>>> import cog
>>> results = cog.read_results(published="v2")
>>> few = results.select(model=["sup_resnet50", "dino_resnet50"], dataset=["in1k", "cog_l1", "cog_l5"], n_shots=0)
>>> print(few.table(rows="model", columns="dataset"))
logreg, all training images, top1 [paper v2]
<BLANKLINE>
               in1k        cog_l1      cog_l5
sup_resnet50   75.8 ± 0.0  67.9 ± 0.1  52.0 ± 0.0
dino_resnet50  74.8 ± 0.0  71.1 ± 0.0  57.6 ± 0.0
<BLANKLINE>
>>> few[0].value, few[0].std
(75.8, 0.0)
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from cog.errors import CogError
from cog.reporting.tables.layout import format_number
from cog.reporting.tables.writers import DRAWN, Table, TableEntry, draw
from cog.results import metric_info, query, scores
from cog.results.labels import shots_label
from cog.results.run_records import Problem
from cog.results.scores import RUNS, Score, SeedAverage
from cog.runtime.csv_text import csv_text

#: Names of the fields of a score that a table can have in its rows or columns.
FIELDS = scores.PLACE


def read_results(
    root: str | os.PathLike[str] | None = None,
    *,
    models: Iterable[str] | None = None,
    datasets: Iterable[str] | None = None,
    imports: Iterable[str | os.PathLike[str]] = (),
    published: str | None = None,
) -> Results:
    """Read results of runs, analyses, shared files and the paper.

    Args:
        root: folder of all models; None: nothing is read from folders.
        models: names, or patterns such as ``deit_*``; None: all.
        datasets: names; None: all.
        imports: files of ``print_results.py --export``.
        published: ``"v2"`` or ``"v1"``: the numbers of that version of the paper as well.

    Returns:
        Scores, in the order of tables; folders that hold no result are in ``problems``.

    Raises:
        CogError: a folder or file that cannot be read.
    """
    return Results(
        *query.read_scores(root, models=models, datasets=datasets, imports=imports, paper=published)
    )


class Results(Sequence[Score]):
    """Scores in the order of tables.

    Attributes:
        problems: folders that were not counted, and why.
    """

    def __init__(self, found: Iterable[Score], problems: Iterable[Problem] = ()) -> None:
        self._scores = tuple(found)
        self.problems = tuple(problems)

    def __len__(self) -> int:
        return len(self._scores)

    def __iter__(self) -> Iterator[Score]:
        return iter(self._scores)

    def __getitem__(self, index: Any) -> Any:
        """Return a score, or the results of a slice."""
        return (
            Results(self._scores[index], self.problems) if isinstance(index, slice) else self._scores[index]
        )

    def __repr__(self) -> str:
        return f"<{len(self)} scores of {len({one.model for one in self})} models>"

    def select(self, **wanted: Any) -> Results:
        """Return the scores whose fields have the values given; see :func:`cog.results.scores.select`."""
        return Results(scores.select(self._scores, **wanted), self.problems)

    def average(self) -> list[SeedAverage]:
        """Return means and deviations over seeds; see :func:`cog.results.scores.average`."""
        return scores.without_single_std(scores.average(self))

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a row for each score and its fields as columns.

        Raises:
            CogError: when pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise CogError("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame(
            [dataclasses.asdict(one) for one in self], columns=[*Score.__dataclass_fields__]
        )

    def table(self, rows: str = "model", columns: str = "dataset", *, format: str = "text") -> str:
        """Return a table of means over seeds.

        Args:
            rows: one of ``FIELDS``.
            columns: another one. The scores must agree on all others (select before).
            format: ``text``, ``markdown``, ``latex`` or ``csv`` (means only, with all digits).

        Raises:
            CogError: another field or format, no score, or several numbers for one place.
        """
        averages = self.average()
        table = pivot(averages, rows=rows, columns=columns)
        if format == "csv":
            at = {_place(one, rows, columns): one.value for one in averages}
            row_names, column_names = (_names(averages, name) for name in (rows, columns))
            body = ([row, *(at.get((row, column)) for column in column_names)] for row in row_names)
            return csv_text([rows, *map(str, column_names)], body)
        if format not in DRAWN:
            raise CogError(f"format {format} is not known, expected one of {', '.join(DRAWN)}, csv")
        return draw([table], format)


def pivot(averages: Sequence[SeedAverage], *, rows: str, columns: str) -> Table:
    """Arrange averages by the fields that ``rows`` and ``columns`` name, in the order of first appearance.

    Raises:
        CogError: see :meth:`Results.table`.
    """
    for name in (rows, columns):
        if name not in FIELDS:
            raise CogError(f"a score has no {name}, expected one of {', '.join(FIELDS)}")
    if not averages:
        raise CogError("there is no score to show")
    at: dict[tuple[Any, Any], SeedAverage] = {}
    for one in averages:
        other = at.setdefault(_place(one, rows, columns), one)
        if other is not one:
            apart = [name for name in FIELDS if _FIELD[name](one) != _FIELD[name](other)]
            raise CogError(
                f"several numbers for {_FIELD[rows](one)}, {_FIELD[columns](one)}: they differ in {', '.join(apart)}; "
                f"select one, such as {apart[0]}={_FIELD[apart[0]](other)!r}"
            )
    row_names, column_names = _names(averages, rows), _names(averages, columns)
    body = tuple(
        (_label(rows, row), tuple(_entry(at.get((row, column))) for column in column_names))
        for row in row_names
    )
    return Table(
        _title(averages, rows, columns),
        tuple(_label(columns, name) for name in column_names),
        body,
        corner=rows,
    )


_FIELD: dict[str, Callable[[SeedAverage], Any]] = {
    "model": lambda one: one.model,
    "dataset": lambda one: one.dataset,
    "evaluation": lambda one: one.evaluation,
    "n_shots": lambda one: one.n_shot,
    "metric": lambda one: one.metric,
    "source": lambda one: one.source,
}


def _place(one: SeedAverage, rows: str, columns: str) -> tuple[Any, Any]:
    return _FIELD[rows](one), _FIELD[columns](one)


def _names(averages: Sequence[SeedAverage], field: str) -> list[Any]:
    return list(dict.fromkeys(map(_FIELD[field], averages)))


def _label(field: str, value: Any) -> str:
    return (f"N={value}" if value else "all") if field == "n_shots" else str(value)


def _entry(one: SeedAverage | None) -> TableEntry | None:
    if one is None:
        return None
    kind = metric_info.describe(*one.key)
    shown = format_number(one.value, kind.decimals, signed=kind.signed)
    return TableEntry(shown, "" if one.std is None else f"{one.std:.{kind.decimals}f}")


def _title(averages: Sequence[SeedAverage], rows: str, columns: str) -> str:
    """Name what all numbers of a table share."""
    shared = {name: _names(averages, name) for name in FIELDS if name not in (rows, columns)}
    parts = [
        shots_label(values[0]) if name == "n_shots" else str(values[0])
        for name, values in shared.items()
        if name != "source" and len(values) == 1
    ]
    source = shared.get("source", [RUNS])
    return ", ".join(parts) + (f" [{source[0]}]" if len(source) == 1 and source[0] != RUNS else "")
