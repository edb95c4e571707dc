"""Accuracies on levels by other similarities and on random draws (paper, Fig. 7)."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from cog import constants
from cog.results.frame import natural_key
from cog.runtime import files

_LEVEL = r"^(?P<kind>.+)_l(?P<level>[0-9]{1,3})$"
_LABELS = {"cog": "published (Lin)", "wup": "Wu-Palmer", "jcn": "Jiang-Conrath", "embedding": "word vectors"}


def compare(top1: pd.Series) -> tuple[pd.DataFrame, float]:
    """Return a table of accuracies, levels by kind, and half of the 95 % interval over random draws.

    ``top1`` has accuracies in percent by data set. The mean of the draws stands at every level.
    """
    found = top1.index.to_series().str.extract(_LEVEL).assign(top1=top1)
    found["level"] = "L" + found["level"]
    drawn = found.loc[found["kind"].str.fullmatch(r"random\d*", na=False), "top1"]
    table = found.drop(drawn.index).pivot_table(index="kind", columns="level", values="top1")
    kinds = sorted(table.index, key=lambda kind: (kind != "cog", kind))
    table = table.loc[kinds, sorted(table, key=natural_key)].rename(index=_LABELS)
    if len(drawn):
        table.loc[f"{len(drawn)} random draws"] = drawn.mean()
    interval = float(stats.t.ppf(0.975, len(drawn) - 1) * drawn.sem()) if len(drawn) > 1 else 0.0
    if constants.IN1K in top1:
        table.insert(0, "IN-1K", top1[constants.IN1K])
    return table.rename_axis(index=None, columns=None), interval


def draw(path: Path, table: pd.DataFrame, interval: float) -> None:
    """Draw accuracies by level, a line for each kind of levels, with a band for random draws."""
    figure = Figure(figsize=(5.0, 3.6), layout="constrained")
    axes = figure.add_subplot(ylabel="top-1 (%)")
    for kind, row in zip(table.index, table.to_numpy(), strict=True):
        axes.plot(list(table), row, marker="o", markersize=3, label=kind)
    if interval:
        axes.fill_between(list(table), row - interval, row + interval, color="gray", alpha=0.2, lw=0)
    axes.legend(fontsize=8)
    with files.atomic_write(path) as handle:
        figure.savefig(handle, format="png", dpi=150, metadata={"Software": None})
