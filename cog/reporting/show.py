"""Execution of requests for results: tables as text, and files."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cog.errors import CogError
from cog.reporting.request import OutputRequest, ResultsRequest, check_outputs
from cog.reporting.tables import accuracies, claims, comparisons, experiments, power, writers
from cog.reporting.tables.layout import TableStyle, View
from cog.reporting.tables.pivot import Averages
from cog.results import exchange, labels, metric_info, official, published, query, uncertainty
from cog.results.model_facts import MARK, shows_levels
from cog.results.query import QueryResult, ResultQuery
from cog.results.run_records import Problem, average_runs, average_variants
from cog.results.saved_predictions import PREDICTIONS_FILE
from cog.results.scores import LOGREG, RUNS, SeedAverage, as_logreg, is_classifier, of_metric
from cog.runtime import machine_checks
from cog.runtime.check_report import Report
from cog.runtime.output_folder import INTERRUPTED, RUNNING

logger = logging.getLogger(__name__)

#: Digits after the point by default: in tables; for one evaluation and for differences; in CSV.
TABLE_DECIMALS = 1
FINE_DECIMALS = 2
DECIMALS = {"csv": 4}

#: Flags of tables that do not change the report.
_NOT_OF_REPORT = ("view", "drop", "rank", "claims", "power", "analysis", "variants", "overview", "metric")

#: Remark on tables of results that were made with ``--limit``.
LIMITED = "--limit {0}: a test of the commands on a few images, and no results."


def read(request: ResultsRequest, *, for_page: bool = False) -> QueryResult:
    """Read the selected results, and log warnings about them.

    Args:
        request: the request.
        for_page: whether the results are for the report, where every published model can be the baseline.

    Raises:
        CogError: no results, no result of the baseline, or averages over seeds that were trained for different numbers
            of epochs, unless these are allowed.
    """
    selected = request.selection
    results = query.gather(selected, on_problems=_warn_of_problems, needs_in1k=request.drop)
    if selected.baseline is not None and not (for_page and selected.baseline in published.MODELS):
        flag = "--compare" if selected.compared else "--relative_to" if request.relative_to else "--baseline"
        query.check_baseline(
            selected.baseline, (*results.cells, *results.others), flag=flag, root=selected.models_root_dir
        )
    _warn(results, selected)
    _check_epochs(results, allow=request.allow_mixed_epochs)
    return results


def check(make_request: Callable[[], ResultsRequest], output: OutputRequest) -> int:
    """Check results and outputs, print a summary, and return the exit code.

    Args:
        make_request: returns the request, or raises a ``CogError`` when flags contradict each other.
        output: files and folders that would be written.
    """
    report = Report()
    with report.step("output"):
        for path in check_outputs(output).values():
            if machine_checks.check_writable(report, path if path.is_dir() else path.parent):
                report.ok("output", str(path))
    with report.step("results"):
        results = read(make_request())
        report.ok(
            "results",
            f"{len(results.runs):,} runs in {len(of_metric(results.cells, 'top1')):,} groups of seeds",
        )
    return report.finish()


def as_text(results: QueryResult, request: ResultsRequest) -> str:
    """Return the requested tables as text in the requested format."""
    selected = request.selection
    runs = [average for average in results.cells if average.source == RUNS]
    is_one = selected.logreg_root_dir is not None or all(
        len(values or ()) == 1 for values in (selected.exact_models, selected.datasets, selected.n_shots)
    )
    seed_by_seed = is_one and request.format == "text" and request.per_seed and bool(runs)
    is_table = request.format in writers.DRAWN
    shown = results.all_measures if request.shows_experiments else results.cells
    on_levels = shows_levels({average.dataset for average in shown})
    usual = "both" if seed_by_seed or (request.analysis and not is_table) else "top1"
    metric = request.metric or usual
    metrics = tuple(labels.METRIC_LABELS) if metric == "both" else (metric,)
    decimals = request.decimals
    if seed_by_seed:
        both = runs[:2]  # the averages of one evaluation follow each other
        averages = {average.metric: average for average in both if average.metric in metrics}
        digits = FINE_DECIMALS if decimals is None else decimals
        text = comparisons.seed_by_seed(results.runs, averages, decimals=digits, paper=selected.paper)
        return text + (f"{LIMITED.format(request.limit)}\n" if request.limit else "")
    if decimals is None and not request.shows_experiments:
        decimals = DECIMALS.get(request.format, TABLE_DECIMALS if request.baseline is None else FINE_DECIMALS)
    style = TableStyle(
        decimals=decimals,
        paper_labels=request.labels == "paper",
        with_source=selected.paper is not None or bool(selected.imports),
        model_facts=results.model_facts if is_table else None,
        marks=on_levels,
    )
    if request.claims:
        view = claims.of_claims([*results.cells, *results.measures])
    else:
        view = (_experiments if request.shows_experiments else _accuracies)(results, request, metrics, style)
    comparable = official.compare([*results.cells, *results.others])
    remarks = [
        writers.printable(official.as_sentence(remark) if is_table else remark)
        for remark in comparable.remarks
    ]
    facts = results.model_facts
    seen = dict.fromkeys((r["model"], r.get("source") or RUNS) for r in view.records if "model" in r)
    if is_table and any(MARK in text for table in view.tables for text in (table.title, *dict(table.rows))):
        known = (*results.cells, *results.others)
        bases = [(a.model, a.source) for a in known if a.model in (request.baseline, request.relative_to)]
        remarks.append(writers.printable(facts.footnote([*seen, *bases], label=style.name)))
    if runs and selected.eval_name != LOGREG and not request.shows_experiments:
        name = selected.eval_name
        remarks.insert(0, writers.printable(f"Classifier of the runs: {metric_info.evaluation_label(name)}."))
        if seen:
            view = _with_column(
                view, "evaluation", lambda r: name if (r.get("source") or RUNS) == RUNS else LOGREG
            )
    if request.interval_over == uncertainty.IMAGES:
        remarks += _without_predictions([*results.cells, *results.others])
        view = _with_column(view, "interval_over", lambda _: request.interval_over)
    if request.limit:
        remarks.insert(0, LIMITED.format(request.limit))
        view = _with_column(view, "limit", lambda _: request.limit)
    if not is_table:
        for remark in remarks:
            logger.warning("%s", remark)
        if any(facts.mark(*model) for model in seen):
            view = _with_column(view, "pretraining", lambda r: facts.of(r["model"], r.get("source") or RUNS))
        return writers.flat(view.records, view.columns, request.format, decimals=decimals)
    *first, last = view.tables
    last = dataclasses.replace(last, notes=(*last.notes, *map(writers.Note, remarks)))
    return writers.draw([*first, last], request.format, width=request.width)


def _with_column(view: View, name: str, value: Callable[[Mapping[str, Any]], object]) -> View:
    """Return ``view`` with a further column ``name``; ``value`` computes its entry from a record."""
    records = tuple({**record, name: value(record)} for record in view.records)
    return dataclasses.replace(view, records=records, columns=(*view.columns, name))


def _without_predictions(averages: Sequence[SeedAverage]) -> list[str]:
    """Return a remark on the unpublished accuracies without an interval over images; none when all have one."""
    unpublished = [a for a in of_metric(averages, "top1") if a.source not in published.SOURCES.values()]
    lacking = [a for a in unpublished if not a.concepts or any(run.right is None for run in a.concepts)]
    if not lacking:
        return []
    place = writers.printable(_place("", lacking[0].model, lacking[0].dataset, lacking[0].n_shot))
    return [
        f"No interval over images where saved predictions ({PREDICTIONS_FILE}) of some seed are missing or do not make "
        f"its accuracy: {len(lacking)} of {len(unpublished)} averages, such as {place}."
    ]


def _experiments(
    results: QueryResult, request: ResultsRequest, metrics: Sequence[str], style: TableStyle
) -> View:
    averages = Averages(results.all_measures, models=request.selection.exact_models)
    if request.overview:
        return experiments.overview(averages, style=style)
    if request.analysis:
        return experiments.of_analyses(averages, request.analysis, style=style, metrics=metrics)
    return experiments.of_variants(averages, request.variants or (), style=style)


def _accuracies(
    results: QueryResult, request: ResultsRequest, metrics: Sequence[str], style: TableStyle
) -> View:
    selected = request.selection
    averages = Averages(
        as_logreg(results.cells),
        models=selected.exact_models,
        datasets=selected.datasets,
        n_shots=selected.n_shots,
        others=as_logreg(results.others),
        interval_over=request.interval_over,
    )
    if request.baseline:
        return comparisons.differences(averages, request.baseline, metrics=metrics, style=style)
    if request.power:
        return power.smallest_differences(averages, style)
    quantity: accuracies.QuantityOf = accuracies.accuracy
    if request.relative_to:
        quantity = accuracies.relative_to(request.relative_to)
    elif request.drop:
        quantity = accuracies.drop
    elif request.rank:
        quantity = accuracies.rank
    layout = request.view or "datasets"
    view = accuracies.of_accuracies(averages, quantity, metrics=metrics, layout=layout, style=style)
    if request.with_published and quantity is accuracies.accuracy and "top1" in metrics:
        beside = comparisons.beside_published(averages, version=request.paper, style=style)
        return comparisons.with_columns(view, beside)
    return view


def write_files(
    results: QueryResult, request: ResultsRequest, output: OutputRequest, paths: Mapping[str, Path]
) -> None:
    """Write the requested files other than tables to the paths of :func:`check_outputs`.

    Outputs that can still fail for another reason than a full disk (files in a folder, a missing library) are written
    first. Large libraries are imported only when they are needed.
    """
    selected = request.selection
    published_there = [average for average in results.cells if average.source in published.SOURCES.values()]
    others = [average for average in results.cells if average.source not in published.SOURCES.values()]
    if folder := paths.get("figures"):
        from cog.reporting import figures

        written = figures.write(
            others,
            published_there,
            folder,
            others=results.others,
            measures=results.all_measures,
            analyses=results.analyses,
            which=output.figure_names,
            formats=output.figure_formats or figures.FORMATS,
            shots=selected.n_shots,
            datasets=selected.datasets,
            baseline=selected.baseline,
            metric="top5" if request.metric == "top5" else "top1",
            model_facts=results.model_facts,
            overwrite=output.overwrite,
        )
        logger.info("wrote %d files in %s", len(written), folder)
    if folder := paths.get("diagnostics"):
        from cog.reporting.figures import FORMATS, search

        formats = output.figure_formats or FORMATS
        written = search.write(results.runs, folder, formats=formats, overwrite=output.overwrite)
        logger.info("wrote %d files in %s", len(written), folder)
    if page := paths.get("report"):
        from cog.reporting import html

        if ignored := [
            f"--{flag}" for flag in _NOT_OF_REPORT if getattr(request, flag) not in (None, False, "top1")
        ]:
            logger.warning("--report has its own tables: %s without effect on it", " ".join(ignored))
        html.write(
            page,
            dataclasses.replace(results, cells=others),
            published=published.accuracies(request.paper),
            root=selected.models_root_dir or selected.logreg_root_dir,
            baseline=selected.baseline,
            overwrite=output.overwrite,
        )
        logger.info("wrote %s", page)
    if target := paths.get("export"):
        exchange.write(target, _to_share(results, selected), label=output.label)
        logger.info("wrote %s", target)


def _to_share(results: QueryResult, selected: ResultQuery) -> list[SeedAverage]:
    runs = [average for average in results.cells if average.source == RUNS]
    if selected.eval_name != LOGREG and is_classifier(selected.eval_name):
        # Declared as logistic regression, these accuracies would be taken for results of the protocol.
        runs = average_variants({selected.eval_name: results.runs}, seeds=selected.seeds or ())
    else:
        runs = as_logreg(runs)
    shared = [*runs, *(average for average in results.cells if average.source != RUNS), *results.measures]
    seen = results.model_facts.not_in_name
    return [
        dataclasses.replace(average, pretraining=seen(average.model, average.source)) for average in shared
    ]


def _warn_of_problems(problems: Sequence[Problem]) -> None:
    """Log the folders that are not counted: damaged and failed runs one by one, unfinished runs in one line."""
    unfinished = {RUNNING: "in progress", INTERRUPTED: "interrupted (the same command continues)"}
    for problem in problems:
        if problem.state not in unfinished:
            logger.warning("not counted: %s", writers.printable(str(problem)))
    parts = [
        f"{len(some)} {words}, such as {writers.printable(str(some[0].path))}"
        for state, words in unfinished.items()
        if (some := [problem for problem in problems if problem.state == state])
    ]
    if parts:
        logger.info("not counted yet: %s", "; ".join(parts))


def _warn(results: QueryResult, selected: ResultQuery) -> None:
    """Log filters without results, diverged runs, and averages over runs with different settings."""
    shown = [*results.cells, *results.all_measures]
    kind = "finished run" if selected.paper is None and not selected.imports else "result"
    for flag, there, wanted in (
        ("--model", {average.model for average in shown}, selected.models),
        ("--dataset", {average.dataset for average in shown}, selected.datasets),
        ("--n_shot", {str(average.n_shot) for average in shown}, selected.n_shots),
    ):
        names = map(str, wanted or ())
        absent = [name for name in names if not any(query.matches(known, name) for known in there)]
        if absent:
            logger.warning("no %s for %s %s", kind, flag, " ".join(absent))
    for variant, runs in (("", results.runs), *results.variants.items()):
        for run in runs:
            if run.diverged:
                path = writers.printable(str(run.path))
                logger.warning("training diverged, counted all the same: %s", path)
        for key, places in query.mixed_settings(runs).items():
            more = f" and {len(places) - 1} more" if len(places) > 1 else ""
            place = writers.printable(_place(variant, *places[0]))
            logger.warning("averaged over runs that differ in %s: %s%s", key, place, more)


def _place(variant: str, model: str, dataset: str, n_shot: int) -> str:
    """Return variant, model, data set and shots of an average as text."""
    return ", ".join(filter(None, (variant, model, dataset, labels.shots_label(n_shot))))


def _check_epochs(results: QueryResult, *, allow: bool) -> None:
    """Check that the seeds of each average were trained for the same number of epochs, unless ``allow``."""
    averaged = [("", average) for average in (*results.cells, *results.others)]
    averaged += [
        (name, average)
        for name, runs in results.variants.items()
        if is_classifier(name)
        for average in average_runs(runs)
    ]
    mixed = [
        (name, average)
        for name, average in averaged
        if average.metric == "top1" and len(set(average.epochs)) > 1
    ]
    for name, average in mixed:
        epochs = ", ".join(f"seed {seed}: {n}" for seed, n in zip(average.seeds, average.epochs, strict=True))
        place = _place(name, average.model, average.dataset, average.n_shot)
        text = writers.printable(f"{place}: seeds were trained for different numbers of epochs ({epochs})")
        if not allow:
            more = f"; so were those of {len(mixed) - 1} more" if len(mixed) > 1 else ""
            advice = "choose --seeds, or add --allow_mixed_epochs to average them all the same"
            raise CogError(f"{text}{more}; {advice}")
        logger.warning("%s", text)
