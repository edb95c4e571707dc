"""Fine-tune a model on one data set: a control of what frozen features hold back (paper, supplement C.2, Fig. 6).

The network and a new linear classifier are trained together on all training images and tested after every epoch. The
paper gives no hyper-parameters; the recipe is FINETUNE in configs/default.py. Several GPUs: --n_processes, or torchrun.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import cli as cli_tools
from cog import config, interruption, names
from cog.commands import extract_features, image_flags
from cog.errors import CogError
from cog.finetune import parallel, recipe
from cog.finetune.parallel import Group, Place
from cog.identities import differences, plain
from cog.locks import Lock, locked
from cog.models.zoo import MODELS, get_spec
from cog.paths import ModelDir
from cog.resume_folder import SavedStates
from cog.run_folder import RESULTS_FILE, RunFolder
from cog.staging import require_writable, staged, tidy
from cog.unit_status import failures_noted

if TYPE_CHECKING:
    import torch
    from yacs.config import CfgNode

    from cog.data.image_lists import ImageList
    from cog.finetune.recipe import Recipe

logger = logging.getLogger(__name__)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse flags; touches no file."""
    parser = cli_tools.Parser(__doc__ or "", prog="finetune.py")
    what = parser.add_argument_group("what to train")
    what.add_argument(
        "--model", required=True, help="<model_title>_<architecture_name>, such as sup_resnet50"
    )
    what.add_argument(
        "--dataset",
        required=True,
        help=f"one of {', '.join(names.DATASETS)}, {names.IN1K_BLURRED}, or with --images_root a name of your own",
    )
    where = parser.add_argument_group("model and output: --models_root_dir, or --ckpt_file with --output_dir")
    where.add_argument(
        "--models_root_dir",
        help="reads <root>/<model_title>/<architecture_name>/model.ckpt, writes "
        "<dataset>/eval_finetune/seed-<seed>/ beside it",
    )
    where.add_argument("--ckpt_file", help="checkpoint to load instead")
    where.add_argument(
        "--strict_hash",
        action="store_true",
        help="stop when the checkpoint is not the published file, told by its SHA-256 (default: warn)",
    )
    where.add_argument("--output_dir", help="folder of the run to write to instead")
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
        help="go on without up to N images that cannot be decoded (default: 0; more end with exit code 3)",
    )
    run = parser.add_argument_group("run")
    run.add_argument("--device", help="cpu, cuda or cuda:<index> (default: cuda if there is one, else cpu)")
    run.add_argument(
        "--n_processes",
        type=cli_tools.whole_number(1),
        default=1,
        metavar="N",
        help="train in N processes on this machine, one per GPU (default: 1). Several machines: start with torchrun",
    )
    cli_tools.add_common(run)
    cli_tools.add_check(run)
    return parser.parse_args(argv)


@dataclass(frozen=True, eq=False)
class Plan:
    """A checked command line.

    Attributes:
        train: training images.
        test: test images.
        output: folder of the run.
        checkpoint: None: the custom loader does without.
        model_dir: the model's folder, if known.
        recipe: what to do.
        identity: what makes two runs the same.
    """

    train: ImageList
    test: ImageList
    output: Path
    checkpoint: Path | None
    model_dir: ModelDir | None
    recipe: Recipe
    identity: dict[str, Any]


def plan_run(args: argparse.Namespace, cfg: CfgNode, *, precision: str, n_processes: int) -> Plan:
    """Check everything that can be checked before a network is built.

    Args:
        args: flags.
        cfg: configuration.
        precision: what FINETUNE.PRECISION means on the device.
        n_processes: that will share the work.

    Raises:
        CogError: input that cannot be worked with.
    """
    checkpoint, model_dir = extract_features.resolve_paths(args)
    usual = config.default_cfg().CLF
    for key in ("N_SHOT", "MAX_PER_CLASS", "PCA_DIM", "TYPE"):
        if cfg.CLF[key] != usual[key]:
            raise CogError(
                f"CLF.{key} is for classifiers of features; fine-tuning trains a linear classifier with the network, "
                "on all training images; leave it out"
            )
    config.check_new_name(cfg, config.FINETUNE)
    if cfg.FT_EXTRACT.DECODE != "exact":
        raise CogError(
            f"FT_EXTRACT.DECODE {cfg.FT_EXTRACT.DECODE} is for extraction; fine-tuning decodes exactly, leave it out"
        )
    if args.model_loader is not None and cfg.FT_EXTRACT.VARIANT:
        raise CogError(
            f"FT_EXTRACT.VARIANT {cfg.FT_EXTRACT.VARIANT} is for declared models, not for one with --model_loader"
        )
    steps = recipe.from_config(cfg, precision=precision)
    steps.passes_per_process(n_processes)
    train, test = (image_flags.list_images(args, args.dataset, split) for split in names.SPLITS)
    if train.classes != test.classes:
        differing = sorted(set(train.classes) ^ set(test.classes))
        raise CogError(
            f"{args.dataset} has {len(train.classes)} classes for training and {len(test.classes)} for testing, which "
            f"differ in {', '.join(differing[:3])}; both need the same"
        )
    if len(train.classes) < 2:
        raise CogError(
            f"{args.dataset} has the single class {train.classes[0]}; a classifier needs two or more"
        )
    steps.steps_per_epoch(len(train))
    if args.output_dir is not None:
        output = Path(args.output_dir)
    else:
        assert model_dir is not None
        name = config.FINETUNE if cfg.EVAL.NAME == config.default_cfg().EVAL.NAME else cfg.EVAL.NAME
        output = model_dir.run(args.dataset, name=name, n_shot=0, seed=cfg.EVAL.SEED)
    model = extract_features.describe_model(args, checkpoint)
    identity = {
        "model": args.model,
        "checkpoint_sha256": model["checkpoint_sha256"],
        "loader_sha256": model["loader_sha256"],
        "profile": cfg.FT_EXTRACT.PROFILE,
        "variant": cfg.FT_EXTRACT.VARIANT,
        "dataset": args.dataset,
        "train_images_sha256": train.digest(),
        "test_images_sha256": test.digest(),
    } | steps.as_dict()
    return Plan(train, test, output, checkpoint, model_dir, steps, plain(identity))


def is_done(plan: Plan, *, overwrite: bool) -> bool:
    """Whether the run is there already.

    Raises:
        CogError: another run is there, without ``overwrite``.
    """
    if overwrite:
        return False
    folder = RunFolder(plan.output)
    found = folder.results()
    if found is None:
        if folder.existing():
            raise CogError(
                f"{plan.output} holds a run of another kind ({', '.join(folder.existing()[:3])}); add --overwrite to "
                "replace it"
            )
        return False
    changed = differences(found.get("identity") or {}, plan.identity)
    if changed:
        raise CogError(
            f"{plan.output} holds a different run ({'; '.join(changed[:6])}); add --overwrite to replace it"
        )
    return True


def choose_device(args: argparse.Namespace, where: Place) -> torch.device:
    """Return the device of this process: with several on a machine, the GPU of its number.

    Raises:
        CogError: no such device.
    """
    from cog.device import resolve_device

    device = resolve_device(args.device)
    if device.type == "cuda" and where.size > 1:
        if device.index is not None:
            raise CogError(
                f"--device {args.device} is one GPU, and there are {where.size} processes; give --device cuda"
            )
        import torch

        # A scheduler may show each process a GPU of its own.
        return resolve_device(f"cuda:{where.local_rank if torch.cuda.device_count() > 1 else 0}")
    return device


def _require_gpus(n_processes: int) -> None:
    import torch

    if torch.cuda.device_count() < n_processes:
        raise CogError(
            f"--n_processes {n_processes} takes a GPU each, and torch sees {torch.cuda.device_count()} here; lower it"
        )


def choose_precision(wanted: str, device: torch.device) -> str:
    """Return what ``FINETUNE.PRECISION`` means on a device."""
    import torch

    if wanted != "auto":
        return wanted
    if device.type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.get_device_capability(device)[0] >= 8 else "fp16"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script; returns its exit code."""
    args = parse_args(argv)
    if args.check:
        from cog.preflight import finetuning

        return finetuning.check(args)
    spec = MODELS.get(args.model) if args.model_loader else get_spec(args.model)
    cfg = config.get_cfg(model=spec, model_name=args.model, config_file=args.config, opts=args.opts)
    where = parallel.place()
    launching = where.size == 1 and args.n_processes > 1
    if where.rank or launching:  # process 0 speaks for all
        logging.getLogger("cog").setLevel(logging.ERROR)
    device = choose_device(args, where)
    precision = choose_precision(cfg.FINETUNE.PRECISION, device)
    try:
        plan = plan_run(
            args, cfg, precision=precision, n_processes=args.n_processes if launching else where.size
        )
    except CogError as error:
        if where.rank:
            return error.exit_code
        raise
    if launching:
        if device.type == "cuda":
            _require_gpus(args.n_processes)
        if is_done(plan, overwrite=args.overwrite):
            logging.getLogger("cog").setLevel(logging.INFO)
            logger.info("%s is complete, skipped", plan.output)
            return 0
        words = sys.argv[1:] if argv is None else argv
        return parallel.launch(parallel.command_line(words), args.n_processes)
    try:
        with (
            interruption.deferred(),
            parallel.joined(where, device) as group,
            contextlib.ExitStack() as stack,
        ):
            held: list[Lock] = []
            if group.agree(lambda: _begin(plan, stack, held, overwrite=args.overwrite)):
                _run(args, cfg, plan, group, held)
            else:
                logger.info("%s is complete, skipped", plan.output)
    except (interruption.Interrupted, parallel.SharedError, parallel.LostProcessError) as problem:
        if where.rank:
            return problem.exit_code
        raise
    return 0


def _begin(plan: Plan, stack: contextlib.ExitStack, held: list[Lock], *, overwrite: bool) -> bool:
    """Take the output folder (process 0); returns whether there is something to do."""
    require_writable(plan.output, flag="--output_dir")
    held.append(stack.enter_context(locked(plan.output, flag="--output_dir")))
    tidy(plan.output)
    resume = SavedStates(plan.output, plan.identity)
    if is_done(plan, overwrite=overwrite):
        resume.remove()  # of a process that died right after publication
        return False
    if overwrite:
        try:
            resume.check()
        except CogError:
            logger.info("discarded the beginning of a different run in %s", resume.path)
            resume.remove()
    resume.check()
    stack.enter_context(failures_noted(plan.output))
    return True


@contextlib.contextmanager
def _program_log(group: Group, folder: Path) -> Iterator[None]:
    from cog import record

    if group.rank:
        yield
        return
    with record.log_file(folder / "program.log"):
        yield


def _run(args: argparse.Namespace, cfg: CfgNode, plan: Plan, group: Group, held: list[Lock]) -> None:
    """Train, and write what came out (process 0, which holds the lock)."""
    import torch

    from cog import record
    from cog.data.loader import usable_workers
    from cog.finetune import network, output, state, training
    from cog.models.backbone import load_backbone

    resume = SavedStates(plan.output, plan.identity)
    device = group.device
    fx = cfg.FT_EXTRACT
    backbone = load_backbone(
        args.model,
        plan.checkpoint,
        device,
        args.model_loader,
        model_dir=plan.model_dir.path if plan.model_dir else None,
        profile=fx.PROFILE,
        variant=fx.VARIANT,
    )
    model, memory_format = network.build(
        backbone,
        n_classes=len(plan.train.classes),
        seed=plan.recipe.seed,
        crop=plan.recipe.crop,
        device=device,
    )
    saved = group.agree(lambda: str(resume.existing(state.STATE_FILE) or ""))
    if group.rank == 0:
        resume.file(state.STATE_FILE)  # the folder, for the log and the states
    with _program_log(group, resume.path):
        logger.info(
            "fine-tuning %s on %s: %d training and %d test images of %d classes, %d epochs of %d steps of %d images, "
            "learning rate %.4g, %s, %s, %d process(es)",
            args.model, args.dataset, len(plan.train), len(plan.test), len(plan.train.classes), plan.recipe.n_epochs,
            plan.recipe.steps_per_epoch(len(plan.train)), plan.recipe.batch_size, plan.recipe.lr,
            plan.recipe.precision, device, group.size,
        )  # fmt: skip
        if saved:
            logger.info("going on from %s", saved)
        if device.type == "cuda":
            torch.cuda.set_device(device)
            torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, False
        trained = training.train(
            model,
            plan.train,
            plan.test,
            plan.recipe,
            group,
            memory_format=memory_format,
            n_workers=usable_workers(fx.N_WORKERS),
            allow_failures=args.allow_failures,
            saving=training.Saving(resume.path / state.STATE_FILE, 60 * cfg.FINETUNE.SAVE_MINUTES),
            resume=Path(saved) if saved else None,
        )
    if group.rank:
        return
    with staged(plan.output, marker=RESULTS_FILE, flag="--output_dir") as stage:
        stage.replaces = RunFolder(plan.output).existing()
        log = resume.path / "program.log"
        if log.is_file():
            (stage.path / "program.log").write_bytes(log.read_bytes())
        output.write(
            stage.path,
            trained,
            model,
            plan.recipe,
            n_train=len(plan.train),
            identity=plan.identity,
            arguments={key: value for key, value in vars(args).items() if key != "opts"}
            | {"opts": args.opts},
            config_text=cfg.dump(),
            metadata={
                "model": args.model,
                "dataset": args.dataset,
                "configuration": config.flat(cfg),
                "precision": plan.recipe.precision,
                "n_processes": group.size,
                "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
                "versions": record.versions(("torch", "torchvision", "pillow", "numpy")),
                "finished": record.now(),
            },
        )
        for lock in held:
            lock.require_held()
    resume.remove()
    logs = trained.logs
    print(
        f"top-1: {logs['test/top1'][-1]:.2f}  top-5: {logs['test/top5'][-1]:.2f}  ({plan.output})", flush=True
    )


def cli() -> None:
    """Console script ``cog-finetune``."""
    from cog.finetune.parallel import leave, place

    try:
        cli_tools.run(main)
    except SystemExit as ended:
        if place().size > 1:
            leave(ended.code if isinstance(ended.code, int) else 1)
        raise


if __name__ == "__main__":
    cli()
