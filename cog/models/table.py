"""The table of models, for ``models list``; the documentation has it with further columns."""

from __future__ import annotations

from collections.abc import Iterable

from cog.models.spec import PaperModel

_COLUMNS = ("model", "label", "category", "pretraining", "dim", "input", "mean / std", "top-1", "file")


def markdown(models: Iterable[PaperModel]) -> str:
    """Return the models as a Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (_COLUMNS, ["---"] * 9, *map(_cells, models)))


def _cells(row: PaperModel) -> tuple[str, ...]:
    norm = " / ".join(f"{values[0]:.3g}" for values in row.norm) or "ImageNet"
    top1 = "" if row.top1 is None else f"{row.top1:.2f}"
    file = f"[{'with a browser' if row.browser else 'link'}](<{row.url}{row.parts[-1]}>)"
    return row.name, row.label, row.category, row.pretraining, str(row.dim), str(row.size), norm, top1, file
