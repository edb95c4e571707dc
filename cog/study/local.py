"""A study on this machine: N tasks at a time, each with its own GPU or share of the processors."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from cog.errors import CogError, FailedImagesError, os_errors_explained
from cog.runtime.progress import duration
from cog.runtime.ranks import n_processors
from cog.runtime.signals import EXIT_CODE, handled
from cog.study import units
from cog.study.tasks import Commands, StudyTask, is_done
from cog.study.units import Study

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1

#: Seconds between two reports on the running tasks; tasks write lines of progress as often.
_REPORT_SECONDS = 30.0

_PR_SET_PDEATHSIG = 1  # of prctl(2)


class Runner:
    """Tasks on this machine, ``n_processes`` at a time, each as soon as what it needs has ended, however that ended.

    A first signal lets the running tasks save and end, and no further task starts; a second ^C ends them at once. A
    task ends with this process, also when that is killed.

    Args:
        tasks: tasks to run, by number.
        commands: their commands.
        log_dir: folder of their logs.
        n_processes: largest number of tasks at a time.
        gpus: GPUs, from :func:`find_gpus`, of which each slot gets one in turn.

    Attributes:
        codes: exit codes of the tasks that have ended, by number.
        received: signal that ended all tasks early; None without a signal.
    """

    def __init__(
        self,
        tasks: Mapping[int, StudyTask],
        commands: Commands,
        log_dir: Path,
        *,
        n_processes: int,
        gpus: Sequence[str],
    ) -> None:
        self.codes: dict[int, int] = {}
        self.received: signal.Signals | None = None
        self._tasks, self._commands, self._log_dir = dict(tasks), commands, log_dir
        self._places = [place(slot, n_processes, gpus) for slot in range(n_processes)]
        self._running: dict[int, tuple[subprocess.Popen[bytes], int, float]] = {}  # process, slot, start
        self._reported = time.monotonic()

    def run(self) -> int:
        """Run the tasks, and return the exit code: 130 or 75 after a signal, that of the failed tasks, or 2.

        Raises:
            CogError: a program cannot be started, or a log cannot be written.
        """
        waiting = dict(self._tasks)
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, *handled())}
        try:
            while (waiting and self.received is None) or self._running:
                number = self._next(waiting)
                if number is not None:
                    self._start(number, waiting.pop(number))
                    continue
                time.sleep(_POLL_SECONDS)
                self._collect()
        finally:
            self._tell(signal.SIGTERM)
            for process, _, _ in self._running.values():
                process.wait()
            for name, handler in previous.items():
                signal.signal(name, handler)
        if self.received is not None:
            return 130 if self.received == signal.SIGINT else EXIT_CODE
        failed = {self._tasks[number]: code for number, code in self.codes.items() if code}
        # A classifier without features fails for the reason of its extraction.
        codes = {code for task, code in failed.items() if not any(task.needs(other) for other in failed)}
        return 0 if not codes else codes.pop() if len(codes) == 1 else CogError.exit_code

    def _next(self, waiting: Mapping[int, StudyTask]) -> int | None:
        if self.received is not None or len(self._running) == len(self._places):
            return None
        left = [*waiting.values(), *(self._tasks[number] for number in self._running)]
        return next(
            (number for number, task in waiting.items() if not any(task.needs(other) for other in left)), None
        )

    def _start(self, number: int, task: StudyTask) -> None:
        slot = min(set(range(len(self._places))) - {slot for _, slot, _ in self._running.values()})
        command = self._commands.of_task(task)
        n_begun = len(self.codes) + len(self._running) + 1
        logger.info("[%d/%d] %s", n_begun, len(self._tasks), task)
        process = _process(command, self._log(number), self._places[slot])
        self._running[number] = process, slot, time.monotonic()
        if self.received is not None:  # it arrived while the process was being started
            process.send_signal(signal.SIGTERM)

    def _collect(self) -> None:
        """Record the tasks that have ended, and report on the others from time to time."""
        now = time.monotonic()
        for number, (process, _, began) in list(self._running.items()):
            if process.poll() is None:
                continue
            del self._running[number]
            code = process.returncode if process.returncode >= 0 else 128 - process.returncode
            self.codes[number] = code
            task, log = self._tasks[number], self._log(number)
            if code == 0:
                logger.info("%s: done in %s", task, duration(now - began))
            elif self.received is None or code not in (EXIT_CODE, 130, 128 + signal.SIGTERM):
                logger.error("%s: exit code %d: %s (%s)", task, code, last_line(log), log)
        if now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            for number, (_, _, began) in self._running.items():
                logger.info(
                    "%s, %s: %s", self._tasks[number], duration(now - began), last_line(self._log(number))
                )
            logger.info("%d of %d tasks have ended", len(self.codes), len(self._tasks))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again = self.received is not None and number == signal.SIGINT
        self.received = self.received or signal.Signals(number)
        self._tell(signal.SIGINT if again else signal.SIGTERM)

    def _tell(self, number: signal.Signals) -> None:
        for process, _, _ in list(self._running.values()):
            if process.poll() is None:
                process.send_signal(number)

    def _log(self, number: int) -> Path:
        return self._log_dir / f"{number}.log"


def run_here(
    study: Study,
    todo: Mapping[int, StudyTask],
    commands: Commands,
    log_dir: Path,
    n_processes: int | None,
) -> int:
    """Run tasks on this machine, and return the exit code, which comes from the outputs."""
    gpus = find_gpus()
    runner = Runner(todo, commands, log_dir, n_processes=n_processes or max(1, len(gpus)), gpus=gpus)
    code = runner.run()
    n_failed = sum(code != 0 for code in runner.codes.values())
    if runner.received is not None:
        state = f"{len(runner.codes) - n_failed} of {len(todo)} tasks are done; the same command continues"
        logger.error("ended by %s: %s", runner.received.name, state)
    elif is_done(study, todo.values(), units.survey(study)):
        return 0  # another process may have made what a task here could not
    elif n_failed:
        logger.error(
            "%d of %d tasks failed, for the reasons above; the same command repeats only these%s",
            n_failed,
            len(todo),
            "; first fix the images that cannot be decoded, or accept the loss (--allow_failures N)"
            if code == FailedImagesError.exit_code
            else "",
        )
    return code


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
    """Return the environment variables of the tasks of a slot, with its GPU and its share of the processors."""
    result = {"OMP_NUM_THREADS": str(max(1, n_processors() // n_processes)), **os.environ}
    if gpus:
        result["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    return result


def last_line(log: Path) -> str:
    """Return the last line with text of a log; "" if it cannot be read."""
    try:
        with open(log, "rb") as handle:
            handle.seek(max(0, log.stat().st_size - 4096))
            lines = handle.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def _process(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
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
