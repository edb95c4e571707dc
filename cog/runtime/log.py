"""The log of the package: on standard error, in one file per output, and the progress of long work."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import io
import logging
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from termcolor import colored

import cog
from cog.errors import printable

logger = logging.getLogger("cog")

#: Longer lines of messages are cut: a name in a file can have a million characters.
_LONGEST_LINE = 2000


def readable(text: str) -> str:
    """Return a message for display: long lines cut, control characters escaped."""
    lines = text.split("\n")
    cut = (f"{line[:_LONGEST_LINE]}..." if len(line) > _LONGEST_LINE else line for line in lines)
    return "\n".join(map(printable, cut))


class _Formatter(logging.Formatter):
    """Warnings and errors begin with their level, in color on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        message = readable(record.getMessage())
        if record.levelno < logging.WARNING:
            return message
        color = "yellow" if record.levelno == logging.WARNING else "red"
        plain = not sys.stderr.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        return f"{colored(record.levelname.lower(), color, no_color=plain, force_color=not plain)}: {message}"


class _Console(logging.StreamHandler):
    """Handler for standard error, of a class of its own so that there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        bar = getattr(sys.modules.get("tqdm"), "tqdm", None)
        with bar.external_write_mode(self.stream) if bar else contextlib.nullcontext():
            super().emit(record)


def set_up_logging() -> None:
    """Send the package's log to standard error, once."""
    if not any(isinstance(handler, _Console) for handler in logger.handlers):
        handler = _Console(sys.stderr)
        handler.setFormatter(_Formatter())
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore a full disk: the result files raise one error for it, instead of one per message."""


@contextlib.contextmanager
def log_file(path: Path) -> Iterator[None]:
    """Append the log of the package to ``path`` while the block runs, beginning with the command line."""
    handler = _LogFile(path, mode="a", encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logger.addHandler(handler)
    command = logging.LogRecord("cog", logging.INFO, __file__, 0, "command: %s", (" ".join(sys.argv),), None)
    handler.handle(command)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()


class Progress:
    """Progress of long work: a bar on a terminal, else a line in the log now and then.

    Args:
        total: number of units.
        label: name of the work.
        unit: plural name of a unit.
        interval: seconds from one line to the next.
        bar: False for one of several counters at the same time.
    """

    def __init__(
        self, total: int, label: str, *, unit: str = "images", interval: float = 30.0, bar: bool = True
    ) -> None:
        from tqdm import tqdm

        tqdm.monitor_interval = 0  # no thread beside ours
        options: dict[str, Any] = {"smoothing": 0.1, "dynamic_ncols": True}
        if not bar or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            shown = "{desc}: {n_fmt} of {total_fmt}{unit} ({percentage:.0f} %), {rate_fmt}, {remaining} left"
            options = {"delay": interval, "mininterval": interval, "miniters": 1, "leave": False}
            options |= {"file": _Lines(), "bar_format": shown}
        self._bar = tqdm(total=total, desc=label, unit=f" {unit}", **options)

    def update(self, count: int = 1) -> None:
        """Count more finished units, and show the progress."""
        self._bar.update(count)

    def skip(self, count: int) -> None:
        """Count units that an earlier session finished; the rate and the time left do not include them."""
        self._bar.initial += count
        self._bar.n += count

    @property
    def done(self) -> int:
        """Number of finished units."""
        return int(self._bar.n)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


class _Lines(io.TextIOBase):
    """Takes what tqdm would draw, as lines of the log."""

    def write(self, text: str) -> int:
        if text := text.strip():
            logger.info("%s", text)
        return len(text)


def duration(seconds: float) -> str:
    """Format seconds as ``42s``, ``3m12s``, ``2h05m`` or, from two days on, ``3d04h``."""
    seconds = round(seconds)
    for low, large, small in ((48 * 3600, 86400, 3600), (3600, 3600, 60), (60, 60, 1)):
        if seconds >= low:
            names = {86400: "dh", 3600: "hm", 60: "ms"}[large]
            return f"{seconds // large}{names[0]}{seconds % large // small:02d}{names[1]}"
    return f"{seconds}s"


def size(n_bytes: float) -> str:
    """Return a number of bytes as text with a readable unit."""
    unit, name = next((u for u in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")) if n_bytes >= u[0]), (1e3, "kB"))
    return f"{n_bytes / unit:.3g} {name}"


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the versions of Python, of this toolkit and of ``packages`` (None: not installed)."""
    found: dict[str, str | None] = {"python": platform.python_version(), "imagenet-cog": cog.__version__}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def now() -> str:
    """Return the time as ISO 8601 in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
