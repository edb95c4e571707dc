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
    protocol      settings that are not the paper's, such as "n_epochs 10", "training diverged", or ""
    features      digest of the training and test features, or None
    pretraining   one of cog.constants.PRETRAINING
    folder        folder of the run or analysis, or None
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from cog import constants
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

#: ``data`` of results on the benchmark's counts of classes and images, and of those without known counts.
BENCHMARK, UNKNOWN = "benchmark", "unknown"

_LABELS = {constants.IN1K: "IN-1K", constants.IN1K_BLURRED: "IN-1K-b"}

#: Names of classifiers of known kinds (:func:`cog.config.evaluation_name`).
CLASSIFIER = re.compile(
    rf"(?P<type>{LOGREG}|mlp_noact|mlp|finetune)(?:_pca(?P<pca>\d{{1,9}}))?(?:_max(?P<max>\d{{1,9}}))?"
)


def scores_of(rows: Sequence[Mapping[str, Any]] | pd.DataFrame, *more: str) -> pd.DataFrame:
    """Return rows as a frame with the columns :data:`SCORES` and ``more``; what a row lacks is missing."""
    # Without a type of its own, a column of large seeds and None would become one of floats.
    frame = pd.DataFrame(rows, columns=[*SCORES, *more], dtype=object).astype(_TYPES)
    frame["data"] = frame["data"].where(frame["data"].notna(), UNKNOWN)
    frame["protocol"] = frame["protocol"].where(frame["protocol"].notna(), "")
    names = ["correct", "classes", "features", "folder", *more]
    frame[names] = frame[names].where(frame[names].notna(), None)  # NaN is true
    return frame


def average(scores: pd.DataFrame, seeds: Sequence[int] = ()) -> pd.DataFrame:
    """Return means over seeds, a row per :data:`PLACE`, in display order.

    ``seeds`` are those that each mean should have; empty: the protocol's, or all of the same evaluation.

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
    scores = scores.assign(data=scores["data"].replace(UNKNOWN, None)).sort_values("seed", kind="stable")
    groups = scores.groupby(PLACE, sort=False)
    means = groups[["std", "images", *ALIKE, "classes", "pretraining"]].first()
    means = means.assign(value=groups["value"].mean(), n_seeds=groups["seed"].count())
    means["std"] = groups["value"].std(ddof=0).where(means["n_seeds"] > 1, means["std"])
    for name, column in (("counts", "correct"), ("values", "value")):
        by_seed: list[dict[int, Any]] = [{} for _ in range(len(means))]
        for place, seed, one in zip(groups.ngroup(), scores["seed"], scores[column], strict=True):
            by_seed[place].update({} if pd.isna(seed) else {int(seed): one})
        means[name] = by_seed
    means["missing"] = _missing(means, seeds)
    means[["low", "high"]] = np.reshape(np.array([_ends(c) for c in means["counts"]], float), (-1, 2))
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


def _missing(means: pd.DataFrame, seeds: Sequence[int]) -> list[str]:
    kinds = [means.index.get_level_values(name) for name in ("source", "evaluation")]
    places = list(zip(*kinds, means["counts"], strict=True))
    wanted: dict[tuple[str, str], set[int]] = {}
    for source, evaluation, counts in places:
        wanted.setdefault((source, evaluation), set()).update(counts)
    for kind, there in wanted.items():
        usual = set(constants.SEEDS) if there <= set(constants.SEEDS) else there
        # Fine-tuning is usually done once, and not once for each seed.
        wanted[kind] = set(seeds) or (set() if kind[1].startswith("finetune") else usual)
    lacking = [sorted(wanted[kind[0], kind[1]] - set(counts)) if counts else [] for *kind, counts in places]
    return [" ".join(map(str, some)) for some in lacking]


def _ends(counts: Mapping[int, Any]) -> tuple[float, float]:
    found = None if None in counts.values() else uncertainty.accuracy(list(counts.values()))
    return (np.nan, np.nan) if found is None else (found.low, found.high)


def is_classifier(evaluation: str) -> bool:
    """Return whether an evaluation is a classifier of a known kind, no analysis, and no name of a user's."""
    return CLASSIFIER.fullmatch(evaluation) is not None


def is_published(frame: pd.DataFrame) -> pd.Series:
    """Return whether the source of a row is one of the papers."""
    return frame["source"].isin(published.SOURCES.values())


def is_odd(view: pd.DataFrame) -> pd.Series:
    """Return whether a mean is on other data, or of other settings, than others of its data set."""
    if view.empty:
        return pd.Series(False, index=view.index)
    places = [view["dataset"], view["evaluation"]]
    return (view["unlike"] != "") & (view["unlike"].groupby(places).transform("nunique") > 1)


def in_order(frame: pd.DataFrame, models: Sequence[str] = ()) -> pd.DataFrame:
    """Return the rows by model (as given, as in the paper if any row is not of runs, natural) and place."""
    paper = [] if (frame["source"] == RUNS).all() else list(published.MODELS)
    ranks = {name: rank for rank, name in enumerate(dict.fromkeys([*models, *paper]))}
    keys: dict[str, Callable[[Any], Any]] = {
        "model": lambda name: (ranks.get(name, len(ranks)), natural_key(name)),
        "source": lambda name: (name != RUNS, natural_key(name)),
        "dataset": dataset_key,
        "evaluation": lambda name: (name != LOGREG, natural_key(name)),
        "n_shot": int,
        "metric": natural_key,
    }
    codes = []
    for column, key in keys.items():
        code = {name: number for number, name in enumerate(sorted(frame[column].unique(), key=key))}
        codes.append([code[name] for name in frame[column]])
    return frame.iloc[np.lexsort(codes[::-1])].reset_index(drop=True)


def natural_key(name: str) -> tuple[Any, ...]:
    """Return a sort key that orders ``x2`` before ``x10``; ties are broken by the plain spelling."""
    parts = re.split(r"([0-9]+)", name)
    return tuple(int(part) if index % 2 else part.casefold() for index, part in enumerate(parts)), name


def dataset_key(dataset: str) -> tuple[Any, ...]:
    """Return the sort key of a data set: IN-1K, its blurred images, the levels, others by name."""
    known = [*_LABELS, "", dataset]  # levels have the place of ""
    level = constants.cog_level(dataset) or 0
    return known.index("" if level else dataset), level, natural_key(dataset)


def dataset_label(dataset: str) -> str:
    """Return the paper's name of a data set: ``IN-1K``, ``L3``; the name of another data set is unchanged."""
    level = constants.cog_level(dataset)
    return _LABELS.get(dataset, dataset) if level is None else f"L{level}"


def shots_label(n_shot: int) -> str:
    """Return ``all training images`` or ``8 training images per class``."""
    return f"{n_shot} training image{'s' * (n_shot != 1)} per class" if n_shot else "all training images"


def shots_column(n_shot: int) -> str:
    """Return ``all`` or ``N=8``."""
    return f"N={n_shot}" if n_shot else "all"


def shows_levels(names: Iterable[str]) -> bool:
    """Return whether one of the data sets is a level, so that models that may have seen it are marked."""
    return any(constants.cog_level(name) is not None for name in names)
