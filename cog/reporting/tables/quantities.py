"""The numbers that are shown for a cell: accuracy, difference to a model, loss since IN-1K, rank."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cog import constants
from cog.errors import CogError
from cog.reporting.tables.layout import Shown, find_baseline
from cog.reporting.tables.writers import Note
from cog.results.scores import SeedAverage


@dataclass(frozen=True)
class Number:
    """What a view says about one cell.

    Attributes:
        value: the number; percent, points or a rank.
        deviation: its standard deviation, or None.
        record: the cell's columns in flat records.
    """

    value: float
    deviation: float | None
    record: Mapping[str, Any]


@dataclass(frozen=True)
class Quantity:
    """A number for every cell.

    Attributes:
        title: what it is, for the titles of tables; ``{metric}`` stands for the metric's name.
        columns: of flat records.
        of: the number of a cell; None when it cannot be said.
        signed: whether positive numbers get a plus sign.
        notes: what a reader must know.
        decimals: digits of the number in tables; None: as everywhere.
        mean_title: header of a further column with the mean of a row; "": there is none.
    """

    title: str
    columns: tuple[str, ...]
    of: Callable[[SeedAverage], Number | None]
    signed: bool = False
    notes: tuple[Note, ...] = ()
    decimals: int | None = None
    mean_title: str = ""


def accuracy(metric: str) -> Quantity:
    """Mean accuracy and its population standard deviation over seeds, in percent."""

    def of(cell: SeedAverage) -> Number | None:
        return Number(cell.value, cell.std, {"mean": cell.value, "std": cell.std})

    return Quantity("{metric} accuracy (%)", ("mean", "std"), of)


def relative(shown: Shown, baseline: str, metric: str) -> Quantity:
    """Difference to a model in points, with the combined deviation ``sqrt(s1 ** 2 + s2 ** 2)``.

    Each row is compared with the baseline of its own source where there is one, otherwise with that of the first
    source that has one (runs, the paper, files); not at all where these are on other data
    (:mod:`cog.results.official`).

    Raises:
        CogError: when nothing is known of the baseline.
    """
    known, first = find_baseline(shown, baseline)

    def of(cell: SeedAverage) -> Number | None:
        source = cell.source if cell.source in known else first
        other = known[source].get((cell.dataset, cell.n_shot, cell.metric))
        if other is None or not shown.comparable.allows(cell, other):
            return None
        value = cell.value - other.value
        same = (cell.model, cell.source) == (baseline, source)
        deviation = None
        if not same and cell.std is not None and other.std is not None:
            deviation = math.hypot(cell.std, other.std)
        record = {
            "baseline": baseline,
            "baseline_source": source,
            "difference": value,
            "combined_deviation": deviation,
        }
        return Number(value, deviation, record)

    foreign = [source for source in shown.sources if source not in known]
    notes = [
        Note(
            f"The baseline of rows from {', '.join(foreign)} is {baseline} from {first}: the papers' own training and "
            "yours may differ in more than the model."
        )
    ] if foreign else []  # fmt: skip
    return Quantity(
        f"{{metric}} accuracy, difference to {baseline} (points)",
        ("baseline", "baseline_source", "difference", "combined_deviation"),
        of,
        signed=True,
        notes=tuple(notes),
    )


def drop(shown: Shown, metric: str) -> Quantity:
    """Change since the model's own IN-1K accuracy with as many shots, in percent of it: ``100 * (L / IN-1K - 1)``.

    As the first version's Fig. 3c. The deviation is that of a ratio of two independent means, to first order.

    Raises:
        CogError: when no model has an IN-1K accuracy.
    """
    reference = {
        (cell.model, cell.source, cell.n_shot): cell
        for cell in (*shown.cells, *shown.others)
        if cell.dataset == constants.IN1K and cell.metric == metric
    }
    if not reference:
        raise CogError(f"--drop needs results on {constants.IN1K}, and there is none among those read")

    def of(cell: SeedAverage) -> Number | None:
        own = reference.get((cell.model, cell.source, cell.n_shot))
        if own is None or own.value <= 0:
            return None
        value = 100 * (cell.value / own.value - 1)
        deviation = None
        if cell.dataset != constants.IN1K and cell.std is not None and own.std is not None:
            deviation = 100 * math.hypot(cell.std / own.value, cell.value * own.std / own.value**2)
        return Number(value, deviation, {"in1k_mean": own.value, "drop": value, "drop_deviation": deviation})

    return Quantity(
        f"{{metric}} accuracy, change since the model's own {constants.IN1K} (% of it)",
        ("in1k_mean", "drop", "drop_deviation"),
        of,
        signed=True,
    )


def rank(shown: Shown, metric: str) -> Quantity:
    """Rank among the rows shown, on each data set and number of shots; equal accuracies share the better rank.

    Results on other data have no rank beside results on the official data (:mod:`cog.results.official`).
    The means are compared as they are: two published ones, rounded to 0.1, are often equal. The mean rank of a row is
    over the columns of its table; rows that lack some are marked.
    """
    means: dict[tuple[str, int], list[float]] = {}
    for cell in shown.cells:
        if cell.metric == metric and not shown.comparable.is_foreign(cell):
            means.setdefault((cell.dataset, cell.n_shot), []).append(cell.value)
    for found in means.values():
        found.sort()

    def of(cell: SeedAverage) -> Number | None:
        if shown.comparable.is_foreign(cell):
            return None
        rising = means[cell.dataset, cell.n_shot]
        first, end = bisect.bisect_left(rising, cell.value), bisect.bisect_right(rising, cell.value)
        value = 1 + len(rising) - end
        return Number(value, None, {"rank": value, "n_tied": end - first, "n_ranked": len(rising)})

    return Quantity(
        "rank by {metric} accuracy",
        ("rank", "n_tied", "n_ranked", "mean_rank"),
        of,
        notes=(Note("Equal accuracies share the better rank (1, 2, 2, 4)."),),
        decimals=0,
        mean_title="mean",
    )
