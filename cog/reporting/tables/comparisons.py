"""Results beside the published ones, and one evaluation seed by seed."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from cog.reporting.tables.layout import Row, TableStyle, View, format_number, seeds_there
from cog.reporting.tables.pivot import Averages, Number
from cog.reporting.tables.writers import Note, Table, TableEntry
from cog.results import comparison, official, published, relative
from cog.results.labels import METRIC_LABELS, counted, shots_label
from cog.results.run_records import METRICS, Run
from cog.results.scores import LOGREG, RUNS, SeedAverage

_WITHIN = Note(
    "within: the difference is at most the combined deviation sqrt(s1^2 + s2^2) plus "
    f"{comparison.PUBLISHED_ROUNDING} for the rounding of the published mean; ?: a single seed, or no "
    "published deviation."
)


def with_published(view: View, averages: Averages, *, version: str, style: TableStyle) -> View:
    """Return a view of top-1 accuracies with a table for each number of shots that has published numbers beside.

    Only results of published models on the official data are compared; the records of the others stay as they are.
    """
    of_paper = {
        (average.model, average.dataset, average.n_shot): average for average in published.accuracies(version)
    }
    compared: dict[tuple[str, str, str, int], dict[str, Any]] = {}
    tables = []
    for n_shot in averages.n_shots:
        rows = []
        places = itertools.product(averages.rows, averages.datasets)
        for average in (averages.at(*place, (LOGREG, "top1", n_shot)) for place in places):
            if average is None:
                continue
            other = of_paper.get((average.model, average.dataset, n_shot))
            is_published = average.source in published.SOURCES.values()
            if other is None or is_published or not averages.comparable.verdict(average).match.comparable:
                continue
            beside = compare_with_published(average, other)
            compared[average.model, average.source, average.dataset, n_shot] = beside
            deviation, within = beside["combined_deviation"], beside["within"]
            entries = (
                TableEntry(average.dataset),
                Number(average.value, average.std).entry(seeds_there(average)),
                Number(other.value, other.std).entry(),
                Number(beside["difference"], signed=True).entry(),
                TableEntry("?" if deviation is None else f"{deviation:.1f}"),
                TableEntry({True: "yes", False: "no", None: "?"}[within]),
            )
            rows.append((style.label(Row(average.model, average.source), sources=[RUNS]), entries))
        if rows:
            title = f"top-1 accuracy (%) beside the published one, {shots_label(n_shot)}, mean ± std"
            columns = ("data set", "here", published.SOURCES[version], "difference", "combined std", "within")
            tables.append(Table(title, columns, tuple(rows), (_WITHIN,), words=frozenset({0, 5})))
    place = operator.itemgetter("model", "source", "dataset", "n_shot")
    records = [
        record | compared.get(place(record), {}) if record["metric"] == "top1" else record
        for record in view.records
    ]
    return View([*view.tables, *tables], records)


def compare_with_published(average: SeedAverage, other: SeedAverage) -> dict[str, Any]:
    """Return an accuracy's difference to the published one, without a deviation for a single seed."""
    difference, combined = relative.points(average, other)
    deviation = None if len(average.seeds) == 1 else combined
    return {
        "published_mean": other.value,
        "published_std": other.std,
        "difference": difference,
        "combined_deviation": deviation,
        "within": None if deviation is None else comparison.within(average.value, other.value, deviation),
    }


def seed_by_seed(
    runs: Sequence[Run], averages: Mapping[str, SeedAverage], *, paper: str | None = None
) -> str:
    """Return a line for each seed, and a line for each metric with its mean and deviation.

    Args:
        runs: runs of one model, data set and number of shots.
        averages: averages over the runs by metric.
        paper: version of the published results to compare with, or None.
    """
    lines = []
    for run in runs:
        scores = (f"{METRIC_LABELS[metric]} {getattr(run, metric):.2f}" for metric in averages)
        lines.append(f"seed {run.seed}: {', '.join(scores)}")
    for metric, average in averages.items():
        count = counted(len(average.seeds), "seed")
        lines.append(
            f"{METRIC_LABELS[metric]}: {average.value:.2f} +- {average.std or 0.0:.2f} "
            f"({METRICS[metric]}, {count})"
        )
    if average.missing_seeds:
        lines.append(f"missing seeds: {', '.join(map(str, average.missing_seeds))}")
    if paper is not None:
        lines.append(f"{published.SOURCES[paper]}: {_beside(averages['top1'], paper)}")
    return "\n".join(lines) + "\n"


def _beside(average: SeedAverage, paper: str) -> str:
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
    difference = f"difference {format_number(record['difference'], 2, signed=True)}"
    if record["within"] is None:
        reason = "the deviation was not published" if other.std is None else "one seed has no deviation"
        return f"{other.value:.1f}; {difference} ({reason})"
    words = "within" if record["within"] else "beyond"
    return (
        f"{other.value:.1f} +- {other.std:.1f}; {difference}, {words} the combined deviation of "
        f"{record['combined_deviation']:.2f}"
    )
