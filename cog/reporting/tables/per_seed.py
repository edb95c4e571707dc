"""Text of one evaluation, seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cog.reporting.tables.comparisons import compare_with_published
from cog.reporting.tables.layout import format_number
from cog.results import official, published
from cog.results.labels import METRIC_LABELS
from cog.results.run_records import METRICS, Run
from cog.results.scores import SeedAverage


def draw(
    runs: Sequence[Run], averages: Mapping[str, SeedAverage], *, decimals: int, paper: str | None = None
) -> str:
    """Return a line for each seed, and a line for each metric with its mean and deviation.

    Args:
        runs: runs of one model, data set and number of shots.
        averages: averages over the runs by metric: ``"top1"``, ``"top5"`` or both.
        decimals: digits after the point.
        paper: version of the published results to compare with, or None.
    """
    lines = []
    for run in runs:
        scores = (f"{METRIC_LABELS[metric]} {getattr(run, metric):.{decimals}f}" for metric in averages)
        lines.append(f"seed {run.seed}: {', '.join(scores)}")
    for metric, average in averages.items():
        count = f"{len(average.seeds)} seed{'s' if len(average.seeds) != 1 else ''}"
        lines.append(
            f"{METRIC_LABELS[metric]}: {average.value:.{decimals}f} +- {average.std:.{decimals}f} "
            f"({METRICS[metric]}, {count})"
        )
    if average.missing_seeds:
        lines.append(f"missing seeds: {', '.join(map(str, average.missing_seeds))}")
    if paper is not None and "top1" in averages:
        lines.append(f"{published.SOURCES[paper]}: {_beside(averages['top1'], paper, decimals)}")
    return "\n".join(lines) + "\n"


def _beside(average: SeedAverage, paper: str, decimals: int) -> str:
    """Return a comparison of an accuracy with the published one in words."""
    place = (average.model, average.dataset, average.n_shot)
    other = next(
        (cell for cell in published.accuracies(paper) if (cell.model, cell.dataset, cell.n_shot) == place),
        None,
    )
    if other is None:
        return "no number of this model, data set and number of shots"
    if refused := official.compare([average, other]).refused:
        return refused
    record = compare_with_published(average, other)
    difference = f"difference {format_number(record['difference'], decimals, signed=True)}"
    if record["within"] is None:
        reason = "the deviation was not published" if other.std is None else "one seed has no deviation"
        return f"{other.value:.1f}; {difference} ({reason})"
    words = "within" if record["within"] else "beyond"
    return (
        f"{other.value:.1f} +- {other.std:.1f}; {difference}, {words} the combined deviation of "
        f"{record['combined_deviation']:.{decimals}f}"
    )
