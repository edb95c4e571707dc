"""Run a whole study, models by data sets: submit its missing tasks to SLURM, or run them on this machine.

FT_EXTRACT.* keys go to extract_features.py, other keys to logreg.py.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from cog import constants, paths
from cog.commands import image_flags, study_flags, study_results, study_run_flags
from cog.errors import CogError, some
from cog.runtime import cli as cli_tools
from cog.runtime import signals
from cog.study import local, models, slurm, tasks, units
from cog.study.units import Study

logger = logging.getLogger("cog")  # the same name when run with python -m

_EXTRACT_KEYS = "FT_EXTRACT."

#: Exit codes of a study that a signal has ended.
_INTERRUPTED = (signals.EXIT_CODE, 130)

#: Log folder under the models root, unless ``--log_dir`` names another one.
LOG_FOLDER = "study-logs"


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = cli_tools.Parser(__doc__ or "")
    study_flags.add(parser, shows=False)
    study_run_flags.add(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Submit or run the missing tasks, and return the exit code."""
    args = parse_args(argv)
    args.datasets = args.datasets or list(constants.DATASETS)
    root = Path(os.path.abspath(args.models_root_dir))
    args.models_root_dir = paths.with_limit(root, args.limit) if args.limit else root
    log_dir = Path(os.path.abspath(args.log_dir or args.models_root_dir / LOG_FOLDER))
    if args.log_dir and args.limit:
        log_dir = paths.with_limit(log_dir, args.limit)
    extract_flags, logreg_flags, opts = _script_flags(args)
    study = study_flags.select(args, args.opts, models_root=root)
    for dataset in study.datasets:
        paths.check_dataset_name(dataset)
    commands = tasks.Commands.of_scripts(study, root, extract_flags, logreg_flags)
    statuses = units.survey(study)
    wanted = tasks.open_tasks(study, tasks.list_tasks(study, log_dir, append=False), statuses)
    faulty = models.check_inputs(
        root,
        wanted.values(),
        image_flags.sources(args),
        model_loader=args.model_loader,
        models_file=args.models_file,
    )
    usable = {task for task in wanted.values() if task.model not in faulty}
    with contextlib.nullcontext() if args.dry_run else tasks.one_at_a_time(log_dir):
        listed = tasks.list_tasks(study, log_dir, append=not args.dry_run)
        todo = {number: task for number, task in listed.items() if task in usable}
        tasks.log_counts(todo.values(), statuses)
        if args.dry_run:
            for number, task in todo.items():
                print(f"# {number}: {task}\n{shlex.join(commands.of_task(task))}")
        if args.slurm and todo:
            last = study_results.command(study, log_dir, opts, delete_features=args.delete_features)
            slurm.submit(
                todo,
                listed,
                commands,
                last,
                study_run_flags.slurm_options(args),
                log_dir,
                dry_run=args.dry_run,
            )
    code = 0
    if args.dry_run:
        code = models.try_models(todo.values(), commands)
    elif not args.slurm:
        code = local.run_here(study, todo, commands, log_dir, args.n_processes)
    if not (args.dry_run or code in _INTERRUPTED or (args.slurm and slurm.queued_tasks(log_dir))):
        code = _finish(study, log_dir, opts, code, delete_features=args.delete_features)
    if left_out := [*study_flags.left_out(args, study), *faulty]:
        logger.error("left out, for the reasons above: %s", some(left_out))
    return code or (CogError.exit_code if left_out else 0)


def _script_flags(args: argparse.Namespace) -> tuple[list[str], list[str], list[str]]:
    """Return the flags of the two scripts, and the keys of the classifiers."""
    places = {**image_flags.sources(args).values, "models_file": args.models_file}
    extract = [f"--{flag}={os.path.abspath(value)}" for flag, value in places.items() if value]
    if args.model_loader is not None:
        file, _, function = args.model_loader.rpartition(":")
        extract.append(f"--model_loader={os.path.abspath(file)}:{function}")
    if args.allow_failures is not None:
        extract.append(f"--allow_failures={args.allow_failures}")
    both = [] if args.device is None else [f"--device={args.device}"]
    opts: list[str] = []
    if args.limit:
        extract.append(f"--limit={args.limit}")
        opts = ["CLF.N_TRIALS", str(args.limit), "CLF.N_EPOCHS", str(args.limit)]
    for key, value in zip(args.opts[::2], args.opts[1::2], strict=True):
        (extract if key.startswith(_EXTRACT_KEYS) else opts).extend((key, value))
    return [*both, *extract], [*both, *opts], opts


def _finish(study: Study, log_dir: Path, opts: Sequence[str], code: int, *, delete_features: bool) -> int:
    """Write and show the results, delete features if wanted, and return the exit code."""
    try:
        study_results.show(study, log_dir, opts)
    except CogError as error:
        if not code:
            raise
        logger.error("%s", error)
    if delete_features:
        study_results.delete_features(study, log_dir)
    return code


cli = functools.partial(cli_tools.run, main, continues=True)

if __name__ == "__main__":
    cli()
