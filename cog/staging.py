"""Output folders whose files appear together, after everything has succeeded."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cog.errors import CogError


class Stage:
    """A hidden folder inside the output folder where a run collects what it writes.

    Attributes:
        path: the hidden folder.
        replaces: names in the output folder that are deleted on publication, beside files of the same
            name as a staged entry: the parts of an older result that the new one does not have. Only folders
            named here are ever deleted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.replaces: list[str] = []


@contextlib.contextmanager
def staged(folder: str | os.PathLike[str], *, marker: str | tuple[str, ...], flag: str) -> Iterator[Stage]:
    """Collect files and publish them together when the block succeeds.

    ``marker`` names the file that tells readers that the folder is complete: it is taken away first and
    put in place last. When the block raises, or the process dies before publication, the
    output folder is as it was (a killed process leaves its hidden folder, which nothing reads).

    Args:
        folder: output folder, created if needed.
        marker: name of the file that is published last; of several, the first is the very last.
        flag: how the user gave the folder, for messages.

    Raises:
        CogError: when the folder cannot be created or written to, or holds a folder where a file should go.
    """
    folder = Path(folder)
    created: list[Path] = []
    stage = None
    markers = (marker,) if isinstance(marker, str) else marker
    try:
        try:
            for path in _missing(folder):
                with contextlib.suppress(FileExistsError):  # another run may have been faster
                    path.mkdir()
                    created.append(path)
            stage = Stage(Path(tempfile.mkdtemp(dir=folder, prefix=".partial-")))
            # mkdtemp creates 0700; entries are moved out one by one, but folders inside keep their own mode
        except OSError as error:
            raise CogError(f"cannot write into {flag} {folder}: {error.strerror or error}") from error
        yield stage
        try:
            _publish(stage, folder, markers)
        except OSError as error:
            raise CogError(f"cannot write into {folder}: {error.strerror or error}") from error
        created = []
    finally:
        if stage is not None:
            shutil.rmtree(stage.path, ignore_errors=True)
        for path in reversed(created):
            with contextlib.suppress(OSError):
                path.rmdir()


class _Probe(Exception):
    """Ends a stage that was opened to see whether it can be."""


def require_writable(folder: str | os.PathLike[str], *, flag: str) -> None:
    """Raise what :func:`staged` would, before long work; leaves nothing behind.

    Raises:
        CogError: when the folder cannot be created or written to.
    """
    with contextlib.suppress(_Probe), staged(folder, marker=(), flag=flag):
        raise _Probe


def _missing(folder: Path) -> list[Path]:
    """Return which of ``folder`` and its parents have to be created, outermost first."""
    missing = []
    path = folder
    while not os.path.lexists(path):
        missing.append(path)
        path = path.parent
    return missing[::-1]


def _publish(stage: Stage, folder: Path, markers: tuple[str, ...]) -> None:
    entries = sorted(os.listdir(stage.path))
    for name in (*entries, *markers):
        target = folder / name
        if target.is_dir() and not target.is_symlink() and name not in stage.replaces:
            raise CogError(f"{target} is a folder, and the result has a file of that name; move it elsewhere")
    for name in markers:
        _remove(folder / name)
    for name in stage.replaces:
        if name not in entries:
            _remove(folder / name)
    last = [name for name in reversed(markers) if name in entries]
    for name in [*(name for name in entries if name not in markers), *last]:
        target = folder / name
        if target.is_dir():
            _remove(target)
        os.replace(stage.path / name, target)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
