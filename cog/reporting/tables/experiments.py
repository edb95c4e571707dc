"""Tables of experiments beyond the protocol: analyses of features, and variants of the classifier."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cog import constants
from cog.analysis.knn import neighbor_metric
from cog.errors import CogError
from cog.reporting.tables.layout import (
    Row,
    TableStyle,
    View,
    format_number,
    order_rows,
    seeds_mark,
)
from cog.reporting.tables.writers import Note, Table, TableEntry, printable
from cog.results import metric_info, published, relative, scores
from cog.results.labels import METRIC_LABELS, shots_label
from cog.results.metric_info import Metric
from cog.results.scores import LOGREG, RUNS, SeedAverage, dataset_key, natural_key

#: Kinds of variants of the classifier, as ``--variants`` takes them.
VARIANTS = ("mlp", "pca", "balanced", "blurred", "finetune")

#: What stands for everything there is.
ALL = "all"

#: Columns of flat records.
COLUMNS = (
    "model", "dataset", "experiment", "quantity", "n_shot", "value", "std", "n_seeds", "seeds", "by_seed",
    "missing_seeds", "unit", "source",
)  # fmt: skip

# Tables of the first version of the paper, by group of experiments.
_PAPER_TABLES = {"mlp": 3, "pca": 5, "kmeans": 6}


@dataclass(frozen=True)
class Column:
    """A column of a table: its header, and which number of a model stands in it."""

    header: str
    dataset: str
    key: tuple[str, str, int]  # experiment, quantity, number of shots


class Numbers:
    """All numbers that can be shown, by place.

    Args:
        found: measures; of several for one place the first counts.
        models: rows, in this order; None: see :func:`cog.reporting.tables.layout.order_rows`.
    """

    def __init__(self, found: Iterable[SeedAverage], *, models: Sequence[str] | None = None) -> None:
        self._at: dict[tuple[Row, str, tuple[str, str, int]], SeedAverage] = {}
        for measure in found:
            self._at.setdefault((Row(measure.model, measure.source), measure.dataset, measure.key), measure)
        self._datasets: dict[tuple[str, str, int], set[str]] = {}
        for _, dataset, key in self._at:
            self._datasets.setdefault(key, set()).add(dataset)
        present = [row for row, _, _ in self._at]
        wanted = (
            None if models is None else [model for model in models if any(r.model == model for r in present)]
        )
        self.rows = order_rows(present, models=wanted)
        self.datasets = sorted({dataset for _, dataset, _ in self._at}, key=dataset_key)
        self.keys = sorted(self._datasets, key=lambda key: (metric_info.describe(*key).order, str(key)))

    def get(self, row: Row, dataset: str, key: tuple[str, str, int]) -> SeedAverage | None:
        """Return the number of a place, or None."""
        return self._at.get((row, dataset, key))

    def interval(self, measure: SeedAverage) -> tuple[float, float] | None:
        """Return the ends of the interval that is known of a number."""
        row = Row(measure.model, measure.source)
        ends = [
            self.get(row, measure.dataset, (measure.evaluation, name, measure.n_shot))
            for name in metric_info.interval_of(measure.metric)
        ]
        return None if ends[0] is None or ends[1] is None else (ends[0].value, ends[1].value)

    def entry(self, measure: SeedAverage, *, decimals: int | None, interval: bool = True) -> TableEntry:
        """Return a number as it stands in a table, with its interval where one is known and wanted."""
        kind = metric_info.describe(*measure.key)
        digits = kind.decimals if decimals is None else decimals
        marks = [seeds_mark(measure)]
        ends = self.interval(measure) if interval else None
        if ends is not None:
            marks.append(f"[{', '.join(format_number(end, digits) for end in ends)}]")
        if kind.significant and decimals is None:
            shown = f"{measure.value:.{digits}g}"
        else:
            shown = format_number(measure.value, digits, signed=kind.signed)
        return TableEntry(
            shown,
            "" if measure.std is None else f"{measure.std:.{digits}f}",
            " ".join(filter(None, marks)),
        )

    def on(self, key: tuple[str, str, int]) -> list[str]:
        """Return the data sets with a number, in order."""
        return sorted(self._datasets.get(key, ()), key=dataset_key)


def of_analyses(
    numbers: Numbers,
    wanted: Sequence[str],
    *,
    style: TableStyle,
    decimals: int | None,
    metrics: Sequence[str] = ("top1", "top5"),
) -> View:
    """Show results of analyses: models by data sets, a table for each number.

    Those of nearest neighbours are shown by their k instead, a table for each data set and kind of vote.

    Args:
        numbers: all there are.
        wanted: names, or beginnings of names (``cross``: all ``cross_<dataset>``); ``all``.
        style: how rows are written.
        decimals: digits after the point; None: those of each number.
        metrics: which accuracies of classifiers without training are shown.

    Raises:
        CogError: when there is none of them.
    """
    keys = [key for key in numbers.keys if not scores.is_classifier(key[0])]
    keys = [key for key in keys if ALL in wanted or any(_named(key[0], name) for name in wanted)]
    if not keys:
        there = sorted({key[0] for key in numbers.keys if not scores.is_classifier(key[0])}, key=natural_key)
        what = "any analysis" if ALL in wanted else f"the analysis {' or '.join(wanted)}"
        other = f"; there is {', '.join(there)}" if there else "; analyze_features.py makes them"
        raise CogError(f"nothing to show: no result of {what} among those read{other}")
    made = _Tables(numbers, style, decimals)
    by_k: dict[tuple[str, str, str], list[tuple[int, tuple[str, str, int]]]] = {}
    hidden = {"top1", "top5"} - set(metrics)
    known = set(keys)
    for key in keys:
        companion = metric_info.companion_of(key[1])
        if companion is not None and (key[0], companion, key[2]) in known:
            continue
        if key[1].split("_")[0] in hidden:
            continue
        found = neighbor_metric(key[1]) if key[0].split("_")[0] == "knn" else None
        if found is None:
            made.by_dataset(key)
        else:
            by_k.setdefault((key[0], found.vote, found.metric), []).append((found.k, key))
    for (_, vote, metric), members in by_k.items():
        for dataset in dict.fromkeys(d for _, key in members for d in numbers.on(key)):
            title = f"kNN, {vote} vote, {METRIC_LABELS[metric]} (%), {dataset}"
            columns = [Column(f"k={k}", dataset, key) for k, key in sorted(members)]
            made.table(title, columns, metric_info.describe(*members[0][1]))
    return made.view()


def _named(experiment: str, name: str) -> bool:
    return experiment == name or experiment.startswith(f"{name}_")


def of_variants(numbers: Numbers, wanted: Sequence[str], *, style: TableStyle, decimals: int | None) -> View:
    """Show classifiers other than logistic regression on all features and images, beside it.

    Args:
        numbers: see :func:`of_analyses`, also for the other arguments.
        wanted: some of ``VARIANTS``; ``all``.
        style: how rows are written.
        decimals: digits after the point.

    Raises:
        CogError: when there is none of them.
    """
    made = _Tables(numbers, style, decimals)
    show: dict[str, Callable[[_Tables], None]] = {
        "mlp": _mlp,
        "pca": _pca,
        "balanced": _balanced,
        "blurred": _blurred,
        "finetune": _fine_tuned,
    }
    for name in VARIANTS:
        if name in wanted or ALL in wanted:
            show[name](made)
    if not made.tables:
        what = "variant of the classifier" if ALL in wanted else f"result of {' or '.join(wanted)}"
        raise CogError(f"nothing to show: no {what} among the results read (see --help for what makes them)")
    return made.view()


def _mlp(made: _Tables) -> None:
    """Logistic regression in percent, then each MLP: its own score where known, and relative to it (Table 3)."""
    keys = [
        key
        for key in made.numbers.keys
        if (found := metric_info.classifier(key[0])) is not None
        and found.type in ("mlp", "mlp_noact")
        and not found.pca_dim
        and key[1] in ("top1", relative.RELATIVE_TO_LOGREG)
    ]
    for n_shot in sorted({key[2] for key in keys}):
        made.by_dataset((LOGREG, "top1", n_shot))
        for key in keys:
            if key[2] == n_shot:
                made.by_dataset(key)


def _pca(made: _Tables) -> None:
    """By number of components, a table for each data set (Table 5); the last column has all features."""
    families: dict[tuple[str, int, int], dict[int, tuple[str, str, int]]] = {}
    for key in made.numbers.keys:
        found = metric_info.classifier(key[0])
        if found is not None and found.pca_dim and key[1] == "top1":
            families.setdefault((found.type, found.max_per_class, key[2]), {})[found.pca_dim] = key
    for (type_, max_per_class, n_shot), by_dim in families.items():
        whole = type_ + (f"_max{max_per_class}" if max_per_class else "")
        named = metric_info.ClassifierName(type_, 0, max_per_class).label
        datasets = {dataset for key in by_dim.values() for dataset in made.numbers.on(key)}
        for dataset in sorted(datasets, key=dataset_key):
            columns = [Column(str(dim), dataset, by_dim[dim]) for dim in sorted(by_dim)]
            if dataset in made.numbers.on((whole, "top1", n_shot)):
                columns.append(Column("all", dataset, (whole, "top1", n_shot)))
            made.table(
                f"{named} on principal components, top-1 (%), {dataset}, {shots_label(n_shot)}",
                columns,
                metric_info.describe(next(iter(by_dim.values()))[0], "top1", n_shot),
            )


def _balanced(made: _Tables) -> None:
    for key in made.numbers.keys:
        found = metric_info.classifier(key[0])
        if found is None or not found.max_per_class or found.pca_dim or found.type != LOGREG:
            continue
        if key[1] in ("top1", relative.POINTS_TO_LOGREG):
            made.by_dataset(key)


def _blurred(made: _Tables) -> None:
    """IN-1K, IN-1K with blurred faces, and the difference, a table for each number of shots."""
    for key in made.numbers.keys:
        if key[:2] != (LOGREG, relative.POINTS_TO_IN1K) or constants.IN1K_BLURRED not in made.numbers.on(key):
            continue
        top1 = (LOGREG, "top1", key[2])
        changes = [
            measure.value
            for row in made.numbers.rows
            if (measure := made.numbers.get(row, constants.IN1K_BLURRED, key)) is not None
        ]
        mean = format_number(statistics.fmean(changes), 2, signed=True)
        published_mean = " The paper's mean drop, over 31 models, is 0.91 %." if key[2] == 0 else ""
        made.table(
            f"LogReg, top-1 (%), IN-1K with faces blurred, {shots_label(key[2])}",
            [
                Column(constants.IN1K, constants.IN1K, top1),
                Column(constants.IN1K_BLURRED, constants.IN1K_BLURRED, top1),
                Column("difference", constants.IN1K_BLURRED, key),
            ],
            metric_info.describe(*top1),
            notes=[Note(f"Mean difference: {mean} points.{published_mean}")],
        )


def _fine_tuned(made: _Tables) -> None:
    """The fine-tuned network itself, and logistic regression on frozen features relative to it (Fig. 6)."""
    for key in made.numbers.keys:
        found = metric_info.classifier(key[0])
        if found is not None and found.type == "finetune" and key[1] in (
            "top1", relative.LOGREG_RELATIVE, relative.LOGREG_POINTS
        ):  # fmt: skip
            made.by_dataset(key)


class _Tables:
    """Tables in the making, and the numbers that are in them."""

    def __init__(self, numbers: Numbers, style: TableStyle, decimals: int | None) -> None:
        self.numbers = numbers
        self.tables: list[Table] = []
        self._style = style
        self._decimals = decimals
        self._shown: dict[SeedAverage, None] = {}

    def by_dataset(self, key: tuple[str, str, int]) -> None:
        """Add the table of one number: models by data sets."""
        kind = metric_info.describe(*key)
        columns = [Column(dataset, dataset, key) for dataset in self.numbers.on(key)]
        if columns:
            low = ", lower is better" if kind.better < 0 else ""
            self.table(f"{kind.title}{low}", columns, kind)

    def table(
        self, title: str, columns: Sequence[Column], kind: Metric, *, notes: Sequence[Note] = ()
    ) -> None:
        """Add a table of the rows that have any of these numbers."""
        lines: list[tuple[Row, list[SeedAverage | None]]] = []
        for row in self.numbers.rows:
            found = [self.numbers.get(row, column.dataset, column.key) for column in columns]
            if any(measure is not None for measure in found):
                lines.append((row, found))
        present = [measure for _, found in lines for measure in found if measure is not None]
        self._shown |= dict.fromkeys(present)
        for measure in present:
            for name in metric_info.interval_of(measure.metric):
                end = self.numbers.get(
                    Row(measure.model, measure.source),
                    measure.dataset,
                    (measure.evaluation, name, measure.n_shot),
                )
                self._shown |= {end: None} if end is not None else {}
        sources = {row.source for row, _ in lines}
        if any(measure.std is not None for measure in present):
            title += ", ± std over seeds"
            notes = [*notes, *([Note(kind.note)] if kind.note else [])]
        if len(sources) == 1 and RUNS not in sources:
            (source,) = sources
            number = _PAPER_TABLES.get(kind.group) if source == published.SOURCES["v1"] else None
            title += f" [{printable(source)}{f', Table {number}' if number else ''}]"
        incomplete = [
            (
                printable(f"{self._style.label(row, sources=sources)}, {column.header}"),
                ", ".join(map(str, measure.missing_seeds)),
            )
            for row, found in lines
            for column, measure in zip(columns, found, strict=True)
            if measure is not None and measure.missing_seeds
        ]
        all_notes = [*([Note("Missing seeds", tuple(incomplete))] if incomplete else []), *notes]
        if any(self.numbers.interval(measure) for measure in present):
            all_notes.append(Note("[ ]: 95 % bootstrap interval over concepts; seeds are averaged before."))
        self.tables.append(
            Table(
                title=title,
                columns=tuple(column.header for column in columns),
                rows=tuple(
                    (
                        self._style.label(row, sources=sources),
                        tuple(
                            None if measure is None else self.numbers.entry(measure, decimals=self._decimals)
                            for measure in found
                        ),
                    )
                    for row, found in lines
                ),
                notes=tuple(all_notes),
            )
        )

    def view(self) -> View:
        """Return what was added."""
        return View(tuple(self.tables), COLUMNS, tuple(map(record, self._shown)))


def record(measure: SeedAverage) -> dict[str, Any]:
    """Return a number as a flat record."""
    kind = metric_info.describe(*measure.key)
    values = {name: getattr(measure, name) for name in COLUMNS if hasattr(measure, name)}
    named = {"experiment": measure.evaluation, "quantity": measure.metric}
    return {**values, **named, "n_seeds": len(measure.seeds) or None, "unit": kind.unit}
