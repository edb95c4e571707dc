"""Which concepts one model classifies better than another, and how sure that is.

Two uncertainties are kept apart. Seeds vary the training of the classifier alone: the standard deviation of the
difference over paired seeds. The 50 test images of a concept are few: a sign test over images (exact, two-sided; with
one seed this is McNemar's test), with false discovery rates over all concepts, because among 1000 of them 50 come out
below 0.05 by chance.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cog import constants, paths
from cog.analysis import concepts, saved_runs, statistics
from cog.analysis.accuracy_vs_similarity import Tested, read_tested
from cog.analysis.probe_flags import PROBE_FLAGS
from cog.analysis.saved_runs import SavedRun
from cog.analysis.task import Analysis, AnalysisContext, AnalysisOutcome, AnalysisRequest, AnalysisTask
from cog.errors import CogError
from cog.paths import ModelDir
from cog.results.analysis_records import Number
from cog.results.cells import natural_key
from cog.results.metric_info import Metric, by_name, declare
from cog.runtime import files

logger = logging.getLogger(__name__)

#: False discovery rate below which a difference of a concept counts as real.
_RATE = 0.05


def plan(request: AnalysisRequest) -> list[AnalysisTask]:
    """Compare two models concept by concept.

    Raises:
        CogError: no ``--against``, or no runs of either model.
    """
    args, dataset = request.args, request.dataset
    if args.against is None:
        raise CogError("--analysis winners needs --against MODEL: the model to compare with")
    if request.model_dir is None or dataset is None:
        raise CogError("--analysis winners needs --models_root_dir, --model and --dataset")
    if not constants.is_model_name(args.against):
        raise CogError(
            f"--against {args.against!r} is not a model name, expected <model_title>_<architecture_name> such as "
            "sup_resnet50 (letters, digits and ._+- only)"
        )
    other_dir = ModelDir(request.model_dir.root, args.against)
    if args.against == request.model:
        raise CogError(f"--against {args.against} is --model itself; give another one")
    runs = saved_runs.find_runs(request.model_dir, dataset, request.cfg, seeds=args.run_seeds)
    other_runs = saved_runs.find_runs(other_dir, dataset, request.cfg, seeds=args.run_seeds)
    settings: dict[str, Any] = {
        "against": args.against,
        "evaluation": paths.evaluation_folder(*saved_runs.evaluation(request.cfg)),
        "top_n": args.top_n,
        "predictions": _digests(runs),
        "predictions_against": _digests(other_runs),
    }

    def compute(job: AnalysisContext) -> AnalysisOutcome:
        return _compute(job, runs=runs, other_runs=other_runs, other_dir=other_dir)

    return [
        AnalysisTask(
            name=f"winners_{args.against}{saved_runs.evaluation_label(request.cfg)}",
            splits=(),
            settings=settings,
            compute=compute,
            packages=("numpy",),
        )
    ]


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
    ahead = {"n_surely_better": "better", "n_surely_worse": "worse"}.get(quantity)
    if quantity == "p_sign_test":
        return dataclasses.replace(
            by_name(f"winners_{other}", quantity),
            label=f"{_title(other) or 'winners'}: p-value of the sign test over images",
            decimals=2,
            significant=True,
        )
    if ahead is None:
        return None
    return Metric(
        group="winners",
        label=f"concepts {ahead} than {other}, beyond chance",
        decimals=0,
        better=1 if ahead == "better" else -1,
        order=(5.6, natural_key(other), ahead == "worse"),
        short=f"concepts surely {ahead} than {other}",
    )


declare("winners", _metric, title=_title)


def _digests(runs: Sequence[SavedRun]) -> dict[str, str]:
    return {str(run.seed): files.sha256(run.file(saved_runs.PREDICTIONS_FILE)) for run in runs}


@dataclass(frozen=True, eq=False)
class ConceptComparison:
    """Two models on the same test images, concept by concept; C concepts.

    Attributes:
        accuracy: mean over seeds in percent, float64 ``(C,)``.
        other_accuracy: of the other model.
        std: standard deviation (n - 1) of the difference over paired seeds; NaN for fewer than two.
        p: two-sided p-value of the sign test over images.
        rate: false discovery rate over the concepts.
        n_ahead: images on which the model is right more often, over seeds, than the other.
        n_behind: images on which the other is.
        seeds: that both have.
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
        """In points, positive where the model is ahead."""
        return self.accuracy - self.other_accuracy


def compare(one: Tested, other: Tested) -> ConceptComparison:
    """Compare two models.

    Raises:
        CogError: when they were not tested on the same images.
    """
    if (
        one.wnids != other.wnids
        or not np.array_equal(one.labels, other.labels)
        or (
            one.image_paths is not None
            and other.image_paths is not None
            and one.image_paths != other.image_paths
        )
    ):
        raise CogError(
            f"the two models were not tested on the same images of {one.dataset} ({len(one.labels)} and "
            f"{len(other.labels)} of {len(one.wnids)} and {len(other.wnids)} concepts); extract the test features of "
            "both from the same image lists"
        )
    from scipy import stats

    n_classes = len(one.wnids)
    accuracy, other_accuracy = one.accuracies(), other.accuracies()
    seeds = sorted(set(one.seeds) & set(other.seeds))
    paired = np.array(
        [accuracy[one.seeds.index(s)] - other_accuracy[other.seeds.index(s)] for s in seeds]
    ).reshape(len(seeds), n_classes)
    ahead = one.correct.mean(axis=0) - other.correct.mean(axis=0)  # per image, over seeds
    # Shares of different numbers of seeds can differ by rounding alone.
    n_ahead, n_behind = (
        np.bincount(one.labels, weights=side, minlength=n_classes).astype(np.int64)
        for side in (ahead > 1e-9, ahead < -1e-9)
    )
    p = np.array([statistics.sign_test(int(a), int(b)) for a, b in zip(n_ahead, n_behind, strict=True)])
    tested = one.n_test() > 0
    rate = np.full(n_classes, math.nan)
    rate[tested] = stats.false_discovery_control(p[tested])
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
    job: AnalysisContext, *, runs: Sequence[SavedRun], other_runs: Sequence[SavedRun], other_dir: ModelDir
) -> AnalysisOutcome:
    request, args, dataset = job.request, job.request.args, job.request.dataset
    assert dataset is not None and request.model_dir is not None
    own, others = (
        read_tested(
            saved,
            folder.features(dataset, "test") / constants.FEATURES_FILE,
            dataset,
            levels_file=args.cog_levels_mapping_file,
        )
        for saved, folder in ((runs, request.model_dir), (other_runs, other_dir))
    )
    found = compare(own, others)
    words = concepts.Words(args.wordnet_dir)
    n_test = own.n_test()
    order = [int(k) for k in np.argsort(-found.difference, kind="stable") if n_test[k]]
    _write_table(job.stage / "concepts.csv", found, own, words, order)
    values = _headline(found, order)
    details = {
        "against": args.against,
        "seeds_of_model": own.seeds,
        "seeds_of_against": others.seeds,
        "false_discovery_rate": _RATE,
        "files": ["concepts.csv"],
        "winners": [_entry(found, own, words, k) for k in order[: args.top_n] if found.difference[k] > 0],
        "losers": [
            _entry(found, own, words, k) for k in order[::-1][: args.top_n] if found.difference[k] < 0
        ],
    }
    summary = (
        f"{values['mean_difference']:+.2f} points against {args.against}; better on {values['n_better']} of "
        f"{len(order)} concepts ({values['n_surely_better']} beyond chance), worse on {values['n_worse']} "
        f"({values['n_surely_worse']})"
    )
    return AnalysisOutcome(values, found.seeds, _per_seed(own, others, found.seeds), details, summary)


def _headline(found: ConceptComparison, order: Sequence[int]) -> dict[str, Number]:
    """Return the numbers over the concepts ``order``."""
    difference = found.difference[order]
    sure = found.rate[order] < _RATE
    return {
        "mean_difference": float(difference.mean()),
        "n_concepts": len(order),
        "n_better": int((difference > 0).sum()),
        "n_worse": int((difference < 0).sum()),
        "n_surely_better": int((sure & (difference > 0)).sum()),
        "n_surely_worse": int((sure & (difference < 0)).sum()),
        "p_sign_test": statistics.sign_test(int(found.n_ahead.sum()), int(found.n_behind.sum())),
    }


def _per_seed(own: Tested, others: Tested, seeds: Sequence[int]) -> dict[int, dict[str, Number]]:
    """Return the numbers of each seed that both models have."""
    accuracy, other_accuracy = own.accuracies(), others.accuracies()
    per_seed: dict[int, dict[str, Number]] = {}
    for seed in seeds:
        difference = accuracy[own.seeds.index(seed)] - other_accuracy[others.seeds.index(seed)]
        per_seed[seed] = {
            "mean_difference": float(np.nanmean(difference)),
            "n_better": int((difference > 0).sum()),
            "n_worse": int((difference < 0).sum()),
        }
    return per_seed


def _entry(found: ConceptComparison, own: Tested, words: concepts.Words, k: int) -> dict[str, Any]:
    """Return what is recorded of a concept."""
    return {
        "wnid": own.wnids[k],
        "names": words(own.wnids[k]),
        "difference": float(found.difference[k]),
        "accuracy": float(found.accuracy[k]),
        "accuracy_against": float(found.other_accuracy[k]),
        "std": float(found.std[k]),
        "p": float(found.p[k]),
        "false_discovery_rate": float(found.rate[k]),
    }


def _write_table(
    path: Path, found: ConceptComparison, own: Tested, words: concepts.Words, order: Sequence[int]
) -> None:
    """Write a row for each of the concepts ``order``."""
    header = (
        "wnid", "names", "difference", "accuracy", "accuracy_against", "std_over_seeds", "test_images",
        "images_ahead", "images_behind", "p_sign_test", "false_discovery_rate",
    )  # fmt: skip
    n_test = own.n_test()
    rows = [
        (
            own.wnids[k], words(own.wnids[k]), f"{found.difference[k]:.4f}", f"{found.accuracy[k]:.4f}",
            f"{found.other_accuracy[k]:.4f}", None if math.isnan(found.std[k]) else f"{found.std[k]:.4f}",
            int(n_test[k]), int(found.n_ahead[k]), int(found.n_behind[k]), f"{found.p[k]:.6g}",
            f"{found.rate[k]:.6g}",
        )
        for k in order
    ]  # fmt: skip
    concepts.write_csv(path, header, rows)
