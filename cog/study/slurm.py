"""Job arrays for SLURM, their dependencies, and the unfinished tasks of earlier submissions.

Every submission has a folder ``<log_dir>/submissions/<number>/`` with the task lists (one command per line, line n + 1
for task n) and ``jobs.json``, which lists the output folders of each task. Together with ``squeue`` these records
determine which units must not be submitted again.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cog.errors import CogError
from cog.runtime import files
from cog.study.units import ExtractionUnit, TrainingUnit, Unit

JOBS_FILE = "jobs.json"

#: SLURM's default of MaxArraySize, used where ``scontrol`` does not give the value.
MAX_ARRAY_SIZE = 1001

#: Largest number of times that an interrupted task is queued again.
MAX_REQUEUES = 100

#: Seconds before the time limit at which a task gets the signal to save its work.
SIGNAL_SECONDS = 120

_SECONDS = 60

#: Beginnings of the variables that SLURM's commands do not get: the user's filters of ``squeue``, and the variables of
#: a job that submits a study, which ``sbatch`` would pass on to other jobs.
_NOT_FOR_SLURM = ("SQUEUE_", "SLURM_ARRAY_", "SLURM_JOB_ID", "SLURM_RESTART_COUNT")


@dataclass(frozen=True)
class SlurmOptions:
    """The options of the jobs of a study.

    Attributes:
        log_dir: folder of logs and submissions.
        task_script: ``bash-scripts/slurm/task.sh``.
        flags: arguments of ``sbatch`` by kind of job.
    """

    log_dir: Path
    task_script: Path
    flags: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Dependencies:
    """The work that must have succeeded before tasks of an array start.

    Attributes:
        arrays: arrays of which a task waits for the task of its own number.
        jobs: job numbers of such arrays of earlier submissions.
        tasks: tasks of earlier submissions (``"12_3"``) for which all tasks wait.
    """

    arrays: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()


@dataclass
class Array:
    """A job array.

    Attributes:
        name: unique name within a submission, also that of the task list.
        kind: ``extract`` or ``logreg``, part of the job's name.
        after: work for which the tasks wait.
        commands: command by task number.
        units: output folders of each task, by task number.
        throttle: largest number of tasks at the same time.
    """

    name: str
    kind: str
    after: Dependencies = Dependencies()
    commands: dict[int, list[str]] = field(default_factory=dict)
    units: dict[int, Sequence[Unit]] = field(default_factory=dict)
    throttle: int | None = None

    def task_list(self) -> str:
        """Return the contents of the task list: line n + 1 is the command of task n."""
        lines = [f"# task {number}: nothing to do" for number in range(max(self.commands) + 1)]
        for number, command in self.commands.items():
            lines[number] = command_line(command)
        return "".join(f"{line}\n" for line in lines)


def command_line(command: Sequence[str]) -> str:
    """Return a command as one line of shell.

    Raises:
        CogError: an argument has a line break.
    """
    for argument in command:
        if "\n" in argument or "\r" in argument or "\0" in argument:
            raise CogError(f"{argument!r} holds a line break; it cannot be part of a task list")
    return shlex.join(command)


def sbatch(array: Array, options: SlurmOptions, *, task_list: Path, jobs: Mapping[str, str]) -> list[str]:
    """Return the command that submits an array.

    Args:
        array: array to submit.
        options: options of all jobs.
        task_list: file with the array's task list.
        jobs: job numbers of the arrays submitted before, by name.
    """
    throttle = f"%{array.throttle}" if array.throttle else ""
    after = [f"aftercorr:{job}" for job in (*(jobs[name] for name in array.after.arrays), *array.after.jobs)]
    after += [f"afterok:{':'.join(array.after.tasks)}"] if array.after.tasks else []
    flags = [
        f"--array={number_ranges(array.commands)}{throttle}",
        "--requeue",
        f"--signal=B:USR1@{SIGNAL_SECONDS}",
        *([f"--dependency={','.join(after)}", "--kill-on-invalid-dep=yes"] if after else []),
    ]
    return _sbatch(array.kind, flags, options, task_list, MAX_REQUEUES, log="%x-%A_%a")


def sbatch_last(options: SlurmOptions, *, kind: str, task_list: Path, after: Sequence[str]) -> list[str]:
    """Return the command that submits a single job to run when all jobs ``after`` (job numbers) have ended."""
    flags = [f"--dependency=afterany:{':'.join(after)}"] if after else []
    return _sbatch(kind, flags, options, task_list, 0, log="%x-%j")


def _sbatch(
    kind: str, flags: Sequence[str], options: SlurmOptions, task_list: Path, max_requeues: int, *, log: str
) -> list[str]:
    # % and backslashes have a meaning in the value of --output.
    logs = str(options.log_dir / "logs").replace("\\", "\\\\").replace("%", "%%")
    return [
        "sbatch",
        "--parsable",
        f"--job-name=cog-{kind}",
        *flags,
        f"--output={logs}/{log}.log",
        "--open-mode=append",
        *options.flags[kind],  # last, so that the user's arguments take precedence
        str(options.task_script),
        str(task_list),
        str(max_requeues),
    ]


def number_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as a value of ``--array``: ``0-3,7``."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def run_slurm(*command: str) -> str:
    """Run one of SLURM's commands and return its output.

    Raises:
        CogError: the command does not exist, fails, or does not answer.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_FOR_SLURM)}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except FileNotFoundError:
        raise CogError(f"{command[0]} was not found; run this where SLURM's commands are") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CogError(f"{command[0]} does not answer: {error}") from error
    if done.returncode != 0:
        reason = done.stderr.strip() or f"exit code {done.returncode}"
        raise CogError(f"{command[0]} failed: {reason}")
    return done.stdout


def submit(command: Sequence[str]) -> str:
    """Run a command that submits a job, and return the job's number.

    Raises:
        CogError: SLURM refuses the job.
    """
    answer = run_slurm(*command).strip().splitlines()
    number = answer[-1].split(";")[0] if answer else ""  # the answer is "number;cluster" in a federation
    if not number.isdecimal():
        raise CogError(f"sbatch answered {answer!r}, expected the number of a job")
    return number


def max_array_size() -> int:
    """Return SLURM's MaxArraySize; its default when SLURM does not give the value."""
    try:
        match = re.search(
            r"^MaxArraySize\s*=\s*([0-9]+)", run_slurm("scontrol", "show", "config"), re.MULTILINE
        )
    except CogError:
        match = None
    return max(int(match[1]), 1) if match else MAX_ARRAY_SIZE


def queued_tasks() -> dict[str, str]:
    """Return the states of the user's unfinished tasks by number: ``"12_3"``, or ``"12"`` for a job without array.

    Raises:
        CogError: ``squeue`` fails or does not answer.
    """
    text = run_slurm("squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%F|%K|%T")
    tasks = {}
    for line in text.splitlines():
        job, task, state = line.split("|")
        if state != "COMPLETING":
            tasks[f"{job}_{task}" if task.isdecimal() else job] = state
    return tasks


def encode_unit(unit: Unit) -> list[Any]:
    """Return a unit as a JSON value."""
    kind = "features" if isinstance(unit, ExtractionUnit) else "run"
    return [kind, *dataclasses.astuple(unit)]


def decode_unit(entry: Any) -> Unit | None:
    """Return the unit of a JSON value of :func:`encode_unit`; None for other values."""
    match entry:
        case ["features", str(model), str(dataset), str(split)]:
            return ExtractionUnit(model, dataset, split)
        case ["run", str(model), str(dataset), str(evaluation), int(n_shot), int(seed)]:
            return TrainingUnit(model, dataset, evaluation, n_shot, seed)
    return None


class Submission:
    """The folder ``<log_dir>/submissions/<number>/`` of a new submission; numbers begin with 1."""

    def __init__(self, log_dir: Path) -> None:
        number = 1 + max((int(path.name) for path in _submissions(log_dir)), default=0)
        self.path = log_dir / "submissions" / f"{number:04d}"
        self._jobs: list[dict[str, Any]] = []

    def add(self, job: str, *, kind: str, root: Path, units: Mapping[int, Sequence[Unit]]) -> None:
        """Record a job at once, so that the record survives a later failure."""
        tasks = {str(task): [encode_unit(unit) for unit in units[task]] for task in sorted(units)}
        self._jobs.append({"job": job, "kind": kind, "models_root_dir": str(root), "tasks": tasks})
        files.write_json(self.path / JOBS_FILE, {"jobs": self._jobs})


def _submissions(log_dir: Path) -> list[Path]:
    try:
        return sorted(path for path in (log_dir / "submissions").iterdir() if path.name.isdecimal())
    except (FileNotFoundError, NotADirectoryError):
        return []


@dataclass(frozen=True)
class QueuedJobs:
    """The tasks of earlier submissions that run or wait in the queue.

    Attributes:
        units: unit -> number and state (``"12_3"``, ``"PENDING"``) of its task.
        last: numbers of the jobs that will make the table of results.
    """

    units: dict[Unit, tuple[str, str]] = field(default_factory=dict)
    last: tuple[str, ...] = ()


def queued_jobs(log_dir: Path, root: Path) -> QueuedJobs:
    """Return the unfinished tasks of the submissions in ``log_dir`` for ``root``, from SLURM's queue.

    Raises:
        CogError: there are submissions, and ``squeue`` fails or does not answer; or a record is damaged.
    """
    recorded: list[dict[str, Any]] = []
    for folder in _submissions(log_dir):
        path = folder / JOBS_FILE
        if path.is_file():
            data = files.read_json(path)
            jobs = data.get("jobs") if isinstance(data, dict) else None
            if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
                raise CogError(f"{path} is not the record of a submission; move it away")
            recorded += [job for job in jobs if job.get("models_root_dir") == str(root)]
    if not recorded:
        return QueuedJobs()
    tasks = queued_tasks()
    units: dict[Unit, tuple[str, str]] = {}
    last = []
    for job in recorded:
        number = str(job.get("job"))
        if number in tasks:
            last.append(number)
        for task, entries in (job.get("tasks") or {}).items():
            state = tasks.get(f"{number}_{task}")
            if state is None:
                continue
            for unit in map(decode_unit, entries):
                if unit is not None:
                    units[unit] = (f"{number}_{task}", state)
    return QueuedJobs(units, tuple(last))
