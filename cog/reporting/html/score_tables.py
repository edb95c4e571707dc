"""Values of the sortable tables: own and published models side by side, one table per view."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from cog import constants
from cog.reporting.html.facts import Facts, PageModel
from cog.reporting.tables.layout import Row
from cog.reporting.tables.pivot import Averages, Column, pivot
from cog.results.labels import METRIC_LABELS, dataset_label, shots_title
from cog.results.scores import LOGREG, SeedAverage, as_logreg

_GROUPS = {
    "top1": "Top-1, data sets side by side",
    "top5": "Top-5, data sets side by side (own results; the paper gives none)",
}
_BY_SHOTS = "Top-1, numbers of images side by side (as Tables 5–10 of the paper)"


class ScoreLine(NamedTuple):
    """A row of a table: its model, averages, and their mean over the levels (None if a level is missing)."""

    row: PageModel
    cells: list[SeedAverage | None]
    mean: float | None


class ScoreView(NamedTuple):
    """One table.

    Attributes:
        key: id of the table.
        group: group of the table in the list for selection.
        title: title of the table.
        titles: titles of all columns.
        lines: rows, the highest number in the last column first, rows without one at the end.
        has_mean: whether the last column is the mean over the levels.
    """

    key: str
    group: str
    title: str
    titles: Sequence[str]
    lines: Sequence[ScoreLine]
    has_mean: bool


def views_of(facts: Facts, rows: Sequence[PageModel]) -> list[ScoreView]:
    """Return the tables: data sets side by side for each number of shots, and shots side by side for each data set."""
    averages = Averages(as_logreg(average for row in rows for average in (*row.cells, *row.top5)))
    # Only the official data sets have the names of the paper.
    label = dataset_label if facts.compared or not facts.own_models else lambda name: name or "(unnamed)"
    few_first = sorted(averages.n_shots, key=lambda n: (n == 0, n))
    views = []
    for metric, group in _GROUPS.items():
        for n_shot in averages.n_shots:
            columns = [Column(label(name), name, (LOGREG, metric, n_shot)) for name in averages.datasets]
            title = f"{METRIC_LABELS[metric].capitalize()} accuracy (%), {shots_title(n_shot)}"
            views.append(_view(f"{metric}-n{n_shot}", group, title, averages, rows, columns))
    for i, dataset in enumerate(averages.datasets if len(few_first) > 1 else ()):
        columns = [Column(shots_title(n) if n else "all", dataset, (LOGREG, "top1", n)) for n in few_first]
        title = f"Top-1 accuracy (%) on {label(dataset)}"
        views.append(_view(f"top1-d{i}", _BY_SHOTS, title, averages, rows, columns))
    return [view for view in views if view.lines]


def _view(
    key: str,
    group: str,
    title: str,
    averages: Averages,
    rows: Sequence[PageModel],
    columns: Sequence[Column],
) -> ScoreView:
    """Return a table of the rows and columns with a number; with several levels, the last column is their mean."""
    grid = pivot(averages, [Row(row.name, row.source) for row in rows], columns)
    used = [i for i in range(len(columns)) if any(line[i] for line in grid)]
    levels = [i for i in used if group != _BY_SHOTS and constants.cog_level(columns[i].dataset) is not None]
    has_mean = len(levels) > 1
    lines = []
    for row, line in zip(rows, grid, strict=True):
        known = [average.value for i in levels if (average := line[i]) is not None]
        mean = statistics.fmean(known) if has_mean and len(known) == len(levels) else None
        if any(line):
            lines.append(ScoreLine(row, [line[i] for i in used], mean))

    def order(line: ScoreLine) -> tuple[bool, float, bool]:
        last = line.cells[-1]
        value = line.mean if has_mean else None if last is None else last.value
        return value is None, -(value or 0.0), not line.row.is_own

    titles = ["Model", *(columns[i].label for i in used), *["mean of levels"] * has_mean]
    return ScoreView(key, group, title, titles, sorted(lines, key=order), has_mean)
