"""Analyse pre-extracted features: clusters, alignment and uniformity, neighbours, class means, and more.

Every result is a record <dataset>/analysis_<name>/results.json that print_results.py reads. With several data sets and
analyses one process does all of them; the features of each data set are read once.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from yacs.config import CfgNode

from cog import cli as cli_tools
from cog import config, files, names
from cog.analysis import registry
from cog.analysis.job import Request
from cog.errors import CogError
from cog.paths import ModelDir, check_dataset_name

logger = logging.getLogger(__name__)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse flags; touches no file."""
    parser = cli_tools.Parser(__doc__ or "")
    what = parser.add_argument_group("what to do")
    listed = "; ".join(f"{analysis.name}: {analysis.help}" for analysis in registry.ANALYSES)
    everything = " ".join(analysis.name for analysis in registry.ANALYSES if analysis.in_all)
    what.add_argument(
        "--analysis",
        nargs="+",
        default=[registry.ALL],
        metavar="NAME",
        help=f"{listed}; all: {everything} (default: all)",
    )
    where = parser.add_argument_group(
        "features: --models_root_dir with --model and --dataset(s), or --train_features_dir and --test_features_dir"
    )
    where.add_argument("--model", help="<model_title>_<architecture_name>, such as sup_resnet50")
    where.add_argument("--dataset", help=f"{', '.join(names.DATASETS)}, or a name of your own")
    where.add_argument("--datasets", nargs="+", metavar="DATASET", help="several, one after the other")
    where.add_argument(
        "--models_root_dir",
        help="reads <root>/<model_title>/<architecture_name>/<dataset>/features_{train,test}/X_Y.pth",
    )
    where.add_argument("--train_features_dir", help="folder (or X_Y.pth file) of the training features")
    where.add_argument("--test_features_dir", help="folder (or X_Y.pth file) of the test features")
    where.add_argument(
        "--output_dir",
        help="where to write analysis_<name>/ (several data sets: <dataset>/analysis_<name>/); default with "
        "--models_root_dir: <dataset>/ beside the features",
    )
    run = parser.add_argument_group("run")
    run.add_argument("--device", help="cpu, cuda or cuda:<index> (default: cuda if there is one, else cpu)")
    cli_tools.add_common(run)
    cli_tools.add_check(run)
    registry.add_flags(parser)
    return parser.parse_args(argv)


def get_requests(args: argparse.Namespace, cfg: CfgNode) -> list[Request]:
    """Return one request per data set.

    Raises:
        CogError: flags that do not go together, or a models root that is not there.
    """
    if args.dataset is not None and args.datasets is not None:
        raise CogError("--dataset and --datasets are both given; leave one of them out")
    datasets: list[str] = args.datasets or ([args.dataset] if args.dataset is not None else [])
    for dataset in datasets:
        check_dataset_name(dataset)
    if len(set(datasets)) < len(datasets):
        raise CogError(f"--datasets names a data set twice: {' '.join(datasets)}")
    given = {"train": args.train_features_dir, "test": args.test_features_dir}
    if any(path is not None for path in given.values()):
        return [_request_for_folders(args, cfg, given, datasets)]
    if args.models_root_dir is None or args.model is None or not datasets:
        raise CogError(
            "no features: give --models_root_dir with --model and --dataset (or --datasets), or "
            "--train_features_dir and --test_features_dir"
        )
    model_dir = ModelDir(files.require_dir(args.models_root_dir, "--models_root_dir"), args.model)
    requests = []
    for dataset in datasets:
        if args.output_dir is None:
            output = model_dir.path / dataset
        else:
            output = Path(args.output_dir) / dataset if len(datasets) > 1 else Path(args.output_dir)
        requests.append(
            Request(
                model=args.model,
                dataset=dataset,
                model_dir=model_dir,
                features={split: model_dir.features(dataset, split) for split in names.SPLITS},
                output_root=output,
                cfg=cfg,
                args=args,
            )
        )
    return requests


def _request_for_folders(
    args: argparse.Namespace, cfg: CfgNode, given: dict[str, str | None], datasets: list[str]
) -> Request:
    if len(datasets) > 1:
        raise CogError(
            "--train_features_dir and --test_features_dir are of one data set, and --datasets names "
            f"{len(datasets)}; give --models_root_dir instead"
        )
    model_dir = None
    dataset = datasets[0] if datasets else None
    if args.models_root_dir is not None and args.model is not None:
        model_dir = ModelDir(files.require_dir(args.models_root_dir, "--models_root_dir"), args.model)
    if args.output_dir is not None:
        output = Path(args.output_dir)
    elif model_dir is not None and dataset is not None:
        output = model_dir.path / dataset
    else:
        raise CogError("nowhere to write: give --output_dir")
    return Request(
        model=args.model,
        dataset=dataset,
        model_dir=model_dir,
        features={split: Path(path) for split, path in given.items() if path is not None},
        output_root=Path(os.path.normpath(output)),
        cfg=cfg,
        args=args,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script; returns its exit code."""
    args = parse_args(argv)
    if args.check:
        from cog.preflight import analyses as preflight

        return preflight.check(args)
    cfg = config.get_cfg(model_name=args.model, config_file=args.config, opts=args.opts)
    analyses = registry.get(args.analysis)
    planned = [
        (request, task)
        for request in get_requests(args, cfg)
        for analysis in analyses
        for task in registry.plan(analysis, request)
    ]

    from cog.analysis import execution

    todo = execution.pending(planned, overwrite=args.overwrite, skip_complete=args.skip_complete)
    if not todo:
        return 0

    from cog.device import resolve_device

    execution.execute(todo, device=resolve_device(args.device), overwrite=args.overwrite)
    return 0


def cli() -> None:
    """Console script ``cog-analyze-features``."""
    cli_tools.run(main)
