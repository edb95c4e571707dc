"""One page of search diagnostics drawn with matplotlib; lengths are inches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cog.reporting.figures.style as style
from cog.reporting.figures.legend import text_width, wrap
from cog.results.search_history import SearchRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 7.0
_LABEL = 7.0
_TICK = 6.4
_NOTE = 5.8
_INK = "#222222"
_GREY = "#888888"

# Most good trials lie within a few points of the best; lower ones share one colour.
_COLOUR_RANGE = 10.0

# The least that an axis of the plane shows: close pairs look close.
_DECADES = 2.0

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def draw(title: str, searches: Sequence[SearchRecord]) -> Figure:
    """Return the page; call inside :func:`cog.reporting.figures.saving.drawing`."""
    from matplotlib.figure import Figure

    notes = [line for note in _notes(searches) for line in wrap(note, _NOTE, _WIDTH - 0.2)]
    legend = _legend_entries(searches)
    legend_rows = _rows(legend)
    bottom = 0.08 + 0.11 * len(notes) + 0.13 * len(legend_rows) + 0.06
    upper, lower = 2.05, 1.45
    height = bottom + 0.34 + lower + 0.56 + upper + 0.42
    figure = Figure(figsize=(_WIDTH, height))

    def axes(left: float, base: float, width: float, tall: float) -> Axes:
        return figure.add_axes((left / _WIDTH, base / height, width / _WIDTH, tall / height))

    lower_base = bottom + 0.34
    upper_base = lower_base + lower + 0.56
    figure.text(
        0.08 / _WIDTH,
        1 - 0.1 / height,
        title,
        fontsize=_LABEL + 1,
        fontweight="bold",
        va="top",
        color=_INK,
    )
    _draw_plane(axes(0.52, upper_base, 2.75, upper), lambda: axes(3.34, upper_base, 0.09, upper), searches)
    _draw_best(axes(4.3, upper_base, 2.62, upper), searches)
    _draw_curves(axes(0.52, lower_base, 1.8, lower), searches, "loss", "(c) Loss", "cross-entropy")
    _draw_curves(axes(2.85, lower_base, 1.8, lower), searches, "top1", "(d) Top-1 accuracy (%)", "")
    _draw_rate(axes(5.17, lower_base, 1.75, lower), searches)
    y = bottom - 0.08
    for row in legend_rows:
        x = 0.08
        for text, artist in row:
            x = _draw_entry(figure, x, y, text, artist)
        y -= 0.13
    for line in notes:
        figure.text(
            0.08, y, line, transform=figure.dpi_scale_trans, fontsize=_NOTE, color="#444444", va="center"
        )
        y -= 0.11
    return figure


def _seed_style(position: int) -> tuple[str, str, Any]:
    """Colour, marker and dashes of the ``position``-th seed: the seeds of a page are equals, so none stands out."""
    own = style.own_style(position)
    return own.colour, own.marker, "-" if own.dashes is None else (0, own.dashes)


def _finish(axes: Axes, title: str, x_label: str, y_label: str) -> None:
    axes.set_title(title, fontsize=_LABEL, loc="left", pad=3.0, color=_INK)
    axes.set_xlabel(x_label, fontsize=_LABEL, labelpad=1.5, color=_INK)
    axes.set_ylabel(y_label, fontsize=_LABEL, labelpad=1.5, color=_INK)
    axes.tick_params(labelsize=_TICK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _say(axes: Axes, text: str) -> None:
    width = axes.get_position().width * _WIDTH
    axes.text(
        0.5,
        0.5,
        "\n".join(wrap(text, _TICK, width * 0.8)),
        transform=axes.transAxes,
        ha="center",
        va="center",
        fontsize=_TICK,
        color="#555555",
    )


# ---- (a) ---------------------------------------------------------------------------------------------
def _draw_plane(axes: Axes, colour_bar_axes: Any, searches: Sequence[SearchRecord]) -> None:
    """Trials over log10 of both hyper-parameters."""
    from matplotlib.colors import Normalize

    scored = [t for s in searches for t in s.trials if not (t.diverged or t.pruned or math.isnan(t.val_top1))]
    top = max((t.val_top1 for t in scored), default=0.0)
    low = min((t.val_top1 for t in scored), default=0.0)
    floor = max(low, top - _COLOUR_RANGE)
    norm = Normalize(floor, top if top > floor else floor + 1)
    _interval_lines(axes, searches)
    for position, search in enumerate(searches):
        colour, marker, _ = _seed_style(position)
        trials = [t for t in search.trials if t.lr > 0 and t.wd > 0]
        groups = {
            "scored": [t for t in trials if not (t.diverged or t.pruned or math.isnan(t.val_top1))],
            "diverged": [t for t in trials if t.diverged],
            "pruned": [t for t in trials if t.pruned and not t.diverged],
        }
        if groups["scored"]:
            axes.scatter(
                _log([t.lr for t in groups["scored"]]),
                _log([t.wd for t in groups["scored"]]),
                c=[t.val_top1 for t in groups["scored"]],
                cmap=_colours(),
                norm=norm,
                marker=marker,
                s=15,
                linewidths=0.3,
                edgecolors="#333333",
                zorder=3,
                gid=f"trials.{search.seed}",
            )
        for kind, symbol, size in (("diverged", "x", 14), ("pruned", "_", 16)):
            if groups[kind]:
                axes.scatter(
                    _log([t.lr for t in groups[kind]]),
                    _log([t.wd for t in groups[kind]]),
                    marker=symbol,
                    s=size,
                    linewidths=0.9,
                    color="#c0392b" if kind == "diverged" else _GREY,
                    zorder=2.5,
                    gid=f"{kind}.{search.seed}",
                )
        if search.lr > 0 and search.wd > 0:
            x, y = math.log10(search.lr), math.log10(search.wd)
            axes.scatter(
                [x],
                [y],
                s=70,
                facecolors="none",
                edgecolors=colour,
                linewidths=1.3,
                zorder=4,
                gid=f"chosen.{search.seed}",
            )
    _log_limits(axes, searches)
    _finish(axes, "(a) Trials and chosen pair", "learning rate", "weight decay")
    if scored:
        _draw_colour_bar(colour_bar_axes(), norm, clipped=low < floor)
    elif not axes.collections:
        _say(axes, _why_no_trials(searches))


def _colours() -> Any:
    """From dark to light, so that it reads in grey; in few steps, because more would be drawn as a bitmap."""
    from matplotlib import colormaps

    return colormaps["viridis"].resampled(24)


def _draw_colour_bar(axes: Axes, norm: Any, *, clipped: bool) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

    figure = axes.figure
    assert isinstance(figure, Figure)
    bar = figure.colorbar(
        ScalarMappable(norm=norm, cmap=_colours()), cax=axes, extend="min" if clipped else "neither"
    )
    if bar.solids is not None:
        bar.solids.set_edgecolor("face")  # else white seams show between the steps
    bar.set_label("validation top-1 (%)", fontsize=_TICK, labelpad=2, color=_INK)
    bar.ax.tick_params(labelsize=_TICK - 0.4)
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
        step = max(1, -(-len(decades) // 7))
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
def _draw_best(axes: Axes, searches: Sequence[SearchRecord]) -> None:
    drawn = False
    lows, highs = [], []
    for position, search in enumerate(searches):
        colour, marker, _ = _seed_style(position)
        best = search.best_so_far()
        if not any(math.isfinite(value) for value in best):
            continue
        drawn = True
        numbers = [trial.number + 1 for trial in search.trials]
        axes.plot(
            numbers, best, color=colour, linewidth=1.2, drawstyle="steps-post", gid=f"best.{search.seed}"
        )
        dots = [(n, t.val_top1) for n, t in zip(numbers, search.trials, strict=True) if not t.diverged]
        axes.plot(
            [n for n, _ in dots],
            [value for _, value in dots],
            linestyle="none",
            marker=marker,
            markersize=2.6,
            markerfacecolor="white",
            markeredgecolor=colour,
            markeredgewidth=0.6,
            gid=f"scores.{search.seed}",
        )
        lows.append(min(value for value in best if math.isfinite(value)))
        highs.append(max(value for value in best if math.isfinite(value)))
    _finish(axes, "(b) Validation top-1 of trials, best so far (%)", "trial", "")
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
def _draw_curves(axes: Axes, searches: Sequence[SearchRecord], name: str, title: str, y_label: str) -> None:
    drawn = False
    for position, search in enumerate(searches):
        colour, _, _ = _seed_style(position)
        for part, line in (("train", (0, (2.4, 1.2))), ("test", "-")):
            values = search.curves.get(f"{part}/{name}")
            if values:
                drawn = True
                axes.plot(
                    range(1, len(values) + 1),
                    values,
                    color=colour,
                    linestyle=line,
                    linewidth=0.9,
                    marker="o" if len(values) == 1 else None,
                    markersize=3,
                    gid=f"{part}-{name}.{search.seed}",
                )
    _finish_curves(axes, title, y_label, drawn=drawn)


def _draw_rate(axes: Axes, searches: Sequence[SearchRecord]) -> None:
    drawn = False
    for position, search in enumerate(searches):
        values = search.curves.get("lr")
        if values:
            drawn = True
            axes.plot(
                range(1, len(values) + 1),
                values,
                color=_seed_style(position)[0],
                linewidth=0.9,
                marker="o" if len(values) == 1 else None,
                markersize=3,
                gid=f"lr.{search.seed}",
            )
    _finish_curves(axes, "(e) Learning rate", "", drawn=drawn)


def _finish_curves(axes: Axes, title: str, y_label: str, *, drawn: bool) -> None:
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
    plain: dict[str, Any] = {"linestyle": "none", "color": _INK}
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
    entries.append(("training", {"color": _INK, "linewidth": 0.9, "dashes": (2.4, 1.2)}))
    entries.append(("test", {"color": _INK, "linewidth": 0.9}))
    return entries


def _entry_width(text: str) -> float:
    return 0.25 + 0.05 + text_width(text, _TICK) + 0.16


def _rows(entries: Sequence[tuple[str, dict[str, Any]]]) -> list[list[tuple[str, dict[str, Any]]]]:
    rows: list[list[tuple[str, dict[str, Any]]]] = [[]]
    used = 0.0
    for entry in entries:
        width = _entry_width(entry[0])
        if rows[-1] and used + width > _WIDTH - 0.16:
            rows.append([])
            used = 0.0
        rows[-1].append(entry)
        used += width
    return rows


def _draw_entry(figure: Figure, x: float, y: float, text: str, artist: dict[str, Any]) -> float:
    from matplotlib.lines import Line2D

    figure.add_artist(
        Line2D(
            [x, x + 0.125, x + 0.25],
            [y, y, y],
            markevery=[1],
            transform=figure.dpi_scale_trans,
            **artist,
        )
    )
    figure.text(
        x + 0.3, y, text, transform=figure.dpi_scale_trans, fontsize=_TICK, va="center_baseline", color=_INK
    )
    return x + _entry_width(text)


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
