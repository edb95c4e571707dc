"""What print_results.py reads, prints and writes; ``args`` are its flags."""

from __future__ import annotations

import argparse
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cog.errors import printable
from cog.reporting.tables import accuracies, comparisons, experiments, writers
from cog.reporting.tables.layout import TableStyle, View
from cog.reporting.tables.pivot import Averages
from cog.results import checks, metric_info, official, published, query
from cog.results.model_facts import MARK, ModelFacts, shows_levels
from cog.results.query import QueryResult, ResultQuery
from cog.results.run_records import Problem
from cog.results.scores import LOGREG, RUNS, SeedAverage, as_logreg, is_classifier
from cog.runtime.output_folder import INTERRUPTED, RUNNING

logger = logging.getLogger(__name__)

#: Remark on tables of results on a few images.
LIMITED = "limit-{0}: a test of the commands on a few images, and no results."


def is_plain(args: argparse.Namespace) -> bool:
    """Return whether no view and no further source is asked for, so that one evaluation is shown seed by seed."""
    flags = ("view", "relative_to", "drop", "rank", "analysis", "imports", "published_only")
    outputs = ("export", "figures", "report", "diagnostics")
    return args.format == "text" and not any(getattr(args, flag) for flag in (*flags, *outputs))


def read(selected: ResultQuery, args: argparse.Namespace) -> QueryResult:
    """Read the selected results, and log warnings about them.

    Raises:
        CogError: no results, or no result of the baseline.
    """
    results = query.gather(selected, on_problems=_warn_of_problems, needs_in1k=args.drop)
    # On the page, every published model can be the baseline.
    if selected.baseline is not None and not (args.report and selected.baseline in published.MODELS):
        query.check_baseline(selected.baseline, (*results.cells, *results.others), selected.models_root_dir)
    _warn(results, selected)
    return results


def as_text(results: QueryResult, selected: ResultQuery, args: argparse.Namespace, *, width: int) -> str:
    """Return the requested tables as text in the requested format."""
    runs = [average for average in results.cells if average.source == RUNS]
    is_one = selected.logreg_root_dir is not None or all(
        len(values or ()) == 1 for values in (selected.exact_models, selected.datasets, selected.n_shots)
    )
    if is_one and runs and is_plain(args):
        # The averages of one evaluation follow each other.
        averages = {average.metric: average for average in runs[:2]}
        text = comparisons.seed_by_seed(results.runs, averages, paper=selected.paper)
        return f"{text}{LIMITED.format(args.limited)}\n" if args.limited else text
    is_table = args.format in writers.DRAWN
    there = {average.metric for average in results.cells}
    metrics = ["top1", *["top5"] * (not is_table and bool(args.analysis or "top5" in there))]
    shown = results.all_measures if args.analysis else results.cells
    style = TableStyle(
        paper_labels=args.format == "latex",
        with_source=selected.paper is not None or bool(selected.imports),
        model_facts=results.model_facts if is_table else None,
        marks=shows_levels({average.dataset for average in shown}),
    )
    if args.analysis:
        measures = Averages(results.all_measures, models=selected.exact_models)
        view = experiments.of_analyses(measures, args.analysis, style=style, metrics=metrics)
    else:
        view = _accuracies(results, selected, args, metrics, style)
    remarks = [LIMITED.format(args.limited)] if args.limited else []
    if runs and selected.eval_name != LOGREG and not args.analysis:
        remarks.append(f"Classifier of the runs: {metric_info.evaluation_label(selected.eval_name)}.")
        view = _with_column(
            view, "evaluation", lambda r: selected.eval_name if _source(r) == RUNS else LOGREG
        )
    known = [*results.cells, *results.others]
    remarks += [official.as_sentence(text) if is_table else text for text in official.compare(known).remarks]
    if not is_table:
        return _flat(view, remarks, results.model_facts, args)
    if any(MARK in text for table in view.tables for text in (table.title, *dict(table.rows))):
        models = [(r["model"], _source(r)) for r in view.records]
        models += [(a.model, a.source) for a in known if a.model == args.relative_to]
        remarks.append(results.model_facts.footnote(models, label=style.name))
    *first, last = view.tables
    last = dataclasses.replace(last, notes=(*last.notes, *map(writers.Note, remarks)))
    return writers.draw([*first, last], args.format, width=width)


def _flat(view: View, remarks: Sequence[str], facts: ModelFacts, args: argparse.Namespace) -> str:
    """Return the records of a view as CSV or JSON; the remarks go to the log."""
    for remark in remarks:
        logger.warning("%s", printable(remark))
    if args.limited:
        view = _with_column(view, "limit", lambda _: args.limited)
    if any(facts.mark(r["model"], _source(r)) for r in view.records):
        view = _with_column(view, "pretraining", lambda r: facts.of(r["model"], _source(r)))
    return writers.flat(view.records, view.columns, args.format)


def _source(record: Mapping[str, Any]) -> str:
    return record.get("source") or RUNS


def _with_column(view: View, name: str, value: Callable[[Mapping[str, Any]], object]) -> View:
    """Return ``view`` with a further column ``name``; ``value`` computes its entry from a record."""
    return View(view.tables, [record | {name: value(record)} for record in view.records])


def _accuracies(
    results: QueryResult,
    selected: ResultQuery,
    args: argparse.Namespace,
    metrics: Sequence[str],
    style: TableStyle,
) -> View:
    averages = Averages(
        as_logreg(results.cells),
        models=selected.exact_models,
        datasets=selected.datasets,
        n_shots=selected.n_shots,
        others=as_logreg(results.others),
    )
    quantity: accuracies.QuantityOf = accuracies.accuracy
    if args.relative_to:
        quantity = accuracies.relative_to(args.relative_to)
    elif args.drop:
        quantity = accuracies.drop
    elif args.rank:
        quantity = accuracies.rank
    view = accuracies.of_accuracies(
        averages, quantity, metrics=metrics, layout=args.view or "datasets", style=style
    )
    if args.with_published and quantity is accuracies.accuracy:
        return comparisons.with_published(view, averages, version=args.paper, style=style)
    return view


def write_files(
    results: QueryResult, selected: ResultQuery, args: argparse.Namespace, targets: Mapping[str, Path]
) -> None:
    """Write the requested files other than tables to the paths of ``targets``, by flag.

    Outputs that can still fail for another reason than a full disk (files in a folder, a missing library) are written
    first. Large libraries are imported only when they are needed.
    """
    published_there = [average for average in results.cells if average.source in published.SOURCES.values()]
    others = [average for average in results.cells if average.source not in published.SOURCES.values()]
    if folder := targets.get("figures"):
        from cog.reporting import figures

        written = figures.write(
            others,
            published_there,
            folder,
            others=results.others,
            measures=results.all_measures,
            shots=selected.n_shots,
            datasets=selected.datasets,
            baseline=selected.baseline,
            model_facts=results.model_facts,
        )
        logger.info("wrote %d files in %s", len(written), folder)
    if folder := targets.get("diagnostics"):
        from cog.reporting.figures import search

        written = search.write(results.runs, folder)
        logger.info("wrote %d files in %s", len(written), folder)
    if page := targets.get("report"):
        from cog.reporting import html

        html.write(
            page,
            dataclasses.replace(results, cells=others),
            published=[] if args.limited else published.accuracies(args.paper),
            root=selected.models_root_dir or selected.logreg_root_dir,
            baseline=selected.baseline,
        )
        logger.info("wrote %s", page)


def _to_share(results: QueryResult, selected: ResultQuery) -> list[SeedAverage]:
    # The classifier of a user's own EVAL.NAME is not known; those of other kinds keep their names.
    cells = results.cells if is_classifier(selected.eval_name) else as_logreg(results.cells)
    seen = results.model_facts.not_in_name
    return [
        dataclasses.replace(average, pretraining=seen(average.model, average.source))
        for average in (*cells, *results.measures)
    ]


def _warn_of_problems(problems: Sequence[Problem]) -> None:
    """Log the folders that are not counted: damaged and failed runs one by one, unfinished runs in one line."""
    unfinished = {RUNNING: "in progress", INTERRUPTED: "interrupted (the same command continues)"}
    for problem in problems:
        if problem.state not in unfinished:
            logger.warning("not counted: %s", printable(str(problem)))
    parts = [
        f"{len(some)} {words}, such as {printable(str(some[0].path))}"
        for state, words in unfinished.items()
        if (some := [problem for problem in problems if problem.state == state])
    ]
    if parts:
        logger.info("not counted yet: %s", "; ".join(parts))


def _warn(results: QueryResult, selected: ResultQuery) -> None:
    """Log filters without results, diverged runs, and runs of one model with different settings or epochs."""
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
    for notice in checks.of_runs(results):
        more = f" and {len(notice.places) - 2} more lines" if len(notice.places) > 2 else ""
        text = f"{notice.title}: {'; '.join(notice.places[:2])}{more}"
        logger.warning("%s", printable(text))
