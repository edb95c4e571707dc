"""Classifiers of one data set applied to the test features of another: a probe for label noise (supplement A.3).

An image of an unseen concept that the classifier of another data set recognizes with a confidence above 0.99 either
looks exactly like a concept of that data set, or shows one: the paper finds about 2.7 % of the images.

The scale of confidences is that of the classifier's weights, which depends on the learning rate from the search of each
seed (0 to 20 % of the images above 0.99 for five seeds of one network). Confidences are therefore compared with those
of the classifier on the test images of its own data set. The calibrated share is the share of images with a confidence
above the median of these test images. The AUROC is the probability that such a test image has a higher confidence than
an image of the other data set (the baseline of Hendrycks and Gimpel 2017 for the detection of images of untrained
classes). Both compare confidences of one classifier with each other. Temperature scaling is not possible: it needs
labeled images that the classifier was not trained on, and the final training also uses the held-out part of the search.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cog import constants, paths
from cog.analysis import concepts, confident_lists, saved_runs, statistics
from cog.analysis.confidences import Applied, apply, confident_rows
from cog.analysis.probe_flags import PROBE_FLAGS
from cog.analysis.saved_runs import MODEL_FILE, PCA_FILE, SavedRun
from cog.analysis.task import Analysis, AnalysisContext, AnalysisOutcome, AnalysisRequest, AnalysisTask
from cog.data import datasets
from cog.errors import CogError
from cog.features.folder import PATHS_FILE, read_image_paths
from cog.results.analysis_records import Number
from cog.results.metric_info import PERCENT, Metric, by_name, declare
from cog.results.scores import natural_key
from cog.runtime import files, run_archive
from cog.runtime.resume_dir import sample_sha256

if TYPE_CHECKING:
    from cog.analysis.saved_runs import SavedClassifier

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Inputs:
    """The inputs of the computation beside the test features.

    Attributes:
        runs: runs of the classifiers.
        trained_on: data set of the classifiers; None: unknown.
        trained_features: features of this data set, whose image list names the classes; or None.
        own_test: test features of this data set, unless they are those of the request; or None.
        images_root: root of the image paths of the test features; None: there is no contact sheet.
    """

    runs: list[SavedRun]
    trained_on: str | None
    trained_features: Path | None
    own_test: Path | None
    images_root: Path | None


def plan(request: AnalysisRequest) -> list[AnalysisTask]:
    """Return the task that applies saved classifiers to the test features of a data set.

    Raises:
        CogError: no classifiers, flags that contradict each other, or absent image roots.
    """
    args = request.args
    runs, trained_on = _find_runs(request)
    own_test = next(
        (path for path in _own_features(request, trained_on, runs, "test") if path.is_file()), None
    )
    if own_test is not None and own_test.samefile(request.features_file("test")):
        own_test = None
    inputs = _Inputs(
        runs,
        trained_on,
        _trained_features(request, trained_on, runs),
        own_test,
        _images_root(request) if args.sheet_images else None,
    )
    if args.cog_levels_mapping_file is not None:
        files.require_file(args.cog_levels_mapping_file, "--cog_levels_mapping_file")
    settings = {
        "trained_on": trained_on,
        "classifiers": {str(run.seed): _digest(run) for run in runs},
        "confidence": args.confidence,
        "sheet_images": args.sheet_images if inputs.images_root is not None else 0,
        "own_test_features": None if own_test is None else sample_sha256(own_test),
    }
    return saved_runs.classifier_task(
        request, f"cross_{trained_on or 'other'}", settings, partial(_compute, inputs), splits=("test",),
        packages=("torch", "numpy"),
    )  # fmt: skip


ANALYSIS = Analysis(
    "cross",
    "classifiers of one data set (--trained_on) on the test images of another: confident predictions, label noise",
    plan,
    uses=(
        *PROBE_FLAGS,
        "trained_on",
        "classifier_dir",
        "trained_features_dir",
        "confidence",
        "sheet_images",
        *datasets.root_flags(),
        "wordnet_dir",
    ),
    in_all=False,
)


# End of the label and of the short label of each metric, its digits, its direction, and its place.
_METRICS: dict[str, tuple[str, str, int, int, float]] = {
    "confident_percent": (" on other test images: confident", " confident here", 2, 0, 0),
    "above_own_median_percent": (
        " on other test images: more confident than half of its own", " above its own median", 1, 0, 0.5,
    ),
    "auroc": (": its own test images more confident than others, AUROC", ", AUROC own/here", 1, 1, 1),
}  # fmt: skip


def _metric(trained_on: str, quantity: str) -> Metric | None:
    if quantity in _METRICS:
        label, short, decimals, better, place = _METRICS[quantity]
        return Metric(
            group="cross", label=f"classifier of {trained_on}{label}", unit=PERCENT, decimals=decimals, better=better,
            order=(5.5, natural_key(trained_on), place), short=f"{trained_on} classifier{short}",
        )  # fmt: skip
    if quantity == "n_confident":  # the mean over seeds
        return dataclasses.replace(by_name(f"cross_{trained_on}", quantity), decimals=1)
    if quantity.startswith("own_"):
        kind = by_name(f"cross_{trained_on}", quantity.removeprefix("own_"))
        label = kind.label.replace(" on other test images: ", " on its own test images: ", 1)
        return dataclasses.replace(kind, label=label)
    return None


declare("cross", _metric, title=lambda data: f"classifier of {data} on other test images" if data else "")


def _find_runs(request: AnalysisRequest) -> tuple[list[SavedRun], str | None]:
    args = request.args
    if args.classifier_dir is not None:
        folder = Path(args.classifier_dir)
        if run_archive.locate(folder) is None:
            files.require_dir(folder, "--classifier_dir")
        seed = paths.parse_seed_folder(folder.name)
        if seed is not None:
            runs = [saved_runs.read_run(folder, n_shot=None, seed=seed)]
        else:
            runs = saved_runs.runs_in(folder, seeds=args.run_seeds)
        if not runs:
            raise CogError(f"--classifier_dir {folder} holds no complete runs (seed-<seed>/)")
        return runs, args.trained_on
    if args.trained_on is None:
        raise CogError(
            "--analysis cross needs --trained_on DATASET, the data set of the classifiers to apply (or "
            "--classifier_dir)"
        )
    paths.check_dataset_name(args.trained_on)
    if request.model_dir is None:
        raise CogError("--trained_on needs --models_root_dir and --model, or give --classifier_dir")
    runs = saved_runs.find_runs(request.model_dir, args.trained_on, request.cfg, seeds=args.run_seeds)
    return runs, args.trained_on


def _digest(run: SavedRun) -> str:
    extra = [run.folder / PCA_FILE] if run_archive.is_file(run.folder / PCA_FILE) else []
    return saved_runs.digest(run.file(MODEL_FILE), *extra)


def _own_features(
    request: AnalysisRequest, trained_on: str | None, runs: Sequence[SavedRun], split: str
) -> list[Path]:
    """Return the possible files of the features of a split of the classifiers' own data set."""
    candidates = []
    if request.model_dir is not None and trained_on is not None:
        candidates.append(request.model_dir.features_file(trained_on, split))
    recorded = runs[0].record.get(f"{split}_features")
    return [*candidates, *([Path(recorded)] if isinstance(recorded, str) else [])]


def _trained_features(
    request: AnalysisRequest, trained_on: str | None, runs: Sequence[SavedRun]
) -> Path | None:
    """Return features of the classifiers' own data set, whose image list names their classes; None without features."""
    if request.args.trained_features_dir is not None:
        given = Path(request.args.trained_features_dir)
        candidates = [paths.features_file(given)]
        if not candidates[0].is_file():
            raise CogError(f"--trained_features_dir {given} holds no {constants.FEATURES_FILE}")
    else:
        candidates = [
            path for split in ("test", "train") for path in _own_features(request, trained_on, runs, split)
        ]
    usable = (path for path in candidates if path.is_file() and (path.parent / PATHS_FILE).is_file())
    return next(usable, None)


def _images_root(request: AnalysisRequest) -> Path | None:
    """Return the root of the image paths of the data set's test features; None if it was not given."""
    args, dataset = request.args, request.dataset
    declared = datasets.find(dataset or "") or (datasets.OWN if args.images_root is not None else None)
    root = None if declared is None else getattr(args, declared.root)
    if declared is None or root is None:
        return None
    return declared.folder(str(files.require_dir(root, f"--{declared.root}")), "test")


def _compute(inputs: _Inputs, job: AnalysisContext) -> AnalysisOutcome:
    args = job.request.args
    classifiers = [
        saved_runs.load_classifier(run, normalize=job.request.cfg.CLF.NORM_FTS, device=job.device)
        for run in inputs.runs
    ]
    own_applied = _apply_to_own_test(inputs, job, classifiers)  # first: its features go before others come
    images = _apply_to_test(inputs, job, classifiers)
    tables = confident_lists.write_lists(job.stage, images)
    in_any = confident_lists.write_confident_in_any(job.stage / "confident.csv", images)
    histogram = confident_lists.write_histogram(
        job.stage / "histogram.csv", images.applied, list(images.lists)
    )
    unreadable = None
    if inputs.images_root is not None:
        unreadable = confident_lists.write_sheet(job, images, in_any, inputs.images_root, inputs.trained_on)
    sheet = [] if unreadable is None else ["sheet.png", "sheet.html"]
    details = {
        "trained_on": inputs.trained_on,
        "confidence": args.confidence,
        "n_images": len(images.labels),
        "files": sorted([*tables, "confident.csv", "histogram.csv", *sheet]),
        "histogram_mean": histogram,
        "unreadable_on_sheet": unreadable,
    }
    return _summarize(images, own_applied, args.confidence, details)


def _apply_to_own_test(
    inputs: _Inputs, job: AnalysisContext, classifiers: Sequence[SavedClassifier]
) -> Applied | None:
    """Apply the classifiers to the test features of their own data set; None without such features."""
    from cog.features.feature_files import load

    if inputs.own_test is None:
        whose = inputs.trained_on or "the classifiers' data set"
        logger.info("%sAUROC is left out: there are no test features of %s beside these", job.label, whose)
        return None
    source = f"the test features {inputs.own_test}"
    return apply(load(inputs.own_test), classifiers, device=job.device, source=source)


def _apply_to_test(
    inputs: _Inputs, job: AnalysisContext, classifiers: Sequence[SavedClassifier]
) -> confident_lists.Images:
    """Apply the classifiers to the test features of the data set, and name the concepts on both sides."""
    request, args = job.request, job.request.args
    test = job.load("test", normalize=False)
    labels = test.y.numpy()
    image_paths = read_image_paths(request.features_file("test"), n_rows=len(test))
    applied = apply(test, classifiers, device=job.device)
    true_names = concepts.class_names(
        request.dataset,
        n_classes=int(labels.max()) + 1,
        image_paths=image_paths,
        labels=labels,
        levels_file=args.cog_levels_mapping_file,
    )
    predicted_names = _predicted_names(inputs, classifiers[0].n_classes, args.cog_levels_mapping_file)
    lists = {
        run.seed: confident_rows(applied, row, threshold=args.confidence)
        for row, run in enumerate(inputs.runs)
    }
    words = concepts.Words(args.wordnet_dir)
    return confident_lists.Images(labels, image_paths, true_names, predicted_names, applied, lists, words)


def _predicted_names(inputs: _Inputs, n_classes: int, levels_file: str | None) -> list[str]:
    """Return the concept of each output of the classifiers."""
    image_paths = labels = None
    outputs = inputs.runs[0].labels
    n_labels = n_classes if outputs is None else max(outputs) + 1
    if inputs.trained_features is not None:
        image_paths = read_image_paths(inputs.trained_features)
        labels = read_labels(inputs.trained_features)
        if image_paths is not None and len(image_paths) != len(labels):
            image_paths = None
    known = concepts.class_names(
        inputs.trained_on, n_classes=n_labels, image_paths=image_paths, labels=labels, levels_file=levels_file
    )
    if len(known) < n_labels:
        raise CogError(
            f"the classifiers have {n_classes} classes, and {inputs.trained_features} has {len(known)}; give the "
            "features they were trained on with --trained_features_dir"
        )
    return known[:n_labels] if outputs is None else [known[label] for label in outputs]


def read_labels(features_file: Path) -> np.ndarray:
    """Return the labels of a feature file, int64 ``(n,)``; its features are not read where the format allows that.

    Raises:
        CogError: the file has another form.
    """
    from cog.features.feature_files import open_file

    labels = open_file(features_file, mapped=True).y.long().numpy().copy()
    if labels.min() < 0:
        raise CogError(f"{features_file} has the label {labels.min()}, expected whole numbers from 0")
    return labels


def _beside_own(
    applied: Applied, own_applied: Applied | None, row: int, threshold: float
) -> dict[str, Number]:
    """Return the numbers that need the test images of a classifier's own data set; each is None without them."""
    if own_applied is None:
        return dict.fromkeys(
            ("above_own_median_percent", "auroc", "own_confident_percent", "own_mean_confidence")
        )
    log_odds, own_log_odds = applied.log_odds[row], own_applied.log_odds[row]
    return {
        "above_own_median_percent": 100 * float((log_odds > np.median(own_log_odds)).mean()),
        "auroc": 100 * statistics.auroc(own_log_odds, log_odds),
        "own_confident_percent": 100 * float((own_applied.confidence[row] > threshold).mean()),
        "own_mean_confidence": float(own_applied.confidence[row].mean()),
    }


def _summarize(
    images: confident_lists.Images, own_applied: Applied | None, threshold: float, details: dict[str, Any]
) -> AnalysisOutcome:
    """Return the outcome: the numbers of each seed, and their means."""
    applied, lists, n_seeds = images.applied, images.lists, images.n_seeds
    n = len(images.labels)
    per_seed: dict[int, dict[str, Number]] = {
        seed: {
            "confident_percent": 100 * len(confident) / n,
            "n_confident": len(confident),
            "mean_confidence": float(applied.confidence[row].mean()),
            "median_confidence": float(np.median(applied.confidence[row])),
            "same_concept_percent": images.same_concept_percent(row, confident),
            **_beside_own(applied, own_applied, row, threshold),
        }
        for row, (seed, confident) in enumerate(lists.items())
    }
    in_all = n_seeds == len(lists)
    agreed = in_all & (applied.predicted[:-1] == applied.predicted[0]).all(axis=0)
    values: dict[str, Number] = {}
    for key in next(iter(per_seed.values())):
        defined = [value for numbers in per_seed.values() if (value := numbers[key]) is not None]
        values[key] = float(np.mean(defined)) if defined else None
    shares = [100 * len(rows) / n for rows in lists.values()]
    values |= {
        "confident_percent_std": float(np.std(shares)),
        "confident_in_any_seed_percent": 100 * float((n_seeds > 0).mean()),
        "confident_in_all_seeds_percent": 100 * float(in_all.mean()),
        "confident_as_the_same_class_percent": 100 * float(agreed.mean()),
        "confident_by_average_percent": 100 * float((applied.confidence[-1] > threshold).mean()),
    }
    beside_own = (
        ""
        if values["auroc"] is None
        else f"; {values['above_own_median_percent']:.2f} % are more confident than half of its own test images (AUROC "
        f"{values['auroc']:.1f} %)"
    )
    return AnalysisOutcome(
        values=values,
        per_seed=per_seed,
        details=details,
        summary=(
            f"{values['confident_percent']:.2f} ± {values['confident_percent_std']:.2f} % of {n} images have a "
            f"confidence above {threshold:g}, mean over {len(lists)} seeds{beside_own}"
        ),
    )
