"""Memory: how much the machine and a GPU have left, and what is said when it does not suffice.

Nothing here imports torch before a GPU is asked.
"""

from __future__ import annotations

import contextlib
import gc
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cog.errors import CogError

if TYPE_CHECKING:
    import torch

_EXHAUSTED = re.compile(r"out of memory|allocate memory|not enough memory|ALLOC_FAILED")
_ASKED_FOR = re.compile(r"tried to allocate ([\d.]+ ?\w+)", re.IGNORECASE)


@contextlib.contextmanager
def without_garbage_collection(*, for_good: bool = False) -> Iterator[None]:
    """Look for no circles of references in the block: among many records it takes a sixth of the time to find none.

    Args:
        for_good: never look at what there is at the end of the block later, either; for processes that end soon.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # Triton reports each of its objects that is left at the end, on a page, as a leak; a study has loaded it.
        if for_good and "triton" not in sys.modules:
            gc.freeze()
        if was_enabled:
            gc.enable()


def available_memory(proc: Path = Path("/proc"), control: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that can be allocated without swapping; None where the system does not say.

    The smallest of ``MemAvailable`` and of what the control groups of this process leave (a SLURM job or a
    container may use less than the machine has); file caches of a group count as free.

    Args:
        proc: the process file system.
        control: where control groups are mounted.
    """
    rooms = []
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                rooms.append(int(line.split()[1]) * 1024)
        groups = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
    except (OSError, ValueError, IndexError):
        groups = []
    for _, controllers, path in (group for group in groups if len(group) == 3):
        if controllers == "":
            names, root = ("memory.max", "memory.current", "inactive_file"), control
        elif "memory" in controllers.split(","):
            names, root = (
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"), control / "memory"
            )  # fmt: skip
        else:
            continue
        here = root / path.strip("/")
        for folder in (here, *here.parents):
            if not folder.is_relative_to(root):
                break
            room = _group_room(folder, *names)
            if room is not None:
                rooms.append(room)
    return max(0, min(rooms)) if rooms else None


def _group_room(folder: Path, limit: str, usage: str, cache: str) -> int | None:
    try:
        most = int((folder / limit).read_text())  # "max" means no limit
        used = int((folder / usage).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return most - used + int(stat.get(cache, 0))
    except (OSError, ValueError):
        return None


def free_on_gpu(device: torch.device) -> int:
    """Return the bytes that can be allocated on a GPU: free there, or kept by PyTorch and not in use."""
    import torch

    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def is_exhausted(error: BaseException) -> bool:
    """Whether an error says that memory, of a GPU or of the machine, did not suffice."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and _EXHAUSTED.search(str(error)) is not None
    )


def explain(error: BaseException, *, what: str, todo: str) -> CogError:
    """Return the error in one line.

    Args:
        error: for which :func:`is_exhausted` is true.
        what: was being done, such as "training 10 classifiers".
        todo: what makes it need less.
    """
    on_gpu = re.search(r"CUDA|CUBLAS|CUDNN|GPU", str(error)) is not None
    asked = _ASKED_FOR.search(str(error))
    where = "the GPU is out of memory" if on_gpu else "out of memory"
    size = f" ({asked[1]} more were asked for)" if asked else ""
    elsewhere = "give --device cpu" if on_gpu else "run this where there is more"
    return CogError(f"{where}{size} while {what}; {todo}, or {elsewhere}")


@contextlib.contextmanager
def exhaustion_explained(what: str, todo: str) -> Iterator[None]:
    """Turn "out of memory" in the block into one line; arguments as of :func:`explain`.

    Raises:
        CogError: when memory does not suffice.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_exhausted(error):
            raise
        raise explain(error, what=what, todo=todo) from error
