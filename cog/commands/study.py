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
from collections.abc import Mapping, Sequence
from pathlib import Path

from cog import constants, paths
from cog.commands import image_flags, study_flags, study_results
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
    group = parser.add_argument_group("run")
    add = group.add_argument
    add(
        "--log_dir",
        help="folder of logs, the list of tasks and the tables (default: <models_root_dir>/study-logs)",
    )
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
    add = parser.add_argument_group("SLURM").add_argument
    add("--slurm", action="store_true", help="submit to SLURM")
    add("--gpus", type=cli_tools.whole_number(0), default=1, help="GPUs per task (default: 1)")
    add(
        "--throttle",
        type=cli_tools.whole_number(1),
        help="largest number of tasks of a job array at the same time",
    )
    sbatch = "arguments of sbatch for all jobs, such as '--partition=gpu --cpus-per-task=8'"
    add("--sbatch_args", type=_words, default=[], help=sbatch)
    for stage in (tasks.EXTRACT, tasks.LOGREG):
        more = f"further ones for the {stage} tasks, such as --time=12:00:00"
        add(f"--{stage}_sbatch_args", type=_words, default=[], help=more)
    return parser.parse_args(argv)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Submit or run the missing tasks, and return the exit code."""
    args = parse_args(argv)
    args.datasets = args.datasets or list(constants.DATASETS)
    root = Path(os.path.abspath(args.models_root_dir))
    limit = f"limit-{args.limit}" if args.limit else ""
    args.models_root_dir = root / limit
    log_dir = Path(os.path.abspath(args.log_dir)) / limit if args.log_dir else root / limit / LOG_FOLDER
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
    with contextlib.nullcontext() if args.dry_run else tasks.one_at_a_time(log_dir):
        listed = tasks.list_tasks(study, log_dir, append=not args.dry_run)
        todo = tasks.open_tasks(study, listed, statuses)
        todo = {number: task for number, task in todo.items() if task.model not in faulty}
        tasks.log_counts(todo.values(), statuses)
        if args.dry_run:
            for number, task in todo.items():
                print(f"# {number}: {task}\n{shlex.join(commands.of_task(task))}")
        if args.slurm and todo:
            last = study_results.command(study, log_dir, opts, delete_features=args.delete_features)
            slurm.submit(todo, listed, commands, last, _slurm_options(args), log_dir, dry_run=args.dry_run)
    code = 0
    if args.dry_run:
        code = models.try_models(todo.values(), commands)
    elif not args.slurm:
        code = _run_here(study, todo, commands, log_dir, args.n_processes)
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


def _slurm_options(args: argparse.Namespace) -> slurm.SlurmOptions:
    gpus = [f"--gres=gpu:{args.gpus}"] if args.gpus else []
    flags = {
        tasks.EXTRACT: [*gpus, *args.sbatch_args, *args.extract_sbatch_args],
        tasks.LOGREG: [*gpus, *args.sbatch_args, *args.logreg_sbatch_args],
        slurm.RESULTS: args.sbatch_args,
    }
    return slurm.SlurmOptions(flags, args.throttle)


def _run_here(
    study: Study,
    todo: Mapping[int, tasks.Task],
    commands: tasks.Commands,
    log_dir: Path,
    n_processes: int | None,
) -> int:
    """Run tasks on this machine, and return the exit code, which comes from the outputs."""
    gpus = local.find_gpus()
    runner = local.Runner(todo, commands, log_dir, n_processes=n_processes or max(1, len(gpus)), gpus=gpus)
    code = runner.run()
    n_failed = sum(code != 0 for code in runner.codes.values())
    if runner.received is not None:
        state = f"{len(runner.codes) - n_failed} of {len(todo)} tasks are done; the same command continues"
        logger.error("ended by %s: %s", runner.received.name, state)
    elif tasks.is_done(study, todo.values(), units.survey(study)):
        return 0  # another process may have made what a task here could not
    elif n_failed:
        repeats = "for the reasons above; the same command repeats only these"
        logger.error("%d of %d tasks failed, %s", n_failed, len(todo), repeats)
    return code


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
