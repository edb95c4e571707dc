"""Fine-tune a model on one data set, as a control for classifiers on frozen features (paper, supplement C.2, Fig. 6).

The network and a new linear classifier are trained together on all training images and tested after every epoch. The
paper gives no hyper-parameters; the recipe is FINETUNE in configs/default.py. Several GPUs: start it with torchrun.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from cog.commands import image_flags
from cog.errors import CogError
from cog.finetune import parallel, plan
from cog.runtime import cli as cli_tools


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = cli_tools.Parser(__doc__ or "")
    image_flags.add_target(parser, "what to train")
    image_flags.add_model(parser, writes="<dataset>/eval_finetune/seed-<seed>/")
    image_flags.add(parser)
    run = parser.add_argument_group("run")
    run.add_argument("--device", help="cpu, cuda or cuda:<index> (default: cuda if there is one, else cpu)")
    cli_tools.add_common(run)
    return parser.parse_args(argv)


def make_request(args: argparse.Namespace) -> plan.FineTuneRequest:
    """Return the request of the flags; no file is read or written."""
    return plan.FineTuneRequest(
        image_flags.model_request(args),
        image_flags.sources(args),
        args.dataset,
        device=args.device,
        allow_failures=args.allow_failures,
        overwrite=args.overwrite,
        config_file=args.config,
        opts=args.opts,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    args = parse_args(argv)
    requests = [make_request(of_dataset) for of_dataset in cli_tools.each_dataset(args, "output_dir")]
    if len(requests) > 1 and parallel.place().size > 1:
        raise CogError(
            f"--dataset names {len(requests)} data sets, and processes that torchrun starts work on one; start them "
            "once per data set"
        )
    from cog.finetune import job  # imported here because it imports torch

    codes = (job.run(request) for request in requests)
    return next((code for code in codes if code), 0)


def cli() -> None:
    """Run the console script ``cog-finetune``."""
    try:
        cli_tools.run(main, continues=True)
    except SystemExit as ended:
        if parallel.place().size > 1:
            parallel.leave(ended.code if isinstance(ended.code, int) else 1)
        raise


if __name__ == "__main__":
    cli()
