"""The table of models, for ``models list`` and the documentation."""

from __future__ import annotations

from collections.abc import Iterable

from cog.models.spec import PaperModel

_MEANS = {
    (0.485, 0.456, 0.406): "ImageNet",
    (0.5, 0.5, 0.5): "0.5 / 0.5",
    (0.0, 0.0, 0.0): "none",
    (0.48145466, 0.4578275, 0.40821073): "CLIP's",
}


def markdown(models: Iterable[PaperModel]) -> str:
    """Return the models as a Markdown table."""
    rows = [_row(spec) for spec in models]
    lines = [rows[0].keys(), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(spec: PaperModel) -> dict[str, str]:
    return {
        "model": spec.name,
        "label": spec.label,
        "category": spec.category,
        "pretraining": spec.pretraining,
        "comparable": "yes" if spec.comparable else "no",
        "dim": str(spec.dim),
        "input": str(spec.size),
        "mean / std": _MEANS[spec.mean],
        "top-1": "" if spec.top1 is None else f"{spec.top1:.2f}",
        "file": f"[{'with a browser' if spec.browser else 'link'}](<{spec.url}{spec.parts[-1]}>)",
        "license": spec.license or "unknown",
        "publication": spec.paper,
        "notes": spec.note,
    }
