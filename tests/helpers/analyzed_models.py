"""Features and classifiers of a model on IN-1K and two small levels, and their analyses by the command."""

import csv
from pathlib import Path

import numpy as np
import tiny
import torch
from result_folders import write_classifier

from cog.commands import analyze_features
from cog.results import analysis_records

DIM = 6
LEVEL = {"cog_l1": ("n02085620", "n02085782", "n02085936"), "cog_l2": ("n03000134", "n03000247", "n03000684")}


def write_features(models: Path, dataset: str, split: str, wnids, *, n=5, model="my/net", seed=0):
    """Write features, labels and image list of ``n`` images per concept; return X and Y."""
    folder = models / model / dataset / f"features_{split}"
    x = torch.randn(n * len(wnids), DIM, generator=torch.Generator().manual_seed(seed))
    y = torch.arange(len(wnids)).repeat_interleave(n)
    tiny.write_features(folder, x, y, name=f"my_net_{dataset}_{split}")
    paths = [f"{wnid}/{wnid}_{k}.JPEG\n" for wnid in wnids for k in range(n)]
    (folder / "image_paths.txt").write_text("".join(paths))
    return x, y


def write_run(models, dataset, *, seed, n_classes=3, hits=(), model="my/net", scale=3.0, record=None):
    """Write a run with random weights, and ``hits`` right of 10 predictions per class; return the weights."""
    rng = torch.Generator().manual_seed(seed)
    weight = scale * torch.randn(n_classes, DIM, generator=rng)
    bias = torch.randn(n_classes, generator=rng)
    labels = np.repeat(np.arange(len(hits)), 10)
    right = np.arange(10) < np.array(hits)[:, None] if hits else np.array([])
    made = {"labels": labels, "predicted": np.where(right.ravel(), labels, (labels + 1) % n_classes)}
    folder = models / model / dataset / f"eval_logreg/seed-{seed}"
    state = {"weight": weight, "bias": bias}
    write_classifier(folder, state, seed=seed, record=record, **(made if hits else {}))
    return weight, bias


def analyze(models: Path, *flags: str, model: str = "my_net") -> None:
    """Run analyze_features.py; flags are split into words."""
    common = ["--models_root_dir", str(models), "--model", model, "--device", "cpu"]
    assert analyze_features.main([*common, *(word for flag in flags for word in flag.split())]) == 0


def read(models: Path, dataset: str, name: str) -> analysis_records.AnalysisRecord:
    """Return the record of an analysis of my_net."""
    return analysis_records.read(models / "my/net" / dataset / f"analysis_{name}")


def table(models: Path, dataset: str, name: str, file: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file of an analysis of my_net."""
    path = models / "my/net" / dataset / f"analysis_{name}" / file
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
