"""Identities of results: dicts of settings and inputs, recorded with a result and compared before it is reused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the differences of two identities, each as ``key: old -> new``, nested keys joined by dots."""
    changes = []
    for key in [*stored, *(key for key in wanted if key not in stored)]:
        old, new = stored.get(key), wanted.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changes += differences(old, new, f"{prefix}{key}.")
        elif old != new:
            changes.append(f"{prefix}{key}: {old} -> {new}")
    return changes


def plain(value: Any) -> Any:
    """Return ``value`` in the types of JSON: tuples as lists, keys as text, numbers that are not finite as None.

    Objects with ``tolist()``, such as numbers and arrays of numpy and torch, become Python numbers and lists.
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
