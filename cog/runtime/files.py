"""Atomic writing of files, reading of regular files with a limit, hashes."""

import contextlib
import hashlib
import json
import math
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from cog.errors import CogError, os_errors_explained


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file that replaces ``path`` when the block succeeds and the data are on the disk."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with os_errors_explained(f"cannot write {path}"):
            if path.exists() and not path.is_file():  # a device such as /dev/null would become a file
                raise OSError(0, "it exists and is not a regular file")
            with open(temporary, "xb") as handle:
                yield handle
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(temporary, path)
    except RuntimeError as error:
        if "PytorchStreamWriter" in str(error) or "unexpected pos" in str(error):  # of torch.save
            raise CogError(f"cannot write {path}: the data are incomplete (disk full?)") from error
        raise
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def open_regular(path: str | os.PathLike[str], *, buffering: int = -1) -> IO[bytes]:
    """Open a regular file for reading; an OSError at once for a folder, a pipe or a device."""

    def opener(name: str, flags: int) -> int:
        descriptor = os.open(name, flags | os.O_NONBLOCK)  # a pipe without a writer would wait forever
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise OSError(0, "it is not a regular file", str(path))

    return open(path, "rb", buffering, opener=opener)


def contents(path: str | os.PathLike[str], largest: int = 1 << 40) -> bytes:
    """Return the bytes of a regular file that has 1 to ``largest`` bytes; else a CogError."""
    with os_errors_explained(f"cannot read {path}"), open_regular(path) as handle:
        size = os.fstat(handle.fileno()).st_size
        if 0 < size <= largest:
            return handle.read(size)
    limit = f"has {size:,} bytes, expected at most {largest:,}" if size else "is empty"
    raise CogError(f"{path} {limit}; is it the right file, and complete?")


def read_object(path: str | os.PathLike[str], largest: int = 1 << 26) -> dict[str, Any]:
    """Return the object in a JSON file; a CogError says why it cannot be read."""
    try:
        data = json.loads(contents(path, largest).decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise CogError(f"{path} is not valid JSON ({error})") from error
    if not isinstance(data, dict):
        raise CogError(f"{path} has {type(data).__name__}, expected a JSON object")
    return data


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` in UTF-8 atomically; file names that are not UTF-8 keep their bytes."""
    with atomic_write(path) as handle:
        handle.write(text.encode("utf-8", "surrogateescape"))


def write_json(path: str | os.PathLike[str], data: Any) -> None:
    """Write ``data`` as indented JSON in ASCII, atomically."""
    write_text(path, json.dumps(data, indent=2) + "\n")


def plain(value: Any) -> Any:
    """Return ``value`` in the types of JSON: arrays and tuples as lists, NaN and infinity as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str | int) or value is None:
        return value
    if isinstance(value, Sequence):
        return [plain(entry) for entry in value]
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)


def sha256(*paths: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file, or of several files in sequence, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in paths:
        with os_errors_explained(f"cannot read {path}"), open_regular(path) as handle:
            hashlib.file_digest(handle, lambda: digest)  # type: ignore[arg-type]  # IO knows no readinto
    return digest.hexdigest()
