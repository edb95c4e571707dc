"""Runs on data with the counts of the benchmark, near the published numbers of ResNet50."""

import json
import pickle
from pathlib import Path

import numpy as np
from result_folders import make_logs

from cog import constants
from cog.results import concept_counts, published

#: Published top-1 accuracies of ResNet50 by data set and shots.
REFERENCE = (row for row in published.rows() if row["model"] == published.REFERENCE)
RESNET50 = {(row["dataset"], row["n_shot"]): row["value"] for row in REFERENCE}

FEATURES = {"checkpoint_sha256": "c" * 64, "image_list_sha256": "1" * 64}
SETTINGS = {
    **{"n_trials": 30, "n_epochs": 100, "batch_size": 1024, "momentum": 0.9, "val_frac": 0.2},
    **{"lr_interval": [0.1, 100.0], "wd_interval": [1e-12, 1e-4], "normalize": True, "classifier": "logreg"},
}
TRIALS = [
    {"number": n, "lr": 0.1 * 1.25**n, "wd": 1e-5 / 2**n, "val_top1": 50.0 + n, "diverged": n > 25}
    for n in range(30)
]


def write_run(root, model, dataset, seed, shift, *, n_shot=0, evaluation="logreg", **changes):
    """Write a run with the accuracy of ResNet50 plus ``shift``; ``changes``: entries of results.json."""
    right = (RESNET50[dataset, n_shot] + shift) / 100
    chances = np.clip(right + 0.15 * np.random.default_rng(0).uniform(-1, 1, 1000), 0, 1)
    correct = np.random.default_rng(seed).binomial(50, chances)
    top1 = 100 * correct.sum() / 50_000
    features = {"model": model, **FEATURES}
    identity = {**SETTINGS, "seed": seed, "n_shot": n_shot}
    identity |= {"train_features": features, "test_features": features}
    final = {"folder": "final-lr-1.0_wd-1e-06", "lr": 1.0, "wd": 1e-6, "test_top1": top1, "test_top5": 99.0}
    final |= {"diverged": False, **concept_counts.write(correct.tolist(), [50] * 1000)}
    record = {
        **{"status": "complete", "seed": seed, "n_shot": n_shot, "n_classes": 1000, "trials": TRIALS},
        "rows": {"final_train": 1_281_167 if dataset == constants.IN1K else 1_000_000, "test": 50_000},
        **changes,
        "final": {**final, **changes.get("final", {})},
        "identity": {**identity, **changes.get("identity", {})},
    }
    title, _, name = model.partition("_")
    shots = f"_N{n_shot}" if n_shot else ""
    folder = Path(root) / title / name / dataset / f"eval_{evaluation}{shots}" / f"seed-{seed}"
    (folder / final["folder"]).mkdir(parents=True, exist_ok=True)
    logs = pickle.dumps(make_logs(top1, 99.0, n_epochs=20))
    (folder / final["folder"] / "logs.pkl").write_bytes(logs)
    (folder / "results.json").write_text(json.dumps(record))
    return folder


def write_study(root, models, *, seeds=(22, 37), shots=(0, 8), datasets=constants.DATASETS, **changes):
    """Write runs of several models, given with their distances from ResNet50."""
    for model, shift in models.items():
        for dataset in datasets:
            for n_shot in shots:
                for seed in seeds:
                    write_run(root, model, dataset, seed, shift, n_shot=n_shot, **changes)
    return root
