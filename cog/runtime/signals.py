"""Ending in good order when a cluster takes the machine away.

Schedulers announce the end of a job (preemption, time limit) by SIGTERM or SIGUSR1 and kill it a little later. Long
work asks at the end of every unit (:func:`check`) whether that has happened, saves, and ends with exit code 75
(``EX_TEMPFAIL`` of sysexits.h), which tells the driver that the same command continues from there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from cog.errors import CogError

#: Exit code of work that was interrupted and can go on: what job scripts requeue on.
EXIT_CODE = 75

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

_received: list[str] = []

#: The process that defers signals now (0: none).
_process = 0


class Interrupted(CogError):
    """Work was asked to end before it was finished; what is done is saved."""

    exit_code = EXIT_CODE


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Let SIGTERM and SIGUSR1 wait for the end of the current unit of work, see :func:`check`.

    For the main thread; elsewhere, where Python cannot handle signals, nothing changes. Further signals change
    nothing either: schedulers repeat them, and SIGKILL, which follows, loses at most the unit in flight. Inside another
    block of this kind nothing changes; child processes end on a signal as if this did not exist.
    """
    global _process
    if _process == os.getpid() or threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        if os.getpid() == _process:
            _received.append(signal.Signals(number).name)
        else:  # a worker that was forked meanwhile: whoever started it ends it by SIGTERM, too
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    _received.clear()
    _process = os.getpid()
    previous = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _process = 0
        _received.clear()


def requested() -> str | None:
    """Return the name of the first signal that asked to end (inside :func:`deferred`), or None."""
    return _received[0] if _received else None


def check(state: str) -> None:
    """End here if that was asked for; to be called when everything so far is saved.

    Args:
        state: what is saved, for the message: ``"12 of 30 trials are saved"``.

    Raises:
        Interrupted: with the signal, ``state``, and that the same command continues.
    """
    if name := requested():
        raise Interrupted(f"ended by {name}: {state}; the same command continues from here")
