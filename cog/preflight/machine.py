"""Disks, memory, GPUs and output folders, looked at without touching them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from cog.locks import live_holder
from cog.preflight.report import Report
from cog.unit_status import read_failure

#: Memory beside the features: interpreter, PyTorch, network, batches of images.
BASE_MEMORY = 2 << 30


def size(n_bytes: float) -> str:
    """Return bytes in a readable unit."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.3g} {name}"
    return f"{n_bytes / 1e3:.3g} kB"


def existing(path: Path) -> Path:
    """Return ``path``, or the nearest folder above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def check_writable(report: Report, folder: Path) -> bool:
    """See whether ``folder`` can be written to, or created; a problem if not."""
    there = existing(folder)
    if not there.is_dir():
        report.problem("output", f"{there} is not a folder, and {folder} cannot be created")
        return False
    try:
        read_only = bool(os.statvfs(there).f_flag & os.ST_RDONLY)
    except OSError as error:
        report.problem("output", f"cannot access {there}: {error.strerror}")
        return False
    if read_only:
        report.problem("output", f"{there} is on a file system that is mounted read-only")
    elif not os.access(there, os.W_OK | os.X_OK):
        report.problem("output", f"no permission to write into {there}")
    else:
        return True
    return False


def check_state(report: Report, folder: Path) -> bool:
    """See whether someone is at work in an output folder (a problem), and how the last attempt ended."""
    holder = live_holder(folder)
    if holder is not None:
        report.problem("output", f"{folder} is being written by {holder}; wait for it to end")
        return False
    failure = read_failure(folder)
    if failure is not None:
        report.warn("output", f"the last attempt at {folder} failed ({failure.when}): {failure.message}")
    return True


def check_disk(report: Report, needs: Iterable[tuple[Path, float]]) -> None:
    """Compare what will be written with the space that is free on each file system.

    Args:
        report: gets one line per file system.
        needs: output folder and bytes.
    """
    by_device: dict[int, tuple[Path, float]] = {}
    for folder, n_bytes in needs:
        there = existing(folder)
        device = os.stat(there).st_dev
        by_device[device] = (there, by_device.get(device, (there, 0.0))[1] + n_bytes)
    for there, needed in by_device.values():
        free = shutil.disk_usage(there).free
        text = f"{there}: about {size(needed)} will be written, {size(free)} are free"
        if free < needed:
            report.problem("disk", f"{text}; make room for {size(needed - free)} more")
        elif free < 1.1 * needed:
            report.warn("disk", f"{text}: that is tight")
        else:
            report.ok("disk", text)
        if os.statvfs(there).f_files and not os.statvfs(there).f_favail:
            report.problem("disk", f"{there}: no file can be created any more (no free inodes); delete some")


def check_memory(report: Report, needed: float, what: str) -> None:
    """Compare the memory that is needed with what is available to this process."""
    from cog.logreg.plan import available_memory

    available = available_memory()
    text = f"about {size(needed + BASE_MEMORY)} are needed ({what})"
    if available is None:
        report.ok("memory", text)
    elif needed + BASE_MEMORY > available:
        report.warn("memory", f"{text}, {size(available)} are available here; run it where there is more")
    else:
        report.ok("memory", f"{text}, {size(available)} are available")


def check_device(report: Report, name: str | None, *, needs_cuda: str = "") -> None:
    """See whether the device is there; CUDA is not initialised (its driver is only asked how many there are).

    Args:
        report: gets one line.
        name: value of ``--device``.
        needs_cuda: the setting that needs a GPU, if one does.
    """
    import torch

    kind, _, index = (name or "").partition(":")
    n_gpus = torch.cuda.device_count()
    if kind not in ("", "cpu", "cuda") or (index and not index.isdecimal()):
        report.problem("device", f"--device {name} is not known; expected cpu, cuda or cuda:<index>")
    elif kind == "cuda" and n_gpus <= int(index or 0):
        report.problem("device", f"--device {name}: {n_gpus} GPUs are visible here")
    elif needs_cuda and (kind == "cpu" or not n_gpus):
        report.problem("device", f"{needs_cuda} needs a GPU, and {n_gpus} are visible here")
    elif kind == "cpu":
        report.ok("device", "cpu, as asked for")
    elif n_gpus:
        report.ok("device", f"{name or 'cuda'}, {n_gpus} GPU{'s are' if n_gpus > 1 else ' is'} visible")
    else:
        report.warn("device", "no GPU is visible here; it would run on the CPU")
