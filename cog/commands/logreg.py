"""Tune and train a classifier on pre-extracted features, and test it.

A logistic regression (the protocol), or with CLF.TYPE an MLP. CLF.N_TRIALS 0 trains without a search, with
the single values of CLF.LR_INTV and CLF.WD_INTV. With several seeds or numbers of shots, the features of a
data set are loaded once, and the seeds are trained in lockstep; every run has a folder of its own.
"""

import argparse
from collections.abc import Sequence

from cog.commands import flags
from cog.runtime import cli, signals

EXAMPLES = (
    "--model sup_resnet50 --dataset cog_l5 --models_root_dir /models EVAL.SEED 22",
    "--model sup_resnet50 --dataset in1k cog_l1 --models_root_dir /models --seeds 22 37 --n_shot all 8",
    "--train_features_dir /my/train --test_features_dir /my/test --output_dir /my/run CLF.N_TRIALS 10",
)
_OF_ONE = ("train_features_dir", "test_features_dir", "output_dir")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = flags.parser(__doc__, *EXAMPLES)
    flags.add(parser, "model", "dataset", "models_root_dir", *_OF_ONE[:2], "seeds", "n_shot")
    output = "folder of the run (with --models_root_dir beside the features); with --seeds or --n_shot: "
    flags.add(parser, "output_dir", help=f"{output}<output_dir>[_N<n_shot>]/seed-<seed>/")
    flags.add(parser, "overwrite", "device")
    parser.add_argument("--mom", type=float, default=0.9, help="momentum of SGD (default: 0.9)")
    freq = "epochs between log lines of the final training, 0 for none (default: 10)"
    parser.add_argument("--print_freq", type=cli.whole_number(0), default=10, help=freq)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    args = parse_args(argv)
    each = flags.each(args, "model", "dataset", of_one=_OF_ONE)
    from cog.logreg import train

    planned = [train.plan_runs(one) for one in each]
    with signals.deferred():
        for runs, on_train, on_test in planned:
            train.train_all(runs, on_train, on_test, args)
    return 0
