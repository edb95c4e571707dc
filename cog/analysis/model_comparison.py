"""Comparison of two models concept by concept, with the uncertainty of each difference and of their mean.

Each concept has two separate uncertainties. That over seeds, which vary only the training of the classifier, is the
standard deviation of the difference over paired seeds. That over the few (50) test images of a concept is a sign test
over images (exact, two-sided; with one seed this is McNemar's test), with false discovery rates over all concepts,
because among 1000 concepts 50 have a p-value below 0.05 by chance.

The mean over concepts has two intervals. That of ``mean_difference``, used in tables, is for another draw of concepts
with their images, and other seeds (:func:`cog.results.uncertainty.difference`). That of ``mean_difference_of_these`` is
for other images of the same concepts, and other seeds
(:func:`cog.results.uncertainty.mean_difference_over_images`). The first includes the uncertainty over images: the
accuracies of concepts with few images vary more.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cog import constants
from cog.analysis import concepts, saved_runs, statistics
from cog.analysis.accuracy_vs_similarity import Tested, ends_of, read_tested
from cog.analysis.probe_flags import PROBE_FLAGS
from cog.analysis.saved_runs import SavedRun
from cog.analysis.task import Analysis, AnalysisContext, AnalysisOutcome, AnalysisRequest, AnalysisTask
from cog.errors import CogError
from cog.features.folder import PATHS_FILE
from cog.paths import ModelDir
from cog.results import uncertainty
from cog.results.analysis_records import Number
from cog.results.metric_info import POINTS, Metric, by_name, declare
from cog.results.scores import natural_key
from cog.runtime.csv_text import write_csv

logger = logging.getLogger(__name__)

#: Name of the mean difference with its interval over images of these concepts.
_OF_THESE = "mean_difference_of_these"

_OVER_CONCEPTS = "[ ]: 95 % interval over concepts (with their images) and seeds, paired over both."
_OVER_IMAGES = "[ ]: 95 % interval over images of these very concepts and seeds, paired over both."

#: False discovery rate below which a difference is counted.
_RATE = 0.05


def plan(request: AnalysisRequest) -> list[AnalysisTask]:
    """Return the task that compares two models concept by concept.

    Raises:
        CogError: no ``--against``, or no runs of either model.
    """
    args = request.args
    if args.against is None:
        raise CogError("--analysis winners needs --against MODEL: the model to compare with")
    model_dir, dataset = request.place("winners")
    if not constants.is_model_name(args.against):
        raise CogError(
            f"--against {args.against!r} is not a model name, expected <model_title>_<architecture_name> such as "
            "sup_resnet50 (letters, digits and ._+- only)"
        )
    other_dir = ModelDir(model_dir.root, args.against)
    if args.against == request.model:
        raise CogError(f"--against {args.against} is --model itself; give another one")
    runs, other_runs = (
        saved_runs.find_runs(folder, dataset, request.cfg, seeds=args.run_seeds)
        for folder in (model_dir, other_dir)
    )
    settings = {
        "against": args.against,
        "top_n": args.top_n,
        "predictions": saved_runs.prediction_digests(runs),
        "predictions_against": saved_runs.prediction_digests(other_runs),
    }
    compute = partial(_compute, dataset=dataset, runs={model_dir: runs, other_dir: other_runs})
    return saved_runs.classifier_task(request, f"winners_{args.against}", settings, compute)


ANALYSIS = Analysis(
    "winners",
    "concepts that one model classifies better or worse than another (--against)",
    plan,
    uses=(*PROBE_FLAGS, "against", "top_n", "wordnet_dir"),
    in_all=False,
)


def _title(other: str) -> str:
    return f"concept by concept against {other}" if other else ""


def _metric(other: str, quantity: str) -> Metric | None:
    if quantity == "p_sign_test":
        return dataclasses.replace(
            by_name(f"winners_{other}", quantity),
            label=f"{_title(other) or 'winners'}: p-value of the sign test over images",
            decimals=2,
            significant=True,
        )
    if quantity in ("mean_difference", _OF_THESE):
        these = quantity == _OF_THESE
        return Metric(
            group="winners",
            label=f"{_title(other) or 'winners'}: mean difference{' on these concepts' if these else ''}",
            unit=POINTS,
            decimals=2,
            better=0,
            signed=True,
            headline=False,
            order=(9, natural_key(f"winners_{other}"), False, natural_key(quantity)),
            interval=_OVER_IMAGES if these else _OVER_CONCEPTS,
        )
    if quantity in ("n_surely_better", "n_surely_worse"):
        ahead = quantity.removeprefix("n_surely_")
        return Metric(
            group="winners",
            label=f"concepts {ahead} than {other}, false discovery rate {100 * _RATE:.0f} %",
            decimals=0,
            better=1 if ahead == "better" else -1,
            order=(5.6, natural_key(other), ahead == "worse"),
            short=f"concepts {ahead} than {other} (FDR {100 * _RATE:.0f} %)",
        )
    return None


declare("winners", _metric, title=_title)


@dataclass(frozen=True, eq=False)
class ConceptComparison:
    """Two models on the same test images, concept by concept; C concepts.

    Attributes:
        accuracy: mean over seeds in percent, float64 ``(C,)``.
        other_accuracy: mean over seeds of the other model in percent, float64 ``(C,)``.
        std: standard deviation (n - 1) of the difference over paired seeds; NaN for fewer than two seeds.
        p: two-sided p-value of the sign test over images.
        rate: false discovery rate over the concepts.
        n_ahead: number of images that the model classifies correctly for a larger share of seeds than the other model.
        n_behind: number of images that the other model classifies correctly for a larger share of seeds.
        seeds: seeds that both models have.
    """

    accuracy: np.ndarray
    other_accuracy: np.ndarray
    std: np.ndarray
    p: np.ndarray
    rate: np.ndarray
    n_ahead: np.ndarray
    n_behind: np.ndarray
    seeds: list[int]

    @property
    def difference(self) -> np.ndarray:
        """Difference of the accuracies in points, positive for concepts that the model classifies better."""
        return self.accuracy - self.other_accuracy


def _require_same_images(tested: Tested, other: Tested) -> None:
    """Raise a ``CogError`` unless two models were tested on the same images."""
    unnamed = [concepts.are_unnamed(runs.wnids) for runs in (tested, other)]
    if unnamed[0] != unnamed[1]:
        which = "--model" if unnamed[0] else "--against"
        is_level = constants.cog_level(tested.dataset) is not None
        flag = ", or give --cog_levels_mapping_file" if is_level else ""
        raise CogError(
            f"the class names of {tested.dataset} are not known for {which}: its test features have no {PATHS_FILE} "
            f"beside them, unlike those of the other model; extract them again (--overwrite){flag}"
        )
    differences = (
        len(tested.labels) != len(other.labels) and "numbers of test images",
        tested.wnids != other.wnids and "classes",
        tested.image_paths is not None and other.image_paths is not None
        and tested.image_paths != other.image_paths and "images",
        not np.array_equal(tested.labels, other.labels) and "labels",
    )  # fmt: skip
    if reasons := [name for name in differences if name]:
        raise CogError(
            f"the two models were not tested on the same images of {tested.dataset}: the {reasons[0]} differ "
            f"({len(tested.labels)} and {len(other.labels)} images of {len(tested.wnids)} and {len(other.wnids)} "
            "concepts); extract the test features of both from the same image lists"
        )


def compare(tested: Tested, other: Tested) -> ConceptComparison:
    """Compare the model ``tested`` with the model ``other``.

    Raises:
        CogError: the models were not tested on the same images.
    """
    _require_same_images(tested, other)
    from scipy import stats

    n_classes = len(tested.wnids)
    accuracy, other_accuracy = tested.accuracies(), other.accuracies()
    seeds = sorted(set(tested.seeds) & set(other.seeds))
    paired = np.array(
        [accuracy[tested.seeds.index(s)] - other_accuracy[other.seeds.index(s)] for s in seeds]
    ).reshape(len(seeds), n_classes)
    ahead = tested.correct.mean(axis=0) - other.correct.mean(axis=0)  # of each image, mean over seeds
    # Equal shares of different numbers of seeds can differ by rounding.
    n_ahead, n_behind = (
        np.bincount(tested.labels, weights=side, minlength=n_classes).astype(np.int64)
        for side in (ahead > 1e-9, ahead < -1e-9)
    )
    p = np.array([statistics.sign_test(int(a), int(b)) for a, b in zip(n_ahead, n_behind, strict=True)])
    has_images = tested.n_test() > 0
    rate = np.full(n_classes, math.nan)
    rate[has_images] = stats.false_discovery_control(p[has_images])
    return ConceptComparison(
        accuracy=accuracy.mean(axis=0),
        other_accuracy=other_accuracy.mean(axis=0),
        std=paired.std(axis=0, ddof=1) if len(seeds) > 1 else np.full(n_classes, math.nan),
        p=p,
        rate=rate,
        n_ahead=n_ahead,
        n_behind=n_behind,
        seeds=seeds,
    )


def _compute(
    job: AnalysisContext, *, dataset: str, runs: Mapping[ModelDir, Sequence[SavedRun]]
) -> AnalysisOutcome:
    """Compare the first model of ``runs`` with the second one."""
    args = job.request.args
    tested, other_tested = (
        read_tested(
            saved,
            folder.features_file(dataset, "test"),
            dataset,
            levels_file=args.cog_levels_mapping_file,
        )
        for folder, saved in runs.items()
    )
    comparison = compare(tested, other_tested)
    words = concepts.Words(args.wordnet_dir)
    n_test = tested.n_test()
    order = [int(k) for k in np.argsort(-comparison.difference, kind="stable") if n_test[k]]
    _write_table(job.stage / "concepts.csv", comparison, tested, words, order)
    values = _headline(comparison, order) | _mean_intervals(tested, other_tested, order)
    details = {
        "against": args.against,
        "seeds_of_model": tested.seeds,
        "seeds_of_against": other_tested.seeds,
        "false_discovery_rate": _RATE,
        "files": ["concepts.csv"],
        "winners": [
            _entry(comparison, tested, words, k) for k in order[: args.top_n] if comparison.difference[k] > 0
        ],
        "losers": [
            _entry(comparison, tested, words, k)
            for k in order[::-1][: args.top_n]
            if comparison.difference[k] < 0
        ],
    }
    interval = ""
    if (low := values["mean_difference_low"]) is not None:
        interval = f" [{low:+.2f}, {values['mean_difference_high']:+.2f}]"
    summary = (
        f"{values['mean_difference']:+.2f}{interval} points against {args.against}; better on {values['n_better']} of "
        f"{len(order)} concepts ({values['n_surely_better']} at a false discovery rate of {100 * _RATE:.0f} %), "
        f"worse on {values['n_worse']} ({values['n_surely_worse']})"
    )
    return AnalysisOutcome(values, _per_seed(tested, other_tested, comparison.seeds), details, summary)


def _headline(comparison: ConceptComparison, order: Sequence[int]) -> dict[str, Number]:
    """Return the numbers of the comparison over the concepts ``order``."""
    difference = comparison.difference[order]
    sure = comparison.rate[order] < _RATE
    return {
        "mean_difference": float(difference.mean()),
        "n_concepts": len(order),
        "n_better": int((difference > 0).sum()),
        "n_worse": int((difference < 0).sum()),
        "n_surely_better": int((sure & (difference > 0)).sum()),
        "n_surely_worse": int((sure & (difference < 0)).sum()),
        "p_sign_test": statistics.sign_test(int(comparison.n_ahead.sum()), int(comparison.n_behind.sum())),
    }


def _mean_intervals(tested: Tested, other: Tested, order: Sequence[int]) -> dict[str, Number]:
    """Return the mean difference over the concepts ``order`` and the ends of both its intervals; None where unknown."""
    over_concepts = over_images = None
    if tested.seeds == other.seeds:
        differences = (tested.accuracies() - other.accuracies())[:, order]
        over_concepts = uncertainty.mean_difference(differences, len(tested.labels))
        by_image = 100 * (tested.correct.astype(np.float64) - other.correct)
        over_images = uncertainty.mean_difference_over_images(by_image, tested.labels)
    mean = None if over_images is None else over_images.mean
    return {
        _OF_THESE: mean,
        **ends_of("mean_difference", over_concepts),
        **ends_of(_OF_THESE, over_images),
    }


def _per_seed(tested: Tested, other_tested: Tested, seeds: Sequence[int]) -> dict[int, dict[str, Number]]:
    """Return the numbers of each seed that both models have."""
    accuracy, other_accuracy = tested.accuracies(), other_tested.accuracies()
    per_seed: dict[int, dict[str, Number]] = {}
    for seed in seeds:
        difference = accuracy[tested.seeds.index(seed)] - other_accuracy[other_tested.seeds.index(seed)]
        per_seed[seed] = {
            "mean_difference": float(np.nanmean(difference)),
            "n_better": int((difference > 0).sum()),
            "n_worse": int((difference < 0).sum()),
        }
    return per_seed


def _entry(comparison: ConceptComparison, tested: Tested, words: concepts.Words, k: int) -> dict[str, Any]:
    """Return the record of the concept with label ``k``."""
    return {
        "wnid": tested.wnids[k],
        "names": words(tested.wnids[k]),
        "difference": float(comparison.difference[k]),
        "accuracy": float(comparison.accuracy[k]),
        "accuracy_against": float(comparison.other_accuracy[k]),
        "std": float(comparison.std[k]),
        "p": float(comparison.p[k]),
        "false_discovery_rate": float(comparison.rate[k]),
    }


def _write_table(
    path: Path, comparison: ConceptComparison, tested: Tested, words: concepts.Words, order: Sequence[int]
) -> None:
    """Write a row for each of the concepts ``order``."""
    header = (
        "wnid", "names", "difference", "accuracy", "accuracy_against", "std_over_seeds", "test_images",
        "images_ahead", "images_behind", "p_sign_test", "false_discovery_rate",
    )  # fmt: skip
    n_test = tested.n_test()
    rows = [
        (
            tested.wnids[k], words(tested.wnids[k]), f"{comparison.difference[k]:.4f}", f"{comparison.accuracy[k]:.4f}",
            f"{comparison.other_accuracy[k]:.4f}",
            None if math.isnan(comparison.std[k]) else f"{comparison.std[k]:.4f}",
            int(n_test[k]), int(comparison.n_ahead[k]), int(comparison.n_behind[k]), f"{comparison.p[k]:.6g}",
            f"{comparison.rate[k]:.6g}",
        )
        for k in order
    ]  # fmt: skip
    write_csv(path, header, rows)
