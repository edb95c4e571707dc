"""Processors and memory of the machine, memory of a GPU, and one line where it does not suffice."""

from __future__ import annotations

import contextlib
import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cog.errors import CogError

if TYPE_CHECKING:
    import torch

_EXHAUSTED = re.compile(
    r"out of memory|allocate memory|not enough memory|ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED"
)


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Switch garbage collection off in the block: with a million objects it takes time and finds nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def n_processors() -> int:
    """Return the number of processors that this process may use (on macOS, those of the machine)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory(proc: Path = Path("/proc"), control: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that can be allocated without swapping; None if that is unknown.

    This is the minimum of ``MemAvailable`` and of the free memory of the control groups (version 2) of this
    process: a SLURM job or a container may use less than the machine has.
    File caches of a group count as free.
    """
    rooms = []
    group = control
    with contextlib.suppress(OSError, ValueError):
        words = re.findall(r"MemAvailable:\s+(\d+)", (proc / "meminfo").read_text())
        rooms += [int(words[0]) * 1024] if words else []
        names = re.findall(r"^0::/(.*)$", (proc / "self/cgroup").read_text(), re.MULTILINE)
        group = control / names[0] if names else control
    for folder in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):
            most = int((folder / "memory.max").read_text())  # "max" means no limit
            used = int((folder / "memory.current").read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            rooms.append(most - used + int(stat.get("inactive_file", 0)))
        if folder == control:
            break
    return max(0, min(rooms)) if rooms else None


def free_on_gpu(device: torch.device) -> int:
    """Return the bytes that can be allocated on a GPU: free, or reserved by PyTorch and not in use."""
    import torch

    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def is_exhausted(error: BaseException) -> bool:
    """Return whether an error reports that the memory of a GPU or of the machine did not suffice."""
    of_torch = isinstance(error, RuntimeError) and _EXHAUSTED.search(str(error)) is not None
    return isinstance(error, MemoryError) or of_torch


def explain(error: BaseException, *, task: str, todo: str) -> CogError:
    """Return an error for which :func:`is_exhausted` is true as one line.

    Args:
        error: the error.
        task: work that failed, such as "training 10 classifiers".
        todo: advice by which the work needs less memory; "" for none.
    """
    on_gpu = re.search(r"CUDA|CUBLAS|CUDNN|GPU", str(error)) is not None
    asked = re.search(r"tried to allocate ([\d.]+ ?\w+)", str(error), re.IGNORECASE)
    problem = "the GPU is out of memory" if on_gpu else "out of memory"
    size = f" ({asked[1]} more were asked for)" if asked else ""
    elsewhere = "or give --device cpu" if on_gpu else "or run this where there is more"
    steps = ["end other programs that use it (the same command then continues)", todo, elsewhere]
    return CogError(f"{problem}{size} while {task}; {', '.join(filter(None, steps))}")


@contextlib.contextmanager
def exhaustion_explained(task: str, todo: str) -> Iterator[None]:
    """Turn "out of memory" in the block into one line; arguments as of :func:`explain`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_exhausted(error):
            raise
        raise explain(error, task=task, todo=todo) from error
