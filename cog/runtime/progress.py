"""Progress of long work: a bar on a terminal, plain lines at intervals in a log file; durations and sizes as text."""

from __future__ import annotations

import logging
import os
import sys
import time

logger = logging.getLogger(__name__)

#: Seconds between plain lines, so that the log of a day stays readable, and seconds to the first line.
_LINE_INTERVAL, _FIRST_LINE = 30.0, 5.0


class Progress:
    """Counter of units of work that shows the count, the rate and the time left.

    Args:
        total: number of units; None if unknown: the count is shown in plain lines, without the time left.
        label: name of the work.
        unit: plural name of a unit.
        interval: seconds between plain lines when there is no bar.
        bar: whether to show a bar on a terminal; False for one of several counters at the same time.
    """

    def __init__(
        self,
        total: int | None,
        label: str,
        *,
        unit: str = "images",
        interval: float = _LINE_INTERVAL,
        bar: bool = True,
    ) -> None:
        self.total = total
        self.done = 0
        self._skipped = 0
        self._label = label
        self._unit = unit
        self._interval = interval
        self._start = time.monotonic()
        self._next_line = self._start + min(_FIRST_LINE, interval)
        self._bar = None
        if bar and total is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=label, unit=f" {unit}", smoothing=0.1, dynamic_ncols=True)

    def update(self, count: int = 1) -> None:
        """Count ``count`` more finished units, and show the progress."""
        self.done += count
        if self._bar is not None:
            self._bar.update(count)
            return
        now = time.monotonic()
        if now < self._next_line or (self.total is not None and self.done >= self.total):
            return
        self._next_line = now + self._interval
        if self.total is None:
            logger.info("%s: %d %s", self._label, self.done, self._unit)
            return
        percent, left = 100 * self.done // self.total, (self.total - self.done) / max(self.rate, 1e-9)
        logger.info(
            "%s: %d of %d %s (%d %%), %.3g %s/s, %s left",
            self._label,
            self.done,
            self.total,
            self._unit,
            percent,
            self.rate,
            self._unit,
            duration(left),
        )

    def skip(self, count: int) -> None:
        """Count units that an earlier session finished; the rate and the time left do not include them."""
        self.done += count
        self._skipped += count
        if self._bar is not None:
            self._bar.initial += count
            self._bar.n += count
            self._bar.refresh()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def rate(self) -> float:
        """Units per second since the start, without skipped units."""
        return (self.done - self._skipped) / max(self.seconds, 1e-9)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def duration(seconds: float) -> str:
    """Format seconds as ``42s``, ``3m12s``, ``2h05m`` or, from two days on, ``3d04h``."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    if seconds < 48 * 3600:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    return f"{seconds // 86400}d{seconds % 86400 // 3600:02d}h"


def size(n_bytes: float) -> str:
    """Return a number of bytes as text with a readable unit."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.3g} {name}"
    return f"{n_bytes / 1e3:.3g} kB"
