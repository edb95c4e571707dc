"""Show results: one evaluation, tables of everything found, figures, a report, or one file to share."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from cog import cli as command_line
from cog import exchange, files, published, results, selection, tables
from cog.cells import INTERRUPTED, RUNNING, Cell, Problem, summarise
from cog.commands import print_results_flags as flags
from cog.errors import CogError
from cog.measures import LOGREG, Measure, is_classifier, of_runs
from cog.selection import Found, Selection
from cog.views import beside, experiments, grid, layout, overview, quantities, single, statements
from cog.views.layout import Shown, Style, View

LOG = logging.getLogger("cog")


def main(argv: Sequence[str] | None = None) -> int:
    """Read results, show them, and return the exit code.

    Raises:
        CogError: bad arguments, or no result that can be shown.
    """
    args = flags.parser().parse_args(argv)
    if args.check:
        return _preflight(args)
    selected = flags.select(args)
    outputs = flags.check_outputs(args)
    found = selection.gather(selected, on_problems=_warn_of_problems, needs_in1k=args.drop)
    if selected.baseline is not None:
        flag = "--relative_to" if args.relative_to else "--baseline"
        selection.check_baseline(selected.baseline, (*found.cells, *found.others), flag=flag)
    _warn(found, selected)
    _check_epochs(_averaged(found), allow=args.allow_mixed_epochs)
    if outputs.table is not None or not any(flags.products(args)):
        text = _show(found, selected, args)
        if outputs.table is not None:
            files.write_text(outputs.table, text)
            LOG.info("wrote %s", outputs.table)
        else:
            _print(text)
    _write_products(found, selected, args, outputs)
    return 0


def _preflight(args: argparse.Namespace) -> int:
    """Look at results and outputs, print a summary, and return the exit code."""
    from cog.preflight import machine
    from cog.preflight.report import Report

    report = Report()
    with report.step("output"):
        outputs = flags.check_outputs(args)
        for path in (outputs.table, outputs.export, outputs.report, outputs.figures, outputs.diagnostics):
            if path is not None and machine.check_writable(report, path if path.is_dir() else path.parent):
                report.ok("output", str(path))
    with report.step("results"):
        found = selection.gather(flags.select(args), on_problems=_warn_of_problems, needs_in1k=args.drop)
        _check_epochs(_averaged(found), allow=args.allow_mixed_epochs)
        report.ok("results", f"{len(found.runs):,} runs in {len(found.cells):,} groups of seeds")
    return report.finish()


def _show(found: Found, selected: Selection, args: argparse.Namespace) -> str:
    if flags.shows_experiments(args):
        return _show_experiments(found, selected, args)
    own = [cell for cell in found.cells if cell.source == results.RUNS]
    is_one = selected.logreg_root_dir is not None or all(
        len(values or ()) == 1 for values in (selected.exact_models, selected.datasets, selected.n_shots)
    )
    as_text = is_one and args.format == "text" and flags.is_plain(args) and bool(own)
    metric = args.metric or ("both" if as_text else "top1")
    metrics = tuple(layout.METRIC_LABELS) if metric == "both" else (metric,)
    decimals = args.decimals
    if decimals is None:
        fine = as_text or args.baseline is not None
        decimals = flags.DECIMALS.get(args.format, flags.FINE_DECIMALS if fine else flags.TABLE_DECIMALS)
    if as_text:
        return single.draw(found.runs, own[0], metrics=metrics, decimals=decimals, paper=selected.paper)
    shown = layout.arrange(
        found.cells,
        models=selected.exact_models,
        datasets=selected.datasets,
        n_shots=selected.n_shots,
        others=found.others,
    )
    with_source = selected.paper is not None or bool(selected.imports)
    style = Style(decimals=decimals, paper_labels=args.labels == "paper", with_source=with_source)
    view = _view(shown, args, metrics, style)
    if args.format in tables.DRAWN:
        return tables.draw(view.tables, args.format, width=args.width)
    return tables.flat(view.records, view.columns, args.format, decimals=decimals)


def _show_experiments(found: Found, selected: Selection, args: argparse.Namespace) -> str:
    with_source = selected.paper is not None or bool(selected.imports)
    style = Style(paper_labels=args.labels == "paper", with_source=with_source)
    numbers = experiments.Numbers(found.all_measures, models=selected.exact_models)
    if args.overview:
        view = overview.overview(numbers, style=style, decimals=args.decimals)
    elif args.analysis:
        # Tables show one accuracy unless told otherwise; records have all.
        metric = args.metric or ("top1" if args.format in tables.DRAWN else "both")
        metrics = tuple(layout.METRIC_LABELS) if metric == "both" else (metric,)
        view = experiments.of_analyses(
            numbers, args.analysis, style=style, decimals=args.decimals, metrics=metrics
        )
    else:
        view = experiments.of_variants(numbers, args.variants, style=style, decimals=args.decimals)
    if args.format in tables.DRAWN:
        return tables.draw(view.tables, args.format, width=args.width)
    return tables.flat(view.records, view.columns, args.format, decimals=args.decimals)


def _view(shown: Shown, args: argparse.Namespace, metrics: Sequence[str], style: Style) -> View:
    if args.baseline:
        return statements.statements(shown, args.baseline, metrics=metrics, style=style)
    of: Callable[[str], quantities.Quantity] = quantities.accuracy
    if args.relative_to:
        of = lambda metric: quantities.relative(shown, args.relative_to, metric)  # noqa: E731
    elif args.drop:
        of = lambda metric: quantities.drop(shown, metric)  # noqa: E731
    elif args.rank:
        of = lambda metric: quantities.rank(shown, metric)  # noqa: E731
    view = grid.tabulate(shown, of, metrics=metrics, layout=args.view or "datasets", style=style)
    if args.with_published and not (args.relative_to or args.drop or args.rank) and "top1" in metrics:
        compared = beside.beside_published(shown, version=args.paper, style=style)
        if compared is not None:
            return beside.with_columns(view, compared)
    return view


def _write_products(
    found: Found, selected: Selection, args: argparse.Namespace, outputs: flags.Outputs
) -> None:
    """Write what was asked for beside tables. Nothing heavy is imported unless it is.

    What can still fail for another reason than a full disk (files in a folder, a missing library) comes first.
    """
    paper = [cell for cell in found.cells if cell.source in published.SOURCES.values()]
    own = [cell for cell in found.cells if cell.source not in published.SOURCES.values()]
    if outputs.figures is not None:
        from cog import figures

        written = figures.write(
            own,
            paper,
            outputs.figures,
            others=found.others,
            measures=found.all_measures,
            analyses=found.analyses,
            which=flags.given(args.figure_names),
            formats=flags.given(args.figure_formats) or figures.FORMATS,
            shots=selected.n_shots,
            datasets=selected.datasets,
            baseline=selected.baseline,
            metric="top5" if args.metric == "top5" else "top1",
            overwrite=args.overwrite,
        )
        LOG.info("wrote %d files in %s", len(written), outputs.figures)
    if outputs.diagnostics is not None:
        from cog import figures
        from cog.figures import search

        written = search.write(
            found.runs,
            outputs.diagnostics,
            formats=flags.given(args.figure_formats) or figures.FORMATS,
            overwrite=args.overwrite,
        )
        LOG.info("wrote %d files in %s", len(written), outputs.diagnostics)
    if outputs.report is not None:
        from cog import report

        report.write(
            outputs.report,
            runs=found.runs,
            cells=own,
            published=published.cells(args.paper),
            problems=found.problems,
            measures=found.all_measures,
            analyses=found.analyses,
            variants=found.variants,
            root=selected.models_root_dir or selected.logreg_root_dir,
            overwrite=args.overwrite,
        )
        LOG.info("wrote %s", outputs.report)
    if outputs.export is not None:
        cells, others = found.cells, found.measures
        if selected.eval_name != LOGREG and is_classifier(selected.eval_name):
            # As cells they would be taken for the protocol's.
            runs = {selected.eval_name: found.runs}
            others = [*of_runs(runs, expected_seeds=selected.seeds or ()), *others]
            cells = [one for one in cells if one.source != results.RUNS]
        exchange.write(outputs.export, cells, label=args.label, other_measures=others)
        LOG.info("wrote %s", outputs.export)


def _warn_of_problems(problems: Sequence[Problem]) -> None:
    """Name what is not counted: damaged folders and failed runs each, those that are merely unfinished in one line."""
    unfinished = {state: [one for one in problems if one.state == state] for state in (RUNNING, INTERRUPTED)}
    for problem in problems:
        if problem.state not in unfinished:
            LOG.warning("not counted: %s", tables.printable(str(problem)))
    parts = [
        f"{len(found)} {words}, such as {tables.printable(str(found[0].path))}"
        for (state, words) in (
            (RUNNING, "in progress"),
            (INTERRUPTED, "interrupted (the same command continues)"),
        )
        if (found := unfinished[state])
    ]
    if parts:
        LOG.info("not counted yet: %s", "; ".join(parts))


def _warn(found: Found, selected: Selection) -> None:
    """Say what a reader of the numbers should know."""
    shown: list[Cell | Measure] = [*found.cells, *found.all_measures]
    kind = "finished run" if selected.paper is None and not selected.imports else "result"
    for flag, found_values, wanted in (
        ("--model", {one.model for one in shown}, selected.models),
        ("--dataset", {one.dataset for one in shown}, selected.datasets),
        ("--n_shot", {str(one.n_shot) for one in shown}, selected.n_shots),
    ):
        absent = [
            str(value)
            for value in wanted or ()
            if not any(selection.matches(known, str(value)) for known in found_values)
        ]
        if absent:
            LOG.warning("no %s for %s %s", kind, flag, " ".join(absent))
    for runs in (found.runs, *found.variants.values()):
        for run in runs:
            if run.diverged:
                LOG.warning("training diverged, counted all the same: %s", tables.printable(str(run.path)))
    for evaluation, runs in {"": found.runs, **found.variants}.items():
        for key, places in selection.mixed_settings(runs).items():
            model, dataset, n_shot = places[0]
            more = f" and {len(places) - 1} more" if len(places) > 1 else ""
            which = f"{evaluation}, " if evaluation else ""
            place = f"{which}{model}, {dataset}, {layout.shots_label(n_shot)}"
            LOG.warning("averaged over runs that differ in %s: %s%s", key, tables.printable(place), more)


def _averaged(found: Found) -> list[tuple[str, Cell]]:
    """Return all averages over seeds that are shown or that others are relative to, and the names of variants."""
    variants = [(name, summarise(runs)) for name, runs in found.variants.items() if is_classifier(name)]
    main = [*found.cells, *found.others]
    return [("", cell) for cell in main] + [(name, cell) for name, cells in variants for cell in cells]


def _check_epochs(averaged: Sequence[tuple[str, Cell]], *, allow: bool) -> None:
    """Refuse to average seeds that were trained for different numbers of epochs, unless told to.

    Raises:
        CogError: when some were, and ``allow`` is False.
    """
    mixed = [(name, cell) for name, cell in averaged if len(set(cell.epochs)) > 1]
    for name, cell in mixed:
        epochs = ", ".join(f"seed {seed}: {n}" for seed, n in zip(cell.seeds, cell.epochs, strict=True))
        which = f"{name}, " if name else ""
        place = f"{which}{cell.model}, {cell.dataset}, {layout.shots_label(cell.n_shot)}"
        text = tables.printable(f"{place}: seeds were trained for different numbers of epochs ({epochs})")
        if not allow:
            more = f"; so were those of {len(mixed) - 1} more" if len(mixed) > 1 else ""
            raise CogError(
                f"{text}{more}; choose --seeds, or add --allow_mixed_epochs to average them all the same"
            )
        LOG.warning("%s", text)


def _print(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:  # a terminal without the plus-minus sign
        text = text.replace("±", "+-").encode(encoding, "backslashreplace").decode(encoding)
    sys.stdout.write(text)
    sys.stdout.flush()


def cli() -> NoReturn:
    """Run from the command line."""
    command_line.run(main)


if __name__ == "__main__":
    cli()
