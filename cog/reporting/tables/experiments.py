"""Tables of experiments beyond the protocol: analyses of features, variants of the classifier, and all side by side.

A view is a choice of numbers (:class:`ExperimentTable`), which :func:`tabulate` arranges. An analysis that declares its
metrics (:func:`cog.results.metric_info.declare`) is shown without changes to this module.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cog import constants
from cog.analysis import registry
from cog.analysis.knn import neighbor_metric
from cog.errors import CogError, did_you_mean
from cog.reporting.tables.layout import TableStyle, View, format_number, only_source, seeds_there
from cog.reporting.tables.pivot import (
    OVER_CONCEPTS,
    Averages,
    Column,
    Number,
    Quantity,
    own_number,
    pivot,
    tabulate,
)
from cog.reporting.tables.writers import Note, Table, TableEntry
from cog.results import metric_info, published, relative, scores
from cog.results.labels import METRIC_LABELS, shots_label
from cog.results.metric_info import OVER_CONCEPTS_AND_SEEDS, ClassifierName
from cog.results.scores import LOGREG, Key, SeedAverage, dataset_key, natural_key

#: Name that selects all analyses or variants; also the header of the column with all features.
ALL = "all"

#: Columns of flat records.
COLUMNS = (
    "model", "dataset", "experiment", "quantity", "n_shot", "value", "std", "n_seeds", "seeds", "by_seed",
    "missing_seeds", "unit", "source", "low", "high",
)  # fmt: skip

# Tables of the first version of the paper, by group of experiments.
_PAPER_TABLES = {"mlp": 3, "pca": 5, "kmeans": 6}

# Numbers of shots and of components that represent all others in an overview.
_SHOTS = (1, 8, 128)
_DIMENSIONS = (32, 256)


class ExperimentTable(NamedTuple):
    """Title and columns of a table of models; the metrics of all columns are of one group."""

    title: str
    columns: Sequence[Column]
    notes: tuple[Note, ...] = ()


def of_analyses(
    averages: Averages, wanted: Sequence[str], *, style: TableStyle, metrics: Sequence[str] = ("top1", "top5")
) -> View:
    """Return tables of results of analyses: a table for each number, models by data sets.

    Numbers of nearest neighbors are shown by k instead, with a table for each data set and kind of vote. Numbers that
    are declared for a common table are its columns, with a table for each data set.

    Args:
        averages: averages of all experiments.
        wanted: names, or beginnings of names (``cross``: all ``cross_<dataset>``), or ``all``.
        style: style of rows and numbers.
        metrics: accuracies of classifiers without training to show.

    Raises:
        CogError: when there is no result of these analyses.
    """
    there = [key for key in averages.keys if not scores.is_classifier(key[0])]
    keys = [
        key for key in there if ALL in wanted or any(f"{key[0]}_".startswith(f"{name}_") for name in wanted)
    ]
    if not keys:
        names = ", ".join(sorted({key[0] for key in there}, key=natural_key))
        which = "any analysis" if ALL in wanted else f"the analysis {' or '.join(wanted)}"
        hint = f"there is {names}" if names else "analyze_features.py makes them"
        known = {key[0] for key in there} | {analysis.name for analysis in registry.ANALYSES}
        unknown = [name for name in wanted if name not in known | {ALL}]
        hint += did_you_mean(unknown[0], sorted(known)) if unknown else ""
        raise CogError(f"nothing to show: no result of {which} among those read; {hint}")
    hidden = {"top1", "top5"} - set(metrics)
    by_dataset: list[Key] = []
    by_column: dict[str, list[Key]] = {}
    by_k: dict[tuple[str, str, str], list[tuple[int, Key]]] = {}
    for key in keys:
        analysis, metric, n_shot = key
        if (analysis, metric_info.companion_of(metric), n_shot) in keys or metric.split("_")[0] in hidden:
            continue
        neighbors = neighbor_metric(metric) if analysis.split("_")[0] == "knn" else None
        if table := metric_info.describe(*key).table:
            by_column.setdefault(table, []).append(key)
        elif neighbors is None:
            by_dataset.append(key)
        else:
            by_k.setdefault((analysis, neighbors.vote, neighbors.metric), []).append((neighbors.k, key))
    panels = [*_by_column(averages, by_column), *_by_dataset(averages, by_dataset), *_by_k(averages, by_k)]
    return _view(averages, panels, style)


def of_variants(averages: Averages, wanted: Sequence[str], *, style: TableStyle) -> View:
    """Return tables of the other classifiers beside logistic regression on all features and images.

    Args:
        averages: see :func:`of_analyses`.
        wanted: some of ``VARIANTS``, or ``all``.
        style: style of rows and numbers.

    Raises:
        CogError: when there is no result of these variants.
    """
    names = [name for name in VARIANTS if name in wanted or ALL in wanted]
    panels = [panel for name in names for panel in VARIANTS[name](averages)]
    if not panels:
        which = "variant of the classifier" if ALL in wanted else f"result of {' or '.join(wanted)}"
        raise CogError(f"nothing to show: no {which} among the results read (see --help for what makes them)")
    return _view(averages, panels, style)


def _view(averages: Averages, panels: Iterable[ExperimentTable], style: TableStyle) -> View:
    """Return the tables, with a flat record for each distinct number in them and for the ends of its interval."""
    of = functools.partial(number_of, averages, decimals=style.decimals)
    tables: list[Table] = []
    numbers: dict[SeedAverage, None] = {}
    for panel in panels:
        key = panel.columns[0].key
        metric = metric_info.describe(*key)
        paper_table = _PAPER_TABLES.get(metric.group)
        table, shown = tabulate(
            averages,
            panel.columns,
            Quantity(of, notes=panel.notes, spread_note=metric.note, interval_note=_interval_note(key)),
            title=panel.title,
            style=style,
            paper_tables={published.SOURCES["v1"]: f", Table {paper_table}"} if paper_table else {},
        )
        tables.append(table)
        present = [place.average for place in shown]
        ends = [end for average in present for end in averages.ends(average)]
        numbers |= dict.fromkeys([*present, *ends])
    return View(tuple(tables), COLUMNS, tuple(record(averages, average) for average in numbers))


def number_of(averages: Averages, average: SeedAverage, *, decimals: int | None) -> Number:
    """Return the number of an average with its interval if one is known, else with its deviation over seeds.

    An accuracy with right answers per concept has both. The uncertainty of another number over concepts comes from the
    concepts; a deviation over seeds beside it would look like its error. For a number of one chosen repetition
    (k-means), the interval is the range over all repetitions.
    """
    number = own_number(average, decimals=decimals)
    if number.interval is not None:
        return number
    ends = averages.ends(average)
    if len(ends) == 2:
        return dataclasses.replace(number, deviation=None, interval=(ends[0].value, ends[1].value))
    if metric_info.describe(*average.key).shows_range and len(average.by_seed) > 1:
        interval = (min(average.by_seed), max(average.by_seed))
        return dataclasses.replace(number, deviation=None, interval=interval)
    return number


def interval_notes(averages: Averages, shown: Iterable[SeedAverage]) -> tuple[Note, ...]:
    """Return the notes on the intervals of the shown averages, without duplicates."""
    texts = (
        _interval_note(average.key)
        for average in shown
        if number_of(averages, average, decimals=None).interval is not None
    )
    return tuple(map(Note, dict.fromkeys(texts)))


def _interval_note(key: Key) -> str:
    metric = metric_info.describe(*key)
    if metric.shows_range:
        return metric.note
    if metric.interval:
        return metric.interval
    return OVER_CONCEPTS_AND_SEEDS if scores.is_classifier(key[0]) else OVER_CONCEPTS


def record(averages: Averages, average: SeedAverage) -> dict[str, Any]:
    """Return the flat record of an average, with the ends of its interval if it has one."""
    given = {name: getattr(average, name) for name in COLUMNS if hasattr(average, name)}
    # The ends of an interval, which may be records of their own, have the unit of their number.
    unit = metric_info.describe(
        average.evaluation, metric_info.companion_of(average.metric) or average.metric, average.n_shot
    ).unit
    named = {"experiment": average.evaluation, "quantity": average.metric, "unit": unit}
    low, high = number_of(averages, average, decimals=None).interval or (None, None)
    return {**given, **named, "n_seeds": len(average.seeds) or None, "low": low, "high": high}


# --- rows and columns of the tables


def _by_dataset(averages: Averages, keys: Iterable[Key]) -> Iterator[ExperimentTable]:
    """Yield a table for each number: models by data sets."""
    for key in keys:
        metric = metric_info.describe(*key)
        if datasets := averages.on(key):
            title = f"{metric.title}, lower is better" if metric.better < 0 else metric.title
            yield ExperimentTable(title, [Column(dataset, dataset, key) for dataset in datasets])


def _by_k(
    averages: Averages, families: Mapping[tuple[str, str, str], Sequence[tuple[int, Key]]]
) -> Iterator[ExperimentTable]:
    """Yield a table for each kind of vote and data set: models by numbers of nearest neighbors."""
    for (_, vote, metric), members in families.items():
        for dataset in dict.fromkeys(dataset for _, key in members for dataset in averages.on(key)):
            yield ExperimentTable(
                f"kNN, {vote} vote, {METRIC_LABELS[metric]} (%), {dataset}",
                [Column(f"k={k}", dataset, key) for k, key in sorted(members)],
            )


def _by_column(averages: Averages, families: Mapping[str, Sequence[Key]]) -> Iterator[ExperimentTable]:
    """Yield a table for each family and data set: models by the numbers that are declared for the table."""
    for title, keys in families.items():
        for dataset in sorted({dataset for key in keys for dataset in averages.on(key)}, key=dataset_key):
            metrics = {key: metric_info.describe(*key) for key in keys if dataset in averages.on(key)}
            first = next(iter(metrics.values()))
            unit = f" ({first.unit})" if first.unit else ""
            columns = [Column(metric.column, dataset, key) for key, metric in metrics.items()]
            yield ExperimentTable(f"{title}{unit}, {dataset}", columns)


def _classifiers(averages: Averages, fits: Callable[[ClassifierName], bool], *metrics: str) -> list[Key]:
    return [
        key
        for key in averages.keys
        if key[1] in metrics and (name := metric_info.classifier(key[0])) is not None and fits(name)
    ]


def _mlp(averages: Averages) -> Iterator[ExperimentTable]:
    """Yield tables of logistic regression and of each MLP: scores in percent, and relative to it (Table 3)."""
    metrics = ("top1", relative.RELATIVE_TO_LOGREG)
    keys = _classifiers(averages, lambda name: name.type.startswith("mlp") and not name.pca_dim, *metrics)
    for n_shot in sorted({key[2] for key in keys}):
        of_mlps = [key for key in keys if key[2] == n_shot]
        yield from _by_dataset(averages, [(LOGREG, "top1", n_shot), *of_mlps])


def _pca(averages: Averages) -> Iterator[ExperimentTable]:
    """Yield a table by number of components for each data set (Table 5); its last column has all features."""
    families: dict[tuple[ClassifierName, int], dict[int, Key]] = {}
    for key in _classifiers(averages, lambda name: bool(name.pca_dim), "top1"):
        name = metric_info.classifier(key[0])
        assert name is not None
        families.setdefault((dataclasses.replace(name, pca_dim=0), key[2]), {})[name.pca_dim] = key
    for (whole, n_shot), by_dim in families.items():
        most = f"_max{whole.max_per_class}" if whole.max_per_class else ""
        all_features = (whole.type + most, "top1", n_shot)
        datasets = {dataset for key in by_dim.values() for dataset in averages.on(key)}
        for dataset in sorted(datasets, key=dataset_key):
            columns = [Column(str(dim), dataset, by_dim[dim]) for dim in sorted(by_dim)]
            if dataset in averages.on(all_features):
                columns.append(Column(ALL, dataset, all_features))
            title = f"{whole.label} on principal components, top-1 (%), {dataset}, {shots_label(n_shot)}"
            yield ExperimentTable(title, columns)


def _balanced(averages: Averages) -> Iterator[ExperimentTable]:
    """Yield tables of logistic regression on as many images of every class, and of its difference to all images."""

    def fits(name: ClassifierName) -> bool:
        return name.type == LOGREG and name.max_per_class > 0 and not name.pca_dim

    return _by_dataset(averages, _classifiers(averages, fits, "top1", relative.POINTS_TO_LOGREG))


def _blurred(averages: Averages) -> Iterator[ExperimentTable]:
    """Yield a table for each number of shots: IN-1K, IN-1K with blurred faces, and the difference."""
    blurred = constants.IN1K_BLURRED
    for key in averages.keys:
        if key[:2] != (LOGREG, relative.POINTS_TO_IN1K) or blurred not in averages.on(key):
            continue
        top1, few = (LOGREG, "top1", key[2]), key[2] > 0
        difference = Column("difference", blurred, key)
        changes = [
            average.value
            for (average,) in pivot(averages, averages.rows, [difference])
            if average is not None
        ]
        mean = format_number(statistics.fmean(changes), 2, signed=True)
        note = f"Mean difference: {mean} points."
        yield ExperimentTable(
            f"LogReg, top-1 (%), IN-1K with faces blurred, {shots_label(key[2])}",
            [*(Column(name, name, top1) for name in (constants.IN1K, blurred)), difference],
            (Note(note if few else f"{note} The paper's mean drop, over 31 models, is 0.91 %."),),
        )


def _fine_tuned(averages: Averages) -> Iterator[ExperimentTable]:
    """Yield tables of the fine-tuned network, and of logistic regression on frozen features relative to it (Fig. 6)."""
    metrics = ("top1", relative.LOGREG_RELATIVE, relative.LOGREG_POINTS)
    return _by_dataset(averages, _classifiers(averages, lambda name: name.type == "finetune", *metrics))


#: Functions that yield the tables of each kind of classifier variant, by its name in ``--variants``.
VARIANTS: dict[str, Callable[[Averages], Iterator[ExperimentTable]]] = {
    "mlp": _mlp, "pca": _pca, "balanced": _balanced, "blurred": _blurred, "finetune": _fine_tuned,
}  # fmt: skip


# --- all side by side


def overview(averages: Averages, *, style: TableStyle) -> View:
    """Return a table for each data set: the main numbers of all experiments by models.

    Args:
        averages: see :func:`of_analyses`.
        style: style of models and numbers.

    Raises:
        CogError: when there is no such number.
    """
    tables = []
    records = []
    for dataset in averages.datasets:
        numbers = headlines(averages, dataset)
        lines_of = zip(averages.rows, pivot(averages, averages.rows, numbers), strict=True)
        by_row = {row: line for row, line in lines_of if any(line)}
        if not by_row:
            continue
        sources = {row.source for row in by_row}
        lines = []
        shown: list[SeedAverage] = []
        for number, line in zip(numbers, zip(*by_row.values(), strict=True), strict=True):
            better = {1: "higher", -1: "lower", 0: ""}[metric_info.describe(*number.key).better]
            entries = [entry_of(averages, average, decimals=style.decimals) for average in line]
            lines.append((number.label, (TableEntry(better) if better else None, *entries)))
            shown += [average for average in line if average is not None]
        records += shown
        note = Note("better: the direction in which a number speaks for the features; -: it has none.")
        tables.append(
            Table(
                title=f"all experiments on {dataset}{only_source(sources)}",
                columns=("better", *(style.label(row, sources=sources) for row in by_row)),
                rows=tuple(lines),
                notes=(*([note] if len(by_row) > 1 else []), *interval_notes(averages, shown)),
                corner="experiment",
                words=frozenset({0}),
            )
        )
    if not tables:
        raise CogError("nothing to show: no number of any experiment among the results read")
    return View(tuple(tables), COLUMNS, tuple(record(averages, average) for average in records))


def entry_of(
    averages: Averages, average: SeedAverage | None, *, decimals: int | None = None
) -> TableEntry | None:
    """Return the entry of an average, with its interval if it has one, else with its deviation; None for None."""
    if average is None:
        return None
    number = number_of(averages, average, decimals=decimals)
    if number.interval is not None:  # there is no room for interval and deviation in a column of a model
        number = dataclasses.replace(number, deviation=None)
    return number.entry(seeds_there(average))


def headlines(averages: Averages, dataset: str) -> list[Column]:
    """Return the numbers on a data set that stand for all in an overview, in their order."""
    names = {key: metric_info.classifier(key[0]) for key in averages.keys}
    n_shots = _spanning(_SHOTS, {key[2] for key in averages.keys})
    dims = _spanning(_DIMENSIONS, {name.pca_dim for name in names.values() if name is not None})

    def is_headline(key: Key) -> bool:
        # Of the MLPs of the paper only the relative score was published.
        only = key[1] == relative.RELATIVE_TO_LOGREG and (key[0], "top1", key[2]) not in names
        return metric_info.describe(*key).headline or only

    return [
        Column(metric_info.describe(*key).short_title, dataset, key)
        for key, name in names.items()
        if is_headline(key) and key[2] in n_shots and (name is None or name.pca_dim in dims)
        if dataset in averages.on(key)
    ]


def _spanning(usual: Iterable[int], there: set[int]) -> set[int]:
    """Return 0 and the usual numbers among ``there``; if none is, 0 and the least and the greatest of ``there``."""
    there = there - {0}
    return {0, *(set(usual) & there or {min(there, default=0), max(there, default=0)})}
