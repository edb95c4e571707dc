"""Hand-written results of other experiments, for tests of tables, figures and report."""

from __future__ import annotations

import json

from result_folders import make_seed_folder

from cog.paths import split_model_name


def folder_of(root, model, dataset):
    title, architecture = split_model_name(model)
    return root / title / architecture / dataset


def write_record(root, model, dataset, name, values, *, per_seed=None, seeds=None, **entries):
    """Write an ``analysis_<name>`` folder."""
    per_seed = per_seed or {}
    folder = folder_of(root, model, dataset) / f"analysis_{name}"
    folder.mkdir(parents=True)
    record = {
        "status": "complete",
        "analysis": name,
        "model": model,
        "dataset": dataset,
        "identity": {"test_features": {"sample_sha256": f"{model}-{dataset}"}},
        "values": values,
        "seeds": seeds if seeds is not None else [int(seed) for seed in per_seed],
        "per_seed": per_seed,
        "details": {},
        "versions": {"torch": "2.9.0"},
        "device": "cpu",
        "seconds": 12.5,
        "finished": "2026-01-01T10:00:00+00:00",
    }
    (folder / "results.json").write_text(json.dumps({**record, **entries}))
    return folder


def write_runs(root, model, dataset, evaluation, by_seed):
    """Write the run folders of an evaluation: ``{seed: top-1}``."""
    for seed, top1 in by_seed.items():
        path = folder_of(root, model, dataset) / f"eval_{evaluation}" / f"seed-{seed}"
        make_seed_folder(path, top1, min(100.0, top1 + 10))
