"""Paths of outputs, checked before any result is read."""

from __future__ import annotations

import os
from pathlib import Path

from cog.errors import CogError


def check(name: str | os.PathLike[str], *, flag: str, overwrite: bool, folder: bool = False) -> Path:
    """Return the path of a file to write, or of a folder to write into, which may be missing.

    Symbolic links to files are resolved, because atomic replacement would turn them into files.

    Raises:
        CogError: it is of another kind, cannot be written, or exists (a folder: with something in it) without
            ``overwrite``; the message names ``flag``.
    """
    path = Path(name) if folder else Path(os.path.realpath(name))
    there = path.exists()
    if there and path.is_dir() != folder:
        kind, expected = ("file", "folder") if folder else ("folder", "file")
        raise CogError(f"{flag} {name} is a {kind}, expected a {expected}")
    if not folder and not path.parent.is_dir():
        raise CogError(f"the folder of {flag} {name} does not exist; create it first")
    if there and not folder and not path.is_file():
        raise CogError(f"{flag} {name} is not a regular file")
    if there and not overwrite and (not folder or any(path.iterdir())):
        state, other = ("is not empty", "folder") if folder else ("exists", "file")
        raise CogError(f"{flag} {name} {state}; name another {other}, or add --overwrite to replace files")
    above = path.absolute().parents
    existing = next(place for place in ((path, *above) if folder else above) if place.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise CogError(f"cannot write {flag} {name}: no permission to create files in {existing}")
    return path
