"""Comparisons: differences to a baseline, changes of order, results beside published ones; one evaluation as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cog import constants
from cog.errors import CogError
from cog.reporting.tables.accuracies import Baseline, average_record
from cog.reporting.tables.layout import Row, TableStyle, View, format_number, only_source, seeds_there
from cog.reporting.tables.pivot import Averages, Column, Number, pivot
from cog.reporting.tables.writers import Note, Table, TableEntry, printable, words_table
from cog.results import comparison, official, published, relative, uncertainty
from cog.results.comparison import Crossing, Difference
from cog.results.labels import METRIC_LABELS, counted, shots_column, shots_label
from cog.results.run_records import METRICS, Run
from cog.results.scores import LOGREG, RUNS, SeedAverage

_DIFFERENCE_COLUMNS = (
    "model", "source", "baseline", "baseline_source", "dataset", "n_shot", "metric", "difference", "low", "high",
    "p", "p_holm", "deviation", "paired", "common_seeds", "reading",
)  # fmt: skip

_BESIDE_COLUMNS = (
    "model", "source", "dataset", "n_shot", "mean", "std", "n_seeds", "missing_seeds", "published_mean",
    "published_std", "difference", "combined_deviation", "within",
)  # fmt: skip

_INTERVAL = {
    uncertainty.CONCEPTS: Note(
        "[ ]: 95 % interval over concepts (with their images) and the common seeds, paired over both; with one seed "
        "over concepts alone. Another pretraining is not covered."
    ),
    uncertainty.IMAGES: Note(
        "[ ]: 95 % interval over images of these very concepts and the common seeds, paired over both; with one seed "
        "over images alone. Neither other concepts nor another pretraining are covered; p (Holm) and reading are those "
        "of the interval over concepts, which is not shown."
    ),
}
_HOLM = Note(
    "higher, lower: the interval excludes 0 also after Holm's correction for the number of comparisons shown: p (Holm) "
    "below 0.05. With one common seed nothing is said, because another seed may say otherwise."
)
_DEVIATION = Note(
    "std over seeds: sample standard deviation of the differences of common seeds, which says nothing about other "
    "concepts or images; ±: no common seeds, combined deviation sqrt(s1^2 + s2^2) of single runs."
)
_UNKNOWN = Note(
    "not told: counts per concept are not known (published numbers, top-5, files of earlier versions, and runs that "
    "neither record them nor have predictions that tell; logreg.py --overwrite records them), or there are no common "
    "seeds or images; csv and json say which."
)
_ESTABLISHED = Note(
    "established: the readings above tell the order on both sides; `after A, before B` where only data sets further "
    "apart do."
)
_WITHIN = Note(
    "within: the difference is at most the combined deviation sqrt(s1^2 + s2^2) plus "
    f"{comparison.PUBLISHED_ROUNDING} for the rounding of the published mean; ?: a single seed, or no "
    "published deviation."
)


def _accuracies(averages: Averages, metric: str, n_shot: int) -> list[SeedAverage]:
    """Return the accuracies with a number of shots, by rows, then by data sets."""
    columns = [Column(dataset, dataset, (LOGREG, metric, n_shot)) for dataset in averages.datasets]
    grid = pivot(averages, averages.rows, columns)
    return [average for line in grid for average in line if average is not None]


def differences(averages: Averages, model: str, *, metrics: Sequence[str], style: TableStyle) -> View:
    """Return the differences of all rows to a baseline on the same data, and the data sets between which order changes.

    Args:
        averages: accuracies, see :func:`cog.reporting.tables.accuracies.of_accuracies`.
        model: the baseline.
        metrics: ``"top1"``, ``"top5"`` or both.
        style: style of rows and numbers.

    Raises:
        CogError: when there is no result of the baseline, or no other result that is comparable with it
            (:mod:`cog.results.official`).
    """
    baseline = Baseline(averages, model)
    pairs = [
        (average, base)
        for metric in metrics
        for n_shot in averages.n_shots
        for average in _accuracies(averages, metric, n_shot)
        if (base := baseline.of(average)) is not None and base is not average
    ]
    over = averages.interval_over
    items = comparison.judge(comparison.difference(*pair, over=over) for pair in pairs)
    tables: list[Table] = []
    for metric in metrics:
        of_metric = [item for item in items if item.average.metric == metric]
        for n_shot in averages.n_shots:
            if with_shots := [item for item in of_metric if item.average.n_shot == n_shot]:
                tables.append(_differences_table(with_shots, style, over))
        if of_metric:
            tables.append(_crossings_table(comparison.crossings(of_metric), model, metric, averages, style))
    if not items:
        alone = all(average.model == model for average in averages.shown)
        reason = ": no other model is shown" if alone else " on the same data sets and numbers of shots"
        known = averages.comparable
        raise CogError(known.refused or known.mixed or f"there is nothing to compare {model} with{reason}")
    return View(tuple(tables), _DIFFERENCE_COLUMNS, tuple(map(_difference_record, items)))


def _differences_table(items: Sequence[Difference], style: TableStyle, over: str) -> Table:
    d = style.points
    first = items[0]
    sources = {average.source for item in items for average in (item.average, item.baseline)}
    rows: list[tuple[str, tuple[TableEntry, ...]]] = []
    previous = None
    for item in items:
        interval = deviation = p = "-"
        if item.interval is not None:
            interval = f"[{', '.join(format_number(end, d, signed=True) for end in item.interval)}]"
        if item.deviation is not None:
            deviation = f"{'' if item.paired else '± '}{item.deviation:.{d}f}"
        if item.p_holm is not None:
            p = "<0.001" if item.p_holm < 0.001 else f"{item.p_holm:.3f}"
        row = Row(item.average.model, item.average.source)
        texts = (
            item.average.dataset,
            format_number(item.mean, d, signed=True),
            interval,
            p,
            deviation,
            str(len(item.seeds)) if item.paired else "unpaired",
            # A note below the table has the reasons, which are too long for a column.
            "not told" if item.unknown and item.p is None else item.reading,
        )
        label = "" if row == previous else style.label(row, sources=sources)
        rows.append((label, tuple(map(TableEntry, texts))))
        previous = row
    baseline = printable(style.label(Row(first.baseline.model, first.baseline.source), sources=sources))
    notes = [_INTERVAL[over]] if any(item.low is not None for item in items) else []
    notes += [_HOLM] if any(item.p is not None for item in items) else []
    notes += [_DEVIATION] if any(item.deviation is not None for item in items) else []
    notes += [_UNKNOWN] if any(item.unknown and item.p is None for item in items) else []
    title = f"{METRIC_LABELS[first.average.metric]} accuracy minus that of {baseline} (points)"
    spread = f"95 % over {over}" if over == uncertainty.IMAGES else "95 % interval"
    return Table(
        f"{title}, {shots_label(first.average.n_shot)}{only_source(sources)}",
        ("data set", "difference", spread, "p (Holm)", "std over seeds", "seeds", "reading"),
        tuple(rows),
        tuple(notes),
        words=frozenset({0, 2, 3, 4, 5, 6}),
    )


def _crossings_table(
    crossings: Sequence[Crossing], baseline: str, metric: str, averages: Averages, style: TableStyle
) -> Table:
    path = f"from {constants.IN1K} over the levels"
    title = f"Where the order against {baseline} changes ({METRIC_LABELS[metric]}), {path}"
    if not crossings:
        return Table(f"{title}: nowhere", (), ())
    rows = []
    for item in crossings:
        certainty, average, after = "no", item.before.average, item.after.average
        if item.earliest is not None and item.latest is not None:
            narrow = (item.earliest, item.latest) == (item.before, item.after)
            told = item.earliest.average.dataset, item.latest.average.dataset
            certainty = "yes" if narrow else f"after {told[0]}, before {told[1]}"
        texts = (
            shots_column(average.n_shot),
            f"{average.dataset} -> {after.dataset}",
            "ahead" if item.model_leads_after else "behind",
            certainty,
        )
        label = style.label(Row(average.model, average.source), sources=averages.sources)
        rows.append((label, texts))
    return words_table(title, "model", ("images", "between", "then", "established"), rows, [_ESTABLISHED])


def _difference_record(item: Difference) -> dict[str, Any]:
    named = {
        "baseline": item.baseline.model,
        "baseline_source": item.baseline.source,
        "difference": item.mean,
        "common_seeds": item.seeds,
    }
    names = ("low", "high", "p", "p_holm", "deviation", "paired", "reading")
    return {**average_record(item.average), **named, **{name: getattr(item, name) for name in names}}


def beside_published(averages: Averages, *, version: str, style: TableStyle) -> View:
    """Return results beside the published ones of the same model, data set and number of shots (top-1).

    Returns:
        One table for each number of shots; no table when no result is of a published model on the official data.
    """
    of_paper = {
        (average.model, average.dataset, average.n_shot): average for average in published.accuracies(version)
    }
    d = style.points
    records: list[dict[str, Any]] = []
    tables = []
    for n_shot in averages.n_shots:
        rows = []
        for average in _accuracies(averages, "top1", n_shot):
            other = of_paper.get((average.model, average.dataset, n_shot))
            is_published = average.source in published.SOURCES.values()
            if other is None or is_published or not averages.comparable.verdict(average).match.comparable:
                continue
            record = compare_with_published(average, other)
            deviation, within = record["combined_deviation"], record["within"]
            entries = (
                TableEntry(average.dataset),
                Number(average.value, average.std, d).entry(seeds_there(average)),
                Number(other.value, other.std).entry(),
                Number(record["difference"], None, d, signed=True).entry(),
                TableEntry("?" if deviation is None else f"{deviation:.{d}f}"),
                TableEntry({True: "yes", False: "no", None: "?"}[within]),
            )
            rows.append((style.label(Row(average.model, average.source), sources=[RUNS]), entries))
            records.append(record)
        if rows:
            title = f"top-1 accuracy (%) beside the published one, {shots_label(n_shot)}, mean ± std"
            columns = ("data set", "here", published.SOURCES[version], "difference", "combined std", "within")
            tables.append(Table(title, columns, tuple(rows), (_WITHIN,), words=frozenset({0, 5})))
    return View(tuple(tables), _BESIDE_COLUMNS if tables else (), tuple(records))


def compare_with_published(average: SeedAverage, other: SeedAverage) -> dict[str, Any]:
    """Return the flat record of an accuracy beside the published one, without a deviation for a single seed."""
    difference, combined = relative.points(average, other)
    deviation = None if len(average.seeds) == 1 else combined
    return {
        **average_record(average),
        "published_mean": other.value,
        "published_std": other.std,
        "difference": difference,
        "combined_deviation": deviation,
        "within": None if deviation is None else comparison.within(average.value, other.value, deviation),
    }


def with_columns(view: View, beside: View) -> View:
    """Return ``view`` with the tables of ``beside`` after its own, and with the further columns of its records."""
    key = ("model", "source", "dataset", "n_shot", "metric")
    known = {tuple(record[name] for name in key): record for record in beside.records}
    more = tuple(column for column in beside.columns if column not in view.columns)
    records = tuple(
        {**known.get(tuple(record[name] for name in key), {}), **record} for record in view.records
    )
    return View(view.tables + beside.tables, view.columns + more, records)


def seed_by_seed(
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
        count = counted(len(average.seeds), "seed")
        lines.append(
            f"{METRIC_LABELS[metric]}: {average.value:.{decimals}f} +- {average.std or 0.0:.{decimals}f} "
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
