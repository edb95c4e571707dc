"""Single values of records that others wrote: what is not as expected is None, and never an error."""

from __future__ import annotations

import math
from typing import Any


def text(value: Any) -> str | None:
    """Return a text that is not empty, else None."""
    return value if isinstance(value, str) and value else None


def whole(value: Any) -> int | None:
    """Return a whole number of at least 0, else None."""
    return value if type(value) is int and value >= 0 else None


def number(value: Any) -> float | None:
    """Return a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
