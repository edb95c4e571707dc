"""Runs and averages for the tests of the report, without result folders."""

from __future__ import annotations

from cog import constants
from cog.results.query import QueryResult
from cog.results.run_details import Details
from cog.results.run_records import Run, average_runs
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
    """Return a run of this toolkit on the official data; ``changes`` replace fields of Run or Details."""
    settings = {**SETTINGS, "seed": seed, "n_shot": n_shot, **changes.pop("settings", {})}
    details = {
        "settings": settings,
        "n_classes": 1000,
        "rows": {"final_train": n_shot * 1000 or N_TRAIN.get(dataset, 1000), "test": 50_000},
        "versions": {"torch": "2.9.0"},
        "device": "cuda:0",
        "finished": "2026-11-19T10:00:00+00:00",
    }
    fields = {
        "top5": min(100.0, top1 + 10),
        "n_epochs": settings["n_epochs"],
        "lr": 10.0,
        "wd": 1e-6,
        "diverged": False,
    }
    for key, value in changes.items():
        (details if key in Details.__dataclass_fields__ else fields)[key] = value
    return Run(
        model=model,
        dataset=dataset,
        n_shot=n_shot,
        seed=seed,
        top1=top1,
        folder=str(path or f"/runs/{model}/{dataset}/eval_N{n_shot}/seed-{seed}"),
        final_folder="final-lr-10.0_wd-1e-06",
        details=Details(**details),
        **fields,
    )


def make_found(runs=(), cells=None, *, seeds=constants.SEEDS, problems=(), **more):
    """Return the results for a page; ``cells`` are by default the averages of the runs."""
    cells = average_runs(runs, seeds) if cells is None else cells
    return QueryResult(list(runs), list(problems), list(cells), [], **more)


def make_cell(model="my_net", dataset="in1k", n_shot=0, mean=70.0, std=0.1, seeds=constants.SEEDS, **changes):
    """Return an average of top-1 accuracies over five seeds."""
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


#: Forty models with long names, many with the same beginning, and with all kinds of pretraining data.
_SIZES = ("small", "base", "large")
FORTY = (
    *(f"timm_vit_{size}_patch14_{kind}.lvd142m" for size in _SIZES for kind in ("dinov2", "reg4_dinov2")),
    *(f"timm_vit_{size}_patch16_224.{tag}" for size in _SIZES for tag in ("augreg_in21k", "mae", "dino")),
    *(f"timm_convnext_{size}.{tag}" for size in _SIZES for tag in ("fb_in1k", "fb_in22k", "clip_laion2b")),
    *(f"timm_resnet{depth}.{tag}" for depth in (50, 101, 152) for tag in ("a1_in1k", "tv_in1k")),
    *(f"openclip_ViT-{size}_{data}" for size in ("B-32", "L-14") for data in ("openai", "datacomp_xl_s13b_b90k")),
    "timm_aimv2_large_patch14_224.apple_pt", "aim_600m", "my_net", "my_net-longer-trained",
    "our_vit_small", "our_vit_base",
)  # fmt: skip


def forty_models(n_shots=(0,), seeds=constants.SEEDS, **changes):
    """Return runs of forty models on all six data sets; many are better than all published models."""
    runs = []
    for position, model in enumerate(FORTY):
        for index, dataset in enumerate(constants.DATASETS):
            for n_shot in n_shots:
                top1 = 86.0 - position * 0.6 - index * (3.5 + position % 5 * 0.6) - (25 if n_shot else 0)
                runs += [
                    make_run(
                        model, dataset, n_shot, seed, round(top1 + (seed * 7919 % 101) / 300, 3), **changes
                    )
                    for seed in seeds
                ]
    return runs
