"""Figures of other experiments than the protocol's: functions from means to a sheet, None without such numbers.

Figures with ``v1`` in their name are those of the paper's first version.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from cog.reporting.figures import style
from cog.reporting.figures.lines import Sheet, over_datasets
from cog.reporting.figures.protocol import BARS, comparable
from cog.results.frame import CLASSIFIER, LOGREG, dataset_label

Panels = dict[tuple[str, str], str]  # evaluation and metric: title of the panel

_V1_RANGES = (
    "The paper's first version gives ranges of uniformity over the six data sets, as positive numbers: "
    "ResNet50 1.8-1.9, SwAV 1.9-2.1, the five others 2.6-3.1."
)


def purity(means: pd.DataFrame) -> Sheet | None:
    """Draw the purity of k-means clusters on the data sets (v1, Fig. 5)."""
    titles = {
        "purity_v1": "Purity: largest cluster of a class",
        "purity": "Purity: largest class of a cluster",
    }
    return _over_datasets(means, {("kmeans", metric): title for metric, title in titles.items()})


def clustering(means: pd.DataFrame) -> Sheet | None:
    """Draw the agreement of k-means clusters with the classes on the data sets (v1, Fig. 9)."""
    return _over_datasets(means, {("kmeans", metric): metric.upper() for metric in ("ami", "nmi", "ari")})


def alignment(means: pd.DataFrame) -> Sheet | None:
    """Draw alignment and uniformity on the data sets (v1, Fig. 10)."""
    titles = {"alignment": "Alignment", "uniformity_v1": "Uniformity"}
    panels = {("alignment", metric): title for metric, title in titles.items()}
    return _over_datasets(means, panels, _V1_RANGES)


def mlp(means: pd.DataFrame) -> Sheet | None:
    """Draw the change of accuracy by an MLP instead of logistic regression, in percent (v1, Table 3)."""
    titles = {"mlp": "MLP", "mlp_noact": "MLP without activation"}
    changes = pd.concat(
        [
            means[(means["metric"] == "relative_to_logreg") & means["evaluation"].isin(titles)],
            *(_change(means, name, LOGREG) for name in titles),
        ]
    )
    panels = {
        (name, "relative_to_logreg"): f"{title}: change from LogReg (%)" for name, title in titles.items()
    }
    return _over_datasets(changes, panels, BARS, signed=True)


def fine_tuning(means: pd.DataFrame) -> Sheet | None:
    """Draw frozen features relative to the fine-tuned network, and the accuracy of the latter (Fig. 6)."""
    tuned = means[(means["evaluation"] == "finetune") & (means["metric"] == "top1")]
    frozen = _change(means, LOGREG, "finetune")
    panels = {
        (LOGREG, "relative_to_finetune"): "Frozen: change from fine-tuned (%)",
        ("finetune", "top1"): "Fine-tuned: top-1 (%)",
    }
    return _over_datasets(pd.concat([frozen, tuned]), panels, BARS)


def components(means: pd.DataFrame) -> Sheet | None:
    """Draw accuracies by number of principal components, all features last (v1, Fig. 8)."""
    top1 = means[(means["metric"] == "top1") & (means["n_shot"] == 0)]
    names = top1["evaluation"].map(CLASSIFIER.fullmatch)
    dims = [
        int(name["pca"] or 0) if name and name["type"] == LOGREG and not name["max"] else -1 for name in names
    ]
    return _by_number(top1.assign(number=dims), "principal components", whole="all")


def neighbors(means: pd.DataFrame) -> Sheet | None:
    """Draw accuracies by number of neighbors, weighted vote."""
    knn = means[means["evaluation"] == "knn"]
    numbers = knn["metric"].map(re.compile(r"top1_k(\d+)_weighted").fullmatch)
    return _by_number(knn.assign(number=[int(match[1]) if match else -1 for match in numbers]), "k")


def _change(means: pd.DataFrame, evaluation: str, base: str) -> pd.DataFrame:
    """Return the change of top-1 from another evaluation of the same models in percent, as a further metric."""
    top1 = means[(means["metric"] == "top1") & means["note"].eq("")]
    cell = ["source", "model", "dataset", "n_shot", "data"]
    pairs = top1[top1["evaluation"] == evaluation].merge(
        top1.loc[top1["evaluation"] == base, [*cell, "value", "std"]], on=cell, suffixes=("", "_base")
    )
    ratio = pairs["value"] / pairs["value_base"]
    std = 100 * ratio * np.hypot(pairs["std"] / pairs["value"], pairs["std_base"] / pairs["value_base"])
    return pairs.assign(
        metric=f"relative_to_{base}", value=100 * (ratio - 1), std=std, low=np.nan, high=np.nan
    ).drop(columns=["value_base", "std_base"])


def _over_datasets(
    means: pd.DataFrame, panels: Panels, note: str = "", *, signed: bool = False
) -> Sheet | None:
    """Draw a panel over the data sets for each number that is there."""
    shown, notes = comparable(means)
    there = {
        title: shown[
            (shown["evaluation"] == evaluation) & (shown["metric"] == metric) & (shown["n_shot"] == 0)
        ]
        for (evaluation, metric), title in panels.items()
    }
    there = {title: part for title, part in there.items() if not part.empty}
    if not there:
        return None
    sheet = Sheet(style.looks(pd.concat(there.values())), columns=len(there))
    for axes, (title, part) in zip(sheet.panels[0], there.items(), strict=True):
        is_change = "change" in title
        sheet.lines(axes, part, over_datasets(part), title=title, signed=signed or is_change)
    return sheet.finish(note, *notes)


def _by_number(means: pd.DataFrame, label: str, *, whole: str = "") -> Sheet | None:
    """Draw a panel for each data set over the column ``number``; 0 is shown last, as ``whole``."""
    shown, notes = comparable(means[means["number"] >= 0])
    if not (shown["number"] > 0).any():
        return None
    shown = shown[shown["dataset"].isin(shown.loc[shown["number"] > 0, "dataset"])]
    numbers = sorted(shown["number"].unique(), key=lambda number: (number == 0, number))
    ticks = {number: str(number) if number else whole for number in numbers}
    names = over_datasets(shown)
    columns = min(3, len(names))
    sheet = Sheet(style.looks(shown), rows=-(-len(names) // columns), columns=columns, height=1.7)
    for position, dataset in enumerate(names):
        axes, part = sheet.panels[position // columns][position % columns], shown[shown["dataset"] == dataset]
        y_label = "top-1 (%)" if position % columns == 0 else ""
        title = dataset_label(dataset)
        sheet.lines(axes, part, ticks, x="number", title=title, x_label=label, y_label=y_label)
    return sheet.finish(BARS, *notes)
