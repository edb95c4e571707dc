"""Values of the page's section on other experiments than the protocol's: tables, and provenance of analyses."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from cog.errors import CogError
from cog.reporting.html.facts import Facts
from cog.reporting.html.templating import breakable, date, duration
from cog.reporting.tables import experiments
from cog.reporting.tables.layout import TableStyle
from cog.reporting.tables.pivot import Averages
from cog.reporting.tables.writers import Table, printable, words_table
from cog.results.analysis_records import AnalysisRecord
from cog.results.diagnostics import analysis_settings
from cog.results.labels import dataset_label
from cog.results.scores import dataset_key, grouped

_MADE_COLUMNS = ("Data sets", "Settings", "Device", "Time", "Finished")


def collect(facts: Facts) -> dict[str, Any]:
    """Return the values of the section.

    Returns:
        ``groups``: titles and tables of analyses and of other classifiers; ``made``: table of the provenance of
        analyses, or None.
    """
    averages = Averages(facts.results.all_measures)
    groups = []
    with contextlib.suppress(CogError):  # no result
        view = experiments.of_analyses(averages, [experiments.ALL], style=TableStyle(), metrics=("top1",))
        groups.append(("Analyses and other classifiers", view.tables))
    return {"groups": groups, "made": _made(facts.results.analyses)}


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
