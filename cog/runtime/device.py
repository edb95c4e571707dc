"""Choosing where to compute, and in which arithmetic."""

from __future__ import annotations

import contextlib
import glob
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import torch

from cog.errors import CogError, first_line
from cog.runtime import ranks

_WHERE = "see https://pytorch.org/get-started/locally"


def resolve_device(name: str | None, rank: ranks.Rank | None = None) -> torch.device:
    """Return the device called ``name``, on which a kernel has run; None means CUDA when there is a GPU, else the CPU.

    A CUDA device always has an index: the one in ``name``, else this process's own among those of its machine.

    Args:
        name: value of ``--device``.
        rank: of this process (default: what the environment says).

    Raises:
        CogError: when the name is no device, the device is not there or does not compute, or there are more processes
            than GPUs. A job that asks for a GPU, or stands on a machine that has one, must not spend a week on a CPU.
    """
    if name is None and not (torch.cuda.is_available() or _n_gpus()):
        return torch.device("cpu")
    try:
        device = torch.device(name or "cuda")
    except RuntimeError:
        raise CogError(f"--device {name!r} is not a device; expected cpu, cuda or cuda:<index>") from None
    if device.type == "meta":
        raise CogError(f"--device {name} computes nothing; expected cpu, cuda or cuda:<index>")
    if device.type == "cpu":
        return device
    if device.type == "cuda":
        device = _cuda_device(device, name, rank or ranks.this_rank())
    try:
        is_right = torch.equal(_step(device).cpu(), _step(torch.device("cpu")))
        fault = "" if is_right else "it multiplies matrices wrongly; report it to whoever runs this machine"
    except (RuntimeError, AssertionError, ImportError, AttributeError, TypeError) as error:
        fault = first_line(error)
    if fault:
        raise CogError(f"--device {device} cannot be used: {fault}{_advice(device, fault)}")
    return device


def _cuda_device(device: torch.device, name: str | None, rank: ranks.Rank) -> torch.device:
    """Return ``device`` with an index that is there."""
    n_devices = torch.cuda.device_count()
    if torch.cuda.is_available() and n_devices:
        index = ranks.own_gpu(rank, n_devices) if device.index is None else device.index
        if index < n_devices:
            return torch.device("cuda", index)
        raise CogError(
            f"--device {name}: torch sees {n_devices} CUDA devices here; leave the flag out to use what there is"
        )
    if _n_gpus():
        raise CogError(_unusable())
    raise CogError(
        f"--device {name}: torch sees no CUDA devices here; leave the flag out to use what there is"
    )


def device_name(device: torch.device) -> str:
    """Return what records call a device: the product's name of a GPU, else its type."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _step(device: torch.device) -> torch.Tensor:
    """Compute something small with kernels of PyTorch and of its matrix library; exact in every arithmetic."""
    x = torch.arange(4096, device=device).remainder(7).sub(3).float().view(64, 64)
    return (x @ x).relu().sum(dim=1)


def _advice(device: torch.device, fault: str) -> str:
    """Say what the GPU is, what this PyTorch has code for, and what to install; nothing of other devices."""
    if device.type != "cuda":
        return ""
    major, minor = torch.cuda.get_device_capability(device)
    has = torch.cuda.get_arch_list()
    text = (
        f" ({torch.cuda.get_device_name(device)}, compute capability {major}.{minor}; PyTorch {torch.__version__} has "
        f"code for {' '.join(has) or 'no GPU'})"
    )
    if "no kernel image" not in fault and f"sm_{major}{minor}" in has:
        return text
    numbers = [int(digits) for arch in has if (digits := arch.rpartition("_")[2].rstrip("af")).isdecimal()]
    if numbers and 10 * major + minor < min(numbers):
        what = "for an older CUDA, whose code reaches back to it"
    else:
        what = "of a newer version"
    return f"{text}; install a PyTorch {what} ({_WHERE}), or give --device cpu"


def _n_gpus() -> int:
    """Return the number of NVIDIA GPUs that this process may use, whether or not PyTorch can."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not visible.strip()[:1].isdecimal() and visible[:3] not in ("GPU", "MIG"):
        return 0  # hidden on purpose: empty, -1, NoDevFiles
    return torch.cuda.device_count() or sum(map(_can_be_opened, glob.glob("/dev/nvidia[0-9]*")))


def _can_be_opened(path: str) -> bool:
    # A scheduler that has not given this job a GPU leaves the file there and refuses it.
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError:
        return False
    return True


def _unusable() -> str:
    """Return why PyTorch cannot use the GPUs that this machine has, and what to do."""
    if torch.version.cuda is None:
        why, what = "it is built without CUDA", "install one with it"
    else:
        try:
            torch.cuda.init()
            why = "it finds none of them"
        except (RuntimeError, AssertionError) as error:
            why = first_line(error).partition(" Please ")[0].rstrip(".")
        archs = " ".join(torch.cuda.get_arch_list())
        why += f"; it is built with CUDA {torch.version.cuda}{f' for {archs}' if archs else ''}"
        what = "update the driver or install a PyTorch for an older CUDA"
        if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
            what = f"check CUDA_VISIBLE_DEVICES={visible}, {what}"
    return (
        f"this machine has {_described()} that PyTorch {torch.__version__} cannot use ({why}); {what} ({_WHERE}), or "
        "give --device cpu"
    )


def _described() -> str:
    """Return number, name, compute capability and driver of the GPUs, as far as the driver's tool tells."""
    for query in ("name,compute_cap,driver_version", "name,driver_version"):  # old drivers know the second
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
                capture_output=True,
                text=True,
                check=True,
                timeout=30,
            )
            lines = [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines() if line]
            if lines:
                words = ("", "compute capability ", "driver ") if len(lines[0]) == 3 else ("", "driver ")
                known = ", ".join(a + b for a, b in zip(words, lines[0], strict=False))
                return f"{len(lines)} GPU{'s' * (len(lines) > 1)} ({known})"
    n = _n_gpus()
    return f"{n} NVIDIA GPU{'s' * (n > 1)}"


def require_precision(device: torch.device, key: str, name: str) -> None:
    """Refuse an arithmetic that a device lacks, or only emulates (bfloat16 on older GPUs, slower than float32).

    Args:
        device: where it would be used.
        key: the configuration key that asks for it.
        name: value of that key; only ``bf16`` and ``tf32`` need anything.

    Raises:
        CogError: TF32 on anything but an NVIDIA GPU; either of the two on one before Ampere (compute capability 8.0).
    """
    if name not in ("bf16", "tf32"):
        return
    if device.type != "cuda":
        if name == "bf16":
            return
        found = str(device)
    elif torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0):
        return
    else:
        major, minor = torch.cuda.get_device_capability(device)
        found = f"{torch.cuda.get_device_name(device)} ({major}.{minor})"
    raise CogError(
        f"{key} {name} needs an NVIDIA GPU since Ampere (compute capability 8.0), found {found}; use fp32"
    )


def allow_tf32() -> None:
    """Multiply and convolve in TF32 from here to the end of the :func:`exact_float32` block around."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Multiply float32 matrices and convolve in full float32: no TF32 or bfloat16, whoever has allowed it.

    What the caller has set is put back at the end. PyTorch has two interfaces for this, and reading the older one
    raises once the newer one disagrees with it; in the block both can be used.
    """
    cudnn: Any = torch.backends.cudnn
    mkldnn: Any = torch.backends.mkldnn
    older: list[Any] = []
    for read in (torch.get_float32_matmul_precision, lambda: cudnn.allow_tf32):
        try:
            older.append(read())
        except RuntimeError:  # the newer one is in use
            older.append(None)
    # From the general to the special, which inherits where it is "none": with the general at "none", each shows
    # its own value. Without mkldnn's own default: setting it sets the one above it (PyTorch 2.10 to 2.15).
    newer: list[Any] = [torch.backends, cudnn, cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul]
    newer += [mkldnn.matmul, mkldnn.conv, mkldnn.rnn]
    saved = []
    for settings in newer:
        saved.append(settings.fp32_precision)
        settings.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")  # the older interface sets the newer one, too
    cudnn.allow_tf32 = False
    try:
        yield
    finally:
        matmul, convolutions = older
        if matmul is not None:
            torch.set_float32_matmul_precision(matmul)
        if convolutions is not None:
            cudnn.allow_tf32 = convolutions
        for settings, value in zip(newer, saved, strict=True):
            settings.fp32_precision = value


@contextlib.contextmanager
def exact_float32() -> Iterator[None]:
    """Compute in full float32 and reproducibly on CUDA: no TF32, no autotuned convolutions.

    What the caller has set is put back at the end.
    """
    cudnn = torch.backends.cudnn
    saved = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        with full_float32():
            yield
    finally:
        cudnn.deterministic, cudnn.benchmark = saved
