"""Choice of the device and of its arithmetic."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
from collections.abc import Iterator
from typing import Any

import torch

from cog.errors import CogError, first_line
from cog.runtime.ranks import this_rank

#: Errors of a device that is not there, or cannot compute.
_FAULTS = (RuntimeError, AssertionError, ImportError, AttributeError, TypeError)


def resolve_device(name: str | None, *, float64: bool = False) -> torch.device:
    """Return the device ``name`` after one product on it; None means CUDA when there is a GPU, else the CPU.

    A CUDA device always has an index: the one in ``name``, else that of the GPU for the rank of this process.
    ``float64``: whether the work needs it; Apple's GPUs lack it. A job that asks for a GPU, or runs on a
    machine with one, must not spend a week on a CPU.

    Raises:
        CogError: ``name`` is not a device, the device is missing or computes wrongly, or there are more
            processes than GPUs.
    """
    if name is None and not (torch.cuda.is_available() or _has_gpu()):
        return torch.device("cpu")
    try:
        device = torch.device(name or "cuda")
    except RuntimeError:
        raise CogError(f"--device {name!r} is not a device; expected cpu, cuda or cuda:<index>") from None
    if device.type == "cpu":
        return device
    if device.type == "cuda" and device.index is None and (n_gpus := torch.cuda.device_count()):
        index = this_rank().local if n_gpus > 1 else 0
        if index >= n_gpus:
            raise CogError(
                f"more processes than the {n_gpus} GPUs that torch sees: start one per GPU, or give --device"
            )
        device = torch.device("cuda", index)
    try:
        is_right = torch.equal(_product(device).cpu(), _product(torch.device("cpu")))
        fault = "" if is_right else "its matrix products are wrong; report that to the administrator"
    except _FAULTS as error:
        fault = first_line(error)
    if not fault and float64 and not has_float64(device):
        fault = "it has no float64, which this command needs"
    if fault and device.type == "cuda":
        archs = " ".join(torch.cuda.get_arch_list()) or "no GPU"
        version = f"PyTorch {torch.__version__}, CUDA {torch.version.cuda or torch.version.hip}"
        fault += f" ({version}, for {archs}); check the driver and CUDA_VISIBLE_DEVICES, or install another PyTorch"
    if fault:
        raise CogError(f"--device {device} cannot be used: {fault}; or give --device cpu")
    return device


def _product(device: torch.device) -> torch.Tensor:
    """Return the result of a product and small kernels, which is exact in every arithmetic."""
    x = torch.arange(4096, device=device).remainder(7).sub(3).float().view(64, 64)
    return (x @ x).relu().sum(dim=1)


def _has_gpu() -> bool:
    """Return whether this process may use an NVIDIA GPU, whether or not PyTorch can."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not visible.strip()[:1].isdecimal() and visible[:3] not in ("GPU", "MIG"):
        return False  # hidden on purpose: empty, -1, NoDevFiles
    # A scheduler keeps the device file of a GPU that is not allocated to this job, but denies access to it.
    return any(os.access(path, os.R_OK | os.W_OK) for path in glob.glob("/dev/nvidia[0-9]*"))


@functools.cache
def has_float64(device: torch.device) -> bool:
    """Return whether a device computes in float64."""
    if device.type in ("cpu", "cuda"):
        return True
    try:
        return float(torch.ones(2, dtype=torch.float64, device=device).sum()) == 2
    except _FAULTS:
        return False


def device_name(device: torch.device) -> str:
    """Return the name of a device in records: the product name of a GPU, else the device as text."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def require_precision(device: torch.device, key: str, name: str) -> None:
    """Refuse an arithmetic that a device lacks, or only emulates (bfloat16 on older GPUs).

    Raises:
        CogError: the value ``name`` of the configuration key ``key`` is ``tf32`` on another device than an
            NVIDIA GPU, or ``tf32`` or ``bf16`` on an NVIDIA GPU before Ampere (compute capability 8.0).
    """
    if name not in ("bf16", "tf32") or (name == "bf16" and device.type != "cuda"):
        return
    if device.type == "cuda" and (torch.version.hip or torch.cuda.get_device_capability(device) >= (8, 0)):
        return
    raise CogError(
        f"{key} {name} needs an NVIDIA GPU since Ampere (compute capability 8.0), found {device_name(device)}; "
        "use fp32"
    )


def allow_tf32() -> None:
    """Multiply and convolve in TF32 from here to the end of the surrounding :func:`exact_float32` block."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Multiply and convolve in full float32 in the block: no TF32 or bfloat16, even if they are allowed.

    The settings of the caller are restored at the end, unless they were made by PyTorch's newer interface:
    reading the older one then raises an error.
    """
    backends: Any = torch.backends
    general = getattr(backends, "fp32_precision", "none")
    matmul = convolutions = None
    with contextlib.suppress(RuntimeError):
        matmul, convolutions = torch.get_float32_matmul_precision(), backends.cudnn.allow_tf32
    backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        backends.fp32_precision = general
        if matmul is not None:
            torch.set_float32_matmul_precision(matmul)
            backends.cudnn.allow_tf32 = convolutions


@contextlib.contextmanager
def exact_float32() -> Iterator[None]:
    """Compute in full float32 and reproducibly on CUDA in the block, see :func:`full_float32`."""
    cudnn = torch.backends.cudnn
    saved = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        with full_float32():
            yield
    finally:
        cudnn.deterministic, cudnn.benchmark = saved
