"""The only place where the toolkit opens serialized objects: checkpoints, features, pickles.

Files from the internet may be hostile. Unpickling can import any module and call any function, so
it is always restricted here:

* torch files go through ``torch.load(weights_only=True)`` with a named allow-list per model;
* plain pickles (level mapping, concept split, logs) go through :func:`load_pickle`, which reads
  lists, tuples, dicts, sets, strings, numbers and numpy arrays with names from a closed table
  (:mod:`cog.runtime.safe_pickle`). The readers of other checkpoint containers (:mod:`cog.models.formats`) use the same
  reader.

Content other than data is refused before it costs time or memory: pickles by
:func:`cog.runtime.safe_pickle.check`, archives by :func:`cog.runtime.zip_files.require_stored`.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from cog.errors import CogError, UnsafeFileError
from cog.runtime import files, run_archive, safe_pickle
from cog.runtime.zip_files import require_stored

#: Default limit of a pickle in bytes: levels, logs and predictions are smaller, split files larger.
LARGEST_PICKLE = 1 << 26

#: Advice about the tar container, whose reader in torch unpickles without restriction.
TORCH_0_1 = (
    "is in the container of torch 0.1 (tar), which is not read; download the re-released file of the same weights "
    "(torchvision: resnet50-0676ba61.pth, resnet152-394f9c45.pth), or load and save it again with a newer torch"
)

# Bytes; smaller files are read, larger ones are mapped.
_SMALL = 1 << 20

# Number of pickles in a file of torch before 1.6: magic number, version, system, contents, keys of the storages.
_LEGACY_PICKLES = 5


def load_pickle(path: str | os.PathLike[str], *, largest: int = LARGEST_PICKLE) -> Any:
    """Read a pickle of lists, tuples, dicts, sets, strings, numbers and numpy arrays.

    Files written with numpy 1 and numpy 2 and any pickle protocol are read; see
    :func:`cog.runtime.safe_pickle.load`.

    Args:
        path: a pickle file.
        largest: size of the largest file to read, in bytes.

    Raises:
        UnsafeFileError: when the file names any other class or function (the name is in the message;
            nothing of it is imported or called).
        CogError: when the file is missing, too large or not a complete pickle.
    """
    try:
        return safe_pickle.load(contents(path, "pickle", largest))
    except UnsafeFileError as error:
        raise UnsafeFileError(
            f"refused to read {path}: it contains {error}; expected a pickle of only lists, dicts, "
            "strings, numbers and numpy arrays. Get the file from its authors again"
        ) from None
    except safe_pickle.MALFORMED as error:
        raise CogError(
            f"{path} is not a readable pickle ({type(error).__name__}: {str(error)[:200]}); is it complete?"
        ) from None


def contents(path: str | os.PathLike[str], kind: str, largest: int | None = None) -> bytes | mmap.mmap:
    """Return the bytes of a regular file that is not empty; a map is closed with the last reference to it.

    The file of a run may also be in an archive of runs (:mod:`cog.runtime.run_archive`).

    Raises:
        CogError: when the file is missing, empty, too large, unreadable or not regular.
    """
    try:
        # Tables read hundreds of thousands of small files: four system calls each.
        descriptor, size = files.open_descriptor(path)
        try:
            if size == 0:
                raise CogError(f"{path} is empty, not a readable {kind}; is the download or copy complete?")
            if largest is not None and size > largest:
                raise CogError(
                    f"{path} has {size:,} bytes, expected a {kind} of at most {largest:,}; is it the right file?"
                )
            if size <= _SMALL and len(content := os.read(descriptor, size)) == size:
                return content
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and (packed := run_archive.locate(path)) is not None:
            return packed.read(largest)
        raise CogError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def read_json(path: str | os.PathLike[str], kind: str, *, largest: int = LARGEST_PICKLE) -> Any:
    """Return the contents of a JSON file, which may be in an archive of runs.

    Raises:
        CogError: when the file is missing, too large, unreadable or not JSON.
    """
    content = contents(path, kind, largest)
    try:
        return json.loads(bytes(content).decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise CogError(f"{path} is not valid JSON ({error})") from error


def read_object(path: str | os.PathLike[str], kind: str, *, largest: int = LARGEST_PICKLE) -> dict[str, Any]:
    """Return the contents of a JSON file that holds an object, see :func:`read_json`.

    Raises:
        CogError: as for :func:`read_json`, or other content.
    """
    data = read_json(path, kind, largest=largest)
    if not isinstance(data, dict):
        raise CogError(f"{path} holds {type(data).__name__}, expected a JSON object")
    return data


def _open(path: Path) -> IO[bytes]:
    """Open a file, or its record in an archive of runs."""
    packed = None if path.exists() else run_archive.locate(path)
    return open(path, "rb") if packed is None else io.BytesIO(packed.read())


def _check_torch(path: Path) -> None:
    """Check a torch file before torch reads it.

    Raises:
        UnsafeFileError: see :func:`cog.runtime.zip_files.require_stored`, :func:`cog.runtime.safe_pickle.check`.
        Exception: when the file is broken.
    """
    content = contents(path, "torch file")
    try:
        if content[:4] == b"PK\x03\x04":
            with _open(path) as handle, zipfile.ZipFile(require_stored(handle)) as archive:
                for name in archive.namelist():
                    if name.endswith("/data.pkl"):
                        safe_pickle.check(archive.read(name))
        elif content[:2] == b"\x80\x02":
            position = 0
            for _ in range(_LEGACY_PICKLES):
                position = safe_pickle.check(content, position) if position < len(content) else position
    except UnsafeFileError as error:
        raise UnsafeFileError(
            f"refused to read {path}: it contains {error}; expected a file of torch.save"
        ) from None


def load_torch(path: str | os.PathLike[str], *, allow: Sequence[Any] = (), mmap: bool = False) -> Any:
    """Read a torch file with ``weights_only=True``, on the CPU.

    Args:
        path: a file of ``torch.save``.
        allow: classes the file may name beside tensors and plain containers, for this call only
            (entries as ``torch.serialization.safe_globals`` takes them).
        mmap: map the file instead of reading it (files of torch >= 1.6 only).

    Returns:
        The saved object; tensors are on the CPU.

    Raises:
        UnsafeFileError: when the file names a class outside the allow-list (named in the message).
        CogError: when the file is missing, truncated, or in a format that cannot be read safely.
    """
    import torch

    path = Path(path)
    try:
        _check_torch(path)
        with torch.serialization.safe_globals(list(allow)), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # meant for programmers; faults for users are errors here
            source = path if mmap or path.exists() else _open(path)
            return torch.load(source, map_location="cpu", weights_only=True, mmap=mmap or None)
    except OSError as error:
        raise CogError(f"cannot read {path}: {error.strerror or error}") from error
    except CogError:
        raise
    except Exception as error:  # torch documents no list, and broken files raise nearly every type
        raise _torch_error(path, error) from None


def _first_words(path: Path) -> str:
    """Return the beginning of a text file; "" for a binary file, such as those of ``torch.save``."""
    with _open(path) as handle:
        head = handle.read(40).decode("latin-1")
    return head if head.isascii() and " ".join(head.split()).isprintable() else ""


def _torch_error(path: Path, error: Exception) -> CogError:
    """Return the error of a failed ``torch.load``, which has many lines, as one line with the remedy."""
    if head := _first_words(path):
        return UnsafeFileError(
            f"refused to read {path}: it is a text file that begins with {head!r}, expected a file of torch.save"
        )
    text = str(error)
    named = re.search(r"(?:GLOBAL|global) (\S+) was not an allowed global", text) or re.search(
        r"Trying to (?:load|call|instantiate) (?:un(?:supported|safe) )?(?:GLOBAL|global|class|function)? ?(\S+)",
        text,
    )
    if "legacy .tar" in text or "tarfile" in text.lower():
        return UnsafeFileError(f"{path} {TORCH_0_1}")
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
