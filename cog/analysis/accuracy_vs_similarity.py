"""Accuracy per concept against its similarity to the seen concepts: within a level, and over all levels.

The tables show that accuracy falls from level to level. This analysis shows whether accuracy falls concept by concept:
Spearman's rank correlation of the test accuracy of a concept (mean over seeds) with its similarity to IN-1K
(``levels.csv``), with a bootstrap interval over concepts. Equal similarities have equal (average) ranks; their number
is recorded, because the concepts of a level with few different similarities are hardly ranked.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from cog import constants
from cog.analysis import concepts, saved_runs, statistics
from cog.analysis.concepts import Concept
from cog.analysis.confident_errors import read_labels
from cog.analysis.probe_flags import PROBE_FLAGS
from cog.analysis.saved_runs import SavedRun
from cog.analysis.task import Analysis, AnalysisContext, AnalysisOutcome, AnalysisRequest, AnalysisTask
from cog.errors import CogError
from cog.features.folder import read_image_paths
from cog.levels.ranking import Ties
from cog.paths import ModelDir, features_file
from cog.results import find, uncertainty
from cog.results.analysis_records import Number
from cog.results.metric_info import (
    NONE,
    OVER_CONCEPTS_AND_SEEDS,
    PERCENT,
    Metric,
    by_name,
    companion_of,
    declare,
)
from cog.results.scores import dataset_key, interval_of, natural_key
from cog.runtime import files
from cog.runtime.csv_text import write_csv

logger = logging.getLogger(__name__)

#: Name for all levels together, used in the place of a data set.
ALL_LEVELS = "cog_levels"

_BINS = 10


@dataclass(frozen=True, eq=False)
class Tested:
    """The correctness of the runs of one data set, image by image.

    Attributes:
        dataset: name of the data set.
        seeds: seed of each run, S of them.
        wnids: concept of each label, C of them.
        labels: int64 ``(n,)``.
        correct: bool ``(S, n)``: whether each run predicted the true class of each image.
        image_paths: path of each image; None when unknown.
    """

    dataset: str
    seeds: list[int]
    wnids: list[str]
    labels: np.ndarray
    correct: np.ndarray
    image_paths: list[str] | None

    def n_test(self) -> np.ndarray:
        """Return the number of test images per class, int64 ``(C,)``."""
        return np.bincount(self.labels, minlength=len(self.wnids))

    def accuracies(self) -> np.ndarray:
        """Return the accuracy per run and class in percent, float64 ``(S, C)``; NaN for classes without images."""
        n = self.n_test()
        hits = np.array([np.bincount(self.labels, weights=row, minlength=len(n)) for row in self.correct])
        with np.errstate(invalid="ignore"):
            return 100 * hits / np.where(n > 0, n, np.nan)


def read_tested(
    runs: Sequence[SavedRun], features_file: Path, dataset: str, *, levels_file: str | None
) -> Tested:
    """Compare the predictions of runs with the labels of the test features.

    Args:
        runs: runs of one evaluation of a data set.
        features_file: test features; where they are missing, the features that the runs recorded are read.
        dataset: name of the data set.
        levels_file: ``cog_levels_mapping_file.pkl``, which names the classes where the features do not.

    Raises:
        CogError: there are no features, or the predictions are those of other features.
    """
    recorded = runs[0].record.get("test_features")
    file = features_file
    if not file.is_file() and isinstance(recorded, str):
        file = Path(recorded)
    if not file.is_file():
        raise CogError(
            f"there are no test features {file} with the labels of the test images of {dataset}; give their folder"
        )
    labels = read_labels(file)
    predicted = [saved_runs.predictions(run) for run in runs]
    for run, classes in zip(runs, predicted, strict=True):
        if len(classes) != len(labels):
            raise CogError(
                f"the run {run.folder.parent} predicted {len(classes)} test images, and {file} has {len(labels)}: the "
                "run was tested on other features; run logreg.py again (--overwrite)"
            )
    image_paths = read_image_paths(file, n_rows=len(labels))
    wnids = concepts.class_names(
        dataset,
        n_classes=int(labels.max()) + 1,
        image_paths=image_paths,
        labels=labels,
        levels_file=levels_file,
    )
    tested = Tested(
        dataset,
        [run.seed for run in runs],
        wnids,
        labels,
        np.array([classes == labels for classes in predicted]),
        image_paths,
    )
    for run, row in zip(runs, tested.correct, strict=True):
        if abs(100 * row.mean() - run.top1) > 0.01:
            raise CogError(
                f"the predictions in {run.folder} give {100 * row.mean():.2f} % top-1 with the labels of {file}, and "
                f"the run reports {run.top1:.2f} %: the run was tested on other features; run logreg.py again "
                "(--overwrite)"
            )
    return tested


def runs_of(request: AnalysisRequest, folder: ModelDir, dataset: str) -> dict[str, list[SavedRun]]:
    """Return the runs of a model by data set: those of a data set, or for ``cog_levels`` those of every level.

    Raises:
        CogError: there are no runs, or only those of one level.
    """
    levels = [dataset]
    if dataset == ALL_LEVELS:
        evaluation, n_shot = saved_runs.evaluation(request.cfg)
        levels = [
            level
            for level in sorted(find.list_folders(folder.path), key=dataset_key)
            if constants.cog_level(level) is not None
            and saved_runs.any_in(folder.evaluation(level, name=evaluation, n_shot=n_shot))
        ]
    if dataset == ALL_LEVELS and len(levels) < 2:
        raise CogError(
            f"--dataset {ALL_LEVELS} needs classifiers of two levels or more, and {folder.path} has those of "
            f"{len(levels)}; run logreg.py on cog_l1, cog_l2, ... first"
        )
    seeds = request.args.run_seeds
    return {level: saved_runs.find_runs(folder, level, request.cfg, seeds=seeds) for level in levels}


def plan(request: AnalysisRequest) -> list[AnalysisTask]:
    """Return the task that correlates accuracy per concept with similarity to IN-1K.

    Raises:
        CogError: no ``--levels_csv``, no runs, or a data set of seen concepts.
    """
    args = request.args
    if args.levels_csv is None:
        raise CogError(
            "--analysis distance needs --levels_csv FILE: levels.csv of build_levels.py, with the similarity of every "
            "concept to IN-1K"
        )
    folder, dataset = request.place("distance")
    if dataset == constants.IN1K:
        raise CogError(
            f"--analysis distance: the concepts of {dataset} are the seen ones; give levels (cog_l1 ..., or "
            f"{ALL_LEVELS} for all of them together)"
        )
    similarities = concepts.read_levels_csv(args.levels_csv)
    runs = runs_of(request, folder, dataset)
    settings = {
        "levels_csv_sha256": files.sha256(args.levels_csv),
        "n_resamples": args.n_resamples,
        "predictions": {level: saved_runs.prediction_digests(of_level) for level, of_level in runs.items()},
    }
    compute = partial(_compute, runs=runs, similarities=similarities)
    return saved_runs.classifier_task(request, "distance", settings, compute)


ANALYSIS = Analysis(
    "distance",
    "accuracy per concept against its similarity to IN-1K (--levels_csv); data set cog_levels: all levels",
    plan,
    uses=(*PROBE_FLAGS, "levels_csv", "n_resamples"),
    in_all=False,
)


#: Label of the correlation of this analysis.
CORRELATION = "Spearman correlation of accuracy per concept with its similarity to IN-1K"

# Position of the concepts in the label of the mean accuracy of each tenth.
_TENTHS = {"nearest_accuracy": "nearest to", "farthest_accuracy": "farthest from"}

# Label and unit of the numbers on equal similarities.
_TIES = {
    "n_similarities": ("different similarities to IN-1K", NONE),
    "largest_tie_percent": ("concepts that share the most frequent similarity", PERCENT),
}


def _metric(variant: str, quantity: str) -> Metric | None:
    rest, key = f", {variant}" if variant else "", natural_key(variant)
    if companion_of(quantity) is not None:
        return None
    if quantity == "spearman":
        return Metric(
            group="distance", label=CORRELATION + rest, decimals=2, better=0, headline=not variant, order=(5, key, 0),
            short="accuracy ~ similarity, Spearman",
        )  # fmt: skip
    if quantity in _TENTHS:
        farthest = quantity == "farthest_accuracy"
        return Metric(
            group="distance",
            label=f"accuracy on the tenth of the concepts {_TENTHS[quantity]} IN-1K{rest}",
            unit=PERCENT,
            decimals=1,
            headline=farthest and not variant,
            order=(5, key, 1 + farthest),
            short=f"{quantity.removesuffix('_accuracy')} tenth of the concepts",
            interval=OVER_CONCEPTS_AND_SEEDS,
        )
    if quantity == "mean_accuracy":
        usual = by_name(f"distance_{variant}" if variant else "distance", quantity)
        return dataclasses.replace(usual, interval=OVER_CONCEPTS_AND_SEEDS)
    if quantity in _TIES:
        label, unit = _TIES[quantity]
        return Metric(
            group="distance", label=label + rest, unit=unit, decimals=0, better=0, headline=False,
            order=(5, key, 4, quantity),
        )  # fmt: skip
    if quantity.startswith("spearman_"):  # the correlation within one level, in an analysis of all levels
        level = quantity.removeprefix("spearman_")
        return Metric(
            group="distance", label=f"{CORRELATION} within {level}{rest}", decimals=2, better=0, headline=False,
            order=(5, key, 3, natural_key(level)),
        )  # fmt: skip
    return None


declare(
    "distance", _metric, title=lambda variant: f"accuracy and distance{f', {variant}' if variant else ''}"
)


@dataclass(frozen=True, eq=False)
class ConceptPoints:
    """Similarity and accuracy of n concepts.

    Attributes:
        dataset: data set of each concept.
        wnids: WordNet id of each concept.
        similarity: similarity to the seen concepts, float64 ``(n,)``.
        accuracy: accuracy in percent of the seeds that all data sets have, float64 ``(S, n)``.
        mean: mean accuracy over all seeds of the concept's data set, float64 ``(n,)``.
        std: standard deviation of the accuracy over these seeds, float64 ``(n,)``.
        n_test: number of test images of each concept, int64 ``(n,)``.
        seeds: the S seeds.
    """

    dataset: list[str]
    wnids: list[str]
    similarity: np.ndarray
    accuracy: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    n_test: np.ndarray
    seeds: list[int]


def read_all(request: AnalysisRequest, runs: Mapping[str, Sequence[SavedRun]]) -> list[Tested]:
    """Return the tested runs of every data set (:func:`read_tested`)."""
    levels_file = request.args.cog_levels_mapping_file
    return [
        read_tested(saved, _test_features_file(request, dataset), dataset, levels_file=levels_file)
        for dataset, saved in runs.items()
    ]


def concept_points(tested: Sequence[Tested], similarities: Mapping[str, Concept] | None) -> ConceptPoints:
    """Return the points of all concepts with test images.

    Args:
        tested: runs of each data set.
        similarities: rows of ``levels.csv`` by WordNet id; None: all similarities are NaN.

    Raises:
        CogError: a concept has no row in ``similarities``.
    """
    seeds = sorted(set.intersection(*(set(data.seeds) for data in tested)))
    rows = []
    unknown: list[str] = []
    for data in tested:
        accuracy = data.accuracies()
        common = [data.seeds.index(seed) for seed in seeds]
        for label, (wnid, n) in enumerate(zip(data.wnids, data.n_test().tolist(), strict=True)):
            if not n:
                continue
            if similarities is not None and wnid not in similarities:
                unknown.append(wnid)
                continue
            values = accuracy[:, label]
            near = math.nan if similarities is None else similarities[wnid].similarity
            rows.append((data.dataset, wnid, near, values[common], values.mean(), values.std(), n))
    if unknown:
        raise CogError(
            f"--levels_csv has no row for {len(unknown)} concepts of {', '.join(data.dataset for data in tested)} "
            f"({', '.join(unknown[:3])}); give the levels.csv that belongs to these levels"
        )
    datasets, wnids, *numbers = zip(*rows, strict=True)
    similarity, accuracy, mean, std, n_test = map(np.array, numbers)
    return ConceptPoints(list(datasets), list(wnids), similarity, accuracy.T, mean, std, n_test, seeds)


def _compute(
    job: AnalysisContext, *, runs: Mapping[str, Sequence[SavedRun]], similarities: Mapping[str, Concept]
) -> AnalysisOutcome:
    args = job.request.args
    tested = read_all(job.request, runs)
    points = concept_points(tested, similarities)
    several = len(tested) > 1
    dataset_of = np.array(points.dataset)
    bins = binned(points.similarity, points.mean, n_bins=_BINS)
    whole = statistics.spearman_interval(
        points.similarity,
        points.mean,
        n_resamples=args.n_resamples,
        strata=dataset_of if several else None,
    )
    ties = Ties.of(points.similarity)
    _warn(job, ALL_LEVELS if several else tested[0].dataset, ties)
    values: dict[str, Number] = {
        "spearman": whole.value,
        "spearman_low": whole.low,
        "spearman_high": whole.high,
        "n_concepts": whole.n,
        "n_similarities": ties.distinct,
        "largest_tie_percent": 100 * ties.largest / ties.n,
        "mean_accuracy": float(points.mean.mean()),
        **_ends(bins),
        **_intervals(points, bins),
    }
    levels = []
    for level in tested if several else ():
        inside = dataset_of == level.dataset
        part = statistics.spearman_interval(
            points.similarity[inside], points.mean[inside], n_resamples=args.n_resamples
        )
        part_ties = Ties.of(points.similarity[inside])
        _warn(job, level.dataset, part_ties)
        name = f"spearman_{level.dataset}"
        values |= dict(zip((name, *interval_of(name)), (part.value, part.low, part.high), strict=True))
        levels.append(
            {
                "dataset": level.dataset,
                "n_concepts": part.n,
                "seeds": level.seeds,
                "spearman": part.value,
                "spearman_low": part.low,
                "spearman_high": part.high,
                "n_similarities": part_ties.distinct,
                "largest_tie": part_ties.largest,
                "mean_similarity": float(points.similarity[inside].mean()),
                "mean_accuracy": float(points.mean[inside].mean()),
            }
        )
    _write_tables(job.stage, points, similarities, bins)
    per_seed: dict[int, dict[str, Number]] = {
        seed: {
            "spearman": statistics.spearman(points.similarity, row),
            "mean_accuracy": float(row.mean()),
            **_ends(binned(points.similarity, row, n_bins=_BINS)),
        }
        for seed, row in zip(points.seeds, points.accuracy, strict=True)
    }
    return AnalysisOutcome(
        values=values,
        per_seed=per_seed,
        details={
            "files": ["bins.csv", "concepts.csv", "similarities.csv"],
            "interval": "95 %, percentile bootstrap over concepts"
            + (", drawn within each level" if several else ""),
            "n_resamples": whole.n_resamples,
            "levels": levels,
            "bins": bins,
        },
        summary=_summary(whole, points, bins, ties, n_seeds=len(tested[0].seeds)),
    )


def _warn(job: AnalysisContext, dataset: str, ties: Ties) -> None:
    if ties.warning:
        logger.warning("%s%s: %s", job.label, dataset, ties.warning)


def _ends(bins: Sequence[Mapping[str, float | int]]) -> dict[str, Number]:
    return {"nearest_accuracy": bins[0]["accuracy"], "farthest_accuracy": bins[-1]["accuracy"]}


def _intervals(points: ConceptPoints, bins: Sequence[Mapping[str, float | int]]) -> dict[str, Number]:
    """Return the ends of the intervals of three mean accuracies: over all, the nearest, and the farthest concepts."""
    everything = np.full(len(points.mean), True)
    return {
        **ends_of_mean(points, everything, "mean_accuracy"),
        **ends_of_mean(points, points.similarity >= bins[0]["similarity_low"], "nearest_accuracy"),
        **ends_of_mean(points, points.similarity <= bins[-1]["similarity_high"], "farthest_accuracy"),
    }


def ends_of_mean(points: ConceptPoints, inside: np.ndarray, name: str) -> dict[str, Number]:
    """Return the ends of the interval, over concepts and seeds, of the mean accuracy of some concepts.

    Where levels have different seeds, the interval is over concepts alone.

    Args:
        points: points of all concepts.
        inside: mask of the concepts in the mean, bool ``(n,)``.
        name: name of the mean.
    """
    same_seeds = len(points.accuracy) > 0 and np.allclose(points.accuracy.mean(axis=0), points.mean)
    accuracies = points.accuracy if same_seeds else points.mean[None]
    return ends_of(name, uncertainty.mean_accuracy(accuracies[:, inside], int(points.n_test[inside].sum())))


def ends_of(name: str, interval: uncertainty.Estimate | None) -> dict[str, Number]:
    """Return the ends of the interval of a number by their names; None where unknown."""
    ends = (None, None) if interval is None else (interval.low, interval.high)
    return dict(zip(interval_of(name), ends, strict=True))


def _summary(
    correlation: statistics.CorrelationInterval,
    points: ConceptPoints,
    bins: Sequence[Mapping[str, float | int]],
    ties: Ties,
    *,
    n_seeds: int,
) -> str:
    if math.isnan(correlation.value):
        same = "similarities" if len(set(points.similarity.tolist())) < 2 else "accuracies"
        return f"no correlation is defined: the {same} of all {correlation.n} concepts are equal"
    interval = "" if math.isnan(correlation.low) else f" [{correlation.low:.3f}, {correlation.high:.3f}]"
    return (
        f"Spearman {correlation.value:.3f}{interval} between similarity and accuracy of {correlation.n} concepts "
        f"({ties.distinct} different similarities, {ties.largest} concepts share one), mean over {n_seeds} seeds; "
        f"accuracy {bins[0]['accuracy']:.1f} % on the nearest tenth, "
        f"{bins[-1]['accuracy']:.1f} % on the farthest"
    )


def _test_features_file(request: AnalysisRequest, dataset: str) -> Path:
    if dataset == request.dataset and request.features.get("test") is not None:
        return features_file(request.features["test"])
    assert request.model_dir is not None
    return request.model_dir.features_file(dataset, "test")


def binned(similarity: np.ndarray, accuracy: np.ndarray, *, n_bins: int) -> list[dict[str, float | int]]:
    """Return the mean accuracy in bins of concepts of close similarity, with equal numbers of concepts.

    Concepts of equal similarity stay in one bin, so bins can differ in size, and there can be fewer than ``n_bins``.

    Returns:
        One record per bin, most similar concepts first: ``n``, ``similarity_low``, ``similarity_high``, ``similarity``
        (mean), ``accuracy`` (mean, percent) and ``standard_error`` of that mean over concepts (0 for a single concept).
    """
    order = np.argsort(-similarity, kind="stable")
    edges = [0]
    for k in range(1, n_bins):
        edge = round(k * len(order) / n_bins)
        while 0 < edge < len(order) and similarity[order[edge]] == similarity[order[edge - 1]]:
            edge += 1
        edges.append(edge)
    return _groups(similarity, accuracy, order, sorted({*edges, len(order)}))


def averaged_over_ties(similarity: np.ndarray, accuracy: np.ndarray) -> list[dict[str, float | int]]:
    """Return the mean accuracy over the concepts of each similarity, highest first, in the form of :func:`binned`."""
    order = np.argsort(-similarity, kind="stable")
    starts = np.flatnonzero(np.diff(similarity[order], prepend=np.inf))
    return _groups(similarity, accuracy, order, [*starts.tolist(), len(order)])


def _groups(
    similarity: np.ndarray, accuracy: np.ndarray, order: np.ndarray, edges: Sequence[int]
) -> list[dict[str, float | int]]:
    """Return the record of :func:`binned` for each group of concepts, ``order[edges[i] : edges[i + 1]]``."""
    bins = []
    for first, last in itertools.pairwise(edges):
        rows = order[first:last]
        x, y = similarity[rows], accuracy[rows]
        bins.append(
            {
                "n": len(rows),
                "similarity_low": float(x.min()),
                "similarity_high": float(x.max()),
                "similarity": float(x.mean()),
                "accuracy": float(y.mean()),
                "standard_error": float(y.std(ddof=1) / np.sqrt(len(y))) if len(y) > 1 else 0.0,
            }
        )
    return bins


def _write_tables(
    stage: Path,
    points: ConceptPoints,
    similarities: Mapping[str, Concept],
    bins: Sequence[Mapping[str, float | int]],
) -> None:
    rows = []
    for k in np.argsort(-points.similarity, kind="stable"):
        concept = similarities[points.wnids[k]]
        accuracies = (points.mean[k], points.std[k], *points.accuracy[:, k])
        rows.append(
            (points.dataset[k], concept.wnid, concept.names, repr(concept.similarity), concept.nearest,
             int(points.n_test[k]), *(f"{accuracy:.4f}" for accuracy in accuracies))
        )  # fmt: skip
    header = ("dataset", "wnid", "names", "similarity", "nearest_seen", "test_images", "accuracy", "std")
    write_csv(stage / "concepts.csv", (*header, *(f"accuracy_seed_{seed}" for seed in points.seeds)), rows)
    means = [
        {"n": row["n"], **{name: row[name] for name in ("similarity", "accuracy", "standard_error")}}
        for row in averaged_over_ties(points.similarity, points.mean)
    ]
    for name, table in (("bins.csv", bins), ("similarities.csv", means)):
        write_csv(stage / name, list(table[0]), [list(row.values()) for row in table])
