"""Submission of a study to SLURM: one job array per kind of task, and a last job that makes the table of results."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from cog.errors import os_errors_explained
from cog.runtime import files
from cog.study import slurm
from cog.study.plan import REPOSITORY, RESULTS, StudyPlan
from cog.study.slurm import QueuedJobs, SlurmOptions
from cog.study.units import Study

logger = logging.getLogger(__name__)

#: File in the log folder with the table of results.
TABLE_FILE = "results.txt"


def results_command(
    study: Study, log_dir: Path, opts: Sequence[str], *, delete_features: bool = False
) -> list[str]:
    """Return the command that writes the results of a study into its log folder, and deletes its features if wanted."""
    return [
        "env",
        f"PYTHONPATH={REPOSITORY}",
        sys.executable,
        "-m",
        "cog.commands.study_results",
        f"--models_root_dir={study.root}",
        f"--log_dir={log_dir}",
        "--models",
        *study.models,
        "--datasets",
        *study.datasets,
        "--seeds",
        *map(str, study.seeds),
        "--shots",
        *map(str, study.n_shots),
        *(["--delete_features"] if delete_features else []),
        *opts,
    ]


def submit(
    study: Study,
    plan: StudyPlan,
    queued: QueuedJobs,
    options: SlurmOptions,
    results: Sequence[str],
    *,
    dry_run: bool,
    finish: Callable[[], None] | None = None,
) -> int:
    """Submit the arrays of a plan, and the job that makes the table when they have ended.

    Args:
        study: wanted units.
        plan: tasks of the study.
        queued: unfinished tasks of earlier submissions.
        options: options of all jobs.
        results: command of the last job, which makes the table.
        dry_run: whether to only print task lists and commands.
        finish: last step of the last job; called here if there is no job to submit and none in the queue.

    Returns:
        The exit code.

    Raises:
        CogError: a folder cannot be written to, or SLURM refuses a job.
    """
    log_dir = options.log_dir
    submission = slurm.Submission(log_dir)
    earlier = {task.split("_")[0] for task, _ in queued.units.values()}
    table = log_dir / TABLE_FILE
    if not plan.arrays and (earlier or queued.last or table.is_file()):
        if finish is not None and not (dry_run or earlier or queued.last):
            finish()
        logger.info("nothing to submit%s", f"; results: {table}" if table.is_file() else "")
        return 0
    lists = {array.name: (submission.path / f"{array.name}.txt", array.task_list()) for array in plan.arrays}
    lists[RESULTS] = (submission.path / f"{RESULTS}.txt", slurm.command_line(results) + "\n")
    if dry_run:
        _show(plan, lists, options, earlier)
        return 0
    with os_errors_explained(f"cannot write into --log_dir {log_dir}"):
        submission.path.mkdir(parents=True)
        (log_dir / "logs").mkdir(exist_ok=True)
    for path, content in lists.values():
        files.write_text(path, content)
    jobs: dict[str, str] = {}
    for array in plan.arrays:
        path = lists[array.name][0]
        jobs[array.name] = slurm.submit(slurm.sbatch(array, options, task_list=path, jobs=jobs))
        submission.add(jobs[array.name], kind=array.kind, root=study.root, units=array.units)
        print(f"{jobs[array.name]}  {array.kind}: {len(array.commands)} tasks ({path})", flush=True)
    job = slurm.submit(_sbatch_results(options, lists[RESULTS][0], [*jobs.values(), *sorted(earlier)]))
    submission.add(job, kind=RESULTS, root=study.root, units={})
    print(f"{job}  results: {table} when all of these have ended", flush=True)
    return 0


def _sbatch_results(options: SlurmOptions, task_list: Path, after: Sequence[str]) -> list[str]:
    return slurm.sbatch_last(options, kind=RESULTS, task_list=task_list, after=after)


def _show(
    plan: StudyPlan,
    lists: Mapping[str, tuple[Path, str]],
    options: SlurmOptions,
    earlier: Collection[str],
) -> None:
    """Print task lists and commands in the form of a shell script."""
    for path, content in lists.values():
        print(f"# {path}")
        print(content)
    placeholders = {array.name: f"JOB_OF_{array.name}_" for array in plan.arrays}

    def assign(name: str, command: Sequence[str]) -> None:
        line = slurm.command_line(command)
        for other, placeholder in placeholders.items():
            line = line.replace(placeholder, f"${{{_variable(other)}}}")
        print(f"{_variable(name)}=$({line})")

    for array in plan.arrays:
        task_list = lists[array.name][0]
        assign(array.name, slurm.sbatch(array, options, task_list=task_list, jobs=placeholders))
    after = [*placeholders.values(), *sorted(earlier)]
    assign(RESULTS, _sbatch_results(options, lists[RESULTS][0], after))


def _variable(name: str) -> str:
    return f"job_{name.replace('-', '_')}"
