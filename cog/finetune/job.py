"""A fine-tuning run from the plan to the published folder, in one process or in several.

The folder has the files of a classifier run (:mod:`cog.logreg.run_files`), and the network::

    results.json                        settings, sizes, final accuracies, versions; written last
    final-lr-<lr>_wd-<wd>/logs.pkl      one value per epoch, with the keys of a classifier run
    final-lr-<lr>_wd-<wd>/model.pth     {"model": state dict of the linear layer}
    final-lr-<lr>_wd-<wd>/backbone.pth  {"state_dict": state dict of the fine-tuned network, without that layer}
    final-lr-<lr>_wd-<wd>/preds.pkl     classes predicted for the test images after the last epoch; -1: not decoded
    program.log
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
from pathlib import Path
from typing import Any

import torch

from cog import config
from cog.data.loader import usable_workers
from cog.errors import CogError
from cog.finetune import network, parallel, training
from cog.finetune.network import FineTuned
from cog.finetune.parallel import Group
from cog.finetune.plan import FineTunePlan, FineTuneRequest, make_plan
from cog.finetune.trainer import Position
from cog.logreg.mlp import TrainedClassifier
from cog.logreg.run_files import RESULTS_FILE, print_accuracies, write_final
from cog.logreg.settings import RowCounts
from cog.runtime import files, provenance, signals
from cog.runtime.device import device_name, full_float32, require_precision, resolve_device
from cog.runtime.output_folder import FolderClaim
from cog.runtime.ranks import Rank

logger = logging.getLogger(__name__)


def choose_device(name: str | None, rank: Rank) -> torch.device:
    """Return the device of this process; each of several processes on a machine has a GPU of its own."""
    if rank.size > 1 and (name or "").startswith("cuda:"):
        raise CogError(f"--device {name} is one GPU, and there are {rank.size} processes; give --device cuda")
    return resolve_device(name, rank, float64=True)


def choose_precision(wanted: str, device: torch.device) -> str:
    """Return the arithmetic that ``FINETUNE.PRECISION`` stands for on a device."""
    require_precision(device, "FINETUNE.PRECISION", wanted)
    if wanted != "auto":
        return wanted
    if device.type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.get_device_capability(device)[0] >= 8 else "fp16"


def run(request: FineTuneRequest) -> int:
    """Plan and do a fine-tuning run, and return the exit code."""
    rank = parallel.place()
    if rank.number:  # process 0 logs for all
        logging.getLogger("cog").setLevel(logging.ERROR)
    device = choose_device(request.device, rank)
    precision = choose_precision(request.cfg.FINETUNE.PRECISION, device)
    try:
        plan = make_plan(request, precision=precision, n_processes=rank.size)
    except CogError as error:
        if rank.number:
            return error.exit_code
        raise
    try:
        with signals.deferred(), parallel.joined(rank, device) as group, contextlib.ExitStack() as stack:
            held: list[FolderClaim] = []
            if group.agree(lambda: _begin(plan, stack, held)):
                _run(plan, group, held)
    except (signals.Interrupted, parallel.SharedError, parallel.LostProcessError) as problem:
        if rank.number:
            return problem.exit_code
        raise
    return 0


def _begin(plan: FineTunePlan, stack: contextlib.ExitStack, held: list[FolderClaim]) -> bool:
    """Claim the output folder (in process 0), and return whether the run has to be done."""
    claim = stack.enter_context(plan.folder.claim())
    if claim.is_done():
        return False
    claim.begin()
    stack.enter_context(claim.failures_noted())
    held.append(claim)
    return True


def _run(plan: FineTunePlan, group: Group, held: list[FolderClaim]) -> None:
    """Train the network, and write the result (in process 0, which holds the folder)."""
    request, recipe, device = plan.request, plan.recipe, group.device
    n_classes = len(plan.train.classes)
    resume = plan.folder.resume
    if device.type == "cuda":
        torch.cuda.set_device(device)
    model = network.build(request.model.load(device, request.cfg), recipe, n_classes=n_classes, device=device)
    if group.rank == 0:
        resume.create()  # for the log and the states
    with contextlib.nullcontext() if group.rank else provenance.log_file(resume.log_file):
        logger.info(
            "fine-tuning %s on %s: %d training and %d test images of %d classes, %d epochs of %d steps of %d images, "
            "learning rate %.4g, %s, %s, %d process(es)",
            request.model.model, request.dataset, len(plan.train), len(plan.test), n_classes, recipe.n_epochs,
            recipe.steps_per_epoch(len(plan.train)), recipe.batch_size, recipe.lr, recipe.precision, device, group.size,
        )  # fmt: skip
        if device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        with full_float32():
            trained = training.train(
                model, plan.train, plan.test, recipe, group,
                n_workers=usable_workers(request.cfg.FT_EXTRACT.N_WORKERS), allow_failures=request.allow_failures,
                resume=resume,
            )  # fmt: skip
    if group.rank == 0:
        with held[0].publish() as stage:
            final = _write(stage, trained, model, plan, group)
        print_accuracies(final, plan.folder.path)


def _write(
    stage: Path, position: Position, model: FineTuned, plan: FineTunePlan, group: Group
) -> dict[str, Any]:
    """Write a finished run into a folder, and return the entry ``final`` of its ``results.json``."""
    recipe, request, score = plan.recipe, plan.request, position.score
    assert score is not None
    weight, bias = (tensor.detach().cpu() for tensor in (model.head.weight, model.head.bias))
    classifier = TrainedClassifier([(weight, bias)], logs=position.logs, predictions=score.predictions)
    labels = torch.from_numpy(plan.test.labels)
    final = write_final(stage, classifier, labels, lr=recipe.lr, wd=recipe.weight_decay)
    backbone = collections.OrderedDict(
        (name, tensor.detach().cpu().contiguous())
        for name, tensor in model.backbone.network.state_dict().items()
    )
    with files.atomic_write(stage / final["folder"] / "backbone.pth") as handle:
        torch.save({"state_dict": backbone}, handle)
    n_failed = {"train": len(position.failed), "test": score.n_failed}
    rows = RowCounts(0, 0, len(plan.train) - n_failed["train"], len(plan.test) - n_failed["test"])
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
            "rows": dataclasses.asdict(rows),
            "n_failed_images": n_failed,
            "final": final,
            "best_trial": None,
            "trials": [],
            "seconds": {"final": round(position.seconds, 3)},
            "images_per_second": round(position.images_per_second, 1),
        },
    )
    return final
