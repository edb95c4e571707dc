"""Tables of experiments beyond the protocol: analyses of features and other classifiers, a table for each number.

An analysis that declares its metrics (:func:`cog.results.metric_info.declare`) is shown without changes to this module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from cog.errors import CogError
from cog.reporting.tables.layout import TableStyle, View
from cog.reporting.tables.pivot import OVER_CONCEPTS, Averages, Column, Number, Quantity, own_number, tabulate
from cog.reporting.tables.writers import Table
from cog.results import metric_info, published, scores
from cog.results.metric_info import OVER_CONCEPTS_AND_SEEDS
from cog.results.scores import LOGREG, Key, SeedAverage, natural_key

#: Name that selects all experiments.
ALL = "all"

# Tables of the first version of the paper, by group of experiments.
_PAPER_TABLES = {"mlp": 3, "pca": 5, "kmeans": 6}


def of_analyses(
    averages: Averages, wanted: Sequence[str], *, style: TableStyle, metrics: Sequence[str] = ("top1", "top5")
) -> View:
    """Return tables of the results of analyses and of other classifiers: a table for each number, models by data sets.

    Args:
        averages: averages of all experiments.
        wanted: names of groups (``mlp``, ``pca``, ``kmeans``), names of experiments or their beginnings (``cross``: all
            ``cross_<dataset>``), or ``all``.
        style: style of rows.
        metrics: accuracies to show.

    Raises:
        CogError: when there is no result of these experiments.
    """
    there = {
        key: metric_info.describe(*key)
        for key in averages.keys
        if key[0] != LOGREG or key[1] not in ("top1", "top5")
    }
    chosen = {
        key: metric
        for key, metric in there.items()
        if ALL in wanted
        or metric.group in wanted
        or any(f"{key[0]}_".startswith(f"{name}_") for name in wanted)
    }
    if not chosen:
        names = sorted({metric.group for metric in there.values()}, key=natural_key)
        which = "any analysis" if ALL in wanted else f"the analysis {' or '.join(wanted)}"
        hint = f"there is {', '.join(names)}" if names else "analyze_features.py makes them"
        raise CogError(f"nothing to show: no result of {which} among those read; {hint}")
    hidden = {"top1", "top5"} - set(metrics)
    tables: list[Table] = []
    numbers: dict[SeedAverage, None] = {}
    for key, metric in chosen.items():
        experiment, quantity, n_shot = key
        is_companion = (experiment, metric_info.companion_of(quantity), n_shot) in there
        if is_companion or quantity.split("_")[0] in hidden:
            continue
        number = _PAPER_TABLES.get(metric.group)
        table, shown = tabulate(
            averages,
            [Column(dataset, dataset, key) for dataset in averages.on(key)],
            Quantity(
                lambda average: number_of(averages, average),
                spread_note=metric.note,
                interval_note=_interval_note(key),
            ),
            title=f"{metric.title}, lower is better" if metric.better < 0 else metric.title,
            style=style,
            paper_tables={published.SOURCES["v1"]: f", Table {number}"} if number else {},
        )
        tables.append(table)
        numbers |= dict.fromkeys(place.average for place in shown)
    if not tables:
        raise CogError(f"nothing to show: {' '.join(wanted)} has no {' or '.join(metrics)}")
    return View(tables, [record(averages, average) for average in numbers])


def number_of(averages: Averages, average: SeedAverage) -> Number:
    """Return the number of an average with its interval if one is known, else with its deviation over seeds.

    An accuracy with right answers per concept has both. The uncertainty of another number over concepts comes from the
    concepts; a deviation over seeds beside it would look like its error. For a number of one chosen repetition
    (k-means), the interval is the range over all repetitions.
    """
    number = own_number(average)
    if number.interval is not None:
        return number
    ends = averages.ends(average)
    if len(ends) == 2:
        return dataclasses.replace(number, deviation=None, interval=(ends[0].value, ends[1].value))
    if metric_info.describe(*average.key).shows_range and len(average.by_seed) > 1:
        interval = (min(average.by_seed), max(average.by_seed))
        return dataclasses.replace(number, deviation=None, interval=interval)
    return number


def _interval_note(key: Key) -> str:
    metric = metric_info.describe(*key)
    if metric.shows_range:
        return metric.note
    return OVER_CONCEPTS_AND_SEEDS if scores.is_classifier(key[0]) else OVER_CONCEPTS


def record(averages: Averages, average: SeedAverage) -> dict[str, Any]:
    """Return the flat record of an average, with the ends of its interval if it has one."""
    low, high = number_of(averages, average).interval or (None, None)
    return {
        "model": average.model,
        "dataset": average.dataset,
        "experiment": average.evaluation,
        "quantity": average.metric,
        "n_shot": average.n_shot,
        "value": average.value,
        "std": average.std,
        "n_seeds": len(average.seeds) or None,
        "seeds": average.seeds,
        "by_seed": average.by_seed,
        "missing_seeds": average.missing_seeds,
        "unit": metric_info.describe(*average.key).unit,
        "source": average.source,
        "low": low,
        "high": high,
    }
