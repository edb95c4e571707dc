"""A fine-tuning run, from the choice of the model to the published folder.

The folder has the files of a classifier run (:mod:`cog.logreg.run_files`), and ``backbone.pth`` beside ``model.pth``:
``{"state_dict": state dict of the fine-tuned network, without the classifier}``.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from cog import config, constants
from cog.data.datasets import ImageSources
from cog.data.loader import usable_workers
from cog.errors import CogError, first_line, some
from cog.finetune.recipe import Recipe
from cog.finetune.train import STATE_FILE, Epochs, Training, build
from cog.logreg.run_files import CONTENTS, RESULTS_FILE, print_accuracies, write_final
from cog.models.choice import ModelChoice, preprocess_of
from cog.runtime import files, log, signals
from cog.runtime.device import device_name, exact_float32, require_precision, resolve_device
from cog.runtime.output import LOG_FILE, Output
from cog.runtime.ranks import Rank, this_rank

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from cog.data.images import ImageList

logger = logging.getLogger(__name__)

#: Keys of classifiers that fine-tuning does not have.
_NO_KEYS = ("N_SHOT", "MAX_PER_CLASS", "TYPE")


@contextlib.contextmanager
def joined(name: str | None) -> Iterator[tuple[Rank, torch.device]]:
    """Connect this process with the others that torchrun has started; yield its rank and its device.

    Args:
        name: value of ``--device``; each of several processes on a machine has a GPU of its own.
    """
    rank = this_rank() if os.environ.get("WORLD_SIZE") else Rank()  # of torchrun, not of srun
    if rank.size > 1 and (name or "").startswith("cuda:"):
        raise CogError(f"--device {name} is one GPU, and there are {rank.size} processes; give --device cuda")
    if rank.number:  # the first process of each machine tells what all find
        logging.getLogger("cog").setLevel(logging.CRITICAL + 1 if rank.local else logging.ERROR)
    device = resolve_device(name)
    if rank.size == 1:
        yield rank, device
        return
    try:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        yield rank, device
    except (RuntimeError, ValueError) as error:
        fault = f"process {rank.number} of {rank.size} lost the others"
        raise CogError(f"{fault}: {first_line(error)[:200]}") from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def fine_tune(
    choice: ModelChoice,
    cfg: CfgNode,
    sources: ImageSources,
    dataset: str,
    output: Path,
    *,
    rank: Rank,
    device: torch.device,
    allow_failures: int = 0,
    overwrite: bool = False,
) -> None:
    """Fine-tune a model on a data set, and write the run into a folder; a finished run stays.

    Args:
        choice: the model.
        cfg: its configuration.
        sources: places of the images.
        dataset: name of the data set.
        output: folder of the run.
        rank: number of this process among those that train together.
        device: its device.
        allow_failures: number of images, of both splits together, that may be impossible to decode.
        overwrite: whether to replace another run.
    """
    usual = config.default_cfg()
    for key in _NO_KEYS:
        if cfg.CLF.get(key) != usual.CLF.get(key):
            what = "fine-tuning trains a linear classifier with the network, on all training images"
            raise CogError(f"CLF.{key} is for classifiers of features; {what}; leave it out")
    config.check_new_name(cfg, config.FINETUNE)
    require_precision(device, "FINETUNE.PRECISION", precision := cfg.FINETUNE.PRECISION)
    if precision == "auto":
        is_gpu = device.type == "cuda"
        has_bf16 = is_gpu and torch.cuda.get_device_capability(device)[0] >= 8
        precision = "bf16" if has_bf16 else "fp16" if is_gpu else "fp32"
    recipe = Recipe(cfg, preprocess_of(cfg), precision, rank.size)
    train, test = (sources.list_images(dataset, split) for split in constants.SPLITS)
    if train.classes != test.classes:
        differing = sorted({*train.classes} ^ {*test.classes})
        raise CogError(
            f"{dataset}: training and test classes differ in {some(differing)}; both need the same"
        )
    if len(train.classes) < 2:
        raise CogError(f"{dataset} has the single class {train.classes[0]}; a classifier needs two or more")
    recipe.steps_per_epoch(len(train))
    lists = {
        f"{images.split}_{name}": digest
        for images in (train, test)
        for name, digest in (("images_sha256", images.digest()), ("contents_crc32", images.contents_crc32()))
    }
    if lists["train_images_sha256"] == lists["test_images_sha256"]:
        what = "training and test images have the same names; if they are the same, this is no test accuracy"
        logger.warning("%s: %s", dataset, what)
    pooling = {"pooling": cfg.FT_EXTRACT.POOLING, "dataset": dataset}
    result = Output(output, choice.identity() | pooling | lists | recipe.identity(), contents=CONTENTS)
    if result.is_done(overwrite=overwrite):
        logger.info("%s is complete, skipped", output)
        return
    with signals.deferred(), contextlib.ExitStack() as stack:
        if rank.number == 0:
            work = stack.enter_context(result.claimed())
            if work.published and rank.size == 1:
                return
            stack.enter_context(log.log_file(work.folder / LOG_FILE))
        if rank.size > 1:
            dist.barrier()  # process 0 has removed what does not belong to this run
            logging.getLogger("cog").setLevel(logging.WARNING if rank.number else logging.INFO)
        sizes = f"{len(train)} training and {len(test)} test images of {len(train.classes)} classes"
        how = f"{cfg.FINETUNE.N_EPOCHS} epochs, {recipe.precision}, {device}, {rank.size} process(es)"
        logger.info("fine-tuning %s on %s: %s, %s", choice.name, dataset, sizes, how)
        torch.backends.cudnn.benchmark = device.type == "cuda"
        network = build(choice.load(device, cfg), recipe, n_classes=len(train.classes), device=device)
        workers = {"n_workers": usable_workers(cfg.FT_EXTRACT.N_WORKERS), "allowed": allow_failures}
        training = Training(network, recipe, device, rank=rank.number, **workers)
        with exact_float32(deterministic=False):
            done = training.run(train, test, result.work / STATE_FILE)
        if rank.number == 0:
            with work.publish() as stage:
                final = _write(stage, done, training, (train, test), result.identity)
            print_accuracies(final, output)


def _write(
    stage: Path,
    done: Epochs,
    training: Training,
    lists: tuple[ImageList, ImageList],
    identity: Mapping[str, Any],
) -> dict[str, Any]:
    """Write a finished run into a folder, and return the entry ``final`` of its ``results.json``."""
    recipe, network = training.recipe, training.network
    cfg, head = recipe.cfg, network.head
    weight, bias = (tensor.detach().cpu() for tensor in (head.weight, head.bias))
    assert done.predictions is not None
    trained = [(weight, bias)], done.logs, done.predictions
    labels, pair = torch.from_numpy(lists[1].labels), {"lr": recipe.lr, "wd": cfg.FINETUNE.WEIGHT_DECAY}
    final = write_final(stage, *trained, labels, **pair)
    backbone = collections.OrderedDict(
        (name, tensor.detach().cpu().contiguous())
        for name, tensor in network.backbone.network.state_dict().items()
    )
    with files.atomic_write(stage / final["folder"] / "backbone.pth") as handle:
        torch.save({"state_dict": backbone}, handle)
    n_train, n_test = (n - failed for n, failed in zip(map(len, lists), done.n_failed, strict=True))
    files.write_json(
        stage / RESULTS_FILE,
        {
            "status": "complete",
            "model": identity["model"],
            "dataset": identity["dataset"],
            "configuration": config.flat(cfg),
            "precision": recipe.precision,
            "n_processes": recipe.n_processes,
            "device": device_name(training.device),
            "versions": log.versions(("torch", "torchvision", "pillow", "numpy")),
            "finished": log.now(),
            "evaluation": config.FINETUNE,
            "seed": cfg.EVAL.SEED,
            "n_shot": 0,
            "identity": identity,
            "n_classes": len(bias),
            "feature_dim": weight.shape[1],
            "labels": None,
            "rows": {"search_train": 0, "search_val": 0, "final_train": n_train, "test": n_test},
            "n_failed_images": dict(zip(constants.SPLITS, done.n_failed, strict=True)),
            "final": final,
            "best_trial": None,
            "trials": [],
            "seconds": {"final": round(done.seconds, 3)},
            "images_per_second": round(done.images_per_second, 1),
        },
    )
    return final
