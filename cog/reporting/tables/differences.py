"""Differences to a baseline, stated with what the numbers allow, and where the order changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cog import constants
from cog.errors import CogError
from cog.reporting.tables.layout import (
    Row,
    Shown,
    TableStyle,
    View,
    find_baseline,
    format_number,
)
from cog.reporting.tables.writers import Note, Table, TableEntry, printable
from cog.results import comparison
from cog.results.comparison import Crossing, Difference
from cog.results.labels import METRIC_LABELS, shots_label
from cog.results.scores import RUNS


def statements(shown: Shown, baseline: str, *, metrics: Sequence[str], style: TableStyle) -> View:
    """State the difference of every row to a baseline on the same data, and where they change places.

    Raises:
        CogError: when nothing is known of the baseline, or of anything to compare it with
            (:mod:`cog.results.official`).
    """
    by_source, first = find_baseline(shown, baseline)
    tables: list[Table] = []
    records: list[dict[str, Any]] = []
    for metric in metrics:
        all_found: list[Difference] = []
        for n_shot in shown.n_shots:
            found: list[Difference] = []
            for row in shown.rows:
                source = row.source if row.source in by_source else first
                if row == Row(baseline, source):
                    continue
                for dataset in shown.datasets:
                    mine = shown.get(row, dataset, n_shot, metric)
                    other = by_source[source].get((dataset, n_shot, metric))
                    if mine is not None and other is not None and shown.comparable.allows(mine, other):
                        found.append(comparison.difference(mine, other))
            if found:
                tables.append(_differences_table(found, metric, n_shot, shown, style))
            all_found += found
        records += [_difference_record(item) for item in all_found]
        crossed = comparison.crossings(all_found)
        if all_found:
            tables.append(_crossings_table(crossed, baseline, metric, shown, style))
    if not records:
        raise CogError(
            shown.comparable.refused
            or f"there is nothing to compare {baseline} with on the same data sets and numbers of shots"
        )
    return View(
        tuple(tables),
        (
            "model", "source", "baseline", "baseline_source", "dataset", "n_shot", "metric", "difference", "low",
            "high", "deviation", "paired", "common_seeds", "reading",
        ),
        tuple(records),
    )  # fmt: skip


def _differences_table(
    found: Sequence[Difference], metric: str, n_shot: int, shown: Shown, style: TableStyle
) -> Table:
    d = style.decimals
    rows = []
    sources = {item.source for item in found} | {item.baseline_source for item in found}
    previous = None
    for item in found:
        row = Row(item.model, item.source)
        spread = "?" if item.deviation is None else f"± {item.deviation:.{d}f}"
        if item.paired:
            spread = "-"
            if item.low is not None and item.high is not None:
                low, high = (format_number(end, d, signed=True) for end in (item.low, item.high))
                spread = f"[{low}, {high}]"
        rows.append(
            (
                style.label(row, sources=sources) if row != previous else "",
                (
                    TableEntry(item.dataset),
                    TableEntry(format_number(item.mean, d, signed=True)),
                    TableEntry(spread),
                    TableEntry(str(len(item.seeds)) if item.paired else "unpaired"),
                    TableEntry(item.reading),
                ),
            )
        )
        previous = row
    baseline = style.label(Row(found[0].baseline, found[0].baseline_source), sources=sources)
    notes = []
    if any(item.paired for item in found):
        notes.append(
            Note(
                f"[ ]: {100 * comparison.CONFIDENCE:.0f} % confidence interval of the mean difference, Student's t "
                "over the common seeds. Seeds vary the training of the classifier alone: not the pretraining, the "
                "images or the concepts. Each interval is for its own row; among many, some miss by chance."
            )
        )
    if any(not item.paired for item in found):
        notes.append(
            Note(
                "unpaired, ±: no common seeds are known, so the difference is only set against the combined deviation "
                "sqrt(s1^2 + s2^2) of single runs, plus 0.05 for each published mean's rounding; no confidence is "
                "claimed."
            )
        )
    source = f" [{printable(min(sources))}]" if len(sources) == 1 and RUNS not in sources else ""
    title = f"{METRIC_LABELS[metric]} accuracy minus that of {printable(baseline)} (points), "
    return Table(
        title=f"{title}{shots_label(n_shot)}{source}",
        columns=("data set", "difference", "interval or ±", "seeds", "reading"),
        rows=tuple(rows),
        notes=tuple(notes),
        words=frozenset({0, 2, 3, 4}),
    )


def _crossings_table(
    crossed: Sequence[Crossing], baseline: str, metric: str, shown: Shown, style: TableStyle
) -> Table:
    rows = []
    for item in crossed:
        if item.established:
            certainty = f"after {item.earliest}, before {item.latest}"
            if (item.earliest, item.latest) == (item.before, item.after):
                certainty = "yes"
        else:
            certainty = "no"
        rows.append(
            (
                style.label(Row(item.model, item.source), sources=shown.sources),
                (
                    TableEntry("all" if item.n_shot == 0 else f"N={item.n_shot}"),
                    TableEntry(f"{item.before} -> {item.after}"),
                    TableEntry("ahead" if item.model_leads_after else "behind"),
                    TableEntry(certainty),
                ),
            )
        )
    title = (
        f"Where the order against {baseline} changes ({METRIC_LABELS[metric]}), from {constants.IN1K} over the "
        "levels"
    )
    if not rows:
        return Table(title=f"{title}: nowhere", columns=(), rows=())
    return Table(
        title=title,
        columns=("images", "between", "then", "established"),
        rows=tuple(rows),
        notes=(
            Note(
                "established: the readings above tell the order on both sides; `after A, before B` where only "
                "data sets further apart do."
            ),
        ),
        words=frozenset(range(4)),
    )


def _difference_record(item: Difference) -> dict[str, Any]:
    return {
        "model": item.model,
        "source": item.source,
        "baseline": item.baseline,
        "baseline_source": item.baseline_source,
        "dataset": item.dataset,
        "n_shot": item.n_shot,
        "metric": item.metric,
        "difference": item.mean,
        "low": item.low,
        "high": item.high,
        "deviation": item.deviation,
        "paired": item.paired,
        "common_seeds": item.seeds,
        "reading": item.reading,
    }
