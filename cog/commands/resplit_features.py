"""Divide extracted features anew into training and test images: repeated splits, without another extraction.

Each seed of --split_seed makes another data set beside the published one (cog_l1_split3), from the same images and with
as many test images per class; logreg.py and the other commands accept it like any data set. --spread compares the runs
on them: the standard deviation over splits beside that over seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections.abc import Sequence

from cog.commands import limits
from cog.errors import CogError
from cog.paths import ModelDir, check_dataset_name
from cog.runtime import cli as cli_tools
from cog.runtime import files


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = cli_tools.Parser(__doc__ or "")
    add = parser.add_argument
    add("--models_root_dir", metavar="DIR", required=True, help="folder of all models")
    add(
        "--model",
        metavar="NAME",
        required=True,
        help="<model_title>_<architecture_name>, such as sup_resnet50",
    )
    add(
        "--dataset",
        "--datasets",
        metavar="NAME",
        nargs="+",
        required=True,
        help="levels, or data sets of your own",
    )
    add(
        "--split_seed",
        metavar="N",
        nargs="+",
        type=cli_tools.whole_number(0),
        default=[],
        help="seeds of the splits to make",
    )
    add("--spread", action="store_true", help="print the spread of the runs on all existing splits")
    add(
        "--seeds",
        metavar="SEED",
        nargs="+",
        type=cli_tools.whole_number(0),
        help="--spread: seeds of the runs (default: all)",
    )
    add("--overwrite", action="store_true", help="replace features that were made with other settings")
    limits.add(parser, shows=True)
    args = parser.parse_args(argv)
    if bool(args.split_seed) == args.spread:
        raise CogError(
            "give either --split_seed N ... to make splits, or --spread to compare the runs on them"
        )
    if args.opts and not args.spread:
        raise CogError(
            f"{args.opts[0]} has no effect on splits; leave it out (with --spread, keys name the evaluation)"
        )
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Make splits or compare the runs on them, and return the exit code."""
    args = limits.apply(parse_args(argv))
    folder = ModelDir(files.require_dir(args.models_root_dir, "--models_root_dir"), args.model)
    for dataset in args.dataset:
        check_dataset_name(dataset)
    if args.spread:
        return _print_spread(args)
    from cog.features.rearranged import resplit  # imported here because it imports torch

    for dataset in args.dataset:
        for split_seed in args.split_seed:
            sys.stdout.write(
                f"{folder.path / resplit(folder, dataset, split_seed, overwrite=args.overwrite)}\n"
            )
            sys.stdout.flush()
    return 0


def _print_spread(args: argparse.Namespace) -> int:
    from cog import config
    from cog.reporting.show import LIMITED
    from cog.reporting.tables import other_data, writers
    from cog.results import find

    cfg = config.get_cfg(model_name=args.model, opts=args.opts)
    averages = find.top1_of_model(args.models_root_dir, args.model, cfg, seeds=args.seeds)
    table = other_data.of_splits(averages, args.dataset)
    if not table.rows:
        raise CogError(
            f"no data set among {' '.join(args.dataset)} has runs on two splits; make them with --split_seed 1 2, and "
            "run logreg.py on NAME_split1 and NAME_split2"
        )
    if limit := getattr(args, "limit", 0):
        table = dataclasses.replace(table, notes=(writers.Note(LIMITED.format(limit)), *table.notes))
    sys.stdout.write(writers.draw([table], "text"))
    return 0


cli = functools.partial(cli_tools.run, main)

if __name__ == "__main__":
    cli()
