"""Choosing where to compute, and in which arithmetic."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from cog.errors import CogError


def resolve_device(name: str | None) -> torch.device:
    """Return the device called ``name``; None means CUDA when there is a GPU, else the CPU.

    Raises:
        CogError: when the name is no device, or the device is not there. A job that asks for a GPU
            must not spend a week on a CPU.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise CogError(f"--device {name!r} is not a device; expected cpu, cuda or cuda:<index>") from None
    if device.type == "meta":
        raise CogError(f"--device {name} computes nothing; expected cpu, cuda or cuda:<index>")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise CogError(
            f"--device {name}: torch sees {torch.cuda.device_count()} CUDA devices here; leave the flag out to use "
            "what there is"
        )
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, ImportError, AttributeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CogError(f"--device {name} cannot be used: {first}") from None
    return device


@contextlib.contextmanager
def exact_float32() -> Iterator[None]:
    """Compute in full float32 and reproducibly on CUDA: no TF32, no autotuned convolutions.

    What the caller has set is put back at the end.
    """
    cudnn = torch.backends.cudnn
    saved = (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, torch.get_float32_matmul_precision())
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = True, False, False
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = saved[:3]
        torch.set_float32_matmul_precision(saved[3])
