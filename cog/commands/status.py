"""Show the progress of a study: outputs done, running, failed, interrupted and missing, by model and data set."""

from __future__ import annotations

import argparse
import functools
import logging
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from cog.commands import study_flags
from cog.errors import CogError
from cog.models.sources import did_you_mean_model
from cog.reporting.tables import writers
from cog.results import find
from cog.runtime import cli as cli_tools
from cog.runtime import files
from cog.study import slurm, status, tasks, units

logger = logging.getLogger("cog")  # the same name when run with python -m

FORMATS = ("text", "csv", "json")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = cli_tools.Parser(__doc__ or "")
    study_flags.add(parser)
    parser.add_argument("--log_dir", help="log folder of a study: shows what is in SLURM's queue")
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Show the state of every unit, and return the exit code."""
    args = parse_args(argv)
    study = study_flags.select(args, args.opts)
    known = find.list_models(study.root)
    for model in study.models:
        if hint := did_you_mean_model(model, known):
            logger.warning("%s: no such model under %s%s", model, study.root, hint)
    sys.stdout.write(_as_text(args, study))
    return 0


def _as_text(args: argparse.Namespace, study: units.Study) -> str:
    statuses = units.survey(study)
    if args.log_dir is not None:
        log_dir = Path(os.path.abspath(files.require_dir(args.log_dir, "--log_dir")))
        try:
            listed = tasks.list_tasks(study, log_dir, append=False)
            statuses = slurm.with_queue(study, statuses, listed, slurm.queued_tasks(log_dir))
        except CogError as error:
            logger.warning("SLURM's queue is not shown: %s", error)
    if args.format == "text":
        return status.draw(study, statuses, width=shutil.get_terminal_size((140, 24)).columns)
    return writers.flat(status.as_records(study, statuses), status.COLUMNS, args.format)


cli = functools.partial(cli_tools.run, main)

if __name__ == "__main__":
    cli()
