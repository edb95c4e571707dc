"""The sortable tables: own and published models side by side, one table per view."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cog import constants
from cog.reporting.html.facts import Facts
from cog.reporting.html.markup import breakable, esc, hidden, score, scroll
from cog.results.cells import SeedAverage, dataset_key
from cog.results.labels import dataset_label, shots_title
from cog.results.published import CATEGORY_LABELS, MODELS
from cog.results.ranking import REFERENCE


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


@dataclass(frozen=True)
class _View:
    """One table: its group in the choice, title, columns and cells."""

    key: str
    group: str
    title: str
    columns: Sequence[tuple[str, tuple[str, int]]]  # title, (data set, shots)
    metric: str
    mean_of: Sequence[int]  # columns averaged in a last one, if any
    rows: Sequence[PageRow]


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


def _views(rows: Sequence[PageRow], *, label: Callable[[str], str]) -> list[_View]:
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
                    _View(
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
                _View(
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


def render(rows: Sequence[PageRow], *, official: bool) -> str:
    """Return the choice of a view, the filter, and all tables.

    Args:
        rows: the models.
        official: whether ``in1k`` and ``cog_l1`` are the paper's data sets, and called as there.
    """
    views = _views(rows, label=dataset_label if official else lambda name: name or "(unnamed)")
    if not views:
        return "<p>There are no results to show.</p>"
    # The first that shows an own result, if there is any.
    first = next((view for view in views if any(row.own for row in view.rows)), views[0])
    groups: dict[str, list[_View]] = {}
    for view in views:
        groups.setdefault(view.group, []).append(view)
    options = "".join(
        f'<optgroup label="{esc(group)}">'
        + "".join(
            f'<option value="{view.key}"{" selected" * (view is first)}>{esc(view.title)}</option>'
            for view in members
        )
        + "</optgroup>"
        for group, members in groups.items()
    )
    baselines = "".join(
        f'<option value="{esc(row.key)}">{esc(row.label)}</option>'
        for row in sorted(rows, key=lambda row: row.key != f"paper-{REFERENCE}")
    )
    controls = (
        '<form class="controls needs-script" role="search" aria-label="Table">'
        f'<label>Table <select id="view">{options}</select></label>'
        f'<label>Values <select id="baseline"><option value="">accuracy</option>'
        f'<optgroup label="points above or below">{baselines}</optgroup></select></label>'
        '<label>Filter <input id="filter" type="search" autocomplete="off" placeholder="name or group" '
        'aria-describedby="shown"></label>'
        f'<output id="shown" aria-live="polite">{len(rows)} model{"s" * (len(rows) != 1)}</output></form>'
    )
    return controls + "".join(map(_draw, views)) + '<p class="unseen" id="said" aria-live="polite"></p>'


def _draw(view: _View) -> str:
    # What is missing goes last, own models first among equals.
    sort_column = len(view.columns) - 1 + bool(view.mean_of)
    drawn = [(row, *_cells(view, row)) for row in view.rows]
    drawn.sort(
        key=lambda item: (item[2][sort_column] is None, -(item[2][sort_column] or 0.0), not item[0].own)
    )
    titles = ["Model", *(title for title, _ in view.columns), *(["mean of levels"] if view.mean_of else [])]
    head = "".join(
        f'<th scope="col" aria-sort="{"descending" if index == sort_column + 1 else "none"}">'
        f'<button type="button" disabled>{esc(title)}</button></th>'
        for index, title in enumerate(titles)
    )
    body = "".join(_draw_row(row, cells) for row, cells, _ in drawn)
    table = (
        f'<table class="scores sortable"><caption><span>{esc(view.title)}, mean ± standard deviation over seeds'
        "</span></caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )
    return f'<div class="view" id="view-{view.key}">{scroll(table, view.title)}</div>'


def _draw_row(row: PageRow, cells: Sequence[str]) -> str:
    group = "own result" if row.own else CATEGORY_LABELS.get(row.kind, row.kind)
    chip = f'<span class="chip {"own" if row.own else esc(row.kind)}">{esc(group)}</span>'
    cls = ' class="own"' if row.own else ""
    return (
        f'<tr{cls} data-key="{esc(row.key)}"><th scope="row"><span class="name">{breakable(row.label)}</span> '
        f"{chip}</th>{''.join(cells)}</tr>"
    )


def _cells(view: _View, row: PageRow) -> tuple[list[str], list[float | None]]:
    texts: list[str] = []
    values: list[float | None] = []
    for _, key in view.columns:
        cell = row.cells.get((*key, view.metric))
        if cell is None:
            texts.append('<td class="none">–</td>')
            values.append(None)
            continue
        mark = ""
        if cell.missing_seeds:
            have, want = len(cell.seeds), len(cell.seeds) + len(cell.missing_seeds)
            mark = (
                f' <span class="part" title="{have} of {want} seeds">{have}/{want}{hidden(" seeds")}</span>'
            )
        texts.append(f'<td data-v="{cell.value:.3f}">{score(cell)}{mark}</td>')
        values.append(cell.value)
    if view.mean_of:
        parts = [values[index] for index in view.mean_of]
        known = [value for value in parts if value is not None]
        if len(known) == len(parts):
            mean = statistics.fmean(known)
            texts.append(f'<td data-v="{mean:.3f}"><b>{mean:.1f}</b></td>')
            values.append(mean)
        else:
            texts.append('<td class="none">–</td>')
            values.append(None)
    return texts, values
