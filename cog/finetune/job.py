"""A fine-tuning run from the plan to the published folder, in one process or in several."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

import torch

from cog.data.loader import usable_workers
from cog.errors import CogError
from cog.finetune import network, output, parallel, training
from cog.finetune.parallel import Group
from cog.finetune.plan import FineTunePlan, FineTuneRequest, make_plan
from cog.logreg.run_folder import print_accuracies
from cog.runtime import provenance, signals
from cog.runtime.device import full_float32, require_precision, resolve_device
from cog.runtime.output_folder import FolderClaim
from cog.runtime.ranks import Rank

logger = logging.getLogger(__name__)


def choose_device(name: str | None, rank: Rank) -> torch.device:
    """Return the device of this process; each of several processes on a machine has a GPU of its own.

    Raises:
        CogError: no such device.
    """
    if rank.size > 1 and (name or "").startswith("cuda:"):
        raise CogError(f"--device {name} is one GPU, and there are {rank.size} processes; give --device cuda")
    return resolve_device(name, rank)


def choose_precision(wanted: str, device: torch.device) -> str:
    """Return the arithmetic that ``FINETUNE.PRECISION`` stands for on a device.

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
    """Plan and do a fine-tuning run, and return the exit code.

    Args:
        request: the values of the flags.
        command: command that starts the same run in another process, for ``--n_processes``.

    Raises:
        CogError: unusable input, a failed run.
    """
    rank = parallel.place()
    n_processes = rank.size if rank.size > 1 else request.n_processes
    launching = n_processes > rank.size
    log = logging.getLogger("cog")
    if rank.number or launching:  # process 0 logs for all
        log.setLevel(logging.ERROR)
    device = choose_device(request.device, rank)
    precision = choose_precision(request.cfg.FINETUNE.PRECISION, device)
    try:
        plan = make_plan(request, precision=precision, n_processes=n_processes)
    except CogError as error:
        if rank.number:
            return error.exit_code
        raise
    if launching:
        n_gpus = torch.cuda.device_count() if device.type == "cuda" else n_processes
        if n_gpus < n_processes:
            raise CogError(
                f"--n_processes {n_processes} takes a GPU each, and torch sees {n_gpus} here; lower it"
            )
        log.setLevel(logging.INFO)
        if plan.folder.is_done():
            return 0
        log.setLevel(logging.ERROR)
        return parallel.launch(command, n_processes)
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
            torch.cuda.set_device(device)
            torch.backends.cudnn.benchmark = True
        with full_float32():
            trained = training.train(
                model,
                plan.train,
                plan.test,
                recipe,
                group,
                n_workers=usable_workers(request.cfg.FT_EXTRACT.N_WORKERS),
                allow_failures=request.allow_failures,
                resume=resume,
                save_seconds=60 * request.cfg.FINETUNE.SAVE_MINUTES,
            )
    if group.rank == 0:
        with held[0].publish() as stage:
            final = output.write(stage, trained, model, plan, group)
        print_accuracies(final, plan.folder.path)
