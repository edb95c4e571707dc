"""Atomic writing of files, reading of regular files with a limit, hashes, and checks of paths."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import pickle
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from cog.errors import CogError, os_errors_explained

#: Default limit of a JSON file in bytes.
LARGEST_JSON = 1 << 26

# Without O_NONBLOCK, open() of a pipe without a writer waits forever, and not even a signal ends the wait.
_READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file, binary or UTF-8 text, that replaces ``path`` when the block succeeds.

    The data reach the disk (``fsync``) before the name does, so a crash leaves the previous file or the new
    one, never a part. When the block raises, ``path`` stays untouched and the temporary file is removed.

    Raises:
        CogError: the file cannot be written (missing folder, no permission, full disk).
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        # os.replace would put a regular file in the place of a device such as /dev/null.
        raise CogError(f"cannot write {path}: it exists and is not a regular file")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    # surrogateescape: file names that are not UTF-8 are written with their original bytes.
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "errors": "surrogateescape"}
    try:
        # The permissions of open() for shared result folders; those of tempfile would be 0600.
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        with os.fdopen(descriptor, mode, **text) as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise CogError(f"cannot write {path}: {error.strerror or error}") from error
    except RuntimeError as error:
        if not is_full_disk_of_torch(error):
            raise
        raise CogError(f"cannot write {path}: the data are incomplete (disk full?)") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def is_full_disk_of_torch(error: Exception) -> bool:
    """Return whether an error is that of the archive writer of ``torch.save`` on a full disk."""
    text = str(error)
    return type(error) is RuntimeError and ("PytorchStreamWriter" in text or "unexpected pos" in text)


def open_regular(path: str | os.PathLike[str], *, buffering: int = -1) -> IO[bytes]:
    """Open a regular file for reading; a pipe or a device is an error at once, without waiting for data.

    Raises:
        OSError: the file cannot be opened, or is a folder, a pipe or a device.
    """
    descriptor = os.open(path, _READ_FLAGS)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder, expected a file", str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return os.fdopen(descriptor, "rb", buffering)
    except BaseException:
        os.close(descriptor)
        raise


def contents(path: str | os.PathLike[str], kind: str = "file", largest: int | None = None) -> bytes:
    """Return the bytes of a regular file that is not empty and has at most ``largest`` bytes.

    Raises:
        CogError: the file is missing, empty, too large, unreadable or not regular.
    """
    try:
        with open_regular(path) as handle:
            size = os.fstat(handle.fileno()).st_size
            if size == 0:
                raise CogError(f"{path} is empty, not a readable {kind}; is the download or copy complete?")
            if largest is not None and size > largest:
                raise CogError(
                    f"{path} has {size:,} bytes, expected a {kind} of at most {largest:,}; is it the right file?"
                )
            return handle.read(size)
    except (OSError, ValueError) as error:
        raise CogError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def read_json(path: str | os.PathLike[str], kind: str = "JSON file", *, largest: int = LARGEST_JSON) -> Any:
    """Read a JSON file; a CogError says why it cannot be read, see :func:`contents`."""
    try:
        return json.loads(contents(path, kind, largest).decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise CogError(f"{path} is not valid JSON ({error})") from error


def read_object(
    path: str | os.PathLike[str], kind: str = "JSON file", *, largest: int = LARGEST_JSON
) -> dict[str, Any]:
    """Read a JSON file that has an object, see :func:`read_json`."""
    data = read_json(path, kind, largest=largest)
    if not isinstance(data, dict):
        raise CogError(f"{path} has {type(data).__name__}, expected a JSON object")
    return data


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 ``text`` atomically."""
    with atomic_write(path, "w") as handle:
        handle.write(text)


def write_json(path: str | os.PathLike[str], data: Any) -> None:
    """Write ``data`` as indented JSON, atomically.

    Characters beyond ASCII are escaped: paths with bytes that are not UTF-8 would otherwise break the JSON.
    """
    write_text(path, json.dumps(data, indent=2, ensure_ascii=True) + "\n")


def plain(value: Any) -> Any:
    """Return ``value`` in the types of JSON: tuples as lists, keys as text, NaN and infinity as None.

    Objects with ``tolist()``, such as numbers and arrays of numpy and torch, become Python numbers and lists.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Sequence):
        return [plain(entry) for entry in value]
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)


def write_pickle(path: str | os.PathLike[str], data: Any) -> None:
    """Write ``data`` as a pickle of protocol 4 (readable since Python 3.4), atomically."""
    with atomic_write(path) as handle:
        pickle.dump(data, handle, protocol=4)


def sha256(*paths: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file, or of several files in sequence, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in paths:
        with os_errors_explained(f"cannot read {path}"), open_regular(path) as handle:
            while chunk := handle.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()


def require_file(path: str | os.PathLike[str], flag: str) -> Path:
    """Return ``path`` as a Path when it is a readable file; else a CogError names ``flag``."""
    return _required(Path(path), flag, "file", os.path.isfile(path), os.R_OK)


def require_dir(path: str | os.PathLike[str], flag: str) -> Path:
    """Return ``path`` as a Path when it is a readable folder; see :func:`require_file`."""
    return _required(Path(path), flag, "folder", os.path.isdir(path), os.R_OK | os.X_OK)


def _required(path: Path, flag: str, kind: str, is_right: bool, rights: int) -> Path:
    if not path.exists():
        raise CogError(f"{flag} {path} does not exist; check the path")
    if not is_right:
        found = "a folder" if path.is_dir() else "a file" if path.is_file() else "not a regular file"
        raise CogError(f"{flag} {path} is {found}, expected a {kind}")
    if not os.access(path, rights):
        raise CogError(f"{flag} {path} cannot be read; check its permissions")
    return path


def ensure_writable_dir(path: str | os.PathLike[str], flag: str) -> None:
    """Create the folder ``path`` if needed, and write a temporary file there as a test."""
    with os_errors_explained(f"cannot write into {flag} {path}"):
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
