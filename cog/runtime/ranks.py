"""Number of this process among several that ``torchrun`` or ``srun`` started."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from cog.errors import CogError


@dataclass(frozen=True)
class Rank:
    """One of several processes.

    Attributes:
        number: 0 .. ``size - 1``.
        size: number of processes.
        local: number of the process on this machine.
        local_size: number of processes on this machine, as far as that is known.
    """

    number: int = 0
    size: int = 1
    local: int = 0
    local_size: int = 1


def this_rank(environment: Mapping[str, str] | None = None) -> Rank:
    """Return the rank of this process from variables of torchrun or srun; with ``COG_RANKS=0``: alone.

    A SLURM batch script has some variables of ``srun``, too, but is one process regardless of its allocation:
    only a job step (``SLURM_STEP_ID`` is a number) of several tasks counts.

    Raises:
        CogError: the variables contradict each other.
    """
    env = os.environ if environment is None else environment

    def number(*names: str) -> int | None:
        return next((int(env[name]) for name in names if env.get(name, "").isdecimal()), None)

    rank, size = number("RANK"), number("WORLD_SIZE")
    local, local_size = number("LOCAL_RANK", "RANK") or 0, number("LOCAL_WORLD_SIZE") or 1
    if rank is None or size is None:
        step = number("SLURM_STEP_ID", "SLURM_STEPID")
        rank, size = (
            number("SLURM_PROCID"),
            number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if step is not None else 1,
        )
        local = number("SLURM_LOCALID") or 0
        counts = re.findall(
            r"(\d+)(?:\(x(\d+)\))?", env.get("SLURM_STEP_TASKS_PER_NODE", "")
        )  # such as 4(x2),1
        tasks = [int(n) for n, times in counts for _ in range(int(times or 1))]
        local_size = (tasks[number("SLURM_NODEID") or 0 :] or [1])[0]
    if env.get("COG_RANKS") == "0" or rank is None or size is None or size == 1:
        return Rank()
    if rank >= size:
        raise CogError(
            f"process {rank} of {size} does not exist; unset RANK and SLURM_PROCID, or COG_RANKS=0 for one"
        )
    return Rank(rank, size, local, max(local_size, local + 1))
