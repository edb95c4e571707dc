"""Provenance of a run: versions, time, and a log file."""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib.metadata
import logging
import platform
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import cog


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the versions of Python, of this toolkit and of ``packages`` (None: not installed)."""
    basic: dict[str, str | None] = {"python": platform.python_version(), "imagenet-cog": cog.__version__}
    return basic | {package: _version(package) for package in packages}


@functools.cache
def _version(package: str) -> str | None:
    """Return the installed version of a package, cached because every record contains it; None: not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def now() -> str:
    """Return the time as ISO 8601 in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore a full disk: the result files raise one error for it, instead of one per message."""


@contextlib.contextmanager
def log_file(path: Path) -> Iterator[None]:
    """Append the log of the package to ``path`` while the block runs, beginning with the command line."""
    handler = _LogFile(path, mode="a", encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logger = logging.getLogger("cog")
    logger.addHandler(handler)
    handler.handle(
        logging.LogRecord("cog", logging.INFO, __file__, 0, "command: %s", (" ".join(sys.argv),), None)
    )
    try:
        yield
    finally:
        logger.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()
