"""A study on SLURM: an array of extractions, one of classifiers for each, and a last job for the table.

Classifiers begin when the extraction that they need has ended, however that ended (``afterany``), and look
for themselves whether the features are there. So nothing depends on exit codes that SLURM sees.
"""

import hashlib
import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cog.errors import CogError
from cog.study.tasks import EXTRACT, LOGREG, REPOSITORY, TASKS_FILE, Task

TASK_SCRIPT = REPOSITORY / "bash-scripts" / "slurm" / "task.sh"

#: Seconds before the time limit at which a task gets the signal to save its work; SLURM looks twice a minute.
SIGNAL_SECONDS = 120

#: Beginnings of variables that SLURM's commands do not get: filters of ``squeue``, and what ``sbatch`` would
#: pass on from a job or a step that submits a study.
_NOT_FOR_SLURM = ("SQUEUE_", "SLURM_ARRAY_", "SLURM_CPUS", "SLURM_JOB_ID", "SLURM_RESTART", "SLURM_STEP")


def job_name(log_dir: Path, command: Sequence[str] = ()) -> str:
    """Return the name of jobs of the studies with a log folder; other commands have other names."""
    parts = os.fsencode(log_dir.resolve()), shlex.join(command).encode("utf-8", "surrogateescape")
    return "-".join(["cog", *(hashlib.sha256(part).hexdigest()[:8] for part in parts if part)])


def run_slurm(*command: str) -> str:
    """Run one of SLURM's commands and return its output; a CogError says why there is none."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_FOR_SLURM)}
    try:
        options: dict[str, Any] = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
        done = subprocess.run(command, env=environment, timeout=60, check=False, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CogError(f"{command[0]} does not answer: {error}") from error
    if done.returncode != 0 or (command[0] == "sbatch" and not done.stdout):  # with --test-only
        raise CogError(f"{command[0]} failed: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def queued_tasks(log_dir: Path) -> list[tuple[int, str, str]]:
    """Return number, ``<job>_<number>`` and job name of waiting and running tasks with a log folder."""
    words = (f"--user={os.getuid()}", "--array", "--noheader", "--format=%F %K %T %j")
    rows = [line.split(maxsplit=3) for line in run_slurm("squeue", *words).splitlines()]
    ours = [row for row in rows if row[-1].startswith(job_name(log_dir)) and row[2] != "COMPLETING"]
    return [(int(number), f"{job}_{number}", name) for job, number, _, name in ours if number.isdecimal()]


def submit(
    tasks: Mapping[int, Task],
    listed: Mapping[int, Task],
    commands: Mapping[str, Sequence[str]],
    last: str,
    options: Sequence[str],
    log_dir: Path,
    *,
    dry_run: bool,
) -> None:
    """Submit ``tasks`` that are not in the queue, and a job of the script ``last``; print a line for each."""
    names = {kind: job_name(log_dir, commands.get(kind, ())) for kind in (EXTRACT, LOGREG, "results")}
    jobs, earlier = dict[int, str](), dict[int, list[str]]()
    for number, job, name in queued_tasks(log_dir):
        if number in listed and name == names[listed[number].kind]:
            jobs[number] = job
        else:  # it does something else, for other seeds or without --overwrite: a task comes after it
            earlier.setdefault(number, []).append(job.rpartition("_")[0])
    new = {number: task for number, task in tasks.items() if number not in jobs}
    # Queued classifiers of a new extraction wait for an earlier one, which was canceled or has failed.
    new = {n: task for n, task in tasks.items() if n in new or any(map(task.needs, new.values()))}
    print(f"{len(new)} tasks to submit, {len(tasks) - len(new)} are queued", flush=True)
    if not new:
        return
    size = re.search(r"^MaxArraySize\s*=\s*(\d+)", run_slurm("scontrol", "show", "config"), re.MULTILINE)
    if size and max(new) >= int(size[1]):
        raise CogError(
            f"line {max(new)} of {log_dir / TASKS_FILE} cannot be the index of a job array: SLURM's "
            f"MaxArraySize is {size[1]} here; use another --log_dir"
        )
    # % and backslashes have a meaning in the value of --output.
    logs = str(log_dir).replace("\\", "\\\\").replace("%", "%%")
    ours = [f"--signal=B:USR1@{SIGNAL_SECONDS}", "--requeue", "--open-mode=append", f"--output={logs}/%a.log"]

    def send(kind: str, after: Sequence[str], *words: str) -> str:
        dependency = [f"--dependency=afterany:{':'.join(after)}"] if after else []
        # The name comes after the user's options: the queue is read by it.
        sbatch = ["sbatch", "--parsable", *options, f"--job-name={names[kind]}", *dependency, *words]
        # "number;cluster" in a federation
        job = "JOB" if dry_run else run_slurm(*sbatch).strip().splitlines()[-1].split(";")[0]
        print(shlex.join(sbatch) if dry_run else f"{job}  {kind}: {words[0]}", flush=True)
        return job

    for kind in (EXTRACT, LOGREG):
        command = [str(TASK_SCRIPT), str(log_dir / TASKS_FILE), *commands[kind]]
        arrays: dict[tuple[str, ...], list[int]] = {}  # tasks that wait for the same
        for number, task in new.items():
            if task.kind == kind:
                needed = [jobs[k] for k, other in listed.items() if k in jobs and task.needs(other)]
                arrays.setdefault((*needed, *earlier.get(number, ())), []).append(number)
        for after, numbers in arrays.items():
            job = send(kind, after, f"--array={','.join(map(str, numbers))}", *ours, *command)
            jobs |= {number: f"{job}_{number}" for number in numbers}
    everything = sorted({job.rpartition("_")[0] for number, job in jobs.items() if number in listed})
    send("results", everything, f"--output={logs}/results.log", f"--wrap={last}")
