"""The plan of ``logreg.py``: which runs, on which files, into which folders."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import config, constants
from cog.errors import CogError
from cog.logreg.settings import Settings
from cog.paths import ModelDir, check_dataset_name, seed_folder
from cog.runtime import files, provenance

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from cog.logreg.run_folder import RunPlan


def resolve_features(args: argparse.Namespace) -> tuple[Path, Path, ModelDir | None]:
    """Return the feature files of both splits, and the model's folder when the flags name one."""
    if args.dataset is not None:
        check_dataset_name(args.dataset)
    given = (args.train_features_dir, args.test_features_dir)
    if (given[0] is None) != (given[1] is None):
        raise CogError("give both --train_features_dir and --test_features_dir, or neither")
    model_dir = None
    if args.models_root_dir is not None and args.model is not None and args.dataset is not None:
        model_dir = ModelDir(files.require_dir(args.models_root_dir, "--models_root_dir"), args.model)
    if given[0] is not None:
        train, test = Path(given[0]), Path(given[1])
    elif model_dir is not None:
        train, test = (model_dir.features(args.dataset, split) for split in constants.SPLITS)
    else:
        raise CogError(
            "no features: give --models_root_dir with --model and --dataset, or --train_features_dir with "
            "--test_features_dir"
        )
    if args.output_dir is None and model_dir is None:
        raise CogError("nowhere to write: give --output_dir")
    return _features_file(train, "train"), _features_file(test, "test"), model_dir


def output_of(args: argparse.Namespace, cfg: CfgNode, model_dir: ModelDir | None) -> Path:
    """Return the folder of the run that ``cfg`` describes."""
    seed, n_shot = cfg.EVAL.SEED, cfg.CLF.N_SHOT
    if args.output_dir is None:
        assert model_dir is not None
        return model_dir.run(args.dataset, name=config.evaluation_name(cfg), n_shot=n_shot, seed=seed)
    if args.seeds is None and args.n_shots is None:
        return Path(args.output_dir)
    folder = Path(os.path.normpath(args.output_dir))
    return folder.with_name(f"{folder.name}_N{n_shot}" if n_shot else folder.name) / seed_folder(seed)


def _features_file(path: Path, split: str) -> Path:
    file = path / constants.FEATURES_FILE if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise CogError(
            f"there are no {split} features {file}; run extract_features.py first, or check the path"
        )
    return file


def get_settings(args: argparse.Namespace, cfg: CfgNode, *, label: str = "") -> Settings:
    """Return the protocol's settings from flags and configuration."""
    config.check_new_name(cfg, cfg.CLF.TYPE)

    clf = cfg.CLF
    # What has no part in a run keeps its default: another value of it does not make another run.
    has_part: dict[str, int] = {}
    if clf.TYPE != "logreg":
        has_part |= {"mlp_hidden": clf.MLP_HIDDEN, "mlp_layers": clf.MLP_LAYERS}
    if clf.SEARCH == "batched":
        has_part["trials_per_round"] = clf.TRIALS_PER_ROUND
    return Settings(
        seed=cfg.EVAL.SEED,
        n_shot=clf.N_SHOT,
        n_trials=clf.N_TRIALS,
        n_epochs=clf.N_EPOCHS,
        batch_size=clf.BATCH_SIZE,
        momentum=args.mom,
        val_frac=clf.VAL_PERC,
        lr_interval=_interval(clf.LR_INTV),
        wd_interval=_interval(clf.WD_INTV),
        normalize=clf.NORM_FTS,
        lr=args.lr,
        wd=args.wd,
        precision=clf.PRECISION,
        search=clf.SEARCH,
        solver=clf.SOLVER,
        pruner=clf.PRUNER,
        classifier=clf.TYPE,
        pca_dim=clf.PCA_DIM,
        max_per_class=clf.MAX_PER_CLASS,
        label=label,
        **has_part,
    )


def _interval(pair: Sequence[float]) -> tuple[float, float]:
    low, high = pair
    return float(low), float(high)


def identify(settings: Settings, train: Path, test: Path) -> dict[str, Any]:
    """Return what makes two runs the same: settings and features (by size and, if known, origin)."""
    from cog.features.folder import FeatureFolder

    identity: dict[str, Any] = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in dataclasses.asdict(settings).items()
        if key != "label"
    }  # fmt: skip
    for split, file in (("train", train), ("test", test)):
        made = FeatureFolder(file.parent).metadata() or {}
        identity[f"{split}_features"] = {
            "bytes": file.stat().st_size,
            "checkpoint_sha256": made.get("checkpoint_sha256"),
            "image_list_sha256": made.get("image_list_sha256"),
        }
        if made.get("save_dtype", "float32") != "float32":  # files of two of the types have the same size
            identity[f"{split}_features"]["save_dtype"] = made["save_dtype"]
    return identity


def _one_run_configs(args: argparse.Namespace, cfg: CfgNode) -> list[tuple[CfgNode, list[str]]]:
    """Return configuration and ``KEY VALUE`` pairs of each run, as single calls would have them."""
    for flag, values, key in (
        ("--seeds", args.seeds, "EVAL.SEED"),
        ("--n_shots", args.n_shots, "CLF.N_SHOT"),
    ):
        if values is not None and key in args.opts[::2]:
            raise CogError(f"{flag} and {key} are both given; leave one of them out")
        if values is not None and len(set(values)) < len(values):
            raise CogError(f"{flag} names a value twice: {' '.join(map(str, values))}")
    if args.seeds is None and args.n_shots is None:
        return [(cfg, args.opts)]
    configs = []
    for n_shot in args.n_shots if args.n_shots is not None else [cfg.CLF.N_SHOT]:
        for seed in args.seeds if args.seeds is not None else [cfg.EVAL.SEED]:
            pairs = ["EVAL.SEED", str(seed), "CLF.N_SHOT", str(n_shot)]
            one = cfg.clone()
            one.defrost()
            one.merge_from_list(pairs)
            config.check_values(one)
            one.freeze()
            configs.append((one, [*args.opts, *pairs]))
    return configs


def plan_runs(args: argparse.Namespace, cfg: CfgNode) -> tuple[list[RunPlan], Path, Path]:
    """Return the runs that the command line asks for, and the feature files of both splits."""
    train, test, model_dir = resolve_features(args)
    configs = _one_run_configs(args, cfg)

    from cog.logreg.run_folder import RunFolder, RunPlan

    flags = {
        key: value for key, value in vars(args).items() if key not in ("opts", "seeds", "n_shots", "check")
    }
    plans = []
    for one, opts in configs:
        label = f"[seed {one.EVAL.SEED}, {one.CLF.N_SHOT or 'all'}] " if len(configs) > 1 else ""
        settings = get_settings(args, one, label=label)
        output = output_of(args, one, model_dir)
        plans.append(
            RunPlan(
                settings=settings,
                folder=RunFolder(
                    output,
                    identify(settings, train, test),
                    overwrite=args.overwrite,
                    skip_complete=args.skip_complete,
                ),
                arguments=flags | {"output_dir": str(output) if args.output_dir else None, "opts": opts},
                config_text=one.dump(),
                metadata={
                    "model": args.model,
                    "dataset": args.dataset,
                    "train_features": str(train),
                    "test_features": str(test),
                    "configuration": config.flat(one),
                    "versions": provenance.versions(("torch", "optuna", "numpy")),
                },
            )
        )
    return plans, train, test
