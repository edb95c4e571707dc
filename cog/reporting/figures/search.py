"""Drawings of runs: the search for learning rate and weight decay, and the final training.

A drawing shows all seeds of one model, data set and number of shots: the trials over both hyper-parameters,
the best accuracy so far, and the accuracies of the final training. The sources are ``results.json`` and
``logs.pkl`` (curves). Runs of the original toolkit have only curves: their trials are in ``study.pkl``, a
pickled Optuna object, which cannot be read safely.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from cog.constants import RESULTS_FILE
from cog.errors import CogError
from cog.reporting.figures import style
from cog.reporting.figures.lines import PAGE, Sheet
from cog.results.records import mapping, number
from cog.runtime import files, safe_load

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Range of the colors in points below the best: most good trials lie within a few points.
_COLOR_RANGE = 10.0

_RED, _DASHES = "#c0392b", (0, (2.4, 1.2))

#: Columns of a frame of trials, a row each, and of a frame of curves, a row per epoch.
TRIALS = ["seed", "trial", "lr", "wd", "val_top1", "best_so_far", "diverged", "chosen"]
_LOGGED = [f"{split}/{name}" for name in ("loss", "top1", "top5") for split in ("train", "test")]
CURVES = ["seed", "epoch", *_LOGGED, "lr"]


def read_search(folders: dict[int, Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the trials and the curves of runs by seed, with the columns :data:`TRIALS` and :data:`CURVES`.

    What is not recorded, or of another form than ours, is missing: folders may come from other people.
    """
    trials: list[dict[str, Any]] = []
    curves = []
    for seed, folder in sorted(folders.items()):
        record = _read(files.read_object, folder / RESULTS_FILE)
        final, entries = mapping(record.get("final")), record.get("trials")
        best = math.nan
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            lr, wd, value = (_number(entry, name) for name in ("lr", "wd", "val_top1"))
            diverged = mapping(entry).get("diverged") is True
            if not diverged and not value <= best:
                best = value
            chosen = (lr, wd) == (_number(final, "lr"), _number(final, "wd"))
            values = seed, index, lr, wd, value, best, diverged, chosen
            trials.append(dict(zip(TRIALS, values, strict=True)))
        finals = sorted(folder.glob("final-*/logs.pkl"))
        logs = _read(safe_load.load_pickle, finals[0]) if len(finals) == 1 else {}
        lists = {name: logs[name] for name in CURVES if isinstance(logs.get(name), list)}
        frame = pd.DataFrame({name: pd.Series(map(number, lists[name]), dtype=float) for name in lists})
        curves.append(frame.assign(epoch=frame.index + 1, seed=seed))
    made = pd.DataFrame(trials, columns=TRIALS).astype({"diverged": bool, "chosen": bool})
    return made, (pd.concat(curves) if curves else pd.DataFrame()).reindex(columns=CURVES)


def _read(function: Any, path: Path) -> dict[str, Any]:
    try:
        return mapping(function(path))
    except CogError:
        return {}


def _number(entry: Any, name: str) -> float:
    value = number(mapping(entry).get(name))
    return math.nan if value is None else value


def draw(title: str, trials: pd.DataFrame, curves: pd.DataFrame) -> Sheet:
    """Draw trials and curves of all seeds; arguments as of :func:`read_search`."""
    sheet = Sheet({}, columns=3, width=PAGE, height=2.3)
    sheet.figure.suptitle(title, x=0.012, ha="left", fontsize=8, fontweight="bold")
    plane, best, final = sheet.panels[0]
    best.set(title="(b) Best validation top-1 so far (%)", xlabel="trial")
    final.set(title="(c) Final top-1 (%); dashed: training", xlabel="epoch")
    if len(trials):
        _draw_plane(plane, trials)
    else:  # empty axes would look like a search
        plane.set_title("(a) Trials: none are recorded")
        for axes in (plane, best):
            axes.set_axis_off()
    for position, seed in enumerate(sorted({*trials["seed"], *curves["seed"]})):
        color = style.own_look(position, "").line["color"]
        own, epochs = trials[trials["seed"] == seed], curves[curves["seed"] == seed]
        kept = own[~own["diverged"]]
        best.plot(kept["trial"] + 1, kept["val_top1"], ".", color=color, markersize=2.5)
        best.plot(own["trial"] + 1, own["best_so_far"], color=color, lw=1.2, drawstyle="steps-post")
        look = {"color": color, "lw": 0.9, "marker": "o" if len(epochs) == 1 else "", "ms": 3}
        for name, dashes in (("train/top1", _DASHES), ("test/top1", "-")):
            final.plot(epochs["epoch"], epochs[name], ls=dashes, **look)
        plane.plot([], [], color=color, label=f"seed {seed}")
    reached = trials["best_so_far"].dropna()
    if len(reached):  # the first trials are often far below the best, and only differences near it matter
        low, high = max(reached.min(), reached.max() - 2 * _COLOR_RANGE), reached.max()
        air = max(0.06 * (high - low), 0.2)
        best.set_ylim(low - air, high + air)
    for axes in (best, final):
        axes.locator_params(axis="x", integer=True)
    sheet.figure.legend(loc="outside lower center", ncols=6)
    sheet.fix()
    return sheet


def _draw_plane(axes: Axes, trials: pd.DataFrame) -> None:
    """Draw the trials that have a place on logarithmic axes, and the chosen pairs."""
    axes.set(title="(a) Trials", xlabel="learning rate", ylabel="weight decay", xscale="log", yscale="log")
    axes.minorticks_off()
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    placed = trials[(trials["lr"] > 0) & (trials["wd"] > 0)]
    scored = placed[~placed["diverged"] & placed["val_top1"].notna()]
    scored = scored.sort_values("val_top1")  # the best on top
    if len(scored):
        best = scored["val_top1"].max()
        limits: dict[str, Any] = {"vmin": max(scored["val_top1"].min(), best - _COLOR_RANGE), "vmax": best}
        # Better trials are darker.
        look: dict[str, Any] = {"s": 13, "cmap": "viridis_r", "edgecolors": "#555555", "lw": 0.3}
        drawn = axes.scatter(scored["lr"], scored["wd"], c=scored["val_top1"], **look, **limits)
        bar = axes.figure.colorbar(drawn, ax=axes, pad=0.02, extend="min")
        bar.set_label("validation top-1 (%)", fontsize=6.4)
    lost, chosen = placed[placed["diverged"]], placed[placed["chosen"]]
    if len(lost):
        axes.plot(lost["lr"], lost["wd"], "x", markersize=3.5, color=_RED, label="diverged")
    axes.plot(chosen["lr"], chosen["wd"], "o", ms=7.5, mfc="none", mec="black", mew=1.3, label="chosen")
