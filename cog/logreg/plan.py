"""The plan of ``logreg.py``: the runs, their files and folders."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

from cog import config, constants
from cog.errors import CogError
from cog.features.folder import identify_input, no_features, require_one_network
from cog.logreg.run_folder import RunFolder, RunPlan
from cog.logreg.settings import Settings, from_config
from cog.paths import ModelDir, check_dataset_name, features_file, seed_folder
from cog.runtime import files, provenance

if TYPE_CHECKING:
    from yacs.config import CfgNode


def plan_runs(args: argparse.Namespace) -> tuple[list[RunPlan], Path, Path]:
    """Return the plans of the requested runs, and the feature files of both splits.

    Raises:
        CogError: flags and keys that do not fit together; missing features, or those of different networks.
    """
    train, test, model_dir = _resolve_features(args)
    require_one_network(train, test)
    features = {
        f"{split}_features": identify_input(file) for split, file in (("train", train), ("test", test))
    }
    plans = []
    for run_cfg in _run_configs(args):
        settings = _get_settings(args, run_cfg)
        output = _output_of(args, run_cfg, model_dir)
        identity = dataclasses.asdict(settings) | features
        metadata = {
            "model": args.model,
            "dataset": args.dataset,
            "train_features": str(train),
            "test_features": str(test),
            "configuration": config.flat(run_cfg),
            "versions": provenance.versions(("torch", "optuna", "numpy")),
        }
        plans.append(RunPlan(settings, RunFolder(output, identity, overwrite=args.overwrite), metadata))
    return plans, train, test


def _resolve_features(args: argparse.Namespace) -> tuple[Path, Path, ModelDir | None]:
    """Return the feature files of both splits, and the folder of the model; None when the flags do not name it."""
    if args.dataset is not None:
        check_dataset_name(args.dataset)
    if (args.train_features_dir is None) != (args.test_features_dir is None):
        raise CogError("give both --train_features_dir and --test_features_dir, or neither")
    model_dir = None
    if args.models_root_dir is not None and args.model is not None and args.dataset is not None:
        model_dir = ModelDir(files.require_dir(args.models_root_dir, "--models_root_dir"), args.model)
    if args.train_features_dir is not None:
        folders = [Path(args.train_features_dir), Path(args.test_features_dir)]
    elif model_dir is not None:
        folders = [model_dir.features(args.dataset, split) for split in constants.SPLITS]
    else:
        raise CogError(
            "no features: give --models_root_dir with --model and --dataset, or --train_features_dir with "
            "--test_features_dir"
        )
    if args.output_dir is None and model_dir is None:
        raise CogError("nowhere to write: give --output_dir")
    train, test = (features_file(folder) for folder in folders)
    for path, split in zip((train, test), constants.SPLITS, strict=True):
        if not os.path.isfile(path):
            raise no_features(path, split)
    return train, test, model_dir


def _run_configs(args: argparse.Namespace) -> list[CfgNode]:
    """Return the configuration of each run, as for a call with this run alone."""
    for flag, values, key in (
        ("--seeds", args.seeds, "EVAL.SEED"),
        ("--n_shots", args.n_shots, "CLF.N_SHOT"),
    ):
        if values is not None and key in args.opts[::2]:
            raise CogError(f"{flag} and {key} are both given; leave one of them out")
        if values is not None and len(set(values)) < len(values):
            raise CogError(f"{flag} names a value twice: {' '.join(map(str, values))}")
    cfg, runs = _config(args, args.opts), [args.opts]
    if args.seeds is not None or args.n_shots is not None:
        runs = [
            [*args.opts, "EVAL.SEED", str(seed), "CLF.N_SHOT", str(n_shot)]
            for n_shot in args.n_shots or [cfg.CLF.N_SHOT]
            for seed in args.seeds or [cfg.EVAL.SEED]
        ]
    return [_config(args, opts) for opts in runs]


def _config(args: argparse.Namespace, opts: list[str]) -> CfgNode:
    return config.get_cfg(model_name=args.model, config_file=args.config, opts=opts)


def _get_settings(args: argparse.Namespace, cfg: CfgNode) -> Settings:
    """Return the protocol's settings from flags and configuration."""
    config.check_new_name(cfg, cfg.CLF.TYPE)
    return from_config(cfg, seed=cfg.EVAL.SEED, momentum=args.mom, lr=args.lr, wd=args.wd)


def _output_of(args: argparse.Namespace, cfg: CfgNode, model_dir: ModelDir | None) -> Path:
    """Return the folder of the run that ``cfg`` describes."""
    seed, n_shot = cfg.EVAL.SEED, cfg.CLF.N_SHOT
    if args.output_dir is None:
        assert model_dir is not None
        return model_dir.run(args.dataset, name=config.evaluation_name(cfg), n_shot=n_shot, seed=seed)
    if args.seeds is None and args.n_shots is None:
        return Path(args.output_dir)
    folder = Path(os.path.normpath(args.output_dir))
    return folder.with_name(f"{folder.name}_N{n_shot}" if n_shot else folder.name) / seed_folder(seed)
