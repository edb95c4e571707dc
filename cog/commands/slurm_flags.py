"""Flags of a study on SLURM."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from cog.errors import CogError
from cog.runtime import cli as cli_tools
from cog.study import slurm
from cog.study.plan import EXTRACT, REPOSITORY, RESULTS, STAGES
from cog.study.slurm import SlurmOptions

_OF_ALL_JOBS = ("partition", "account", "qos", "constraint")

#: Flags that are passed on to sbatch without change.
_PASSED_ON = {
    "partition": "partition of all jobs",
    "account": "account of all jobs",
    "qos": "quality of service of all jobs",
    "constraint": "features of the nodes of all jobs, such as h100",
    "mem": "memory per task, such as 64G; MB without a unit",
    "extract_time": "time limit of an extraction task, such as 12:00:00; minutes without a colon",
    "logreg_time": "time limit of a classifier task, likewise",
}


def words(text: str) -> list[str]:
    """Return the arguments in a flag's value; this is the type of flags for further arguments."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def add(parser: cli_tools.Parser) -> None:
    """Add the flags to the parser."""
    group = parser.add_argument_group("SLURM")
    add = group.add_argument
    add("--slurm", action="store_true", help="submit to SLURM")
    for flag, text in _PASSED_ON.items():
        add(f"--{flag}", help=f"{text} (default: SLURM's)")
    from_0, from_1 = cli_tools.whole_number(0), cli_tools.whole_number(1)
    add("--gpus", type=from_0, default=1, help="GPUs per process (default: 1)")
    add("--cpus", type=from_1, help="processors per process (default: SLURM's)")
    add(
        "--ranks_per_task",
        type=from_1,
        default=1,
        help="processes that share an extraction task (default: 1)",
    )
    add(
        "--throttle",
        type=from_1,
        help="largest number of tasks of a kind that run at the same time (default: any)",
    )
    add("--requeue", choices=("yes", "no"), default="yes",
        help="whether an interrupted task is queued again (default: yes)")  # fmt: skip
    add(
        "--max_requeues",
        type=from_1,
        default=100,
        metavar="N",
        help="how often a task is queued again at most (default: 100)",
    )
    add("--signal_seconds", type=from_0, default=120,
        help="seconds before the time limit at which tasks get the signal to save (default: 120)")  # fmt: skip
    add(
        "--max_array_size",
        type=from_1,
        help="limit of the number of tasks in a job array (default: SLURM's MaxArraySize)",
    )
    for flag in ("sbatch_args", "extract_sbatch_args", "logreg_sbatch_args", "results_sbatch_args"):
        add(f"--{flag}", type=words, default=[], help="further arguments of sbatch")


def options(args: argparse.Namespace, log_dir: Path) -> SlurmOptions:
    """Return the options that all jobs of a study share.

    Raises:
        CogError: there is no checkout, which has the script of the tasks; or a flag needs ``--slurm``.
    """
    task_script = REPOSITORY / "bash-scripts" / "slurm" / "task.sh"
    if not task_script.is_file():
        raise CogError(
            f"{task_script} does not exist; run studies from a checkout of the repository, see README.md"
        )
    if args.ranks_per_task > 1 and not args.slurm:
        raise CogError(
            "--ranks_per_task is for SLURM; on one machine several tasks run at a time (--n_processes)"
        )
    return SlurmOptions(
        log_dir=log_dir,
        task_script=task_script,
        flags={kind: _sbatch_flags(args, kind) for kind in STAGES},
        max_requeues=args.max_requeues if args.requeue == "yes" else 0,
        signal_seconds=args.signal_seconds,
    )


def _sbatch_flags(args: argparse.Namespace, kind: str) -> list[str]:
    """Return the arguments of ``sbatch`` for the jobs of a kind; the job that makes the table gets no resources."""
    flags = {flag: getattr(args, flag) for flag in _OF_ALL_JOBS}
    if kind != RESULTS:
        shares = kind == EXTRACT and args.ranks_per_task > 1
        flags |= {
            "ntasks": args.ranks_per_task if shares else None,
            "gpus-per-task": (args.gpus or None) if shares else None,
            "gres": f"gpu:{args.gpus}" if args.gpus and not shares else None,
            "cpus-per-task": args.cpus,
            "mem": args.mem,
            "time": getattr(args, f"{kind}_time"),
        }
    given = [f"--{flag}={value}" for flag, value in flags.items() if value is not None]
    return [*given, *args.sbatch_args, *getattr(args, f"{kind}_sbatch_args")]


def launcher(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the command that starts the processes of an extraction task."""
    if args.ranks_per_task == 1:
        return ()
    # Since SLURM 22.05, srun does not inherit the number of processors per task from the job.
    return ("srun", *([f"--cpus-per-task={args.cpus}"] if args.cpus else []))


def max_array_size(args: argparse.Namespace) -> int:
    """Return the largest number of tasks of an array."""
    if args.max_array_size is not None:
        return int(args.max_array_size)
    return slurm.max_array_size() if args.slurm else sys.maxsize
