"""A study on SLURM: an array of extractions, an array of classifiers for each, and a last job that makes the table.

Classifiers begin when the extraction that they need has ended, however that ended (``afterany``), and look for
themselves whether the features are there. So nothing depends on the exit codes that SLURM sees. A task that is
submitted twice ends in a moment.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from cog.errors import CogError
from cog.study.tasks import EXTRACT, LOGREG, REPOSITORY, TASKS_FILE, Task

#: Script that runs a task of the list.
TASK_SCRIPT = REPOSITORY / "bash-scripts" / "slurm" / "task.sh"

#: Seconds before the time limit at which a task gets the signal to save its work; SLURM looks twice a minute.
SIGNAL_SECONDS = 120

_TIMEOUT_SECONDS = 60

#: Beginnings of the variables that SLURM's commands do not get: the user's filters of ``squeue``, and the variables of
#: a job that submits a study, which ``sbatch`` would pass on to other jobs.
_NOT_FOR_SLURM = ("SQUEUE_", "SLURM_ARRAY_", "SLURM_JOB_ID", "SLURM_RESTART_COUNT")


def job_name(log_dir: Path) -> str:
    """Return the name of all jobs of the studies with a log folder."""
    return f"cog-{hashlib.sha256(os.fsencode(log_dir.resolve())).hexdigest()[:8]}"


def run_slurm(*command: str) -> str:
    """Run one of SLURM's commands and return its output.

    Raises:
        CogError: the command does not exist, fails, or does not answer.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_FOR_SLURM)}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except FileNotFoundError:
        raise CogError(f"{command[0]} was not found; run this where SLURM's commands are") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CogError(f"{command[0]} does not answer: {error}") from error
    if done.returncode != 0:
        reason = done.stderr.strip() or f"exit code {done.returncode}"
        raise CogError(f"{command[0]} failed: {reason}")
    return done.stdout


def queued_tasks(log_dir: Path) -> dict[int, str]:
    """Return the waiting and running tasks of the studies with a log folder: number -> ``<job>_<number>``.

    Raises:
        CogError: ``squeue`` fails or does not answer.
    """
    mine = [f"--user={os.getuid()}", f"--name={job_name(log_dir)}"]
    text = run_slurm("squeue", *mine, "--array", "--noheader", "--format=%F %K %T")
    rows = [line.split() for line in text.splitlines() if "COMPLETING" not in line]  # has ended
    return {int(number): f"{job}_{number}" for job, number, _ in rows if number.isdecimal()}


def submit(
    tasks: Mapping[int, Task],
    listed: Mapping[int, Task],
    commands: Mapping[str, Sequence[str]],
    last: Sequence[str],
    options: Sequence[str],
    log_dir: Path,
    *,
    dry_run: bool,
) -> int:
    """Submit the tasks that are not in the queue, and after them a job that runs ``last``; print a line per job.

    Args:
        tasks: tasks to do, by number.
        listed: all tasks of the study, by number.
        commands: command lines of the stages.
        last: command of the last job, which makes the table.
        options: arguments of ``sbatch``.
        log_dir: folder of the list and the logs.
        dry_run: whether to only print the commands of SLURM.

    Returns:
        The number of tasks that were, or would be, submitted.

    Raises:
        CogError: SLURM refuses a job; the number of a task is too large for it; there is no checkout.
    """
    if not TASK_SCRIPT.is_file():
        raise CogError(
            f"{TASK_SCRIPT} does not exist; run studies from a checkout of the repository, see README.md"
        )
    jobs = queued_tasks(log_dir)
    new = {number: task for number, task in tasks.items() if number not in jobs}
    print(f"{len(new)} tasks to submit, {len(tasks) - len(new)} are queued", flush=True)
    if not new:
        return 0
    size = re.search(r"^MaxArraySize\s*=\s*(\d+)", run_slurm("scontrol", "show", "config"), re.MULTILINE)
    if size and max(new) >= int(size[1]):
        raise CogError(
            f"line {max(new)} of {log_dir / TASKS_FILE} cannot be the index of a job array: SLURM's MaxArraySize is "
            f"{size[1]} here; use another --log_dir"
        )
    # % and backslashes have a meaning in the value of --output.
    logs = str(log_dir).replace("\\", "\\\\").replace("%", "%%")
    ours = [f"--signal=B:USR1@{SIGNAL_SECONDS}", "--requeue", "--open-mode=append", f"--output={logs}/%a.log"]

    def send(stage: str, after: Sequence[str], *words: str) -> str:
        dependency = [f"--dependency=afterany:{':'.join(after)}"] if after else []
        # The name comes after the user's options: the queue is read by it.
        sbatch = ["sbatch", "--parsable", *options, f"--job-name={job_name(log_dir)}", *dependency, *words]
        if dry_run:
            print(shlex.join(sbatch), flush=True)
            return "JOB"
        job = run_slurm(*sbatch).strip().splitlines()[-1].split(";")[0]  # "number;cluster" in a federation
        print(f"{job}  {stage}: {words[0]}", flush=True)
        return job

    for stage in (EXTRACT, LOGREG):
        command = [str(TASK_SCRIPT), str(log_dir / TASKS_FILE), *commands[stage]]
        arrays: dict[tuple[str, ...], list[int]] = {}  # tasks that wait for the same
        for number, task in new.items():
            if task.stage == stage:
                needed = tuple(jobs[k] for k, other in listed.items() if k in jobs and task.needs(other))
                arrays.setdefault(needed, []).append(number)
        for after, numbers in arrays.items():
            job = send(stage, after, f"--array={','.join(map(str, numbers))}", *ours, *command)
            jobs |= {number: f"{job}_{number}" for number in numbers}
    everything = sorted({job.rpartition("_")[0] for number, job in jobs.items() if number in listed})
    send("results", everything, f"--output={logs}/results.log", f"--wrap={shlex.join(last)}")
    return len(new)
