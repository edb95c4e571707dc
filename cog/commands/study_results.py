"""Write the results of a study into its log folder: results.txt with the table, report.html, status.txt."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from cog import cli as cli_tools
from cog import files
from cog import study_units as units
from cog.commands import print_results, status
from cog.errors import CogError
from cog.study_units import Study

logger = logging.getLogger("cog")  # also when run with python -m

TABLE_FILE = "results.txt"
REPORT_FILE = "report.html"
STATUS_FILE = "status.txt"


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse flags; touches no file."""
    parser = cli_tools.Parser(__doc__ or "")
    status.add_selection(parser, models_required=False)
    parser.add_argument("--log_dir", required=True, help="log folder of the study")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the three files; returns the exit code."""
    args = parse_args(argv)
    study = status.select(args, args.opts)
    log_dir = files.require_dir(args.log_dir, "--log_dir")
    write(study, Path(os.path.abspath(log_dir)), args.opts)
    return 0


def write(study: Study, log_dir: Path, opts: Sequence[str]) -> None:
    """Write the results of ``study``, with what is missing from them.

    Args:
        study: what was wanted.
        log_dir: where to write.
        opts: the configuration's ``KEY VALUE`` pairs.

    Raises:
        CogError: when there is no finished run, or a file cannot be written.
    """
    statuses = units.survey(study)
    files.write_text(log_dir / STATUS_FILE, status.draw(study, statuses))
    runs = {unit: found for unit, found in statuses.items() if isinstance(unit, units.Training)}
    done = sum(found.state == units.DONE for found in runs.values())
    if not done:
        raise CogError(
            f"no classifier run is finished, so there is no table; {log_dir / STATUS_FILE} shows what failed"
        )
    which = [
        "--models_root_dir", str(study.root), "--model", *study.models, "--dataset", *study.datasets,
        "--n_shot", *map(str, study.n_shots), "--seeds", *map(str, study.seeds), *opts,
    ]  # fmt: skip
    table, report = log_dir / TABLE_FILE, log_dir / REPORT_FILE
    # Named explicitly: without a view, a single cell would be shown seed by seed instead of as a table.
    print_results.main([*which, "--view", "datasets", "--output", str(table), "--overwrite"])
    absent = len(runs) - done
    if absent:
        text = table.read_text(encoding="utf-8", errors="surrogateescape")
        line = f"{absent} of {len(runs)} classifier runs are missing from these tables; {STATUS_FILE} shows which"
        files.write_text(table, f"{text}\n{line}\n")
        logger.warning("%s", line)
    print_results.main([*which, "--report", str(report), "--overwrite"])


def cli() -> NoReturn:
    """Run from the command line."""
    cli_tools.run(main)


if __name__ == "__main__":
    cli()
