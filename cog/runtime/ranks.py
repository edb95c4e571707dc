"""Rank of this process among several processes that were started together for the same work.

``torchrun`` and ``srun`` number the processes that they start in environment variables; only these variables are used.
The processes do not communicate: they see each other's work in the output folder. Any number of them can die, or never
start, and the others finish the work or report that it can be continued.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cog.errors import CogError

#: Environment variable; with the value 0, every process works alone, however it was started.
SWITCH = "COG_RANKS"


@dataclass(frozen=True)
class Rank:
    """One of several processes.

    Attributes:
        number: 0 .. ``size - 1``; 0 leads.
        size: number of processes.
        local: number of the process on this machine.
        group: text that is the same for all processes of a start.
        is_unique: whether no earlier start can have had the same ``group``.
        local_size: number of processes on this machine, as far as that is known.
        n_own_gpus: number of GPUs visible to a process when a scheduler hides those of the others; 0: all see the same.
    """

    number: int = 0
    size: int = 1
    local: int = 0
    group: str = ""
    is_unique: bool = True
    local_size: int = 1
    n_own_gpus: int = 0

    @property
    def leads(self) -> bool:
        """Whether this process publishes the result."""
        return self.number == 0

    @property
    def label(self) -> str:
        """Beginning of the messages of this process."""
        return "" if self.leads else f"rank {self.number}: "


def this_rank(environment: Mapping[str, str] | None = None) -> Rank:
    """Return the rank of this process from the variables of torchrun or srun.

    A SLURM batch script has some variables of ``srun``, too, but is one process regardless of its allocation: only a
    job step (``SLURM_STEP_ID`` is a number) of several tasks counts. ``SLURM_NTASKS`` may be missing there, in contrast
    to ``SLURM_STEP_NUM_TASKS``.

    Args:
        environment: environment variables; None: those of this process.

    Raises:
        CogError: when the variables contradict each other.
    """
    env = os.environ if environment is None else environment

    if env.get(SWITCH) == "0":
        return Rank()
    place = of_torchrun(env)
    if place is not None:
        return place
    number = functools.partial(_number, env)
    rank, size = number("SLURM_PROCID"), number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    step = number("SLURM_STEP_ID", "SLURM_STEPID")
    if rank is not None and size is not None and size > 1 and step is not None:
        group = f"srun {env.get('SLURM_JOB_ID', '')}.{step} {env.get('SLURM_RESTART_COUNT', '0')}"
        local, n_own = number("SLURM_LOCALID") or 0, number("SLURM_GPUS_PER_TASK") or 1
        tasks = env.get("SLURM_STEP_TASKS_PER_NODE", env.get("SLURM_TASKS_PER_NODE", ""))
        local_size = max(_tasks_of_node(tasks, number("SLURM_NODEID") or 0), local + 1)
        place = Rank(rank, size, local, group, local_size=local_size, n_own_gpus=n_own)
        return _checked(place, "SLURM_PROCID, SLURM_STEP_NUM_TASKS")
    return Rank()


def of_torchrun(env: Mapping[str, str]) -> Rank | None:
    """Return the rank of this process from the variables of torchrun, or of a launcher that sets the same; else None.

    Raises:
        CogError: when the variables contradict each other.
    """
    number = functools.partial(_number, env)
    rank, size = number("RANK"), number("WORLD_SIZE")
    if rank is None or size is None:
        return None
    run = env.get("TORCHELASTIC_RUN_ID", "none")
    group = (
        f"torchrun {run} {env.get('TORCHELASTIC_RESTART_COUNT', '0')} "
        f"{env.get('MASTER_ADDR', '')}:{env.get('MASTER_PORT', '')}"
    )
    local, local_size = number("LOCAL_RANK", "RANK") or 0, number("LOCAL_WORLD_SIZE")
    # Without LOCAL_WORLD_SIZE the launcher is not torchrun, and may have bound its processes to GPUs.
    n_own = 0 if local_size else 1
    place = Rank(rank, size, local, group, run != "none", local_size or local + 1, n_own)
    return _checked(place, "RANK, WORLD_SIZE")


def _number(env: Mapping[str, str], *names: str) -> int | None:
    return next((int(env[name]) for name in names if env.get(name, "").isdecimal()), None)


def _tasks_of_node(text: str, node: int) -> int:
    """Return the number of tasks on a node from SLURM's list, such as ``4(x2),1``; 0 when the list is too short."""
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        node -= int(times or 1)
        if node < 0:
            return int(tasks)
    return 0


def _checked(rank: Rank, source: str) -> Rank:
    if rank.number >= rank.size:
        raise CogError(
            f"{source}: process {rank.number} of {rank.size} does not exist; unset these variables, or {SWITCH}=0, to "
            "run one process"
        )
    return rank if rank.size > 1 else Rank()


def n_processors() -> int:
    """Return the number of processors that this process may use (all of the machine on macOS, without affinity)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def own_gpu(rank: Rank, n_gpus: int) -> int:
    """Return the index of the GPU of this process among the visible ones; each process of a machine has its own.

    Raises:
        CogError: when there are more processes than GPUs.
    """
    if rank.size == 1 or rank.n_own_gpus == n_gpus:
        return 0
    if rank.local_size > n_gpus:
        raise CogError(
            f"{rank.local_size} processes on this machine, and torch sees {n_gpus} GPU{'s' * (n_gpus > 1)}: start one "
            "process per GPU, or give --device"
        )
    return rank.local


class RankLog(logging.Filter):
    """Log filter that labels the messages of this process.

    While input is checked, all processes find the same faults. Until :meth:`speak` is called, only one process of each
    machine therefore shows errors (other machines may lack a file system), and only rank 0 shows other messages.

    Attributes:
        level: lowest level of the messages that are shown.
    """

    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self.level = logging.NOTSET if rank.leads else logging.CRITICAL + 1 if rank.local else logging.ERROR
        self._label = rank.label

    def speak(self) -> None:
        """Show the messages of all levels from now on."""
        self.level = logging.NOTSET

    def filter(self, record: logging.LogRecord) -> bool:
        """Label a record and return whether it is shown."""
        if record.levelno < self.level:
            return False
        if self._label and not str(record.msg).startswith(self._label):
            record.msg = self._label + str(record.msg)
        return True


def label_log(rank: Rank) -> RankLog:
    """Add a :class:`RankLog` to the log of the package for the rest of the process, and return it."""
    labelling = RankLog(rank)
    if rank.size > 1:
        for handler in logging.getLogger("cog").handlers:
            handler.addFilter(labelling)
    return labelling


@contextlib.contextmanager
def rank_zero_logging(rank: Rank) -> Iterator[None]:
    """Discard standard error in the block, except in the first process of each machine: all write the same messages."""
    with contextlib.redirect_stderr(io.StringIO()) if rank.local else contextlib.nullcontext():
        yield
