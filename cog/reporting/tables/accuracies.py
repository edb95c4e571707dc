"""Tables of accuracies, differences to a model, losses since IN-1K and ranks: models by data sets or by shots."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cog import constants
from cog.errors import CogError
from cog.reporting.tables.layout import Row, TableStyle, View, source_key
from cog.reporting.tables.pivot import Averages, Column, Number, Quantity, Shown, own_number, tabulate
from cog.reporting.tables.writers import Note, Table
from cog.results import comparison, official, published
from cog.results.labels import METRIC_LABELS, shots_column, shots_label
from cog.results.metric_info import OVER_CONCEPTS_AND_SEEDS
from cog.results.relative import change_from, relative
from cog.results.scores import LOGREG, SeedAverage, dataset_key

#: ``datasets``: models by data sets, one table for each number of shots (Fig. 3's data); ``shots``: models by numbers
#: of shots, one table for each data set (Tables 5-10).
LAYOUTS = ("datasets", "shots")

_DEVIATION = (
    "±: sample standard deviation of the differences of common seeds, or without them the combined one of single runs, "
    "sqrt(s1^2 + s2^2). It says nothing about other concepts or images."
)
_TOLD = (
    "[ ]: 95 % interval over concepts (with their images) and common seeds, paired over both; with one seed over "
    "concepts alone. *: told apart, as the interval excludes 0 also after Holm's correction for all differences shown "
    "(p below 0.05, two common seeds or more). The others with an interval cannot be told apart. No interval covers "
    "another pretraining."
)

_TABLE_NUMBERS = {dataset: 5 + index for index, dataset in enumerate(constants.DATASETS)}

# Digits of published means after the point, at which means are compared for ranks beside them.
_PUBLISHED_DECIMALS = 1

#: Function from averages and the name of a metric to the quantity of this metric.
QuantityOf = Callable[[Averages, str], Quantity]


def of_accuracies(
    averages: Averages, quantity: QuantityOf, *, metrics: Sequence[str], layout: str, style: TableStyle
) -> View:
    """Return tables with a number of every accuracy.

    Args:
        averages: accuracies of logistic regression, or of another evaluation that is declared as logistic regression.
        quantity: function that returns the displayed quantity of a metric.
        metrics: ``"top1"``, ``"top5"`` or both.
        layout: one of ``LAYOUTS``; tables without any number are left out, except in ``datasets``.
        style: style of numbers and labels.

    Raises:
        CogError: when no average has a number.
    """
    tables: list[Table] = []
    numbers: list[Shown] = []
    of = {metric: quantity(averages, metric) for metric in metrics}
    for title, places in _panels(averages, layout):
        for metric in metrics:
            table, shown = tabulate(
                averages,
                [Column(label, dataset, (LOGREG, metric, n_shot)) for label, dataset, n_shot in places],
                of[metric],
                title=f"{of[metric].title.format(metric=METRIC_LABELS[metric])}, {title}",
                style=style,
                all_rows=True,
            )
            if shown:
                tables.append(table)
            numbers += shown
    if not numbers:
        accuracies = " or ".join(METRIC_LABELS[metric] for metric in metrics)
        raise CogError(
            averages.comparable.refused or f"nothing to show: no {accuracies} accuracy among the results read"
        )
    if layout == "datasets":
        order = {row: index for index, row in enumerate(averages.rows)}
        numbers.sort(
            key=lambda place: (
                place.average.n_shot,
                order[Row(place.average.model, place.average.source)],
                dataset_key(place.average.dataset),
            )
        )
    has_mean = bool(of[metrics[0]].mean_title)
    records = []
    for average, number, mean in numbers:
        record = {name: getattr(average, name) for name in ("model", "dataset", "n_shot", "metric")}
        record |= number.record
        ends = dict(zip(("low", "high"), number.interval or (None, None), strict=True))
        record |= {"mean_rank": mean} if has_mean else ends
        record |= {"n_seeds": len(average.seeds) or None, "missing_seeds": average.missing_seeds}
        records.append(record | ({"source": average.source} if style.with_source else {}))
    return View(tables, records)


def _panels(averages: Averages, layout: str) -> Iterator[tuple[str, list[tuple[str, str, int]]]]:
    """Yield the title of each table of a layout, and the header, data set and number of shots of its columns."""
    if layout == "datasets":
        for n_shot in averages.n_shots:
            yield shots_label(n_shot), [(name, name, n_shot) for name in averages.datasets]
        return
    rising = sorted(averages.n_shots, key=lambda n_shot: (n_shot == 0, n_shot))
    only_paper = averages.sources == [published.SOURCES["v2"]]
    for dataset in averages.datasets:
        number = _TABLE_NUMBERS.get(dataset) if only_paper else None
        title = dataset if number is None else f"{dataset} (Table {number} of the paper)"
        yield title, [(shots_column(n), dataset, n) for n in rising]


def accuracy(averages: Averages, metric: str) -> Quantity:
    """Return the quantity of mean accuracies and their population standard deviations over seeds, in percent."""

    def of(average: SeedAverage) -> Number:
        record = {"mean": average.value, "std": average.std}
        return dataclasses.replace(own_number(average), record=record)

    return Quantity(
        of, "{metric} accuracy (%)", "mean ± std over seeds", interval_note=OVER_CONCEPTS_AND_SEEDS
    )


class Baseline:
    """The averages of the model with which others are compared.

    A row is compared with the baseline of its own source if there is one, otherwise with that of the first source
    that has one (runs, the paper, files). Averages on other data are not compared (:mod:`cog.results.official`).

    Raises:
        CogError: when there is no result of the model.
    """

    def __init__(self, averages: Averages, model: str) -> None:
        self._averages = averages
        self._at = {
            (average.source, average.dataset, average.metric, average.n_shot): average
            for average in (*averages.shown, *averages.others)
            if average.model == model
        }
        self.sources = sorted({source for source, *_ in self._at}, key=source_key)
        if not self.sources:
            raise CogError(f"there is nothing to compare with: no result of {model} among those read")

    def of(self, average: SeedAverage) -> SeedAverage | None:
        """Return the baseline's average that ``average`` is compared with; None if it is missing or on other data."""
        source = average.source if average.source in self.sources else self.sources[0]
        base = self._at.get((source, average.dataset, average.metric, average.n_shot))
        return base if base is not None and self._averages.comparable.allows(average, base) else None


def relative_to(model: str) -> QuantityOf:
    """Return the function for differences to a model in points, with intervals and verdicts.

    Differences are paired over common seeds, and over concepts where right answers per concept are known
    (:mod:`cog.results.comparison`); verdicts are corrected for the number of differences that are shown together.

    Raises:
        CogError: in the returned function, when there is no result of the model.
    """

    def quantity(averages: Averages, metric: str) -> Quantity:
        baseline = Baseline(averages, model)
        pairs = [(a, baseline.of(a)) for a in averages.shown if a.metric == metric]
        judged = comparison.judge(
            comparison.difference(a, b) for a, b in pairs if b is not None and b is not a
        )
        known = {difference.average.place: difference for difference in judged}

        def of(average: SeedAverage) -> Number | None:
            base, item = baseline.of(average), known.get(average.place)
            if base is None:
                return None
            record: dict[str, Any] = {
                "baseline": model,
                "baseline_source": base.source,
                "difference": 0.0 if item is None else item.mean,
                **{name: getattr(item, name, None) for name in ("deviation", "p", "p_holm", "reading")},
                "common_seeds": () if item is None else item.seeds,
            }
            if item is None:
                return Number(0.0, signed=True, record=record)
            interval, star = item.interval, bool(item.sign)
            deviation = None if interval else item.deviation
            return Number(item.mean, deviation, signed=True, interval=interval, starred=star, record=record)

        foreign = [source for source in averages.sources if source not in baseline.sources]
        note = Note(
            f"The baseline of rows from {', '.join(foreign)} is {model} from {baseline.sources[0]}: the papers' own "
            "training and yours may differ in more than the model."
        )
        return Quantity(
            of,
            f"{{metric}} accuracy, difference to {model} (points)",
            "± deviation over seeds",
            (note,) if foreign else (),
            spread_note=_DEVIATION,
            interval_note=_TOLD,
        )

    return quantity


def drop(averages: Averages, metric: str) -> Quantity:
    """Return the quantity of changes from the model's own IN-1K accuracy, in percent: ``100 * (L / IN-1K - 1)``.

    Both accuracies have the same number of shots. Fig. 3c of the paper's first version shows this quantity. The
    deviation is that of a ratio of two independent means, to first order.

    Raises:
        CogError: when no model has an IN-1K accuracy.
    """
    reference = {
        (average.model, average.source, average.n_shot): average
        for average in (*averages.shown, *averages.others)
        if average.dataset == constants.IN1K and average.metric == metric
    }
    if not reference:
        raise CogError(f"--drop needs results on {constants.IN1K}, and there is none among those read")

    def of(average: SeedAverage) -> Number | None:
        base = reference.get((average.model, average.source, average.n_shot))
        if base is None or base.value <= 0:
            return None
        value, deviation, interval = 100 * (average.value / base.value - 1), None, None
        if average.dataset != constants.IN1K:
            deviation = relative(average, base)[1]
            change = change_from(average, base)
            interval = None if change is None else change.interval
        record = {"in1k_mean": base.value, "drop": value, "drop_deviation": deviation}
        return Number(value, deviation, signed=True, interval=interval, record=record)

    title = f"{{metric}} accuracy, change since the model's own {constants.IN1K} (% of it)"
    return Quantity(
        of,
        title,
        "± combined deviation over seeds",
        interval_note="[ ]: 95 % interval over concepts (with their images) of both data sets, which are independent, "
        "and seeds.",
    )


def rank(averages: Averages, metric: str) -> Quantity:
    """Return the quantity of ranks among the rows by data set and shots; equal accuracies share the better rank.

    Results on other data have no rank beside results on the official data, and results on different classes are ranked
    separately (:mod:`cog.results.official`). Beside published means, all means are compared at their
    precision. The mean rank of a row is taken over the columns of its table; incomplete
    rows are marked.
    """
    known = averages.comparable
    beside_published = not set(published.SOURCES.values()).isdisjoint(averages.sources)
    precise = f" Means are rounded to {10**-_PUBLISHED_DECIMALS:g}, as published." if beside_published else ""
    placed: dict[tuple[str, int], list[SeedAverage]] = {}
    for average in averages.shown:
        if average.metric == metric and not known.is_foreign(average):
            placed.setdefault((average.dataset, average.n_shot), []).append(average)

    @functools.cache
    def ranks(dataset: str, n_shot: int, verdict: official.Verdict) -> dict[float, comparison.SharedRank]:
        on_same = (a for a in placed[dataset, n_shot] if verdict.on_same_classes(known.verdict(a)))
        values = [compared(average) for average in on_same]
        return dict(zip(values, comparison.rank(values), strict=True))

    def compared(average: SeedAverage) -> float:
        return round(average.value, _PUBLISHED_DECIMALS) if beside_published else average.value

    def of(average: SeedAverage) -> Number | None:
        if known.is_foreign(average):
            return None
        shared = ranks(average.dataset, average.n_shot, known.verdict(average))[compared(average)]
        return Number(shared.rank, decimals=0, record=vars(shared))

    return Quantity(
        of,
        "rank by {metric} accuracy",
        notes=(Note(f"Equal accuracies share the better rank (1, 2, 2, 4).{precise}"),),
        mean_title="mean",
    )
