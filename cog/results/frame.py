"""One long table of results: ``scores`` has a row per number of one seed, ``means`` one over all seeds.

Columns of ``scores`` (:data:`SCORES`)::

    source        "runs" (found on disk), "paper v2", "paper v1", or the label of a shared file
    model         <title>_<architecture>
    dataset       in1k, cog_l1, ...
    evaluation    classifier (logreg, mlp, any EVAL.NAME) or analysis (kmeans)
    n_shot        training images per class of a classifier, 0 = all
    metric        top1, ami, ...; accuracies are in percent
    seed          missing without randomness, or when only a mean over seeds is known
    value, std    std only where there is no seed: population deviation of a stated mean over seeds
    correct       right answers per concept of a top-1 accuracy (ConceptCounts), or None
    images        number of test images, missing where it is not known
    data          "benchmark", "unknown" (counts not recorded), or the counts that are not the benchmark's
    classes       SHA-256 of the list of classes, or None
    protocol      settings that are not the paper's, such as "n_epochs 10", or ""
    features      digest of the training and test features, or None
    pretraining   one of cog.models.spec.PRETRAINING
    folder        folder of the run or analysis, or None

>>> place = ["runs", "my_net", "in1k", "logreg", 0, "top1"]
>>> runs = [dict(zip(SCORES, [*place, seed, value])) for seed, value in ((22, 70.0), (37, 71.0))]
>>> means = average(scores_of(runs), seeds=(22, 37, 45))
>>> print(means[["value", "std", "n_seeds", "missing"]].to_string(index=False))
 value  std  n_seeds missing
  70.5  0.5        2      45
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from cog import constants
from cog.data import datasets
from cog.results import published, uncertainty

#: Columns that identify a mean.
PLACE = ["source", "model", "dataset", "evaluation", "n_shot", "metric"]

#: Columns that are equal for all seeds of a mean.
ALIKE = ["data", "protocol", "features"]

SCORES = [
    *(*PLACE, "seed", "value", "std", "correct", "images", "data", "classes", "protocol", "features"),
    *("pretraining", "folder"),
]
_TYPES: dict[str, Any] = {"n_shot": int, "seed": "Int64", "value": float, "std": float, "images": "Int64"}

#: ``source`` of runs and analyses found on disk, and ``evaluation`` of the protocol's classifier.
RUNS, LOGREG = "runs", "logreg"

#: ``data`` of results on the benchmark's counts of classes and images, and of results without recorded
#: counts, which get the benefit of the doubt.
BENCHMARK, UNKNOWN = "benchmark", "unknown"

#: Names of classifiers of known kinds (:func:`cog.config.evaluation_name`).
CLASSIFIER = re.compile(
    rf"(?P<type>{LOGREG}|mlp_noact|mlp|finetune)(?:_pca(?P<pca>\d{{1,9}}))?(?:_max(?P<max>\d{{1,9}}))?"
)


def scores_of(rows: Sequence[Mapping[str, Any]] | pd.DataFrame) -> pd.DataFrame:
    """Return rows as a frame with the columns :data:`SCORES`; what a row lacks is missing."""
    if isinstance(rows, pd.DataFrame):
        frame = rows.reindex(columns=SCORES)
    else:  # without a type of its own, a column of large seeds and None would become one of floats
        frame = pd.DataFrame(rows, columns=SCORES, dtype=object)
    texts = {name: object for name in SCORES if name not in _TYPES}
    frame = frame.astype({**texts, **_TYPES})
    frame["data"] = frame["data"].where(frame["data"].notna(), UNKNOWN)
    frame["protocol"] = frame["protocol"].where(frame["protocol"].notna(), "")
    for name in ("correct", "classes", "features", "folder"):
        frame[name] = frame[name].where(frame[name].notna(), None)  # NaN is true
    return frame


def average(scores: pd.DataFrame, seeds: Sequence[int] = ()) -> pd.DataFrame:
    """Return means over seeds, a row per :data:`PLACE`, in display order.

    Args:
        scores: rows of any sources, evaluations and metrics, see :data:`SCORES`.
        seeds: seeds that each mean should have; empty: :func:`expected_seeds` of its source and evaluation.

    Returns:
        Columns ``PLACE``, ``images``, ``data``, ``classes``, ``protocol``, ``features``, ``pretraining``,
        and::

            value, std   mean and population deviation; std is missing for one seed
            low, high    95 % interval over concepts and seeds; missing without counts of all seeds
            n_seeds      number of seeds, 0 where only a mean is known
            missing      seeds that should be there, as text: "45 77"
            values       numbers by seed, a dictionary
            counts       ConceptCounts (or None) by seed
            unlike       what differs from the benchmark's data and the paper's protocol, or ""
            note         reason why seeds have no mean: not alike in ALIKE, or twice; else ""
    """
    scores = _apart(scores)
    # What is unknown may be the data of the other seeds.
    scores = scores.assign(data=scores["data"].replace(UNKNOWN, None))
    groups = scores.sort_values("seed", kind="stable").groupby(PLACE, sort=False)
    means = groups[["std", "images", *ALIKE, "classes", "pretraining"]].first()
    means = means.assign(value=groups["value"].mean(), n_seeds=groups["seed"].count())
    means["std"] = groups["value"].std(ddof=0).where(means["n_seeds"] > 1, means["std"])
    for name, column in (("counts", "correct"), ("values", "value")):
        pairs = zip(groups["seed"].agg(list), groups[column].agg(list), strict=True)
        means[name] = [_by_seed(*pair) for pair in pairs]
    means["missing"] = _missing(means, seeds)
    ends = [_ends(counts.values()) for counts in means["counts"]]
    means[["low", "high"]] = np.reshape(np.array(ends, float), (-1, 2))
    means["note"] = ""
    means.loc[means["n_seeds"] > groups["seed"].nunique(), "note"] = "a seed is there twice"
    means.loc[groups["value"].size() > np.maximum(means["n_seeds"], 1), "note"] = "a mean beside single seeds"
    for name, words in zip(ALIKE, ("other data", "other settings", "other features"), strict=True):
        means.loc[groups[name].nunique() > 1, "note"] = f"its seeds are of {words}"
    means["data"] = means["data"].fillna(UNKNOWN)
    means.loc[means["note"] != "", ["value", "std", "low", "high"]] = np.nan
    other_data = means["data"].where(~means["data"].isin([BENCHMARK, UNKNOWN]), "")
    means["unlike"] = (other_data + ", " + means["protocol"]).str.strip(", ")
    return in_order(means.reset_index())


def _apart(scores: pd.DataFrame) -> pd.DataFrame:
    """Return scores whose ``data`` tells lists of classes apart, where one name stands for several."""
    n_lists = scores.groupby(["dataset", "data"])["classes"].transform("nunique")
    several = (n_lists > 1) & scores["classes"].notna()
    if not several.any():
        return scores
    listed = scores.loc[several, "data"] + ", list of classes " + scores.loc[several, "classes"].str[:8]
    return scores.assign(data=scores["data"].mask(several, listed.str.removeprefix(f"{BENCHMARK}, ")))


def _by_seed(seeds: Sequence[Any], values: Sequence[Any]) -> dict[int, Any]:
    return {int(seed): value for seed, value in zip(seeds, values, strict=True) if not pd.isna(seed)}


def _missing(means: pd.DataFrame, seeds: Sequence[int]) -> list[str]:
    of_kind = [means.index.get_level_values(name) for name in ("source", "evaluation")]
    there = list(zip(zip(*of_kind, strict=True), means["counts"], strict=True))
    known: dict[tuple[str, str], set[int]] = {}
    for kind, counts in there:
        known.setdefault(kind, set()).update(counts)
    expected = {kind: set(seeds) or set(expected_seeds(kind[1], known[kind])) for kind in known}
    return [
        " ".join(map(str, sorted(expected[kind] - set(counts)) if counts else [])) for kind, counts in there
    ]


def _ends(counts: Collection[Any]) -> tuple[float, float]:
    runs = list(counts)
    found = uncertainty.accuracy(runs) if runs and None not in runs else None
    return (np.nan, np.nan) if found is None else found.interval


def expected_seeds(evaluation: str, seeds: set[int]) -> Sequence[int]:
    """Return the seeds that means of an evaluation should have, given the seeds of all its runs.

    They are the protocol's five seeds if these include all seeds, else the seeds; none for fine-tuning, since
    a backbone is usually fine-tuned once, and not once for each seed.
    """
    if evaluation.startswith("finetune"):
        return ()
    return constants.SEEDS if seeds <= set(constants.SEEDS) else sorted(seeds)


def is_classifier(evaluation: str) -> bool:
    """Return whether an evaluation is a classifier of a known kind, no analysis, and no name of a user's."""
    return CLASSIFIER.fullmatch(evaluation) is not None


def is_odd(view: pd.DataFrame) -> pd.Series:
    """Return whether a mean is on other data, or of other settings, than others of its data set."""
    if view.empty:
        return pd.Series(False, index=view.index)
    places = [view["dataset"], view["evaluation"]]
    return (view["unlike"] != "") & (view["unlike"].groupby(places).transform("nunique") > 1)


# --- order and labels


def in_order(frame: pd.DataFrame, models: Sequence[str] = ()) -> pd.DataFrame:
    """Return the rows in display order: by model, source, data set, evaluation, shots and metric.

    Args:
        frame: frame with the columns ``PLACE``.
        models: models in the order of display; empty: natural order, or the paper's, then natural order,
            where any row is not of runs.
    """
    paper = bool((frame["source"] != RUNS).any())
    keys = pd.DataFrame(
        {
            "model": _codes(frame["model"], lambda name: model_key(name, models, paper=paper)),
            "source": _codes(frame["source"], lambda name: (name != RUNS, natural_key(name))),
            "dataset": _codes(frame["dataset"], dataset_key),
            "evaluation": _codes(frame["evaluation"], lambda name: (name != LOGREG, natural_key(name))),
            "n_shot": frame["n_shot"],
            "metric": _codes(frame["metric"], natural_key),
        },
        index=frame.index,
    )
    return frame.loc[keys.sort_values(list(keys), kind="stable").index].reset_index(drop=True)


def _codes(column: pd.Series, key: Any) -> pd.Series:
    """Return the rank of each value among the distinct ones."""
    names = sorted(column.unique(), key=key)
    return column.map({name: rank for rank, name in enumerate(names)})


def model_key(model: str, models: Sequence[str] = (), *, paper: bool = True) -> tuple[Any, ...]:
    """Return the sort key of a model: the order given, the paper's (with ``paper``), natural order."""
    if model in models:
        return 0, list(models).index(model), natural_key(model)
    known = published.MODELS.get(model) if paper else None
    return (2, 0, natural_key(model)) if known is None else (1, known.order, natural_key(model))


def natural_key(name: str) -> tuple[Any, ...]:
    """Return a sort key that orders ``x2`` before ``x10``; ties are broken by the plain spelling."""
    parts = re.split(r"([0-9]+)", name)
    return tuple(int(part) if index % 2 else part.casefold() for index, part in enumerate(parts)), name


def dataset_key(dataset: str) -> tuple[Any, ...]:
    """Return the sort key of a data set: order of :mod:`cog.data.datasets`, then other data sets by name."""
    position = datasets.position(dataset)
    return (1, (), natural_key(dataset)) if position is None else (0, position, ())


def dataset_label(dataset: str) -> str:
    """Return the paper's name of a data set: ``IN-1K``, ``L3``; the name of another data set is unchanged."""
    return datasets.label(dataset) or dataset


def shots_label(n_shot: int) -> str:
    """Return ``all training images`` or ``8 training images per class``."""
    return f"{n_shot} training image{'s' * (n_shot != 1)} per class" if n_shot else "all training images"


def shots_column(n_shot: int) -> str:
    """Return ``all`` or ``N=8``."""
    return f"N={n_shot}" if n_shot else "all"


def shows_levels(names: Iterable[str]) -> bool:
    """Return whether one of the data sets is a level, so that models that may have seen it are marked."""
    return any(constants.cog_level(name) is not None for name in names)
