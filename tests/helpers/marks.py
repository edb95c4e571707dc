"""Which cases of a parametrized test the default suite runs."""

from __future__ import annotations

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
