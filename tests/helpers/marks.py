"""Which cases of a parametrized test the default suite runs, and libraries that only some tests need."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterable
from typing import Any

import pytest


def first_quick(n: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases with all but the first n marked slow; tuples are the values of several arguments."""
    return [
        case
        if number < n
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]


def n_examples(n_quick: int, n_all: int) -> int:
    """Return how many examples of a property are tried: fewer in the default suite than where slow tests run."""
    return n_all if os.environ.get("CI", "").lower() in ("true", "1") else n_quick


class _Later:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks every name of a module whether it is a fixture
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


def later(name: str) -> Any:
    """Return a stand-in for a library that is imported when a test uses it; None when it is not installed."""
    return _Later(name) if importlib.util.find_spec(name) else None
