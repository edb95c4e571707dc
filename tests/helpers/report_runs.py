"""Runs and cells for the tests of the report, without any folder."""

from __future__ import annotations

from pathlib import Path

from cog import constants
from cog.results.query import QueryResult
from cog.results.run_records import Details, Run, summarise
from cog.results.scores import SeedAverage

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
N_TRAIN = {"in1k": 1_281_167, **dict.fromkeys(constants.COG_LEVELS, 1_100_000)}


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


def make_found(runs=(), cells=None, *, seeds=constants.SEEDS, problems=(), **more):
    """Everything that a page is made of; cells: default: the averages of the runs."""
    cells = summarise(runs, seeds) if cells is None else cells
    return QueryResult(list(runs), list(problems), list(cells), [], **more)


def make_cell(model="my_net", dataset="in1k", n_shot=0, mean=70.0, std=0.1, seeds=constants.SEEDS, **changes):
    """The top-1 accuracy over five seeds."""
    return SeedAverage(
        model=model,
        dataset=dataset,
        evaluation="logreg",
        metric="top1",
        n_shot=n_shot,
        value=mean,
        std=std,
        seeds=tuple(seeds),
        missing_seeds=tuple(s for s in constants.SEEDS if s not in seeds),
        epochs=(100,) * len(seeds),
        **changes,
    )


def published_cell(model, dataset="in1k", n_shot=0, mean=70.0, std=0.1):
    return SeedAverage(model, dataset, "logreg", "top1", n_shot, mean, std, source="paper v2")
