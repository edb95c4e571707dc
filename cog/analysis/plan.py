"""The plan of ``analyze_features.py``: requests, tasks and missing results."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from yacs.config import CfgNode

from cog import config, constants
from cog.analysis import registry
from cog.analysis.task import AnalysisRequest, AnalysisTask
from cog.errors import CogError
from cog.paths import ModelDir, check_dataset_name
from cog.runtime import files


def plan_tasks(args: argparse.Namespace) -> Iterator[AnalysisTask]:
    """Yield every task of every data set that the flags of ``analyze_features.py`` name.

    Raises:
        CogError: flags contradict each other, or an input of a task is missing.
    """
    cfg = config.get_cfg(model_name=args.model, config_file=args.config, opts=args.opts)
    analyses = registry.get(args.analysis)
    for flag in ("trained_on", "images_root"):
        if getattr(args, flag) is not None and "cross" not in (analysis.name for analysis in analyses):
            raise CogError(f"--{flag} is for --analysis cross and has no effect here; leave it out")
    for request in _requests(args, cfg):
        for analysis in analyses:
            yield from analysis.plan(request)


def _requests(args: argparse.Namespace, cfg: CfgNode) -> list[AnalysisRequest]:
    """Return one request per data set.

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
    requests = []
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
        requests.append(AnalysisRequest(args.model, dataset, model_dir, features, output, cfg, args))
    return requests


def pending(args: argparse.Namespace) -> list[AnalysisTask]:
    """Return the tasks whose results are missing, after a check of all input and output folders.

    Complete results of the same settings and features are skipped.

    Raises:
        CogError: a folder has another or an unfinished result and there is no ``--overwrite``, or features are missing.
    """
    return [task for task in plan_tasks(args) if not task.folder.is_done()]
