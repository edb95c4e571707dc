"""Classify the concepts of the levels in levels by other similarities and random draws (paper, Fig. 7).

--levels_dir holds one output folder of build_levels.py --rerank for each kind of levels, with the name of the kind
(wup, jcn, random1 ...; bash-scripts/other_levels.sh builds them). The extracted features of the published levels are
grouped into these levels, classifiers are trained on them as by logreg.py, whose KEY VALUE pairs are taken, and the
accuracies are printed and drawn. Complete results are skipped.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

from cog import config, constants
from cog.commands import logreg
from cog.errors import CogError
from cog.paths import ModelDir
from cog.runtime import cli as cli_tools
from cog.runtime import files


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = cli_tools.Parser(__doc__ or "")
    add = functools.partial(parser.add_argument, required=True)
    add("--models_root_dir", metavar="DIR", help="folder of all models, with the features of the levels")
    add("--model", metavar="NAME", help="<model_title>_<architecture_name>, such as sup_resnet50")
    add(
        "--levels_dir",
        metavar="DIR",
        help="folder with an output folder of build_levels.py for each kind of levels",
    )
    add(
        "--output_dir",
        metavar="DIR",
        help="root of the features and results on other levels, laid out like --models_root_dir; with table and figure",
    )
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=cli_tools.whole_number(0),
        default=list(constants.SEEDS),
        metavar="SEED",
        help=f"seeds of the classifiers (default: {' '.join(map(str, constants.SEEDS))})",
    )
    parser.add_argument(
        "--device", help="cpu, cuda or cuda:<index> (default: cuda if there is one, else cpu)"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Group features by the levels of each kind, train, print the table, draw the figure, and return the exit code."""
    args = parse_args(argv)
    cfg = config.get_cfg(model_name=args.model, opts=args.opts)
    datasets = _group(args)
    seeds, device = list(map(str, args.seeds)), str(args.device)
    flags = ["--models_root_dir", args.output_dir, "--model", args.model, "--device", device]
    flags += ["--dataset", *datasets, "--seeds", *seeds]
    if code := logreg.main([*flags, *args.opts]):
        return code
    from cog.reporting import other_levels
    from cog.results import find

    runs, _ = find.find_runs(
        args.output_dir,
        eval_name=config.evaluation_name(cfg),
        models=[args.model],
        n_shots=[cfg.CLF.N_SHOT],
        seeds=args.seeds,
    )
    top1: dict[str, list[float]] = {}
    for run in runs:
        top1.setdefault(run.dataset, []).append(run.top1)
    means = {dataset: statistics.fmean(values) for dataset, values in top1.items()}
    kinds, in1k = other_levels.by_kind(means), means.get(constants.IN1K)
    if not kinds:
        raise CogError(f"{args.output_dir} has no runs of {args.model} that can be read")
    print(f"\n{args.model}: top-1 (%), mean over seeds\n\n{other_levels.table(kinds, in1k)}", flush=True)
    path = Path(args.output_dir) / f"other_levels_{args.model}.png"
    other_levels.draw(path, kinds, in1k)
    print(f"\n{path}")
    return 0


def _group(args: argparse.Namespace) -> list[str]:
    """Group the features into the levels of each kind, beside links to those of the published levels.

    Returns:
        The names of the data sets.

    Raises:
        CogError: no levels, or missing features.
    """
    from cog.data.level_files import read_levels
    from cog.features.rearranged import regroup

    source = ModelDir(files.require_dir(args.models_root_dir, "--models_root_dir"), args.model)
    target = ModelDir(Path(args.output_dir), args.model)
    given = files.require_dir(args.levels_dir, "--levels_dir")
    folders = sorted(path for path in given.iterdir() if (path / constants.LEVELS_FILE).is_file())
    if not folders:
        raise CogError(f"--levels_dir {given} has no folder with a {constants.LEVELS_FILE}")
    there = sorted(folder.parent.name for folder in source.path.glob("*/features_test"))
    levels = [name for name in there if constants.cog_level(name) is not None]
    if not levels:
        raise CogError(
            f"{source.path} has no features of any level; run extract_features.py on cog_l1, cog_l2, ... first"
        )
    datasets = [*([constants.IN1K] if constants.IN1K in there else []), *levels]
    for name in datasets:
        place = target.path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            os.symlink(os.path.abspath(source.path / name), place)
    for folder in folders:
        for number, wnids in enumerate(read_levels(folder / constants.LEVELS_FILE), start=1):
            datasets.append(f"{folder.name}_l{number}")
            regroup(source, target, datasets[-1], wnids, levels=levels)
    return datasets


cli = functools.partial(cli_tools.run, main)
