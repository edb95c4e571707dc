"""The analyses, in the order in which they are computed and listed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from cog.analysis import (
    accuracy_vs_similarity,
    alignment,
    confident_errors,
    kmeans,
    knn,
    model_comparison,
    ncm,
    subtrees,
)
from cog.analysis.task import Analysis
from cog.errors import CogError, did_you_mean

ANALYSES: tuple[Analysis, ...] = (
    kmeans.ANALYSIS,
    alignment.ANALYSIS,
    knn.ANALYSIS,
    ncm.ANALYSIS,
    confident_errors.ANALYSIS,
    accuracy_vs_similarity.ANALYSIS,
    subtrees.ANALYSIS,
    model_comparison.ANALYSIS,
)

ALL = "all"


def get(names: Sequence[str]) -> list[Analysis]:
    """Return the analyses ``names`` in the order of the registry; ``all`` means every analysis with ``in_all``.

    Raises:
        CogError: an unknown name.
    """
    known = {analysis.name for analysis in ANALYSES}
    unknown = [name for name in names if name not in known | {ALL}]
    if unknown:
        raise CogError(
            f"--analysis {unknown[0]!r} is not an analysis, expected {', '.join(a.name for a in ANALYSES)} or {ALL}"
            f"{did_you_mean(unknown[0], sorted(known))}"
        )
    return [a for a in ANALYSES if a.name in names or (ALL in names and a.in_all)]


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; a flag that no requested analysis uses is an error.

    Raises:
        CogError: a flag that no requested analysis uses, or an unknown analysis.
    """
    flags = {flag for analysis in ANALYSES for flag in analysis.uses}
    absent = object()
    args = parser.parse_args(argv, argparse.Namespace(**dict.fromkeys(flags, absent)))
    used = {flag for analysis in get(args.analysis) for flag in analysis.uses}
    for flag in sorted(flags):
        if getattr(args, flag) is absent:
            setattr(args, flag, parser.get_default(flag))
        elif flag not in used:
            of = ", ".join(analysis.name for analysis in ANALYSES if flag in analysis.uses)
            raise CogError(f"--{flag} is for --analysis {of} and has no effect here; leave it out")
    return args
