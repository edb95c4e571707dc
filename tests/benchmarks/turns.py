"""Measurements in turns, so that what else the machine does meets all sides."""

import argparse
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def add_previous(parser: argparse.ArgumentParser) -> None:
    """Add the flag that names a second side."""
    text = "work tree of an earlier commit (git worktree add ../previous COMMIT), measured, too"
    parser.add_argument("--previous", type=lambda name: Path(name).resolve(strict=True), help=text)


def in_turns(sides: Mapping[str, Callable[[], Any]], n: int) -> dict[str, list[Any]]:
    """Return ``n`` measurements of each side."""
    found: dict[str, list[Any]] = {side: [] for side in sides}
    for _ in range(n):
        for side, measure in sides.items():
            found[side].append(measure())
    return found


def ratio(times: list[float], others: list[float]) -> float:
    """Return the median of the ratios of each turn."""
    return statistics.median(time / other for time, other in zip(times, others, strict=True))
