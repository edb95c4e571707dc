"""One evaluation, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cog.reporting.tables.layout import format_number
from cog.results import comparison, official, published
from cog.results.labels import METRIC_LABELS
from cog.results.run_records import METRICS, Run
from cog.results.scores import SeedAverage


def draw(
    runs: Sequence[Run], averages: Mapping[str, SeedAverage], *, decimals: int, paper: str | None = None
) -> str:
    """Return a line for each seed, and one for each metric's mean and deviation.

    Args:
        runs: of one model, data set and number of shots.
        averages: over them: of ``"top1"``, ``"top5"`` or both.
        decimals: digits after the point.
        paper: version of the published results to compare with; or None.
    """
    lines = []
    for run in runs:
        scores = (f"{METRIC_LABELS[metric]} {getattr(run, metric):.{decimals}f}" for metric in averages)
        lines.append(f"seed {run.seed}: {', '.join(scores)}")
    for metric, cell in averages.items():
        count = f"{len(cell.seeds)} seed{'s' if len(cell.seeds) != 1 else ''}"
        lines.append(
            f"{METRIC_LABELS[metric]}: {cell.value:.{decimals}f} +- {cell.std:.{decimals}f} "
            f"({METRICS[metric]}, {count})"
        )
    if cell.missing_seeds:
        lines.append(f"missing seeds: {', '.join(map(str, cell.missing_seeds))}")
    if paper is not None and "top1" in averages:
        lines.append(_beside(averages["top1"], paper, decimals))
    return "\n".join(lines) + "\n"


def _beside(cell: SeedAverage, paper: str, decimals: int) -> str:
    source = published.SOURCES[paper]
    for other in published.accuracies(paper):
        if (other.model, other.dataset, other.n_shot) == (cell.model, cell.dataset, cell.n_shot):
            break
    else:
        return f"{source}: no number of this model, data set and number of shots"
    refused = official.compare([cell, other]).refused
    if refused:
        return f"{source}: {refused}"
    text = f"{source}: {other.value:.1f}"
    difference = format_number(cell.value - other.value, decimals, signed=True)
    if other.std is None or cell.std is None:
        return f"{text}; difference {difference} (the deviation was not published)"
    deviation = math.hypot(cell.std, other.std)
    agrees = comparison.within(cell.value, other.value, deviation)
    return (
        f"{text} +- {other.std:.1f}; difference {difference}, {'within' if agrees else 'beyond'} the combined "
        f"deviation of {deviation:.{decimals}f}"
    )
