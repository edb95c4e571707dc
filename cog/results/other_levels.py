"""Accuracies on levels built with other similarities, compared with published levels and random draws (Fig. 7)."""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from cog.results.scores import SeedAverage, natural_key

#: The kind of levels that are random draws; only the mean over the draws is used.
RANDOM = "random"

#: Labels of kinds of levels.
LABELS = {
    "cog": "published (Lin)",
    "lin": "Lin",
    "wup": "Wu-Palmer",
    "jcn": "Jiang-Conrath",
    "embedding": "word vectors",
}

_LEVEL = re.compile(r"(?P<kind>[A-Za-z][\w+.-]*?)(?P<draw>[0-9]*)_l(?P<level>[0-9]{1,3})")


@dataclass(frozen=True)
class LevelKind:
    """The accuracies of a model on one kind of levels."""

    kind: str  # cog (published), wup, random, ...
    label: str  # name in words
    #: By the number of the level; for random draws a single average, under 1, with the deviation over draws.
    by_level: dict[int, SeedAverage]
    draws: int = 0  # number of random draws


def dataset_of(kind: str, level: int) -> str:
    """Return the name of the data set of a level."""
    return f"{kind}_l{level}"


def kinds(averages: Iterable[SeedAverage]) -> list[LevelKind]:
    """Return the kinds of levels among averages of one metric of one model: published, others, random draws.

    The deviation of random draws is the sample standard deviation (n - 1) of their means over seeds.
    """
    by_kind: dict[str, dict[int, SeedAverage]] = {}
    draws: list[SeedAverage] = []
    for average in averages:
        match = _LEVEL.fullmatch(average.dataset)
        if match is None:
            continue
        if match["kind"] == RANDOM:
            draws.append(average)
        else:
            by_kind.setdefault(match["kind"] + match["draw"], {})[int(match["level"])] = average
    order = sorted(by_kind, key=lambda kind: (kind != "cog", natural_key(kind)))
    made = [LevelKind(kind, LABELS.get(kind, kind), dict(sorted(by_kind[kind].items()))) for kind in order]
    if draws:
        values = [draw.value for draw in draws]
        mean = dataclasses.replace(
            draws[0],
            dataset=dataset_of(RANDOM, 1),
            value=statistics.fmean(values),
            std=statistics.stdev(values) if len(values) > 1 else None,
            seeds=(), by_seed=(), missing_seeds=(), epochs=(),
        )  # fmt: skip
        made.append(LevelKind(RANDOM, f"{len(draws)} random draws", {1: mean}, len(draws)))
    return made


def mean_interval(kind: LevelKind) -> tuple[float, float] | None:
    """Return Student's t interval (95 %) of the mean over random draws; None for one draw and for other kinds."""
    if kind.draws < 2:
        return None
    from scipy import stats

    (mean,) = kind.by_level.values()
    assert mean.std is not None
    half = float(stats.t.ppf(0.975, kind.draws - 1)) * mean.std / kind.draws**0.5
    return mean.value - half, mean.value + half
