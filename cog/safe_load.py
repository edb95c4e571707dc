"""The only place where the toolkit opens serialised objects: checkpoints, features, pickles.

Files from the internet are hostile until checked. Unpickling can import any module and call any
function, so nothing here unpickles without restriction:

* torch files go through ``torch.load(weights_only=True)`` with a named allow-list per model;
* plain pickles (level mapping, concept split, logs) go through :func:`load_pickle`, which reads
  lists, tuples, dicts, sets, strings, numbers and numpy arrays with an interpreter of its own
  (:mod:`cog.safe_pickle`): no class or function named by the file is ever looked up. The readers of
  other checkpoint containers (:mod:`cog.models.formats`) use the same interpreter.
"""

from __future__ import annotations

import os
import pickle
import re
import stat
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import safe_pickle
from cog.errors import CogError, UnsafeFileError

if TYPE_CHECKING:
    pass


def load_pickle(path: str | os.PathLike[str]) -> Any:
    """Read a pickle of lists, tuples, dicts, sets, strings, numbers and numpy arrays.

    Files written with numpy 1 and numpy 2 and any pickle protocol are read; see
    :func:`cog.safe_pickle.load`.

    Args:
        path: a pickle file.

    Raises:
        UnsafeFileError: when the file names any other class or function (the name is in the message;
            nothing of it is imported or called).
        CogError: when the file is missing or not a complete pickle.
    """
    _require_regular(path, "pickle")
    try:
        with open(path, "rb") as handle:
            return safe_pickle.load(handle)
    except UnsafeFileError as error:
        raise UnsafeFileError(
            f"refused to read {path}: it contains {error}; expected a pickle of only lists, dicts, "
            "strings, numbers and numpy arrays. Get the file from its authors again"
        ) from None
    except OSError as error:
        raise CogError(f"cannot read {path}: {error.strerror or error}") from error
    except safe_pickle.MALFORMED as error:
        raise CogError(
            f"{path} is not a readable pickle ({type(error).__name__}: {str(error)[:200]}); is it complete?"
        ) from None


def _require_regular(path: str | os.PathLike[str], kind: str) -> None:
    """Refuse what open() would wait on (a pipe) or never finish reading (a device).

    Raises:
        CogError: for anything but a file with something in it.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise CogError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if stat.S_ISDIR(found.st_mode):
        raise CogError(f"cannot read {path}: it is a folder, expected a file")
    if not stat.S_ISREG(found.st_mode):
        raise CogError(f"cannot read {path}: it is not a regular file")
    if found.st_size == 0:
        raise CogError(f"{path} is empty, not a readable {kind}; is the download or copy complete?")


def load_torch(path: str | os.PathLike[str], *, allow: Sequence[Any] = (), mmap: bool = False) -> Any:
    """Read a torch file with ``weights_only=True``, on the CPU.

    Args:
        path: a file of ``torch.save``.
        allow: classes the file may name beside tensors and plain containers, for this call only
            (entries as ``torch.serialization.safe_globals`` takes them).
        mmap: map the file instead of reading it (files of torch >= 1.6 only).

    Returns:
        What was saved; tensors are on the CPU.

    Raises:
        UnsafeFileError: when the file names a class outside the allow-list (named in the message).
        CogError: when the file is missing, truncated, or in a format that cannot be read safely.
    """
    import torch

    path = Path(path)
    _require_regular(path, "torch file")
    try:
        with torch.serialization.safe_globals(list(allow)), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hints to programmers; what matters to a user is an error here
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap or None)
    except OSError as error:
        raise CogError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # torch documents no list, and broken files raise nearly everything
        raise _torch_error(path, error) from None


def _torch_error(path: Path, error: Exception) -> CogError:
    """Put the many lines of a failed ``torch.load`` into one that says what to do."""
    text = str(error)
    named = re.search(r"(?:GLOBAL|global) (\S+) was not an allowed global", text) or re.search(
        r"Trying to (?:load|call|instantiate) (?:un(?:supported|safe) )?(?:GLOBAL|global|class|function)? ?(\S+)",
        text,
    )
    if "legacy .tar" in text or "tarfile" in text.lower():
        return UnsafeFileError(
            f"{path} is in the container of torch 0.1 (.tar), which cannot be read safely; "
            "download the re-released file of the same weights"
        )
    if "TorchScript" in text:
        return UnsafeFileError(f"{path} is a TorchScript archive, expected a file of torch.save")
    if named:
        return UnsafeFileError(
            f"refused to read {path}: it contains {named.group(1).rstrip('.,')}, which is not on the "
            "allow-list; expected only tensors in plain containers"
        )
    if isinstance(error, pickle.UnpicklingError) and "weights" in text.lower():
        detail = text.split("WeightsUnpickler error:")[-1].strip().split("\n")[0].strip() or "unsafe content"
        return UnsafeFileError(f"refused to read {path}: {detail[:200]}")
    detail = text.strip().split("\n")[0][:200] or type(error).__name__
    return CogError(f"{path} is not a readable torch file ({detail}); is the download complete?")
