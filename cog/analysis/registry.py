"""Which analyses there are: one row each; the code behind a row is imported when it is asked for.

A row's ``plan`` names a function ``plan(request: cog.analysis.job.Request) -> list[cog.analysis.job.Task]``, which
checks everything that can be checked without reading features and must not import torch at the top of its module
(``Task.compute`` may). A row's ``flags`` names a function ``add_flags(parser)`` that adds flags of its own.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cog.errors import CogError

if TYPE_CHECKING:
    from cog.analysis.job import Request, Task


@dataclass(frozen=True)
class Analysis:
    """One analysis of ``analyze_features.py``.

    Attributes:
        name: as given to ``--analysis``.
        help: one line.
        plan: ``module:function``, see above.
        flags: ``module:function``, see above, or None.
        in_all: whether ``--analysis all`` includes it: it needs nothing but the features of a data set.
    """

    name: str
    help: str
    plan: str
    flags: str | None = None
    in_all: bool = True


_LABEL_FREE = "cog.analysis.label_free"

ANALYSES: tuple[Analysis, ...] = (
    Analysis("kmeans", "k-means clusters compared with the classes", f"{_LABEL_FREE}:plan_kmeans"),
    Analysis("alignment", "alignment and uniformity of the test features", f"{_LABEL_FREE}:plan_alignment"),
    Analysis("knn", "k-nearest-neighbour classifiers", f"{_LABEL_FREE}:plan_knn"),
    Analysis("ncm", "nearest-class-mean classifiers", f"{_LABEL_FREE}:plan_ncm"),
    Analysis(
        "cross",
        "classifiers of one data set (--trained_on) on the test images of another: confident ones, label noise",
        "cog.analysis.cross:plan",
        flags="cog.analysis.probe_flags:add_flags",
        in_all=False,
    ),
    Analysis(
        "distance",
        "accuracy per concept against its similarity to IN-1K (--levels_csv); data set cog_levels: all levels",
        "cog.analysis.distance:plan",
        in_all=False,
    ),
    Analysis(
        "winners",
        "concepts that one model classifies better or worse than another (--against)",
        "cog.analysis.winners:plan",
        in_all=False,
    ),
)

ALL = "all"


def get(names: Sequence[str]) -> list[Analysis]:
    """Return the analyses called ``names`` in the order of the registry; ``all`` stands for those with ``in_all``.

    Raises:
        CogError: an unknown name.
    """
    known = {analysis.name for analysis in ANALYSES}
    unknown = [name for name in names if name not in known | {ALL}]
    if unknown:
        raise CogError(
            f"--analysis {unknown[0]!r} is not an analysis, expected {', '.join(a.name for a in ANALYSES)} or {ALL}"
        )
    return [a for a in ANALYSES if a.name in names or (ALL in names and a.in_all)]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that analyses bring along."""
    for analysis in ANALYSES:
        if analysis.flags is not None:
            resolve(analysis.flags)(parser)


def plan(analysis: Analysis, request: Request) -> list[Task]:
    """Return the tasks of an analysis for one data set."""
    return resolve(analysis.plan)(request)


def resolve(target: str) -> Callable[..., Any]:
    """Import ``module:function``."""
    module, _, function = target.partition(":")
    return getattr(importlib.import_module(module), function)
