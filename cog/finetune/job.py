"""A fine-tuning run from the plan to the published folder, in one process or in several."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from cog import config
from cog.data.loader import usable_workers
from cog.errors import CogError
from cog.finetune import network, output, parallel, state, training
from cog.finetune.parallel import Group
from cog.finetune.plan import FineTunePlan, FineTuneRequest, make_plan
from cog.logreg.run_folder import RESULTS_FILE, RunFolder
from cog.runtime import provenance, signals
from cog.runtime.atomic_dir import recover, require_writable, staged
from cog.runtime.device import full_float32, require_precision, resolve_device
from cog.runtime.failure_note import failures_noted
from cog.runtime.locks import Lock, locked
from cog.runtime.ranks import Rank
from cog.runtime.resume_dir import SavedStates

logger = logging.getLogger(__name__)


def choose_device(name: str | None, rank: Rank) -> torch.device:
    """Return the device of this process: with several on a machine, the GPU of its number.

    Raises:
        CogError: no such device.
    """
    if rank.size > 1 and (name or "").startswith("cuda:"):
        raise CogError(f"--device {name} is one GPU, and there are {rank.size} processes; give --device cuda")
    return resolve_device(name, rank)


def choose_precision(wanted: str, device: torch.device) -> str:
    """Return what ``FINETUNE.PRECISION`` means on a device.

    Raises:
        CogError: bf16 on a GPU that does not have it.
    """
    require_precision(device, "FINETUNE.PRECISION", wanted)
    if wanted != "auto":
        return wanted
    if device.type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.get_device_capability(device)[0] >= 8 else "fp16"


def run(request: FineTuneRequest, *, command: Sequence[str]) -> int:
    """Plan and fine-tune; returns the exit code.

    Args:
        request: what is asked for.
        command: starts the same in another process, for ``--n_processes``.

    Raises:
        CogError: input that cannot be worked with, a failed run.
    """
    cfg = request.cfg
    rank = parallel.place()
    launching = rank.size == 1 and request.n_processes > 1
    if rank.number or launching:  # process 0 speaks for all
        logging.getLogger("cog").setLevel(logging.ERROR)
    device = choose_device(request.device, rank)
    precision = choose_precision(cfg.FINETUNE.PRECISION, device)
    n_processes = request.n_processes if launching else rank.size
    try:
        plan = make_plan(request, precision=precision, n_processes=n_processes)
    except CogError as error:
        if rank.number:
            return error.exit_code
        raise
    if launching:
        if device.type == "cuda" and torch.cuda.device_count() < n_processes:
            raise CogError(
                f"--n_processes {n_processes} takes a GPU each, and torch sees {torch.cuda.device_count()} here; lower "
                "it"
            )
        if plan.is_done():
            logging.getLogger("cog").setLevel(logging.INFO)
            logger.info("%s is complete, skipped", plan.output)
            return 0
        return parallel.launch(command, n_processes)
    try:
        with signals.deferred(), parallel.joined(rank, device) as group, contextlib.ExitStack() as stack:
            held: list[Lock] = []
            if group.agree(lambda: _begin(plan, stack, held)):
                _run(plan, group, held)
            else:
                logger.info("%s is complete, skipped", plan.output)
    except (signals.Interrupted, parallel.SharedError, parallel.LostProcessError) as problem:
        if rank.number:
            return problem.exit_code
        raise
    return 0


def _begin(plan: FineTunePlan, stack: contextlib.ExitStack, held: list[Lock]) -> bool:
    """Take the output folder (process 0); returns whether there is something to do."""
    require_writable(plan.output, flag="--output_dir")
    held.append(stack.enter_context(locked(plan.output, flag="--output_dir")))
    recover(plan.output)
    resume = SavedStates(plan.output, plan.identity)
    if plan.is_done():
        resume.remove()  # of a process that died right after publication
        return False
    if plan.request.overwrite:
        try:
            resume.check()
        except CogError:
            logger.info("discarded the beginning of a different run in %s", resume.path)
            resume.remove()
    resume.check()
    stack.enter_context(failures_noted(held[0]))
    return True


@contextlib.contextmanager
def _program_log(group: Group, folder: Path) -> Iterator[None]:
    with contextlib.nullcontext() if group.rank else provenance.log_file(folder / "program.log"):
        yield


def _run(plan: FineTunePlan, group: Group, held: list[Lock]) -> None:
    """Train, and write what came out (process 0, which holds the lock)."""
    request, recipe, device = plan.request, plan.recipe, group.device
    cfg, n_classes = request.cfg, len(plan.train.classes)
    resume = SavedStates(plan.output, plan.identity, held[0] if held else None)
    model, memory_format = network.build(
        request.model.load(device, cfg),
        n_classes=n_classes,
        seed=recipe.seed,
        crop=recipe.crop,
        device=device,
    )
    saved = group.agree(lambda: str(resume.existing(state.STATE_FILE) or ""))
    if group.rank == 0:
        resume.file(state.STATE_FILE)  # the folder, for the log and the states
    with _program_log(group, resume.path):
        logger.info(
            "fine-tuning %s on %s: %d training and %d test images of %d classes, %d epochs of %d steps of %d images, "
            "learning rate %.4g, %s, %s, %d process(es)",
            request.model.model, request.dataset, len(plan.train), len(plan.test), n_classes, recipe.n_epochs,
            recipe.steps_per_epoch(len(plan.train)), recipe.batch_size, recipe.lr, recipe.precision, device, group.size,
        )  # fmt: skip
        if saved:
            logger.info("going on from %s", saved)
        if device.type == "cuda":
            torch.cuda.set_device(device)
            torch.backends.cudnn.benchmark = True
        with full_float32():
            trained = training.train(
                model,
                plan.train,
                plan.test,
                recipe,
                group,
                memory_format=memory_format,
                n_workers=usable_workers(cfg.FT_EXTRACT.N_WORKERS),
                allow_failures=request.allow_failures,
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
            recipe,
            n_train=len(plan.train),
            identity=plan.identity,
            arguments=dict(request.arguments),
            config_text=cfg.dump(),
            metadata={
                "model": request.model.model,
                "dataset": request.dataset,
                "configuration": config.flat(cfg),
                "precision": recipe.precision,
                "n_processes": group.size,
                "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
                "versions": provenance.versions(("torch", "torchvision", "pillow", "numpy")),
                "finished": provenance.now(),
            },
        )
        for lock in held:
            lock.require_held()
    resume.remove()
    logs = trained.logs
    print(
        f"top-1: {logs['test/top1'][-1]:.2f}  top-5: {logs['test/top5'][-1]:.2f}  ({plan.output})", flush=True
    )
