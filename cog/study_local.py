"""The tasks of a study on one machine: N at a time, each with a GPU of its own or a part of the processors."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from cog.errors import CogError
from cog.interruption import EXIT_CODE
from cog.slurm import Array, command_line

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Task:
    """One command.

    Attributes:
        name: ``extract 0``.
        label: what it does, for people.
        command: program and arguments.
        needs: names of tasks that must have succeeded before.
        log: file that receives its output.
    """

    name: str
    label: str
    command: list[str]
    needs: tuple[str, ...]
    log: Path


@dataclass
class Summary:
    """How the tasks ended.

    Attributes:
        codes: exit code by name of the tasks that were run.
        skipped: names of tasks that were not, because one they need failed.
        signal: that ended everything early; None when none did.
    """

    codes: dict[str, int] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    signal: signal.Signals | None = None

    @property
    def exit_code(self) -> int:
        """0; 130 or 75 when a signal ended everything; else that of the tasks, 2 when they differ."""
        if self.signal is not None:
            return 130 if self.signal == signal.SIGINT else EXIT_CODE
        codes = {code for code in self.codes.values() if code}
        return 0 if not codes else codes.pop() if len(codes) == 1 else 2


def tasks_of(arrays: Sequence[Array], log_dir: Path) -> list[Task]:
    """Return the tasks of arrays, in order."""
    tasks = []
    for array in arrays:
        for number, command in array.commands.items():
            units = array.units[number]
            more = f" and {len(units) - 1} more" if len(units) > 1 else ""
            tasks.append(
                Task(
                    name=f"{array.name} {number}",
                    label=f"{units[0]}{more}",
                    command=command,
                    needs=tuple(f"{name} {number}" for name in array.after),
                    log=log_dir / "logs" / f"{array.name}_{number}.log",
                )
            )
    return tasks


def find_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs that may be used, as ``CUDA_VISIBLE_DEVICES`` names them."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split() if done.returncode == 0 else []


def place(slot: int, n_processes: int, gpus: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the tasks of one slot: its GPU, in turn; its share of the processors."""
    result = dict(environment)
    if gpus:
        result["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    if "OMP_NUM_THREADS" not in environment:
        result["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // n_processes))
    return result


class _Signals:
    """Notes signals, and passes them on to the processes that run."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> _Signals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            self._previous[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _received(self, number: int, frame: FrameType | None) -> None:
        again = self.first is not None and number == signal.SIGINT
        self.first = self.first or signal.Signals(number)
        # A first ^C lets the tasks save, like SIGTERM; a second one ends them where they are.
        self.pass_on(signal.SIGINT if again else signal.SIGTERM)

    def pass_on(self, number: signal.Signals) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.send_signal(number)


def run(
    tasks: Sequence[Task], *, n_processes: int, gpus: Sequence[str], environment: Mapping[str, str]
) -> Summary:
    """Run tasks, at most ``n_processes`` at a time, each as soon as what it needs has succeeded.

    A task that fails stops neither the others nor what does not need it. SIGINT, SIGTERM and SIGUSR1 let what runs
    save and end, and start nothing more.

    Raises:
        CogError: when a program cannot be started or a log not be written.
    """
    summary = Summary()
    waiting = list(tasks)
    slots: dict[str, int] = {}
    by_name = {task.name: task for task in tasks}
    began: dict[str, float] = {}
    with _Signals() as signals:
        try:
            while waiting or signals.running:
                if signals.first is not None:
                    waiting.clear()
                task = _next(waiting, summary)
                if task is not None and len(signals.running) < n_processes:
                    waiting.remove(task)
                    slot = min(set(range(n_processes)) - set(slots.values()))
                    logger.info("[%d/%d] %s: %s", len(summary.codes) + len(signals.running) + 1, len(tasks), task.name,
                                task.label)  # fmt: skip
                    began[task.name] = time.monotonic()
                    signals.running[task.name] = _start(task, place(slot, n_processes, gpus, environment))
                    slots[task.name] = slot
                    if (
                        signals.first is not None
                    ):  # it came while the process was made, which has not heard of it
                        signals.running[task.name].send_signal(signal.SIGTERM)
                    continue
                time.sleep(_POLL_SECONDS)
                for name in [name for name, process in signals.running.items() if process.poll() is not None]:
                    code = signals.running.pop(name).returncode
                    code = code if code >= 0 else 128 - code
                    del slots[name]
                    summary.codes[name] = code
                    seconds = time.monotonic() - began[name]
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


def _next(waiting: list[Task], summary: Summary) -> Task | None:
    """Return the first task that can begin; those that never can are moved to ``summary.skipped``."""
    for task in list(waiting):
        lost = [need for need in task.needs if summary.codes.get(need) or need in summary.skipped]
        if lost:
            waiting.remove(task)
            summary.skipped.append(task.name)
            logger.error("%s: not begun, since %s failed (%s)", task.name, lost[0], task.label)
    for task in waiting:
        if all(need in summary.codes for need in task.needs):
            return task
    return None


def _start(task: Task, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        with open(task.log, "ab") as log:
            log.write(f"{command_line(task.command)}\n".encode("utf-8", "surrogateescape"))
            log.flush()
            # A session of its own: ^C reaches this process alone, which tells the others to save.
            return subprocess.Popen(
                task.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment,
                start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        raise CogError(
            f"cannot start {task.name} with the log {task.log}: {error.strerror or error}"
        ) from error


def _last_line(log: Path) -> str:
    try:
        with open(log, "rb") as handle:
            handle.seek(max(0, log.stat().st_size - 4096))
            lines = handle.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
