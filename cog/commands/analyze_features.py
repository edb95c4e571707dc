"""Analyze features and classifiers: clusters, alignment, neighbors, class means; label noise; concepts.

Every result is a record <dataset>/analysis_<name>/results.json that print_results.py reads. With several data
sets and analyses one process does all of them; the features of each data set are read once.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cog import config, constants
from cog.commands import flags
from cog.errors import CogError
from cog.paths import ModelDir
from cog.runtime import files

EXAMPLES = (
    "--models_root_dir /models --model sup_resnet50 --dataset in1k cog_l5",
    "--models_root_dir /models --model sup_resnet50 --dataset cog_l5 --analysis concepts --levels_csv l.csv",
)

_ALL = "all"
_HELP = (
    "kmeans; alignment: and uniformity; knn: nearest neighbors; ncm: nearest class means; confident: that of "
    "classifiers of --trained_on on other data; concepts: accuracy per concept; all (default): the first four"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Compute the results that are missing and return the exit code."""
    parser = flags.parser(__doc__ or "", *EXAMPLES)
    add = parser.add_argument
    add("--analysis", action=flags.Several, default=[_ALL], metavar="NAME", help=_HELP)
    add("--trained_on", metavar="DATASET", help="data set whose classifiers are applied (confident)")
    add("--levels_csv", metavar="FILE", help="levels.csv of build_levels.py (concepts)")
    of_one = ("train_features_dir", "test_features_dir", "output_dir")
    flags.add(parser, "models_root_dir", "model", "dataset", *of_one, "device", "overwrite")
    args = parser.parse_args(argv)
    from cog.analysis import base  # imports torch

    known = base.load_all()
    for name in args.analysis:
        if name not in (*known, _ALL):
            raise CogError(f"--analysis {name!r} is not an analysis, expected {', '.join(known)} or {_ALL}")
    is_all = _ALL in args.analysis
    wanted = [name for name in known if name in args.analysis or (is_all and known[name].inputs is None)]
    for flag, name in (("trained_on", "confident"), ("levels_csv", "concepts")):
        if getattr(args, flag) is not None and name not in wanted:
            raise CogError(f"--{flag} is for --analysis {name} and has no effect here; leave it out")
    inputs = [_input(one) for one in flags.each(args, "model", "dataset", of_one=of_one)]
    base.run([known[name] for name in wanted], inputs, overwrite=args.overwrite)
    return 0


def _input(args: argparse.Namespace) -> tuple[Any, Path]:
    """Return a model on a data set, and the parent of the folders of its results."""
    from cog.analysis.base import AnalysisInput
    from cog.runtime.device import resolve_device

    cfg = config.get_cfg(model_name=args.model, opts=args.opts)
    given = {split: getattr(args, f"{split}_features_dir") for split in constants.SPLITS}
    folders = {split: Path(path) for split, path in given.items() if path is not None}
    model_dir, output = None, args.output_dir
    if args.models_root_dir is not None and args.model is not None:
        model_dir = ModelDir(files.require_dir(args.models_root_dir, "--models_root_dir"), args.model)
    if args.dataset is not None and model_dir is not None:
        usual = {split: model_dir.features(args.dataset, split) for split in given}
        folders, output = folders or usual, output or usual["train"].parent
    if not folders:
        raise CogError("no features: give --models_root_dir with --model and --dataset, or their folders")
    if output is None:
        raise CogError("nowhere to write: give --output_dir")
    device = resolve_device(args.device)
    return AnalysisInput(args.model, args.dataset, model_dir, folders, cfg, vars(args), device), Path(output)
