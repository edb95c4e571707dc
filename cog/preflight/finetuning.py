"""``finetune.py --check``."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from cog import config
from cog.commands import finetune as command
from cog.finetune import parallel
from cog.models.formats.detect import checkpoint_files
from cog.models.zoo import MODELS, get_spec
from cog.preflight import images, machine
from cog.preflight.report import Report
from cog.staging import leftovers

if TYPE_CHECKING:
    from cog.commands.finetune import Plan

_SHOWN = 3

#: Of a checkpoint's size: the state of the training (weights and momentum, the old one and the new one side by side).
_STATE_FACTOR = 4

#: Memory of a process beside weights, gradients and momentum, on a CPU: activations of a pass, decoded images.
_PER_IMAGE = 100 << 20


def check(args: argparse.Namespace) -> int:
    """Look at everything that the run needs, print a summary, and return the exit code.

    Args:
        args: flags of ``finetune.py``.
    """
    report = Report()
    plan: Plan | None = None
    with report.step("device"):
        machine.check_device(report, args.device)
    with report.step("input"):
        spec = MODELS.get(args.model) if args.model_loader else get_spec(args.model)
        cfg = config.get_cfg(model=spec, model_name=args.model, config_file=args.config, opts=args.opts)
        wanted = cfg.FINETUNE.PRECISION
        plan = command.plan_run(
            args,
            cfg,
            precision="fp32" if wanted == "auto" else wanted,
            n_processes=max(args.n_processes, parallel.place().size),
        )
    if plan is None:
        return report.finish()
    recipe = plan.recipe
    report.ok(
        "input",
        f"{len(plan.train)} training and {len(plan.test)} test images of {len(plan.train.classes)} classes; "
        f"{recipe.n_epochs} epochs of {recipe.steps_per_epoch(len(plan.train))} steps of {recipe.batch_size} images",
    )
    for split in (plan.train, plan.test):
        with report.step("images"):
            absent = images.missing(split)
            if absent:
                report.problem(
                    "images",
                    f"{len(absent)} of {len(split)} {split.split} images are not below {split.root}: "
                    f"{', '.join(absent[:_SHOWN])}",
                )
            else:
                report.ok("images", f"all {len(split)} {split.split} images are there")
    with report.step("output"):
        if machine.check_writable(report, plan.output) and machine.check_state(report, plan.output):
            if leftovers(plan.output):
                report.warn("output", f"{plan.output} holds what a killed process left; it will be tidied up")
            done = command.is_done(plan, overwrite=args.overwrite)
            report.ok("output", f"{plan.output}{' is complete: nothing to do' if done else ''}")
    weights = sum(map(os.path.getsize, checkpoint_files(plan.checkpoint))) if plan.checkpoint else 0
    with report.step("disk"):
        machine.check_disk(report, [(plan.output, _STATE_FACTOR * weights + (1 << 20))])
    if args.device == "cpu":
        with report.step("memory"):
            area = (recipe.crop / 224) ** 2
            needed = args.n_processes * (4 * weights + recipe.per_pass * area * _PER_IMAGE)
            machine.check_memory(
                report, needed, f"{args.n_processes} process(es), passes of {recipe.per_pass} images"
            )
    return report.finish()
