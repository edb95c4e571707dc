"""Which of several processes, started together for the same work, this one is.

``torchrun`` and ``srun`` number the processes they start in environment variables; nothing else of them is needed. The
processes do not talk to each other: they see each other's work in the output folder, so that any number of them can
die, or never come, and the others end the work or say that it can go on.
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

#: Set to 0, every process works for itself, whoever has started it.
SWITCH = "COG_RANKS"


@dataclass(frozen=True)
class Rank:
    """One of several processes.

    Attributes:
        number: 0 .. ``size - 1``; 0 leads.
        size: number of processes.
        local: number on this machine.
        group: the same for all processes of a start.
        is_unique: whether no earlier start can have had the same ``group``.
        local_size: number of processes on this machine, as far as known.
        n_own_gpus: GPUs that each process sees when a scheduler shows it only its own; 0: all see the same.
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
        """Whether this one publishes the result."""
        return self.number == 0

    @property
    def label(self) -> str:
        """What the messages of this process begin with."""
        return "" if self.leads else f"rank {self.number}: "


def this_rank(environment: Mapping[str, str] | None = None) -> Rank:
    """Return which process this is, from the variables of torchrun or srun.

    A SLURM batch script has some variables of ``srun``, too, but is one process whatever it has been allocated: only a
    job step (``SLURM_STEP_ID`` is a number) of several tasks counts. ``SLURM_NTASKS`` may be missing there, and then
    ``SLURM_STEP_NUM_TASKS`` tells.

    Args:
        environment: default: this process's.

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
    """Return which process this is from the variables of torchrun, or of something that sets the same.

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
    # Without the last it is not torchrun, but something that may have bound its processes to GPUs.
    n_own = 0 if local_size else 1
    place = Rank(rank, size, local, group, run != "none", local_size or local + 1, n_own)
    return _checked(place, "RANK, WORLD_SIZE")


def _number(env: Mapping[str, str], *names: str) -> int | None:
    return next((int(env[name]) for name in names if env.get(name, "").isdecimal()), None)


def _tasks_of_node(text: str, node: int) -> int:
    """Return the number of tasks on a node from SLURM's list, such as ``4(x2),1``; 0 when it does not say."""
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        node -= int(times or 1)
        if node < 0:
            return int(tasks)
    return 0


def _checked(rank: Rank, source: str) -> Rank:
    if rank.number >= rank.size:
        raise CogError(
            f"{source}: process {rank.number} of {rank.size} cannot be; unset them, or {SWITCH}=0, to run one process"
        )
    return rank if rank.size > 1 else Rank()


def n_processors() -> int:
    """Return the number of processors that this process may use (macOS knows no affinity: of the machine)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def own_gpu(rank: Rank, n_gpus: int) -> int:
    """Return the index of this process's GPU among those it sees: one for each process of a machine.

    Raises:
        CogError: more processes than GPUs.
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
    """Labels what this process logs.

    While input is checked, all processes find the same faults: then only one process of each machine speaks (other
    machines may lack a file system), and only rank 0 of matters other than errors.

    Attributes:
        level: what is less important is not shown.
    """

    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self.level = logging.NOTSET if rank.leads else logging.CRITICAL + 1 if rank.local else logging.ERROR
        self._label = rank.label

    def speak(self) -> None:
        """Show everything from now on."""
        self.level = logging.NOTSET

    def filter(self, record: logging.LogRecord) -> bool:
        """Label a record, or hide it."""
        if record.levelno < self.level:
            return False
        if self._label and not str(record.msg).startswith(self._label):
            record.msg = self._label + str(record.msg)
        return True


def label_log(rank: Rank) -> RankLog:
    """Put a :class:`RankLog` into the package's log, for the rest of the process."""
    labelling = RankLog(rank)
    if rank.size > 1:
        for handler in logging.getLogger("cog").handlers:
            handler.addFilter(labelling)
    return labelling


@contextlib.contextmanager
def rank_zero_logging(rank: Rank) -> Iterator[None]:
    """Keep what others of this machine would say in the same words off standard error."""
    with contextlib.redirect_stderr(io.StringIO()) if rank.local else contextlib.nullcontext():
        yield
