"""Run a whole study, models by data sets: submit its missing tasks to SLURM, or run them on this machine.

FT_EXTRACT.* keys go to extract_features.py, other keys to logreg.py.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from cog import constants, paths
from cog.commands import image_flags, slurm_flags, study_flags, study_results
from cog.errors import CogError, some
from cog.runtime import cli as cli_tools
from cog.runtime import locks
from cog.study import local_workers, models, plan, slurm, submit, units

logger = logging.getLogger("cog")  # the same name when run with python -m

_EXTRACT_KEYS = "FT_EXTRACT."


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = cli_tools.Parser(__doc__ or "")
    study_flags.add(parser, shows=False)
    group = parser.add_argument_group("run")
    add = group.add_argument
    add("--log_dir", required=True, help="folder of logs, task lists and the table of results")
    add(
        "--limit",
        type=cli_tools.whole_number(2),
        metavar="N",
        help="try the study in seconds: the first N classes with N images of each per split, N trials, N epochs. "
        "Outputs lie in <models_root_dir>/limit-N/ and <log_dir>/limit-N/ and do not count as results",
    )
    add("--dry_run", action="store_true", help="show what would be run, and try each model on one image")
    study_flags.add_delete_features(group)
    add("--device", help="cpu, cuda or cuda:<index> (default: cuda if there is one, else cpu)")
    images = parser.add_argument_group("models and images, as for extract_features.py")
    images.add_argument(
        "--model_loader",
        type=cli_tools.python_target,
        metavar="FILE.py:FUNCTION",
        help="loader of a model of your own",
    )
    image_flags.add_models_file(images)
    image_flags.add_places(images)
    images.add_argument(
        "--allow_failures",
        type=cli_tools.whole_number(0),
        metavar="N",
        help="accepted undecodable images per split",
    )
    parser.add_argument_group("on this machine").add_argument(
        "--n_processes",
        type=cli_tools.whole_number(1),
        help="tasks at a time (default: one per GPU; 1 without)",
    )
    slurm_flags.add(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Submit or run the missing units, and return the exit code."""
    args = parse_args(argv)
    args.datasets = args.datasets or list(constants.DATASETS)
    commands, opts = _script_commands(args)
    log_dir = Path(os.path.abspath(args.log_dir))
    if args.limit:
        args.models_root_dir, log_dir = commands.results_root, log_dir / f"limit-{args.limit}"
    study = study_flags.select(args, args.opts, models_root=commands.root)
    left_out = study_flags.left_out(args, study)
    for dataset in study.datasets:
        paths.check_dataset_name(dataset)
    options = slurm_flags.options(args, log_dir)
    with contextlib.ExitStack() as stack:
        if not args.dry_run:
            stack.enter_context(locks.locked(log_dir, flag="--log_dir"))
        queued = slurm.queued_jobs(log_dir, study.root) if args.slurm else slurm.QueuedJobs()
        statuses = plan.with_queue(units.survey(study), queued)
        size = slurm.max_array_size() if args.slurm else None
        tasks = plan.make_plan(study, statuses, queued, commands, throttle=args.throttle, max_array_size=size)
        faulty = models.check_inputs(
            commands.root,
            tasks,
            image_flags.sources(args),
            model_loader=args.model_loader,
            models_file=args.models_file,
        )
        tasks = tasks.without(faulty)
        left_out |= faulty
        tasks.log(statuses)
        finish = (
            functools.partial(study_results.delete_features, study, log_dir) if args.delete_features else None
        )
        if args.slurm:
            last = submit.results_command(study, log_dir, opts, delete_features=args.delete_features)
            code = submit.submit(study, tasks, queued, options, last, dry_run=args.dry_run, finish=finish)
        else:
            code = local_workers.run_plan(
                tasks,
                log_dir,
                n_processes=args.n_processes,
                dry_run=args.dry_run,
                show_results=functools.partial(study_results.show, study, log_dir, opts),
                finish=finish,
            )
        if args.dry_run:
            code = code or models.try_models(tasks)
        if left_out:
            logger.error("left out, for the reasons above: %s", some(list(left_out)))
        return code or (CogError.exit_code if left_out else 0)


def _script_commands(args: argparse.Namespace) -> tuple[plan.ScriptCommands, list[str]]:
    """Return the command lines of the scripts, and the keys of the classifiers."""
    places = {**image_flags.sources(args).values, "models_file": args.models_file}
    extract = [f"--{flag}={os.path.abspath(value)}" for flag, value in places.items() if value]
    if args.model_loader is not None:
        file, _, function = args.model_loader.rpartition(":")
        extract.append(f"--model_loader={os.path.abspath(file)}:{function}")
    if args.allow_failures is not None:
        extract.append(f"--allow_failures={args.allow_failures}")
    both = [] if args.device is None else [f"--device={args.device}"]
    root = results_root = Path(os.path.abspath(args.models_root_dir))
    opts: list[str] = []
    if args.limit:
        extract.append(f"--limit={args.limit}")
        results_root = paths.with_limit(root, args.limit)
        opts = ["CLF.N_TRIALS", str(args.limit), "CLF.N_EPOCHS", str(args.limit)]
    for key, value in zip(args.opts[::2], args.opts[1::2], strict=True):
        (extract if key.startswith(_EXTRACT_KEYS) else opts).extend((key, value))
    return plan.ScriptCommands(root, results_root, (*both, *extract), (*both, *opts)), opts


cli = functools.partial(cli_tools.run, main, continues=True)

if __name__ == "__main__":
    cli()
