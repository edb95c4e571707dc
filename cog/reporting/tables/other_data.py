"""Tables of models on other data than the published: repeated splits, levels by other similarities."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Sequence

from cog import paths
from cog.reporting.tables.writers import Note, Table, TableEntry
from cog.results.other_levels import LevelKind, mean_interval
from cog.results.scores import SeedAverage, dataset_key


def of_splits(averages: Iterable[SeedAverage], datasets: Collection[str]) -> Table:
    """Return the accuracies of repeated splits beside that of the published one, by model and data set.

    Args:
        averages: accuracies on data sets and their splits.
        datasets: those to show; without two splits or more beside the published one, a data set has no row.
    """
    published: dict[tuple[str, str], float] = {}
    drawn: dict[tuple[str, str], list[SeedAverage]] = {}
    for average in averages:
        resplit = paths.parse_resplit_name(average.dataset)
        if resplit is None:
            published[average.model, average.dataset] = average.value
        elif resplit[0] in datasets:
            drawn.setdefault((average.model, resplit[0]), []).append(average)
    rows = []
    for (model, dataset), splits in sorted(
        drawn.items(), key=lambda item: (item[0][0], dataset_key(item[0][1]))
    ):
        if len(splits) < 2:
            continue
        means = [split.value for split in splits]
        variances = [statistics.variance(split.by_seed) for split in splits if len(split.by_seed) > 1]
        spread = (
            statistics.fmean(means),
            statistics.stdev(means),
            math.sqrt(statistics.fmean(variances)) if variances else None,
        )
        before, *after = (
            None if value is None else TableEntry(f"{value:.2f}")
            for value in (published.get((model, dataset)), *spread)
        )
        rows.append((f"{model}, {dataset}", (before, TableEntry(str(len(splits))), *after)))
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
