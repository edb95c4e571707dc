"""The analyses by name, which is also their order, and the tasks of a command. This module does not import torch."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from yacs.config import CfgNode

from cog import config, constants
from cog.analysis import alignment, cross, kmeans, neighbors  # noqa: F401 - each declares its analyses
from cog.analysis.base import ANALYSES, Analysis, ModelData, Task, plan
from cog.errors import CogError
from cog.paths import ModelDir, check_dataset_name
from cog.runtime import files

ALL = "all"


def get(names: Sequence[str]) -> list[Analysis]:
    """Return the analyses ``names``, by name; ``all`` means every analysis with ``in_all``.

    Raises:
        CogError: an unknown name.
    """
    for name in names:
        if name not in ANALYSES and name != ALL:
            known = ", ".join(sorted(ANALYSES))  # the order of declarations depends on who imports them
            raise CogError(f"--analysis {name!r} is not an analysis, expected {known} or {ALL}")
    chosen = [each for each in ANALYSES.values() if each.name in names or (ALL in names and each.in_all)]
    return sorted(chosen, key=lambda each: each.name)


def pending(args: argparse.Namespace) -> list[Task]:
    """Return the tasks whose results are missing, after a check of all inputs and output folders.

    Complete results of the same settings and features are skipped.

    Raises:
        CogError: flags contradict each other, an input is missing, or a folder has another result and there is no
            ``--overwrite``.
    """
    cfg = config.get_cfg(model_name=args.model, config_file=args.config, opts=args.opts)
    analyses = get(args.analysis)
    for flag in ("trained_on", "images_root"):
        if getattr(args, flag) is not None and "cross" not in (each.name for each in analyses):
            raise CogError(f"--{flag} is for --analysis cross and has no effect here; leave it out")
    return [task for data in _inputs(args, cfg) for task in plan(analyses, data) if not task.folder.is_done()]


def _inputs(args: argparse.Namespace, cfg: CfgNode) -> Iterator[ModelData]:
    """Yield each data set.

    Raises:
        CogError: flags contradict each other, or the models root is missing.
    """
    datasets: list[str] = args.dataset or []
    for name in datasets:
        check_dataset_name(name)
    if len(set(datasets)) < len(datasets):
        raise CogError(f"--dataset names a data set twice: {' '.join(datasets)}")
    given = {"train": args.train_features_dir, "test": args.test_features_dir}
    folders = {split: Path(path) for split, path in given.items() if path is not None}
    if len(datasets) > 1 and folders:
        raise CogError(
            "--train_features_dir and --test_features_dir are of one data set, and --dataset names "
            f"{len(datasets)}; give --models_root_dir instead"
        )
    model_dir = None
    if args.models_root_dir is not None and args.model is not None:
        model_dir = ModelDir(files.require_dir(args.models_root_dir, "--models_root_dir"), args.model)
    if not folders and not (model_dir and datasets):
        raise CogError(
            "no features: give --models_root_dir with --model and --dataset, or --train_features_dir and "
            "--test_features_dir"
        )
    for dataset in datasets or (None,):
        features, output = folders, None if args.output_dir is None else Path(args.output_dir)
        if model_dir is not None and dataset is not None:
            features = folders or {split: model_dir.features(dataset, split) for split in constants.SPLITS}
            if output is None:
                output = model_dir.path / dataset
            elif len(datasets) > 1:
                output /= dataset
        if output is None:
            raise CogError("nowhere to write: give --output_dir")
        yield ModelData(args.model, dataset, model_dir, features, output, cfg, args)
