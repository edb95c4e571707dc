"""Spread over repeated splits beside the spread over seeds."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from cog.results.scores import SeedAverage, dataset_key

_SPLIT = re.compile(r"(?P<dataset>.+)_split(?P<seed>[0-9]{1,9})")


@dataclass(frozen=True)
class SplitSpread:
    """The accuracies of a model on one data set under several splits.

    Attributes:
        model: name.
        dataset: data set as published.
        published: mean over seeds on the published split; NaN when it is not there.
        by_split: mean over seeds on each other split, by its seed.
        over_splits: standard deviation (n - 1) of these means.
        over_seeds: root mean square of the standard deviations (n - 1) over the seeds of each split; NaN for one seed.
    """

    model: str
    dataset: str
    published: float
    by_split: dict[int, float]
    over_splits: float
    over_seeds: float


def spreads(averages: Iterable[SeedAverage]) -> list[SplitSpread]:
    """Return the spreads of all data sets that have runs on two splits or more besides the published one."""
    published: dict[tuple[str, str], SeedAverage] = {}
    drawn: dict[tuple[str, str], dict[int, SeedAverage]] = {}
    for average in averages:
        match = _SPLIT.fullmatch(average.dataset)
        if match is None:
            published[average.model, average.dataset] = average
        else:
            drawn.setdefault((average.model, match["dataset"]), {})[int(match["seed"])] = average
    found = []
    for (model, dataset), by_seed in sorted(
        drawn.items(), key=lambda item: (item[0][0], dataset_key(item[0][1]))
    ):
        if len(by_seed) < 2:
            continue
        variances = [statistics.variance(one.by_seed) for one in by_seed.values() if len(one.by_seed) > 1]
        whole = published.get((model, dataset))
        means = {seed: by_seed[seed].value for seed in sorted(by_seed)}
        found.append(
            SplitSpread(
                model,
                dataset,
                math.nan if whole is None else whole.value,
                means,
                statistics.stdev(means.values()),
                math.sqrt(statistics.fmean(variances)) if variances else math.nan,
            )
        )
    return found
