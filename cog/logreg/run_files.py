"""The folder of a classifier run, ``seed-<seed>/``: five files.

::

    results.json                     settings, identities of the features, sizes, search, final accuracies,
                                     overall and per class (cog.results.concept_counts); written last
    program.log
    final-lr-<lr>_wd-<wd>/logs.pkl   one value per epoch
    final-lr-<lr>_wd-<wd>/model.pth  {"model": state dict of the linear layer, or of the Sequential of an MLP}
    final-lr-<lr>_wd-<wd>/preds.pkl  classes predicted for the test set after the last epoch
"""

from __future__ import annotations

import collections
import dataclasses
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cog.constants import LOGS_FILE, RESULTS_FILE
from cog.logreg.settings import Settings
from cog.results import concept_counts
from cog.runtime import files
from cog.runtime.output import LOG_FILE, Output

if TYPE_CHECKING:
    from torch import Tensor

    from cog.logreg.features import Data
    from cog.logreg.metrics import Logs
    from cog.logreg.protocol import RunResult

#: Names in the folder of a run, of this toolkit and of the original one.
CONTENTS = (RESULTS_FILE, LOG_FILE, "final-*", "val-*/", "study.pkl", "arguments.json", "config.txt")


@dataclass(frozen=True)
class Run:
    """One run."""

    settings: Settings
    output: Output  # seed folder; its identity: settings, ``train_features`` and ``test_features``
    metadata: Mapping[str, Any]  # further entries of ``results.json``


def print_accuracies(final: Mapping[str, Any], path: Path) -> None:
    """Print the accuracies of a final training, the entry ``final`` of ``results.json``."""
    top1, top5 = final.get("test_top1"), final.get("test_top5")
    if isinstance(top1, float) and isinstance(top5, float):
        marked = "  training diverged" if final.get("diverged") is True else ""
        print(f"top-1: {top1:.2f}  top-5: {top5:.2f}  ({path}){marked}", flush=True)


def write_final(
    stage: Path,
    state: Mapping[str, Tensor],
    logs: Logs,
    predictions: Tensor,
    labels: Tensor,
    *,
    lr: float,
    wd: float,
    diverged: bool = False,
) -> dict[str, Any]:
    """Write the files of a final training into ``stage``, and return the entry ``final`` of ``results.json``.

    ``state`` is the state dict on the CPU; ``predictions`` (-1: an image that was not decoded) and ``labels``
    of the test images are int64 ``(n,)``.
    """
    import torch

    # interned like names in the source, so that pickles of continued runs are equal to the byte
    logs = {sys.intern(name): values for name, values in logs.items()}
    top1, top5 = logs["test/top1"][-1], logs["test/top5"][-1]
    final = stage / f"final-lr-{lr}_wd-{wd}"
    final.mkdir()
    (final / LOGS_FILE).write_bytes(pickle.dumps(logs, protocol=4))
    # One entry per epoch in the original toolkit (5 GB per full-scale run); here the last epoch's alone.
    (final / "preds.pkl").write_bytes(pickle.dumps([predictions.numpy().copy()], protocol=4))
    with files.atomic_write(final / "model.pth") as handle:
        torch.save({"model": collections.OrderedDict(state)}, handle)
    *_, bias = state.values()
    counts = counts_per_class(predictions, labels, len(bias), top1=top1)
    accuracies = {"test_top1": top1, "test_top5": top5, "diverged": diverged}
    return {"folder": final.name, "lr": lr, "wd": wd, **accuracies, **counts}


def counts_per_class(predictions: Tensor, labels: Tensor, n_classes: int, *, top1: float) -> dict[str, Any]:
    """Return numbers of correct predictions and of images of each class; empty if they contradict ``top1``.

    They do when logits are not finite, since ``argmax`` and the rank of the true class then disagree.
    """
    predicted, y = predictions.numpy(), labels.cpu().numpy()
    right, decoded = y[predicted == y], y[predicted >= 0]
    if abs(100 * len(right) / max(len(decoded), 1) - top1) > concept_counts.TOLERANCE_PERCENT:
        return {}
    counts = (np.bincount(classes, minlength=n_classes).tolist() for classes in (right, decoded))
    return concept_counts.write(*counts)


def write_run(stage: Path, result: RunResult, data: Data, run: Run, facts: dict[str, Any]) -> dict[str, Any]:
    """Write a finished run into ``stage``; ``facts`` and the returned ``final`` are entries of its record."""
    trained = result.state, result.logs, result.predictions, data.test_y
    final = write_final(stage, *trained, lr=result.lr, wd=result.wd, diverged=result.diverged)
    searched = sum(trial.seconds for trial in result.trials)
    results = {
        "status": "complete",
        **run.metadata,
        **facts,
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
