"""Number of this process among several that ``torchrun`` or ``srun`` started."""

from __future__ import annotations

import os
from typing import NamedTuple


class Rank(NamedTuple):
    """Process ``number`` of ``size``, and its number and that of the processes on this machine."""

    number: int = 0
    size: int = 1
    local: int = 0
    local_size: int = 1


def this_rank() -> Rank:
    """Return the rank of this process in ``torchrun`` or a job step of ``srun``; a batch script is alone."""
    torchrun = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    srun = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_NUM_NODES")
    given = {name: int(text) for name in (*torchrun, *srun) if (text := os.environ.get(name, "")).isdecimal()}
    if given.keys() >= {*torchrun}:
        return Rank(*(given[name] for name in torchrun))
    if given.keys() >= {*srun[:2]} and os.environ.get("SLURM_STEP_ID", "").isdecimal():
        size = given[srun[1]]
        return Rank(given[srun[0]], size, given.get(srun[2], 0), -(-size // given.get(srun[3], 1)))
    return Rank()
