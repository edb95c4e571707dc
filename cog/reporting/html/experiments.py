"""Values of the page's section on other experiments than the protocol's: tables, and provenance of analyses."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from cog.errors import CogError
from cog.reporting.html.facts import Facts
from cog.reporting.html.templating import breakable, date, duration
from cog.reporting.tables import experiments
from cog.reporting.tables.layout import TableStyle
from cog.reporting.tables.pivot import Averages, pivot
from cog.reporting.tables.writers import Table, printable, words_table
from cog.results import metric_info
from cog.results.analysis_records import AnalysisRecord
from cog.results.diagnostics import analysis_settings
from cog.results.labels import dataset_label, signed
from cog.results.scores import SeedAverage, dataset_key, grouped
from cog.runtime.json_fields import number

_CONCEPT_COLUMNS = ("Difference (points)", "Top-1 (%)", "of the other (%)", "False discovery rate")

_MADE_COLUMNS = ("Data sets", "Settings", "Device", "Time", "Finished")

# Number of concepts with the largest differences in either direction.
_MOST_CONCEPTS = 8


def collect(facts: Facts) -> dict[str, Any]:
    """Return the values of the section.

    Returns:
        ``overviews``: tables of all experiments, one for each data set; ``groups``: titles and tables of analyses, and
        of variants of the classifier; ``winners``: tables of concepts that one model classifies better or worse than
        another; ``made``: table of the provenance of analyses, or None.
    """
    analyses = facts.results.analyses
    averages = Averages(facts.results.all_measures)
    overviews = [_overview(averages, dataset) for dataset in averages.datasets]
    groups = []
    for title, view in (
        ("Analyses of features", partial(experiments.of_analyses, metrics=("top1",))),
        ("Variants of the classifier", experiments.of_variants),
    ):
        with contextlib.suppress(CogError):  # no result of this group
            groups.append((title, view(averages, [experiments.ALL], style=TableStyle()).tables))
    return {
        "overviews": [table for table in overviews if table.columns],
        "groups": groups,
        "winners": _winners(analyses),
        "made": _made(analyses),
    }


def _overview(averages: Averages, dataset: str) -> Table:
    """Return a table of models by experiments, to be sorted by any of them; one experiment gives no columns."""
    columns = experiments.headlines(averages, dataset)
    if len(columns) < 2:
        columns = []
    arrows = (metric_info.describe(*column.key).arrow for column in columns)
    head = [f"{arrow} {column.label}".strip() for arrow, column in zip(arrows, columns, strict=True)]
    rows = []
    shown: list[SeedAverage] = []
    for row, line in zip(averages.rows, pivot(averages, averages.rows, columns), strict=True):
        if any(line):
            label = TableStyle().label(row, sources=averages.sources)
            rows.append((label, tuple(experiments.entry_of(averages, average) for average in line)))
            shown += [average for average in line if average is not None]
    notes = experiments.interval_notes(averages, shown)
    return Table(f"All experiments on {dataset_label(dataset)}", tuple(head), tuple(rows), notes)


def _winners(analyses: Sequence[AnalysisRecord]) -> list[Table]:
    """Return tables of the concepts that one model classifies better than another, or worse."""
    comparisons = []
    for record in analyses:
        name, _, against = record.analysis.partition("_")
        if name != "winners":
            continue
        rows = [
            (str(entry.get("names") or entry.get("wnid") or "?"), _concept(entry, difference))
            for key in ("winners", "losers")
            for entry in _listed(record.details.get(key))[:_MOST_CONCEPTS]
            if isinstance(entry, dict) and (difference := number(entry.get("difference"))) is not None
        ]
        if rows:
            caption = (
                f"{record.model} against {record.details.get('against') or against} on "
                f"{dataset_label(record.dataset or '')}: concepts it classifies better, and worse"
            )
            comparisons.append(words_table(caption, "concept", _CONCEPT_COLUMNS, rows))
    return comparisons


def _concept(entry: Mapping[str, Any], difference: float) -> list[str]:
    accuracies = [number(entry.get(key)) for key in ("accuracy", "accuracy_against")]
    rate = number(entry.get("false_discovery_rate"))
    return [
        signed(difference),
        *("–" if value is None else f"{value:.1f}" for value in accuracies),
        "–" if rate is None else f"{rate:.2g}",
    ]


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else []


def _made(analyses: Sequence[AnalysisRecord]) -> Table | None:
    """Return the table of data sets, settings, device, time and date of analyses; None without any."""
    groups = grouped(analyses, lambda record: (record.model or "", record.analysis))
    rows = []
    for (model, analysis), members in groups.items():
        finished = sorted(record.finished for record in members if record.finished)
        properties = [
            ", ".join(
                map(dataset_label, sorted({record.dataset or "" for record in members}, key=dataset_key))
            ),
            " / ".join(sorted({_settings(record) for record in members})) or "none recorded",
            ", ".join(sorted({record.device for record in members if record.device})) or "?",
            duration(sum(record.seconds for record in members if record.seconds > 0)),
            date(finished[-1]) if finished else "?",
        ]
        rows.append((breakable(model) + f", {printable(analysis)}", properties))
    return words_table("How the analyses were made", "analysis", _MADE_COLUMNS, rows) if rows else None


def _settings(record: AnalysisRecord) -> str:
    return ", ".join(f"{key} {value}" for key, value in analysis_settings(record).items())
