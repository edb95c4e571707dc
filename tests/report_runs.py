"""Runs and cells for the tests of the report, without any folder."""

from __future__ import annotations

from pathlib import Path

from cog import names
from cog.cells import Cell, Details, Run, Score

SETTINGS = {
    "n_trials": 30,
    "n_epochs": 100,
    "batch_size": 1024,
    "momentum": 0.9,
    "val_frac": 0.2,
    "lr_interval": [0.1, 100.0],
    "wd_interval": [1e-12, 1e-4],
    "normalize": True,
}
N_TRAIN = {"in1k": 1_281_167, **dict.fromkeys(names.COG_LEVELS, 1_100_000)}


def make_run(model="my_net", dataset="in1k", n_shot=0, seed=22, top1=70.0, *, path=None, **changes):
    """A run of this toolkit on the official data; ``changes`` replace entries of Run or Details."""
    settings = {**SETTINGS, "seed": seed, "n_shot": n_shot, **changes.pop("settings", {})}
    details = {
        "settings": settings,
        "n_classes": 1000,
        "rows": {"final_train": n_shot * 1000 or N_TRAIN.get(dataset, 1000), "test": 50_000},
        "n_trials": 30,
        "seconds": {"search": 10.0, "final": 1.0},
        "versions": {"torch": "2.9.0"},
        "device": "cuda:0",
        "finished": "2026-11-19T10:00:00+00:00",
    }
    fields = {"top5": min(100.0, top1 + 10), "n_epochs": 100, "lr": 10.0, "wd": 1e-6, "diverged": False}
    for key, value in changes.items():
        (details if key in Details.__dataclass_fields__ else fields)[key] = value
    return Run(
        model=model,
        dataset=dataset,
        n_shot=n_shot,
        seed=seed,
        top1=top1,
        path=Path(path or f"/runs/{model}/{dataset}/eval_N{n_shot}/seed-{seed}"),
        final_folder="final-lr-10.0_wd-1e-06",
        details=Details(**details),
        **fields,
    )


def make_cell(model="my_net", dataset="in1k", n_shot=0, mean=70.0, std=0.1, seeds=names.SEEDS, **changes):
    """A cell of five seeds."""
    return Cell(
        model=model,
        dataset=dataset,
        n_shot=n_shot,
        top1=Score(mean, std),
        top5=Score(mean + 10, std),
        seeds=tuple(seeds),
        missing_seeds=tuple(s for s in names.SEEDS if s not in seeds),
        epochs=(100,) * len(seeds),
        **changes,
    )


def published_cell(model, dataset="in1k", n_shot=0, mean=70.0, std=0.1):
    return Cell(
        model=model,
        dataset=dataset,
        n_shot=n_shot,
        top1=Score(mean, std),
        top5=None,
        seeds=(),
        missing_seeds=(),
        epochs=(),
        source="paper v2",
    )
