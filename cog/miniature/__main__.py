"""The command ``python -m cog.miniature make | train | overview | check``."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path

from cog import constants
from cog.errors import CogError
from cog.miniature import expectation
from cog.runtime import cli as cli_tools


def parser() -> cli_tools.Parser:
    """Return the parser of the command line."""
    p = cli_tools.Parser(
        "Make the generated miniature: draw its images (make), train its network on the seen concepts (train), put "
        "examples of all concepts into one picture (overview, after build_levels.py), or show the accuracies beside "
        "the known answer (check). Existing images and networks are kept.",
        prog=cli_tools.started_as("cog.miniature"),
        no_opts="have no effect here",
    )
    number = cli_tools.whole_number(1)
    p.add_argument("step", choices=("make", "train", "overview", "check"), help="what to do, see above")
    p.add_argument("--output_dir", type=Path, required=True, metavar="DIR", help="folder of the miniature")
    p.add_argument(
        "--seed", type=cli_tools.whole_number(0), default=0, metavar="N", help="make: seed (default: 0)"
    )
    p.add_argument(
        "--n_train",
        type=number,
        default=80,
        metavar="N",
        help="make: training images per concept (default: 80)",
    )
    p.add_argument(
        "--n_test", type=number, default=50, metavar="N", help="make: test images per concept (default: 50)"
    )
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run one step, and return the exit code."""
    args = parser().parse_args(argv)
    return {"make": _make, "train": _train, "overview": _overview, "check": _check}[args.step](args)


def _make(args: argparse.Namespace) -> int:
    from cog.levels.wordnet import load_wordnet
    from cog.miniature.world import make_world

    make_world(args.output_dir, load_wordnet(), seed=args.seed, n_train=args.n_train, n_test=args.n_test)
    return 0


def _train(args: argparse.Namespace) -> int:
    from cog.miniature.train import N_EPOCHS, train_network
    from cog.paths import ModelDir

    for model, n_epochs in ((expectation.UNTRAINED, 0), (expectation.TRAINED, N_EPOCHS)):
        checkpoint = ModelDir(args.output_dir / "models", model).checkpoint
        train_network(args.output_dir, checkpoint, n_epochs=n_epochs)
    return 0


def _overview(args: argparse.Namespace) -> int:
    from cog.data.level_files import read_levels
    from cog.levels.wordnet import load_wordnet
    from cog.miniature.overview import write_overview

    levels = read_levels(args.output_dir / "levels" / constants.LEVELS_FILE)
    write_overview(args.output_dir, load_wordnet(), levels, args.output_dir / "overview.png")
    return 0


def _check(args: argparse.Namespace) -> int:
    from cog.results import frame, read

    root = args.output_dir / "models"
    models = (expectation.TRAINED, expectation.UNTRAINED)
    means = frame.average(read.read(root, models=models, evaluations={"logreg"}).scores)
    top1 = {
        (row.model, row.n_shot, row.dataset): row.value
        for row in means[means["metric"] == "top1"].itertuples()
    }
    findings = expectation.check_results(top1)
    if not findings:
        raise CogError(
            f"{root} holds no results of {expectation.TRAINED} on {constants.IN1K} and the levels; run logreg.py first"
        )
    print(
        "Top-1 accuracy of linear classifiers on the features, in percent (24 concepts per data set: guessing gives "
        "4.2)\n\n"
        f"{expectation.table(top1)}\n\n"
        "The trained network has learned the seen concepts alone. L1 holds their siblings, L5 snakes and conifers.\n"
    )
    for finding in findings:
        print(f"{'as expected' if finding.holds else 'NOT AS EXPECTED'}: {finding.text}")
    return 0 if all(finding.holds for finding in findings) else 1


cli = functools.partial(cli_tools.run, main)

if __name__ == "__main__":
    cli()
