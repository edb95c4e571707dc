"""Output folders whose files appear together, after everything has succeeded.

A run collects its files in a hidden stage, ``.partial-<random>/``. When it is whole, it is sealed: everything in it
reaches the disk, then a note of what has to be done with it (:data:`NOTE_FILE`). Only then the first old file is
touched. A process that dies before that leaves the old result as it was; one that dies later leaves a sealed stage,
from which :func:`recover` finishes the publication. Readers see the old result, no result, or the new one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from cog.errors import CogError
from cog.runtime.locks import LOCK_FILE, live_holder

logger = logging.getLogger(__name__)

#: In a stage that is whole: how to publish it.
NOTE_FILE = ".publish"

#: Of the names of stages in an output folder.
STAGE_PREFIX = ".partial-"

#: In a stage: folders of the older result, until they are deleted; moving them away takes no time.
_OLD = ".old"

#: What atomic writing leaves beside a file when the process is killed (locks tidy up after themselves).
_TEMPORARY = re.compile(r"\.(\.failed|features)\.json\.[a-z0-9_]{8}\.tmp")


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
    put in place last. When the block raises, or the process dies before everything is in the stage, the
    output folder is as it was.

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
    keep = False
    try:
        try:
            for path in _missing(folder):
                with contextlib.suppress(FileExistsError):  # another run may have been faster
                    path.mkdir()
                    created.append(path)
            stage = Stage(Path(tempfile.mkdtemp(dir=folder, prefix=STAGE_PREFIX)))
            # mkdtemp creates 0700; entries are moved out one by one, but folders inside keep their own mode
        except OSError as error:
            raise CogError(f"cannot write into {flag} {folder}: {error.strerror or error}") from error
        yield stage
        note = _Note(sorted(os.listdir(stage.path)), list(markers), list(stage.replaces))
        try:
            _check(note, stage.path, folder)
            _seal(stage.path, note)
            keep, created = True, []
            _publish(stage.path, note, folder)
            keep = False
        except OSError as error:
            rest = f"; the result is whole in {stage.path}, run the same command again" if keep else ""
            raise CogError(f"cannot write into {folder}: {error.strerror or error}{rest}") from error
    finally:
        if stage is not None and not keep:
            shutil.rmtree(stage.path, ignore_errors=True)
        for path in reversed(created):
            with contextlib.suppress(OSError):
                path.rmdir()


def needs_recovery(folder: str | os.PathLike[str]) -> bool:
    """Whether there is something for :func:`recover` in ``folder``: a stage, or the lock of a process that died."""
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    if any(name.startswith(STAGE_PREFIX) for name in names):
        return True
    return any(name.startswith(LOCK_FILE) for name in names) and live_holder(folder) is None


def recover(folder: str | os.PathLike[str]) -> None:
    """Finish, or remove, what dead processes left in an output folder.

    To be called with the folder's lock held (so that nobody else is at work there), before anything is concluded from
    what the folder holds.

    Raises:
        CogError: when a publication cannot be finished.
    """
    folder = Path(folder)
    try:
        for path in sorted(folder.glob(f"{STAGE_PREFIX}*")):
            note = _read_note(path)
            if note is not None:
                _check(note, path, folder)
                _publish(path, note, folder)
                logger.info("%s: finished the publication that an earlier process had begun", folder)
            else:
                logger.info("removing %s, left by a process that was killed", path)
            with contextlib.suppress(FileNotFoundError):  # of a process that only probes
                shutil.rmtree(path)
        _remove_temporary(folder)
    except OSError as error:
        raise CogError(f"cannot write into {folder}: {error.strerror or error}") from error


def _remove_temporary(folder: Path) -> None:
    for entry in os.scandir(folder):
        if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(entry.path)


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


@dataclass(frozen=True)
class _Note:
    """What has to be done with a stage; fields as in :func:`staged` and :class:`Stage`."""

    entries: list[str]
    markers: list[str]
    replaces: list[str]


def _check(note: _Note, stage: Path, folder: Path) -> None:
    for name in (*_waiting(note, stage), *note.markers):
        target = folder / name
        if target.is_dir() and not target.is_symlink() and name not in note.replaces:
            raise CogError(f"{target} is a folder, and the result has a file of that name; move it elsewhere")


def _waiting(note: _Note, stage: Path) -> list[str]:
    """Return the entries that have not been moved out yet."""
    return [name for name in note.entries if os.path.lexists(stage / name)]


def _seal(stage: Path, note: _Note) -> None:
    """Write the stage to the disk, then the note; half a note is none (it does not parse)."""
    for root, _, names in os.walk(stage):
        for name in names:
            _sync(os.path.join(root, name))
        _sync(root)
    with open(stage / NOTE_FILE, "x", encoding="utf-8") as handle:
        json.dump(asdict(note), handle)
        handle.flush()
        os.fsync(handle.fileno())
    _sync(stage)


def _sync(path: str | os.PathLike[str]) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:  # a file that its writer may not read
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # folders, on some file systems
            raise
    finally:
        os.close(descriptor)


def _read_note(stage: Path) -> _Note | None:
    try:
        note = _Note(**json.loads((stage / NOTE_FILE).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    names = [name for names in asdict(note).values() for name in names]
    return note if all(isinstance(name, str) and name == os.path.basename(name) for name in names) else None


def _publish(stage: Path, note: _Note, folder: Path) -> None:
    """Move the entries out of a sealed stage; continues where a process that died has stopped."""
    waiting = _waiting(note, stage)
    for name in note.markers:
        if name in waiting or name not in note.entries:
            _remove(folder / name, stage)
    for name in note.replaces:
        if name not in note.entries:
            _remove(folder / name, stage)
    last = [name for name in reversed(note.markers) if name in waiting]
    for name in [*(name for name in waiting if name not in note.markers), *last]:
        target = folder / name
        if target.is_dir():
            _remove(target, stage)
        os.replace(stage / name, target)
    _sync(folder)
    (stage / NOTE_FILE).unlink()


def _remove(path: Path, stage: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        (stage / _OLD).mkdir(exist_ok=True)
        os.rename(path, os.path.join(tempfile.mkdtemp(dir=stage / _OLD), path.name))
    else:
        path.unlink(missing_ok=True)
