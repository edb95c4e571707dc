"""Orderly end of a process when a cluster ends its job.

Schedulers announce the end of a job (preemption, time limit) by SIGTERM or SIGUSR1 and kill it a little
later. SIGHUP says that the terminal was closed or the connection lost. At the end of every unit, long work
tests for such a signal, saves its state, and ends by :func:`check` with exit code 75 (``EX_TEMPFAIL`` of
sysexits.h); the same command goes on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from types import FrameType

from cog.errors import CogError

logger = logging.getLogger(__name__)

#: Exit code of interrupted work that can be continued.
EXIT_CODE = 75

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)

#: Largest number of times that a task is queued again.
_MOST_RESTARTS = 100

# Names of the signals that were deferred (the first one decides), kept until the next block of deferred();
# and number of the process that defers signals now (0: none).
_received: list[str] = []
_process = 0


class Interrupted(CogError):
    """A signal has ended the work before it was finished; the finished part is saved."""

    exit_code = EXIT_CODE


def handled() -> list[signal.Signals]:
    """Return the signals that end work in an orderly way: without SIGHUP if it is ignored, as under nohup."""
    ignores_hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in SIGNALS if number != signal.SIGHUP or not ignores_hangup]


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Defer the signals of :func:`handled` in the block to the next :func:`check`.

    The block has an effect only in the main thread, because Python cannot handle signals in others, and only
    outside of another such block. Child processes end on a signal as usual.
    """
    global _process
    if _process == os.getpid() or threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        if os.getpid() == _process:
            _received.append(signal.Signals(number).name)
        else:  # a worker that was forked in the block: its parent ends it by SIGTERM, too
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    _received.clear()
    _process = os.getpid()
    previous = {number: signal.signal(number, note) for number in handled()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _process = 0


def requested() -> str | None:
    """Return the name of the first deferred signal (inside :func:`deferred`), or None."""
    return _received[0] if _received and _process else None


def check(state: str) -> None:
    """Raise :class:`Interrupted` if a signal was deferred; ``state`` says what is saved."""
    if name := requested():
        raise Interrupted(f"ended by {name}: {state}; the same command continues from here")


def requeue() -> None:
    """Queue this task of a SLURM array again if SIGUSR1, the warning before its time limit, ended it.

    Who sends SIGTERM (``scancel``, a preemption) decides what follows: a cancelled task would come back.
    """
    if _received[:1] != ["SIGUSR1"] or "SLURM_ARRAY_TASK_ID" not in os.environ:
        return
    # The number of the job alone can mean the whole array.
    job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    if int(os.environ.get("SLURM_RESTART_COUNT") or 0) >= _MOST_RESTARTS:
        logger.error(
            "job %s was queued again %d times; a longer time limit may be needed", job, _MOST_RESTARTS
        )
        return
    try:
        subprocess.run(["scontrol", "requeue", job], check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        logger.error("job %s could not be queued again (%s); submit the study again", job, error)
