"""Flags of a study on SLURM."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from cog.errors import CogError
from cog.runtime import cli as cli_tools
from cog.study.plan import REPOSITORY, RESULTS, STAGES
from cog.study.slurm import SlurmOptions


def words(text: str) -> list[str]:
    """Return the arguments in a flag's value; this is the type of flags for further arguments."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def add(parser: cli_tools.Parser) -> None:
    """Add the flags to the parser."""
    add = parser.add_argument_group("SLURM").add_argument
    add("--slurm", action="store_true", help="submit to SLURM")
    add("--gpus", type=cli_tools.whole_number(0), default=1, help="GPUs per task (default: 1)")
    add(
        "--throttle",
        type=cli_tools.whole_number(1),
        help="largest number of tasks of a kind that run at the same time (default: any)",
    )
    add(
        "--sbatch_args",
        type=words,
        default=[],
        help="arguments of sbatch for all jobs, such as '--partition=gpu --cpus-per-task=8'",
    )
    for kind in ("extract", "logreg"):
        add(
            f"--{kind}_sbatch_args",
            type=words,
            default=[],
            help=f"further arguments of sbatch for the {kind} tasks, such as --time=12:00:00",
        )


def options(args: argparse.Namespace, log_dir: Path) -> SlurmOptions:
    """Return the options that all jobs of a study share.

    Raises:
        CogError: there is no checkout, which has the script of the tasks.
    """
    task_script = REPOSITORY / "bash-scripts" / "slurm" / "task.sh"
    if not task_script.is_file():
        raise CogError(
            f"{task_script} does not exist; run studies from a checkout of the repository, see README.md"
        )
    return SlurmOptions(log_dir, task_script, {kind: _sbatch_flags(args, kind) for kind in STAGES})


def _sbatch_flags(args: argparse.Namespace, kind: str) -> list[str]:
    """Return the arguments of ``sbatch`` for the jobs of a kind; the job that makes the table gets no GPU."""
    if kind == RESULTS:
        return list(args.sbatch_args)
    gpus = [f"--gres=gpu:{args.gpus}"] if args.gpus else []
    return [*gpus, *args.sbatch_args, *getattr(args, f"{kind}_sbatch_args")]
