"""The table of models, for ``list`` and the documentation."""

from __future__ import annotations

from collections.abc import Iterable

from cog.models.spec import PaperModel

_STATISTICS = {
    ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)): "ImageNet",
    ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)): "0.5 / 0.5",
    ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)): "none",
    ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)): "CLIP's",
}


def markdown(specs: Iterable[PaperModel]) -> str:
    """Return the models as a Markdown table."""
    rows = [_row(spec) for spec in specs]
    lines = [rows[0].keys(), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(spec: PaperModel) -> dict[str, str]:
    pre = spec.preprocess
    return {
        "model": spec.name,
        "label": spec.label,
        "category": spec.category,
        "pretraining": spec.pretraining,
        "comparable": "yes" if spec.comparable else "no",
        "dim": str(spec.feature_dim),
        "params (M)": f"{spec.parameters / 1e6:.1f}",
        "input": str(pre.crop),
        "mean / std": _STATISTICS[pre.mean, pre.std],
        "top-1": "" if spec.published is None else f"{spec.published.top1:.2f}",
        "file": f"[{'with a browser' if spec.browser else 'link'}](<{spec.url}{spec.parts[-1]}>)",
        "license": spec.license or "unknown",
        "publication": spec.paper,
        "notes": spec.note,
    }
