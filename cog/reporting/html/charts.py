"""Small drawings for the page, as SVG text: they take the page's colours and need no library.

Everything drawn is a number, so nothing here can carry markup.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cog.results.search_history import SearchTrial

# Classes of validation scores, worst to best; a class of style.css each.
_N_SHADES = 5


def strip(own: float, field: Sequence[float], reference: float | None) -> str:
    """Draw published scores as ticks on a line, with the own score as a mark and the reference as a longer tick.

    Args:
        own: percent.
        field: published means, percent; at least one.
        reference: the reference model's mean, or None.
    """
    width, height, margin = 180, 22, 6
    low, high = min(*field, own), max(*field, own)

    def x(value: float) -> str:
        return f"{margin + (width - 2 * margin) * _share(value, low, high):.0f}"

    ticks = "".join(f"M{x(value)} 7v8" for value in field)
    longer = f'<path class="ref" d="M{x(reference)} 2v18"/>' if reference is not None else ""
    return (
        f'<svg class="strip" viewBox="0 0 {width} {height}" width="{width}" height="{height}" aria-hidden="true">'
        f'<path class="axis" d="M{margin} 11H{width - margin}"/><path class="tick" d="{ticks}"/>{longer}'
        f'<circle class="own" cx="{x(own)}" cy="11" r="4.5"/></svg>'
    )


class _Axes:
    """A plot area with linear axes from 0 to 1, a frame, and labels at given positions."""

    width, height = 250, 170
    left, right, top, bottom = 54, 10, 8, 34

    def x(self, share: float) -> float:
        return self.left + (self.width - self.left - self.right) * min(max(share, 0.0), 1.0)

    def y(self, share: float) -> float:
        return self.height - self.bottom - (self.height - self.top - self.bottom) * min(max(share, 0.0), 1.0)

    def draw(
        self,
        marks: str,
        *,
        label: str,
        x_label: str,
        y_label: str,
        x_ticks: Sequence[tuple[float, str]],
        y_ticks: Sequence[tuple[float, str]],
    ) -> str:
        texts = [
            *(
                f'<text x="{self.x(share):.1f}" y="{self.height - self.bottom + 13}" text-anchor="middle">{text}</text>'
                for share, text in x_ticks
            ),
            *(
                f'<text x="{self.left - 4}" y="{self.y(share) + 3.5:.1f}" text-anchor="end">{text}</text>'
                for share, text in y_ticks
            ),
            f'<text x="{self.x(0.5):.1f}" y="{self.height - 5}" text-anchor="middle">{x_label}</text>',
            f'<text transform="translate(9 {self.y(0.5):.1f}) rotate(-90)" text-anchor="middle">{y_label}</text>',
        ]
        grid = "".join(
            [
                *(f"M{self.x(s):.1f} {self.y(0):.1f}V{self.y(1):.1f}" for s, _ in x_ticks),
                *(f"M{self.x(0):.1f} {self.y(s):.1f}H{self.x(1):.1f}" for s, _ in y_ticks),
            ]
        )
        frame = (
            f'<rect class="frame" x="{self.x(0):.1f}" y="{self.y(1):.1f}" width="{self.x(1) - self.x(0):.1f}" '
            f'height="{self.y(0) - self.y(1):.1f}"/>'
        )
        return (
            f'<svg class="chart" viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}" '
            f'role="img" aria-label="{label}"><path class="grid" d="{grid}"/>{frame}{marks}{"".join(texts)}</svg>'
        )


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


def _log_share(value: float, low: float, high: float) -> float:
    value = max(value, 1e-300)
    return _share(math.log10(value), math.log10(low), math.log10(high))


def _log_ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    """Powers of ten between two ends, at most ``most``."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    step = max(1, math.ceil((last - first + 1) / most))
    return [
        (_log_share(10.0**power, low, high), f"{10.0**power:g}") for power in range(first, last + 1, step)
    ]


def _interval(values: Sequence[float], interval: object) -> tuple[float, float]:
    """The interval of the search, if it is one that holds the values; else one around them."""
    low, high = min(values), max(values)
    if isinstance(interval, list | tuple) and len(interval) == 2:
        ends = [end for end in interval if isinstance(end, int | float) and math.isfinite(end) and end > 0]
        if len(ends) == 2:
            low, high = min(low, ends[0]), max(high, ends[1])
    low = max(low, 1e-30)
    return (low, high) if high > low * 1.001 else (low / 2, low * 2)


def _range(scores: Sequence[float]) -> tuple[float, float]:
    """The scores that the shades span: the upper half and as much below; the worst trials fail completely.

    Each search has its own, because the held-out images differ between seeds.
    """
    if not scores:
        return 0.0, 0.0
    best, median = max(scores), sorted(scores)[len(scores) // 2]
    return max(min(scores), best - 2 * (best - median)), best


def _nice_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Three to six round numbers between two ends."""
    span = high - low
    if span <= 0:
        return [(0.5, f"{low:.1f}")]
    step = 10.0 ** math.floor(math.log10(span / 3))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 5)
    first = math.ceil(low / step - 1e-9)
    ticks = []
    while first * step <= high + 1e-9:
        ticks.append((_share(first * step, low, high), f"{first * step:g}"))
        first += 1
    return ticks


def search(
    searches: Sequence[tuple[Sequence[SearchTrial], float | None, float | None]], *, intervals: object
) -> str:
    """Draw the trials of several searches over learning rate and weight decay, shaded by validation accuracy.

    Args:
        searches: trials, and learning rate and weight decay of the final training, per run.
        intervals: ``(lr interval, wd interval)`` as recorded; anything else is passed over.
    """
    trials = [trial for found, _, _ in searches for trial in found]
    drawn = [trial for trial in trials if trial.wd > 0]
    if not drawn:
        return ""
    pair = intervals if isinstance(intervals, tuple) and len(intervals) == 2 else (None, None)
    lr = _interval([trial.lr for trial in drawn], pair[0])
    wd = _interval([trial.wd for trial in drawn], pair[1])
    axes = _Axes()
    shades: list[list[str]] = [[] for _ in range(_N_SHADES)]
    diverged = []
    for found, _, _ in searches:
        low, best = _range([trial.val_top1 for trial in found if not trial.diverged])
        for trial in found:
            if trial.wd <= 0:
                continue
            x, y = axes.x(_log_share(trial.lr, *lr)), axes.y(_log_share(trial.wd, *wd))
            if trial.diverged:
                diverged.append(f"M{x - 2.5:.1f} {y - 2.5:.1f}l5 5m0-5l-5 5")
            else:
                share = min(max(_share(trial.val_top1, low, best), 0.0), 1.0)
                shades[min(int(share * _N_SHADES), _N_SHADES - 1)].append(f"M{x:.0f} {y:.0f}h0")
    best = max((trial.val_top1 for trial in trials if not trial.diverged), default=0.0)
    marks = "".join(
        f'<path class="dot shade{shade}" d="{"".join(points)}"/>'
        for shade, points in enumerate(shades)
        if points
    )
    marks += f'<path class="diverged" d="{"".join(diverged)}"/>' if diverged else ""
    for _, chosen_lr, chosen_wd in searches:
        if chosen_lr and chosen_wd and chosen_lr > 0 and chosen_wd > 0:
            x, y = axes.x(_log_share(chosen_lr, *lr)), axes.y(_log_share(chosen_wd, *wd))
            marks += f'<circle class="chosen" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
    return axes.draw(
        marks,
        label=f"{len(trials)} trials over learning rate and weight decay; best validation accuracy {best:.1f} %",
        x_label="learning rate",
        y_label="weight decay",
        x_ticks=_log_ticks(*lr, most=5),
        y_ticks=_log_ticks(*wd, most=5),
    )


def lines(curves: Sequence[Sequence[float]], *, x_label: str, y_label: str) -> str:
    """Draw curves over 1, 2, 3, ... with the y axis fitted to their upper part.

    Args:
        curves: percent; empty ones are passed over.
        x_label: name of the x axis.
        y_label: name of the y axis.
    """
    curves = [curve for curve in curves if curve]
    if not curves:
        return ""
    length = max(map(len, curves))
    values = sorted(value for curve in curves for value in curve)
    high = values[-1]
    # The first epochs rise steeply and would flatten all that follows.
    low = values[len(values) // 10]
    if high - low < 1:
        low, high = (low + high) / 2 - 0.5, (low + high) / 2 + 0.5
    axes = _Axes()
    marks = ""
    for curve in curves:
        chosen = _corners(curve)
        points = " ".join(
            f"{axes.x(_share(index, 0, length - 1)):.0f},{axes.y(_share(curve[index], low, high)):.1f}"
            for index in chosen
        )
        marks += f'<polyline class="line" points="{points}"/>'
    x_ticks = [(0.0, "1"), (1.0, str(length))] if length > 1 else [(0.5, "1")]
    return axes.draw(
        marks,
        label=f"{y_label} over {length} {x_label}s, up to {high:.1f} %",
        x_label=x_label,
        y_label=y_label,
        x_ticks=x_ticks,
        y_ticks=_nice_ticks(low, high),
    )


def _corners(curve: Sequence[float]) -> list[int]:
    """Indices that carry a curve's shape: the ends, and up to 40 between that are no part of a level stretch."""
    last = len(curve) - 1
    between = [i for i in range(1, last) if not curve[i - 1] == curve[i] == curve[i + 1]]
    return [0, *between[:: max(1, len(between) // 40)], *([last] if last else [])]


def best_so_far(trials: Sequence[SearchTrial]) -> list[float]:
    """Return the best validation accuracy (percent) after each trial; 0 until one does not diverge."""
    best, curve = 0.0, []
    for trial in trials:
        best = max(best, 0.0 if trial.diverged else trial.val_top1)
        curve.append(best)
    return curve
