"""Figures of the protocol's accuracies: functions from means to a sheet, None without such numbers."""

from __future__ import annotations

import pandas as pd

from cog import constants
from cog.errors import CogError, some
from cog.reporting.figures import style
from cog.reporting.figures.lines import COLUMN, Sheet, draw_datasets, over_datasets, over_numbers
from cog.results import compare, published
from cog.results.frame import LOGREG, dataset_label, shots_label

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
    own, like = ~style.is_published(means), means["unlike"] == ""
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
    shown = shown[shown["n_shot"] == (0 if (shown["n_shot"] == 0).any() else shown["n_shot"].max())]
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
    paper = style.is_published(means)
    group = (
        means["model"].map({name: model.category for name, model in published.MODELS.items()}).where(paper)
    )
    labels = {name: label for name, label in published.CATEGORY_LABELS.items() if name != "reference"}
    parts = {
        label: means[~paper | (group == name)] for name, label in labels.items() if (group == name).any()
    }
    return {"Own models": means} if len(means) and not paper.any() else parts


def levels(means: pd.DataFrame) -> Sheet | None:
    """Draw accuracies of own models among the paper's models, which are gray, except the reference."""
    shown, *notes = _all_images(means)
    if style.is_published(shown).all():
        return None
    sheet = Sheet(style.looks(shown, gray=True), width=COLUMN * 1.5, height=2.6)
    sheet.lines(sheet.panels[0][0], shown, over_datasets(shown), ylabel=ACCURACY, names=True)
    return sheet.finish(notes[0], BARS, notes[1])


def fig3(means: pd.DataFrame) -> Sheet | None:
    """Draw accuracies on IN-1K and the levels, and differences to the reference per group of models."""
    shown, *notes = _all_images(means)
    if shown.empty:
        return None
    groups, ticks = _by_group(_differences(shown)), over_datasets(shown)
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
    own = shown[~style.is_published(shown)]
    if own.empty or shown["n_shot"].nunique() < 2:
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
    if shown.loc[style.is_published(shown), "model"].nunique() > _MANY_PUBLISHED:
        eight = [name for name, model in published.MODELS.items() if model.in_fig4]
        shown = shown[~style.is_published(shown) | shown["model"].isin(eight)]
    if shown["n_shot"].nunique() < 2:
        return None
    relative, names, ticks = _differences(shown), over_datasets(shown), over_numbers(shown["n_shot"])
    sheet = Sheet(style.looks(shown), rows=1 if relative.empty else 2, columns=len(names), height=1.7)
    frames = ((shown, ACCURACY, False), (relative, _TO_REFERENCE, True))
    for row, (frame, label, signed) in zip(sheet.panels, frames, strict=False):
        for column, (axes, (dataset, name)) in enumerate(zip(row, names.items(), strict=True)):
            labels = {"title": "" if signed else name, "ylabel": "" if column else label}
            sheet.lines(axes, frame[frame["dataset"] == dataset], ticks, x="n_shot", signed=signed, **labels)
    for axes in sheet.panels[-1]:
        axes.set_xlabel("images per class")
    return sheet.finish(BARS, note)


def fig10(means: pd.DataFrame) -> Sheet | None:
    """Draw few-shot accuracies of all models; rows are data sets, columns are groups of models."""
    shown, note = accuracies(means)
    return _grid(shown, note, "top-1 (%)")


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
            part, labels = group[group["dataset"] == dataset], {"title": "" if row else title}
            if not part.empty:
                labels["ylabel"] = "" if column else f"{name}\n{label}"
                sheet.lines(sheet.panels[row][column], part, ticks, x="n_shot", signed=signed, **labels)
    for axes in sheet.panels[-1]:
        axes.set_xlabel("images per class")
    return sheet.finish(BARS, note)
