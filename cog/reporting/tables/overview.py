"""Every experiment of a model side by side: one table for each data set."""

from __future__ import annotations

from collections.abc import Sequence

from cog.errors import CogError
from cog.reporting.tables.experiments import COLUMNS, Numbers, record
from cog.reporting.tables.layout import Row, TableStyle, View
from cog.reporting.tables.writers import Note, Table, TableEntry, printable
from cog.results import metric_info, relative
from cog.results.scores import RUNS

# Of many numbers of shots or components, those that span them.
_SHOTS = (1, 8, 128)
_DIMENSIONS = (32, 256)


def overview(numbers: Numbers, *, style: TableStyle, decimals: int | None) -> View:
    """Set the headline numbers of all experiments below each other, models side by side.

    Args:
        numbers: all there are.
        style: how models are written.
        decimals: digits after the point; None: those of each number.

    Raises:
        CogError: when there is none.
    """
    keys = headlines(numbers.keys)
    tables = []
    shown = []
    for dataset in numbers.datasets:
        here = [key for key in keys if dataset in numbers.on(key)]
        rows = [row for row in numbers.rows if any(numbers.get(row, dataset, key) for key in here)]
        if not here:
            continue
        sources = {row.source for row in rows}
        lines = []
        for key in here:
            found = [numbers.get(row, dataset, key) for row in rows]
            shown += [measure for measure in found if measure is not None]
            kind = metric_info.describe(*key)
            better = {1: "higher", -1: "lower", 0: ""}[kind.better]
            lines.append(
                (
                    kind.short_title,
                    (
                        TableEntry(better) if better else None,
                        *(
                            None if m is None else numbers.entry(m, decimals=decimals, interval=False)
                            for m in found
                        ),
                    ),
                )
            )
        only = f" [{printable(next(iter(sources)))}]" if len(sources) == 1 and RUNS not in sources else ""
        tables.append(
            Table(
                title=f"all experiments on {dataset}{only}",
                columns=("better", *(style.label(row, sources=sources) for row in rows)),
                rows=tuple(lines),
                notes=_notes(rows),
                corner="experiment",
                words=frozenset({0}),
            )
        )
    if not tables:
        raise CogError("nothing to show: no number of any experiment among the results read")
    return View(tuple(tables), COLUMNS, tuple(map(record, shown)))


def _notes(rows: Sequence[Row]) -> tuple[Note, ...]:
    if len(rows) < 2:
        return ()
    return (Note("better: the direction in which a number speaks for the features; -: it has none."),)


def headlines(keys: Sequence[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
    """Return which numbers stand for all in an overview, in their order."""
    shots = {key[2] for key in keys if key[2]}
    few = set(_SHOTS) & shots or ({min(shots), max(shots)} if shots else set())
    found = [(key, metric_info.classifier(key[0])) for key in keys]
    dims = {one.pca_dim for _, one in found if one is not None and one.pca_dim}
    some = set(_DIMENSIONS) & dims or ({min(dims), max(dims)} if dims else set())
    known = set(keys)
    return [
        key
        for key, one in found
        if (
            metric_info.describe(*key).headline
            # Of the MLPs of the paper only the relative score was published.
            or (key[1] == relative.RELATIVE_TO_LOGREG and (key[0], "top1", key[2]) not in known)
        )
        and (key[2] == 0 or key[2] in few)
        and (one is None or one.pca_dim == 0 or one.pca_dim in some)
    ]
