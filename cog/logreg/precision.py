"""The precision in which the classifier engine multiplies matrices (``CLF.PRECISION``).

=========  ====================================================================================================
``fp32``   full float32 everywhere (TF32 off)
``tf32``   NVIDIA GPUs: matrix products of the training steps round their operands to TF32 (10-bit mantissa)
``bf16``   matrix products of the training steps take bfloat16 operands and accumulate in float32
``auto``   the fastest of these that moves accuracies by less than another seed does (docs/performance.md,
           "Precision"): ``bf16`` on CPUs with instructions for it; on GPUs ``tf32`` (measured by emulation alone)
=========  ====================================================================================================

Weights, momentum, softmax, the validation of a trial and the test score of the last epoch are float32 in every mode:
ranking rounded logits would move accuracies. In the ``bf16`` mode the test scores of the epochs before the last,
which are a curve and no result, come from bfloat16 operands as well.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from cog.runtime.device import exact_float32, require_precision


@functools.cache
def cpu_has_bfloat16() -> bool:
    """Return whether this CPU has instructions for bfloat16 products (AVX512-BF16 or AMX), which make them faster."""
    with contextlib.suppress(OSError):
        flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        return flags is not None and bool({"avx512_bf16", "amx_bf16"} & set(flags[1].split()))
    return False


def resolve_precision(name: str, device: torch.device) -> str:
    """Return ``fp32``, ``tf32`` or ``bf16`` for ``CLF.PRECISION`` on a device.

    ``auto`` depends on the kind of device alone, so that the same machine always gives the same result.

    Raises:
        CogError: a precision that the device does not have.
    """
    if name == "auto":
        if device.type == "cpu":
            return "bf16" if cpu_has_bfloat16() else "fp32"
        ampere = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        return "tf32" if ampere else "fp32"
    require_precision(device, "CLF.PRECISION", name)
    return name


def describe(arithmetic: Mapping[str, Any]) -> str:
    """Return the precision in a record of arithmetic: ``fp32``, or ``fp32 (search), bf16 (final training)``."""
    final, search = arithmetic["precision"], arithmetic.get("search", arithmetic)["precision"]
    return final if search == final else f"{search} (search), {final} (final training)"


@contextlib.contextmanager
def products(device: torch.device, precision: str) -> Iterator[None]:
    """Multiply float32 matrices in ``fp32`` or ``tf32``, and sum up bfloat16 products in float32, inside a block.

    By default, cuBLAS may sum up parts of bfloat16 products in bfloat16. Other devices need no setting for single
    products: float32 is exact during all computations of the engine.
    """
    if device.type != "cuda":
        yield
        return
    matmul = torch.backends.cuda.matmul
    with exact_float32():
        saved = matmul.allow_bf16_reduced_precision_reduction
        matmul.allow_bf16_reduced_precision_reduction = False
        if precision == "tf32":
            torch.set_float32_matmul_precision("high")  # exact_float32 restores the setting
        try:
            yield
        finally:
            matmul.allow_bf16_reduced_precision_reduction = saved
