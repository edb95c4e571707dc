"""Write the results of a study into its log folder: results.txt with the table, report.html, status.txt."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from cog.commands import names, print_results, study_flags
from cog.runtime import cli as cli_tools
from cog.runtime import files
from cog.study import results


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = cli_tools.Parser(__doc__ or "")
    study_flags.add(parser)
    parser.add_argument("--log_dir", required=True, help="log folder of the study")
    study_flags.add_delete_features(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the three files, and return the exit code."""
    args = names.understood(parse_args(argv))
    study = study_flags.select(args, args.opts)
    log_dir = Path(os.path.abspath(files.require_dir(args.log_dir, "--log_dir")))
    results.write_results(study, log_dir, args.opts, print_results.main)
    if args.delete_features:
        results.delete_features(study, log_dir)
    return 0


def cli() -> NoReturn:
    """Run the command with the arguments of the command line, and exit."""
    cli_tools.run(main)


if __name__ == "__main__":
    cli()
