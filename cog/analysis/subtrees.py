"""Accuracy by WordNet subtree, and the correlation of accuracy with similarity within subtrees.

Levels differ in domain as well as in distance: all trees and herbs are in L5, all birds in the levels above. The
analysis ``distance`` has the plain correlation of accuracy with similarity. This analysis adds the partial correlation
given subtree and number of training images (:func:`cog.analysis.partial_correlation.partial_spearman`), and the
correlation within subtrees.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from cog import constants
from cog.analysis import concepts, saved_runs, statistics
from cog.analysis.accuracy_vs_similarity import (
    CORRELATION,
    ConceptPoints,
    Tested,
    concept_points,
    ends_of_mean,
    read_all,
    runs_of,
)
from cog.analysis.concepts import Concept
from cog.analysis.confident_errors import read_labels
from cog.analysis.partial_correlation import MIN_GROUP, intervals, partial_spearman, within_spearman
from cog.analysis.probe_flags import PROBE_FLAGS
from cog.analysis.saved_runs import SavedRun
from cog.analysis.task import Analysis, AnalysisContext, AnalysisOutcome, AnalysisRequest, AnalysisTask
from cog.data.wnids import is_wnid
from cog.errors import CogError
from cog.levels import wordnet
from cog.levels.wordnet import NounGraph
from cog.results.analysis_records import Number
from cog.results.labels import counted
from cog.results.metric_info import OVER_CONCEPTS_AND_SEEDS, PERCENT, Metric, companion_of, declare
from cog.results.scores import natural_key
from cog.runtime import files
from cog.runtime.csv_text import write_csv

logger = logging.getLogger(__name__)

#: Roots of each subtree in WordNet 3.0, by the name of the subtree. A concept belongs to the subtree of its deepest
#: root. The choice is that of this toolkit: domains with at least 50 of the 5000 published concepts.
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

#: Name of the group of concepts that are below no root.
REST = "rest"

#: Suffixes of the labels of the correlations with similarity.
_CORRELATIONS = {
    "spearman_given_subtree": ", given subtree",
    "spearman_given_subtree_and_images": ", given subtree and number of training images",
    "spearman_within_subtrees": ", mean within subtrees",
}


def plan(request: AnalysisRequest) -> list[AnalysisTask]:
    """Return the task that averages accuracy by subtree.

    Raises:
        CogError: there are no runs, or a root is not a WordNet id.
    """
    args = request.args
    folder, dataset = request.place("subtrees")
    for root in args.subtrees or ():
        if not is_wnid(root):
            raise CogError(f"--subtrees {root} is not a noun id, expected 'n' and 8 digits such as n02084071")
    runs = runs_of(request, folder, dataset)
    # levels.csv has no similarities of the seen concepts.
    csv_file = None if dataset == constants.IN1K else args.levels_csv
    similarities = None if csv_file is None else concepts.read_levels_csv(csv_file)
    settings = {
        "subtrees": sorted(args.subtrees) if args.subtrees else {k: list(v) for k, v in SUBTREES.items()},
        "levels_csv_sha256": None if csv_file is None else files.sha256(csv_file),
        "n_resamples": args.n_resamples,
        "predictions": {name: saved_runs.prediction_digests(saved) for name, saved in runs.items()},
    }
    compute = partial(_compute, runs=runs, similarities=similarities)
    packages = ("numpy", "scipy")
    return saved_runs.classifier_task(request, "subtrees", settings, compute, packages=packages)


ANALYSIS = Analysis(
    "subtrees",
    "accuracy by WordNet subtree; with --levels_csv its correlation with similarity, apart from the subtree",
    plan,
    uses=(*PROBE_FLAGS, "levels_csv", "n_resamples", "subtrees", "wordnet_dir"),
    in_all=False,
)


def _title(variant: str) -> str:
    return f"accuracy by WordNet subtree{f', {variant}' if variant else ''}"


def _metric(variant: str, quantity: str) -> Metric | None:
    if companion_of(quantity) is not None:
        return None
    if quantity.startswith("accuracy_"):
        subtree = quantity.removeprefix("accuracy_")
        name = subtree.replace("_", " ")
        known = [*SUBTREES, REST]
        place = known.index(subtree) if subtree in known else 0
        return Metric(
            group="subtrees",
            label=f"{_title(variant)}: {name}",
            unit=PERCENT,
            decimals=1,
            headline=False,
            order=(5.2, natural_key(variant), 1, place, natural_key(name)),
            table=_title(variant),
            column=name,
            interval=OVER_CONCEPTS_AND_SEEDS,
        )
    if quantity in _CORRELATIONS:
        return Metric(
            group="subtrees",
            label=CORRELATION + _CORRELATIONS[quantity] + (f", {variant}" if variant else ""),
            decimals=2,
            better=0,
            headline=quantity == "spearman_within_subtrees" and not variant,
            order=(5.2, natural_key(variant), 2, list(_CORRELATIONS).index(quantity)),
            short="accuracy ~ similarity within subtrees",
        )
    return None


declare("subtrees", _metric, title=_title)


def roots_of(args_subtrees: Sequence[str] | None, graph: NounGraph) -> dict[str, list[int]]:
    """Return the roots of each subtree by its name; the name of a root from the command line is its first word.

    Raises:
        CogError: WordNet does not have an id.
    """
    if not args_subtrees:
        return {name: graph.indices(ids, "the subtrees").tolist() for name, ids in SUBTREES.items()}
    nodes = dict(zip(args_subtrees, graph.indices(args_subtrees, "--subtrees").tolist(), strict=True))
    words = {wnid: graph.lemmas(node)[0].lower() for wnid, node in nodes.items()}
    repeated = Counter(words.values())
    return {
        word if repeated[word] == 1 and word != REST else f"{word}_{wnid}": [nodes[wnid]]
        for wnid, word in words.items()
    }


def subtree_of(graph: NounGraph, wnids: Sequence[str], roots: Mapping[str, Sequence[int]]) -> list[str]:
    """Return the subtree of each concept: that of its deepest root (longest path from the top), or the first of equals.

    Raises:
        CogError: WordNet does not have a concept.
    """
    name_of = {node: name for name, nodes in roots.items() for node in nodes}
    names = []
    for node in graph.indices(wnids, "the concepts").tolist():
        above = name_of.keys() & graph.subsumers(node)
        deepest = min(above, key=lambda root: (-graph.max_depths[root], root), default=None)
        names.append(REST if deepest is None else name_of[deepest])
    return names


def training_images(request: AnalysisRequest, tested: Sequence[Tested]) -> dict[str, int] | None:
    """Return the number of training images of the classifiers for each concept; None when it is not known."""
    clf = request.cfg.CLF
    numbers: dict[str, int] = {}
    for data in tested:
        assert request.model_dir is not None
        file = request.model_dir.features_file(data.dataset, "train")
        if not file.is_file():
            logger.warning(
                "%s does not exist: the correlation is not corrected for the number of training images", file
            )
            return None
        counts = np.bincount(read_labels(file), minlength=len(data.wnids))
        for limit in filter(None, (clf.MAX_PER_CLASS, clf.N_SHOT)):
            counts = np.minimum(counts, limit)
        numbers.update(zip(data.wnids, counts.tolist(), strict=False))
    return numbers


@dataclass(frozen=True, eq=False)
class _Grouped:
    """Concepts in their subtrees.

    Attributes:
        points: accuracy and similarity of n concepts.
        names: names of the subtrees with concepts, in the order of the subtrees.
        group: position of each concept's subtree in ``names``, int64 ``(n,)``.
        n_train: number of training images, float64 ``(n,)``; None when unknown.
    """

    points: ConceptPoints
    names: list[str]
    group: np.ndarray
    n_train: np.ndarray | None

    def correlations(self, rows: np.ndarray) -> list[float]:
        """Return the values of ``_CORRELATIONS`` for the points ``rows``; NaN where undefined."""
        x, y, group = self.points.similarity[rows], self.points.mean[rows], self.group[rows]
        images = math.nan if self.n_train is None else partial_spearman(x, y, group, [self.n_train[rows]])
        return [partial_spearman(x, y, group), images, within_spearman(x, y, group)]


def _compute(
    job: AnalysisContext,
    *,
    runs: Mapping[str, Sequence[SavedRun]],
    similarities: Mapping[str, Concept] | None,
) -> AnalysisOutcome:
    args = job.request.args
    tested = read_all(job.request, runs)
    points = concept_points(tested, similarities)
    graph = wordnet.load_wordnet(args.wordnet_dir)
    roots = roots_of(args.subtrees, graph)
    names = subtree_of(graph, points.wnids, roots)
    present = [name for name in (*roots, REST) if name in names]
    n_train = training_images(job.request, tested)
    grouped = _Grouped(
        points,
        present,
        np.array([present.index(name) for name in names]),
        None if n_train is None else np.array([n_train[wnid] for wnid in points.wnids], dtype=np.float64),
    )
    values: dict[str, Number] = {"n_concepts": len(names), "n_subtrees": len(present)}
    values |= _accuracies(grouped, points.mean)
    for k, name in enumerate(present):
        values |= ends_of_mean(points, grouped.group == k, f"accuracy_{name}")
    if similarities is not None:
        values |= _correlations(grouped, n_resamples=args.n_resamples, several=len(tested) > 1)
    plain = math.nan if similarities is None else statistics.spearman(points.similarity, points.mean)
    _write_tables(job.stage, grouped, graph, with_similarity=similarities is not None)
    return AnalysisOutcome(
        values=values,
        per_seed={
            seed: _accuracies(grouped, row) for seed, row in zip(points.seeds, points.accuracy, strict=True)
        },
        details={
            "files": ["concepts.csv", "subtrees.csv"],
            "roots": {name: [graph.wnids[node] for node in nodes] for name, nodes in roots.items()},
            "spearman": plain,
            "concepts": {name: names.count(name) for name in present},
            "interval": "95 %, percentile bootstrap over concepts",
            "least_concepts_within": MIN_GROUP,
        },
        summary=_summary(values, plain),
    )


def _accuracies(grouped: _Grouped, accuracy: np.ndarray) -> dict[str, Number]:
    return {
        f"accuracy_{name}": float(accuracy[grouped.group == k].mean()) for k, name in enumerate(grouped.names)
    }


def _correlations(grouped: _Grouped, *, n_resamples: int, several: bool) -> dict[str, Number]:
    """Return the correlations with similarity and their intervals; resamples are drawn within each level."""
    datasets = np.array(grouped.points.dataset)
    whole = grouped.correlations(np.arange(len(datasets)))
    strata = datasets if several else np.zeros(len(datasets))
    ends = intervals(grouped.correlations, strata, n_resamples=n_resamples) or [(math.nan, math.nan)] * len(
        whole
    )
    values: dict[str, Number] = {}
    for name, value, (low, high) in zip(_CORRELATIONS, whole, ends, strict=True):
        known = not math.isnan(value)
        values |= {
            name: value,
            f"{name}_low": low if known else None,
            f"{name}_high": high if known else None,
        }
    return values


def _summary(values: Mapping[str, Number], plain: float) -> str:
    concepts, names = (int(values[key] or 0) for key in ("n_concepts", "n_subtrees"))
    text = f"{counted(concepts, 'concept')} in {counted(names, 'subtree')}"
    if "spearman_within_subtrees" not in values:
        return text
    if math.isnan(plain):
        return f"{text}; no correlation with similarity is defined: all similarities, or all accuracies, are equal"
    parts = [f"{plain:.3f}"]
    for name, words in _CORRELATIONS.items():
        value, low, high = (values[f"{name}{end}"] for end in ("", "_low", "_high"))
        if value is None or math.isnan(value):
            parts.append(f"undefined{words}")
        else:
            known = low is not None and high is not None and not math.isnan(low)
            parts.append(f"{value:.3f}{f' [{low:.3f}, {high:.3f}]' if known else ''}{words}")
    return f"{text}; Spearman of similarity and accuracy {'; '.join(parts)}"


def _write_tables(stage: Path, grouped: _Grouped, graph: NounGraph, *, with_similarity: bool) -> None:
    """Write a table with a row for each data set and subtree, and a table with a row for each concept."""
    points, datasets = grouped.points, np.array(grouped.points.dataset)
    everything = np.ones(len(datasets), dtype=bool)
    places = [(name, datasets == name) for name in dict.fromkeys(points.dataset)]
    rows = []
    for dataset, inside in [*places, *([("all", everything)] if len(places) > 1 else [])]:
        for k, name in enumerate(grouped.names):
            members = inside & (grouped.group == k)
            y, n = points.mean[members], int(members.sum())
            if not n:
                continue
            x = points.similarity[members]
            rho = statistics.spearman(x, y) if with_similarity else math.nan
            rows.append(
                (
                    dataset, name, n, int(points.n_test[members].sum()),
                    "" if grouped.n_train is None else f"{grouped.n_train[members].mean():.1f}",
                    f"{y.mean():.4f}", f"{y.std(ddof=1) / math.sqrt(n):.4f}" if n > 1 else "",
                    f"{x.mean():.6f}" if with_similarity else "", "" if math.isnan(rho) else f"{rho:.4f}",
                )
            )  # fmt: skip
    write_csv(
        stage / "subtrees.csv",
        ("dataset", "subtree", "concepts", "test_images", "mean_training_images", "accuracy", "standard_error",
         "mean_similarity", "spearman"),
        rows,
    )  # fmt: skip
    write_csv(
        stage / "concepts.csv",
        ("dataset", "wnid", "names", "subtree", "accuracy", "similarity", "training_images", "test_images"),
        [
            (
                points.dataset[k], wnid, graph.words(graph.index(wnid)), grouped.names[grouped.group[k]],
                f"{points.mean[k]:.4f}", repr(float(points.similarity[k])) if with_similarity else "",
                "" if grouped.n_train is None else int(grouped.n_train[k]), int(points.n_test[k]),
            )
            for k, wnid in enumerate(points.wnids)
        ],
    )  # fmt: skip
