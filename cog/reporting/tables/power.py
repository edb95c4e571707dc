"""Tables of the smallest detectable differences by data set, number of shots and number of seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from cog.errors import CogError
from cog.reporting.tables.layout import TableStyle, View
from cog.reporting.tables.pivot import Averages
from cog.reporting.tables.writers import Note, Table, TableEntry
from cog.results import comparison, uncertainty
from cog.results.labels import shots_label
from cog.results.scores import SeedAverage

#: Numbers of seeds for which differences are computed beside the number of seeds of the runs.
SEEDS = (5, 10, 20)

_POINT = 1.0
_COLUMNS = (
    "dataset", "n_shot", "n_concepts", "n_images", "n_models", "n_seeds", "std_concepts", "std_seeds", "std_rest",
    "smallest_difference", *(f"smallest_difference_{n}_seeds" for n in SEEDS), "seeds_for_one_point",
)  # fmt: skip
_NOTES = (
    Note(
        "Differences in points between two models that about 4 of 5 studies with so many seeds, on as many concepts, "
        "would tell at 95 %; one comparison, without correction for several. Variances are means over all pairs of "
        "models with two common seeds on the same images."
    ),
    Note(
        "std: of the difference of two models over seeds (what one seed changes on all concepts) and over concepts. "
        "More seeds do not make up for few concepts: `never` where 1000 would not do."
    ),
)


def smallest_differences(averages: Averages, style: TableStyle) -> View:
    """Return a table for each number of shots: the smallest differences that these models and data would establish.

    Raises:
        CogError: when no two models have two common seeds and counts per concept on any data set.
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
            for same in _on_the_same_images(group):
                record = _record(same)
                if record is None:
                    continue
                records.append(record)
                needed = record["seeds_for_one_point"]
                texts = [str(record[name]) for name in ("n_concepts", "n_models", "n_seeds")]
                numbers = ("std_seeds", "std_concepts", "smallest_difference")
                texts += [f"{record[name]:.{d}f}" for name in numbers]
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


def _on_the_same_images(group: Iterable[SeedAverage]) -> list[list[SeedAverage]]:
    """Return averages on one data set in groups that share their images."""
    groups: list[list[SeedAverage]] = []
    for average in group:
        for known in groups:
            if uncertainty.same_images([known[0].concepts[0], *average.concepts]):
                known.append(average)
                break
        else:
            groups.append([average])
    return groups


def _record(group: Sequence[SeedAverage]) -> dict[str, Any] | None:
    """Return the record of averages on the same images; None when no two of them share two seeds."""
    pairs, models, n_seeds = [], set(), 0
    for first, second in itertools.combinations(group, 2):
        runs, baseline = comparison.with_common_seeds(first, second)
        if len(runs) > 1:
            pairs.append((runs, baseline))
            models |= {(first.model, first.source), (second.model, second.source)}
            n_seeds = max(n_seeds, len(runs))
    if not pairs:
        return None
    spread = uncertainty.spread(pairs)
    return {
        "dataset": group[0].dataset,
        "n_shot": group[0].n_shot,
        "n_concepts": spread.n_concepts,
        "n_images": spread.n_images,
        "n_models": len(models),
        "n_seeds": n_seeds,
        "std_concepts": math.sqrt(spread.concepts),
        "std_seeds": math.sqrt(spread.seeds),
        "std_rest": math.sqrt(spread.rest),
        "smallest_difference": uncertainty.smallest_difference(spread, n_seeds),
        **{f"smallest_difference_{n}_seeds": uncertainty.smallest_difference(spread, n) for n in SEEDS},
        "seeds_for_one_point": uncertainty.seeds_needed(spread, _POINT),
    }
