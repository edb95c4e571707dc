"""The results of a study in its log folder: table, report and status."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from cog.errors import CogError
from cog.runtime import files
from cog.study import delete, status, units
from cog.study.units import Study, TrainingUnit

logger = logging.getLogger(__name__)

TABLE_FILE = "results.txt"
REPORT_FILE = "report.html"
STATUS_FILE = "status.txt"


def write_results(
    study: Study, log_dir: Path, opts: Sequence[str], print_results: Callable[[Sequence[str]], int]
) -> None:
    """Write status, tables and report of a study, and name the missing runs.

    Args:
        study: units of the study.
        log_dir: output folder.
        opts: ``KEY VALUE`` pairs of the configuration.
        print_results: function that runs ``print_results.py`` with arguments.

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
    print_results(
        [*_selection(study, runs, opts), "--view", "datasets", "--output", str(table), "--overwrite"]
    )
    if n_missing := len(runs) - len(done):
        text = table.read_text(encoding="utf-8", errors="surrogateescape")
        line = (
            f"{n_missing} of {len(runs)} classifier runs are missing from these tables; "
            f"{STATUS_FILE} shows which"
        )
        files.write_text(table, f"{text}\n{line}\n")
        logger.warning("%s", line)
    # Only finished runs are named, because the table has already warned of missing runs.
    print_results([*_selection(study, done, opts), "--report", str(report), "--overwrite"])


def _selection(study: Study, runs: Sequence[TrainingUnit], opts: Sequence[str]) -> list[str]:
    """Return the arguments of ``print_results.py`` for the models, data sets and numbers of shots of ``runs``."""
    models, datasets, n_shots = (
        [str(value) for value in values if value in {getattr(run, field) for run in runs}]
        for field, values in (("model", study.models), ("dataset", study.datasets), ("n_shot", study.n_shots))
    )
    return [
        "--models_root_dir", str(study.root), "--model", *models, "--dataset", *datasets, "--n_shot", *n_shots,
        "--seeds", *map(str, study.seeds), *opts,
    ]  # fmt: skip


def show_results(
    study: Study, log_dir: Path, opts: Sequence[str], print_results: Callable[[Sequence[str]], int]
) -> None:
    """Write the results of a study as :func:`write_results` does, and print the table."""
    write_results(study, log_dir, opts, print_results)
    print((log_dir / TABLE_FILE).read_text(encoding="utf-8"), end="")


def delete_features(study: Study, log_dir: Path) -> None:
    """Delete features by :func:`cog.study.delete.delete_features`, and write the status again if any were deleted.

    Raises:
        CogError: a file cannot be deleted or written.
    """
    if delete.delete_features(study, units.survey(study)):
        files.write_text(log_dir / STATUS_FILE, status.draw(study, units.survey(study)))
