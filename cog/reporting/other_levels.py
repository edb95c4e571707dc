"""Accuracies on levels by other similarities and on random draws, beside the published levels (paper, Fig. 7)."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cog.runtime import files

_LEVEL = re.compile(r"(?P<kind>[A-Za-z][\w+.-]*?)(?P<draw>[0-9]*)_l(?P<level>[0-9]{1,3})")
_LABELS = {"cog": "published (Lin)", "wup": "Wu-Palmer", "jcn": "Jiang-Conrath", "embedding": "word vectors"}


@dataclass(frozen=True)
class LevelKind:
    """Accuracies on one kind of levels.

    Attributes:
        label: name in words.
        by_level: top-1 accuracy in percent by level; of random draws, their mean, for every level.
        half_width: half of the 95 % interval (Student's t) of the mean over random draws; 0 for other kinds.
    """

    label: str
    by_level: dict[int, float]
    half_width: float = 0.0


def by_kind(means: Mapping[str, float]) -> list[LevelKind]:
    """Return the kinds of levels among accuracies by data set: published, others, random draws."""
    kinds: dict[str, dict[int, float]] = {}
    draws: list[float] = []
    for dataset, value in sorted(means.items()):
        match = _LEVEL.fullmatch(dataset)
        if match is not None and match["kind"] == "random":
            draws.append(value)
        elif match is not None:
            kinds.setdefault(match["kind"] + match["draw"], {})[int(match["level"])] = value
    order = sorted(kinds, key=lambda kind: (kind != "cog", kind))
    made = [LevelKind(_LABELS.get(kind, kind), kinds[kind]) for kind in order]
    if draws:
        half_width = 0.0
        if len(draws) > 1:
            from scipy import stats

            error = statistics.stdev(draws) / len(draws) ** 0.5
            half_width = float(stats.t.ppf(0.975, len(draws) - 1)) * error
        levels = sorted({level for kind in kinds.values() for level in kind} or {1})
        label = f"{len(draws)} random draws"
        made.append(LevelKind(label, dict.fromkeys(levels, statistics.fmean(draws)), half_width))
    return made


def table(kinds: Sequence[LevelKind], in1k: float | None) -> str:
    """Return accuracies as text, a row for each kind of levels."""
    levels = sorted({level for kind in kinds for level in kind.by_level})
    lines = [f"{'':<18}{'IN-1K':>7}" + "".join(f"{f'L{level}':>7}" for level in levels)]
    for kind in kinds:
        cells = [in1k, *map(kind.by_level.get, levels)]
        numbers = "".join(f"{'-' if cell is None else f'{cell:.1f}':>7}" for cell in cells)
        lines.append(f"{kind.label:<18}{numbers}" + (f"  ± {kind.half_width:.2f}" if kind.half_width else ""))
    return "\n".join([*lines, "±: 95 % interval of the mean over random draws, each a level of its own"])


def draw(path: Path, kinds: Sequence[LevelKind], in1k: float | None) -> None:
    """Draw accuracies by level, a line for each kind of levels, with a band for the interval over random draws."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 3.6), layout="constrained")
    axes = figure.add_subplot()
    last = max(level for kind in kinds for level in kind.by_level)
    for kind in kinds:
        points = {0: in1k, **kind.by_level} if in1k is not None and not kind.half_width else kind.by_level
        (line,) = axes.plot(list(points), list(points.values()), marker="o", markersize=3, label=kind.label)
        low, high = ([v + s * kind.half_width for v in kind.by_level.values()] for s in (-1, 1))
        axes.fill_between(list(kind.by_level), low, high, color=line.get_color(), alpha=0.2, lw=0)
    axes.set_xticks(range(last + 1), ["IN-1K", *(f"L{level}" for level in range(1, last + 1))])
    axes.set_ylabel("top-1 (%)")
    axes.legend(fontsize=8)
    with files.atomic_write(path) as handle:
        figure.savefig(handle, format="png", dpi=150, metadata={"Software": None})
