"""Checks of checkpoints: hash, parameter names and shapes, and one forward pass."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cog.errors import CogError
from cog.models.formats.detect import checkpoint_files, detect, sha256
from cog.models.spec import PaperModel
from cog.paths import ModelDir


@dataclass(frozen=True)
class CheckpointStatus:
    """The result of checking or downloading one checkpoint.

    Attributes:
        model: name of the model.
        status: one or two words; after a check "ok", "absent" or "bad".
        detail: one line of explanation.
    """

    model: str
    status: str
    detail: str


def check(specs: Sequence[PaperModel], models_root_dir: str | os.PathLike[str]) -> list[CheckpointStatus]:
    """Check the checkpoints under a root, one status per model, in order; each network is run once, on the CPU."""
    results = []
    for spec in specs:
        path = ModelDir(models_root_dir, spec.name).checkpoint
        status, detail = "absent", f"there is no {path}"
        if checkpoint_files(path):
            try:
                status, detail = "ok", ", ".join(_facts(spec, path))
            except CogError as error:
                status, detail = "bad", str(error)
        results.append(CheckpointStatus(spec.name, status, detail))
    return results


def _facts(spec: PaperModel, path: Path) -> list[str]:
    import torch

    from cog.models.backbone import load_backbone

    digest = sha256(path)
    facts = [
        {
            True: "SHA-256 as published",
            False: f"not the published file (SHA-256 {digest[:8]}...)",
            None: f"SHA-256 {digest[:8]}... (none is published)",
        }[spec.is_published(digest)],
        f"container {detect(path)}",
    ]
    backbone = load_backbone(spec.name, path)
    facts.append(f"{sum(p.numel() for p in backbone.parameters()) / 1e6:.1f}M parameters fit")
    size = spec.preprocess.crop
    x = torch.linspace(-1, 1, 2 * 3 * size * size).view(2, 3, size, size)
    with torch.inference_mode():
        y = backbone(x)
    if not y.isfinite().all():
        raise CogError(f"{path}: the features of a test pattern are NaN or infinite")
    return [*facts, f"features {tuple(y.shape)}, rms {float(y.square().mean().sqrt()):.3g}"]


def report(results: Sequence[CheckpointStatus]) -> str:
    """Return a table of the results and a line with the number of results of each status."""
    counts = Counter(result.status for result in results)
    name = max((len(result.model) for result in results), default=0)
    status = max(map(len, counts), default=0)
    lines = [f"{r.model:<{name}}  {r.status:<{status}}  {r.detail}" for r in results]
    return "\n".join([*lines, ", ".join(f"{n} {status}" for status, n in counts.items()) or "no models"])
