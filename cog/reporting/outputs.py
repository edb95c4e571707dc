"""Paths of outputs, checked before any result is read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cog.errors import CogError


def check_file(name: str | os.PathLike[str], *, flag: str, overwrite: bool) -> Path:
    """Return the path of a file to write, with symbolic links resolved; messages name its ``flag``.

    Raises:
        CogError: when the file cannot be written there, or exists without ``overwrite``.
    """
    path = Path(os.path.realpath(name))  # atomic replacement would turn a link into a file
    if path.is_dir():
        raise CogError(f"{flag} {name} is a folder, expected a file")
    if not path.parent.is_dir():
        raise CogError(f"the folder of {flag} {name} does not exist; create it first")
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise CogError(f"{flag} {name} is not a regular file")
    if path.exists() and not overwrite:
        raise CogError(f"{flag} {name} exists; name another file, or add --overwrite to replace it")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise CogError(f"cannot write {flag} {name}: no permission to create files in its folder")
    return path


def check_folder(name: str | os.PathLike[str], *, flag: str, overwrite: bool) -> Path:
    """Return the path of a folder to write into, which may be missing.

    Raises:
        CogError: when it is a file, cannot be written, or holds something without ``overwrite``.
    """
    path = Path(name)
    if path.exists() and not path.is_dir():
        raise CogError(f"{flag} {name} is a file, expected a folder")
    if path.is_dir() and any(path.iterdir()) and not overwrite:
        raise CogError(
            f"{flag} {name} is not empty; name another folder, or add --overwrite to replace files in it"
        )
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise CogError(f"cannot write into {flag} {name}: no permission to create files in {existing}")
    return path
