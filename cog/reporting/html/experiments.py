"""The page's section on other experiments than the protocol's: an overview, tables, and how analyses were made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cog.errors import CogError
from cog.reporting.html.markup import breakable, date, duration, esc, hidden, prose, scroll, signed, table
from cog.reporting.tables import overview
from cog.reporting.tables.experiments import ALL, Numbers, of_analyses, of_variants
from cog.reporting.tables.layout import TableStyle, View
from cog.reporting.tables.writers import Table, TableEntry
from cog.results import measures, metric_info
from cog.results.analysis_records import AnalysisRecord
from cog.results.cells import Run, SeedAverage, dataset_key, natural_key
from cog.results.labels import dataset_label
from cog.results.metric_info import Kind
from cog.results.search_history import plain
from cog.runtime.json_fields import number

# What ends the name under which an analysis records the features it used.
_FEATURES = "_features"

_LONGEST_SETTING = 40

# Of the concepts that differ most, at either end.
_MOST_CONCEPTS = 8

# With more rows than this a table is folded.
_MANY_ROWS = 40


@dataclass(frozen=True)
class Experiments:
    """Everything the section is made of.

    Attributes:
        measures: numbers of all experiments, with what is derived among them.
        analyses: results of analyses found on disk.
        variants: runs of other evaluations, by the name of these.
    """

    measures: Sequence[SeedAverage] = ()
    analyses: Sequence[AnalysisRecord] = ()
    variants: Mapping[str, Sequence[Run]] = field(default_factory=dict)

    @property
    def present(self) -> bool:
        """Whether there is more than logistic regression on all features."""
        return any(measure.evaluation != measures.LOGREG for measure in self.measures)

    @property
    def models(self) -> list[str]:
        """Names of the models, in natural order."""
        return sorted({measure.model for measure in self.measures}, key=natural_key)


def render(found: Experiments) -> str:
    """Return the section; "" without any such experiment."""
    if not found.present:
        return ""
    numbers = Numbers(found.measures)
    style = TableStyle()
    parts = [
        "<p>The main numbers of every experiment side by side. ▲: higher speaks for the features, ▼: lower; "
        "without either, the number describes them.</p>"
        "<p class='needs-script'>Click a column title to sort by it, again for the other direction.</p>"
    ]
    parts += [_overview(numbers, dataset, style) for dataset in numbers.datasets]
    for title, view in (
        ("Analyses of features", _attempt(partial(of_analyses, metrics=("top1",)), numbers, style)),
        ("Variants of the classifier", _attempt(of_variants, numbers, style)),
    ):
        if view is not None:
            drawn = "".join(map(_draw, view.tables))
            count = f"{len(view.tables)} table{'s' * (len(view.tables) != 1)}"
            parts.append(
                f"<details class='experiments-of print'><summary><h3>{title}</h3> <span class='of'>{count}</span>"
                f"</summary>{drawn}</details>"
            )
    parts.append(_winners(found.analyses))
    parts.append(_made(found.analyses))
    return "".join(parts)


def _attempt(view: Callable[..., View], numbers: Numbers, style: TableStyle) -> View | None:
    try:
        return view(numbers, [ALL], style=style, decimals=None)
    except CogError:  # none of these there
        return None


def _overview(numbers: Numbers, dataset: str, style: TableStyle) -> str:
    """Models by experiments, so that each experiment can be sorted by."""
    keys = [key for key in overview.headlines(numbers.keys) if dataset in numbers.on(key)]
    if len(keys) < 2:
        return ""
    kinds = [metric_info.describe(*key) for key in keys]
    rows = []
    sources = {row.source for row in numbers.rows}
    for row in numbers.rows:
        found = [numbers.get(row, dataset, key) for key in keys]
        if any(measure is not None for measure in found):
            cells = [
                None if measure is None else numbers.entry(measure, decimals=None, interval=False)
                for measure in found
            ]
            rows.append((style.label(row, sources=sources), cells))
    head = [f"{kind.arrow} {kind.short_title}".strip() for kind in kinds]
    drawn = _table(f"All experiments on {dataset_label(dataset)}", "model", head, rows, ())
    return _folded(drawn, f"All experiments on {dataset_label(dataset)}", len(rows))


def _folded(drawn: str, title: str, n_rows: int) -> str:
    if n_rows <= _MANY_ROWS:
        return drawn
    return f"<details class='print'><summary>{esc(title)} ({n_rows} models)</summary>{drawn}</details>"


def _draw(one: Table) -> str:
    drawn = _table(one.title, one.corner, one.columns, one.rows, one.words)
    notes = "".join(
        f"<p class='legend'>{prose(note.text)}{': ' if note.items else ''}"
        f"{esc('; '.join(f'{where}: {what}' for where, what in note.items))}</p>"
        for note in one.notes
    )
    return _folded(drawn + notes, one.title, len(one.rows))


def _table(
    title: str,
    corner: str,
    columns: Sequence[str],
    rows: Sequence[tuple[str, Sequence[TableEntry | None]]],
    words: frozenset[int] | tuple[()],
) -> str:
    head = "".join(
        f'<th scope="col" aria-sort="none"><button type="button" disabled>{esc(text)}</button></th>'
        for text in (corner[:1].upper() + corner[1:], *columns)
    )
    body = "".join(
        f'<tr><th scope="row"><span class="name">{breakable(label)}</span></th>{"".join(map(_cell, cells))}</tr>'
        for label, cells in rows
    )
    drawn = (
        f'<table class="scores sortable experiments"><caption><span>{prose(title)}</span></caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )
    return scroll(drawn, title)


def _cell(found: TableEntry | None) -> str:
    if found is None:
        return '<td class="none">–</td>'
    value = re.fullmatch(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", found.number)
    attribute = f' data-v="{float(found.number):g}"' if value else ""
    text = f"<b>{esc(found.number.replace('-', '−'))}</b>"
    if found.deviation:
        text += f" <i>± {esc(found.deviation)}</i>"
    if found.mark:
        seeds, _, interval = found.mark.partition("[")
        if seeds.strip():
            text += f' <span class="part">{esc(seeds.strip(" ()"))}{hidden(" seeds")}</span>'
        if interval:
            text += f' <span class="sd">[{esc(interval.replace("-", "−"))}</span>'
    return f"<td{attribute}>{text}</td>"


def _winners(analyses: Sequence[AnalysisRecord]) -> str:
    """Concepts that one model classifies better than another, and those it classifies worse."""
    parts = []
    for record in analyses:
        name, _, against = record.analysis.partition("_")
        if name != "winners":
            continue
        rows = [
            (
                f"{esc(entry.get('names') or entry.get('wnid') or '?')}",
                [
                    signed(difference),
                    *(
                        "–" if (value := number(entry.get(key))) is None else f"{value:.1f}"
                        for key in ("accuracy", "accuracy_against")
                    ),
                    "–" if (rate := number(entry.get("false_discovery_rate"))) is None else f"{rate:.2g}",
                ],
            )
            for key in ("winners", "losers")
            for entry in _first_entries(record.details.get(key))
            if (difference := number(entry.get("difference"))) is not None
        ]
        if rows:
            caption = (
                f"{record.model} against {record.details.get('against') or against} on "
                f"{dataset_label(record.dataset or '')}: concepts it classifies better, and worse"
            )
            head = ["Concept", "Difference (points)", "Top-1 (%)", "of the other (%)", "False discovery rate"]
            parts.append(scroll(table(caption=esc(caption), head=head, rows=rows, cls="numbers"), caption))
    if not parts:
        return ""
    return (
        "<details class='winners print'><summary><h3>Concept by concept</h3></summary>"
        f"{''.join(parts)}</details>"
    )


def _first_entries(given: Any) -> list[dict[str, Any]]:
    entries = given if isinstance(given, list) else []
    return [entry for entry in entries[:_MOST_CONCEPTS] if isinstance(entry, dict)]


def _made(analyses: Sequence[AnalysisRecord]) -> str:
    """How analyses were made: settings, device, time."""
    if not analyses:
        return ""
    groups: dict[tuple[str, str], list[AnalysisRecord]] = {}
    for record in analyses:
        groups.setdefault((record.model or "", record.analysis), []).append(record)
    rows = []
    for (model, analysis), members in groups.items():
        settings = {describe_settings(record) for record in members}
        finished = sorted(record.finished for record in members if record.finished)
        datasets = sorted({record.dataset or "" for record in members}, key=dataset_key)
        rows.append(
            (
                f"{breakable(model)}, {esc(analysis)}",
                [
                    esc(", ".join(map(dataset_label, datasets))),
                    esc(" / ".join(sorted(settings)) or "none recorded"),
                    esc(", ".join(sorted({record.device for record in members if record.device})) or "?"),
                    duration(sum(record.seconds for record in members if record.seconds > 0)),
                    esc(date(finished[-1]) if finished else "?"),
                ],
            )
        )
    caption = "How the analyses were made"
    drawn = table(
        caption=caption,
        head=["Analysis", "Data sets", "Settings", "Device", "Time", "Finished"],
        rows=rows,
        cls="details",
    )
    return (
        f"<details class='provenance'><summary><h3>{caption}</h3></summary>{scroll(drawn, caption)}</details>"
    )


def settings_of(record: AnalysisRecord) -> dict[str, str]:
    """Return what an analysis was told, without the features and files it was given."""
    found = {}
    for key, value in record.identity.items():
        shown = plain(value)
        # Digests say that inputs differ, which is not a setting.
        if not key.endswith(_FEATURES) and shown is not None and len(shown) < _LONGEST_SETTING:
            found[key] = shown
    return found


def features_of(record: AnalysisRecord) -> dict[str, str]:
    """Return the digest of the features of each split that an analysis used."""
    found = {}
    for key, value in record.identity.items():
        digest = value.get("sample_sha256") if isinstance(value, dict) else None
        if key.endswith(_FEATURES) and isinstance(digest, str):
            found[key.removesuffix(_FEATURES)] = digest
    return found


def describe_settings(record: AnalysisRecord) -> str:
    """Return the settings of an analysis in one line."""
    return ", ".join(f"{key} {value}" for key, value in settings_of(record).items())


__all__ = ["Experiments", "Kind", "describe_settings", "features_of", "render", "settings_of"]
