"""A study on this machine: tasks side by side, each with its own GPU or share of the processors and of the memory."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from cog import constants
from cog.errors import CogError, os_errors_explained
from cog.paths import ModelDir
from cog.runtime import memory
from cog.runtime.log import duration
from cog.runtime.signals import EXIT_CODE, handled
from cog.study.tasks import EXTRACT, Task, command_of
from cog.study.units import Study

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1

#: Seconds between two reports on the running tasks; tasks write lines of progress as often.
_REPORT_SECONDS = 30.0

#: Memory of a process with PyTorch, a network and its batches; classifiers need 1.5 times their features more.
_PROCESS_BYTES = 1_000_000_000

_PR_SET_PDEATHSIG = 1  # of prctl(2)


@dataclass(frozen=True)
class Slots:
    """Places of tasks that run side by side; a task keeps its share of the processors however many run.

    Attributes:
        n: largest number of tasks at a time.
        n_threads: threads of each; the last bits of results depend on it, so it does not change in a study.
        gpus: GPUs by their names in ``CUDA_VISIBLE_DEVICES``, which the slots get in turn.
    """

    n: int
    n_threads: int
    gpus: Sequence[str] = ()

    @classmethod
    def of_machine(cls, study: Study, n: int | None) -> Slots:
        """Return ``n`` slots; None: one per GPU, without GPUs one per processor, but no more than pairs of a study."""
        gpus, n_processors = find_gpus(), len(os.sched_getaffinity(0))
        n = n or len(gpus) or min(n_processors, len(study.pairs()))
        given = os.environ.get("OMP_NUM_THREADS", "")
        return cls(n, int(given) if given.isdigit() else max(1, n_processors // n), gpus)

    def environment(self, slot: int) -> dict[str, str]:
        """Return the environment variables of the tasks of a slot."""
        result = {**os.environ, "OMP_NUM_THREADS": str(self.n_threads)}
        return result | ({"CUDA_VISIBLE_DEVICES": self.gpus[slot % len(self.gpus)]} if self.gpus else {})


class _Tasks:
    """The tasks of a study while they run.

    Attributes:
        waiting: tasks that have not begun, by number.
        running: process, slot and start of the others, in seconds.
        codes: exit codes of those that have ended.
        received: signals that this process has got.
    """

    def __init__(self, tasks: Mapping[int, Task], log_dir: Path, slots: Slots) -> None:
        self.all, self.log_dir, self.slots = tasks, log_dir, slots
        self.waiting, self.codes = dict(tasks), dict[int, int]()
        self.running: dict[int, tuple[subprocess.Popen[bytes], int, float]] = {}
        self.received: list[signal.Signals] = []
        self.room = memory.available_memory()

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to the running tasks."""
        for process, _, _ in list(self.running.values()):
            if process.poll() is None:
                process.send_signal(number)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Let the running tasks save and end; with the second ^C, end them at once."""
        again = bool(self.received) and number == signal.SIGINT
        self.received.append(signal.Signals(number))
        self.tell(signal.SIGINT if again else signal.SIGTERM)

    def ready(self, memory_of: Callable[[Task], int]) -> int | None:
        """Return the number of a task that can begin now."""
        if self.received or len(self.running) >= self.slots.n:
            return None
        unfinished = [*self.waiting.values(), *(self.all[number] for number in self.running)]
        taken = sum(memory_of(self.all[number]) for number in self.running)
        for number, task in self.waiting.items():
            has_room = not self.running or self.room is None or taken + memory_of(task) <= self.room
            if has_room and not any(task.needs(other) for other in unfinished):
                return number
        return None

    def start(self, number: int, commands: Mapping[str, Sequence[str]]) -> None:
        """Start a task in the first free slot."""
        task = self.waiting.pop(number)
        slot = min({*range(self.slots.n)} - {slot for _, slot, _ in self.running.values()})
        logger.info("[%d/%d] %s", len(self.all) - len(self.waiting), len(self.all), task)
        process = _start(command_of(task, commands), self.log(number), self.slots.environment(slot))
        self.running[number] = process, slot, time.monotonic()
        if self.received:  # while the process was being started
            process.send_signal(signal.SIGTERM)

    def collect(self) -> None:
        """Note and log the tasks that have ended."""
        for number, (process, _, began) in list(self.running.items()):
            if (code := process.poll()) is None:
                continue
            del self.running[number]
            self.codes[number] = code = code if code >= 0 else 128 - code
            if code == 0:
                logger.info("%s: done in %s", self.all[number], duration(time.monotonic() - began))
            elif not (self.received and code in (EXIT_CODE, 130, 128 + signal.SIGTERM)):
                log = self.log(number)
                logger.error("%s: exit code %d: %s (%s)", self.all[number], code, last_line(log), log)

    def report(self) -> None:
        """Log what the running tasks do."""
        for number, (_, _, began) in self.running.items():
            line = last_line(self.log(number))
            logger.info("%s, %s: %s", self.all[number], duration(time.monotonic() - began), line)
        logger.info("%d of %d tasks have ended", len(self.codes), len(self.all))

    def log(self, number: int) -> Path:
        """Return the log of a task."""
        return self.log_dir / f"{number}.log"

    def exit_code(self) -> int:
        """Return the exit code of :func:`run_here`."""
        if self.received:
            n_done = list(self.codes.values()).count(0)
            text = f"{n_done} of {len(self.all)} tasks are done; the same command continues"
            logger.error("ended by %s: %s", self.received[0].name, text)
            return 130 if self.received[0] == signal.SIGINT else EXIT_CODE
        failed = {self.all[number]: code for number, code in self.codes.items() if code}
        # A classifier without features fails for the reason of its extraction.
        different = {code for task, code in failed.items() if not any(task.needs(other) for other in failed)}
        return 0 if not failed else different.pop() if len(different) == 1 else CogError.exit_code


def run_here(
    tasks: Mapping[int, Task],
    commands: Mapping[str, Sequence[str]],
    log_dir: Path,
    slots: Slots,
    memory_of: Callable[[Task], int] = lambda task: 0,
) -> int:
    """Run tasks, each as soon as what it needs has ended, however that ended, and return an exit code.

    A first signal lets the running tasks save and end, and no further task starts; a second ^C ends them at once. A
    task ends with this process, also when that is killed.

    Args:
        tasks: tasks to run, by number.
        commands: command lines of the stages.
        log_dir: folder of their logs, ``<number>.log``.
        slots: where they run.
        memory_of: bytes that a task needs; without room beside the running ones it waits.

    Returns:
        130 or 75 after a signal, 0 if all tasks succeeded, the code of the failed ones if it is the same, else 2.

    Raises:
        CogError: a program cannot be started, or a log cannot be written.
    """
    state, reported = _Tasks(tasks, log_dir, slots), time.monotonic()
    previous = {number: signal.signal(number, state.on_signal) for number in (signal.SIGINT, *handled())}
    try:
        while state.running or (state.waiting and not state.received):
            if (number := state.ready(memory_of)) is not None:
                state.start(number, commands)
                continue
            time.sleep(_POLL_SECONDS)
            state.collect()
            if time.monotonic() - reported >= _REPORT_SECONDS:
                reported = time.monotonic()
                state.report()
    finally:
        state.tell(signal.SIGTERM)
        for process, _, _ in state.running.values():
            process.wait()
        for signal_number, handler in previous.items():
            signal.signal(signal_number, handler)
    return state.exit_code()


def memory_of(study: Study, task: Task) -> int:
    """Return the bytes of memory that a task needs, roughly: networks and batches, or features and their batches."""
    n_bytes = _PROCESS_BYTES
    for place in (ModelDir(study.root, model) for model in task.models):
        with contextlib.suppress(OSError):
            if task.stage == EXTRACT:
                n_bytes += 2 * place.checkpoint.stat().st_size
            else:
                files = [place.features_file(task.dataset, split) for split in constants.SPLITS]
                n_bytes += sum(file.stat().st_size for file in files) * 3 // 2
    return n_bytes


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


def last_line(log: Path) -> str:
    """Return the last line with text of a log; "" if it cannot be read."""
    try:
        with open(log, "rb") as handle:
            handle.seek(max(0, log.stat().st_size - 4096))
            lines = handle.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def _start(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, which gets SIGTERM when this process ends, even by SIGKILL."""
    parent = os.getpid()
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone

    def in_child() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it has ended before
            os._exit(EXIT_CODE)

    with os_errors_explained(f"cannot start a task with the log {log}"), open(log, "ab") as handle:
        handle.write(f"{shlex.join(command)}\n".encode("utf-8", "surrogateescape"))
        handle.flush()
        # In a session of its own, so that ^C reaches only this process, which signals the tasks to save.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=in_child,  # noqa: PLW1509 (a study has no other threads: torch is not imported)
        )
