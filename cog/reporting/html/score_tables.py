"""Values of the sortable tables: own and published models side by side, one table per view."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cog import constants
from cog.reporting.html.facts import Facts
from cog.results.labels import dataset_label, shots_title
from cog.results.published import CATEGORY_LABELS, MODELS
from cog.results.ranking import REFERENCE
from cog.results.scores import SeedAverage, dataset_key


@dataclass(frozen=True)
class PageRow:
    """A model in the tables.

    Attributes:
        key: identifies it for the choice of a baseline.
        label: how it is called.
        kind: group shown beside it: ``own``, or its category in the paper.
        own: whether it is highlighted.
        cells: its results, by data set, number of shots and metric.
    """

    key: str
    label: str
    kind: str
    own: bool
    cells: Mapping[tuple[str, int, str], SeedAverage]

    @property
    def group(self) -> str:
        """What is said of the model beside its name."""
        return "own result" if self.own else CATEGORY_LABELS.get(self.kind, self.kind)

    @property
    def is_reference(self) -> bool:
        """Whether it is the paper's reference."""
        return self.key == f"paper-{REFERENCE}"


@dataclass(frozen=True)
class ScoreView:
    """One table: its group in the choice, title, columns and cells."""

    key: str
    group: str
    title: str
    columns: Sequence[tuple[str, tuple[str, int]]]  # title, (data set, shots)
    metric: str
    mean_of: Sequence[int]  # columns averaged in a last one, if any
    rows: Sequence[PageRow]

    @property
    def titles(self) -> list[str]:
        """Titles of all columns."""
        return ["Model", *(title for title, _ in self.columns), *(["mean of levels"] if self.mean_of else [])]

    @property
    def entries(self) -> list[tuple[PageRow, list[SeedAverage | None], float | None]]:
        """Rows with their cells and mean, the highest last column first, models without it at the end."""
        found = []
        for row in self.rows:
            cells = [row.cells.get((*key, self.metric)) for _, key in self.columns]
            known = [cell.value for index in self.mean_of if (cell := cells[index]) is not None]
            mean = statistics.fmean(known) if known and len(known) == len(self.mean_of) else None
            found.append((row, cells, mean))

        def order(entry: tuple[PageRow, list[SeedAverage | None], float | None]) -> tuple[bool, float, bool]:
            row, cells, value = entry
            if not self.mean_of and cells[-1] is not None:
                value = cells[-1].value
            return value is None, -(value or 0.0), not row.own

        return sorted(found, key=order)


def rows_of(facts: Facts) -> list[PageRow]:
    """Return the rows: own models first, then the paper's in its order, unless the data forbid a comparison."""
    rows = [
        PageRow(
            key=f"own-{number}",
            label=model.label,
            kind="own",
            own=True,
            cells={(cell.dataset, cell.n_shot, cell.metric): cell for cell in (*model.cells, *model.top5)},
        )
        for number, model in enumerate(facts.own)
    ]
    return rows + (published_rows(facts.published) if facts.compared or not facts.own else [])


def published_rows(cells: Iterable[SeedAverage]) -> list[PageRow]:
    """Return the paper's models, in its order."""
    groups: dict[str, dict[tuple[str, int, str], SeedAverage]] = {}
    for cell in cells:
        groups.setdefault(cell.model, {})[cell.dataset, cell.n_shot, cell.metric] = cell
    order = {name: row.order for name, row in MODELS.items()}
    return [
        PageRow(
            key=f"paper-{model}",
            label=MODELS[model].label if model in MODELS else model,
            kind=MODELS[model].category if model in MODELS else "published",
            own=False,
            cells=groups[model],
        )
        for model in sorted(groups, key=lambda model: (order.get(model, len(order)), model))
    ]


def views_of(rows: Sequence[PageRow], *, official: bool) -> list[ScoreView]:
    """Return the tables.

    Args:
        rows: the models.
        official: whether ``in1k`` and ``cog_l1`` are the paper's data sets, and called as there.
    """
    label = dataset_label if official else lambda name: name or "(unnamed)"
    keys = {key for row in rows for key in row.cells}
    datasets = sorted({dataset for dataset, _, _ in keys}, key=dataset_key)
    shots = sorted({n_shot for _, n_shot, _ in keys}, key=lambda n: (n != 0, n))
    views = []
    for metric, group, members in (
        ("top1", "Top-1, data sets side by side", rows),
        (
            "top5",
            "Top-5, data sets side by side (own results; the paper gives none)",
            [r for r in rows if r.own],
        ),
    ):
        for n_shot in shots:
            present = [row for row in members if any(key[1:] == (n_shot, metric) for key in row.cells)]
            columns = [
                (label(d), (d, n_shot))
                for d in datasets
                if any((d, n_shot, "top1") in row.cells for row in present)
            ]
            levels = [i for i, (_, (d, _)) in enumerate(columns) if constants.cog_level(d) is not None]
            if present:
                views.append(
                    ScoreView(
                        f"{metric}-n{n_shot}",
                        group,
                        f"{'Top-1' if metric == 'top1' else 'Top-5'} accuracy (%), {shots_title(n_shot)}",
                        columns,
                        metric,
                        levels if len(levels) > 1 else (),
                        present,
                    )
                )
    if len(shots) > 1:
        few_first = sorted(shots, key=lambda n: (n == 0, n))
        for number, dataset in enumerate(datasets):
            present = [row for row in rows if any(key[0] == dataset for key in row.cells)]
            views.append(
                ScoreView(
                    f"top1-d{number}",
                    "Top-1, numbers of images side by side (as Tables 5–10 of the paper)",
                    f"Top-1 accuracy (%) on {label(dataset)}",
                    [
                        (shots_title(n) if n else "all", (dataset, n))
                        for n in few_first
                        if any((dataset, n, "top1") in row.cells for row in present)
                    ],
                    "top1",
                    (),
                    present,
                )
            )
    return views
