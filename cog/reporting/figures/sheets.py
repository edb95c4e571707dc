"""Figures of results: functions from means to a sheet, None without such numbers."""

import re
from collections.abc import Callable
from typing import Any

import pandas as pd

from cog import constants
from cog.errors import CogError, some
from cog.reporting.figures import style
from cog.reporting.figures.lines import COLUMN, Sheet, draw_datasets, over_datasets, over_numbers
from cog.reporting.views import most_images
from cog.results import compare, published
from cog.results.frame import CLASSIFIER, LOGREG, dataset_label, is_published, shots_label

ACCURACY = "top-1 accuracy (%)"
BARS = "Error bars: standard deviation over seeds; paler, where known: 95 % interval over concepts and seeds."

#: Data sets of Fig. 4 of the paper; with more models of the paper, it shows its eight alone.
_FIG4, _MANY_PUBLISHED = ("cog_l1", "cog_l3", "cog_l5"), 12


def comparable(means: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the means that may stand beside each other, and a note on the others.

    These are those on the benchmark's data with the paper's protocol; where the user has none of them, those
    of the user that are alike on each data set, without published ones.
    """
    means = means[means["value"].notna()]
    own, like = ~is_published(means), means["unlike"] == ""
    if not own.any() or (like & own).any():
        kept = like
    else:
        usual = means[own].groupby("dataset")["unlike"].agg(lambda words: words.mode().iloc[0])
        kept = own & (means["unlike"] == means["dataset"].map(usual))
    left = means[~kept & own]
    names = {f"{row.model} on {dataset_label(row.dataset)} ({row.unlike})" for row in left.itertuples()}
    return means[kept], f"Not drawn, because not alike: {some(sorted(names))}." if names else ""


def accuracies(means: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the comparable top-1 accuracies of the protocol's classifier, and a note."""
    return comparable(means[(means["evaluation"] == LOGREG) & (means["metric"] == "top1")])


def _all_images(means: pd.DataFrame) -> tuple[pd.DataFrame, str, str]:
    """Return the accuracies with all training images, or with the most, and two notes."""
    shown, note = accuracies(means)
    shown = most_images(shown)
    return shown, shots_label(*shown["n_shot"][:1]).capitalize() + "." if len(shown) else "", note


def _differences(means: pd.DataFrame) -> pd.DataFrame:
    """Return differences to the paper's reference; an empty frame without results of it."""
    try:
        return compare.relative_to(means, published.REFERENCE)
    except CogError:
        return means.iloc[:0]


_TO_REFERENCE = f"points to {published.MODELS[published.REFERENCE].label}"


def _by_group(means: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the models of the groups of Fig. 3 (b) to (e), each with the user's models."""
    paper = is_published(means)
    categories = {name: model.category for name, model in published.MODELS.items()}
    group = means["model"].map(categories).where(paper)
    labels = {name: label for name, label in published.CATEGORY_LABELS.items() if name != "reference"}
    parts = {
        label: means[~paper | (group == name)] for name, label in labels.items() if (group == name).any()
    }
    title = "All models" if paper.any() else "Own models"  # the reference alone has no group
    return parts or ({title: means} if len(means) else {})


def levels(means: pd.DataFrame) -> Sheet | None:
    """Draw accuracies of own models among the paper's models, which are gray, except the reference."""
    shown, *notes = _all_images(means)
    if is_published(shown).all():
        return None
    sheet = Sheet(style.looks(shown, gray=True), width=COLUMN * 1.5, height=2.6)
    sheet.lines(sheet.panels[0][0], shown, over_datasets(shown), ylabel=ACCURACY, names=True)
    return sheet.finish(notes[0], BARS, notes[1])


def fig3(means: pd.DataFrame) -> Sheet | None:
    """Draw accuracies on IN-1K and the levels, and differences to the reference per group of models."""
    shown, *notes = _all_images(means)
    groups, ticks = _by_group(_differences(shown)), over_datasets(shown)
    if not groups and not is_published(shown).any():
        return None  # the figure would be that of ``levels``
    columns = max(1, (len(groups) + 1) // 2)
    sheet = Sheet(style.looks(shown), rows=2 if groups else 1, columns=columns, lead=True)
    assert sheet.lead is not None
    sheet.lines(sheet.lead, shown, ticks, title="All models", ylabel=ACCURACY)
    panels = [axes for row in sheet.panels for axes in row]
    for axes, (title, part) in zip(panels, groups.items(), strict=False):
        sheet.lines(axes, part, ticks, title=title, ylabel=_TO_REFERENCE, signed=True)
    return sheet.finish(notes[0], BARS, notes[1])


def drop(means: pd.DataFrame) -> Sheet | None:
    """Draw the change from each model's own IN-1K accuracy in percent (Fig. 3 (c) of the first version)."""
    shown, *notes = _all_images(means)
    if not (shown["dataset"] == constants.IN1K).any() or (changes := compare.drop(shown)).empty:
        return None
    sheet = Sheet(style.looks(shown), width=COLUMN * 1.5, height=2.6)
    label, ticks = "change of top-1 from IN-1K (%)", over_datasets(changes)
    sheet.lines(sheet.panels[0][0], changes, ticks, ylabel=label, signed=True, names=True)
    return sheet.finish(notes[0], BARS, notes[1])


def fewshot(means: pd.DataFrame) -> Sheet | None:
    """Draw accuracies of own models by training images per class, published models in gray."""
    shown, note = accuracies(means)
    own = shown[~is_published(shown)]
    if own["n_shot"].nunique() < 2:
        return None
    shown = shown[shown["n_shot"].isin(own["n_shot"]) & shown["dataset"].isin(own["dataset"])]
    labels = {"x": "n_shot", "xlabel": "images per class", "ylabel": ACCURACY}
    return draw_datasets(shown, over_numbers(shown["n_shot"]), BARS, note, **labels, gray=True)


def fig4(means: pd.DataFrame) -> Sheet | None:
    """Draw few-shot accuracies on three levels, absolute and relative to the reference, from two images on.

    With many models of the paper, only those of its Fig. 4.
    """
    shown, note = accuracies(means)
    shown = shown[shown["dataset"].isin(_FIG4) & (shown["n_shot"] != 1)]
    if shown.loc[is_published(shown), "model"].nunique() > _MANY_PUBLISHED:
        eight = [name for name, model in published.MODELS.items() if model.in_fig4]
        shown = shown[~is_published(shown) | shown["model"].isin(eight)]
    if shown["n_shot"].nunique() < 2:
        return None
    relative, names, ticks = _differences(shown), over_datasets(shown), over_numbers(shown["n_shot"])
    sheet = Sheet(style.looks(shown), rows=1 if relative.empty else 2, columns=len(names), height=1.7)
    frames = ((shown, ACCURACY, False), (relative, _TO_REFERENCE, True))
    for row, (frame, label, signed) in zip(sheet.panels, frames, strict=False):
        for column, (axes, (dataset, name)) in enumerate(zip(row, names.items(), strict=True)):
            labels: dict[str, Any] = {"title": "" if signed else name, "ylabel": "" if column else label}
            sheet.lines(axes, frame[frame["dataset"] == dataset], ticks, x="n_shot", signed=signed, **labels)
    for axes in sheet.panels[-1]:
        axes.set_xlabel("images per class")
    return sheet.finish(BARS, note)


def fig10(means: pd.DataFrame) -> Sheet | None:
    """Draw few-shot accuracies of all models; rows are data sets, columns are groups of models."""
    return _grid(*accuracies(means), "top-1 (%)")


def fig11(means: pd.DataFrame) -> Sheet | None:
    """Draw few-shot accuracies of all models relative to the reference; rows and columns as in Fig. 10."""
    shown, note = accuracies(means)
    return _grid(_differences(shown), note, _TO_REFERENCE, signed=True)


def _grid(shown: pd.DataFrame, note: str, label: str, *, signed: bool = False) -> Sheet | None:
    """Draw numbers by shots: a row for each data set, a column for each group of models."""
    if shown["n_shot"].nunique() < 2:
        return None
    names, ticks, groups = over_datasets(shown), over_numbers(shown["n_shot"]), _by_group(shown)
    sheet = Sheet(style.looks(shown), rows=len(names), columns=len(groups), share_y=True, height=1.25)
    for row, (dataset, name) in enumerate(names.items()):
        for column, (title, group) in enumerate(groups.items()):
            part, heading = group[group["dataset"] == dataset], "" if row else title
            if not part.empty:
                look: dict[str, Any] = {"title": heading, "ylabel": "" if column else f"{name}\n{label}"}
                sheet.lines(sheet.panels[row][column], part, ticks, x="n_shot", signed=signed, **look)
    for axes in sheet.panels[-1]:
        axes.set_xlabel("images per class")
    return sheet.finish(BARS, note)


# --- other experiments than the protocol's; v1 is the first version of the paper

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
    changes = pd.concat([stated, *(compare.relative(means, name, LOGREG, metric) for name in titles)])
    panels = {(name, metric): f"{title}: change from LogReg (%)" for name, title in titles.items()}
    return _over_datasets(changes, panels, BARS)


def fine_tuning(means: pd.DataFrame) -> Sheet | None:
    """Draw frozen features relative to the fine-tuned network, and the accuracy of the latter (Fig. 6)."""
    frozen = compare.relative(means, LOGREG, "finetune", "relative_to_finetune")
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
    dims = [int(name["pca"] or 0) for name in names.loc[are_plain]]
    return _by_number(top1.loc[are_plain].assign(number=dims), "principal components")


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
    ticks = over_numbers(shown["number"])
    return draw_datasets(shown, ticks, BARS, note, x="number", xlabel=label, ylabel="top-1 (%)")


#: The figures by name, with their captions. A further one is a function here, and a line.
FIGURES: dict[str, tuple[Callable[[pd.DataFrame], Sheet | None], str]] = {
    "levels": (levels, "Accuracy from IN-1K to the levels"),
    "fewshot": (fewshot, "Own models by training images per class"),
    "fig3": (fig3, "IN-1K and the levels: accuracies, and differences to ResNet50 (paper, Fig. 3)"),
    "fig4": (fig4, "Few-shot accuracies on three levels (paper, Fig. 4)"),
    "fig10": (fig10, "Few-shot accuracies of all models (paper, Fig. 10)"),
    "fig11": (fig11, "Few-shot accuracies relative to ResNet50 (paper, Fig. 11)"),
    "drop": (drop, "Change since IN-1K (first version, Fig. 3 c)"),
    "v1_fig5": (purity, "Purity of k-means clusters (first version, Fig. 5)"),
    "v1_fig8": (components, "Principal components (first version, Fig. 8)"),
    "v1_fig9": (clustering, "Agreement of k-means clusters with classes (first version, Fig. 9)"),
    "v1_fig10": (alignment, "Alignment and uniformity (first version, Fig. 10)"),
    "mlp": (mlp, "MLPs relative to logistic regression (first version, Table 3)"),
    "fig6": (fine_tuning, "Frozen features and fine-tuning (paper, Fig. 6)"),
    "knn": (neighbors, "Nearest neighbors"),
}
