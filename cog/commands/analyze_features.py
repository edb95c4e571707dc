"""Analyze pre-extracted features and trained classifiers: clusters, alignment and uniformity, neighbors, class means;
confident predictions on other data; accuracy per concept.

Every result is a record <dataset>/analysis_<name>/results.json that print_results.py reads. With several data sets and
analyses one process does all of them; the features of each data set are read once.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cog import config, constants
from cog.commands import feature_flags
from cog.errors import CogError
from cog.paths import ModelDir, check_dataset_name
from cog.runtime import cli as cli_tools
from cog.runtime import files

if TYPE_CHECKING:
    from cog.analysis.base import Data

_ALL = "all"


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = cli_tools.Parser(__doc__ or "")
    work = parser.add_argument_group("what to do")
    work.add_argument(
        "--analysis",
        nargs="+",
        default=[_ALL],
        metavar="NAME",
        help="kmeans: clusters and classes; alignment: alignment and uniformity; knn: nearest neighbors; ncm: nearest "
        "class means; confident: confident predictions of the classifiers of --trained_on on other data (label noise); "
        "concepts: accuracy per concept and its correlation with similarity; all: the first four (default)",
    )
    work.add_argument(
        "--trained_on", metavar="DATASET", help="data set whose classifiers are applied (confident)"
    )
    work.add_argument("--levels_csv", metavar="FILE", help="levels.csv of build_levels.py (concepts)")
    feature_flags.add(
        parser,
        "--datasets",
        output_help="where to write analysis_<name>/ (several data sets: <dataset>/analysis_<name>/); default with "
        "--models_root_dir: <dataset>/ beside the features",
    )
    run = parser.add_argument_group("run")
    run.add_argument("--device", help="cpu, cuda or cuda:<index> (default: cuda if there is one, else cpu)")
    cli_tools.add_common(run)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Compute the results that are missing and return the exit code.

    Raises:
        CogError: flags contradict each other, an input is missing, or a folder has another result.
    """
    args = parse_args(argv)
    from cog.analysis import base  # imports torch

    known = base.load_all()
    for name in args.analysis:
        if name not in (*known, _ALL):
            raise CogError(f"--analysis {name!r} is not an analysis, expected {', '.join(known)} or {_ALL}")
    chosen = [
        each
        for each in known.values()
        if each.name in args.analysis or (_ALL in args.analysis and each.in_all)
    ]
    for flag, name in (("trained_on", "confident"), ("levels_csv", "concepts")):
        if getattr(args, flag) is not None and name not in [each.name for each in chosen]:
            raise CogError(f"--{flag} is for --analysis {name} and has no effect here; leave it out")
    base.run(chosen, _inputs(args), overwrite=args.overwrite)
    return 0


def _inputs(args: argparse.Namespace) -> list[tuple[Data, Path]]:
    """Return each data set, and the parent of the folders of its results."""
    from cog.analysis.base import Data
    from cog.runtime.device import resolve_device

    cfg = config.get_cfg(model_name=args.model, config_file=args.config, opts=args.opts)
    datasets = [check_dataset_name(name) for name in args.dataset or []]
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
    device, made = resolve_device(args.device, float64=True), []
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
        data = Data(args.model, dataset, model_dir, features, cfg, vars(args), device)
        made.append((data, output))
    return made


cli = functools.partial(cli_tools.run, main, continues=True)
