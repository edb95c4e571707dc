"""The analyses, in the order in which they are computed and listed."""

from __future__ import annotations

from collections.abc import Sequence

from cog.analysis import alignment, cross, kmeans, knn, ncm
from cog.analysis.task import Analysis
from cog.errors import CogError

ANALYSES: tuple[Analysis, ...] = (
    kmeans.ANALYSIS,
    alignment.ANALYSIS,
    knn.ANALYSIS,
    ncm.ANALYSIS,
    cross.ANALYSIS,
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
        )
    return [a for a in ANALYSES if a.name in names or (ALL in names and a.in_all)]
