"""The smallest differences that studies like these would show: by data set, number of shots and number of seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from cog.errors import CogError
from cog.reporting.tables.layout import TableStyle, View
from cog.reporting.tables.pivot import Averages
from cog.reporting.tables.writers import Note, Table, TableEntry
from cog.results import uncertainty
from cog.results.labels import shots_label
from cog.results.scores import SeedAverage
from cog.results.uncertainty import Spread

#: Numbers of seeds that are looked at beside those there are.
SEEDS = (5, 10, 20)

_POINT = 1.0
_COLUMNS = (
    "dataset", "n_shot", "n_concepts", "n_images", "n_models", "n_seeds", "std_concepts", "std_seeds", "std_rest",
    "smallest_difference", *(f"smallest_difference_{n}_seeds" for n in SEEDS), "seeds_for_one_point",
)  # fmt: skip
_NOTES = (
    Note(
        "Differences in points between two models that 4 of 5 studies with so many seeds, on as many concepts, would "
        "tell at 95 %; one comparison, without correction for several. Variances are means over all pairs of the "
        "models shown."
    ),
    Note(
        "std: of the difference of two models over seeds (what one seed changes on all concepts) and over concepts. "
        "More seeds do not make up for few concepts: `never` where 1000 would not do."
    ),
)


def smallest_differences(averages: Averages, style: TableStyle) -> View:
    """Return a table for each number of shots: what could be told with these models and data.

    Raises:
        CogError: no two models with two common seeds and counts per concept on any data set.
    """
    d = style.points
    tables, records = [], []
    for n_shot in averages.n_shots:
        rows = []
        for dataset in averages.datasets:
            group = [
                average
                for average in averages.shown
                if (average.dataset, average.n_shot) == (dataset, n_shot) and len(average.concepts) > 1
            ]
            found = _spread(group)
            if found is None:
                continue
            record = _record(group, *found)
            records.append(record)
            needed = record["seeds_for_one_point"]
            texts = [str(record["n_concepts"]), str(record["n_models"]), str(record["n_seeds"])]
            texts += [
                f"{record[name]:.{d}f}" for name in ("std_seeds", "std_concepts", "smallest_difference")
            ]
            texts += [f"{record[f'smallest_difference_{n}_seeds']:.{d}f}" for n in SEEDS]
            texts.append("never" if needed is None else str(needed))
            rows.append((dataset, tuple(map(TableEntry, texts))))
        if rows:
            now = ("concepts", "models", "seeds", "std seeds", "std concepts", "now")
            columns = (*now, *(f"{n} seeds" for n in SEEDS), "seeds for 1 point")
            title = (
                f"smallest difference in top-1 accuracy that would be told (points), {shots_label(n_shot)}"
            )
            tables.append(Table(title, columns, tuple(rows), _NOTES, corner="data set"))
    if not records:
        raise CogError(
            "--power needs two models with two common seeds on a data set, and runs that record right answers per "
            "concept or have predictions that tell them (logreg.py --overwrite records them)"
        )
    return View(tuple(tables), _COLUMNS, tuple(records))


def _spread(group: Sequence[SeedAverage]) -> tuple[Spread, int] | None:
    """Return the variances of differences between averages, and the most seeds that two of them share."""
    pairs = []
    for one, other in itertools.combinations(group, 2):
        runs, baseline = (dict(zip(a.seeds, a.concepts, strict=True)) for a in (one, other))
        seeds = [seed for seed in runs if seed in baseline]
        pairs.append(([runs[seed] for seed in seeds], [baseline[seed] for seed in seeds]))
    spread = uncertainty.spread(pairs)
    return None if spread is None else (spread, max(len(runs) for runs, _ in pairs))


def _record(group: Sequence[SeedAverage], spread: Spread, n_seeds: int) -> dict[str, Any]:
    return {
        "dataset": group[0].dataset,
        "n_shot": group[0].n_shot,
        "n_concepts": spread.n_concepts,
        "n_images": spread.n_images,
        "n_models": len({(average.model, average.source) for average in group}),
        "n_seeds": n_seeds,
        "std_concepts": math.sqrt(spread.concepts),
        "std_seeds": math.sqrt(spread.seeds),
        "std_rest": math.sqrt(spread.rest),
        "smallest_difference": uncertainty.smallest_difference(spread, n_seeds),
        **{f"smallest_difference_{n}_seeds": uncertainty.smallest_difference(spread, n) for n in SEEDS},
        "seeds_for_one_point": uncertainty.seeds_needed(spread, _POINT),
    }
