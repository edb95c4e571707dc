"""The table of models in text, Markdown and CSV, for ``list`` and the documentation."""

from __future__ import annotations

from collections.abc import Sequence

from cog.models.spec import ModelSpec
from cog.runtime.csv_text import csv_text

COLUMNS = (
    "model", "label", "category", "pretraining", "comparable", "dim", "params (M)", "input", "mean / std", "settings",
    "script", "license", "publication", "notes",
)  # fmt: skip

#: Columns that fit on a terminal.
SHORT_COLUMNS = ("model", "category", "dim", "params (M)", "input", "script", "notes")

_STATISTICS = {
    ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)): "ImageNet",
    ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)): "0.5 / 0.5",
    ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)): "none",
    ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)): "CLIP's",
}


def row(spec: ModelSpec) -> dict[str, str]:
    """Return one model's cells, column -> text, in the order of :data:`COLUMNS`."""
    pre = spec.preprocess
    statistics = _STATISTICS.get((tuple(pre.mean), tuple(pre.std)), f"{pre.mean} / {pre.std}")  # type: ignore[arg-type]
    return {
        "model": spec.name,
        "label": spec.paper.label,
        "category": spec.paper.category,
        "pretraining": spec.pretraining,
        "comparable": "yes" if spec.paper.comparable else "no",
        "dim": str(spec.feature_dim),
        "params (M)": f"{spec.network.parameters / 1e6:.1f}",
        "input": f"{pre.crop}",
        "mean / std": statistics,
        "settings": ", ".join(
            [f"PROFILE {name}" for name in spec.profiles] + [f"VARIANT {name}" for name in spec.variants]
        ),
        "script": spec.release.script,
        "license": spec.release.license or "unknown",
        "publication": spec.paper.title,
        "notes": spec.note,
    }


def text(specs: Sequence[ModelSpec]) -> str:
    """Return the short columns, aligned."""
    cells = [SHORT_COLUMNS, *([row(spec)[column] for column in SHORT_COLUMNS] for spec in specs)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(SHORT_COLUMNS))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def markdown(specs: Sequence[ModelSpec], *, columns: Sequence[str] = COLUMNS, links: str = "") -> str:
    """Return a Markdown table.

    Args:
        specs: the models.
        columns: headers of the columns to include.
        links: path from the page to the scripts, whose names become links; empty: no links.
    """

    def cell(spec: ModelSpec, column: str) -> str:
        value = row(spec)[column].replace("|", "\\|")
        return f"[{value}]({links}/{value})" if links and column == "script" and value else value

    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(cell(spec, column) for column in columns)} |" for spec in specs]
    return "\n".join(lines)


def comma_separated(specs: Sequence[ModelSpec]) -> str:
    """Return all columns as CSV, with further declared numbers."""
    header = (*COLUMNS, "parameters", "paper_parameters_M", "published_top1", "sources", "sha256")
    rows = (
        (
            *row(spec).values(),
            spec.network.parameters,
            spec.paper.parameters,
            None if spec.release.accuracy is None else spec.release.accuracy.top1,
            " ".join(source.url for source in spec.release.sources),
            " ".join(spec.sha256_prefixes),
        )
        for spec in specs
    )
    return csv_text(header, rows).rstrip("\n")


FORMATS = {"text": text, "markdown": markdown, "csv": comma_separated}
