"""Orderly end of a process: at the end of every unit, long work looks for a signal, saves, and ends."""

import contextlib
import signal
from collections.abc import Iterator

from cog.errors import CogError

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)  # of schedulers; the terminal was closed

_received: list[str] = []  # names of the signals that were deferred; the first one decides


class Interrupted(CogError):
    """A signal has ended the work before it was finished; the finished part is saved."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: it can be continued


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Defer signals in the block to the next :func:`check`; a hangup stays ignored under nohup."""
    numbers = SIGNALS[: 2 if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else 3]
    previous = {n: signal.signal(n, lambda n, _: _received.append(signal.Signals(n).name)) for n in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _received.clear()


def requested() -> str | None:
    """Return the name of the first deferred signal, or None."""
    return _received[0] if _received else None


def check(saved: str) -> None:
    """Raise :class:`Interrupted` if a signal was deferred; ``saved`` says what is saved."""
    if name := requested():
        raise Interrupted(f"ended by {name}: {saved}; the same command continues from here")
