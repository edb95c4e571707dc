"""Extract the features of data sets with a frozen model into ``X_Y.pth`` files, one per data set and split."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import cli as cli_tools
from cog import config, files, interruption, names, ranks
from cog.commands import image_flags
from cog.errors import CogError, FailedImagesError
from cog.feature_folder import FeatureFolder
from cog.models.formats.detect import checkpoint_files, require_checkpoint
from cog.models.zoo import MODELS, get_spec
from cog.paths import ModelDir, split_model_name

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from cog.data.image_lists import ImageList
    from cog.extract_job import Job, Options

logger = logging.getLogger(__name__)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse flags; touches no file."""
    parser = cli_tools.Parser(__doc__ or "")
    what = parser.add_argument_group("what to extract")
    what.add_argument(
        "--model", required=True, help="<model_title>_<architecture_name>, such as sup_resnet50"
    )
    what.add_argument(
        "--dataset",
        required=True,
        nargs="+",
        help=f"one or several of {', '.join(names.DATASETS)}, {names.IN1K_BLURRED}, or with --images_root a name of "
        "your own",
    )
    what.add_argument(
        "--split",
        required=True,
        nargs="+",
        choices=names.SPLITS,
        help="one or both; test of in1k is its official val folder. Every data set is extracted in every split given",
    )
    where = parser.add_argument_group("model and output: --models_root_dir, or --ckpt_file with --output_dir")
    where.add_argument(
        "--models_root_dir",
        help="reads <root>/<model_title>/<architecture_name>/model.ckpt, writes <dataset>/features_<split>/ "
        "beside it",
    )
    where.add_argument(
        "--ckpt_file",
        help="checkpoint to load instead (of a TensorFlow checkpoint: what its .index and .data files have in common)",
    )
    where.add_argument(
        "--strict_hash",
        action="store_true",
        help="stop when the checkpoint is not the published file, told by its SHA-256 (default: warn)",
    )
    where.add_argument("--output_dir", help="folder to write to instead (for one data set and one split)")
    where.add_argument(
        "--model_loader",
        type=cli_tools.python_target,
        metavar="FILE.py:FUNCTION",
        help="a model of your own: load_my_model(init_args) -> (backbone, forward); init_args has model_name, "
        "ckpt_file, model_dir",
    )
    images = parser.add_argument_group("images")
    image_flags.add(images)
    images.add_argument(
        "--allow_failures",
        type=cli_tools.whole_number(0),
        default=0,
        metavar="N",
        help="accept up to N images per data set and split that cannot be decoded (default: 0; more end with exit "
        "code 3)",
    )
    run = parser.add_argument_group("run")
    run.add_argument("--device", help="cpu, cuda or cuda:<index> (default: cuda if there is one, else cpu)")
    cli_tools.add_common(run)
    cli_tools.add_check(run)
    return parser.parse_args(argv)


def resolve_paths(args: argparse.Namespace) -> tuple[Path | None, ModelDir | None]:
    """Return checkpoint (None: the custom loader does without) and model folder."""
    split_model_name(args.model)
    if args.models_root_dir is None and args.output_dir is None:
        raise CogError("nowhere to write: give --models_root_dir, or --ckpt_file with --output_dir")
    model_dir = checkpoint = None
    if args.models_root_dir is not None:
        files.require_dir(args.models_root_dir, "--models_root_dir")
        model_dir = ModelDir(args.models_root_dir, args.model)
        checkpoint = model_dir.checkpoint
    if args.ckpt_file is not None:
        checkpoint = Path(args.ckpt_file)
        require_checkpoint(checkpoint, "--ckpt_file")
    elif checkpoint is None and args.model_loader is None:
        raise CogError("no checkpoint: give --ckpt_file, or --models_root_dir")
    elif checkpoint is not None and not checkpoint_files(checkpoint):
        if args.model_loader is None:
            raise CogError(
                f"there is no checkpoint {checkpoint}; prepare_models/README.md says how to get it, or give --ckpt_file"
            )
        checkpoint = None
    if args.model_loader is not None:
        files.require_file(args.model_loader.rpartition(":")[0], "--model_loader")
    return checkpoint, model_dir


def feature_folders(
    args: argparse.Namespace, model_dir: ModelDir | None
) -> dict[tuple[str, str], FeatureFolder]:
    """Return the output folder of every ``(dataset, split)``, in the order given, each once."""
    pairs = list(dict.fromkeys((dataset, split) for dataset in args.dataset for split in args.split))
    if args.output_dir is not None:
        if len(pairs) > 1:
            raise CogError(
                f"--output_dir takes the features of one data set and split, not of {len(pairs)}; give "
                "--models_root_dir instead, or one --dataset and one --split at a time"
            )
        return {pairs[0]: FeatureFolder(args.output_dir)}
    assert model_dir is not None
    return {pair: FeatureFolder(model_dir.features(*pair)) for pair in pairs}


def describe_model(args: argparse.Namespace, checkpoint: Path | None) -> dict[str, Any]:
    """Return the part of features.json that says which network this is."""
    from cog.models.hashes import sha256 as checkpoint_sha256

    loader_file = Path(args.model_loader.rpartition(":")[0]) if args.model_loader else None
    description = {
        "model": args.model,
        "checkpoint": str(checkpoint) if checkpoint else None,
        "checkpoint_sha256": checkpoint_sha256(checkpoint) if checkpoint else None,
        "loader": args.model_loader,
        "loader_sha256": files.sha256(loader_file) if loader_file else None,
    }
    if args.model_loader is None:
        digest = description["checkpoint_sha256"]
        description["checkpoint_is_published"] = check_hash(args.model, digest, strict=args.strict_hash)
    return description


def describe_images(cfg: CfgNode, images: ImageList) -> dict[str, Any]:
    """Return the part of features.json that says what was done to which images."""
    fx = cfg.FT_EXTRACT
    interpolation = {
        "exact": "bicubic (Pillow)",
        "fast": "bicubic (PyTorch, 8 bits)",
        "cuda": "bicubic (PyTorch)",
    }
    return {
        "dataset": images.dataset,
        "split": images.split,
        "preprocessing": {
            "resize": fx.IMAGE_RESIZE_SIZE,
            "crop": fx.IMAGE_CROP_SIZE,
            "interpolation": interpolation[fx.DECODE],
            "mean": list(fx.IMAGE_NORM.MEAN),
            "std": list(fx.IMAGE_NORM.STD),
            "load_truncated_images": fx.LOAD_TRUNCATED_IMAGES,
        },
        "profile": fx.PROFILE,
        "variant": fx.VARIANT,
        "precision": fx.PRECISION,
        "decode": fx.DECODE,
        "image_list_sha256": images.digest(),
        "images_root": str(images.root),
        "n_classes": len(images.classes),
        "n_images": len(images),
    }


def check_hash(model: str, digest: str | None, *, strict: bool) -> bool | None:
    """Compare the checkpoint with the published file.

    Args:
        model: a declared model.
        digest: SHA-256 of its checkpoint.
        strict: a difference is an error, not a warning.

    Returns:
        Whether it is the published file; None when no SHA-256 was published.

    Raises:
        CogError: when ``strict`` and it is another file.
    """
    from cog.models.hashes import abbreviated, is_published

    spec = get_spec(model)
    published = None if digest is None else is_published(spec, digest)
    if published is False:
        known = " or ".join(map(abbreviated, spec.sha256_prefixes))
        text = f"the checkpoint of {model} is not the published file: SHA-256 {digest}, expected {known}"
        if strict:
            raise CogError(f"{text} (--strict_hash)")
        logger.warning("%s", text)
    elif published is None and strict:
        logger.warning(
            "no SHA-256 of the checkpoint of %s was published; --strict_hash cannot check it", model
        )
    return published


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script; returns its exit code."""
    since = time.time()
    rank = ranks.this_rank()
    log = ranks.label_log(rank)
    with ranks.only_one_speaks(rank):
        args = parse_args(argv)
    if args.check:
        from cog.preflight import extraction

        return extraction.check(args)
    with interruption.deferred():
        cfg, where, jobs = check_input(args)
        log.speak()
        options = options_of(args, cfg, rank, since)
        todo = [
            (f"[{number}/{len(jobs)}] " if len(jobs) > 1 else "", job)
            for number, job in enumerate(jobs, 1)
            if not is_done(job, options)
        ]
        if todo:
            extract_all(args, cfg, where, todo, options)
    return 0


@dataclass(frozen=True)
class Where:
    """Where the network is.

    Attributes:
        checkpoint: None: the custom loader does without.
        model_dir: the model's folder, None without ``--models_root_dir``.
    """

    checkpoint: Path | None
    model_dir: ModelDir | None


def check_input(args: argparse.Namespace) -> tuple[CfgNode, Where, list[Job]]:
    """Check everything that can be checked before something is done.

    Returns:
        Configuration, network, and all jobs, those that are complete included.

    Raises:
        CogError: at the first fault.
    """
    from cog.extract_job import Job

    spec = MODELS.get(args.model) if args.model_loader else get_spec(args.model)
    cfg = config.get_cfg(model=spec, model_name=args.model, config_file=args.config, opts=args.opts)
    checkpoint, model_dir = resolve_paths(args)
    folders = feature_folders(args, model_dir)
    flags = {"overwrite": args.overwrite, "skip_complete": args.skip_complete}
    for folder in folders.values():
        folder.check_usable(**flags)
    images = {pair: image_flags.list_images(args, *pair) for pair in folders}
    model = describe_model(args, checkpoint)
    if args.model_loader is not None and cfg.FT_EXTRACT.VARIANT:
        raise CogError(
            f"FT_EXTRACT.VARIANT {cfg.FT_EXTRACT.VARIANT} is for declared models, not for one with --model_loader"
        )
    jobs = [
        Job(images[pair], folder, model | describe_images(cfg, images[pair]), " ".join(pair))
        for pair, folder in folders.items()
    ]
    for job in jobs:
        job.folder.keeps(job.identity, **flags)
    return cfg, Where(checkpoint, model_dir), jobs


def options_of(args: argparse.Namespace, cfg: CfgNode, rank: ranks.Rank, since: float) -> Options:
    """Return how to work."""
    from cog.extract_job import Options

    fx = cfg.FT_EXTRACT
    return Options(
        overwrite=args.overwrite,
        skip_complete=args.skip_complete,
        allow_failures=args.allow_failures,
        load_truncated=fx.LOAD_TRUNCATED_IMAGES,
        compiled=fx.COMPILE,
        shard_rows=fx.SHARD_ROWS,
        shard_seconds=fx.SHARD_SECONDS,
        rank=rank,
        since=since,
    )


def is_done(job: Job, options: Options) -> bool:
    """Whether the features of a job are complete, or become so without the network.

    Raises:
        LockedError: when another start is at work there.
        CogError: when there are features that were made differently.
    """
    from cog import extract_job, locks
    from cog.unit_status import failures_noted

    path = job.folder.path
    if options.rank.leads and extract_job.needs_settling(job):
        with locks.locked(path, flag="--output_dir"), failures_noted(path):
            return extract_job.settle(job, options)
    if job.folder.keeps(job.identity, overwrite=options.overwrite, skip_complete=options.skip_complete):
        logger.info("%s is complete, skipped", job.folder.features_file)
        return True
    if options.rank.leads and (holder := locks.live_holder(path)):
        raise locks.LockedError(f"{path} is being written by {holder}; wait for it to end")
    return False


def extract_all(
    args: argparse.Namespace,
    cfg: CfgNode,
    where: Where,
    jobs: Sequence[tuple[str, Job]],
    options: Options,
) -> None:
    """Load the network once and extract one job after the other.

    Args:
        args: flags.
        cfg: configuration.
        where: where the network is.
        jobs: each with what comes before its label, such as ``"[2/12] "``; empty when it is the only one.
        options: how to work.

    Raises:
        Interrupted: when a signal asked to end.
        CogError: after all jobs have been tried, when some failed: a :class:`FailedImagesError` when it was only
            because of images.
    """
    from cog import extract, extract_job, shards
    from cog.data.loader import usable_workers
    from cog.device import resolve_device
    from cog.models.backbone import load_backbone

    fx = cfg.FT_EXTRACT
    device = resolve_device(ranks.device_name(options.rank, args.device))
    if fx.DECODE == "cuda":
        from cog.data.jpeg import require_decoder

        require_decoder(device)
    _, rows_per_pass = extract.pass_sizes(device, crop=fx.IMAGE_CROP_SIZE, batch_size=fx.BATCH_SIZE)
    for _, job in jobs:
        identity = extract_job.work_identity(
            job, device=device, rows_per_pass=rows_per_pass, compiled=fx.COMPILE
        )
        if options.rank.leads:
            shards.check(job.folder.path, identity, overwrite=options.overwrite)
    workers = usable_workers(fx.N_WORKERS)
    backbone = load_backbone(
        args.model,
        where.checkpoint,
        device,
        args.model_loader,
        model_dir=where.model_dir.path if where.model_dir else None,
        profile=fx.PROFILE,
        variant=fx.VARIANT,
    )
    extractor = extract.Extractor(
        backbone,
        resize=fx.IMAGE_RESIZE_SIZE,
        crop=fx.IMAGE_CROP_SIZE,
        mean=fx.IMAGE_NORM.MEAN,
        std=fx.IMAGE_NORM.STD,
        device=device,
        batch_size=fx.BATCH_SIZE,
        n_workers=workers,
        precision=fx.PRECISION,
        decode=fx.DECODE,
        compiled=fx.COMPILE,
        load_truncated=fx.LOAD_TRUNCATED_IMAGES,
        start_method=fx.WORKER_START_METHOD or None,
    )
    failed: list[tuple[Job, CogError]] = []
    for number, job in jobs:
        interruption.check(f"{job.label} is not begun")
        if number and options.rank.leads:
            print(f"{number}features of {args.model}: {job.label}", flush=True)
        logger.info(
            "%s on %s: %d images of %d classes, %s, %s, %d workers",
            args.model, job.label, len(job.images), len(job.images.classes), device, fx.PRECISION, workers,
        )  # fmt: skip
        try:
            extract_job.run(job, extractor, options, model=args.model, label=f"{number}{job.label}")
        except interruption.Interrupted:
            raise
        except CogError as error:
            if not number:
                raise
            logger.error("%s: %s", job.label, error)
            failed.append((job, error))
    if failed:
        only_images = all(isinstance(error, FailedImagesError) for _, error in failed)
        raise (FailedImagesError if only_images else CogError)(
            f"{len(failed)} of {len(jobs)} extractions failed ({', '.join(job.label for job, _ in failed)}), for the "
            "reasons above; the others are complete, and the same command goes on from here"
        )


def cli() -> None:
    """Console script ``cog-extract-features``."""
    cli_tools.run(main)
