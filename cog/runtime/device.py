"""Choice of the device and of its arithmetic."""

import contextlib
import glob
import os
import re
from collections.abc import Iterator
from typing import Any

import torch

from cog.errors import CogError, first_line
from cog.runtime.memory import this_rank


def resolve_device(name: str | None) -> torch.device:
    """Return the device ``name`` after a product on it; None: a GPU where there is one, no CPU beside it."""
    if name is None:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1", "NoDevFiles")
        # A scheduler keeps the device file of a GPU that this job does not have, but denies access to it.
        granted = any(os.access(path, os.R_OK | os.W_OK) for path in glob.glob("/dev/nvidia[0-9]*"))
        name = "cuda" if torch.cuda.is_available() or (granted and not hidden) else "cpu"
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,2})?", name):
        raise CogError(f"--device {name} is not a device; expected cpu, cuda or cuda:<index>")
    if name == "cpu":
        return torch.device(name)
    index = this_rank().local if torch.cuda.device_count() > 1 else 0
    device = torch.device(name if ":" in name else f"cuda:{index}")
    try:
        x = torch.ones(64, 64, device=device)
        if (x @ x).sum().item() != 64**3:  # exact in every arithmetic
            raise RuntimeError("its matrix products are wrong")
    except (RuntimeError, AssertionError) as error:
        failed = f"cannot be used: {first_line(error)} (PyTorch for CUDA {torch.version.cuda})"
        todo = "check the driver, or use the CPU: give --device cpu, or export CUDA_VISIBLE_DEVICES=''"
        raise CogError(f"--device {device} {failed}; {todo}") from error
    return device


def device_name(device: torch.device) -> str:
    """Return the name of a device in records: the product name of a GPU, else the device as text."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def require_precision(device: torch.device, key: str, name: str) -> None:
    """Refuse an arithmetic that a device lacks, or only emulates: tf32, and on GPUs bf16, before Ampere."""
    is_new = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if not is_new and (name == "tf32" or (name == "bf16" and device.type == "cuda")):
        raise CogError(f"{key} {name} needs an NVIDIA GPU since Ampere, not {device_name(device)}; use fp32")


@contextlib.contextmanager
def exact_float32(*, tf32: bool = False) -> Iterator[None]:
    """Multiply and convolve in full float32 (or in TF32), on CUDA reproducibly, in the block."""
    backends: Any = torch.backends
    cudnn, mkldnn, older = backends.cudnn, backends.mkldnn, None
    with contextlib.suppress(RuntimeError):  # of the older interface, where the caller has used the newer one
        older = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    # Modules before their operations, which without a value of their own have that of these.
    newer = backends, cudnn, cudnn.conv, backends.cuda.matmul, mkldnn.conv, mkldnn.matmul
    values: list[Any] = [(cudnn, "deterministic", True), (cudnn, "benchmark", False)]
    values += [(each, "fp32_precision", "none") for each in newer]
    with contextlib.ExitStack() as stack:
        for place, name, value in values:
            stack.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, value)
        if older:
            stack.callback(torch.set_float32_matmul_precision, older[0])
            stack.callback(setattr, cudnn, "allow_tf32", older[1])
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        cudnn.allow_tf32 = tf32
        yield
