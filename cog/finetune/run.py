"""A fine-tuning run: its folder has the files of a classifier run (:mod:`cog.logreg.run_files`), and
``backbone.pth`` beside ``model.pth``: ``{"state_dict": state dict of the network without the classifier}``.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from yacs.config import CfgNode

from cog import config, constants
from cog.data.datasets import ImageSources
from cog.data.images import ImageList
from cog.data.loader import usable_workers, worker_failures_explained
from cog.errors import CogError, some
from cog.finetune.train import STATE_FILE, Epochs, FineTuned, Recipe, Training
from cog.logreg.run_files import CONTENTS, print_accuracies, write_final
from cog.models.choice import ModelChoice, preprocess_of
from cog.runtime import files, log, signals
from cog.runtime.device import device_name, exact_float32, require_precision, resolve_device
from cog.runtime.memory import Rank, this_rank
from cog.runtime.output import LOG_FILE, Output

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def joined() -> Iterator[tuple[Rank, torch.device]]:
    """Connect this process with others of torchrun; yield its rank and device."""
    rank = this_rank() if os.environ.get("WORLD_SIZE") else Rank()  # of torchrun, not of srun
    if rank.number:  # the first process tells what all find
        logging.getLogger("cog").setLevel(logging.ERROR)
    device = resolve_device(None)
    if rank.size == 1:
        yield rank, device
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield rank, device
    finally:
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
    allow_failures: int,
    overwrite: bool,
) -> None:
    """Fine-tune a model, up to ``allow_failures`` images of both splits failing; a finished run stays."""
    recipe = Recipe(cfg, preprocess_of(cfg), _precision(cfg, device), rank.size)
    splits = [sources.list_images(dataset, split) for split in constants.SPLITS]
    identity = choice.identity | {"pooling": cfg.FT_EXTRACT.POOLING, "dataset": dataset}
    identity |= _images(splits) | recipe.identity()
    result = Output(output, identity, contents=CONTENTS)
    recipe.steps_per_epoch(len(splits[0]))
    if result.is_done(overwrite=overwrite):
        logger.info("%s is complete, skipped", output)
        return
    with signals.deferred(), contextlib.ExitStack() as stack:
        if rank.number == 0:
            stack.enter_context(result.claimed())
            if result.is_published and rank.size == 1:
                return
            stack.enter_context(log.log_file(result.work / LOG_FILE))
        if rank.size > 1:
            dist.barrier()  # process 0 has removed what does not belong to this run
            logging.getLogger("cog").setLevel(logging.WARNING if rank.number else logging.INFO)
        n_classes, how = len(splits[0].classes), f"{recipe.precision}, {device}, {rank.size} process(es)"
        facts = choice.name, dataset, *map(len, splits), n_classes, how
        logger.info("fine-tuning %s on %s: %d training, %d test images, %d classes, %s", *facts)
        network = FineTuned(choice.load(device, cfg), recipe, n_classes, device)
        n_workers = usable_workers(cfg.FT_EXTRACT.N_WORKERS)
        training = Training(network, recipe, rank.number, n_workers, allow_failures)
        with worker_failures_explained(), exact_float32():
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = False, device.type == "cuda"
            done = training.run(splits[0], splits[1], result.work / STATE_FILE)
        if rank.number == 0:
            with result.publish() as stage:
                final = _write(stage, done, training, splits, identity)
            print_accuracies(final, output)


def _precision(cfg: CfgNode, device: torch.device) -> str:
    """Return the precision, after checks of keys that belong to other commands."""
    for key in ("N_SHOT", "MAX_PER_CLASS", "TYPE"):
        if cfg.CLF.get(key) != config.default_cfg().CLF.get(key):
            raise CogError(f"CLF.{key} is for classifiers of features, not for fine-tuning; leave it out")
    config.check_new_name(cfg, config.FINETUNE)
    require_precision(device, "FINETUNE.PRECISION", precision := cfg.FINETUNE.PRECISION)
    if precision != "auto" or device.type != "cuda":
        return "fp32" if precision == "auto" else precision
    return "bf16" if torch.cuda.get_device_capability(device)[0] >= 8 else "fp16"


def _images(splits: Sequence[ImageList]) -> dict[str, Any]:
    """Return digests of names and of contents of the images, after a comparison of the splits."""
    train, test = splits
    found: dict[str, Any] = {}
    if train.classes != test.classes:
        differing = some(sorted({*train.classes} ^ {*test.classes}))
        raise CogError(f"{train.dataset}: training and test classes differ in {differing}")
    if len(train.classes) < 2:
        raise CogError(f"{train.dataset} has the single class {train.classes[0]}, expected several")
    for images in splits:
        found[f"{images.split}_images_sha256"] = images.digest()
        found[f"{images.split}_contents_crc32"] = images.contents_crc32()
    if found["train_images_sha256"] == found["test_images_sha256"]:
        logger.warning("%s: training and test images have the same names; are they the same?", train.dataset)
    return found


def _write(
    stage: Path, done: Epochs, training: Training, splits: Sequence[ImageList], identity: dict[str, Any]
) -> dict[str, Any]:
    """Write a finished run into a folder, and return the entry ``final`` of its ``results.json``."""
    recipe, network = training.recipe, training.network
    labels = torch.from_numpy(splits[1].labels)
    assert done.predictions is not None
    trained, wd = {k: v.cpu() for k, v in network.head.state_dict().items()}, recipe.ft.WEIGHT_DECAY
    final = write_final(stage, trained, done.logs, done.predictions, labels, lr=recipe.lr, wd=wd)
    backbone = {name: each.cpu().contiguous() for name, each in network.backbone.network.state_dict().items()}
    with files.atomic_write(stage / final["folder"] / "backbone.pth") as handle:
        torch.save({"state_dict": backbone}, handle)
    n_train, n_test = (len(images) - n for images, n in zip(splits, done.n_failed, strict=True))
    record = {
        "status": "complete",
        "model": identity["model"],
        "dataset": identity["dataset"],
        "configuration": config.flat(recipe.cfg),
        "precision": recipe.precision,
        "device": device_name(training.device),
        "versions": log.versions(("torch", "torchvision", "pillow", "numpy")),
        "finished": log.now(),
        "evaluation": config.FINETUNE,
        "seed": recipe.cfg.EVAL.SEED,
        "n_shot": 0,
        "identity": identity,
        "n_classes": len(trained["bias"]),
        "feature_dim": trained["weight"].shape[1],
        "rows": {"final_train": n_train, "test": n_test},
        "n_failed_images": dict(zip(constants.SPLITS, done.n_failed, strict=True)),
        "final": final,
        "seconds": {"final": round(done.seconds, 3)},
    }
    files.write_json(stage / constants.RESULTS_FILE, record)
    return final
