"""What makes two results the same: a dict of settings and inputs, recorded with each, compared before it is reused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Compare two identities; one ``key: old -> new`` per difference, nested keys joined by dots."""
    found = []
    for key in [*stored, *(key for key in wanted if key not in stored)]:
        old, new = stored.get(key), wanted.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append(f"{prefix}{key}: {old} -> {new}")
    return found


def plain(value: Any) -> Any:
    """Return ``value`` as JSON has it: tuples as lists, keys as text, numbers that are not finite as None.

    Numbers and arrays of numpy and torch (anything with ``tolist()``) become Python's.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Sequence):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)
