"""Accuracy per concept, beside the similarity of the concept to the nearest seen one: one table, one correlation.

``concepts.csv`` has a row per concept: wnid, names, similarity to the nearest seen concept, that one and its names,
level, subtree of WordNet, numbers of images, accuracy (%) per seed and their mean. docs/experiments.md computes with
it. Levels differ in domain as well as in similarity: all trees and herbs are in L5, all birds in the levels above. A
correlation over all concepts is also one with the domain; that is what the column ``subtree`` is for.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from cog import constants
from cog.analysis import classifiers
from cog.analysis.base import Data, analysis
from cog.errors import CogError
from cog.features.feature_files import open_file
from cog.levels.wordnet import NounGraph, load_wordnet
from cog.results.analysis_records import Number
from cog.runtime import files

logger = logging.getLogger(__name__)

#: File beside results.json.
TABLE_FILE = "concepts.csv"

#: Roots of each subtree in WordNet 3.0; a concept belongs to the subtree of its deepest root. The choice is that of
#: this toolkit: domains with at least 50 of the 5000 published concepts.
SUBTREES: dict[str, tuple[str, ...]] = {
    "mammals": ("n01861778",),
    "birds": ("n01503061",),
    "other_animals": ("n00015388",),
    "plants": ("n00017222", "n13086908"),  # plant; plant part
    "food": ("n00021265", "n07555863"),  # food, nutrient; solid food
    "clothing": ("n03051540", "n03122748", "n03309808"),  # clothing; covering; fabric
    "structures": ("n04341686",),
    "vehicles": ("n03100490",),  # conveyance
    "devices": ("n03183080",),
    "containers": ("n03094503",),
    "furnishings": ("n03405265",),
    "other_artifacts": ("n00021939",),
    "activities": ("n00030358",),  # act, deed; sports among them
}

_N_RESAMPLES = 1000

_SIMILARITY = ["similarity", "nearest_seen", "nearest_seen_names", "level"]


def _inputs(data: Data) -> tuple[str, dict[str, Any]]:
    evaluation, file = classifiers.evaluation(data.cfg), data.flags["levels_csv"]
    runs = classifiers.find_runs(data.model_dir, data.dataset, data.cfg)
    identity = {
        "evaluation": evaluation,
        "levels_csv_sha256": None if file is None else files.sha256(files.require_file(file, "--levels_csv")),
        "runs": {str(run.seed): [run.finished or None, run.top1] for run in runs},
    }
    return evaluation.removeprefix("eval").removeprefix("_logreg"), identity


@analysis(
    "concepts",
    "accuracy of each concept, by seed; with --levels_csv its correlation with similarity to the seen concepts",
    inputs=_inputs,
)
def concepts(data: Data) -> dict[str, Number]:
    """Write the table, and return the mean accuracy and the rank correlation of accuracy with similarity.

    The interval (95 %, percentiles) is over concepts. Without similarities the correlation is undefined.
    """
    runs = classifiers.find_runs(data.model_dir, data.dataset, data.cfg)
    counted = {run.seed: run.counts for run in runs if run.counts is not None}
    if not counted:
        raise CogError(
            f"{data.label}no run has right answers per concept; train again (logreg.py --overwrite)"
        )
    images = {split: open_file(data.file(split), mapped=True).y.long().numpy() for split in constants.SPLITS}
    labels = classifiers.labels(runs[0], len(next(iter(counted.values())).correct))
    names = classifiers.class_names(data.file("test"), data.dataset, 1 + max(labels))
    table = pd.DataFrame({"wnid": [names[label] for label in labels]})
    try:
        graph = load_wordnet()
    except CogError as error:
        logger.warning("%sconcepts have ids alone, without names and subtrees: %s", data.label, error)
        graph = NounGraph([], [])
    table["names"] = [graph.words(wnid) if wnid in graph else wnid for wnid in table["wnid"]]
    table = table.merge(_levels(data.flags["levels_csv"]), on="wnid", how="left")
    table["subtree"] = [_subtree(graph, wnid) if wnid in graph else "" for wnid in table["wnid"]]
    for split, y in images.items():
        table[f"n_{split}"] = np.bincount(y, minlength=1 + max(labels))[labels]
    for seed, counts in counted.items():
        table[f"seed_{seed}"] = 100.0 * np.array(counts.correct) / np.array(counts.images_of_each)
        data.per_seed[seed] = {"accuracy": table[f"seed_{seed}"].mean()}
    table["accuracy"] = table[[f"seed_{seed}" for seed in counted]].mean(axis=1)
    files.write_text(data.folder / TABLE_FILE, table.to_csv(index=False))
    known = table[table["similarity"].notna()]
    values = spearman(known["similarity"].to_numpy(), known["accuracy"].to_numpy())
    data.details.update(n_concepts=len(table), n_with_similarity=len(known))
    return {
        "accuracy": table["accuracy"].mean(),
        **dict(zip(("spearman", "spearman_low", "spearman_high"), values, strict=True)),
    }


def spearman(x: np.ndarray, y: np.ndarray) -> tuple[float | None, float | None, float | None]:
    """Return Spearman's correlation of two variables ``(n,)``, and its 95 % bootstrap interval; None if undefined."""

    def correlation(rows: np.ndarray) -> float:
        a, b = stats.rankdata(x[rows]), stats.rankdata(y[rows])
        return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) and np.ptp(b) else np.nan

    every = np.arange(len(x))
    value = correlation(every) if len(x) > 2 else np.nan
    if np.isnan(value):
        return None, None, None
    rng = np.random.default_rng(0)
    resampled = [correlation(rng.choice(every, len(every))) for _ in range(_N_RESAMPLES)]
    low, high = np.nanpercentile(resampled, [2.5, 97.5])
    return value, float(low), float(high)


def _levels(file: str | None) -> pd.DataFrame:
    """Return the similarities in a levels.csv, by wnid; none without a file."""
    if file is None:
        return pd.DataFrame(columns=["wnid", *_SIMILARITY])
    try:
        table = pd.read_csv(file, dtype={"wnid": str})[["wnid", *_SIMILARITY]]
    except (OSError, ValueError, KeyError) as error:
        raise CogError(f"--levels_csv {file} is no levels.csv of build_levels.py: {error}") from error
    if table["wnid"].duplicated().any():
        raise CogError(f"--levels_csv {file} has a concept twice")
    return table


def _subtree(graph: NounGraph, wnid: str) -> str:
    """Return the subtree of a concept; ``rest`` below no root."""
    name_of = {graph.index(root): name for name, roots in SUBTREES.items() for root in roots}
    roots = graph.above(graph.index(wnid)) & name_of.keys()
    return name_of[max(roots, key=graph.depth)] if roots else "rest"
