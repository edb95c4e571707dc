"""Figures of the protocol's accuracies: functions from means to a sheet, None where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from cog import constants
from cog.errors import CogError, some
from cog.reporting.figures import style
from cog.reporting.figures.lines import COLUMN, Sheet, over_datasets, over_shots
from cog.results import compare, published
from cog.results.frame import LOGREG, dataset_label, shots_label

ACCURACY = "top-1 accuracy (%)"
BARS = "Error bars: standard deviation over seeds; paler, where known: 95 % interval over concepts and seeds."

#: Data sets of Fig. 4 of the paper.
_FIG4 = ("cog_l1", "cog_l3", "cog_l5")

# With more models of the paper than this, Fig. 4 shows only its eight.
_MANY_PUBLISHED = 12


def comparable(means: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the means that may stand beside each other, and notes on the others.

    These are those on the benchmark's data with the paper's protocol; where the user has none of them, those of the
    user that are alike on each data set, without published ones.
    """
    means = means[means["value"].notna()]
    own = ~means["source"].map(style.is_published).astype(bool)
    like = means["unlike"] == ""
    if (like & own).any() or not own.any():
        kept = like
    else:
        usual = means[own].groupby("dataset")["unlike"].agg(lambda words: words.mode().iloc[0])
        kept = own & (means["unlike"] == means["dataset"].map(usual))
    left = means[~kept & own]
    names = [f"{row.model} on {dataset_label(row.dataset)} ({row.unlike})" for row in left.itertuples()]
    notes = [f"Not drawn, because not alike: {some(sorted(set(names)))}."] if names else []
    return means[kept], notes


def accuracies(means: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the comparable top-1 accuracies of the protocol's classifier, and notes."""
    return comparable(means[(means["evaluation"] == LOGREG) & (means["metric"] == "top1")])


def all_images(means: pd.DataFrame) -> pd.DataFrame:
    """Return the means with all training images, or with the most."""
    return means[means["n_shot"] == (0 if (means["n_shot"] == 0).any() else means["n_shot"].max())]


def _shots(means: pd.DataFrame) -> str:
    """Return the number of training images as a sentence."""
    return shots_label(means["n_shot"].iloc[0]).capitalize() + "."


def differences(means: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return differences to the paper's reference, and its name; an empty frame without results of it."""
    try:
        return compare.relative_to(means, published.REFERENCE), published.MODELS[published.REFERENCE].label
    except CogError:
        return means.iloc[:0], ""


def by_group(means: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the groups of Fig. 3 (b) to (e) with their models, each with the user's models."""
    group = pd.Series(
        [style.group_of(*place) for place in zip(means["model"], means["source"], strict=True)], means.index
    )
    own = group == style.OWN
    for name, title in style.GROUPS.items():
        if (group == name).any():
            yield title, means[own | (group == name)]
    if own.all() and own.any():
        yield style.OWN, means


def levels(means: pd.DataFrame) -> Sheet | None:
    """Draw accuracies of own models among the paper's models, which are gray, except the reference."""
    shown, notes = accuracies(means)
    shown = all_images(shown)
    if shown["source"].map(style.is_published).all():
        return None
    sheet = Sheet(style.looks(shown, gray=True), width=COLUMN * 1.5, height=2.6)
    sheet.lines(sheet.panels[0][0], shown, over_datasets(shown), y_label=ACCURACY, names=True)
    return sheet.finish(_shots(shown), BARS, *notes)


def fig3(means: pd.DataFrame) -> Sheet | None:
    """Draw accuracies on IN-1K and the levels, and differences to the reference per group of models."""
    shown, notes = accuracies(means)
    shown = all_images(shown)
    if shown.empty:
        return None
    relative, reference = differences(shown)
    groups = list(by_group(relative))
    ticks = over_datasets(shown)
    sheet = Sheet(
        style.looks(shown), rows=2 if groups else 1, columns=max(1, (len(groups) + 1) // 2), lead=True
    )
    assert sheet.lead is not None
    sheet.lines(sheet.lead, shown, ticks, title="All models", y_label=ACCURACY)
    panels = [axes for row in sheet.panels for axes in row]
    for axes, (title, part) in zip(panels, groups, strict=False):
        sheet.lines(axes, part, ticks, title=title, y_label=f"points to {reference}", signed=True)
    return sheet.finish(_shots(shown), BARS, *notes)


def drop(means: pd.DataFrame) -> Sheet | None:
    """Draw the change from each model's own IN-1K accuracy in percent (Fig. 3 (c) of the paper's first version)."""
    shown, notes = accuracies(means)
    shown = all_images(shown)
    if not (shown["dataset"] == constants.IN1K).any() or (changes := compare.drop(shown)).empty:
        return None
    sheet = Sheet(style.looks(shown), width=COLUMN * 1.5, height=2.6)
    label = "change of top-1 from IN-1K (%)"
    sheet.lines(sheet.panels[0][0], changes, over_datasets(changes), y_label=label, signed=True, names=True)
    return sheet.finish(_shots(shown), BARS, *notes)


def fewshot(means: pd.DataFrame) -> Sheet | None:
    """Draw accuracies of own models by training images per class, a panel per data set, published models in gray."""
    shown, notes = accuracies(means)
    if shown["source"].map(style.is_published).all() or shown["n_shot"].nunique() < 2:
        return None
    own = shown[~shown["source"].map(style.is_published)]
    shown = shown[shown["n_shot"].isin(own["n_shot"]) & shown["dataset"].isin(own["dataset"])]
    names, ticks = over_datasets(shown), over_shots(shown)
    columns = min(3, len(names))
    sheet = Sheet(style.looks(shown, gray=True), rows=-(-len(names) // columns), columns=columns, height=1.7)
    for position, (dataset, title) in enumerate(names.items()):
        axes, part = sheet.panels[position // columns][position % columns], shown[shown["dataset"] == dataset]
        y_label = ACCURACY if position % columns == 0 else ""
        sheet.lines(axes, part, ticks, x="n_shot", title=title, x_label="images per class", y_label=y_label)
    return sheet.finish(BARS, *notes)


def fig4(means: pd.DataFrame) -> Sheet | None:
    """Draw few-shot accuracies on three levels, absolute and relative to the reference, from two images on.

    With many models of the paper, only those of its Fig. 4.
    """
    shown, notes = accuracies(means)
    shown = shown[shown["dataset"].isin(_FIG4) & (shown["n_shot"] != 1)]
    paper = shown["source"].map(style.is_published)
    if shown.loc[paper, "model"].nunique() > _MANY_PUBLISHED:
        in_fig4 = shown["model"].map(
            lambda model: model in published.MODELS and published.MODELS[model].in_fig4
        )
        shown = shown[~paper | in_fig4]
    return _of_shots(shown, {"": shown}, notes)


def fig10(means: pd.DataFrame) -> Sheet | None:
    """Draw few-shot accuracies of all models; rows are data sets, columns are groups of models."""
    shown, notes = accuracies(means)
    return _grid(shown, dict(by_group(shown)), notes, y_label="top-1 (%)")


def fig11(means: pd.DataFrame) -> Sheet | None:
    """Draw few-shot accuracies of all models relative to the reference; rows and columns as in Fig. 10."""
    shown, notes = accuracies(means)
    relative, reference = differences(shown)
    return _grid(relative, dict(by_group(relative)), notes, y_label=f"points to {reference}", signed=True)


def _of_shots(shown: pd.DataFrame, groups: dict[str, pd.DataFrame], notes: list[str]) -> Sheet | None:
    """Draw a row of absolute accuracies over data sets, and one of differences to the reference."""
    if shown["n_shot"].nunique() < 2:
        return None
    relative, reference = differences(shown)
    names, ticks = over_datasets(shown), over_shots(shown)
    sheet = Sheet(style.looks(shown), rows=1 if relative.empty else 2, columns=len(names), height=1.7)
    for column, (dataset, title) in enumerate(names.items()):
        part, left = shown[shown["dataset"] == dataset], column == 0
        y_label = ACCURACY if left else ""
        sheet.lines(sheet.panels[0][column], part, ticks, x="n_shot", title=title, y_label=y_label)
        if len(sheet.panels) > 1:
            part, y_label = relative[relative["dataset"] == dataset], f"points to {reference}" if left else ""
            axes = sheet.panels[1][column]
            sheet.lines(axes, part, ticks, x="n_shot", title=title, y_label=y_label, signed=True)
        sheet.panels[-1][column].set_xlabel("images per class")
    return sheet.finish(BARS, *notes)


def _grid(
    shown: pd.DataFrame,
    groups: dict[str, pd.DataFrame],
    notes: list[str],
    *,
    y_label: str,
    signed: bool = False,
) -> Sheet | None:
    """Draw numbers by shots: a row for each data set, a column for each group of models."""
    if shown["n_shot"].nunique() < 2:
        return None
    names, ticks = over_datasets(shown), over_shots(shown)
    sheet = Sheet(style.looks(shown), rows=len(names), columns=len(groups), share_y=True, height=1.25)
    for row, (dataset, name) in enumerate(names.items()):
        for column, (title, group) in enumerate(groups.items()):
            axes, part = sheet.panels[row][column], group[group["dataset"] == dataset]
            if not part.empty:
                label = f"{name}\n{y_label}" if column == 0 else ""
                heading = title if row == 0 else ""
                sheet.lines(axes, part, ticks, x="n_shot", title=heading, y_label=label, signed=signed)
    for axes in sheet.panels[-1]:
        axes.set_xlabel("images per class")
    return sheet.finish(BARS, *notes)
