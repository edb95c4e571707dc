"""Values of the page, and its rendering: tables of the views, figures, notices and provenance in one template."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

import cog
from cog import constants, paths
from cog.errors import CogError, some
from cog.reporting import figures
from cog.reporting.figures import drawing, saving, search
from cog.reporting.html.templating import date, environment
from cog.reporting.tables import accuracies, experiments
from cog.reporting.tables.layout import Row, TableStyle
from cog.reporting.tables.pivot import Averages
from cog.reporting.tables.writers import Note, Table, words_table
from cog.results import checks, metric_info, official, search_history
from cog.results.labels import counted, dataset_label, shots_title
from cog.results.model_facts import MARK, shows_levels
from cog.results.published import REFERENCE, SOURCES
from cog.results.query import QueryResult
from cog.results.run_records import Run
from cog.results.scores import LOGREG, SeedAverage, as_logreg, grouped, is_classifier
from cog.results.search_history import FeatureDescription, plain

#: The figure of the first screen, and the other figures of the protocol on the page.
_ANSWER = "levels"
_FIGURES = ("fig3", "fig4", "drop")

# With more own models than this, other figures are crowded and large, and the page has only the first ones.
_MANY_MODELS = 8

# Greatest number of drawings of searches, about 50 kB each.
_MAX_SEARCHES = 24


class Picture(NamedTuple):
    """A figure as the source of an ``<img>``, with its caption; a wide one has panels side by side."""

    source: str
    caption: str
    wide: bool


class PageResults:
    """The accuracies on the page: those of the user's models, and of the paper where they are comparable."""

    def __init__(self, results: QueryResult, published: Sequence[SeedAverage]) -> None:
        known = official.compare(results.cells)
        # The classifier of a user's own EVAL.NAME is not known.
        alike = [c for c in results.cells if c.evaluation == LOGREG or not is_classifier(c.evaluation)]
        self.own = as_logreg(results.cells)
        #: Whether any own result may be compared with published ones.
        self.compared = any(known.verdict(cell).match.comparable for cell in alike)
        if self.own and not self.compared:  # published numbers are on other data, or of another classifier
            kept = [a for a in results.all_measures if a.source not in SOURCES.values()]
            results = dataclasses.replace(results, all_measures=kept)
        self.all = results
        hidden = (not self.compared) if self.own else results.has_experiments
        self.published = [] if hidden else list(published)
        self.averages = Averages([*self.own, *self.published])
        datasets = {average.dataset for average in (*self.own, *results.all_measures)}
        self.style = TableStyle(
            paper_labels=True, model_facts=results.model_facts, marks=shows_levels(datasets)
        )
        sources = {row.source for row in self.averages.rows}
        #: Labels of the rows of the user's models.
        self.labels = {row: self.style.label(row, sources=sources) for row in self.averages.rows}
        self.own_labels = [label for row, label in self.labels.items() if row.source not in SOURCES.values()]

    def baseline(self, wanted: str | None) -> str | None:
        """Return the model to which differences are shown, or None."""
        models = {row.model for row in self.averages.rows}
        if wanted is not None and wanted not in models:
            raise CogError(f"there is no result of {wanted} on the page to compare with")
        return wanted or (REFERENCE if REFERENCE in models else None)


def render(
    results: QueryResult,
    published: Sequence[SeedAverage],
    *,
    root: str | None,
    baseline: str | None,
    created: str,
) -> str:
    """Return the text of the page; see :func:`cog.reporting.html.write` for the arguments."""
    shown = PageResults(results, published)
    results = shown.all
    features = search_history.features_of(results.runs)
    base = shown.baseline(baseline)
    lead, pictures = _pictures(shown)
    limit = paths.limit_of(root) if root is not None else 0
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            style=Markup(_resource("style.css")),
            script=Markup(_resource("script.js")),
            title=("TRIAL, NOT RESULTS: " if limit else "") + _title(shown),
            limit=limit,
            subject=_subject(results),
            root=root,
            created=created,
            version=cog.__version__,
            facts=_facts(shown),
            standing=_standing(shown),
            lead=lead,
            footnote=_footnote(shown),
            tables=_tables(shown, base),
            own=shown.own_labels,
            experiments=_experiments(shown),
            pictures=pictures,
            notices=checks.collect(results, features, root=root or "<models_root_dir>"),
            provenance=_provenance(results.runs, features),
            searches=_searches(results.runs),
            published_from=_published_from(shown.published),
            classifiers=_classifiers(results),
        )
    )


def _resource(name: str) -> str:
    return importlib.resources.files("cog.reporting.html").joinpath(name).read_text(encoding="utf-8")


# --- first screen


def _title(shown: PageResults) -> str:
    if not shown.own:
        return "The published results" if shown.published else "Results of other experiments"
    n = len(shown.own_labels)
    names = shown.own_labels[0] if n == 1 else f"{n} models"
    if not shown.compared:
        return f"Results of {names}"
    return f"How well {'does' if n == 1 else 'do'} {names} generalize?"


def _subject(results: QueryResult) -> str:
    """Return the numbers of runs and models, or of analyses, behind the page; "" for published results alone."""
    if results.cells:
        models = counted(len({(cell.model, cell.source) for cell in results.cells}), "model")
        return f"{counted(len(results.runs), 'run')} of {models}" if results.runs else f"{models}, imported"
    return f"{len(results.analyses):,} analyses" if results.analyses else ""


def _facts(shown: PageResults) -> list[str]:
    """Return the facts of the first screen: the highest mean over the levels, missing seeds, and other data."""
    facts = []
    means = {row: _level_mean(shown.averages, row) for row in shown.averages.rows}
    known = {row: mean for row, mean in means.items() if mean is not None}
    own_means = {row: mean for row, mean in known.items() if row.source not in SOURCES.values()}
    if own_means and not official.compare([*shown.own, *shown.published]).refused:
        best = max(own_means, key=lambda row: own_means[row])
        rank = 1 + sum(round(mean, 1) > round(own_means[best], 1) for mean in known.values())
        lead = (
            f"has the highest mean over L1 to L5 of {len(own_means)} models"
            if len(own_means) > 1
            else "over L1 to L5"
        )
        facts.append(
            f"{shown.labels[best]} {lead}: {own_means[best]:.1f} %, rank {rank} of {len(known)} here."
        )
    missing = [cell for cell in shown.own if cell.missing_seeds and cell.metric == "top1"]
    if missing:
        facts.append(f"Seeds are missing in {counted(len(missing), 'result')}: see the checks below.")
    facts += map(official.as_sentence, official.compare([*shown.own, *shown.published]).remarks)
    if shown.own and not shown.compared:
        verdicts = official.compare(shown.all.cells).verdicts.values()
        example = next((verdict.differences[0] for verdict in verdicts if verdict.differences), "")
        reason = f": {example}" if example else ""
        facts.append(f"These results are not compared with published ones{reason}.")
    if any(cell.evaluation != LOGREG for cell in shown.all.cells):
        facts.append(f"The classifier of these results: {_classifiers(shown.all)}.")
    return facts


def _classifiers(results: QueryResult) -> str:
    names = sorted({cell.evaluation for cell in results.cells} - {LOGREG})
    return ", ".join(map(metric_info.evaluation_label, names)) or "linear classifiers on frozen features"


def _level_mean(averages: Averages, row: Row) -> float | None:
    """Return the mean over L1 to L5 with all images; None when a level is missing."""
    at_levels = [averages.at(row, level, (LOGREG, "top1", 0)) for level in constants.COG_LEVELS]
    values = [average.value for average in at_levels if average is not None]
    return statistics.fmean(values) if len(values) == constants.N_LEVELS else None


def _standing(shown: PageResults) -> Table | None:
    """Return the table of ranks with all images, or the most, without the rows of published models."""
    if not shown.own:
        return None
    n_shot = _shots(shown.own)
    tables = _view(shown, accuracies.rank, n_shots=[n_shot])
    rows = tuple(
        (name, tuple(entry and dataclasses.replace(entry, seeds="") for entry in entries))
        for table in tables
        for name, entries in table.rows
        if name in shown.own_labels
    )
    if not rows or len(tables[0].rows) < 2:
        return None
    n_models = len(tables[0].rows)
    title = f"Rank by top-1 accuracy among the {n_models} models here, {shots_title(n_shot)}"
    return dataclasses.replace(tables[0], title=title, rows=rows)


def _shots(cells: Iterable[SeedAverage]) -> int:
    there = {cell.n_shot for cell in cells}
    return 0 if 0 in there else max(there, default=0)


def _footnote(shown: PageResults) -> str:
    marked = [(row.model, row.source) for row, label in shown.labels.items() if MARK in label]
    return shown.all.model_facts.footnote(marked, label=shown.style.name)


# --- tables


def _view(
    shown: PageResults,
    quantity: accuracies.QuantityOf,
    *,
    layout: str = "datasets",
    n_shots: Sequence[int] | None = None,
) -> list[Table]:
    """Return the tables of a view of the accuracies, without empty rows; none when it has no number."""
    averages = Averages([*shown.own, *shown.published], n_shots=n_shots)
    try:
        view = accuracies.of_accuracies(
            averages, quantity, metrics=("top1",), layout=layout, style=shown.style
        )
    except CogError:
        return []
    return _own_first(shown, view.tables)


def _own_first(shown: PageResults, tables: Iterable[Table]) -> list[Table]:
    """Return the tables with any number, without empty rows, the user's models first, with the names of the paper."""
    made = []
    for table in tables:
        rows = [row for row in table.rows if any(row[1])]
        if rows:
            made.append(
                dataclasses.replace(
                    table,
                    columns=tuple(map(dataset_label, table.columns)),
                    rows=tuple(sorted(rows, key=lambda row: row[0] not in shown.own_labels)),
                    notes=tuple(note for note in table.notes if not note.items),  # entries name missing seeds
                )
            )
    return made


def _tables(shown: PageResults, baseline: str | None) -> list[Table]:
    if not shown.averages.rows:
        return []
    all_images = [_shots(shown.own or shown.published)]
    tables = _view(shown, accuracies.accuracy)
    if baseline is not None:
        tables += _view(shown, accuracies.relative_to(baseline), n_shots=all_images)
    tables += _view(shown, accuracies.drop, n_shots=all_images)
    if len(shown.averages.n_shots) > 1:
        tables += _view(shown, accuracies.accuracy, layout="shots")
    return tables


def _experiments(shown: PageResults) -> list[Table]:
    """Return the tables of analyses and of variants of the classifier."""
    if not shown.all.has_experiments:
        return []
    averages = Averages(shown.all.all_measures)
    try:
        view = experiments.of_analyses(averages, [experiments.ALL], style=shown.style, metrics=("top1",))
    except CogError:  # no result of another experiment
        return []
    return _own_first(shown, view.tables)


# --- figures


def _pictures(shown: PageResults) -> tuple[Picture | None, list[Picture]]:
    """Return the figure of the first screen, and the others that have results."""
    results = shown.all
    few = len(shown.own_labels) <= _MANY_MODELS
    wanted = [_ANSWER, *(_FIGURES if few else _FIGURES[:1])]
    if results.has_experiments and few:
        wanted += figures.EXPERIMENTS
    pictures: dict[str, Picture] = {}
    try:
        charts = figures.charts(
            results.cells, shown.published, measures=results.all_measures, model_facts=results.model_facts
        )
    except CogError:
        return None, []
    for chart in charts:
        if chart.figure in wanted:
            # The page explains the mark once, outside of the figures.
            chart = dataclasses.replace(chart, notes=tuple(n for n in chart.notes if not n.startswith(MARK)))
            source = saving.embed(functools.partial(drawing.draw, chart))
            pictures[chart.figure] = Picture(source, chart.caption, wide=not chart.single)
    lead = pictures.pop(_ANSWER, None)
    return lead, list(pictures.values())


def _searches(runs: Sequence[Run]) -> dict[str, list[Picture]]:
    """Return drawings of the searches of each model: of results with all images, or else with the most."""
    drawn: dict[str, list[Picture]] = {}
    for model, group in grouped(runs, lambda run: run.model).items():
        n_shot = _shots(SeedAverage(r.model, r.dataset, LOGREG, "top1", r.n_shot, r.top1) for r in group)
        for page in search.pages(run for run in group if run.n_shot == n_shot):
            if sum(map(len, drawn.values())) == _MAX_SEARCHES:
                return drawn
            try:
                records = [search_history.read_search(run) for run in page.runs]
                source = saving.embed(functools.partial(search.draw, page.title, records))
            except CogError:  # files that are gone or damaged since
                continue
            drawn.setdefault(model, []).append(Picture(source, page.title, wide=True))
    return drawn


# --- provenance


def _provenance(
    runs: Sequence[Run], features: Mapping[tuple[str, str, str], FeatureDescription]
) -> list[Table]:
    """Return a table for each model: settings, versions, devices, checkpoints and dates of its runs and features."""
    tables = []
    for model, group in grouped(runs, lambda run: run.model).items():
        details = [run.details for run in group]
        settings = list(map(checks.run_settings, group))
        made = [made for (name, *_), made in features.items() if name == model]
        dates = sorted(detail.finished for detail in details if detail.finished)
        entries: dict[str, Iterable[str | None]] = {
            "Runs": [f"{len(group):,}"],
            "Finished": [" to ".join(dict.fromkeys(map(date, (*dates[:1], *dates[-1:]))))],
            "Device": [detail.device for detail in details],
            "Precision": [detail.precision for detail in details],
            "Versions": [f"{key} {value}" for detail in details for key, value in detail.versions.items()],
        }
        for name, (protocol, key) in checks.PROTOCOL.items():
            entries[f"{key} (protocol: {plain(protocol)})"] = [plain(given.get(name)) for given in settings]
        entries |= {
            "Checkpoint, SHA-256": [feature.checkpoint_sha256 for feature in made],
            "Preprocessing": [feature.preprocessing for feature in made],
            "Features: precision": [feature.precision for feature in made],
            "Features: device": [feature.device for feature in made],
            "Features: versions": [
                f"{key} {value}" for split in made for key, value in split.versions.items()
            ],
        }
        texts = {term: sorted({value for value in values if value}) for term, values in entries.items()}
        rows = [(term, [some(values, 12)]) for term, values in texts.items() if values]
        note = [] if made else [Note("How the features were made is not recorded beside the runs.")]
        tables.append(words_table(model, "", ["recorded"], rows, note))
    return tables


def _published_from(published: Sequence[SeedAverage]) -> str:
    if any(cell.source == SOURCES["v1"] for cell in published):
        return (
            "first version, January 2021, Tables 2 and 4, without deviations; its levels are others than those of the "
            "final version, so that only results on IN-1K or on those levels compare"
        )
    return "ICCV 2021, Tables 5–10 of the supplement, five seeds each"
