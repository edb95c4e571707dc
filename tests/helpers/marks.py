"""Selection of cases for the default suite."""

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
