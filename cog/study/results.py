"""The end of a study: ``results.txt`` with the table, ``report.html`` and ``status.txt`` in its log folder.

``python -m cog.study.results STUDY LOG_DIR [--delete_features] [KEY VALUE ...]`` is the last job on SLURM.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cog.errors import CogError
from cog.runtime import cli, files
from cog.runtime.output import DONE
from cog.study import delete, status, units
from cog.study.tasks import REPOSITORY
from cog.study.units import Study

logger = logging.getLogger("cog")  # the same name when run with python -m

TABLE_FILE, REPORT_FILE, STATUS_FILE = "results.txt", "report.html", "status.txt"


def command(study: Study, log_dir: Path, opts: Sequence[str], *, delete_features: bool) -> list[str]:
    """Return the command that ends a study, for a job after its tasks."""
    program = ["env", f"PYTHONPATH={REPOSITORY}", sys.executable, "-m", "cog.study.results"]
    return [*program, study.as_json(), str(log_dir), *["--delete_features"] * delete_features, *opts]


def write(study: Study, log_dir: Path, opts: Sequence[str], *, delete_features: bool) -> str:
    """Write the files, delete features if wanted, and return the table; missing runs are named.

    Raises:
        CogError: there is no finished run, or a file cannot be written.
    """
    states = units.survey(study)
    files.write_text(log_dir / STATUS_FILE, status.draw(study, states))
    runs = [unit for unit in states if not unit.split]
    done = [unit for unit in runs if states[unit].word == DONE]
    if not done:
        raise CogError(
            f"no classifier run is finished, so there is no table; {log_dir / STATUS_FILE} shows what failed"
        )
    chosen = [f"--models_root_dir={study.root}", "--seeds", *map(str, study.seeds)]
    for flag, values in (("model", study.models), ("dataset", study.datasets), ("n_shot", study.n_shots)):
        there = {getattr(run, flag) for run in done}
        chosen += [f"--{flag}", *(str(value) for value in values if value in there)]
    # The view is given because the result of a single cell would be printed seed by seed.
    text = _print_results(*chosen, "--show", "accuracy", *opts)
    if n_missing := len(runs) - len(done):
        line = f"{n_missing} of {len(runs)} classifier runs are missing from these tables; {STATUS_FILE} shows which"
        logger.warning("%s", line)
        text = f"{text}\n{line}\n"
    files.write_text(log_dir / TABLE_FILE, text)
    try:
        _print_results(*chosen, "--report", str(log_dir / REPORT_FILE), "--overwrite", *opts)
    except CogError:  # the page of a wider study stays
        logger.warning("%s was not written, for the reason above", log_dir / REPORT_FILE)
    if delete_features and delete.delete_features(study, states):
        files.write_text(log_dir / STATUS_FILE, status.draw(study, units.survey(study)))
    return text


def _print_results(*words: str) -> str:
    """Return what ``print_results.py`` prints; its messages go to standard error."""
    script = [sys.executable, str(REPOSITORY / "print_results.py"), *words]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(script, stdout=subprocess.PIPE, encoding="utf-8", env=environment, check=False)
    if done.returncode != 0:
        raise CogError("print_results.py cannot show the results, for the reason above")
    return done.stdout


def main(argv: Sequence[str] | None = None) -> int:
    """Write the results, and return the exit code."""
    description, log_dir, *opts = sys.argv[1:] if argv is None else argv
    is_deleting = opts[:1] == ["--delete_features"]
    print(
        write(
            Study.of_entries(json.loads(description)),
            Path(log_dir),
            opts[is_deleting:],
            delete_features=is_deleting,
        ),
        end="",
    )
    return 0


if __name__ == "__main__":
    cli.run(main)
