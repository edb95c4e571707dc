"""Views of means: ranks, changes since IN-1K, differences to a model, and numbers beside the published ones.

Each is a function from the frame of :func:`cog.results.frame.average` to a frame with further columns. Means
on other data or of other settings (``unlike``) are never ranked or compared with each other or with published
numbers.

*Differences are paired over seeds and concepts.* Runs of two models with the same seed have the same split
for the search, images drawn in few-shot, and order of training. They are tested on the same images of the
same concepts. So a difference is taken per seed and concept, with an interval over both
(:mod:`cog.results.uncertainty`). A verdict ("higher", "lower") is given only if the interval excludes zero
after Holm's correction for the number of comparisons that are shown together. Seeds vary only the training of
the classifier (and the images drawn in few-shot): a difference with the same sign for all seeds may rest on a
handful of images. No interval covers another pretraining of the method.
"""

from __future__ import annotations

import functools
import math
import operator
import statistics
from typing import Any

import numpy as np
import pandas as pd

from cog import constants
from cog.errors import CogError, did_you_mean
from cog.results import metrics, published, uncertainty
from cog.results.frame import LOGREG, in_order, is_classifier, is_odd

#: Probability of any false verdict among the comparisons that are shown together.
ERROR_RATE = 0.05

#: Half a unit of the last digit of the published means and deviations.
PUBLISHED_ROUNDING = 0.05

# Digits of published means after the point, at which means are compared for ranks beside them.
_PUBLISHED_DECIMALS = 1

# Decimal fractions are not exact in binary: 75.9 - 75.8 is a little more than 0.1.
_BINARY = 1e-9

#: Columns that two means of a comparison share.
CELL = ["dataset", "evaluation", "n_shot", "metric"]


@functools.cache
def published_values(version: str = "v2") -> dict[tuple[str, int], np.ndarray]:
    """Return the published top-1 accuracies of all models by data set and number of shots."""
    values: dict[tuple[str, int], list[float]] = {}
    for row in published.rows(version):
        if (row["evaluation"], row["metric"]) == (LOGREG, "top1"):
            values.setdefault((row["dataset"], row["n_shot"]), []).append(row["value"])
    return {place: np.array(some) for place, some in values.items()}


def rank(means: pd.DataFrame) -> pd.DataFrame:
    """Return ranks, best model first; equal means share the better rank (1, 2, 2, 4).

    Beside published means, all means are compared at their one decimal.

    Returns:
        ``means`` with::

            rank, n_ranked   rank among the shown means of like data and settings, and their number; missing
                             for means that are not like the others of their data set
            mean_rank        mean of a source and model over the data sets, by number of shots
            rank_31          rank of an accuracy among the 31 published ones, if it can be compared
    """
    view = means[means["note"] == ""]
    beside_paper = view["source"].isin(published.SOURCES.values()).any()
    value = view["value"].round(_PUBLISHED_DECIMALS) if beside_paper else view["value"]
    alike = value.groupby([*(view[name] for name in CELL), view["unlike"]])
    ranks = alike.rank(ascending=False, method="min").mask(is_odd(view))
    view = view.assign(rank=ranks, n_ranked=alike.transform("count"))
    among = []
    for row in view.itertuples():
        known = published_values().get((row.dataset, row.n_shot))
        fits = row.unlike == "" and (row.evaluation, row.metric) == (LOGREG, "top1") and known is not None
        value = round(row.value, _PUBLISHED_DECIMALS)
        among.append(1 + (known > value).sum() if fits else np.nan)  # type: ignore[operator]
    rows = [view[name] for name in ("source", "model", "n_shot", "metric")]
    view = view.assign(rank_31=among, mean_rank=view["rank"].groupby(rows).transform("mean"))
    # Incomplete rows have means that are not comparable, so they come last; so do those on other data.
    size, unlike = view["rank"].groupby(rows).transform("count"), view["unlike"] != ""
    keys = {
        "unlike": unlike.groupby(rows).transform("any"),
        "size": -size,
        "mean": view["mean_rank"],
        "score": -view["value"].groupby(rows).transform("mean"),
    }
    order = pd.DataFrame(keys).sort_values(list(keys), kind="stable").index
    return view.loc[order].reset_index(drop=True)


def drop(means: pd.DataFrame) -> pd.DataFrame:
    """Return changes since the model's own IN-1K accuracy with as many shots, in percent of it.

    Fig. 3c of the paper's first version shows this quantity.

    Returns:
        A row for each mean on another data set whose model has one on IN-1K: ``value`` is the change, ``std``
        that of a ratio of two independent means to first order, ``low`` and ``high`` its 95 % interval over
        the concepts of both, ``accuracy`` and ``in1k`` the two accuracies.

    Raises:
        CogError: no model has an IN-1K accuracy.
    """
    place = ["source", "model", "evaluation", "n_shot", "metric"]
    base = means[means["dataset"] == constants.IN1K]
    if base.empty:
        raise CogError(f"--show drop needs results on {constants.IN1K}, and there is none among those read")
    columns = [*place, "value", "std", "counts", "protocol", "note"]
    view = means[means["dataset"] != constants.IN1K].merge(base[columns], on=place, suffixes=("", "_in1k"))
    same = view["note"].eq("") & view["note_in1k"].eq("") & view["protocol"].eq(view["protocol_in1k"])
    view = view[same & view["value_in1k"].gt(0)].reset_index(drop=True)
    ratio = view["value"] / view["value_in1k"]
    std = 100 * ratio * np.hypot(view["std"] / view["value"], view["std_in1k"] / view["value_in1k"])
    ends = [_change(*pair) for pair in zip(view["counts"], view["counts_in1k"], strict=True)]
    view = view.assign(accuracy=view["value"], in1k=view["value_in1k"], value=100 * (ratio - 1), std=std)
    view[["low", "high"]] = np.reshape(np.array(ends, float), (-1, 2))
    return view.drop(columns=[f"{name}_in1k" for name in ("value", "std", "counts", "protocol", "note")])


def _change(counts: dict[int, Any], base: dict[int, Any]) -> tuple[float, float]:
    runs = [list(counts.values()), list(base.values())]
    if not all(runs) or None in (*runs[0], *runs[1]):
        return np.nan, np.nan
    estimates = [uncertainty.accuracy(some) for some in runs]
    found = None if None in estimates else uncertainty.change(*estimates)  # type: ignore[arg-type]
    return (np.nan, np.nan) if found is None else found.interval


def relative_to(means: pd.DataFrame, model: str) -> pd.DataFrame:
    """Return differences to a model, accuracies in points, with intervals and verdicts.

    A row is compared with the model of its own source if there is one, else with that of the first source in
    display order.

    Returns:
        A row for each other mean with a counterpart::

            value                model minus baseline: mean over the common seeds, else of the two means
            std                  sample deviation of the differences of the common seeds, else the
                                 combined one of two single runs, sqrt(s1 ** 2 + s2 ** 2)
            low, high            95 % interval over concepts and common seeds
            p, p_holm            two-sided p-value of no difference; corrected for all rows
            reading              "higher", "lower", "cannot be told apart", or "no verdict: " and the reason
            accuracy, baseline   the two means
            baseline_source      source of the baseline
            common_seeds         text

    Raises:
        CogError: no result of the model.
    """
    base = means[means["model"] == model]
    if base.empty:
        hint = did_you_mean(model, set(means["model"]))
        if model in published.MODELS and not means["source"].isin(published.SOURCES.values()).any():
            hint = "; add --published to read the paper's"
        raise CogError(f"--relative_to {model}: no result of it among those read{hint}")
    view = means[means["model"] != model].merge(base, on=CELL, suffixes=("", "_base"))
    own = (view["source"] != view["source_base"]).sort_values(kind="stable").index
    view = in_order(view.loc[own].drop_duplicates(["source", "model", *CELL]))
    pairs = [_pair(row) for row in view.to_dict("records")]
    made = pd.DataFrame(
        pairs, columns=["difference", "deviation", "low", "high", "p", "unknown", "common_seeds"]
    )
    told = made["p"].notna() & (made["unknown"] == "")
    made["p_holm"] = np.nan
    made.loc[told, "p_holm"] = uncertainty.holm(made.loc[told, "p"].tolist())
    cases = [made["unknown"] != "", made["p_holm"] >= ERROR_RATE, made["difference"] > 0]
    words = ["no verdict: " + made["unknown"], "cannot be told apart", "higher"]
    view = view.assign(
        accuracy=view["value"],
        baseline=view["value_base"],
        baseline_source=view["source_base"],
        value=made["difference"],
        std=made["deviation"],
        **{name: made[name] for name in ("low", "high", "p", "p_holm", "common_seeds")},
        reading=np.select(cases, words, "lower"),
    )
    return view.drop(columns=view.filter(regex="_base$").columns)


def _pair(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return difference, deviation, low, high, p, reason for no verdict, and common seeds of two means."""
    nothing = (np.nan,) * 5
    if note := row["note"] or row["note_base"]:
        return *nothing, note, ""
    if row["unlike"] != row["unlike_base"]:
        both = " / ".join(row[name] or "benchmark" for name in ("unlike", "unlike_base"))
        return *nothing, f"not alike: {both}", ""
    mine, theirs = row["counts"], row["counts_base"]
    seeds = [seed for seed in mine if seed in theirs]
    if not seeds:
        unknown = "no common seed" if mine and theirs else "counts per concept are not known"
        std = math.hypot(row["std"], row["std_base"])
        return row["value"] - row["value_base"], std, *nothing[2:], unknown, ""
    values, base_values = row["values"], row["values_base"]
    differences = [values[seed] - base_values[seed] for seed in seeds]
    deviation = statistics.stdev(differences) if len(seeds) > 1 else np.nan
    head, text = (statistics.fmean(differences), deviation), " ".join(map(str, seeds))
    runs = [[of[seed] for seed in seeds] for of in (mine, theirs)]
    if None in (*runs[0], *runs[1]):
        return *head, *nothing[2:], "counts per concept are not known", text
    estimate = uncertainty.difference(*runs)
    if estimate is None:
        reason = "not the same test images" if len(runs[0][0].correct) > 1 else "a single concept"
        return *head, *nothing[2:], reason, text
    unknown = "one common seed" if len(seeds) == 1 else ""
    return *head, *estimate.interval, estimate.p, unknown, text


def derived(means: pd.DataFrame) -> pd.DataFrame:
    """Return the means, and numbers of pairs of them that are not among them, as rows of further metrics.

    * ``relative_to_logreg``: change from logistic regression on the same data with as many shots to another
      classifier, in percent (first version, Table 3).
    * ``logreg_relative`` of fine-tuning: the reverse, frozen features relative to the fine-tuned model (final
      version, Fig. 6).
    * ``points_to_in1k`` of ``in1k_blurred``: accuracy minus that on IN-1K (final version, C.4).
    * ``<metric>_ratio_to_in1k`` of alignment, uniformity and their ratio: the number divided by that of the
      same model on IN-1K (first version, Fig. 6).
    """
    rows, at = means.to_dict("records"), operator.itemgetter("source", "model", *CELL)
    known = {at(row): row for row in rows}
    made = []
    for row in rows:
        is_top1 = row["metric"] == "top1" and is_classifier(row["evaluation"])
        tuned = row["evaluation"].startswith("finetune")
        base = known.get(at({**row, "evaluation": LOGREG}))
        in1k = known.get(at({**row, "dataset": constants.IN1K}))
        if base and is_top1 and row["evaluation"] != LOGREG and base["data"] == row["data"]:
            if tuned:
                made.append(_derive(row, metrics.LOGREG_RELATIVE, base, row))
            elif base["protocol"] == row["protocol"]:
                made.append(_derive(row, metrics.RELATIVE_TO_LOGREG, row, base))
        if in1k and is_top1 and row["dataset"] == constants.IN1K_BLURRED:
            made.append(_derive(row, metrics.POINTS_TO_IN1K, row, in1k))
        if in1k and row["evaluation"] == "alignment" and row["metric"] in _RATIOS:
            made.append(_derive(row, f"{row['metric']}_{metrics.RATIO_TO_IN1K}", row, in1k))
    new = [row for row in made if at(row) not in known and np.isfinite(row["value"])]
    return in_order(pd.concat([means, pd.DataFrame(new)], ignore_index=True)) if new else means


# Metrics of alignment that are also shown relative to IN-1K.
_RATIOS = ("alignment", "uniformity", "alignment_by_uniformity")


def _derive(row: dict[str, Any], metric: str, one: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a number derived from two means; a seed that either lacks is missing."""
    value, other = one["value"], base["value"]  # missing where seeds have no mean
    runs = [list(some["counts"].values()) for some in (one, base)]
    is_paired = list(one["counts"]) == list(base["counts"]) and all(runs) and None not in (*runs[0], *runs[1])
    interval, std = None, np.nan
    if metric == metrics.POINTS_TO_IN1K:
        number, std = value - other, math.hypot(one["std"], base["std"])
        interval = uncertainty.difference(*runs) if is_paired else None
    elif not other > 0 and metric in (metrics.RELATIVE_TO_LOGREG, metrics.LOGREG_RELATIVE):
        number = np.nan
    elif metric.endswith(metrics.RATIO_TO_IN1K):
        number = value / other if other else np.nan
    else:
        number = 100 * (value / other - 1)
        std = 100 * math.hypot(one["std"] / other, value * base["std"] / other**2)
        interval = uncertainty.relative_difference(*runs) if is_paired else None
    missing = sorted({*one["missing"].split(), *base["missing"].split()}, key=int)
    low, high = interval.interval if interval else (np.nan, np.nan)
    changed = {"value": number, "std": std, "low": low, "high": high, "counts": {}, "values": {}}
    n_seeds = len({*one["counts"], *base["counts"]} - set(map(int, missing)))
    return {**row, **changed, "metric": metric, "missing": " ".join(missing), "n_seeds": n_seeds}


def beside_published(means: pd.DataFrame, version: str = "v2") -> pd.DataFrame:
    """Return means with the published number beside those of the paper's models on the benchmark's data.

    Returns:
        ``means`` with ``published``, ``published_std``, ``difference``, ``combined_std`` (missing for a
        single seed), and ``within``: whether the difference is at most the combined deviation plus the
        rounding of the published mean ("yes", "no", or "?" where a deviation is not known). All are missing
        where nothing is to be compared.
    """
    place = ["model", *CELL]
    paper = pd.DataFrame(published.rows(version))[[*place, "value", "std"]].astype({"std": float})
    paper = paper.rename(columns={"value": "published", "std": "published_std"})
    view = means.reset_index(drop=True).merge(paper, on=place, how="left")
    is_paper = view["source"].isin(published.SOURCES.values())
    fits = ~is_paper & view["unlike"].eq("") & view["note"].eq("")
    view[["published", "published_std"]] = view[["published", "published_std"]].where(fits)
    combined = np.hypot(view["std"], view["published_std"])
    difference = view["value"] - view["published"]
    inside = difference.abs() <= combined + PUBLISHED_ROUNDING + _BINARY
    within = pd.Series(np.where(combined.isna(), "?", np.where(inside, "yes", "no")), view.index)
    within = within.where(view["published"].notna(), None)
    return view.assign(difference=difference, combined_std=combined, within=within)
