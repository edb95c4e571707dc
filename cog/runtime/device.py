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
from cog.runtime import ranks

_WHERE = "see https://pytorch.org/get-started/locally"


def resolve_device(
    name: str | None, rank: ranks.Rank | None = None, *, float64: bool = False
) -> torch.device:
    """Return the device ``name`` after a test kernel has run on it; None means CUDA when there is a GPU, else the CPU.

    A CUDA device always has an index: the one in ``name``, else the index of the GPU for the rank of this process.

    Args:
        name: value of ``--device``.
        rank: rank of this process; None: read from the environment.
        float64: whether the work needs float64, which Apple's GPUs and some of Intel's lack.

    Raises:
        CogError: when ``name`` is not a device, the device is missing or fails the test, or there are more processes
            than GPUs. A job that asks for a GPU, or runs on a machine with one, must not spend a week on a CPU.
    """
    if name is None and not (torch.cuda.is_available() or _has_gpu()):
        return torch.device("cpu")
    try:
        device = torch.device(name or "cuda")
    except RuntimeError:
        raise CogError(f"--device {name!r} is not a device; expected cpu, cuda or cuda:<index>") from None
    if device.type == "cpu":
        return device
    if device.type == "cuda" and device.index is None and (n_devices := torch.cuda.device_count()):
        device = torch.device("cuda", ranks.own_gpu(rank or ranks.this_rank(), n_devices))
    fault = ""
    try:
        if not torch.equal(_step(device).cpu(), _step(torch.device("cpu"))):
            fault = "its matrix products are wrong; report that to the administrator of this machine"
    except (RuntimeError, AssertionError, ImportError, AttributeError, TypeError) as error:
        fault = first_line(error)
    if not fault and float64 and not has_float64(device):
        fault = "it has no float64, which this command needs"
    if fault:
        raise CogError(f"--device {device} cannot be used: {fault}{_build(device)}; or give --device cpu")
    return device


@functools.cache
def has_float64(device: torch.device) -> bool:
    """Return whether a device computes in float64."""
    if device.type in ("cpu", "cuda"):
        return True
    try:
        return float(torch.ones(2, dtype=torch.float64, device=device).sum()) == 2
    except (RuntimeError, AssertionError, ImportError, AttributeError, TypeError):
        return False


def device_name(device: torch.device) -> str:
    """Return the name of a device in records: the product name of a GPU, else the device as text."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _step(device: torch.device) -> torch.Tensor:
    """Return the result of small kernels of PyTorch and of its matrix library, which is exact in every arithmetic."""
    x = torch.arange(4096, device=device).remainder(7).sub(3).float().view(64, 64)
    return (x @ x).relu().sum(dim=1)


def _build(device: torch.device) -> str:
    """Return what this PyTorch is built for, and where there are others; "" for other devices than NVIDIA's."""
    if device.type != "cuda":
        return ""
    archs = " ".join(torch.cuda.get_arch_list()) or "no GPU"
    return (
        f" (PyTorch {torch.__version__} for CUDA {torch.version.cuda or torch.version.hip}, with code for {archs}); "
        f"check the driver and CUDA_VISIBLE_DEVICES, install another PyTorch ({_WHERE})"
    )


def _has_gpu() -> bool:
    """Return whether this process may use an NVIDIA GPU, whether or not PyTorch can."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not visible.strip()[:1].isdecimal() and visible[:3] not in ("GPU", "MIG"):
        return False  # hidden on purpose: empty, -1, NoDevFiles
    # A scheduler keeps the device file of a GPU that is not allocated to this job, but denies access to it.
    return any(os.access(path, os.R_OK | os.W_OK) for path in glob.glob("/dev/nvidia[0-9]*"))


def require_precision(device: torch.device, key: str, name: str) -> None:
    """Refuse an arithmetic that a device lacks, or only emulates (bfloat16 on older GPUs, slower than float32).

    Args:
        device: device of the computation.
        key: configuration key of the arithmetic, for the message.
        name: value of that key; only ``bf16`` and ``tf32`` have requirements.

    Raises:
        CogError: for TF32 on a device other than an NVIDIA GPU; for TF32 and bfloat16 on an NVIDIA GPU before Ampere
            (compute capability 8.0).
    """
    if name not in ("bf16", "tf32") or (name == "bf16" and device.type != "cuda"):
        return
    actual = device_name(device)
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if torch.version.hip is not None or major >= 8:
            return
        actual += f" ({major}.{minor})"
    raise CogError(
        f"{key} {name} needs an NVIDIA GPU since Ampere (compute capability 8.0), found {actual}; use fp32"
    )


def allow_tf32() -> None:
    """Multiply and convolve in TF32 from here to the end of the surrounding :func:`exact_float32` block."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Multiply float32 matrices and convolve in full float32: no TF32 or bfloat16, even if they are allowed.

    The settings of the caller are restored at the end. PyTorch has two interfaces for them, and reading the older one
    raises an error once the newer one disagrees with it; both can be used in the block.
    """
    cudnn: Any = torch.backends.cudnn
    mkldnn: Any = torch.backends.mkldnn
    older: list[Any] = []
    for read in (torch.get_float32_matmul_precision, lambda: cudnn.allow_tf32):
        try:
            older.append(read())
        except RuntimeError:  # the newer one is in use
            older.append(None)
    # From the general setting to the specific ones: a specific setting of "none" inherits the general one, and shows
    # its own value while the general one is "none". The default of mkldnn is left out: setting it also sets the
    # general one (PyTorch 2.10 to 2.15).
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

    The settings of the caller are restored at the end.
    """
    cudnn = torch.backends.cudnn
    saved = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        with full_float32():
            yield
    finally:
        cudnn.deterministic, cudnn.benchmark = saved
