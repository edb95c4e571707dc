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
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog.finetune.recipe import FineTuneRecipe
from cog.logreg.run_folder import RESULTS_FILE, RunFolder, write_final
from cog.runtime import files
from cog.runtime.fingerprint import differences
from cog.runtime.output_folder import OutputFolder

if TYPE_CHECKING:
    from cog.finetune.network import FineTuned
    from cog.finetune.training import Trained

BACKBONE_FILE = "backbone.pth"

#: Differences that a message lists.
_LISTED = 6


class FineTuneFolder(RunFolder):
    """The folder of one fine-tuning run."""

    unknown = "{path} holds a run of another kind ({names}); add --overwrite to replace it"
    unfinished = OutputFolder.unfinished
    damaged = OutputFolder.damaged
    announce_done = OutputFolder.announce_done

    def compare(self, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
        """Return the first differences, in whatever entry."""
        return differences(stored, wanted)[:_LISTED]


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
) -> dict[str, Any]:
    """Write a finished run, and return the entry ``final`` of its ``results.json``.

    Args:
        stage: folder to write into, see :meth:`cog.runtime.output_folder.FolderClaim.publish`.
        trained: logs and the last test.
        network: as trained.
        recipe: what was done.
        n_train: number of training images.
        identity: what makes two runs the same.
        arguments: the command line's flags.
        config_text: the configuration as YAML.
        metadata: further entries of results.json.
    """
    import torch

    logs, predictions = trained.logs, trained.score.predictions
    weight, bias = (tensor.detach().cpu() for tensor in (network.head.weight, network.head.bias))
    n_classes, dim = weight.shape
    final = write_final(
        stage,
        lr=recipe.lr,
        wd=recipe.weight_decay,
        logs=logs,
        predictions=predictions,
        weights={"weight": weight, "bias": bias},
        description=f"Linear(in_features={dim}, out_features={n_classes}, bias=True)",
        n_classes=n_classes,
        arguments=arguments,
        config_text=config_text,
    )
    backbone = collections.OrderedDict(
        (name, tensor.detach().cpu().contiguous())
        for name, tensor in network.backbone.network.state_dict().items()
    )
    with files.atomic_write(stage / final["folder"] / BACKBONE_FILE) as handle:
        torch.save({"state_dict": backbone}, handle)
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
            "final": final,
            "best_trial": None,
            "trials": [],
            "seconds": {"final": round(trained.seconds, 3)},
            "images_per_second": round(trained.images_per_second, 1),
        },
    )
    return final
