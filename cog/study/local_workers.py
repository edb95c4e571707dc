"""Execution of the tasks of a study on one machine, N at a time, each with its own GPU or share of the processors."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from cog.errors import CogError, FailedImagesError, os_errors_explained, some
from cog.runtime.progress import duration
from cog.runtime.ranks import n_processors
from cog.runtime.signals import EXIT_CODE, handled
from cog.study.plan import StudyPlan
from cog.study.slurm import Array, command_line

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1

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
    """

    name: str
    label: str
    command: list[str]
    needs: tuple[str, ...]
    log: Path


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
            tasks.append(
                LocalTask(
                    name=f"{array.name} {number}",
                    label=some([str(unit) for unit in array.units[number]], 1),
                    command=command,
                    needs=tuple(f"{name} {number}" for name in array.after.arrays),
                    log=log_dir / "logs" / f"{array.name}_{number}.log",
                )
            )
    return tasks


def run_plan(
    plan: StudyPlan,
    log_dir: Path,
    *,
    n_processes: int | None,
    dry_run: bool,
    show_results: Callable[[], None],
    finish: Callable[[], None] | None = None,
) -> int:
    """Run the tasks of a plan on this machine, then make the table of results.

    Args:
        plan: tasks of the study.
        log_dir: folder of logs and results.
        n_processes: number of tasks at a time; None: one per GPU, or one without GPUs.
        dry_run: whether to only print the tasks.
        show_results: function that makes and prints the table.
        finish: function called at the end, unless a signal ended the tasks; or None.

    Returns:
        The exit code.

    Raises:
        CogError: a folder cannot be written to, or there are no results for the table although no task failed.
    """
    tasks = tasks_of(plan.arrays, log_dir)
    gpus = find_gpus()
    n_processes = n_processes or max(1, len(gpus))
    if dry_run:
        for task in tasks:
            after = f" (after {', '.join(task.needs)})" if task.needs else ""
            print(f"# {task.name}: {task.label}{after}\n{command_line(task.command)}")
        print(f"# {n_processes} at a time, GPUs: {' '.join(gpus) or 'none'}")
        return 0
    with os_errors_explained(f"cannot write into --log_dir {log_dir}"):
        (log_dir / "logs").mkdir(exist_ok=True)
    summary = run(tasks, n_processes=n_processes, gpus=gpus)
    n_failed = sum(code != 0 for code in summary.codes.values())
    if summary.signal is not None:
        logger.error(
            "ended by %s: %d of %d tasks are done; the same command continues",
            summary.signal.name,
            len(summary.codes) - n_failed,
            len(tasks),
        )
        return summary.exit_code
    if n_failed:
        images = FailedImagesError.exit_code in summary.codes.values()
        logger.error(
            "%d of %d tasks failed%s, for the reasons above; the same command repeats only these%s",
            n_failed,
            len(tasks),
            f", {len(summary.skipped)} were not begun" if summary.skipped else "",
            ": first fix the images that cannot be decoded (exit code 3), or accept the loss"
            " (--allow_failures N)"
            if images
            else "",
        )
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
    """Return the usable GPUs by their names in ``CUDA_VISIBLE_DEVICES``."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    try:
        done = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return re.findall(r"^GPU (\d+):", done.stdout, re.MULTILINE) if done.returncode == 0 else []


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


class _Reports:
    """Reports on the running tasks from time to time.

    Args:
        tasks: all tasks.
    """

    def __init__(self, tasks: Sequence[LocalTask]) -> None:
        self._tasks = {task.name: task for task in tasks}
        self._began: dict[str, float] = {}  # start of each running task
        self._reported = time.monotonic()

    def start(self, name: str) -> None:
        """Record the start of a task."""
        self._began[name] = time.monotonic()

    def stop(self, name: str) -> float:
        """Record the end of a task and return its seconds."""
        return time.monotonic() - self._began.pop(name)

    def report(self, n_ended: int) -> None:
        """Log the last line of the log of each running task, which has its time left, and the number of ended tasks."""
        if time.monotonic() - self._reported < _REPORT_SECONDS:
            return
        self._reported = time.monotonic()
        for name, began in self._began.items():
            last = _last_line(self._tasks[name].log)
            logger.info("%s, %s: %s", name, duration(self._reported - began), last)
        logger.info("%d of %d tasks have ended", n_ended, len(self._tasks))


def run(tasks: Sequence[LocalTask], *, n_processes: int, gpus: Sequence[str]) -> LocalSummary:
    """Run tasks, at most ``n_processes`` at a time, each as soon as the tasks that it needs have succeeded.

    A failed task stops only the tasks that need it. After SIGINT, or a signal of :func:`cog.runtime.signals.handled`,
    the running tasks save and end, and no further task starts.

    Args:
        tasks: tasks to run.
        n_processes: largest number of tasks at a time.
        gpus: names of GPUs, from :func:`find_gpus`.

    Raises:
        CogError: a program cannot be started, or a log cannot be written.
    """
    summary = LocalSummary()
    waiting = list(tasks)
    slots: dict[str, int] = {}
    by_name = {task.name: task for task in tasks}
    reports = _Reports(tasks)
    with _Signals() as signals:
        try:
            while waiting or signals.running:
                if signals.first is not None:
                    waiting.clear()
                task = _next(waiting, summary) if len(signals.running) < n_processes else None
                if task is not None:
                    waiting.remove(task)
                    slot = min(set(range(n_processes)) - set(slots.values()))
                    number = len(summary.codes) + len(signals.running) + 1
                    logger.info("[%d/%d] %s: %s", number, len(tasks), task.name, task.label)
                    reports.start(task.name)
                    signals.running[task.name] = _start(task, place(slot, n_processes, gpus))
                    slots[task.name] = slot
                    # A signal that arrived while the process was being started was not passed on to it.
                    if signals.first is not None:
                        signals.running[task.name].send_signal(signal.SIGTERM)
                    continue
                time.sleep(_POLL_SECONDS)
                reports.report(len(summary.codes) + len(summary.skipped))
                for name in [name for name, process in signals.running.items() if process.poll() is not None]:
                    code = signals.running.pop(name).returncode
                    summary.codes[name] = code = code if code >= 0 else 128 - code
                    del slots[name]
                    seconds = reports.stop(name)
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


def _next(waiting: list[LocalTask], summary: LocalSummary) -> LocalTask | None:
    """Return the first task that can start; tasks that can never start are moved to ``summary.skipped``."""
    for task in list(waiting):
        lost = [need for need in task.needs if summary.codes.get(need) or need in summary.skipped]
        if lost:
            waiting.remove(task)
            summary.skipped.append(task.name)
            logger.error("%s: not begun, since %s failed (%s)", task.name, lost[0], task.label)
    return next((task for task in waiting if all(need in summary.codes for need in task.needs)), None)


def _start(task: LocalTask, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with (
        os_errors_explained(f"cannot start {task.name} with the log {task.log}"),
        open(task.log, "ab") as log,
    ):
        log.write(f"{command_line(task.command)}\n".encode("utf-8", "surrogateescape"))
        log.flush()
        # In a new session, so that ^C reaches only this process, which signals the tasks to save.
        return subprocess.Popen(
            task.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def _last_line(log: Path) -> str:
    try:
        with open(log, "rb") as handle:
            handle.seek(max(0, log.stat().st_size - 4096))
            lines = handle.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
