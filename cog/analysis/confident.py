"""Classifiers of one data set applied to the test images of another: a probe for label noise (supplement A.3).

An image of an unseen concept that the classifier of another data set recognizes with a confidence above 0.99 either
looks exactly like a concept of that data set, or shows one: the paper finds about 2.7 % of the images.

The scale of confidences is that of the classifier's weights, which depends on the learning rate that the search of each
seed prediction, so the share differs much between seeds: it is recorded for each of them.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from cog.analysis import classifiers
from cog.analysis.base import Data, analysis
from cog.data.images import find_images
from cog.data.pixels import load_rgb
from cog.errors import CogError
from cog.features.folder import identify_input, network_differences, read_image_paths
from cog.levels.wordnet import word_finder
from cog.results.analysis_records import Number
from cog.runtime import files

logger = logging.getLogger(__name__)

#: Files beside results.json: all confidently predicted images, and a picture of the first ones.
LIST_FILE, PICTURE_FILE = "confident.csv", "confident.png"

_THRESHOLD = 0.99
_N_SHOWN, _COLUMNS = 60, 6


def _inputs(data: Data) -> tuple[str, dict[str, Any]]:
    trained_on = data.flags["trained_on"]
    if trained_on is None:
        raise CogError(
            "--analysis confident needs --trained_on DATASET, the data set of the classifiers to apply"
        )
    runs = classifiers.find_runs(data.model_dir, trained_on, data.cfg)
    if changed := network_differences(runs[0].used["train"], identify_input(data.file("test"))):
        raise CogError(
            f"the classifiers of {trained_on} were trained on features that were made differently from the test "
            f"features of {data.dataset} ({'; '.join(changed)}); extract both with the same network, and train again"
        )
    paths = {str(run.seed): classifiers.weights(run) for run in runs}
    weights = {seed: files.sha256(path) for seed, path in paths.items() if path.is_file()}
    evaluation = classifiers.evaluation(data.cfg)
    suffix = evaluation.removeprefix("eval").removeprefix("_logreg")
    identity = {"evaluation": evaluation, "classifiers": weights, "picture": _images_root(data) is not None}
    return f"_{trained_on}{suffix}", identity


def _images_root(data: Data) -> str | None:
    """Return the folder of the test images, as far as it was recorded with a list of them."""
    file = data.file("test")
    described = file.with_name("features.json")
    root = files.read_object(described).get("images_root") if described.is_file() else None
    return root if isinstance(root, str) and read_image_paths(file) is not None else None


def predict(
    data: Data, x: torch.Tensor, classifier: classifiers.SavedClassifier
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the most probable output for n rows as in the file, by float32 logits and a float64 softmax.

    The results are outputs, int64 ``(n,)``, their probabilities p, and log p - log(1 - p), which also orders
    probabilities that round to 1, float64 ``(n,)``. Features of another width than the classifier's are a CogError.
    """
    width = classifier.layers[0][0].shape[1]
    if width != x.shape[1]:
        raise CogError(
            f"the classifier takes features of {width} dimensions, the test features have {x.shape[1]}; both have to "
            "come from the same model"
        )
    parts = []
    for _, block in data.blocks(x):
        log_p = torch.log_softmax(classifier.logits(block).double(), dim=1)
        best, outputs = log_p.max(dim=1)
        others = log_p.scatter(1, outputs[:, None], -math.inf).logsumexp(dim=1)
        parts.append((outputs.cpu(), best.exp().cpu(), (best - others).cpu()))
    columns = [torch.cat(part).numpy() for part in zip(*parts, strict=True)]
    return columns[0], columns[1], columns[2]


@analysis(
    "confident",
    "confident predictions of the classifiers of --trained_on on the test images of another data set (label noise)",
    splits=("test",),
    inputs=_inputs,
)
def confident(data: Data) -> dict[str, Number]:
    """Return the share of the images that the classifiers are confident of, and list and draw these images.

    A row of the list has the prediction of the most confident seed, and the number of seeds that are confident.
    """
    test, trained_on = data.load("test", normalize=False), data.flags["trained_on"]
    runs = classifiers.find_runs(data.model_dir, trained_on, data.cfg)
    made, labels = [], []
    for run in runs:
        classifier = classifiers.load_classifier(run, normalize=data.cfg.CLF.NORM_FTS, device=data.device)
        made.append(predict(data, test.x, classifier))
        labels.append(classifiers.labels(run, len(classifier.layers[-1][1])))
        data.per_seed[run.seed] = {"confident_percent": 100 * float((made[-1][1] > _THRESHOLD).mean())}
    outputs, p, log_odds = (np.stack(part) for part in zip(*made, strict=True))
    best, n_seeds = log_odds.argmax(axis=0), (p > _THRESHOLD).sum(axis=0)
    images = np.flatnonzero(n_seeds)
    images = images[np.argsort(-log_odds[best[images], images], kind="stable")]
    assert data.model_dir is not None
    tried = [data.model_dir.features_file(trained_on, split) for split in ("test", "train")]
    own_file = next((file for file in tried if file.is_file()), None)
    names = classifiers.class_names(own_file, trained_on, 1 + max(map(max, labels)))
    true_names = classifiers.class_names(data.file("test"), data.dataset, int(test.y.max()) + 1)
    paths = read_image_paths(data.file("test"), n_rows=len(test))
    words = word_finder()
    true = [true_names[label] for label in test.y[torch.from_numpy(images)].tolist()]
    predicted = [
        names[labels[row][outputs[row, image]]] for row, image in zip(best[images], images, strict=True)
    ]
    table = pd.DataFrame(
        {
            "image": [paths[image] if paths else f"row {image}" for image in images],
            "wnid": true,
            "names": map(words, true),
            "predicted_wnid": predicted,
            "predicted_names": map(words, predicted),
            "confidence": p[best[images], images],
            "seed": [runs[row].seed for row in best[images]],
            "n_seeds": n_seeds[images],
        }
    )
    files.write_text(data.folder / LIST_FILE, table.to_csv(index=False))
    root = _images_root(data)
    if root is not None and len(table):
        _draw(data.folder / PICTURE_FILE, table[:_N_SHOWN], Path(root))
    data.details.update(threshold=_THRESHOLD, n_images=len(test))
    return {
        "confident_percent": float(np.mean([each["confident_percent"] for each in data.per_seed.values()]))
    }


def _draw(path: Path, table: pd.DataFrame, root: Path) -> None:
    """Draw the images of rows of the list, each with its concept and its prediction."""
    try:
        store = find_images(root, {name.rpartition("/")[0] for name in table.image}).store
    except CogError as error:
        logger.warning("no picture of the images, which cannot be read: %s", error)
        return
    n_lines, n_unreadable = -(-len(table) // _COLUMNS), 0
    figure = Figure(figsize=(2 * _COLUMNS, 2.4 * n_lines), layout="constrained")
    panels = figure.subplots(n_lines, _COLUMNS, squeeze=False).ravel()
    for axes in panels:
        axes.set_axis_off()
    for axes, row in zip(panels, table.itertuples(), strict=False):
        true, predicted = (text.split(",")[0] for text in (row.names, row.predicted_names))
        axes.set_title(f"{true}\n-> {predicted}\n{row.confidence:.4f}", fontsize=7)
        try:
            picture = load_rgb(store.read(row.image), load_truncated=False)
        except Exception:  # Pillow raises many kinds of errors on a damaged file
            n_unreadable += 1
            continue
        picture.thumbnail((224, 224))
        axes.imshow(picture)
    if n_unreadable:
        logger.warning("%d of %d images cannot be read below %s", n_unreadable, len(table), root)
    figure.savefig(path, dpi=100)
