"""Checks of disks, memory, GPUs and output folders that change nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from cog.errors import CogError
from cog.runtime.check_report import Report
from cog.runtime.memory import available_memory
from cog.runtime.output_folder import read_state

#: Bytes of memory beside the features: interpreter, PyTorch, network, batches of images.
BASE_MEMORY = 2 << 30


def size(n_bytes: float) -> str:
    """Return a number of bytes as text with a readable unit."""
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
    """Return whether ``folder`` can be written to or created; report a problem if not."""
    there, fault = existing(folder), ""
    try:
        if not there.is_dir():
            fault = f"{there} is not a folder, and {folder} cannot be created"
        elif os.statvfs(there).f_flag & os.ST_RDONLY:
            fault = f"{there} is on a file system that is mounted read-only"
        elif not os.access(there, os.W_OK | os.X_OK):
            fault = f"no permission to write into {there}"
    except OSError as error:
        fault = f"cannot access {there}: {error.strerror}"
    if fault:
        report.problem("output", fault)
    return not fault


def check_state(report: Report, folder: Path) -> bool:
    """Return whether no process is at work in an output folder (else a problem); warn if the last attempt failed."""
    status = read_state(folder, complete=False)
    if status.holder is not None:
        report.problem("output", f"{folder} is being written by {status.holder}; wait for it to end")
        return False
    if (failure := status.failure) is not None:
        when = f" ({failure.when})" if failure.when else ""
        report.warn("output", f"the last attempt at {folder} failed{when}: {failure.message}")
    return True


def check_disk(report: Report, needs: Iterable[tuple[Path, float]]) -> None:
    """Compare the bytes that will be written with the free space of each file system.

    Args:
        report: gets one line per file system.
        needs: output folders and the bytes that will be written to each.
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


def check_memory(report: Report, needed: float, basis: str) -> None:
    """Compare the memory that is needed with the memory that is available to this process.

    Args:
        report: gets one line.
        needed: bytes beside :data:`BASE_MEMORY`.
        basis: basis of the estimate, for the message.
    """
    available = available_memory()
    text = f"about {size(needed + BASE_MEMORY)} are needed ({basis})"
    if available is None:
        report.ok("memory", text)
    elif needed + BASE_MEMORY > available:
        report.warn("memory", f"{text}, {size(available)} are available here; run it where there is more")
    else:
        report.ok("memory", f"{text}, {size(available)} are available")


def check_device(
    report: Report, name: str | None, key: str | None = None, precision: str = "", *, float64: bool = False
) -> None:
    """Check that the device exists and computes, as the command does (:func:`cog.runtime.device.resolve_device`).

    Args:
        report: gets one line.
        name: value of ``--device``.
        key: configuration key of the arithmetic; None: the command has no such key.
        precision: value of the key.
        float64: whether the work needs float64.
    """
    from cog.runtime.device import require_precision, resolve_device

    try:
        device = resolve_device(name, float64=float64)
        if key is not None:
            require_precision(device, key, precision)
    except CogError as error:
        report.problem("device", str(error))
        return
    if name is None and device.type == "cpu":
        report.warn("device", "no GPU is visible here; it would run on the CPU")
    else:
        report.ok("device", f"{device}{', as asked for' if name else ''}")
