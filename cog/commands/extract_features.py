"""Extract the features of data sets with a frozen model into ``X_Y.pth`` files, one per data set and split."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cog import constants
from cog.commands import image_flags
from cog.runtime import cli as cli_tools
from cog.runtime import ranks, signals

if TYPE_CHECKING:
    from cog.features.plan import ExtractionPlan


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = cli_tools.Parser(__doc__ or "")
    target = image_flags.add_target(parser, "what to extract")
    target.add_argument(
        "--split",
        required=True,
        nargs="+",
        choices=constants.SPLITS,
        help="one or both; test of in1k is its official val folder. Every data set is extracted in every split given",
    )
    image_flags.add_model(parser, writes="<dataset>/features_<split>/")
    image_flags.add(parser)
    run = parser.add_argument_group("run")
    run.add_argument("--device", help="cpu, cuda or cuda:<index> (default: cuda if there is one, else cpu)")
    cli_tools.add_common(run)
    run.add_argument(
        "--limit",
        type=cli_tools.whole_number(2),
        default=0,
        metavar="N",
        help="extract the first N images of the first N classes alone, into <models_root_dir>/limit-N/, a root for the "
        "other commands",
    )
    return parser.parse_args(argv)


def make_plan(args: argparse.Namespace, rank: ranks.Rank, since: float) -> ExtractionPlan:
    """Return the plan of a process that started at ``since`` (seconds since the epoch); no file is read or written."""
    from cog.features.plan import ExtractionPlan  # imported here because it imports numpy

    return ExtractionPlan(
        image_flags.model_request(args),
        image_flags.sources(args),
        args.dataset,
        args.split,
        device=args.device,
        allow_failures=args.allow_failures,
        overwrite=args.overwrite,
        limit=args.limit,
        config_file=args.config,
        opts=args.opts,
        rank=rank,
        since=since,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    since = time.time()
    rank = ranks.this_rank()
    log = ranks.label_log(rank)
    with ranks.rank_zero_logging(rank):
        args = parse_args(argv)
    plan = make_plan(args, rank, since)
    with signals.deferred():
        todo = plan.pending()
        log.speak()
        if todo:
            from cog.features import runner  # imported here because it imports torch

            runner.run(plan, todo)
    return 0


cli = functools.partial(cli_tools.run, main, continues=True)
