"""Number of this process among several that ``torchrun`` or ``srun`` started."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from cog.errors import CogError


class Rank(NamedTuple):
    """Process ``number`` of ``size``, and its number and that of the processes on this machine."""

    number: int = 0
    size: int = 1
    local: int = 0
    local_size: int = 1


def this_rank() -> Rank:
    """Return the rank of this process from the environment; with ``COG_RANKS=0``: alone.

    A SLURM batch script has some variables of ``srun``, too, but is one process regardless of its allocation:
    only a job step (``SLURM_STEP_ID`` is a number) of several tasks counts. A CogError says that the
    variables contradict each other.
    """

    def number(*names: str) -> int:
        return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdecimal()), -1)

    rank, size, local, local_size = map(number, ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    if min(rank, size) < 0:
        rank, local = number("SLURM_PROCID"), number("SLURM_LOCALID")
        is_step = number("SLURM_STEP_ID", "SLURM_STEPID") >= 0
        size = number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if is_step else 1
        per_node = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")  # such as 4(x2),1
        counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", per_node)
        tasks = [int(n) for n, times in counts for _ in range(int(times or 1))]
        local_size = (tasks[max(number("SLURM_NODEID"), 0) :] or [1])[0]
    elif local < 0:
        local = rank
    if os.environ.get("COG_RANKS") == "0" or min(rank, size) < 0 or size == 1:
        return Rank()
    if rank >= size:
        raise CogError(
            f"process {rank} of {size} does not exist; unset RANK and SLURM_PROCID, or COG_RANKS=0 for one"
        )
    return Rank(rank, size, max(local, 0), max(local_size, local + 1, 1))
