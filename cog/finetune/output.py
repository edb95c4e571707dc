"""What a fine-tuning run leaves: the files of a classifier run (:mod:`cog.logreg.run_folder`), and the backbone.

::

    results.json                      settings, sizes, final accuracies, versions; written last
    final-lr-<lr>_wd-<wd>/logs.pkl    one value per epoch, keys as of a classifier run
    final-lr-<lr>_wd-<wd>/model.pth   {"model": state dict of the linear layer}
    final-lr-<lr>_wd-<wd>/backbone.pth  {"state_dict": state dict of the fine-tuned network, without that layer}
    final-lr-<lr>_wd-<wd>/preds.pkl   classes predicted for the test images after the last epoch; -1: not decoded
    final-lr-<lr>_wd-<wd>/{args.pkl, model.txt}
    arguments.json, config.txt, program.log
"""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import torch

from cog.finetune.network import FineTuned
from cog.finetune.recipe import FineTuneRecipe
from cog.finetune.training import Trained
from cog.logreg.run_folder import RESULTS_FILE, final_folder
from cog.runtime import files

BACKBONE_FILE = "backbone.pth"


def write(
    stage: Path,
    trained: Trained,
    network: FineTuned,
    recipe: FineTuneRecipe,
    *,
    n_train: int,
    identity: dict[str, Any],
    arguments: dict[str, Any],
    config_text: str,
    metadata: dict[str, Any],
) -> None:
    """Write a finished run.

    Args:
        stage: folder to write into, see :func:`cog.runtime.atomic_dir.staged`.
        trained: logs and the last test.
        network: as trained.
        recipe: what was done.
        n_train: number of training images.
        identity: what makes two runs the same.
        arguments: the command line's flags.
        config_text: the configuration as YAML.
        metadata: further entries of results.json.
    """
    folder = final_folder(recipe.lr, recipe.weight_decay)
    final = stage / folder
    final.mkdir()
    logs = trained.logs
    weight, bias = (tensor.detach().cpu() for tensor in (network.head.weight, network.head.bias))
    n_classes, dim = weight.shape
    predictions = trained.score.predictions
    files.write_pickle(final / "logs.pkl", logs)
    files.write_pickle(final / "preds.pkl", [predictions.numpy()])
    files.write_pickle(
        final / "args.pkl",
        arguments
        | {
            "lr": recipe.lr,
            "wd": recipe.weight_decay,
            "n_classes": n_classes,
            "val": False,
            "logs": logs,
        },
    )
    files.write_text(final / "model.txt", f"Linear(in_features={dim}, out_features={n_classes}, bias=True)\n")
    with files.atomic_write(final / "model.pth") as handle:
        torch.save({"model": collections.OrderedDict(weight=weight, bias=bias)}, handle)
    backbone = collections.OrderedDict(
        (name, tensor.detach().cpu().contiguous())
        for name, tensor in network.backbone.network.state_dict().items()
    )
    with files.atomic_write(final / BACKBONE_FILE) as handle:
        torch.save({"state_dict": backbone}, handle)
    files.write_json(stage / "arguments.json", arguments)
    files.write_text(stage / "config.txt", config_text)
    n_failed = {"train": trained.n_failed_train, "test": trained.score.n_failed}
    files.write_json(
        stage / RESULTS_FILE,
        {"status": "complete"}
        | metadata
        | {
            "evaluation": "finetune",
            "seed": recipe.seed,
            "n_shot": 0,
            "identity": identity,
            "n_classes": n_classes,
            "feature_dim": dim,
            "labels": None,
            "rows": {
                "search_train": 0,
                "search_val": 0,
                "final_train": n_train - n_failed["train"],
                "test": len(predictions) - n_failed["test"],
            },
            "n_failed_images": n_failed,
            "final": {
                "folder": folder,
                "lr": recipe.lr,
                "wd": recipe.weight_decay,
                "test_top1": logs["test/top1"][-1],
                "test_top5": logs["test/top5"][-1],
                "diverged": False,
            },
            "best_trial": None,
            "trials": [],
            "seconds": {"final": round(trained.seconds, 3)},
            "images_per_second": round(trained.images_per_second, 1),
        },
    )
