"""Checks of single values in records of other programs: an unexpected value becomes None, no error."""

from __future__ import annotations

import math
import re
from typing import Any


def text(value: Any) -> str | None:
    """Return ``value`` if it is a text that is not empty, else None."""
    return value if isinstance(value, str) and value else None


def sha256(value: Any) -> str | None:
    """Return ``value`` if it is a SHA-256 digest in lower-case hexadecimal digits, else None."""
    return value if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) else None


def whole(value: Any) -> int | None:
    """Return ``value`` if it is a whole number of at least 0, else None."""
    return value if type(value) is int and value >= 0 else None


def number(value: Any) -> float | None:
    """Return ``value`` as a float if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
