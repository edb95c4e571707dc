"""The choice between features in memory and features in a memory-mapped file."""

from __future__ import annotations

import logging
from pathlib import Path

from cog.errors import CogError
from cog.features.feature_files import MAPPABLE
from cog.runtime.machine_checks import size
from cog.runtime.memory import available_memory
from cog.runtime.safe_load import load_torch

logger = logging.getLogger(__name__)

#: Share of the available memory that features may take; the rest is for classifiers and logits.
_USABLE = 0.9


def stays_in_file(train: Path, test: Path, *, rounded: bool = False) -> bool:
    """Return whether the training features are memory-mapped instead of read.

    They are read when both sets fit into the available memory, also into that of the control group of this process.

    Args:
        train: file of the training features.
        test: file of the test features.
        rounded: whether rounded training features are kept so (:func:`cog.features.feature_files.load`).

    Raises:
        CogError: when the training features neither fit nor can be mapped, or the test features do not fit.
    """
    available = available_memory()
    if available is None:
        return False
    room = _USABLE * available
    (train_bytes, objection), (test_bytes, _) = _size_in_memory(train, rounded), _size_in_memory(test, False)
    if train_bytes + test_bytes <= room:
        return False
    have = f"{size(available)} of memory are available"
    if test_bytes > room:
        raise CogError(f"{test} takes {size(test_bytes)}, and {have}; run this where there is more")
    if objection is not None:
        raise CogError(
            f"{train} takes {size(train_bytes)}, and {have}; it cannot be memory-mapped ({objection}), so run this "
            "where there is more memory, or save X as float32 with torch.save"
        )
    logger.warning(
        "%s takes %s, and %s: it is read from the file again and again, which is slow unless that is on a fast disk",
        train, size(train_bytes), have,
    )  # fmt: skip
    return True


def _size_in_memory(path: Path, rounded: bool) -> tuple[int, str | None]:
    """Return the peak memory of reading ``path``, in bytes, and the reason why it cannot be mapped (None: it can)."""
    try:
        x = load_torch(path, mmap=True)["X"]
        n_bytes, dtype, contiguous = 4 * x.numel(), x.dtype, x.is_contiguous()
    # The reader of the file reports its fault.
    except (CogError, KeyError, TypeError, AttributeError, RuntimeError):
        return path.stat().st_size, "its format is older than torch 1.6"
    if dtype not in MAPPABLE:
        return n_bytes + x.element_size() * x.numel(), f"X is {dtype}"
    if rounded and contiguous:
        n_bytes = x.element_size() * x.numel()
    return n_bytes, None if contiguous else "X is not stored row by row"
