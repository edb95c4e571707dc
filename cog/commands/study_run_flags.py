"""Flags that say how a study is run."""

from __future__ import annotations

import argparse
import shlex

from cog.commands import image_flags, study_flags
from cog.runtime import cli as cli_tools
from cog.study import slurm, tasks


def add(parser: cli_tools.Parser) -> None:
    """Add the flags that say how a study is run, with which images and models."""
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


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def slurm_options(args: argparse.Namespace) -> slurm.SlurmOptions:
    """Return the options of all jobs of a study."""
    gpus = [f"--gres=gpu:{args.gpus}"] if args.gpus else []
    flags = {
        tasks.EXTRACT: [*gpus, *args.sbatch_args, *args.extract_sbatch_args],
        tasks.LOGREG: [*gpus, *args.sbatch_args, *args.logreg_sbatch_args],
        slurm.RESULTS: args.sbatch_args,
    }
    return slurm.SlurmOptions(flags, args.throttle)
