"""Tune and train a classifier on pre-extracted features, and test it.

A logistic regression (the protocol), or with CLF.TYPE an MLP. CLF.N_TRIALS 0 trains without a search, with the single
values of CLF.LR_INTV and CLF.WD_INTV. With several seeds or numbers of shots, the features of a data set are loaded
once, and the seeds are trained in lockstep; every run has a folder of its own.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence

from cog.commands import flags
from cog.runtime import cli as cli_tools
from cog.runtime import signals


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = flags.parser(
        __doc__ or "",
        "--model sup_resnet50 --dataset cog_l5 --models_root_dir /models EVAL.SEED 22",
        "--model sup_resnet50 --dataset in1k cog_l1 --models_root_dir /models --seeds 22 37 45 77 93 --n_shot all 8",
        "--train_features_dir /my/train --test_features_dir /my/test --output_dir /my/run CLF.N_TRIALS 10",
    )
    group = parser.add_argument_group(
        "features: --models_root_dir with --model and --dataset, or --train_features_dir and --test_features_dir"
    )
    flags.add(group, "model", "dataset", "models_root_dir", "train_features_dir", "test_features_dir")
    group = parser.add_argument_group("runs")
    flags.add(group, "seeds", "n_shot")
    flags.add(
        group,
        "output_dir",
        help="where to write (default with --models_root_dir: <dataset>/eval_logreg[_N<n_shot>]/seed-<seed>/ beside "
        "the features); with --seeds or --n_shot: <output_dir>[_N<n_shot>]/seed-<seed>/",
    )
    flags.add(group, "overwrite", "device")
    group.add_argument("--mom", type=float, default=0.9, help="momentum of SGD (default: 0.9)")
    group.add_argument(
        "--print_freq",
        type=cli_tools.whole_number(0),
        default=10,
        help="epochs between log lines of the final training, 0 for none (default: 10)",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    args = parse_args(argv)
    each = flags.each(
        args, "model", "dataset", of_one=("train_features_dir", "test_features_dir", "output_dir")
    )
    from cog.logreg import train

    planned = [train.plan_runs(one) for one in each]
    with signals.deferred():
        for runs, on_train, on_test in planned:
            train.train_all(runs, on_train, on_test, args)
    return 0


cli = functools.partial(cli_tools.run, main, continues=True)
