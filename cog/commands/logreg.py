"""Tune and train a classifier on pre-extracted features, and test it.

A logistic regression (the protocol), or with CLF.TYPE an MLP; CLF.PCA_DIM reduces its features, CLF.MAX_PER_CLASS
its training images.

With --seeds and --n_shots one process does several runs: the features are loaded once, and every run has the same
folder and the same result as in a process of its own.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Sequence

from cog.commands import feature_flags, flags
from cog.runtime import cli as cli_tools
from cog.runtime import signals


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = cli_tools.Parser(__doc__ or "")
    feature_flags.add(
        parser,
        output_help="where to write (default with --models_root_dir: <dataset>/eval_logreg[_N<n_shot>]/seed-<seed>/ "
        "beside the features); with --seeds or --n_shots: <output_dir>[_N<n_shot>]/seed-<seed>/",
    )
    many = parser.add_argument_group("several runs in one process")
    flags.add(many, "seeds")
    many.add_argument("--n_shot", "--n_shots", dest="n_shots", **flags.FLAGS["n_shot"])
    run = parser.add_argument_group("run")
    run.add_argument("--device", help="cpu, cuda or cuda:<index> (default: cuda if there is one, else cpu)")
    fraction = cli_tools.real_number(0.0, 1.0, "0 <= momentum < 1")
    positive = cli_tools.real_number(5e-324, math.inf, "a positive number")
    not_negative = cli_tools.real_number(0.0, math.inf, "zero or a positive number")
    run.add_argument("--mom", type=fraction, default=0.9, help="momentum of SGD (default: 0.9)")
    run.add_argument(
        "--lr", type=positive, help="fixed learning rate instead of a search; needs --wd and CLF.N_TRIALS 0"
    )
    run.add_argument("--wd", type=not_negative, help="fixed weight decay instead of a search")
    run.add_argument(
        "--print_freq",
        type=cli_tools.whole_number(0),
        default=10,
        help="epochs between log lines of the final training, 0 for none (default: 10)",
    )
    cli_tools.add_common(run)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    args = parse_args(argv)
    each = cli_tools.each_dataset(args, "train_features_dir", "test_features_dir", "output_dir")
    from cog.logreg import jobs, plan

    planned = [plan.plan_runs(of_dataset) for of_dataset in each]
    with signals.deferred():
        for plans, train, test in planned:
            plans = jobs.pending(plans)
            if not plans:
                continue
            with jobs.claimed(plans) as runs:
                if runs:
                    from cog.logreg.training import train_all  # imported here because it imports torch

                    train_all(runs, train, test, device_name=args.device, print_freq=args.print_freq)
    return 0


cli = functools.partial(cli_tools.run, main, continues=True)
