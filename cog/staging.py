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
        replaces: names in the output folder that are deleted on publication, beside those of the same
            name as a staged entry: the parts of an older result that the new one does not have.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.replaces: list[str] = []


@contextlib.contextmanager
def staged(folder: str | os.PathLike[str], *, marker: str, flag: str) -> Iterator[Stage]:
    """Collect files and publish them together when the block succeeds.

    ``marker`` names the file that tells readers that the folder is complete: it is taken away first and
    put in place last. When the block raises, or the process dies before publication, the
    output folder is as it was (a killed process leaves its hidden folder, which nothing reads).

    Args:
        folder: output folder, created if needed.
        marker: name of the file that is published last.
        flag: how the user gave the folder, for messages.

    Raises:
        CogError: when the folder cannot be created or written to.
    """
    folder = Path(folder)
    created: list[Path] = []
    stage = None
    try:
        try:
            created = _make(folder)
            stage = Stage(Path(tempfile.mkdtemp(dir=folder, prefix=".partial-")))
            # mkdtemp creates 0700; entries are moved out one by one, but folders inside keep their own mode
        except OSError as error:
            raise CogError(f"cannot write into {flag} {folder}: {error.strerror or error}") from error
        yield stage
        try:
            _publish(stage, folder, marker)
        except OSError as error:
            raise CogError(f"cannot write into {folder}: {error.strerror or error}") from error
        created = []
    finally:
        if stage is not None:
            shutil.rmtree(stage.path, ignore_errors=True)
        for path in reversed(created):
            with contextlib.suppress(OSError):
                path.rmdir()


def _make(folder: Path) -> list[Path]:
    """Create ``folder`` with its parents and return those that were missing, outermost first."""
    missing = []
    path = folder
    while not path.exists():
        missing.append(path)
        path = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    return missing[::-1]


def _publish(stage: Stage, folder: Path, marker: str) -> None:
    (folder / marker).unlink(missing_ok=True)
    entries = sorted(os.listdir(stage.path), key=lambda name: name == marker)
    for name in stage.replaces:
        if name not in entries:
            _remove(folder / name)
    for name in entries:
        target = folder / name
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(stage.path / name, target)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
