"""A study on this machine: tasks side by side, each with its own GPU or share of processors and memory."""

import contextlib
import ctypes
import glob
import logging
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cog import constants
from cog.errors import CogError, os_errors_explained
from cog.paths import ModelDir
from cog.runtime import memory, signals
from cog.study.tasks import EXTRACT, Task
from cog.study.units import Study

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_PROCESS_BYTES = 1_000_000_000  # of memory, with PyTorch and batches
_PR_SET_PDEATHSIG = 1  # of prctl(2)


def run_here(
    study: Study,
    tasks: Mapping[int, Task],
    commands: Mapping[str, Sequence[str]],
    log_dir: Path,
    n: int | None = None,
) -> int:
    """Run tasks, each as soon as what it needs has ended, however that ended, with logs ``<number>.log``.

    At most ``n`` run at a time (None: one per GPU, without GPUs one per processor), fewer while memory is
    short. At a signal the running tasks save and end, at a second ^C at once; they also end when this process
    is killed. Returns 0, or the exit code of the failed tasks: 2 if they have several.
    """
    gpus, n_processors = find_gpus(), memory.n_processors()
    n = n or len(gpus) or min(n_processors, len(study.pairs()))
    given = os.environ.get("OMP_NUM_THREADS", "")
    # The last bits of results depend on the number of threads, so it does not change in a study.
    n_threads = given if given.isdigit() else str(max(1, n_processors // n))
    logger.info("%d tasks at a time, %s threads each", n, n_threads)
    # Extractions, which come first, take as many decoding processes as they have processors.
    n_extractions = min(n, sum(task.kind == EXTRACT for task in tasks.values()))
    # Without a step's number: a task is alone, also in a shell of "srun --pty --ntasks=4".
    own = {"OMP_NUM_THREADS": n_threads, "SLURM_STEP_ID": ""}
    own["PYTHON_CPU_COUNT"] = str(max(1, n_processors // max(1, n_extractions)))
    room = memory.available_memory()
    waiting, codes = dict(tasks), dict[int, int]()
    running: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}  # by slot: number of the task, process

    def next_task() -> int | None:
        now, taken = [tasks[number] for number, _ in running.values()], 0
        extractions = [task for task in (*waiting.values(), *now) if task.kind == EXTRACT]
        for number, task in waiting.items():
            if not any(map(task.needs, extractions)):
                # Files are looked at for tasks that could begin: this is asked ten times a second.
                taken = taken or sum(memory_of(study, other) for other in now)
                if not now or room is None or taken + memory_of(study, task) <= room:
                    return number
        return None

    with signals.deferred():
        try:
            while (running or waiting) and not signals.requested():
                if len(running) < n and (number := next_task()) is not None:
                    slot = min({*range(n)} - running.keys())
                    environment = os.environ | own
                    if gpus:
                        environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
                    task, log = waiting.pop(number), log_dir / f"{number}.log"
                    logger.info("[%d/%d] %s", len(tasks) - len(waiting), len(tasks), task)
                    running[slot] = number, _start(task.command(commands), log, environment)
                    continue
                time.sleep(_POLL_SECONDS)
                for slot, (number, process) in list(running.items()):
                    if (code := process.poll()) is not None:
                        del running[slot]
                        codes[number] = code if code >= 0 else 128 - code
                        log = log_dir / f"{number}.log"
                        if code:
                            how = f"exit code {code}" if code > 0 else f"killed by signal {-code}"
                            logger.error("%s: %s: %s (%s)", tasks[number], how, _last_line(log), log)
                        n_failed = sum(map(bool, codes.values()))
                        facts = len(codes) - n_failed, len(tasks), n_failed, len(running)
                        logger.info("%d of %d tasks are done, %d failed, %d run", *facts)
        finally:
            _end([process for _, process in running.values()])
        signals.check(f"{len(codes)} of {len(tasks)} tasks had ended")
    failed = [tasks[number] for number, code in codes.items() if code]
    # A classifier without features fails for the reason of its extraction.
    different = {code for k, code in codes.items() if code and not any(map(tasks[k].needs, failed))}
    return 0 if not failed else different.pop() if len(different) == 1 else CogError.exit_code


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Let processes save and end; at ^C, end them at once."""
    for number in (signal.SIGTERM, signal.SIGINT):
        for process in processes:
            process.send_signal(number)
        with contextlib.suppress(KeyboardInterrupt):
            for process in processes:
                process.wait()
            return


def memory_of(study: Study, task: Task) -> int:
    """Return the bytes of memory that a task needs, roughly: libraries, and networks or features."""
    places = [ModelDir(study.root, model) for model in task.models]
    paths = [place.checkpoint for place in places]
    if task.kind != EXTRACT:
        paths = [place.features_file(task.dataset, split) for place in places for split in constants.SPLITS]
    return _PROCESS_BYTES + sum(path.stat().st_size for path in paths if path.is_file()) * 3 // 2


def find_gpus() -> list[str]:
    """Return the usable GPUs by their names in ``CUDA_VISIBLE_DEVICES``."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1", "NoDevFiles")]
    there = [path for path in glob.glob("/dev/nvidia[0-9]*") if os.access(path, os.R_OK | os.W_OK)]
    return [str(number) for number in range(len(there))]


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def _start(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, which gets SIGTERM when this process ends, even by SIGKILL."""
    parent = os.getpid()
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone

    def in_child() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it has ended before
            os._exit(signals.Interrupted.exit_code)

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
