"""Views of means: ranks, changes since IN-1K, differences to a model, and numbers beside the published ones.

Each is a function from the frame of :func:`cog.results.frame.average` to a frame with further columns. Means
on other data or of other settings (``unlike``) are never ranked or compared with each other.
"""

import math
import statistics
from typing import Any

import numpy as np
import pandas as pd

from cog import constants
from cog.errors import CogError, did_you_mean
from cog.results import published, uncertainty
from cog.results.frame import LOGREG, in_order, is_classifier, is_odd, is_published

#: Probability of any false verdict among the comparisons shown; half a unit of the last published digit.
ERROR_RATE, PUBLISHED_ROUNDING = 0.05, 0.05

#: Columns that two means of a comparison share.
CELL = ["dataset", "evaluation", "n_shot", "metric"]


def rank(means: pd.DataFrame) -> pd.DataFrame:
    """Return ranks, best model first; equal means share the better rank (1, 2, 2, 4).

    Beside published means, all means are compared at their one decimal. Columns are ``rank`` and ``n_ranked``
    among the shown means of like data and settings (missing for others), ``mean_rank`` of a model over the
    data sets, by number of shots, and ``rank_31`` of an accuracy among the 31 published ones.
    """
    view = means[means["note"] == ""]
    beside_paper = is_published(view).any()
    value = view["value"].map(lambda one: round(one, 1)) if beside_paper else view["value"]
    alike = value.groupby([*(view[name] for name in CELL), view["unlike"]])
    ranks = alike.rank(ascending=False, method="min").mask(is_odd(view))
    view = view.assign(rank=ranks, n_ranked=alike.transform("count"))
    paper = dict(tuple(pd.DataFrame(published.rows()).groupby(CELL)["value"]))
    among = []
    for row in view.itertuples():
        known = paper.get((row.dataset, row.evaluation, row.n_shot, row.metric)) if row.unlike == "" else None
        among.append(np.nan if known is None else 1 + (known > round(row.value, 1)).sum())
    rows = [view[name] for name in ("source", "model", "n_shot", "metric")]
    view = view.assign(rank_31=among, mean_rank=view["rank"].groupby(rows).transform("mean"))
    # Incomplete rows have means that are not comparable, so they come last; so do those on other data.
    keys = {
        "unlike": (view["unlike"] != "").groupby(rows).transform("any"),
        "size": -view["rank"].groupby(rows).transform("count"),
        "mean": view["mean_rank"],
        "score": -view["value"].groupby(rows).transform("mean"),
    }
    order = pd.DataFrame(keys).sort_values(list(keys), kind="stable").index
    return view.loc[order].reset_index(drop=True)


def drop(means: pd.DataFrame) -> pd.DataFrame:
    """Return changes since the model's own IN-1K accuracy with as many shots, in percent of it (v1, Fig. 3c).

    ``std`` is that of a ratio of independent means to first order, ``low`` and ``high`` are the 95 % interval
    over the concepts of both, ``accuracy`` and ``in1k`` the two accuracies, which are both on the benchmark's
    data, or both on other data. Without any of IN-1K, a CogError.
    """
    place = ["source", "model", "evaluation", "n_shot", "metric"]
    base = means[means["dataset"] == constants.IN1K]
    if base.empty:
        raise CogError(f"--show drop needs results on {constants.IN1K}, and there is none among those read")
    columns = [*place, "value", "std", "counts", "protocol", "unlike", "note"]
    view = means[means["dataset"] != constants.IN1K].merge(base[columns], on=place, suffixes=("", "_in1k"))
    same = view["note"].eq("") & view["note_in1k"].eq("") & view["protocol"].eq(view["protocol_in1k"])
    same &= view["unlike"].eq("") == view["unlike_in1k"].eq("")
    view = view[same & view["value_in1k"].gt(0)].reset_index(drop=True)
    ends = [_change(*pair) for pair in zip(view["counts"], view["counts_in1k"], strict=True)]
    view[["low", "high"]] = np.reshape(np.array(ends, float), (-1, 2))
    view = view.assign(accuracy=view["value"], in1k=view["value_in1k"])
    view["value"], view["std"] = ratio(view, "_in1k")
    return view.drop(columns=[f"{name}_in1k" for name in columns if f"{name}_in1k" in view])


def ratio(pairs: pd.DataFrame, base: str) -> tuple[pd.Series, pd.Series]:
    """Return the change from ``value<base>`` to ``value`` in percent, and its deviation to first order."""
    parts = pairs["std"] / pairs["value"], pairs[f"std{base}"] / pairs[f"value{base}"]
    share = pairs["value"] / pairs[f"value{base}"]
    return 100 * (share - 1), 100 * share * np.hypot(*parts)


def _change(*counts: dict[int, Any]) -> tuple[float, float]:
    runs = [list(of.values()) for of in counts if None not in of.values()]
    estimates = [one for of in runs if (one := uncertainty.accuracy(of)) is not None]
    found = uncertainty.change(*estimates) if len(estimates) == 2 else None
    return (np.nan, np.nan) if found is None else (found.low, found.high)


def relative_to(means: pd.DataFrame, model: str) -> pd.DataFrame:
    """Return differences to a model, accuracies in points, with intervals and verdicts.

    Runs with the same seed have the same split for the search, images drawn in few-shot, and order, and are
    tested on the same images: a difference is taken per seed and concept. A row is compared with the model of
    its own source if there is one, else with that of the first source in display order.

    Returns:
        A row for each other mean with a counterpart (without any result of the model, a CogError)::

            value                model minus baseline: mean over the common seeds, else of the two means
            std                  sample deviation of the differences of the common seeds, else the
                                 combined one of two single runs, sqrt(s1 ** 2 + s2 ** 2)
            low, high            95 % interval over concepts and common seeds
            p, p_holm            two-sided p-value of no difference; corrected for all rows
            reading              "higher", "lower", "cannot be told apart", or "no verdict: " and the reason
            accuracy, baseline, baseline_source, common_seeds
    """
    base = means[means["model"] == model]
    if base.empty:
        hint = did_you_mean(model, set(means["model"]))
        if model in published.MODELS and not is_published(means).any():
            hint = "; add --published to read the paper's"
        raise CogError(f"--relative_to {model}: no result of it among those read{hint}")
    view = means[means["model"] != model].merge(base, on=CELL, suffixes=("", "_base"))
    own = (view["source"] != view["source_base"]).sort_values(kind="stable").index
    view = in_order(view.loc[own].drop_duplicates(["source", "model", *CELL]))
    names = ["value", "std", "low", "high", "p", "unknown", "common_seeds"]
    made = pd.DataFrame([_pair(row) for row in view.to_dict("records")], columns=names)
    told = made["p"].notna() & (made["unknown"] == "")
    made["p_holm"] = np.nan
    made.loc[told, "p_holm"] = uncertainty.holm(made.loc[told, "p"].tolist())
    cases = [made["unknown"] != "", made["p_holm"] >= ERROR_RATE, made["value"] > 0]
    words = ["no verdict: " + made["unknown"], "cannot be told apart", "higher"]
    parts = {"accuracy": "value", "baseline": "value_base", "baseline_source": "source_base"}
    view = view.assign(
        **{name: view[of] for name, of in parts.items()}, reading=np.select(cases, words, "lower")
    )
    view = view.assign(**made.drop(columns="unknown"))
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
    differences = [row["values"][seed] - row["values_base"][seed] for seed in seeds]
    deviation = statistics.stdev(differences) if len(seeds) > 1 else np.nan
    head, text = (statistics.fmean(differences), deviation), " ".join(map(str, seeds))
    runs = [[of[seed] for seed in seeds] for of in (mine, theirs)]
    if None in (*runs[0], *runs[1]):
        return *head, *nothing[2:], "counts per concept are not known", text
    estimate = uncertainty.difference(*runs)
    if estimate is None:
        reason = "not the same test images" if len(runs[0][0].correct) > 1 else "a single concept"
        return *head, *nothing[2:], reason, text
    doubt = "one common seed" if len(seeds) == 1 else ""
    return *head, estimate.low, estimate.high, estimate.p, doubt, text


def relative(means: pd.DataFrame, evaluation: str, base: str, metric: str) -> pd.DataFrame:
    """Return the changes of top-1 from one classifier to another on the same data, in percent, as ``metric``.

    Settings must be equal, but for fine-tuning and the sizes of an MLP.
    """
    top1, cell = means[(means["metric"] == "top1") & means["note"].eq("")], ["source", "model", "dataset"]
    cell = [*cell, "n_shot", "data", *(["alike"] if "finetune" not in evaluation + base else [])]
    top1 = top1.assign(alike=top1["protocol"].str.replace("(, )?mlp_[a-z]+ [0-9]+", "", regex=True))
    other = top1.loc[top1["evaluation"] == base, [*cell, "value", "std"]]
    pairs = top1[top1["evaluation"] == evaluation].merge(other, on=cell, suffixes=("", "_base"))
    pairs = pairs[pairs["value_base"] > 0].assign(metric=metric, low=np.nan, high=np.nan)
    pairs["value"], pairs["std"] = ratio(pairs, "_base")
    return pairs.drop(columns=pairs.filter(regex="_base$|^alike").columns)


def derived(means: pd.DataFrame) -> pd.DataFrame:
    """Return the means, and as further metrics ``relative_to_logreg`` of other classifiers (v1, Table 3).

    Of fine-tuning it is the reverse, ``logreg_relative``: frozen features relative to the fine-tuned model
    (final version, Fig. 6).
    """
    made = []
    for other in filter(is_classifier, set(means["evaluation"]) - {LOGREG}):
        if other.startswith("finetune"):
            made.append(relative(means, LOGREG, other, "logreg_relative").assign(evaluation=other))
        else:
            made.append(relative(means, other, LOGREG, "relative_to_logreg"))
    return in_order(pd.concat([means, *filter(len, made)], ignore_index=True))


def beside_published(means: pd.DataFrame, version: str = "v2") -> pd.DataFrame:
    """Return means with the published number beside those of the paper's models on the benchmark's data.

    Columns are ``published``, ``published_std``, ``difference``, ``combined_std``, ``within``: whether the
    difference is at most the combined deviation plus the rounding of the published mean ("yes", "no", or "?"
    where a deviation is not known). All are missing where nothing is to be compared.
    """
    place, names = ["model", *CELL], ["published", "published_std"]
    paper = pd.DataFrame(published.rows(version))[[*place, "value", "std"]].astype({"std": float})
    view = means.merge(paper.set_axis([*place, *names], axis=1), on=place, how="left")
    fits = ~is_published(view) & view["unlike"].eq("") & view["note"].eq("")
    view[names] = view[names].where(fits)
    combined = np.hypot(view["std"], view["published_std"])
    difference = view["value"] - view["published"]
    inside = (difference.abs() - combined).round(9) <= PUBLISHED_ROUNDING  # 75.9 - 75.8 is more than 0.1
    within = pd.Series(np.where(combined.isna(), "?", np.where(inside, "yes", "no")), view.index)
    within = within.where(view["published"].notna(), None)
    return view.assign(difference=difference, combined_std=combined, within=within)
