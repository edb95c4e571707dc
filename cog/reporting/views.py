"""Tables for readers: views of means with titles, rows, headers and cells as text.

A view is a function from the frame of :func:`cog.results.frame.average` to a long frame: its numbers, and
:data:`TEXTS`, which :mod:`cog.reporting.render` pivots. A further view is a function here, and a line of
:data:`VIEWS`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from cog import constants
from cog.constants import PRETRAINING
from cog.errors import CogError, printable, some
from cog.results import compare, metrics, published
from cog.results.frame import (
    CLASSIFIER,
    LOGREG,
    PLACE,
    RUNS,
    UNKNOWN,
    dataset_key,
    is_classifier,
    is_odd,
    is_published,
    natural_key,
    shots_column,
    shots_label,
    shows_levels,
)

#: Columns for readers: title of a table, its number among all, label of a row, header of a column, and cell.
TEXTS = ["title", "table", "row", "head", "cell"]

#: Mark of a model that may have seen concepts of the levels, and of one on other data or of other settings
#: than others.
SEEN, UNLIKE = "†", "‡"

_OVER_CONCEPTS = "[ ]: 95 % interval over concepts (with their images) and seeds; of one seed over concepts."
_OF_ANALYSES = "[ ]: 95 % bootstrap interval over concepts; seeds are averaged before."
_OF_DROP = "[ ]: 95 % interval over concepts (with their images) of both data sets, independent, and seeds."
_NO_BASE = "Left out, without a mean, or without one on in1k of as many shots, alike in settings and data"
_TOLD = (
    "[ ]: 95 % interval over concepts (with their images) and common seeds, paired over both. *: higher or "
    "lower, as the interval excludes 0 also after Holm's correction for all differences shown. ?: no verdict "
    "(other data or settings, no counts per concept, or fewer than two common seeds). The others cannot be "
    "told apart. No interval covers another pretraining."
)
_DEVIATION = "±: deviation of the differences of common seeds, else sqrt(s1^2 + s2^2) of two single runs."
_WITHIN = (
    "within: the difference is at most the combined deviation sqrt(s1^2 + s2^2) plus "
    f"{compare.PUBLISHED_ROUNDING} for the rounding of the published mean; ?: a deviation is not known."
)

# Tables of the papers by data set (Tables 5-10), and of the first version by group of experiments.
_TABLES = {dataset: 5 + index for index, dataset in enumerate(constants.DATASETS)}
_V1_TABLES = {"mlp": 3, "pca": 5, "kmeans": 6}


def accuracy(means: pd.DataFrame, by: str = "dataset") -> pd.DataFrame:
    """Return the means: models x data sets by shots, or with ``by="n_shot"`` the other way round."""
    title = "{metric} accuracy (%), {of}" + _spread(means, ", mean ± std over seeds")
    notes = [_OVER_CONCEPTS] if means["low"].notna().any() else []
    own = means["source"].eq(RUNS) & means["metric"].eq("top1")
    bare = means[own & means["value"].notna() & means["low"].isna()]
    if len(bare):
        models = "all runs" if len(bare) == len(means) else some(list(bare["model"].unique()))
        reason = "No interval without counts per concept, as runs of the authors' toolkit have none"
        notes.append(f"{reason}: {models}.")
    return readable(means, title, cells(means), by, notes)


def fewshot(means: pd.DataFrame) -> pd.DataFrame:
    """Return the means: models x shots for each data set, as Tables 5 to 10 of the paper."""
    return accuracy(means, by="n_shot")


def rank(means: pd.DataFrame) -> pd.DataFrame:
    """Return ranks, see :func:`cog.results.compare.rank`; the best mean rank comes first."""
    view = compare.rank(means)
    among = view["rank_31"].notna() & (view["source"] == RUNS)
    ranks = view["rank"].map("{:.0f}".format) + view["rank_31"].map(" ({:.0f})".format).where(among, "")
    notes = ["Equal accuracies share the better rank (1, 2, 2, 4)."]
    if is_published(view).any():
        notes.append("Means are rounded to 0.1, as published.")
    if among.any():
        notes.append("( ): place beside the paper's 31 models, from 1 to 32.")
    texts = list(ranks.where(view["rank"].notna(), "-"))
    return readable(view, "rank by {metric} accuracy, {of}", texts, notes=notes)


def drop(means: pd.DataFrame) -> pd.DataFrame:
    """Return changes since IN-1K, see :func:`cog.results.compare.drop`."""
    view = compare.drop(means)
    title = "{metric} accuracy, change since the model's own in1k (% of it), {of}"
    title += _spread(view, ", ± combined deviation over seeds")
    notes = [_OF_DROP] if view["low"].notna().any() else []
    places, shown = (frame.set_index(PLACE).index for frame in (means, view))
    if len(left := means[~places.isin(shown) & (means["dataset"] != constants.IN1K)]):
        notes.append(f"{_NO_BASE}: {some(_places(left, 'model'), 6)}.")
    return readable(view, title, cells(view, "+"), notes=notes)


def relative_to(means: pd.DataFrame, model: str) -> pd.DataFrame:
    """Return differences to a model, see :func:`cog.results.compare.relative_to`."""
    view = compare.relative_to(means, model)
    marks = {"higher": " *", "lower": " *", "cannot be told apart": ""}
    shown = view.assign(std=view["std"].where(view["low"].isna()))
    pairs = zip(cells(shown, "+"), view["reading"], strict=True)
    texts = [text if text == "-" else text + marks.get(reading, " ?") for text, reading in pairs]
    notes = [_TOLD, _DEVIATION] if shown["std"].notna().any() else [_TOLD]
    other = view[view["source"] != view["baseline_source"]]
    for source, part in other.groupby("baseline_source", sort=False):
        rows = f"The baseline of rows from {', '.join(part['source'].unique())} is {model} from {source}"
        notes.append(f"{rows}: the two trainings may differ in more than the model.")
    for reading, part in view[view["value"].isna()].groupby("reading", sort=False):
        notes.append(f"{reading}: {some(list(part['model'].unique()))}.")
    title = f"{{metric}} accuracy, difference to {model} (points), {{of}}"
    return readable(view, title, texts, notes=notes)


def analysis(means: pd.DataFrame, wanted: Sequence[str]) -> pd.DataFrame:
    """Return results of analyses and of other classifiers: a table for each number, models x data sets.

    ``wanted`` are names of groups (``mlp``, ``pca``, ``kmeans``), of evaluations or their beginnings
    (``cross``: all ``cross_<dataset>``), or ``all``. An analysis is shown without changes here.

    Raises:
        CogError: there is no result of these.
    """
    means = compare.derived(means)
    of_protocol = (means["evaluation"] == LOGREG) & means["metric"].isin(metrics.METRIC_LABELS)
    place = ["evaluation", "metric", "n_shot"]
    groups = dict(tuple(_with_intervals(means[~of_protocol]).groupby(place, sort=False)))
    there = {key: metrics.describe(*key) for key in groups}
    chosen = [
        key
        for key, metric in there.items()
        if {"all", metric.group} & {*wanted} or any(f"{key[0]}_".startswith(f"{name}_") for name in wanted)
    ]
    if not chosen:
        names = sorted({metric.group for metric in there.values()}, key=natural_key)
        which = "any analysis" if "all" in wanted else f"the analysis {' or '.join(wanted)}"
        hint = f"there is {', '.join(names)}" if names else "analyze_features.py makes them"
        raise CogError(f"nothing to show: no result of {which} among those read; {hint}")
    parts, notes = [], []
    for number, key in enumerate(sorted(chosen, key=lambda key: there[key].order)):
        part, metric = groups[key], there[key]
        title = f"{metric.title}, lower is better" if metric.better < 0 else metric.title
        if set(part["source"]) == {published.SOURCES["v1"]} and metric.group in _V1_TABLES:
            title += f" (Table {_V1_TABLES[metric.group]} of {published.SOURCES['v1']})"
        shown = part.assign(std=part["std"].mask(part["recorded"]))
        texts = cells(shown, "+" if metric.signed else "", metric.decimals)
        shown = readable(part.drop(columns="recorded"), printable(title), texts)
        parts.append(shown.assign(table=number, unit=metric.unit))
        notes += [metric.note] * bool(metric.note)
        if part["low"].notna().any() and not metric.shows_range:
            notes.append(_OVER_CONCEPTS if is_classifier(key[0]) else _OF_ANALYSES)
    heads = sorted({str(head) for part in parts for head in part["head"]}, key=dataset_key)
    return _together(parts, heads, notes)


def _together(parts: list[pd.DataFrame], heads: Sequence[str], notes: list[str]) -> pd.DataFrame:
    view = pd.concat([part.astype({"head": str, "row": str}) for part in parts], ignore_index=True)
    view["head"] = pd.Categorical(view["head"], heads)
    view["row"] = pd.Categorical(view["row"], view["row"].unique())
    view.attrs["notes"] = list(dict.fromkeys(notes))
    return view


def _with_intervals(means: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers with the intervals that analyses record as ``<metric>_low`` and ``_high``.

    The uncertainty of such a number comes from the concepts; a deviation over seeds beside it would look like
    its error. For a number of one chosen repetition (k-means), the interval is the range over all
    repetitions, ``_min`` and ``_max``.
    """
    place = ["source", "model", "dataset", "evaluation", "n_shot"]
    places = list(means[place].itertuples(index=False, name=None))
    known = dict(zip(zip(places, means["metric"], strict=True), means["value"], strict=True))
    keep, ends = [], []
    for at, metric in known:
        base, _, end = metric.rpartition("_")
        keep.append(end not in ("low", "high", "std", "min", "max") or (at, base) not in known)
        is_range = metrics.describe(at[3], metric, at[4]).shows_range
        names = ("min", "max") if is_range else ("low", "high")
        ends.append([known.get((at, f"{metric}_{name}"), np.nan) for name in names])
    low, high = np.reshape(np.array(ends, float), (-1, 2)).T
    recorded = ~np.isnan(low) & ~np.isnan(high) & means["low"].isna()
    both = {"low": means["low"].mask(recorded, low), "high": means["high"].mask(recorded, high)}
    return means.assign(**both, recorded=recorded)[np.array(keep, bool)]


def beside_published(means: pd.DataFrame, version: str) -> pd.DataFrame:
    """Return tables of results beside the published ones (:func:`cog.results.compare.beside_published`)."""
    view = compare.beside_published(means, version)
    view = view[view["published"].notna()].reset_index(drop=True)
    paper = view.assign(value=view["published"], std=view["published_std"], low=np.nan, missing="")
    columns = {
        "here": cells(view.assign(low=np.nan)),
        "published": cells(paper),
        "difference": [number_text(value, 1, "+") for value in view["difference"]],
        "combined std": ["?" if np.isnan(value) else f"{value:.1f}" for value in view["combined_std"]],
        "within": list(view["within"]),
    }
    title = f"{{metric}} accuracy (%) beside {published.SOURCES[version]}, {{of}}"
    shown = readable(view, title, columns["here"])
    shown["row"] = shown["row"].astype(str) + ", " + shown["head"].astype(str)
    parts = [shown.assign(head=head, cell=texts) for head, texts in columns.items()]
    return _together(parts, list(columns), [_WITHIN] * bool(len(view)))


def most_images(means: pd.DataFrame) -> pd.DataFrame:
    """Return the means with all training images, or with the most of the user's models if these have none."""
    own = ~is_published(means)
    shots = set(means.loc[own if own.any() else ~own, "n_shot"])
    return means[means["n_shot"] == (0 if 0 in shots else max(shots, default=0))]


#: Views of ``--show`` by name.
VIEWS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "accuracy": accuracy,
    "fewshot": fewshot,
    "rank": rank,
    "drop": drop,
}


# --- what tables are made of


def cells(view: pd.DataFrame, sign: str = "", decimals: int = 1) -> list[str]:
    """Return the text of each row, such as ``70.2 ± 1.4 (2/5) [50.1, 84.7]``; ``-`` without a number."""
    texts = []
    columns = (view[name] for name in ("value", "std", "low", "high", "n_seeds", "missing"))
    for value, std, low, high, n_seeds, missing in zip(*columns, strict=True):
        text = number_text(value, decimals, sign)
        text += "" if np.isnan(std) else f" ± {std:.{decimals}f}"
        text += f" ({n_seeds}/{n_seeds + len(missing.split())})" if missing else ""
        if not np.isnan(low):
            text += f" [{number_text(low, decimals, sign)}, {number_text(high, decimals, sign)}]"
        texts.append("-" if np.isnan(value) else text)
    return texts


def number_text(value: float, decimals: int, sign: str = "") -> str:
    """Return a number with a fixed number of digits after the point, never as ``-0.0``."""
    text = f"{value:{sign}.{decimals}f}"
    return text.lstrip("+-") if float(text) == 0 else text


def _spread(view: pd.DataFrame, words: str) -> str:
    return words if view["std"].notna().any() else ""


def readable(
    view: pd.DataFrame, title: str, texts: Sequence[str], by: str = "dataset", notes: Sequence[str] = ()
) -> pd.DataFrame:
    """Return a view with :data:`TEXTS`, and ``attrs["notes"]``, the lines below the tables.

    Args:
        view: rows in display order.
        title: title of a table; ``{metric}`` and ``{of}`` stand for the metric and what the table is of.
        texts: cell of each row.
        by: column whose values are the headers, ``dataset`` or ``n_shot``; the other one separates tables.
        notes: lines below the tables.
    """
    sources = set(view["source"])
    only = f" [{printable(next(iter(sources)))}]" if len(sources) == 1 and RUNS not in sources else ""
    names = sorted(view["dataset"].unique(), key=dataset_key)
    if by == "dataset":
        heads, order, parts, of = view["dataset"], names, view["n_shot"], view["n_shot"].map(shots_label)
    else:
        heads, parts = view["n_shot"].map(shots_column), view["dataset"].map(names.index)
        order = list(map(shots_column, sorted(view["n_shot"].unique(), key=lambda n: (n == 0, n))))
        table = " (Table {} of the paper)" if sources == {published.SOURCES["v2"]} else ""
        of = view["dataset"].map(lambda name: name + table.format(_TABLES.get(name)))
    pairs = zip(view["metric"], of, strict=True)
    titles = [title.format(metric=metrics.METRIC_LABELS.get(m, m), of=o) + only for m, o in pairs]
    rows, heads = labels(view), pd.Categorical(heads, order)
    rows = pd.Categorical(rows, rows.unique())
    made = view.assign(title=titles, table=parts, row=rows, head=heads, cell=list(texts))
    made.attrs["notes"] = list(notes)
    return made


def labels(view: pd.DataFrame) -> pd.Series:
    """Return the label of each row: model, marks, and source unless it is runs or the only one."""
    seen = view["pretraining"].ne(PRETRAINING[0]) & shows_levels(view["dataset"].unique())
    unlike = is_odd(view).groupby([view["source"], view["model"]]).transform("any")
    label = view["model"].where(view["model"] != "", "these runs")
    label += np.where(seen, f" {SEEN}", "")
    label += np.where(unlike, f" {UNLIKE}", "")
    told = (view["source"] != RUNS) & (view["source"].nunique() > 1)
    return label + (" [" + view["source"].map(printable) + "]").where(told, "")


def footnotes(view: pd.DataFrame) -> list[str]:
    """Return the lines below all tables of a view: missing seeds, no means, what is unlike, marks, notes."""
    lines = []
    sizes = view["row"].value_counts()
    for missing, part in view[view["missing"] != ""].groupby("missing", sort=False):
        where = [
            row if len(heads) == sizes[row] else f"{row} ({', '.join(heads.astype(str).unique())})"
            for row, heads in part.groupby("row", sort=False, observed=True)["head"]
        ]
        lines.append(f"missing seeds {missing.replace(' ', ', ')}: {_where(where, part, view)}")
    for note, part in view[view["note"] != ""].groupby("note", sort=False):
        lines.append(f"no mean, as {note}: {_where(_places(part), part, view)}")
    named = view["dataset"].isin(constants.DATASETS) | is_odd(view) | (view["protocol"] != "")
    named |= view["data"].str.startswith("limit-")
    mark = f"{UNLIKE}: " if view["row"].astype(str).str.contains(UNLIKE).any() else ""
    for unlike, part in view[(view["unlike"] != "") & named].groupby("unlike", sort=False):
        lines.append(
            f"{mark}not the benchmark's data or the paper's settings, and only compared with their like "
            f"({printable(unlike)}): {_where(_places(part), part, view)}"
        )
    unverified = (view["data"] == UNKNOWN) & (view["source"] != RUNS)
    if len(places := _places(view[unverified & view["dataset"].isin(constants.DATASETS)])):
        lines.append(
            f"unverified: {some(places)}; the file does not say how many classes and images these are on, so "
            "the benchmark's are assumed"
        )
    found = map(CLASSIFIER.fullmatch, view.loc[view["source"] == RUNS, "evaluation"].unique())
    kinds = {match[0]: match for match in found if match}
    if len(kinds) == 1 and LOGREG not in kinds and "unit" not in view:
        ((kind, match),) = kinds.items()
        lines.append(f"classifier of the runs: {metrics.classifier_label(match)} ({kind})")
    return [*lines, *view.attrs.get("notes", []), *_seen_note(view)]


def _places(part: pd.DataFrame, by: str = "row") -> list[str]:
    rows = part.groupby(by, sort=False, observed=True)["dataset"]
    return [f"{row} on {', '.join(group.unique())}" for row, group in rows]


def _where(places: Sequence[str], part: pd.DataFrame, view: pd.DataFrame) -> str:
    return "everywhere" if len(part) == len(view) else some(list(places), 6)


def _seen_note(view: pd.DataFrame) -> list[str]:
    """Return the footnote that explains the mark of models that may have seen the levels, or nothing."""
    marked = view[view["row"].astype(str).str.contains(SEEN)]
    parts = []
    for kind in PRETRAINING[1:]:
        models = marked.loc[marked["pretraining"] == kind, "model"].unique()
        if len(models):
            parts.append(f"{'not stated' if kind == PRETRAINING[-1] else kind}: {some(list(models))}")
    if not parts:
        return []
    state = "State it as pretraining in the models.yaml of extract_features.py."
    text = f"{SEEN}: pretraining may have held concepts of L1 to L5, then not unseen ({'; '.join(parts)})."
    return [" ".join([text, *[state] * parts[-1].startswith("not stated")])]


def seed_by_seed(scores: pd.DataFrame, means: pd.DataFrame, version: str | None = None) -> str:
    """Return a line for each seed of one model, data set and number of shots, and a line for each metric.

    ``version`` is that of the paper to compare with, or None.
    """
    lines = []
    for seed, part in scores.groupby("seed"):
        values = part.set_index("metric")["value"]
        shown = (f"{label} {values[name]:.2f}" for name, label in metrics.METRIC_LABELS.items())
        lines.append(f"seed {seed}: {', '.join(shown)}")
    by_metric = means.set_index("metric")
    for name, label in metrics.METRIC_LABELS.items():
        row = by_metric.loc[name]
        count = f"{row['n_seeds']} seed{'' if row['n_seeds'] == 1 else 's'}"
        text = f"{row['value']:.2f} +- {np.nan_to_num(row['std']):.2f}"
        text = f"no mean, as {row['note']}" if row["note"] else text
        lines.append(f"{label}: {text} (test/{name}, {count})")
    top1 = by_metric.loc["top1"]
    if top1["missing"]:
        lines.append(f"missing seeds: {', '.join(top1['missing'].split())}")
    if top1["unlike"]:
        lines.append(f"not the benchmark's data or the paper's settings: {top1['unlike']}")
    if version is not None:
        lines.append(f"{published.SOURCES[version]}: {_beside(means, version)}")
    return "\n".join(lines) + "\n"


def _beside(means: pd.DataFrame, version: str) -> str:
    """Return a comparison of an accuracy with the published one in words."""
    row: Any = compare.beside_published(means[means["metric"] == "top1"], version).iloc[0]
    if np.isnan(row["published"]):
        odd = row["unlike"] or row["note"]
        return f"not compared: {odd}" if odd else "no number of this model, data set and number of shots"
    difference = f"difference {number_text(row['difference'], 2, '+')}"
    if row["within"] == "?":
        unknown = np.isnan(row["published_std"])
        reason = "the deviation was not published" if unknown else "one seed has no deviation"
        return f"{row['published']:.1f}; {difference} ({reason})"
    words = "within" if row["within"] == "yes" else "beyond"
    return (
        f"{row['published']:.1f} +- {row['published_std']:.1f}; {difference}, {words} the combined deviation "
        f"of {row['combined_std']:.2f}"
    )
