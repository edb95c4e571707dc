"""Selection of cases for the default suite, and late imports of libraries that only some tests need."""

import importlib
import importlib.util
import os
from collections.abc import Iterable
from typing import Any

import pytest


def first_quick(n: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases, all after the first n marked slow; a tuple has the values of several arguments."""
    return [
        case
        if number < n
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]


def n_examples(n_quick: int, n_all: int) -> int:
    """Return the number of examples for a property test: ``n_all`` in CI, else ``n_quick``."""
    return n_all if os.environ.get("CI", "").lower() in ("true", "1") else n_quick


class _Later:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest tests for every name in a module whether it is a fixture
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


def later(name: str) -> Any:
    """Return an object that imports a library when a test uses it; None if the library is not installed."""
    return _Later(name) if importlib.util.find_spec(name) else None
