"""The share of this process: processors, memory, and its number among several of ``torchrun`` or ``srun``."""

import contextlib
import os
import re
from pathlib import Path
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
    if given.keys() >= {*srun} and os.environ.get("SLURM_STEP_ID", "").isdecimal():
        number, size, local, n_nodes = (given[name] for name in srun)
        return Rank(number, size, local, -(-size // n_nodes))
    return Rank()


def n_processors() -> int:
    """Return the number of processors that this process may use (on macOS, those of the machine)."""
    if (given := os.environ.get("PYTHON_CPU_COUNT", "")).isdecimal():  # of a study, or of Python 3.13
        return max(1, int(given))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory(proc: Path = Path("/proc"), control: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that the machine and the control groups (version 2) leave to this process, or None."""
    rooms, group = [], control
    with contextlib.suppress(OSError, IndexError):
        rooms.append(1024 * int(re.findall(r"MemAvailable:\s+(\d+)", (proc / "meminfo").read_text())[0]))
        group /= re.findall(r"(?m)^0::/(.*)$", (proc / "self/cgroup").read_text())[0]
    for folder in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):  # of "max", no limit
            most, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
            cached = re.findall(r"(?m)^inactive_file (\d+)", (folder / "memory.stat").read_text())
            rooms.append(most - used + sum(map(int, cached)))
    return max(0, min(rooms)) if rooms else None


def is_exhausted(error: BaseException) -> bool:
    """Return whether an error reports that the memory of a GPU or of the machine did not suffice."""
    words = r"out of memory|allocate memory|not enough memory|ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED"
    of_torch = isinstance(error, RuntimeError) and re.search(words, str(error)) is not None
    return isinstance(error, MemoryError) or of_torch
