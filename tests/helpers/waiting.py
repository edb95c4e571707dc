"""Waiting for other processes."""

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], seconds: float = 90) -> None:
    """Return as soon as a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)
