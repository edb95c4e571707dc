"""Tables of models on other data than the published: repeated splits, levels by other similarities."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from cog.reporting.tables.writers import Note, Table, TableEntry
from cog.results.other_levels import LevelKind, mean_interval
from cog.results.split_spread import SplitSpread


def of_splits(spreads: Sequence[SplitSpread]) -> Table:
    """Return the means over splits with the deviations over splits and over seeds, by data set."""

    def entry(value: float) -> TableEntry | None:
        return None if math.isnan(value) else TableEntry(f"{value:.2f}")

    rows = [
        (
            f"{spread.model}, {spread.dataset}",
            (
                entry(spread.published),
                TableEntry(str(len(spread.by_split))),
                entry(statistics.fmean(spread.by_split.values())),
                entry(spread.over_splits),
                entry(spread.over_seeds),
            ),
        )
        for spread in spreads
    ]
    return Table(
        "top-1 (%) on repeated splits",
        ("published", "splits", "mean", "std over splits", "std over seeds"),
        tuple(rows),
        (Note("Standard deviations over splits (of means over seeds) and over seeds (within a split)."),),
        corner="model, data set",
    )


def of_other_levels(model: str, kinds: Sequence[LevelKind], in1k: float | None) -> Table:
    """Return a table of the means over seeds of a model: a row for each kind of levels, a column for each level.

    Args:
        model: name.
        kinds: published levels, other levels, random draws (a single mean, which stands for every level).
        in1k: mean of the model on IN-1K in percent, or None.
    """
    n_levels = max(max(kind.by_level) for kind in kinds)
    rows, notes = [], []
    for kind in kinds:
        averages = [kind.by_level.get(1 if kind.draws else level) for level in range(1, n_levels + 1)]
        values = [in1k, *(None if average is None else average.value for average in averages)]
        rows.append((kind.label, tuple(None if v is None else TableEntry(f"{v:.1f}") for v in values)))
        interval = mean_interval(kind)
        if interval is not None:
            notes.append(
                Note(
                    f"Random draws: mean with 95 % interval [{interval[0]:.1f}, {interval[1]:.1f}], standard deviation "
                    f"over draws {kind.by_level[1].std:.2f}."
                )
            )
    return Table(
        f"{model}: top-1 (%), mean over seeds",
        ("IN-1K", *(f"L{level}" for level in range(1, n_levels + 1))),
        tuple(rows),
        tuple(notes),
        corner="levels",
    )
