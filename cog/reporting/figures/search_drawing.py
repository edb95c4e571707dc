"""Drawing of search diagnostics with matplotlib: a page of five panels, and a strip of three for the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cog.reporting.figures.style as style
from cog.reporting.figures.drawing import INK, LABEL, PAGE, TICK, fill, finish, new_figure
from cog.results.search_history import SearchRecord, Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_GRAY, _RED = "#888888", "#c0392b"

_UPPER, _LOWER, _STRIP = 2.6, 1.9, 1.5

# Range of the colors in points below the best: most good trials lie within a few points; lower ones share one color.
_COLOR_RANGE = 10.0

# Least range of an axis of the plane in decades, so that close pairs look close.
_DECADES = 2.0

_EPOCH = "epoch of the final training"

_DASHES = {"training": (2.4, 1.2), "interval": (4.0, 2.0)}

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def draw(title: str, searches: Sequence[SearchRecord]) -> Figure:
    """Return the figure of a page; call inside :func:`cog.reporting.figures.saving.drawing`."""
    figure = new_figure(PAGE)
    places = figure.add_gridspec(2, 6, height_ratios=[_UPPER, _LOWER])
    figure.suptitle(title, x=0.012, ha="left", fontsize=LABEL + 1, fontweight="bold", color=INK)
    _draw_plane(figure.add_subplot(places[0, :3]), searches)
    _draw_best(figure.add_subplot(places[0, 3:]), searches)
    for place, name, y_label, keys in (
        (places[1, :2], "(c) Loss", "cross-entropy", ("train/loss", "test/loss")),
        (places[1, 2:4], "(d) Top-1 accuracy (%)", "", ("train/top1", "test/top1")),
        (places[1, 4:], "(e) Learning rate", "", ("lr",)),
    ):
        axes = figure.add_subplot(place)
        _name(axes, name, _EPOCH, y_label)
        _draw_curves(axes, searches, keys)
    finish(figure, _UPPER + _LOWER, {"": _legend(searches)}, _notes(searches))
    return figure


def draw_strip(searches: Sequence[SearchRecord]) -> Figure:
    """Return a small figure for the report: trials, best so far and test accuracy side by side, without a legend."""
    from matplotlib.figure import Figure

    # A report has dozens of these figures: the layout is fixed, because their labels are alike, and ticks are few.
    figure = Figure(figsize=(PAGE, _STRIP))
    figure.subplots_adjust(left=0.075, right=0.995, top=0.9, bottom=0.2, wspace=0.16)
    panels = figure.subplots(1, 3)
    _draw_plane(panels[0], searches, small=True)
    _draw_best(panels[1], searches, small=True)
    _name(panels[2], "(c) Test top-1 (%)", _EPOCH)
    _draw_curves(panels[2], searches, ("test/top1",), most=40)
    for axes in panels:
        axes.tick_params(length=0)
        # Fixed positions spare matplotlib the measurement of the tick labels.
        axes.xaxis.set_label_coords(0.5, -0.13)
        axes.yaxis.set_label_coords(-0.2, 0.5)
    for axes in panels[1:]:
        axes.locator_params(nbins=4)
    return figure


def _name(axes: Axes, title: str, x_label: str, y_label: str = "") -> None:
    axes.set_title(title, fontsize=LABEL, loc="left", y=1.0, pad=3.0, color=INK)
    axes.set_xlabel(x_label, fontsize=LABEL, labelpad=1.5, color=INK)
    axes.set_ylabel(y_label, fontsize=LABEL, labelpad=1.5, color=INK)
    axes.tick_params(labelsize=TICK)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_plane(axes: Axes, searches: Sequence[SearchRecord], *, small: bool = False) -> None:
    """Draw trials over log10 of both hyper-parameters; in a small panel all seeds have the same style."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    _name(axes, f"(a) Trials and chosen pair{'s' if small else ''}", "learning rate", "weight decay")
    scored = [t for s in searches for t in s.trials if not (t.diverged or t.pruned or math.isnan(t.val_top1))]
    low, top = (end((t.val_top1 for t in scored), default=0.0) for end in (min, max))
    floor = max(low, top - _COLOR_RANGE)
    norm = Normalize(floor, top if top > floor else floor + 1)
    # Better trials are darker, which is readable in gray. The steps are few, because more would be drawn as a bitmap.
    cmap = colormaps["viridis_r"].resampled(6 if small else 24)
    cross: dict[str, Any] = {"marker": "x", "s": 14, "linewidths": 0.9, "color": _RED, "zorder": 2.5}
    dash: dict[str, Any] = {"marker": "_", "s": 16, "linewidths": 0.9, "color": _GRAY, "zorder": 2.5}
    if not small:
        for attribute, line in (("lr_interval", axes.axvline), ("wd_interval", axes.axhline)):
            for end in sorted({end for s in searches if s.trials for end in getattr(s, attribute) or ()}):
                line(math.log10(end), color=_GRAY, linewidth=0.8, dashes=_DASHES["interval"], zorder=1)
    for position, group in enumerate([searches] if small else [[search] for search in searches]):
        seed = "" if small else f".{group[0].seed}"
        look = style.own_style(position)
        trials = [t for search in group for t in search.trials]
        # The best trials are drawn last, on top of the others.
        good = sorted((t for t in trials if t in scored), key=lambda t: t.val_top1)
        fills: dict[str, Any] = {"cmap": cmap, "norm": norm, "zorder": 3}
        if small:
            fills |= {"s": 13, "linewidths": 0}
            ring: dict[str, Any] = {"edgecolors": INK, "linewidths": 1.0, "s": 60}
        else:
            fills |= {"s": 15, "linewidths": 0.3, "edgecolors": "#333333", "marker": look.marker}
            ring = {"edgecolors": look.color, "linewidths": 1.3, "s": 70}
        _scatter(axes, good, f"trials{seed}", colors=True, **fills)
        _scatter(axes, [t for t in trials if t.diverged], f"diverged{seed}", **cross)
        _scatter(axes, [t for t in trials if t.pruned and not t.diverged], f"pruned{seed}", **dash)
        _scatter(axes, group, f"chosen{seed}", facecolors="none", zorder=4, **ring)
    _log_axis(axes.xaxis, searches, "lr")
    _log_axis(axes.yaxis, searches, "wd")
    if scored and not small:
        bar = axes.get_figure().colorbar(  # type: ignore[union-attr]
            ScalarMappable(norm, cmap), ax=axes, extend="min" if low < floor else "neither", pad=0.02
        )
        if bar.solids is not None:
            bar.solids.set_edgecolor("face")  # else there are white seams between the steps
        bar.set_label("validation top-1 (%)", fontsize=TICK, labelpad=2, color=INK)
        bar.ax.tick_params(labelsize=TICK - 0.4)
        bar.outline.set_linewidth(0.4)  # type: ignore[operator]
    if not axes.collections and not small:
        _write_instead(axes, _why_no_trials(searches))


def _scatter(
    axes: Axes, pairs: Sequence[Trial | SearchRecord], gid: str, *, colors: bool = False, **look: Any
) -> None:
    """Draw the pairs of positive values; others have no place on logarithmic axes."""
    placed = [pair for pair in pairs if pair.lr > 0 and pair.wd > 0]
    if placed:
        x, y = ([math.log10(getattr(pair, name)) for pair in placed] for name in ("lr", "wd"))
        if colors:
            look["c"] = [pair.val_top1 for pair in placed if isinstance(pair, Trial)]
        # All points are inside the axes, and clipping would make each three times as long in SVG.
        axes.scatter(x, y, gid=gid, clip_on=False, **look)


def _log_axis(axis: Any, searches: Sequence[SearchRecord], name: str) -> None:
    """Set the range of a log10 axis to all values and the interval, with powers of ten as labels."""
    used = [end for s in searches if s.trials for end in getattr(s, f"{name}_interval") or ()]
    used += [getattr(pair, name) for s in searches for pair in (s, *s.trials)]
    logs = [math.log10(value) for value in used if value > 0]
    low, high = (min(logs), max(logs)) if logs else (-1.0, 1.0)
    air = max(0.05 * (high - low), (_DECADES - (high - low)) / 2)
    decades = range(math.ceil(low - air), math.floor(high + air) + 1)
    step = max(1, -(-len(decades) // (7 if len(decades) < 60 else 3)))
    shown = [exponent for exponent in decades if exponent % step == 0]
    axis.set_ticks(shown, [_power(exponent) for exponent in shown])
    axis.set_view_interval(low - air, high + air, ignore=True)


def _power(exponent: int) -> str:
    """Return ten to ``exponent`` as text: ``0.01`` to ``1000`` as a number, others as a power of ten."""
    return f"{10.0**exponent:g}" if -2 <= exponent <= 3 else "10" + str(exponent).translate(_SUPERSCRIPTS)


def _short(value: float) -> str:
    """Return a number with three digits: ``12.3``, ``4.56·10⁻⁸``; ``unknown`` for NaN."""
    if math.isnan(value):
        return "unknown"
    mantissa, _, exponent = f"{value:.3g}".partition("e")
    return f"{mantissa}·10{str(int(exponent)).translate(_SUPERSCRIPTS)}" if exponent else mantissa


def _draw_best(axes: Axes, searches: Sequence[SearchRecord], *, small: bool = False) -> None:
    """Draw the best score after each trial; unless small, also the scores of the trials."""
    title = "Best validation top-1 so far (%)" if small else "Validation top-1 of trials, best so far (%)"
    _name(axes, f"(b) {title}", "trial")
    reached = []
    for position, search in enumerate(searches):
        look, best = style.own_style(position), search.best_so_far()
        if not any(map(math.isfinite, best)):
            continue
        reached += [value for value in best if math.isfinite(value)]
        steps = list(zip([trial.number + 1 for trial in search.trials], best, search.trials, strict=True))
        if not small:
            scored = [(n, t.val_top1) for n, _, t in steps if not t.diverged]
            axes.plot(
                *zip(*scored, strict=True), linestyle="none", marker=look.marker, markersize=2.6,
                markerfacecolor="white", markeredgecolor=look.color, markeredgewidth=0.6,
                gid=f"scores.{search.seed}",
            )  # fmt: skip
        else:  # without the points between steps, the same line takes a third of the SVG text
            ends = (0, len(best) - 1)
            steps = [step for i, step in enumerate(steps) if i in ends or best[i] != best[i - 1]]
        axes.plot(
            [n for n, _, _ in steps], [value for _, value, _ in steps], color=look.color, linewidth=1.2,
            drawstyle="steps-post", gid=f"best.{search.seed}", zorder=1.9,
        )  # fmt: skip
    _finish_lines(axes, "" if reached else _why_no_trials(searches))
    if reached:
        # The first trials are often far below the best, and only differences near the best matter.
        low, high = max(min(reached), max(reached) - 2 * _COLOR_RANGE), max(reached)
        air = max(0.06 * (high - low), 0.2)
        axes.set_ylim(low - air, high + air)


def _draw_curves(
    axes: Axes, searches: Sequence[SearchRecord], keys: Sequence[str], most: int = 10_000
) -> None:
    """Draw curves of the final training by epoch, at most ``most`` points each; those of training are dashed."""
    for position, search in enumerate(searches):
        for key in keys:
            values = search.curves.get(key, ())
            # The first and the last point are always among the selected ones.
            steps = min(len(values), most) - 1
            epochs = [round(index * (len(values) - 1) / max(1, steps)) for index in range(steps + 1)]
            if not epochs:
                continue
            axes.plot(
                [epoch + 1 for epoch in epochs], [values[epoch] for epoch in epochs],
                color=style.own_style(position).color,
                linestyle=(0, _DASHES["training"]) if key.startswith("train") else "-",
                linewidth=0.9, marker="o" if len(values) == 1 else None, markersize=3,
                gid=f"{key.replace('/', '-')}.{search.seed}",
            )  # fmt: skip
    _finish_lines(axes, "" if axes.lines else "not recorded")


def _finish_lines(axes: Axes, problem: str) -> None:
    """Set whole numbers as ticks of trials or epochs; write ``problem`` instead if there are no lines."""
    from matplotlib.ticker import MaxNLocator

    axes.grid(axis="y", color="#e4e4e4", linewidth=0.5)
    axes.set_axisbelow(True)
    if problem:
        _write_instead(axes, problem)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    low, high = axes.get_xlim()
    if high - low < 1:
        axes.set_xlim(0.4, 1.6)  # one epoch or trial


def _write_instead(axes: Axes, text: str) -> None:
    axes.text(
        0.5, 0.5, fill(text, 1.6), transform=axes.transAxes, ha="center", va="center", fontsize=TICK, color="#555555"
    )  # fmt: skip


def _why_no_trials(searches: Sequence[SearchRecord]) -> str:
    return next((text for s in searches for text in s.missing if text.startswith("no trials")), "no trials")


def _legend(searches: Sequence[SearchRecord]) -> list[Line2D]:
    from matplotlib.lines import Line2D

    trials = [trial for search in searches for trial in search.trials]
    intervals = any(search.trials and (search.lr_interval or search.wd_interval) for search in searches)
    entries: list[tuple[Any, str, dict[str, Any]]] = []
    for position, search in enumerate(searches):
        look = style.own_style(position)
        pair = f"seed {search.seed} (lr {_short(search.lr)}, wd {_short(search.wd)})"
        mark = {"marker": look.marker, "markersize": 3.6, "markerfacecolor": "white"}
        entries.append((True, pair, {"color": look.color, "linestyle": "-", "linewidth": 1.2, **mark}))
    thin = {"linestyle": "-", "linewidth": 0.9}
    ring = {"marker": "o", "markersize": 7.5, "markerfacecolor": "none", "markeredgewidth": 1.3}
    entries += [
        (True, "chosen", ring),
        (any(t.diverged for t in trials), "diverged", {"marker": "x", "markersize": 4, "color": _RED}),
        (any(t.pruned for t in trials), "stopped early", {"marker": "_", "markersize": 5, "color": _GRAY}),
        (intervals, "end of the interval", {**thin, "color": _GRAY, "dashes": _DASHES["interval"]}),
        (True, "training", {**thin, "dashes": _DASHES["training"]}),
        (True, "test", thin),
    ]
    plain = {"color": INK, "linestyle": "none"}
    return [Line2D([], [], label=label, **plain | look) for shown, label, look in entries if shown]


def _notes(searches: Sequence[SearchRecord]) -> list[str]:
    """Return notes on missing parts and values without a place on the axes, with the seeds concerned."""
    seeds: dict[str, list[int]] = {}
    for search in searches:
        for text in search.missing:
            seeds.setdefault(text, []).append(search.seed)
        pairs: list[SearchRecord | Trial] = [search, *search.trials]
        if any(pair.lr == 0 or pair.wd == 0 for pair in pairs):
            text = "a value of 0 has no place on a logarithmic axis: see the CSV file"
            seeds.setdefault(text, []).append(search.seed)
    return [f"Seed {', '.join(map(str, numbers))}: {text}." for text, numbers in seeds.items()]
