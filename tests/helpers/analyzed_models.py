"""Features and classifiers of a model on IN-1K and two small levels, and their analyses by the command."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tiny
import torch
from result_folders import write_classifier

from cog.commands import analyze_features
from cog.results import analysis_records

DIM = 6
LEVEL = {
    "cog_l1": ("n02085620", "n02085782", "n02085936"),
    "cog_l2": ("n03000134", "n03000247", "n03000684"),
}


def write_features(models: Path, dataset: str, split: str, wnids, *, n=5, model="my/net", seed=0):
    """Write features, labels and image list of ``n`` images per concept; return X and Y."""
    folder = models / model / dataset / f"features_{split}"
    x = torch.randn(n * len(wnids), DIM, generator=torch.Generator().manual_seed(seed))
    y = torch.arange(len(wnids)).repeat_interleave(n)
    tiny.write_features(folder, x, y, name=f"my_net_{dataset}_{split}")
    paths = [f"{wnid}/{wnid}_{k}.JPEG\n" for wnid in wnids for k in range(n)]
    (folder / "image_paths.txt").write_text("".join(paths))
    return x, y


def predictions_with(hits: Sequence[int], n: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Return labels, and predictions of which ``hits[c]`` of ``n`` are right for class c."""
    labels = np.repeat(np.arange(len(hits)), n)
    right = np.concatenate([np.arange(n) < hit for hit in hits])
    return labels, np.where(right, labels, (labels + 1) % len(hits))


def write_run(
    models: Path, dataset: str, *, seed: int, n_classes=3, hits=None, model="my/net", folder="eval_logreg", scale=3.0,
    record=None, state=None,
):  # fmt: skip
    """Write a complete run with random weights, with ``hits`` right of 10 predictions per class; return the weights."""
    rng = torch.Generator().manual_seed(seed)
    weight = scale * torch.randn(n_classes, DIM, generator=rng)
    bias = torch.randn(n_classes, generator=rng)
    labels, predicted = (None, None) if hits is None else predictions_with(hits)
    write_classifier(
        models / model / dataset / folder / f"seed-{seed}", state or {"weight": weight, "bias": bias}, seed=seed,
        predicted=predicted, labels=labels, record=record,
    )  # fmt: skip
    return weight, bias


def analyze(models: Path, *flags: str) -> None:
    """Run analyze_features.py for my_net; flags are split into words."""
    common = ["--models_root_dir", str(models), "--model", "my_net", "--device", "cpu"]
    assert analyze_features.main([*common, *(word for flag in flags for word in flag.split())]) == 0


def read(models: Path, dataset: str, name: str) -> analysis_records.AnalysisRecord:
    """Return the record of an analysis of my_net."""
    found = analysis_records.read(models / "my/net" / dataset / f"analysis_{name}")
    assert isinstance(found, analysis_records.AnalysisRecord), found
    return found


def table(models: Path, dataset: str, name: str, file: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file of an analysis of my_net."""
    path = models / "my/net" / dataset / f"analysis_{name}" / file
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
