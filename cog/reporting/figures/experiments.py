"""Figures of other experiments: functions from means to a sheet, None without such numbers.

Figures with ``v1`` in their name are those of the paper's first version.
"""

from __future__ import annotations

import re

import pandas as pd

from cog.reporting.figures import style
from cog.reporting.figures.lines import Sheet, draw_datasets, over_datasets, over_numbers
from cog.reporting.figures.protocol import BARS, comparable
from cog.results.compare import relative
from cog.results.frame import CLASSIFIER, LOGREG

_V1_RANGES = (
    "The paper's first version gives ranges of uniformity over the six data sets, as positive numbers: "
    "ResNet50 1.8-1.9, SwAV 1.9-2.1, the five others 2.6-3.1."
)


def purity(means: pd.DataFrame) -> Sheet | None:
    """Draw the purity of k-means clusters on the data sets (v1, Fig. 5)."""
    titles = {"purity_v1": "largest cluster of a class", "purity": "largest class of a cluster"}
    return _over_datasets(means, {("kmeans", metric): f"Purity: {title}" for metric, title in titles.items()})


def clustering(means: pd.DataFrame) -> Sheet | None:
    """Draw the agreement of k-means clusters with the classes on the data sets (v1, Fig. 9)."""
    return _over_datasets(means, {("kmeans", metric): metric.upper() for metric in ("ami", "nmi", "ari")})


def alignment(means: pd.DataFrame) -> Sheet | None:
    """Draw alignment and uniformity on the data sets (v1, Fig. 10)."""
    panels = {("alignment", "alignment"): "Alignment", ("alignment", "uniformity_v1"): "Uniformity"}
    return _over_datasets(means, panels, _V1_RANGES)


def mlp(means: pd.DataFrame) -> Sheet | None:
    """Draw the change of accuracy by an MLP instead of logistic regression, in percent (v1, Table 3)."""
    titles, metric = {"mlp": "MLP", "mlp_noact": "MLP without activation"}, "relative_to_logreg"
    stated = means[(means["metric"] == metric) & means["evaluation"].isin(titles)]
    changes = pd.concat([stated, *(relative(means, name, LOGREG, metric) for name in titles)])
    panels = {(name, metric): f"{title}: change from LogReg (%)" for name, title in titles.items()}
    return _over_datasets(changes, panels, BARS)


def fine_tuning(means: pd.DataFrame) -> Sheet | None:
    """Draw frozen features relative to the fine-tuned network, and the accuracy of the latter (Fig. 6)."""
    frozen = relative(means, LOGREG, "finetune", "relative_to_finetune")
    panels = {
        (LOGREG, "relative_to_finetune"): "Frozen: change from fine-tuned (%)",
        ("finetune", "top1"): "Fine-tuned: top-1 (%)",
    }
    return _over_datasets(pd.concat([frozen, means[means["evaluation"] == "finetune"]]), panels, BARS)


def components(means: pd.DataFrame) -> Sheet | None:
    """Draw accuracies by number of principal components, all features last (v1, Fig. 8)."""
    top1 = means[(means["metric"] == "top1") & (means["n_shot"] == 0)]
    names = top1["evaluation"].map(CLASSIFIER.fullmatch)
    are_plain = [bool(name) and name["type"] == LOGREG and not name["max"] for name in names]
    dims = [int(name["pca"] or 0) for name in names[are_plain]]
    return _by_number(top1[are_plain].assign(number=dims), "principal components")


def neighbors(means: pd.DataFrame) -> Sheet | None:
    """Draw accuracies by number of neighbors, weighted vote."""
    knn = means[means["evaluation"] == "knn"]
    matches = knn["metric"].map(re.compile(r"top1_k(\d+)_weighted").fullmatch)
    knn, matches = knn[matches.notna()], matches[matches.notna()]
    return _by_number(knn.assign(number=[int(match[1]) for match in matches]), "k")


def _over_datasets(means: pd.DataFrame, panels: dict[tuple[str, str], str], note: str = "") -> Sheet | None:
    """Draw a panel over the data sets for each number that is there, by evaluation and metric; title."""
    shown, unlike = comparable(means[means["n_shot"] == 0])
    groups = dict(tuple(shown.groupby(["evaluation", "metric"])))
    there = {title: groups[key] for key, title in panels.items() if key in groups}
    if not there:
        return None
    sheet = Sheet(style.looks(pd.concat(there.values())), columns=len(there))
    for axes, (title, part) in zip(sheet.panels[0], there.items(), strict=True):
        sheet.lines(axes, part, over_datasets(part), title=title, signed="change" in title)
    return sheet.finish(note, unlike)


def _by_number(means: pd.DataFrame, label: str) -> Sheet | None:
    """Draw a panel for each data set over the column ``number``; 0 is shown last, as "all"."""
    shown, note = comparable(means)
    shown = shown[shown["dataset"].isin(shown.loc[shown["number"] > 0, "dataset"])]
    if shown.empty:
        return None
    labels = {"x": "number", "xlabel": label, "ylabel": "top-1 (%)"}
    return draw_datasets(shown, over_numbers(shown["number"]), BARS, note, **labels)
