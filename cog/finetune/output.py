"""The files of a fine-tuning run: those of a classifier run (:mod:`cog.logreg.run_folder`), and the backbone.

::

    results.json                      settings, sizes, final accuracies, versions; written last
    final-lr-<lr>_wd-<wd>/logs.pkl    one value per epoch, with the keys of a classifier run
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

from cog import config
from cog.finetune.network import FineTuned
from cog.finetune.parallel import Group
from cog.finetune.plan import FineTunePlan
from cog.finetune.state import Position
from cog.logreg.run_folder import RESULTS_FILE, write_final
from cog.logreg.sgd import TrainedClassifier
from cog.runtime import files, provenance
from cog.runtime.device import device_name

BACKBONE_FILE = "backbone.pth"


def write(
    stage: Path, position: Position, network: FineTuned, plan: FineTunePlan, group: Group
) -> dict[str, Any]:
    """Write a finished run, and return the entry ``final`` of its ``results.json``.

    Args:
        stage: folder to write into, see :meth:`cog.runtime.output_folder.FolderClaim.publish`.
        position: position of the training at its end.
        network: the trained network.
        plan: plan of the run.
        group: the processes.
    """
    recipe, request, score = plan.recipe, plan.request, position.score
    assert score is not None
    weight, bias = (tensor.detach().cpu() for tensor in (network.head.weight, network.head.bias))
    classifier = TrainedClassifier([(weight, bias)], logs=position.logs, predictions=score.predictions)
    final = write_final(
        stage, classifier, torch.from_numpy(plan.test.labels),
        lr=recipe.lr, wd=recipe.weight_decay, arguments=dict(request.arguments), config_text=request.cfg.dump(),
    )  # fmt: skip
    backbone = collections.OrderedDict(
        (name, tensor.detach().cpu().contiguous())
        for name, tensor in network.backbone.network.state_dict().items()
    )
    with files.atomic_write(stage / final["folder"] / BACKBONE_FILE) as handle:
        torch.save({"state_dict": backbone}, handle)
    n_failed = {"train": len(position.failed), "test": score.n_failed}
    files.write_json(
        stage / RESULTS_FILE,
        {
            "status": "complete",
            "model": request.model.model,
            "dataset": request.dataset,
            "configuration": config.flat(request.cfg),
            "precision": recipe.precision,
            "n_processes": group.size,
            "device": device_name(group.device),
            "versions": provenance.versions(("torch", "torchvision", "pillow", "numpy")),
            "finished": provenance.now(),
            "evaluation": "finetune",
            "seed": recipe.seed,
            "n_shot": 0,
            "identity": plan.folder.identity,
            "n_classes": len(bias),
            "feature_dim": weight.shape[1],
            "labels": None,
            "rows": {
                "search_train": 0,
                "search_val": 0,
                "final_train": len(plan.train) - n_failed["train"],
                "test": len(plan.test) - n_failed["test"],
            },
            "n_failed_images": n_failed,
            "final": final,
            "best_trial": None,
            "trials": [],
            "seconds": {"final": round(position.seconds, 3)},
            "images_per_second": round(position.images_per_second, 1),
        },
    )
    return final
