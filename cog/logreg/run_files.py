"""The folder of a classifier run, ``seed-<seed>/``: five files.

::

    results.json                     settings, identities of the features, sizes, search, final accuracies, overall and
                                     per class (cog.results.concept_counts), versions; written last
    program.log
    final-lr-<lr>_wd-<wd>/logs.pkl   one value per epoch
    final-lr-<lr>_wd-<wd>/model.pth  {"model": state dict of the linear layer, or of the Sequential of an MLP}
    final-lr-<lr>_wd-<wd>/preds.pkl  classes predicted for the test set after the last epoch
"""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog.logreg.settings import Settings
from cog.results import concept_counts
from cog.runtime import files
from cog.runtime.output import Output

if TYPE_CHECKING:
    import torch

    from cog.logreg.features import Data
    from cog.logreg.mlp import TrainedClassifier
    from cog.logreg.protocol import RunResult

RESULTS_FILE = "results.json"

#: Names in the folder of a run, of this toolkit and of the original one.
CONTENTS = (RESULTS_FILE, "program.log", "final-*", "study.pkl", "arguments.json", "config.txt")


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        settings: settings of the protocol.
        output: seed folder, with the identity of the run: settings, ``train_features`` and ``test_features``.
        metadata: further entries of ``results.json``.
    """

    settings: Settings
    output: Output
    metadata: Mapping[str, Any]


def print_accuracies(final: Mapping[str, Any], path: Path) -> None:
    """Print the accuracies of a final training, the entry ``final`` of ``results.json``."""
    values = [final.get(key) for key in ("test_top1", "test_top5")]
    if all(isinstance(value, float) for value in values):
        print(f"top-1: {values[0]:.2f}  top-5: {values[1]:.2f}  ({path})", flush=True)


def write_final(
    stage: Path, classifier: TrainedClassifier, labels: torch.Tensor, *, lr: float, wd: float
) -> dict[str, Any]:
    """Write the files of a final training, and return the entry ``final`` of ``results.json``.

    Args:
        stage: folder to write into.
        classifier: the classifier, with logs and predictions (-1: an image that was not decoded).
        labels: true classes of the test images, int64 ``(n,)``.
        lr: learning rate of the final training.
        wd: weight decay of the final training.
    """
    import torch

    assert classifier.logs is not None and classifier.predictions is not None
    # interned like names in the source, so that pickles of continued runs are equal to the byte
    logs = {sys.intern(name): values for name, values in classifier.logs.items()}
    top1, top5, n_classes = logs["test/top1"][-1], logs["test/top5"][-1], classifier.sizes[-1]
    folder = f"final-lr-{lr}_wd-{wd}"
    final = stage / folder
    final.mkdir()
    files.write_pickle(final / "logs.pkl", logs)
    # One entry per epoch in the original toolkit (5 GB per full-scale run); here the last epoch's alone.
    files.write_pickle(final / "preds.pkl", [classifier.predictions.numpy().copy()])
    with files.atomic_write(final / "model.pth") as handle:
        torch.save({"model": collections.OrderedDict(classifier.state_dict())}, handle)
    accuracies = {"test_top1": top1, "test_top5": top5, "diverged": classifier.diverged}
    counts = counts_per_class(classifier.predictions, labels, n_classes, top1=top1)
    return {"folder": folder, "lr": lr, "wd": wd} | accuracies | counts


def counts_per_class(
    predictions: torch.Tensor, labels: torch.Tensor, n_classes: int, *, top1: float
) -> dict[str, Any]:
    """Return the numbers of correct predictions and of images of each class; empty when they contradict the accuracy.

    They do when logits are not finite, since ``argmax`` and the rank of the true class then disagree.
    """
    import torch

    labels = labels.cpu()[predictions >= 0]
    right = labels[predictions[predictions >= 0] == labels]
    correct, images = (torch.bincount(classes, minlength=n_classes).tolist() for classes in (right, labels))
    entries = concept_counts.write(correct, images)
    try:
        concept_counts.read(entries, n_classes=n_classes, top1=top1)
    except ValueError:
        return {}
    return entries


def write_run(
    stage: Path, result: RunResult, data: Data, run: Run, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a finished run into ``stage``, and return the entry ``final`` of its ``results.json``.

    ``metadata`` has further entries of that file.
    """
    classifier, n_classes = result.classifier, data.n_classes
    final = write_final(stage, classifier, data.test_y, lr=result.lr, wd=result.wd)
    results = {
        "status": "complete",
        **run.metadata,
        **data.cap,
        **metadata,
        "seed": run.settings.seed,
        "n_shot": run.settings.n_shot,
        "identity": run.output.identity,
        "n_classes": n_classes,
        "feature_dim": data.train.dim,
        "labels": None if data.labels == list(range(n_classes)) else data.labels,
        "rows": result.rows,
        "final": final,
        "best_trial": result.best_trial,
        "trials": [dataclasses.asdict(trial) for trial in result.trials],
        "seconds": {
            "search": round(sum(trial.seconds for trial in result.trials), 3),
            "final": round(classifier.seconds, 3),
        },
    }
    files.write_json(stage / RESULTS_FILE, results)
    return final
