"""Write the results of a study into its log folder: results.txt with the table, report.html, status.txt."""

from __future__ import annotations

import argparse
import functools
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cog.commands import print_results, study_flags
from cog.errors import CogError
from cog.runtime import cli as cli_tools
from cog.runtime import files
from cog.study import delete, status, units
from cog.study.tasks import REPOSITORY
from cog.study.units import Study, TrainingUnit

logger = logging.getLogger("cog")  # the same name when run with python -m

TABLE_FILE = "results.txt"
REPORT_FILE = "report.html"
STATUS_FILE = "status.txt"


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = cli_tools.Parser(__doc__ or "")
    study_flags.add(parser)
    parser.add_argument("--log_dir", required=True, help="log folder of the study")
    study_flags.add_delete_features(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the three files, and return the exit code."""
    args = parse_args(argv)
    study = study_flags.select(args, args.opts)
    log_dir = Path(os.path.abspath(files.require_dir(args.log_dir, "--log_dir")))
    write(study, log_dir, args.opts)
    if args.delete_features:
        delete_features(study, log_dir)
    return 0


def command(study: Study, log_dir: Path, opts: Sequence[str], *, delete_features: bool) -> list[str]:
    """Return the command that writes the results of a study, for a job after its tasks."""
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    return [
        "env", f"PYTHONPATH={path}", sys.executable, "-m", "cog.commands.study_results",
        f"--models_root_dir={study.root}", f"--log_dir={log_dir}", "--models", *study.models,
        "--datasets", *study.datasets, "--seeds", *map(str, study.seeds),
        "--shots", *map(str, study.n_shots), *(["--delete_features"] if delete_features else []), *opts,
    ]  # fmt: skip


def write(study: Study, log_dir: Path, opts: Sequence[str]) -> None:
    """Write status, tables and report of a study, and name the missing runs.

    Args:
        study: units of the study.
        log_dir: output folder.
        opts: ``KEY VALUE`` pairs of the configuration.

    Raises:
        CogError: there is no finished run, or a file cannot be written.
    """
    statuses = units.survey(study)
    files.write_text(log_dir / STATUS_FILE, status.draw(study, statuses))
    runs = [unit for unit in statuses if isinstance(unit, TrainingUnit)]
    done = [unit for unit in runs if statuses[unit].state == units.DONE]
    if not done:
        raise CogError(
            f"no classifier run is finished, so there is no table; {log_dir / STATUS_FILE} shows what failed"
        )
    table, report = log_dir / TABLE_FILE, log_dir / REPORT_FILE
    # The view is explicit because otherwise the result of a single cell is printed seed by seed instead of as a table.
    text = print_results.tables([*_selection(study, runs, opts), "--view", "datasets"])
    if n_missing := len(runs) - len(done):
        line = (
            f"{n_missing} of {len(runs)} classifier runs are missing from these tables; "
            f"{STATUS_FILE} shows which"
        )
        text = f"{text}\n{line}\n"
        logger.warning("%s", line)
    files.write_text(table, text)
    # Only finished runs are named, because the table has already warned of missing runs.
    print_results.main([*_selection(study, done, opts), "--report", str(report), "--overwrite"])


def _selection(study: Study, runs: Sequence[TrainingUnit], opts: Sequence[str]) -> list[str]:
    """Return the arguments of ``print_results.py`` for the models, data sets and numbers of shots of ``runs``."""
    models, datasets, n_shots = (
        [str(value) for value in values if value in {getattr(run, field) for run in runs}]
        for field, values in (("model", study.models), ("dataset", study.datasets), ("n_shot", study.n_shots))
    )
    return [
        "--models_root_dir",
        str(study.root),
        "--model",
        *models,
        "--dataset",
        *datasets,
        "--n_shot",
        *n_shots,
        "--seeds",
        *map(str, study.seeds),
        *opts,
    ]


def show(study: Study, log_dir: Path, opts: Sequence[str]) -> None:
    """Write the results of a study as :func:`write` does, and print the table."""
    write(study, log_dir, opts)
    print((log_dir / TABLE_FILE).read_text(encoding="utf-8"), end="")


def delete_features(study: Study, log_dir: Path) -> None:
    """Delete features by :func:`cog.study.delete.delete_features`, and write the status again if any were deleted.

    Raises:
        CogError: a file cannot be deleted or written.
    """
    if delete.delete_features(study, units.survey(study)):
        files.write_text(log_dir / STATUS_FILE, status.draw(study, units.survey(study)))


cli = functools.partial(cli_tools.run, main)

if __name__ == "__main__":
    cli()
