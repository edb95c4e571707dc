"""Cells of results drawn as text, Markdown, CSV or LaTeX tables: models x data sets, one per shots."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cog.results import Cell, dataset_key, natural_key

FORMATS = ("text", "markdown", "csv", "latex")

METRIC_LABELS = {"top1": "top-1", "top5": "top-5"}

CSV_COLUMNS = ("model", "dataset", "n_shot", "metric", "mean", "std", "n_seeds", "missing_seeds")

_LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: "\\" + character for character in "&%$#_{}"},
}


@dataclass(frozen=True)
class _Table:
    """One table before it is drawn: what all formats but CSV share."""

    metric: str
    n_shot: int
    models: tuple[str, ...]
    datasets: tuple[str, ...]
    cells: dict[tuple[str, str], Cell]
    decimals: int

    @property
    def title(self) -> str:
        return f"{METRIC_LABELS[self.metric]} accuracy (%), {shots_label(self.n_shot)}, mean ± std over seeds"

    def number(self, model: str, dataset: str, template: str, absent: str) -> str:
        """Fill ``template`` (fields ``mean``, ``std``), or return ``absent``."""
        cell = self.cells.get((model, dataset))
        if cell is None:
            return absent
        score = cell.score(self.metric)
        if score is None:
            return absent
        std = "?" if score.std is None else f"{score.std:.{self.decimals}f}"
        return template.format(mean=f"{score.mean:.{self.decimals}f}", std=std)

    def mark(self, model: str, dataset: str) -> str:
        """Return ``(2/5)`` when only two of five seeds are there, else nothing."""
        cell = self.cells.get((model, dataset))
        if cell is None or not cell.missing_seeds:
            return ""
        return f"({len(cell.seeds)}/{len(cell.seeds) + len(cell.missing_seeds)})"

    def row(self, model: str, template: str, absent: str) -> list[str]:
        """Return the numbers of ``model``, each with its mark."""
        return [
            f"{self.number(model, dataset, template, absent)} {self.mark(model, dataset)}".rstrip()
            for dataset in self.datasets
        ]

    def missing(self) -> list[tuple[str, str]]:
        """List the incomplete cells: ``("model, dataset", "45, 77")``."""
        cells = (self.cells.get((model, dataset)) for model in self.models for dataset in self.datasets)
        return [
            (printable(f"{cell.model}, {cell.dataset}"), ", ".join(map(str, cell.missing_seeds)))
            for cell in cells
            if cell is not None and cell.missing_seeds
        ]


def shots_label(n_shot: int) -> str:
    """Return ``all training images`` or ``8 training images per class``."""
    if n_shot == 0:
        return "all training images"
    return f"{n_shot} training image{'s' if n_shot != 1 else ''} per class"


def printable(text: str) -> str:
    """Return ``text`` on one line and encodable: odd characters of folder names become escapes."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text
    )


def render(
    cells: Iterable[Cell],
    *,
    fmt: str = "text",
    metrics: Sequence[str] = ("top1",),
    decimals: int = 1,
    models: Sequence[str] | None = None,
    datasets: Sequence[str] | None = None,
    n_shots: Sequence[int] | None = None,
) -> str:
    """Draw cells as tables.

    Args:
        cells: what to show.
        fmt: one of ``FORMATS``. CSV is one tidy row per cell and metric; the others one table per
            number of shots (all images first, then rising) and metric.
        metrics: ``"top1"``, ``"top5"`` or both.
        decimals: digits after the point.
        models: rows, in this order; default: those of ``cells``, in natural order.
        datasets: columns; default: those of ``cells``. Always in the order of
            :func:`cog.results.dataset_key`.
        n_shots: default: those of ``cells``.

    Returns:
        The text, ending with one newline. Combinations without any run are shown as a dash (not in CSV).
    """
    cells = list(cells)
    rows = tuple(models or sorted({cell.model for cell in cells}, key=natural_key))
    columns = tuple(sorted(set(datasets or (cell.dataset for cell in cells)), key=dataset_key))
    shots = sorted(set(n_shots if n_shots is not None else (cell.n_shot for cell in cells)))
    cells = [
        cell for cell in cells if cell.model in rows and cell.dataset in columns and cell.n_shot in shots
    ]
    if fmt == "csv":
        return _csv(cells, rows=rows, metrics=metrics, decimals=decimals)
    draw: Callable[[_Table], str] = {"text": _text, "markdown": _markdown, "latex": _latex}[fmt]
    tables = [
        _Table(
            metric=metric,
            n_shot=n_shot,
            models=rows,
            datasets=columns,
            cells={(cell.model, cell.dataset): cell for cell in cells if cell.n_shot == n_shot},
            decimals=decimals,
        )
        for n_shot in shots
        for metric in metrics
    ]
    return "\n".join(draw(table) for table in tables)


def _csv(cells: Sequence[Cell], *, rows: Sequence[str], metrics: Sequence[str], decimals: int) -> str:
    order = sorted(cells, key=lambda cell: (cell.n_shot, rows.index(cell.model), dataset_key(cell.dataset)))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for cell in order:
        for metric in metrics:
            score = cell.score(metric)
            if score is None:
                continue
            writer.writerow(
                [
                    printable(cell.model),
                    printable(cell.dataset),
                    cell.n_shot,
                    metric,
                    f"{score.mean:.{decimals}f}",
                    "" if score.std is None else f"{score.std:.{decimals}f}",
                    len(cell.seeds),
                    " ".join(map(str, cell.missing_seeds)),
                ]
            )
    return stream.getvalue()


def _text(table: _Table) -> str:
    grid = [["", *map(printable, table.datasets)]]
    columns = [_text_column(table, dataset) for dataset in table.datasets]
    for row, model in enumerate(table.models):
        grid.append([printable(model), *(column[row] for column in columns)])
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    lines = [table.title, ""]
    for row_cells in grid:
        first, *rest = [cell.ljust(width) for cell, width in zip(row_cells, widths, strict=True)]
        lines.append("  ".join([first, *rest]).rstrip())
    if missing := table.missing():
        lines += ["", "missing seeds:", *(f"  {where}: {seeds}" for where, seeds in missing)]
    return "\n".join(lines) + "\n"


def _text_column(table: _Table, dataset: str) -> list[str]:
    """Cells of one column with their decimal points below each other."""
    means = [table.number(model, dataset, "{mean}", "-") for model in table.models]
    stds = [table.number(model, dataset, " ± {std}", "") for model in table.models]
    before = max(map(len, means))
    numbers = [(mean.rjust(before) if std else mean) + std for mean, std in zip(means, stds, strict=True)]
    width = max(map(len, numbers))
    marks = [table.mark(model, dataset) for model in table.models]
    return [f"{number.ljust(width)} {mark}".rstrip() for number, mark in zip(numbers, marks, strict=True)]


def _markdown(table: _Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    def escape(text: str) -> str:
        return printable(text).replace("\\", "\\\\").replace("|", "\\|")

    lines = [table.title, "", line(["model", *map(escape, table.datasets)])]
    lines.append(line(["---", *["---:"] * len(table.datasets)]))
    for model in table.models:
        lines.append(line([escape(model), *table.row(model, "{mean} ± {std}", "-")]))
    if missing := table.missing():
        lines += ["", "Missing seeds:", "", *(f"- {escape(where)}: {seeds}" for where, seeds in missing)]
    return "\n".join(lines) + "\n"


def _latex(table: _Table) -> str:
    def escape(text: str) -> str:
        return "".join(_LATEX_ESCAPES.get(character, character) for character in printable(text))

    lines = [
        f"% {table.title.replace('±', '+-')}; needs \\usepackage{{booktabs}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.datasets)}}}",
        r"\toprule",
        " & ".join(["model", *map(escape, table.datasets)]) + r" \\",
        r"\midrule",
    ]
    for model in table.models:
        numbers = table.row(model, r"${mean} \pm {std}$", "--")
        lines.append(" & ".join([escape(model), *numbers]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    if missing := table.missing():
        lines += ["% missing seeds:", *(f"%   {where}: {seeds}" for where, seeds in missing)]
    return "\n".join(lines) + "\n"
