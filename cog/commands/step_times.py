"""How long the steps of ``experiments.sh`` take: ``python -m cog.commands.step_times``.

Prints a line ``<experiment> <data set> <seconds> <text>`` for each experiment and data set, and one for all data sets
together (data set ``-``), for what is not done. The text is a duration ("about 3h05m"); where nothing tells it, the
seconds are ``?`` and the text says why.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from cog.runtime import cli as cli_tools
from cog.runtime.progress import duration
from cog.study.step_times import StepTimes


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = cli_tools.Parser(__doc__ or "")
    for flag in ("models_root_dir", "model"):
        parser.add_argument(f"--{flag}", required=True)
    for flag in ("device", "config", "trained_on"):
        parser.add_argument(f"--{flag}")
    parser.add_argument("--datasets", nargs="+", required=True)
    for flag in ("seeds", "shots", "dims", "finetune_seeds"):
        parser.add_argument(f"--{flag}", nargs="+", type=cli_tools.whole_number(0), default=[])
    parser.add_argument("--max_per_class", type=cli_tools.whole_number(0), default=0)
    parser.add_argument("--n_processes", type=cli_tools.whole_number(1), default=1)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the lines, and return the exit code."""
    for name, by_dataset in StepTimes(parse_args(argv)).all():
        unknown = [expected for expected in by_dataset.values() if isinstance(expected, str)]
        known = [expected for expected in by_dataset.values() if not isinstance(expected, str)]
        for dataset, expected in (by_dataset | {"-": unknown[0] if unknown else sum(known)}).items():
            if isinstance(expected, str):
                sys.stdout.write(f"{name} {dataset} ? {expected}\n")
            else:
                sys.stdout.write(f"{name} {dataset} {expected:.0f} about {duration(expected)}\n")
    return 0


if __name__ == "__main__":
    cli_tools.run(main)
