"""Search diagnostics drawn with matplotlib: a page as a file, and a strip of three panels for the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cog.reporting.figures.style as style
from cog.reporting.figures.drawing import INK, LABEL, PAGE, TICK, add_notes, fill, new_figure, settle
from cog.results.search_history import SearchRecord, SearchTrial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GREY = "#888888"

# A trial that diverged.
_CROSS: dict[str, Any] = {"marker": "x", "s": 14, "linewidths": 0.9, "color": "#c0392b", "zorder": 2.5}

_UPPER, _LOWER, _STRIP = 2.05, 1.45, 1.5

# Most good trials lie within a few points of the best; lower ones share one colour.
_COLOUR_RANGE = 10.0

# The least that an axis of the plane shows: close pairs look close.
_DECADES = 2.0

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def draw(title: str, searches: Sequence[SearchRecord]) -> Figure:
    """Return the page of a file; call inside :func:`cog.reporting.figures.saving.drawing`."""
    figure = new_figure(PAGE, _UPPER + _LOWER)
    places = figure.add_gridspec(2, 6, height_ratios=[_UPPER, _LOWER])
    figure.suptitle(title, x=0.012, ha="left", fontsize=LABEL + 1, fontweight="bold", color=INK)
    _draw_plane(figure.add_subplot(places[0, :3]), searches)
    _draw_best(figure.add_subplot(places[0, 3:]), searches)
    for place, title, y_label, keys in (
        (places[1, :2], "(c) Loss", "cross-entropy", ("train/loss", "test/loss")),
        (places[1, 2:4], "(d) Top-1 accuracy (%)", "", ("train/top1", "test/top1")),
        (places[1, 4:], "(e) Learning rate", "", ("lr",)),
    ):
        _draw_curves(figure.add_subplot(place), searches, title, y_label, keys)
    feet = add_notes(figure, _notes(searches))
    settle(figure, feet + _add_legend(figure, searches, feet), (_UPPER + _LOWER) / _LOWER, _LOWER)
    return figure


def draw_strip(searches: Sequence[SearchRecord]) -> Figure:
    """Return trials, best so far and test accuracy side by side, small and without a legend, for the report."""
    from matplotlib.figure import Figure

    # A report has dozens of these: their labels are alike, so the layout is fixed, and there are few ticks.
    figure = Figure(figsize=(PAGE, _STRIP))
    figure.subplots_adjust(left=0.075, right=0.995, top=0.9, bottom=0.2, wspace=0.16)
    panels = figure.subplots(1, 3)
    _draw_small_plane(panels[0], searches)
    _draw_best(panels[1], searches, dots=False)
    _draw_curves(panels[2], searches, "(c) Test top-1 (%)", "", ("test/top1",), most=40)
    for axes in panels:
        axes.tick_params(length=0)
        # Fixed, so that they are not measured.
        axes.xaxis.set_label_coords(0.5, -0.13)
        axes.yaxis.set_label_coords(-0.2, 0.5)
    for axes in panels[1:]:
        axes.locator_params(nbins=4)
    return figure


def _seed_style(position: int) -> tuple[str, str, Any]:
    """Colour, marker and dashes of the ``position``-th seed: the seeds of a page are equals, so none stands out."""
    own = style.own_style(position)
    return own.colour, own.marker, "-" if own.dashes is None else (0, own.dashes)


def _finish(axes: Axes, title: str, x_label: str, y_label: str) -> None:
    axes.set_title(title, fontsize=LABEL, loc="left", y=1.0, pad=3.0, color=INK)
    axes.set_xlabel(x_label, fontsize=LABEL, labelpad=1.5, color=INK)
    axes.set_ylabel(y_label, fontsize=LABEL, labelpad=1.5, color=INK)
    axes.tick_params(labelsize=TICK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _say(axes: Axes, text: str) -> None:
    axes.text(
        0.5, 0.5, fill(text, 1.6), transform=axes.transAxes, ha="center", va="center", fontsize=TICK, color="#555555"
    )  # fmt: skip


# ---- (a) ---------------------------------------------------------------------------------------------
def _draw_plane(axes: Axes, searches: Sequence[SearchRecord]) -> None:
    """Draw trials over log10 of both hyper-parameters."""
    from matplotlib.colors import Normalize

    top1 = [t.val_top1 for s in searches for t in s.trials if _is_scored(t)]
    top, low = max(top1, default=0.0), min(top1, default=0.0)
    floor = max(low, top - _COLOUR_RANGE)
    norm = Normalize(floor, top if top > floor else floor + 1)
    _interval_lines(axes, searches)
    for position, search in enumerate(searches):
        colour, marker, _ = _seed_style(position)
        # The best are on top.
        scored = sorted(filter(_is_scored, search.trials), key=lambda t: t.val_top1)
        scored = [t for t in scored if t.lr > 0 and t.wd > 0]
        _scatter(
            axes, scored, f"trials.{search.seed}", c=[t.val_top1 for t in scored], cmap=_colours(), norm=norm,
            marker=marker, s=15, linewidths=0.3, edgecolors="#333333", zorder=3,
        )  # fmt: skip
        diverged = [t for t in search.trials if t.diverged]
        _scatter(axes, diverged, f"diverged.{search.seed}", **_CROSS)
        pruned = [t for t in search.trials if t.pruned and not t.diverged]
        _scatter(
            axes, pruned, f"pruned.{search.seed}", marker="_", s=16, linewidths=0.9, color=_GREY, zorder=2.5
        )
        ring: dict[str, Any] = {"facecolors": "none", "edgecolors": colour, "linewidths": 1.3}
        _scatter(axes, [search], f"chosen.{search.seed}", s=70, zorder=4, **ring)
    _log_limits(axes, searches)
    _finish(axes, "(a) Trials and chosen pair", "learning rate", "weight decay")
    if top1:
        _draw_colour_bar(axes, norm, clipped=low < floor)
    if not axes.collections:
        _say(axes, _why_no_trials(searches))


def _draw_small_plane(axes: Axes, searches: Sequence[SearchRecord]) -> None:
    """Draw the same for all seeds together; the better a trial, the more it stands out from the paper."""
    from matplotlib import colormaps

    trials = [t for s in searches for t in s.trials if t.lr > 0 and t.wd > 0]
    scored = sorted((t for t in trials if not t.diverged), key=lambda t: t.val_top1)
    top1 = [t.val_top1 for t in scored]
    # All points are inside: a clipped one takes three times as much text.
    if top1:
        _scatter(
            axes, scored, "trials", c=top1, cmap=colormaps["viridis_r"].resampled(6), vmax=top1[-1],
            vmin=max(top1[0], top1[-1] - _COLOUR_RANGE), s=13, linewidths=0, clip_on=False, zorder=3,
        )  # fmt: skip
    _scatter(axes, [t for t in trials if t.diverged], "diverged", clip_on=False, **_CROSS)
    ring: dict[str, Any] = {"facecolors": "none", "edgecolors": INK, "linewidths": 1.0}
    _scatter(axes, searches, "chosen", s=60, zorder=4, clip_on=False, **ring)
    _log_limits(axes, searches)
    _finish(axes, "(a) Trials and chosen pairs", "learning rate", "weight decay")


def _is_scored(trial: SearchTrial) -> bool:
    return not (trial.diverged or trial.pruned or math.isnan(trial.val_top1))


def _scatter(axes: Axes, pairs: Sequence[SearchTrial | SearchRecord], gid: str, **look: Any) -> None:
    """Draw the pairs that have a place on logarithmic axes, if there are any."""
    placed = [(math.log10(pair.lr), math.log10(pair.wd)) for pair in pairs if pair.lr > 0 and pair.wd > 0]
    if placed:
        axes.scatter([x for x, _ in placed], [y for _, y in placed], gid=gid, **look)


def _colours() -> Any:
    """From dark to light, so that it reads in grey; in few steps, because more would be drawn as a bitmap."""
    from matplotlib import colormaps

    return colormaps["viridis"].resampled(24)


def _draw_colour_bar(axes: Axes, norm: Any, *, clipped: bool) -> None:
    from matplotlib.cm import ScalarMappable

    bar = axes.get_figure().colorbar(  # type: ignore[union-attr]
        ScalarMappable(norm=norm, cmap=_colours()), ax=axes, extend="min" if clipped else "neither", pad=0.02
    )
    if bar.solids is not None:
        bar.solids.set_edgecolor("face")  # else white seams show between the steps
    bar.set_label("validation top-1 (%)", fontsize=TICK, labelpad=2, color=INK)
    bar.ax.tick_params(labelsize=TICK - 0.4)
    bar.outline.set_linewidth(0.4)  # type: ignore[operator]


def _interval_lines(axes: Axes, searches: Sequence[SearchRecord]) -> None:
    for attribute, line in (("lr_interval", axes.axvline), ("wd_interval", axes.axhline)):
        ends = {end for s in searches if s.trials for end in (getattr(s, attribute) or ())}
        for end in sorted(ends):
            line(math.log10(end), color=_GREY, linewidth=0.8, dashes=(4, 2), zorder=1)


def _log_limits(axes: Axes, searches: Sequence[SearchRecord]) -> None:
    for name, values, limit, ticks in (
        ("lr", [s.lr_interval for s in searches if s.trials], axes.set_xlim, axes.set_xticks),
        ("wd", [s.wd_interval for s in searches if s.trials], axes.set_ylim, axes.set_yticks),
    ):
        used = [end for ends in values for end in (ends or ())]
        used += [getattr(t, name) for s in searches for t in s.trials]
        used += [getattr(s, name) for s in searches]
        logs = _log([value for value in used if value > 0])
        low, high = (min(logs), max(logs)) if logs else (-1.0, 1.0)
        air = max(0.05 * (high - low), (_DECADES - (high - low)) / 2)
        limit(low - air, high + air)
        decades = range(math.ceil(low - air), math.floor(high + air) + 1)
        step = max(1, -(-len(decades) // (7 if len(decades) < 60 else 3)))
        shown = [exponent for exponent in decades if exponent % step == 0]
        ticks(shown, [_power(exponent) for exponent in shown])


def _log(values: Sequence[float]) -> list[float]:
    return [math.log10(value) for value in values]


def _power(exponent: int) -> str:
    """Return ``0.1`` to ``100`` plainly, others as a power of ten."""
    return f"{10.0**exponent:g}" if -2 <= exponent <= 3 else "10" + str(exponent).translate(_SUPERSCRIPTS)


def _short(value: float) -> str:
    """Return three digits: ``12.3``, ``4.56·10⁻⁸``; ``unknown`` for NaN."""
    if math.isnan(value):
        return "unknown"
    mantissa, _, exponent = f"{value:.3g}".partition("e")
    return f"{mantissa}·10{str(int(exponent)).translate(_SUPERSCRIPTS)}" if exponent else mantissa


def _why_no_trials(searches: Sequence[SearchRecord]) -> str:
    return next((text for s in searches for text in s.missing if text.startswith("no trials")), "no trials")


# ---- (b) ---------------------------------------------------------------------------------------------
def _draw_best(axes: Axes, searches: Sequence[SearchRecord], *, dots: bool = True) -> None:
    drawn = False
    lows, highs = [], []
    for position, search in enumerate(searches):
        colour, marker, _ = _seed_style(position)
        best = search.best_so_far()
        if not any(math.isfinite(value) for value in best):
            continue
        drawn = True
        numbers = [trial.number + 1 for trial in search.trials]
        # Of a strip only the steps: it says the same in a third of the text.
        last = len(best) - 1
        kept = [i for i, value in enumerate(best) if dots or i in (0, last) or value != best[i - 1]]
        x, y = [numbers[i] for i in kept], [best[i] for i in kept]
        axes.plot(x, y, color=colour, linewidth=1.2, drawstyle="steps-post", gid=f"best.{search.seed}")
        if dots:
            scored = [(n, t.val_top1) for n, t in zip(numbers, search.trials, strict=True) if not t.diverged]
            axes.plot(
                [n for n, _ in scored], [value for _, value in scored], linestyle="none", marker=marker,
                markersize=2.6, markerfacecolor="white", markeredgecolor=colour, markeredgewidth=0.6,
                gid=f"scores.{search.seed}",
            )  # fmt: skip
        lows.append(min(value for value in best if math.isfinite(value)))
        highs.append(max(value for value in best if math.isfinite(value)))
    title = "Validation top-1 of trials, best so far (%)" if dots else "Best validation top-1 so far (%)"
    _finish(axes, f"(b) {title}", "trial", "")
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.5)
    axes.set_axisbelow(True)
    if not drawn:
        _say(axes, _why_no_trials(searches))
        axes.set_xticks([])
        axes.set_yticks([])
        return
    # The first trials are often far below; what is decided is decided at the top.
    low, high = max(min(lows), max(highs) - 2 * _COLOUR_RANGE), max(highs)
    air = max(0.06 * (high - low), 0.2)
    axes.set_ylim(low - air, high + air)
    _whole_ticks(axes)


def _whole_ticks(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    low, high = axes.get_xlim()
    if high - low < 1:
        axes.set_xlim(0.4, 1.6)  # one epoch or trial


# ---- (c)-(e) -----------------------------------------------------------------------------------------
def _draw_curves(
    axes: Axes,
    searches: Sequence[SearchRecord],
    title: str,
    y_label: str,
    keys: Sequence[str],
    most: int = 10_000,
) -> None:
    """Draw curves of the final training by epoch, at most ``most`` points each; those of training are dashed."""
    drawn = False
    for position, search in enumerate(searches):
        for key in keys:
            values = search.curves.get(key)
            if not values:
                continue
            drawn = True
            # The first point and the last are among them.
            steps = min(len(values), most) - 1
            epochs = [round(index * (len(values) - 1) / max(1, steps)) for index in range(steps + 1)]
            axes.plot(
                [epoch + 1 for epoch in epochs], [values[epoch] for epoch in epochs],
                color=_seed_style(position)[0], linestyle=(0, (2.4, 1.2)) if key.startswith("train") else "-",
                linewidth=0.9, marker="o" if len(values) == 1 else None, markersize=3,
                gid=f"{key.replace('/', '-')}.{search.seed}",
            )  # fmt: skip
    _finish(axes, title, "epoch of the final training", y_label)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.5)
    axes.set_axisbelow(True)
    if drawn:
        _whole_ticks(axes)
    else:
        _say(axes, "not recorded")
        axes.set_xticks([])
        axes.set_yticks([])


# ---- legend and notes --------------------------------------------------------------------------------
def _legend_entries(searches: Sequence[SearchRecord]) -> list[tuple[str, dict[str, Any]]]:
    entries: list[tuple[str, dict[str, Any]]] = []
    for position, search in enumerate(searches):
        colour, marker, _ = _seed_style(position)
        entries.append(
            (
                f"seed {search.seed} (lr {_short(search.lr)}, wd {_short(search.wd)})",
                {
                    "color": colour,
                    "marker": marker,
                    "markerfacecolor": "white",
                    "markersize": 3.6,
                    "linewidth": 1.2,
                },
            )
        )
    plain: dict[str, Any] = {"linestyle": "none", "color": INK}
    trials = [trial for search in searches for trial in search.trials]
    ring = plain | {"marker": "o", "markersize": 7.5, "markerfacecolor": "none", "markeredgewidth": 1.3}
    entries.append(("chosen", ring))
    if any(trial.diverged for trial in trials):
        entries.append(
            ("diverged", plain | {"marker": "x", "color": "#c0392b", "markersize": 4, "markeredgewidth": 1})
        )
    if any(trial.pruned for trial in trials):
        entries.append(("stopped early", plain | {"marker": "_", "color": _GREY, "markersize": 5}))
    if any(search.trials and (search.lr_interval or search.wd_interval) for search in searches):
        entries.append(("end of the interval", {"color": _GREY, "linewidth": 0.8, "dashes": (4, 2)}))
    entries.append(("training", {"color": INK, "linewidth": 0.9, "dashes": (2.4, 1.2)}))
    entries.append(("test", {"color": INK, "linewidth": 0.9}))
    return entries


def _add_legend(figure: Figure, searches: Sequence[SearchRecord], bottom: float) -> float:
    """Add the legend in as few rows as the width allows; returns its height."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=text, **artist) for text, artist in _legend_entries(searches)]
    for columns in range(len(handles), 0, -1):
        legend = figure.legend(
            handles=handles, ncols=columns, fontsize=TICK, loc="lower left", frameon=False, borderpad=0,
            borderaxespad=0, columnspacing=1.2, labelspacing=0.3, bbox_to_anchor=(0.05, bottom),
            bbox_transform=figure.dpi_scale_trans,
        )  # fmt: skip
        extent = legend.get_window_extent()
        if extent.width / figure.dpi < PAGE - 0.1:
            break
        legend.remove()
    return extent.height / figure.dpi + 0.1


def _notes(searches: Sequence[SearchRecord]) -> list[str]:
    """Say what is missing, and which seeds it is missing for."""
    seeds: dict[str, list[int]] = {}
    for search in searches:
        for text in search.missing:
            seeds.setdefault(text, []).append(search.seed)
        if search.lr == 0 or search.wd == 0 or any(t.lr == 0 or t.wd == 0 for t in search.trials):
            seeds.setdefault("a value of 0 has no place on a logarithmic axis: see the CSV file", []).append(
                search.seed
            )
    return [f"Seed {', '.join(map(str, found))}: {text}." for text, found in seeds.items()]
