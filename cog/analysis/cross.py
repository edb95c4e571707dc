"""Classifiers of one data set applied to the test images of another: a probe for label noise (supplement A.3).

An image of an unseen concept that the classifier of another data set recognizes with a confidence above 0.99 either
looks exactly like a concept of that data set, or shows one: the paper finds about 2.7 % of the images.

The scale of confidences is that of the classifier's weights, which depends on the learning rate that the search of each
seed prediction, so the share differs much between seeds: it is recorded for each of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cog import constants, paths
from cog.analysis import classifiers
from cog.analysis.base import ModelData, Outcome, analysis, blocks
from cog.analysis.classifiers import MODEL_FILE, PCA_FILE, SavedRun
from cog.data.root_layout import open_store
from cog.errors import CogError
from cog.features.folder import PATHS_FILE, FeatureFolder, network_differences, read_image_paths
from cog.levels.wordnet import word_finder
from cog.results.metric_info import PERCENT, Metric, declare
from cog.results.scores import natural_key
from cog.runtime import files
from cog.runtime.csv_text import write_csv

if TYPE_CHECKING:
    import torch

    from cog.analysis.classifiers import SavedClassifier
    from cog.features.feature_files import FeatureSet

logger = logging.getLogger(__name__)

#: Files beside results.json: all confidently predicted images, and a picture of the first ones.
LIST_FILE, PICTURE_FILE = "confident.csv", "confident.png"

_THRESHOLD = 0.99
_N_SHOWN, _COLUMNS = 60, 6


def _metric(trained_on: str, quantity: str) -> Metric | None:
    if quantity != "confident_percent":
        return None
    return Metric(
        group="cross",
        label=f"classifier of {trained_on} on other test images: confident",
        unit=PERCENT,
        decimals=2,
        better=0,
        order=(5.5, natural_key(trained_on)),
    )


declare("cross", _metric, title=lambda data: f"classifier of {data} on other test images" if data else "")


def _describe(data: ModelData) -> tuple[str, dict[str, Any]]:
    """Return the end of the name of the result, and the inputs beside the test features.

    Raises:
        CogError: no classifiers or no features, or an absent ``--images_root``.
    """
    trained_on, runs = _runs(data)
    settings = {
        "evaluation": paths.evaluation_folder(*classifiers.evaluation(data.cfg)),
        "trained_on": trained_on,
        "classifiers": {str(run.seed): _digest(run) for run in runs},
        "picture": _images_root(data) is not None,
    }
    return f"_{trained_on}{classifiers.evaluation_label(data.cfg)}", settings


def _runs(data: ModelData) -> tuple[str, list[SavedRun]]:
    """Return the data set of the classifiers, and their runs."""
    trained_on = data.args.trained_on
    if trained_on is None:
        raise CogError(
            "--analysis cross needs --trained_on DATASET, the data set of the classifiers to apply"
        )
    paths.check_dataset_name(trained_on)
    if data.model_dir is None or data.dataset is None:
        raise CogError("--analysis cross needs --models_root_dir, --model and --dataset")
    runs = classifiers.find_runs(data.model_dir, trained_on, data.cfg)
    used = (runs[0].record.get("identity") or {}).get("train_features") or {}
    changed = network_differences(used, FeatureFolder(data.file("test").parent).metadata() or {})
    if changed:
        raise CogError(
            f"the classifiers of {trained_on} were trained on features that were made differently from the test "
            f"features of {data.dataset} ({'; '.join(changed)}); extract both with the same network, and train again"
        )
    return trained_on, runs


def _digest(run: SavedRun) -> str:
    projection = run.folder / PCA_FILE
    return classifiers.digest(run.file(MODEL_FILE), *([projection] if projection.is_file() else []))


def _images_root(data: ModelData) -> Path | None:
    """Return the root of the paths in the image list of the test features; None if there is no list or no root."""
    if data.args.images_root is not None:
        return files.require_dir(data.args.images_root, "--images_root")
    folder = data.file("test").parent
    root = (FeatureFolder(folder).metadata() or {}).get("images_root")
    return Path(root) if root is not None and (folder / PATHS_FILE).is_file() else None


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of a classifier for n rows.

    Attributes:
        n_classes: number of outputs of the classifier.
        classes: output with the highest probability p, int64 ``(n,)``.
        confidence: p, float64 ``(n,)``.
        log_odds: log p - log(1 - p), which also orders probabilities that round to 1, float64 ``(n,)``.
    """

    n_classes: int
    classes: np.ndarray
    confidence: np.ndarray
    log_odds: np.ndarray


def predict(features: FeatureSet, classifier: SavedClassifier, *, device: torch.device) -> Predictions:
    """Apply a classifier to features as they are in the file, with float32 logits and a float64 softmax.

    Raises:
        CogError: the classifier takes features of another width.
    """
    import torch

    n, dim = features.x.shape
    if classifier.feature_dim != dim:
        raise CogError(
            f"the classifier takes features of {classifier.feature_dim} dimensions, the test features have {dim}; both "
            "have to come from the same model"
        )
    made = Predictions(classifier.n_classes, np.empty(n, dtype=np.int64), np.empty(n), np.empty(n))
    with torch.inference_mode():
        for first, block in blocks(features.x, device):
            rows = slice(first, first + len(block))
            log_p = torch.log_softmax(classifier.logits(block).double(), dim=1)
            best, classes = log_p.max(dim=1)
            others = log_p.scatter(1, classes[:, None], -math.inf).logsumexp(dim=1)
            made.classes[rows] = classes.cpu().numpy()
            made.confidence[rows] = best.exp().cpu().numpy()
            made.log_odds[rows] = (best - others).cpu().numpy()
    return made


@analysis(
    "cross",
    "confident predictions of the classifiers of --trained_on on the test images of another data set (label noise)",
    splits=("test",),
    describe=_describe,
)
def cross(data: ModelData, device: torch.device, stage: Path) -> Outcome:
    """Return the share of the images that the classifier of each seed is confident of, and list and draw them."""
    test = data.load("test", normalize=False)
    image_paths = read_image_paths(data.file("test"), n_rows=len(test))
    _, runs = _runs(data)
    predictions = []
    for run in runs:
        classifier = classifiers.load_classifier(run, normalize=data.cfg.CLF.NORM_FTS, device=device)
        predictions.append(predict(test, classifier, device=device))
    table = _confident_images(data, runs, predictions, image_paths)
    write_csv(stage / LIST_FILE, _COLUMN_NAMES, table)
    written, root = [LIST_FILE], _images_root(data)
    if root is not None and image_paths is not None and table:
        _draw(stage / PICTURE_FILE, table[:_N_SHOWN], root, data.label)
        written.append(PICTURE_FILE)
    shares = [100 * float((prediction.confidence > _THRESHOLD).mean()) for prediction in predictions]
    return Outcome(
        {"confident_percent": float(np.mean(shares))},
        {run.seed: {"confident_percent": share} for run, share in zip(runs, shares, strict=True)},
        {"threshold": _THRESHOLD, "n_images": len(test), "files": written},
    )


_COLUMN_NAMES = (
    "image",
    "wnid",
    "names",
    "predicted_wnid",
    "predicted_names",
    "confidence",
    "seed",
    "n_seeds",
)


def _confident_images(
    data: ModelData,
    runs: Sequence[SavedRun],
    predictions: Sequence[Predictions],
    image_paths: Sequence[str] | None,
) -> list[tuple[Any, ...]]:
    """Return a row for each image with a confident prediction of any seed, most confident first.

    A row has the prediction of the most confident seed, and the number of seeds that are confident.
    """
    assert data.model_dir is not None
    true_labels = data.load("test", normalize=False).y.numpy()
    true_names = class_names(data.dataset, data.file("test"), int(true_labels.max()) + 1)
    trained_on = data.args.trained_on
    own_files = [data.model_dir.features_file(trained_on, split) for split in ("test", "train")]
    own_file = next((p for p in own_files if p.is_file() and (p.parent / PATHS_FILE).is_file()), None)
    outputs = [
        run.labels or list(range(prediction.n_classes))
        for run, prediction in zip(runs, predictions, strict=True)
    ]
    names = class_names(trained_on, own_file, 1 + max(map(max, outputs)))
    words = word_finder()

    confidence = np.stack([prediction.confidence for prediction in predictions])
    log_odds = np.stack([prediction.log_odds for prediction in predictions])
    n_seeds = (confidence > _THRESHOLD).sum(axis=0)
    best = log_odds.argmax(axis=0)
    images = np.flatnonzero(n_seeds)
    table = []
    for image in images[np.argsort(-log_odds[best[images], images], kind="stable")].tolist():
        row = best[image]
        true = true_names[true_labels[image]]
        predicted = names[outputs[row][predictions[row].classes[image]]]
        path = image_paths[image] if image_paths is not None else f"row {image}"
        p = repr(float(confidence[row, image]))
        seeds = (runs[row].seed, int(n_seeds[image]))
        table.append((path, true, words(true), predicted, words(predicted), p, *seeds))
    return table


def class_names(dataset: str | None, features_file: Path | None, n_classes: int) -> list[str]:
    """Return the name of each label: the folder of its images, usually a WordNet id.

    Without a list of images (features of the original toolkit), the names are the ids of IN-1K, or ``class 17``.

    Args:
        dataset: name of the data set.
        features_file: features of the data set; None: not known.
        n_classes: number of names.
    """
    from cog.data.wnids import IN1K_LIST
    from cog.features.feature_files import open_file

    if features_file is not None and (features_file.parent / PATHS_FILE).is_file():
        labels = open_file(features_file, mapped=True).y.long().tolist()
        image_paths = read_image_paths(features_file, n_rows=len(labels)) or ()
        folders = {label: path.split("/")[0] for label, path in zip(labels, image_paths, strict=True)}
        return [folders.get(label, f"class {label}") for label in range(n_classes)]
    wnids = sorted(IN1K_LIST.read_text(encoding="utf-8").split()) if dataset == constants.IN1K else []
    return wnids if len(wnids) == n_classes else [f"class {label}" for label in range(n_classes)]


def _draw(path: Path, rows: Sequence[tuple[Any, ...]], images_root: Path, label: str) -> None:
    """Draw the images of rows of the list, six beside each other, each with its concept and its prediction."""
    from matplotlib.figure import Figure

    from cog.data.pixels import load_rgb

    store = open_store(images_root)
    n_lines = -(-len(rows) // _COLUMNS)
    figure = Figure(figsize=(2 * _COLUMNS, 2.4 * n_lines), layout="constrained")
    panels = figure.subplots(n_lines, _COLUMNS, squeeze=False).ravel()
    n_unreadable = 0
    for axes in panels:
        axes.set_axis_off()
    for axes, (image, _, true, _, predicted, confidence, *_) in zip(panels, rows, strict=False):
        caption = f"{true.split(',')[0]}\n-> {predicted.split(',')[0]}\n{float(confidence):.4f}"
        axes.set_title(caption, fontsize=7)
        try:
            picture = load_rgb(store.read(image), load_truncated=False)
        except Exception:  # Pillow raises many kinds of errors on a damaged file
            n_unreadable += 1
            continue
        picture.thumbnail((224, 224))
        axes.imshow(picture)
    if n_unreadable:
        logger.warning(
            "%s%d of %d images cannot be read below %s", label, n_unreadable, len(rows), images_root
        )
    with files.atomic_write(path) as handle:
        figure.savefig(handle, format="png", dpi=100)
