"""Checks of single values in records of other programs: an unexpected value becomes None, no error."""

from __future__ import annotations

import math
import re
from typing import Any


def text(value: Any) -> str | None:
    """Return ``value`` if it is a text, but not an empty one, else None."""
    return value if isinstance(value, str) and value else None


def sha256(value: Any) -> str | None:
    """Return ``value`` if it is a SHA-256 digest in lower-case hexadecimal digits, else None."""
    return value if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) else None


def whole(value: Any) -> int | None:
    """Return ``value`` if it is a whole number from 0 to 2 ** 63 - 1, else None."""
    return value if type(value) is int and 0 <= value < 1 << 63 else None


def number(value: Any) -> float | None:
    """Return ``value`` as a float if it is a finite number, else None."""
    is_number = (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e100
    )  # its square is finite
    return float(value) if is_number and math.isfinite(value) else None


def mapping(value: Any) -> dict[str, Any]:
    """Return ``value`` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}
