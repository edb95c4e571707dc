"""Drawings of runs: the search for learning rate and weight decay, and the final training.

A drawing shows all seeds of one model, data set and number of shots: the trials over both hyper-parameters, colored by
validation accuracy, the best accuracy so far, and the accuracies of the final training. The sources are
``results.json`` (trials, intervals) and ``logs.pkl`` (curves). Runs of the original toolkit have only curves, because
their trials are in ``study.pkl``, a pickled Optuna object, which cannot be read safely.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from cog.errors import CogError
from cog.reporting.figures import style
from cog.reporting.figures.lines import PAGE, Sheet
from cog.runtime import files, safe_load

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Range of the colors in points below the best: most good trials lie within a few points; lower ones share one color.
_COLOR_RANGE = 10.0

_RED, _DASHES = "#c0392b", (0, (2.4, 1.2))

#: Columns of a frame of trials, a row each, and of a frame of curves, a row per epoch.
TRIALS = ["seed", "trial", "lr", "wd", "val_top1", "best_so_far", "diverged", "chosen"]
CURVES = [
    "seed",
    "epoch",
    "train/loss",
    "test/loss",
    "train/top1",
    "test/top1",
    "train/top5",
    "test/top5",
    "lr",
]


def read_search(folders: dict[int, Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the trials and the curves of runs by seed, with the columns :data:`TRIALS` and :data:`CURVES`.

    What is not recorded, or of another form than ours, is missing: folders may come from other people.
    """
    trials: list[dict[str, Any]] = []
    curves = []
    for seed, folder in sorted(folders.items()):
        record = _record(folder)
        final = record.get("final") if isinstance(record.get("final"), dict) else {}
        best = math.nan
        for number, entry in enumerate(record.get("trials") or []):
            trial = {name: _number(entry, name) for name in ("lr", "wd", "val_top1")}
            diverged = isinstance(entry, dict) and entry.get("diverged") is True
            if not diverged and not trial["val_top1"] <= best:
                best = trial["val_top1"]
            chosen = all(trial[name] == _number(final, name) for name in ("lr", "wd"))
            trials.append(
                {
                    "seed": seed,
                    "trial": number,
                    **trial,
                    "best_so_far": best,
                    "diverged": diverged,
                    "chosen": chosen,
                }
            )
        curves.append(_curves(folder).assign(seed=seed))
    frame = pd.concat(curves) if curves else pd.DataFrame()
    made = pd.DataFrame(trials, columns=TRIALS).astype(
        {"diverged": bool, "chosen": bool}
    )  # also without trials
    return made, frame.reindex(columns=CURVES)


def _record(folder: Path) -> dict[str, Any]:
    try:
        record = files.read_object(folder / "results.json")
    except CogError:
        return {}
    return record if isinstance(record.get("trials"), list | None) else {}


def _number(entry: Any, name: str) -> float:
    value = entry.get(name) if isinstance(entry, dict) else None
    return float(value) if isinstance(value, int | float) else math.nan


def _curves(folder: Path) -> pd.DataFrame:
    """Return the values per epoch of ``logs.pkl``; empty when it cannot be read."""
    finals = sorted(folder.glob("final-*/logs.pkl"))
    try:
        logs = safe_load.load_pickle(finals[0]) if len(finals) == 1 else {}
    except CogError:
        logs = {}
    known = {
        name: pd.Series(logs[name], dtype=float)
        for name in CURVES[2:]
        if isinstance(logs, dict) and name in logs
    }
    frame = pd.DataFrame(known)
    return frame.assign(epoch=frame.index + 1)


def draw(title: str, trials: pd.DataFrame, curves: pd.DataFrame) -> Sheet:
    """Draw trials and curves of all seeds; arguments as of :func:`read_search`."""
    sheet = Sheet({}, columns=3, width=PAGE, height=2.3)
    sheet.figure.suptitle(title, x=0.012, ha="left", fontsize=8, fontweight="bold")
    plane, best, final = sheet.panels[0]
    _draw_plane(plane, trials)
    best.set(title="(b) Best validation top-1 so far (%)", xlabel="trial")
    final.set(title="(c) Final top-1 (%); dashed: training", xlabel="epoch")
    seeds = sorted({*trials["seed"], *curves["seed"]})
    for position, seed in enumerate(seeds):
        look = style.own_look(position, f"seed {seed}")
        own, epochs = trials[trials["seed"] == seed], curves[curves["seed"] == seed]
        kept = own[~own["diverged"]]
        best.plot(kept["trial"] + 1, kept["val_top1"], ".", color=look.color, markersize=2.5)
        best.plot(own["trial"] + 1, own["best_so_far"], color=look.color, lw=1.2, drawstyle="steps-post")
        marker = "o" if len(epochs) == 1 else ""
        for name, dashes in (("train/top1", _DASHES), ("test/top1", "-")):
            final.plot(
                epochs["epoch"], epochs[name], color=look.color, ls=dashes, lw=0.9, marker=marker, ms=3
            )
        plane.plot([], [], color=look.color, label=look.label)
    reached = trials["best_so_far"].dropna()
    if len(
        reached
    ):  # the first trials are often far below the best, and only differences near the best matter
        low, high = max(reached.min(), reached.max() - 2 * _COLOR_RANGE), reached.max()
        air = max(0.06 * (high - low), 0.2)
        best.set_ylim(low - air, high + air)
    sheet.figure.legend(loc="outside lower center", ncols=6)
    sheet.fix()
    return sheet


def _draw_plane(axes: Axes, trials: pd.DataFrame) -> None:
    """Draw the trials with positive values, which alone have a place on logarithmic axes, and the chosen pairs."""
    axes.set(title="(a) Trials", xlabel="learning rate", ylabel="weight decay", xscale="log", yscale="log")
    axes.minorticks_off()
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    placed = trials[(trials["lr"] > 0) & (trials["wd"] > 0)]
    scored = placed[~placed["diverged"] & placed["val_top1"].notna()].sort_values(
        "val_top1"
    )  # the best on top
    if len(scored):
        # Better trials are darker, which is readable in gray.
        best = scored["val_top1"].max()
        limits = {"vmin": max(scored["val_top1"].min(), best - _COLOR_RANGE), "vmax": best}
        drawn = axes.scatter(
            scored["lr"],
            scored["wd"],
            c=scored["val_top1"],
            s=13,
            cmap="viridis_r",
            edgecolors="#555555",
            lw=0.3,
            **limits,
        )
        axes.figure.colorbar(drawn, ax=axes, pad=0.02, extend="min").set_label(
            "validation top-1 (%)", fontsize=6.4
        )
    lost, chosen = placed[placed["diverged"]], placed[placed["chosen"]]
    if len(lost):
        axes.plot(lost["lr"], lost["wd"], "x", markersize=3.5, color=_RED, label="diverged")
    axes.plot(chosen["lr"], chosen["wd"], "o", ms=7.5, mfc="none", mec="black", mew=1.3, label="chosen")
