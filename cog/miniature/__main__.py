"""The command ``python -m cog.miniature make | train | overview | check``."""

from __future__ import annotations

import argparse
import functools
import logging
from collections.abc import Sequence
from pathlib import Path

from cog import constants
from cog.errors import CogError
from cog.miniature.expectation import TRAINED, UNTRAINED, check_results
from cog.runtime import cli as cli_tools

logger = logging.getLogger("cog.miniature")

_STEPS = ("make", "train", "overview", "check")


def parser() -> cli_tools.Parser:
    """Return the parser of the command line."""
    p = cli_tools.Parser(
        "Make the generated miniature: draw its images (make), train its network on the seen concepts (train), "
        "put examples of all data sets into one picture (overview), or check the results "
        "against the known answer (check). Existing outputs are reused.",
        prog=cli_tools.started_as("cog.miniature"),
        no_opts="have no effect here",
    )
    p.add_argument("step", choices=_STEPS, help="what to do, see above")
    p.add_argument("--output_dir", type=Path, required=True, metavar="DIR", help="folder of the miniature")
    p.add_argument(
        "--seed", type=cli_tools.whole_number(0), default=0, metavar="N", help="seed of the step (default: 0)"
    )
    p.add_argument("--n_workers", type=cli_tools.whole_number(1), metavar="N",
                   help="make: drawing processes (default: one per available processor)")  # fmt: skip
    p.add_argument("--wordnet_dir", metavar="DIR",
                   help="folder of WordNet 3.0 (default: $COG_WORDNET_DIR, NLTK's data, Debian's)")  # fmt: skip
    p.add_argument("--n_train", type=cli_tools.whole_number(1), default=80, metavar="N",
                   help="make: training images per concept (default: 80)")  # fmt: skip
    p.add_argument("--n_test", type=cli_tools.whole_number(1), default=50, metavar="N",
                   help="make: test images per concept (default: 50)")  # fmt: skip
    p.add_argument("--models_root_dir", type=Path, metavar="DIR",
                   help="train, check: the models' folder (default: <output_dir>/models)")  # fmt: skip
    p.add_argument("--model", default=TRAINED, choices=(TRAINED, UNTRAINED),
                   help="train: the network, or the same one left untrained (default: miniature_convnet)")  # fmt: skip
    p.add_argument(
        "--n_epochs",
        type=cli_tools.whole_number(1),
        metavar="N",
        help="train: passes over the images (default: 20)",
    )
    p.add_argument("--overwrite", action="store_true", help="train: replace a checkpoint of other settings")
    p.add_argument(
        "--cog_levels_mapping_file", metavar="FILE", help="overview: levels file, with the levels to show"
    )
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run one step, and return the exit code."""
    args = parser().parse_args(argv)
    step = {"make": _make, "train": _train, "overview": _overview, "check": _check}[args.step]
    return step(args) or 0


def _make(args: argparse.Namespace) -> None:
    from cog.levels.wordnet import load_wordnet
    from cog.miniature.world import WorldSettings, make_world

    settings = WorldSettings(seed=args.seed, n_train=args.n_train, n_test=args.n_test)
    make_world(args.output_dir, load_wordnet(args.wordnet_dir), settings, n_workers=args.n_workers)


def _train(args: argparse.Namespace) -> None:
    from cog.miniature.train import TrainSettings, train_network
    from cog.paths import ModelDir
    from cog.runtime import files

    options = {"seed": args.seed}
    if args.model == UNTRAINED:
        options["n_epochs"] = 0
    elif args.n_epochs is not None:
        options["n_epochs"] = args.n_epochs
    model_dir = ModelDir(args.models_root_dir or args.output_dir / "models", args.model)
    files.require_dir(args.output_dir, "--output_dir")
    files.ensure_writable_dir(model_dir.path, "--models_root_dir")
    train_network(args.output_dir, model_dir.checkpoint, TrainSettings(**options), overwrite=args.overwrite)


def _overview(args: argparse.Namespace) -> None:
    from cog.data.level_files import read_levels
    from cog.levels.wordnet import load_wordnet
    from cog.miniature.overview import write_overview

    if args.cog_levels_mapping_file is None:
        raise CogError("overview needs --cog_levels_mapping_file, the levels file that build_levels.py wrote")
    levels = read_levels(args.cog_levels_mapping_file)
    picture = args.output_dir / "overview.png"
    write_overview(args.output_dir, load_wordnet(args.wordnet_dir), levels, picture)
    logger.info("wrote %s", picture)


def _check(args: argparse.Namespace) -> int:
    from cog.results import find, run_records

    root = args.models_root_dir or args.output_dir / "models"
    runs, _ = find.find_runs(root, models=(TRAINED, UNTRAINED))
    findings = check_results(run_records.average_runs(runs))
    if not findings:
        raise CogError(
            f"{root} holds no results of {TRAINED} on {constants.IN1K} and the levels; run logreg.py first"
        )
    for finding in findings:
        print(f"{'as expected' if finding.holds else 'NOT AS EXPECTED'}: {finding.text}")
    return 0 if all(finding.holds for finding in findings) else 1


cli = functools.partial(cli_tools.run, main)

if __name__ == "__main__":
    cli()
