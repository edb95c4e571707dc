"""One evaluation, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cog import comparison, published
from cog.cells import Cell, Run
from cog.run_reader import METRICS
from cog.views.layout import METRIC_LABELS, format_number


def draw(
    runs: Sequence[Run], cell: Cell, *, metrics: Sequence[str], decimals: int, paper: str | None = None
) -> str:
    """Return a line for each seed, and one for each metric's mean and deviation.

    Args:
        runs: of one model, data set and number of shots.
        cell: their average.
        metrics: ``"top1"``, ``"top5"`` or both.
        decimals: digits after the point.
        paper: version of the published results to compare with; or None.
    """
    lines = []
    for run in runs:
        scores = (f"{METRIC_LABELS[metric]} {getattr(run, metric):.{decimals}f}" for metric in metrics)
        lines.append(f"seed {run.seed}: {', '.join(scores)}")
    count = f"{len(cell.seeds)} seed{'s' if len(cell.seeds) != 1 else ''}"
    for metric in metrics:
        score = cell.score(metric)
        assert score is not None and score.std is not None  # of runs
        lines.append(
            f"{METRIC_LABELS[metric]}: {score.mean:.{decimals}f} +- {score.std:.{decimals}f} "
            f"({METRICS[metric]}, {count})"
        )
    if cell.missing_seeds:
        lines.append(f"missing seeds: {', '.join(map(str, cell.missing_seeds))}")
    if paper is not None and "top1" in metrics:
        lines.append(_beside(cell, paper, decimals))
    return "\n".join(lines) + "\n"


def _beside(cell: Cell, paper: str, decimals: int) -> str:
    source = published.SOURCES[paper]
    for other in published.cells(paper):
        if (other.model, other.dataset, other.n_shot) == (cell.model, cell.dataset, cell.n_shot):
            break
    else:
        return f"{source}: no number of this model, data set and number of shots"
    text = f"{source}: {other.top1.mean:.1f}"
    difference = format_number(cell.top1.mean - other.top1.mean, decimals, signed=True)
    if other.top1.std is None or cell.top1.std is None:
        return f"{text}; difference {difference} (the deviation was not published)"
    deviation = math.hypot(cell.top1.std, other.top1.std)
    agrees = comparison.within(cell.top1.mean, other.top1.mean, deviation)
    return (
        f"{text} +- {other.top1.std:.1f}; difference {difference}, {'within' if agrees else 'beyond'} the combined "
        f"deviation of {deviation:.{decimals}f}"
    )
