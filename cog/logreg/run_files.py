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
    from cog.logreg.metrics import Logs
    from cog.logreg.mlp import Layer
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
    stage: Path,
    layers: list[Layer],
    logs: Logs,
    predictions: torch.Tensor,
    labels: torch.Tensor,
    *,
    lr: float,
    wd: float,
    diverged: bool = False,
) -> dict[str, Any]:
    """Write the files of a final training, and return the entry ``final`` of ``results.json``.

    Args:
        stage: folder to write into.
        layers: weight and bias of each layer.
        logs: one value per epoch.
        predictions: classes predicted for the test images, int64 ``(n,)`` (-1: an image that was not decoded).
        labels: their true classes, int64 ``(n,)``.
        lr: learning rate of the final training.
        wd: weight decay of the final training.
        diverged: whether the training diverged.
    """
    import torch

    from cog.logreg.mlp import state_dict

    # interned like names in the source, so that pickles of continued runs are equal to the byte
    logs = {sys.intern(name): values for name, values in logs.items()}
    top1, top5 = (logs[f"test/{name}"][-1] for name in ("top1", "top5"))
    final = stage / f"final-lr-{lr}_wd-{wd}"
    final.mkdir()
    files.write_pickle(final / "logs.pkl", logs)
    # One entry per epoch in the original toolkit (5 GB per full-scale run); here the last epoch's alone.
    files.write_pickle(final / "preds.pkl", [predictions.numpy().copy()])
    with files.atomic_write(final / "model.pth") as handle:
        torch.save({"model": collections.OrderedDict(state_dict(layers))}, handle)
    entries = {
        "folder": final.name,
        "lr": lr,
        "wd": wd,
        "test_top1": top1,
        "test_top5": top5,
        "diverged": diverged,
    }
    return entries | counts_per_class(predictions, labels, len(layers[-1][1]), top1=top1)


def counts_per_class(
    predictions: torch.Tensor, labels: torch.Tensor, n_classes: int, *, top1: float
) -> dict[str, Any]:
    """Return the numbers of correct predictions and of images of each class; empty when they contradict the accuracy.

    They do when logits are not finite, since ``argmax`` and the rank of the true class then disagree.
    """
    import torch

    decoded = predictions >= 0
    labels = labels.cpu()[decoded]
    right = labels[predictions[decoded] == labels]
    if abs(100 * len(right) / max(len(labels), 1) - top1) > concept_counts.TOLERANCE_PERCENT:
        return {}
    correct, images = (torch.bincount(classes, minlength=n_classes).tolist() for classes in (right, labels))
    return concept_counts.write(correct, images)


def write_run(
    stage: Path, result: RunResult, data: Data, run: Run, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a finished run into ``stage``, and return the entry ``final`` of its ``results.json``.

    ``metadata`` has further entries of that file.
    """
    trained = result.layers, result.logs, result.predictions
    final = write_final(stage, *trained, data.test_y, lr=result.lr, wd=result.wd, diverged=result.diverged)
    searched = sum(trial.seconds for trial in result.trials)
    results = {
        "status": "complete",
        **run.metadata,
        **metadata,
        "seed": run.settings.seed,
        "n_shot": run.settings.n_shot,
        "identity": run.output.identity,
        "n_classes": data.n_classes,
        "feature_dim": data.train.dim,
        "labels": None if data.labels == list(range(data.n_classes)) else data.labels,
        "rows": result.rows,
        "final": final,
        "best_trial": result.best_trial,
        "trials": [dataclasses.asdict(trial) for trial in result.trials],
        "seconds": {"search": round(searched, 3), "final": round(result.seconds, 3)},
    }
    files.write_json(stage / RESULTS_FILE, results)
    return final
