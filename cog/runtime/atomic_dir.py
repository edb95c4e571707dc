"""Publication of output folders: the files of a result appear together, after all work has succeeded.

A run collects its files in a hidden stage, ``.partial-<random>/``. A complete stage is sealed: its files are written
to the disk (``fsync``), then a note with the instructions for publication (:data:`NOTE_FILE`). The first old file is
touched only after that. A process that dies before sealing leaves the old result unchanged; a process that dies later
leaves a sealed stage, from which :func:`recover` finishes the publication. Readers see the old result, no result, or
the new result.
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

#: File in a sealed stage: the instructions for its publication.
NOTE_FILE = ".publish"

#: Prefix of the names of stages in an output folder.
STAGE_PREFIX = ".partial-"

#: Folder in a stage for the folders of the older result, until they are deleted; a move takes no time.
_OLD = ".old"

#: Pattern of the files in an output folder that are written one by one, outside of publications.
_WRITTEN = r"(\.failed|features)\.json"


@contextlib.contextmanager
def staged(folder: Path, *, markers: Sequence[str], replaces: Sequence[str] = ()) -> Iterator[Path]:
    """Yield a hidden folder, and publish the files in it together when the block succeeds.

    The output folder stays unchanged when the block raises, or when the process dies before the stage is sealed.

    Args:
        folder: output folder.
        markers: names of the files whose presence marks the folder as complete: the old ones are removed first, the
            new ones are moved into place last, in reverse order.
        replaces: names in the output folder that are deleted on publication: the parts of an older result that the
            new one lacks. Files with the name of a staged entry are replaced anyway; folders only if named here.

    Raises:
        CogError: when the folder cannot be written to, or contains a folder with the name of a file of the result.
    """
    with os_errors_explained(f"cannot write into {folder}"):
        # mkdtemp creates mode 0700; entries are moved out one by one, and folders among them keep their own mode
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
    """Return whether :func:`recover` has work to do in ``folder``: a stage, or the lock of a process that died."""
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    if any(name.startswith(STAGE_PREFIX) for name in names):
        return True
    return any(name.startswith(LOCK_FILE) for name in names) and live_holder(folder) is None


def is_half_published(folder: Path) -> bool:
    """Return whether :func:`recover` will finish a publication in ``folder``."""
    return any(_read_note(stage) is not None for stage in folder.glob(f"{STAGE_PREFIX}*"))


def recover(folder: str | os.PathLike[str]) -> None:
    """Finish the publications of dead processes in an output folder, and remove their unsealed stages and files.

    The caller holds the lock of the folder, so that no other process works there, and calls this function before it
    reads the contents of the folder.

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
            with contextlib.suppress(FileNotFoundError):  # another process may remove it at the same moment
                shutil.rmtree(path)
    files.remove_temporary(folder, _WRITTEN)


@dataclass(frozen=True)
class _Note:
    """Instructions for the publication of a stage: the names of its entries; other fields as in :func:`staged`."""

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
    """Write the stage to the disk, then the note; a note that is cut off does not parse and counts as missing."""
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
    except PermissionError:  # the mode of the file forbids reading
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # not supported for all folders
            raise
    finally:
        os.close(descriptor)


def _read_note(stage: Path) -> _Note | None:
    try:
        note = _Note(**files.read_object(stage / NOTE_FILE))
    except (CogError, TypeError):
        return None
    names = [name for names in asdict(note).values() for name in names]
    return note if all(isinstance(name, str) and name == os.path.basename(name) for name in names) else None


def _publish(stage: Path, note: _Note, folder: Path) -> None:
    """Move the entries out of a sealed stage, or the remaining ones if an earlier process died in the middle."""
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
