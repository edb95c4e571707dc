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
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cog.errors import CogError, os_errors_explained
from cog.runtime import files
from cog.runtime.locks import LOCK_FILE, live_holder

logger = logging.getLogger(__name__)

#: In a stage that is whole: how to publish it.
NOTE_FILE = ".publish"

#: Of the names of stages in an output folder.
STAGE_PREFIX = ".partial-"

#: In a stage: folders of the older result, until they are deleted; moving them away takes no time.
_OLD = ".old"

#: Files of an output folder that are written beside a publication.
_WRITTEN = r"(\.failed|features)\.json"


@contextlib.contextmanager
def staged(folder: Path, *, markers: Sequence[str], replaces: Sequence[str] = ()) -> Iterator[Path]:
    """Yield a hidden folder in which files are collected, and publish them together when the block succeeds.

    When the block raises, or the process dies before everything is in the stage, the output folder is as it was.

    Args:
        folder: output folder.
        markers: names of the files that tell readers that the folder is complete: they are taken away first and put in
            place last, the first as the very last.
        replaces: names in the output folder that are deleted on publication, beside files of the same name as a staged
            entry: the parts of an older result that the new one lacks. Only folders named here are ever deleted.

    Raises:
        CogError: when the folder cannot be written to, or holds a folder where a file should go.
    """
    with os_errors_explained(f"cannot write into {folder}"):
        # mkdtemp creates 0700; entries are moved out one by one, but folders inside keep their own mode
        stage = Path(tempfile.mkdtemp(dir=folder, prefix=STAGE_PREFIX))
    keep = False
    try:
        yield stage
        note = _Note(sorted(os.listdir(stage)), list(markers), list(replaces))
        try:
            _check(note, stage, folder)
            _seal(stage, note)
            keep = True
            _publish(stage, note, folder)
            keep = False
        except OSError as error:
            rest = f"; the result is whole in {stage}, run the same command again" if keep else ""
            raise CogError(f"cannot write into {folder}: {error.strerror or error}{rest}") from error
    finally:
        if not keep:
            shutil.rmtree(stage, ignore_errors=True)


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
    with os_errors_explained(f"cannot write into {folder}"):
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
    files.remove_temporary(folder, _WRITTEN)


@dataclass(frozen=True)
class _Note:
    """What has to be done with a stage; fields as in :func:`staged`."""

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
