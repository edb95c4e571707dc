"""Messages about damaged and hostile checkpoints, for the readers of this package."""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from cog.errors import CogError, UnsafeFileError, os_errors_explained
from cog.runtime import safe_load

#: Errors of the readers on a damaged or hostile file.
_MALFORMED = (
    *safe_load.MALFORMED,
    RuntimeError,
    StopIteration,
    zipfile.BadZipFile,
    zlib.error,
)


@contextlib.contextmanager
def errors_explained(path: Path, kind: str) -> Iterator[None]:
    """Turn the errors of a block that reads a file of a kind, such as "safetensors file", into one line.

    Raises:
        UnsafeFileError: the block raised one; its text is the content that was refused.
        CogError: the file cannot be read, or is damaged; a CogError of the block is passed on.
    """
    try:
        with os_errors_explained(f"cannot read {path}"):
            yield
    except UnsafeFileError as error:
        raise UnsafeFileError(
            f"refused to read {path}: it contains {error}; expected only parameters in plain containers"
        ) from None
    except _MALFORMED as error:
        raise CogError(
            f"{path} is not a readable {kind} ({type(error).__name__}: {error}); is it complete?"
        ) from None
