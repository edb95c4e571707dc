"""The log of the package: on standard error, in one file per output, and the progress of long work."""

import contextlib
import datetime
import logging
import os
import platform
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from termcolor import colored

import cog
from cog.errors import printable

logger = logging.getLogger("cog")


class _Formatter(logging.Formatter):
    """Warnings and errors begin with their level, in color on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        message = "\n".join(map(printable, record.getMessage().split("\n")))
        if record.levelno < logging.WARNING:
            return message
        color = "yellow" if record.levelno == logging.WARNING else "red"
        plain = not sys.stderr.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        return f"{colored(record.levelname.lower(), color, no_color=plain, force_color=not plain)}: {message}"


def set_up_logging() -> None:
    """Send the package's log to standard error."""
    logging.raiseExceptions = False  # on a full disk, the result files raise one error, not every message
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter())
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)


@contextlib.contextmanager
def log_file(path: Path) -> Iterator[None]:
    """Append the log of the package to ``path`` while the block runs, beginning with the command line."""
    handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logger.addHandler(handler)
    handler.handle(logging.makeLogRecord({"levelname": "INFO", "msg": f"command: {' '.join(sys.argv)}"}))
    try:
        yield
    finally:
        logger.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()


def progress_of(total: int, label: str, *, unit: str = "images") -> Any:
    """Return a ``tqdm`` for long work: every 30 seconds a line on standard error, with the time left."""
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no thread beside ours
    tqdm.set_lock(threading.RLock())  # the default is one of all forks: a killed process would keep it
    line = "{desc}: {n_fmt} of {total_fmt}{unit} ({percentage:.0f} %), {rate_fmt}, {remaining} left\n"
    often: dict[str, Any] = {"mininterval": 30, "delay": 30, "miniters": 1, "leave": False}
    return tqdm(total=total, desc=label, unit=f" {unit}", bar_format=line, **often)


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python, of this toolkit and of installed ``packages``."""
    from importlib.metadata import version

    own = {"python": platform.python_version(), "imagenet-cog": cog.__version__}
    return own | {package: version(package) for package in packages}


def now() -> str:
    """Return the time as ISO 8601 in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
