"""Execution of the tasks of a study on one machine, N at a time, each with its own GPU or share of the processors."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from cog.errors import CogError, FailedImagesError, os_errors_explained, some
from cog.runtime.progress import duration
from cog.runtime.ranks import n_processors
from cog.runtime.signals import EXIT_CODE, handled
from cog.study.plan import StudyPlan
from cog.study.slurm import Array, command_line
from cog.study.units import DONE, RUNNING, Status, Study, Unit, survey

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1

#: Seconds between two checks of a task that another process works on.
_LOOK_SECONDS = 5.0

#: Seconds between two reports on the running tasks; tasks write lines of progress as often.
_REPORT_SECONDS = 30.0


@dataclass(frozen=True)
class LocalTask:
    """A task: one command.

    Attributes:
        name: name of the task, such as ``extract 0``.
        label: description of the task for log lines.
        command: program and arguments.
        needs: names of tasks that must have succeeded before this task starts.
        log: file for the output of the command.
        units: units that the task works on.
    """

    name: str
    label: str
    command: list[str]
    needs: tuple[str, ...]
    log: Path
    units: tuple[Unit, ...] = ()


@dataclass
class LocalSummary:
    """The result of all tasks.

    Attributes:
        codes: exit codes of the tasks that were run, by name.
        skipped: names of the tasks that were not run because a task that they need failed.
        signal: signal that ended all tasks early; None without a signal.
    """

    codes: dict[str, int] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    signal: signal.Signals | None = None

    @property
    def exit_code(self) -> int:
        """The exit code: 0; 130 or 75 after a signal; else that of the failed tasks, or 2 when their codes differ."""
        if self.signal is not None:
            return 130 if self.signal == signal.SIGINT else EXIT_CODE
        codes = {code for code in self.codes.values() if code}
        return 0 if not codes else codes.pop() if len(codes) == 1 else 2


def tasks_of(arrays: Sequence[Array], log_dir: Path) -> list[LocalTask]:
    """Return the tasks of arrays, in order."""
    tasks = []
    for array in arrays:
        for number, command in array.commands.items():
            units = array.units[number]
            tasks.append(
                LocalTask(
                    name=f"{array.name} {number}",
                    label=some([str(unit) for unit in units], 1),
                    command=command,
                    needs=tuple(f"{name} {number}" for name in array.after.arrays),
                    log=log_dir / "logs" / f"{array.name}_{number}.log",
                    units=tuple(units),
                )
            )
    return tasks


def run_plan(
    study: Study,
    plan: StudyPlan,
    log_dir: Path,
    *,
    n_processes: int | None,
    gpu_ids: Sequence[str] | None,
    dry_run: bool,
    show_results: Callable[[], None] | None,
    finish: Callable[[], None] | None = None,
) -> int:
    """Run the tasks of a plan on this machine, then make the table of results.

    Args:
        study: wanted units.
        plan: tasks of the study.
        log_dir: folder of logs and results.
        n_processes: number of tasks at a time; None: one per GPU, or one without GPUs.
        gpu_ids: GPUs to use, in turn; None: all visible GPUs.
        dry_run: whether to only print the tasks.
        show_results: function that makes and prints the table; None: no table is made.
        finish: function called at the end, unless a signal ended the tasks; or None.

    Returns:
        The exit code.

    Raises:
        CogError: a folder cannot be written to, or there are no results for the table although no task failed.
    """
    tasks = tasks_of(plan.arrays, log_dir)
    gpus = gpu_ids or find_gpus()
    n_processes = n_processes or max(1, len(gpus))
    if dry_run:
        for task in tasks:
            after = f" (after {', '.join(task.needs)})" if task.needs else ""
            print(f"# {task.name}: {task.label}{after}\n{command_line(task.command)}")
        print(f"# {n_processes} at a time, GPUs: {' '.join(gpus) or 'none'}")
        return 0
    with os_errors_explained(f"cannot write into --log_dir {log_dir}"):
        (log_dir / "logs").mkdir(exist_ok=True)

    def look(task: LocalTask) -> list[Status]:
        model, dataset = task.units[0].model, task.units[0].dataset  # all units are of one model and data set
        statuses = survey(dataclasses.replace(study, models=(model,), datasets=(dataset,)))
        return [statuses[unit] for unit in task.units]

    summary = run(tasks, n_processes=n_processes, gpus=gpus, look=look)
    n_failed = sum(code != 0 for code in summary.codes.values())
    if summary.signal is not None:
        logger.error("ended by %s: %d of %d tasks are done; the same command continues", summary.signal.name,
                     len(summary.codes) - n_failed, len(tasks))  # fmt: skip
        return summary.exit_code
    if n_failed:
        images = FailedImagesError.exit_code in summary.codes.values()
        logger.error(
            "%d of %d tasks failed%s, for the reasons above; the same command repeats only these%s",
            n_failed, len(tasks), f", {len(summary.skipped)} were not begun" if summary.skipped else "",
            ": first fix the images that cannot be decoded (exit code 3), or accept the loss"
            ' (extract_args="--allow_failures N")' if images else "",
        )  # fmt: skip
    if show_results is not None:
        try:
            show_results()
        except CogError as error:
            if not n_failed:
                raise
            logger.error("%s", error)
    if finish is not None:
        finish()
    return summary.exit_code


def find_gpus() -> list[str]:
    """Return the usable GPUs by their names in ``CUDA_VISIBLE_DEVICES``: indices, and UUIDs of slices of a GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    try:
        done = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_gpus(done.stdout) if done.returncode == 0 else []


def parse_gpus(listing: str) -> list[str]:
    """Return the names for ``CUDA_VISIBLE_DEVICES`` of the GPUs in the output of ``nvidia-smi --list-gpus``.

    A GPU with slices (MIG) is replaced by its slices, which have no index: a process with the index of the GPU could
    use only the first slice.
    """
    names: list[str] = []
    for line in listing.splitlines():
        if gpu := re.match(r"GPU (\d+):", line):
            names.append(gpu[1])
        elif mig := re.match(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)", line):
            if names and not names[-1].startswith("MIG-"):
                names.pop()  # the GPU of this slice
            names.append(mig[1])
    return names


def place(slot: int, n_processes: int, gpus: Sequence[str]) -> dict[str, str]:
    """Return the environment variables of the tasks of one slot, with its GPU and its share of the processors."""
    result = {"OMP_NUM_THREADS": str(max(1, n_processors() // n_processes)), **os.environ}
    if gpus:
        result["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    return result


class _Signals:
    """A context that records signals and passes them on to the running processes."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> _Signals:
        for number in (signal.SIGINT, *handled()):
            self._previous[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _received(self, number: int, frame: FrameType | None) -> None:
        again = self.first is not None and number == signal.SIGINT
        self.first = self.first or signal.Signals(number)
        # After a first ^C the tasks save, as after SIGTERM; a second ^C ends them at once.
        self.pass_on(signal.SIGINT if again else signal.SIGTERM)

    def pass_on(self, number: signal.Signals) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.send_signal(number)


class _OtherProcesses:
    """The work of processes outside this study: a task waits until such processes have finished its units."""

    def __init__(self, look: Callable[[LocalTask], Sequence[Status]]) -> None:
        self._look = look
        self._looked: dict[str, float] = {}  # time of the last check of each waiting task
        self._repeated: set[str] = set()

    def work_on(self, task: LocalTask) -> bool:
        """Return whether other processes work on the units of a task; the first time is logged."""
        last = self._looked.get(task.name)
        if last is not None and time.monotonic() - last < _LOOK_SECONDS:
            return True
        holders = [status.detail for status in self._look(task) if status.state == RUNNING]
        if not holders:
            self._looked.pop(task.name, None)
            return False
        if last is None:
            logger.info("%s waits, since another process is at work on it: %s", task.name, holders[0])
        self._looked[task.name] = time.monotonic()
        return True

    def explain(self, task: LocalTask) -> bool:
        """Return whether a failed task has to be repeated, because other processes worked or work on its units."""
        if self.work_on(task):
            return True
        statuses = self._look(task)
        if task.name in self._repeated or not statuses or any(status.state != DONE for status in statuses):
            return False
        self._repeated.add(task.name)  # finished by another process; with other settings the task fails again
        return True


class _Timing:
    """The durations of tasks, and the remaining time of all tasks.

    Args:
        tasks: all tasks.
        n_processes: largest number of tasks at a time.
    """

    def __init__(self, tasks: Sequence[LocalTask], n_processes: int) -> None:
        self._tasks = {task.name: task for task in tasks}
        self._n_processes = n_processes
        self._began: dict[str, float] = {}  # start of each running task
        self._seconds: dict[str, list[float]] = {}  # durations of successful tasks by their kind
        self._reported = time.monotonic()

    def start(self, name: str) -> None:
        """Record the start of a task."""
        self._began[name] = time.monotonic()

    def stop(self, name: str, *, succeeded: bool) -> float:
        """Record the end of a task and return its seconds; those of a failed task are not used for estimates."""
        seconds = time.monotonic() - self._began.pop(name)
        if succeeded:
            self._seconds.setdefault(_kind(name), []).append(seconds)
        return seconds

    def left(self, ended: Collection[str]) -> float | str:
        """Return the seconds until all tasks have ended, if tasks take as long as finished tasks of their kind.

        Args:
            ended: names of the tasks that have ended or will not be run.

        Returns:
            The estimate; or the name of a kind of remaining tasks of which no task has finished yet.
        """
        now = time.monotonic()
        work = longest = 0.0
        for name in self._tasks:
            if name in ended:
                continue
            if _kind(name) not in self._seconds:
                return _kind(name)
            seconds = statistics.fmean(self._seconds[_kind(name)])
            seconds = max(0.0, seconds - (now - self._began.get(name, now)))
            work, longest = work + seconds, max(longest, seconds)
        return max(longest, work / self._n_processes)

    def report(self, ended: Collection[str]) -> None:
        """Log from time to time the last line of the log of each running task, and the progress of all tasks."""
        if time.monotonic() - self._reported < _REPORT_SECONDS:
            return
        self._reported = time.monotonic()
        for name, began in self._began.items():
            last = _last_line(self._tasks[name].log)
            logger.info("%s, %s: %s", name, duration(self._reported - began), last)
        left = self.left(ended)
        logger.info("%d of %d tasks have ended (%d %%), %s", len(ended), len(self._tasks),
                    100 * len(ended) // len(self._tasks),
                    f"time left not known until the first {left} has succeeded" if isinstance(left, str)
                    else f"about {duration(left)} left")  # fmt: skip


def _kind(name: str) -> str:
    """Return the kind of a task, such as ``logreg``, from its name; a kind may have several arrays (``logreg-2 0``)."""
    return name.rpartition(" ")[0].partition("-")[0]


def run(
    tasks: Sequence[LocalTask],
    *,
    n_processes: int,
    gpus: Sequence[str],
    look: Callable[[LocalTask], Sequence[Status]],
) -> LocalSummary:
    """Run tasks, at most ``n_processes`` at a time, each as soon as the tasks that it needs have succeeded.

    A failed task stops only the tasks that need it. A task waits while another process works on its units, and then
    computes the units that are still missing. After SIGINT, or a signal of :func:`cog.runtime.signals.handled`, the
    running tasks save and end, and no further task starts.

    Args:
        tasks: tasks to run.
        n_processes: largest number of tasks at a time.
        gpus: names of GPUs, from :func:`find_gpus`.
        look: function that returns the statuses of a task's units.

    Raises:
        CogError: a program cannot be started, or a log cannot be written.
    """
    summary = LocalSummary()
    waiting = list(tasks)
    slots: dict[str, int] = {}
    by_name = {task.name: task for task in tasks}
    timing = _Timing(tasks, n_processes)
    others = _OtherProcesses(look)
    with _Signals() as signals:
        try:
            while waiting or signals.running:
                if signals.first is not None:
                    waiting.clear()
                task = _next(waiting, summary, others) if len(signals.running) < n_processes else None
                if task is not None:
                    waiting.remove(task)
                    slot = min(set(range(n_processes)) - set(slots.values()))
                    logger.info("[%d/%d] %s: %s", len(summary.codes) + len(signals.running) + 1, len(tasks), task.name,
                                task.label)  # fmt: skip
                    timing.start(task.name)
                    signals.running[task.name] = _start(task, place(slot, n_processes, gpus))
                    slots[task.name] = slot
                    # A signal that arrived while the process was being started was not passed on to it.
                    if signals.first is not None:
                        signals.running[task.name].send_signal(signal.SIGTERM)
                    continue
                time.sleep(_POLL_SECONDS)
                timing.report({*summary.codes, *summary.skipped})
                for name in [name for name, process in signals.running.items() if process.poll() is not None]:
                    code = signals.running.pop(name).returncode
                    code = code if code >= 0 else 128 - code
                    del slots[name]
                    seconds = timing.stop(name, succeeded=code == 0)
                    if code and signals.first is None and others.explain(by_name[name]):
                        waiting.insert(0, by_name[name])
                        continue
                    summary.codes[name] = code
                    if code == 0:
                        logger.info("%s: done in %.0f s", name, seconds)
                    elif signals.first is None or code not in (EXIT_CODE, 130, 128 + signal.SIGTERM):
                        last = _last_line(by_name[name].log)
                        logger.error("%s: exit code %d: %s (%s)", name, code, last, by_name[name].log)
        finally:
            signals.pass_on(signal.SIGTERM)
            for process in signals.running.values():
                process.wait()
        summary.signal = signals.first
    return summary


def _next(waiting: list[LocalTask], summary: LocalSummary, others: _OtherProcesses) -> LocalTask | None:
    """Return the first task that can start; tasks that can never start are moved to ``summary.skipped``."""
    for task in list(waiting):
        lost = [need for need in task.needs if summary.codes.get(need) or need in summary.skipped]
        if lost:
            waiting.remove(task)
            summary.skipped.append(task.name)
            logger.error("%s: not begun, since %s failed (%s)", task.name, lost[0], task.label)
    for task in waiting:
        if all(need in summary.codes for need in task.needs) and not others.work_on(task):
            return task
    return None


def _start(task: LocalTask, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with (
        os_errors_explained(f"cannot start {task.name} with the log {task.log}"),
        open(task.log, "ab") as log,
    ):
        log.write(f"{command_line(task.command)}\n".encode("utf-8", "surrogateescape"))
        log.flush()
        # In a new session, so that ^C reaches only this process, which signals the tasks to save.
        return subprocess.Popen(
            task.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True,
        )  # fmt: skip


def _last_line(log: Path) -> str:
    try:
        with open(log, "rb") as handle:
            handle.seek(max(0, log.stat().st_size - 4096))
            lines = handle.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
