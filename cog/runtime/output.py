"""Output folders: a result appears by one rename; unfinished work lies beside it.

::

    seed-22/            the result: complete, or not there
    .seed-22.work/      unfinished work: lock, identity.json, saved states, program.log, failed.json

The same command gives the same bits, so the lock only saves time: without locks, nothing is ever wrong.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from cog.constants import RESULTS_FILE
from cog.errors import CogError, first_line, some
from cog.runtime import files, signals

DONE, RUNNING, FAILED, INTERRUPTED, MISSING = "done", "running", "failed", "interrupted", "missing"
LOG_FILE, FAILURE_FILE, NOTE_FILE, _LOCK = "program.log", "failed.json", "identity.json", ".lock"

#: Descriptors of locks; a forked worker closes them, as it would keep them locked after its parent's end.
_held: set[int] = set()
os.register_at_fork(after_in_child=lambda: [*map(os.close, _held)])


class BusyError(CogError):
    """Another process works on the output."""


class State(NamedTuple):
    """State of an output: its word, and who works on it, or the reason of a failure."""

    word: str
    detail: str = ""


@dataclass
class Output:
    """The place of a result and, as JSON gives it back, what determines it, an entry of the file ``record``.

    ``contents`` are patterns of the names in a result, of folders with a slash; none: any files.
    """

    path: Path
    identity: Mapping[str, Any]
    record: str = RESULTS_FILE
    contents: tuple[str, ...] = ()
    is_published: bool = False  # in :meth:`claimed`: the result is there, by this process or by another one

    @property
    def target(self) -> Path:
        """The folder itself, if ``path`` is a link: users link features to another disk."""
        return Path(os.path.realpath(self.path))

    @property
    def work(self) -> Path:
        """Folder of unfinished work, whose states the next start continues from."""
        return self.target.with_name(f".{self.target.name}.work")

    def is_done(self, *, overwrite: bool = False) -> bool:
        """Return whether the result is there; another one is a CogError, or False with ``overwrite``."""
        is_done = self.has_result(overwrite=overwrite)
        if is_done and self.work.is_dir():  # left by a process that was killed after the publication
            with contextlib.suppress(CogError, OSError), self.claimed():
                pass
        return is_done

    def has_result(self, *, overwrite: bool = False) -> bool:
        """Return the same as :meth:`is_done`, changing nothing; subclasses may have further conditions."""
        entries = os.scandir(self.path) if self.path.exists() else ()
        names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries)
        has_record = self.record in names
        usual = self.contents or (("*[!/]",) if has_record else ())
        foreign = [name for name in names if not any(fnmatchcase(name, pattern) for pattern in usual)]
        if foreign and (overwrite or not has_record):
            raise CogError(f"{self.path} has files of others ({some(foreign)}); move them away")
        if not names or (overwrite and not has_record):
            return False
        try:
            stored = files.read_object(self.path / self.record).get("identity")
            changed = differences(stored if isinstance(stored, dict) else {}, self.identity)
        except CogError as error:
            changed = [str(error)]
        if changed and not overwrite:
            what = f"has another result ({'; '.join(changed)}); add --overwrite to replace it"
            raise CogError(f"{self.path} {what}")
        return not changed

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Work on the output in the block; a BusyError when another process does."""
        with locked(self.work) as is_owner:
            if not is_owner:
                raise BusyError(f"another process works on {self.path} ({_owner(self.work) or 'until now'})")
            self._begin()
            try:
                yield
            except Exception as error:
                if not isinstance(error, signals.Interrupted | BusyError):
                    with contextlib.suppress(CogError):
                        files.write_json(self.work / FAILURE_FILE, {"reason": first_line(error)})
                raise
            if self.is_published:
                _empty(self.work, "[!~]*")  # without locks, others may be about to publish theirs
                (self.work / _LOCK).unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # another process looks at it
                    self.work.rmdir()

    def _begin(self) -> None:
        """Keep the states of earlier work on the same result, and remove those of another."""
        note, identity = self.work / NOTE_FILE, dict(self.identity)
        (self.work / FAILURE_FILE).unlink(missing_ok=True)
        for old in self.work.glob("~stage-old-*"):  # killed between the two renames of a replacement
            if not self.target.exists():
                old.rename(self.target)
        is_continued = self.is_published = False
        with contextlib.suppress(CogError):  # missing, or damaged by others
            is_continued = files.read_object(note) == identity
        _empty(self.work, "~stage-*" if is_continued else "*")
        files.write_json(note, identity)
        with contextlib.suppress(CogError):
            self.is_published = self.has_result()

    @contextlib.contextmanager
    def publish(self) -> Iterator[Path]:
        """Yield a folder that becomes the result, with the log, at the end; the old one stays until then."""
        token, target = secrets.token_hex(8), self.target
        stage, old = self.work / f"~stage-{token}", self.work / f"~stage-old-{token}"
        stage.mkdir()
        yield stage
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(self.work / LOG_FILE, stage / LOG_FILE)
        for path in [*stage.rglob("*"), stage]:
            _sync(path)
        with contextlib.suppress(FileNotFoundError):
            target.rename(old)
        try:
            stage.rename(target)
        except OSError:  # without locks, another process has removed the stage, or was faster
            with contextlib.suppress(OSError):
                old.rename(target)
            raise
        _empty(self.work, old.name)
        _sync(target.parent)
        self.is_published = True


def state(path: Path, record: str) -> State:
    """Return the state of the output folder ``path`` with the last file ``record``, from files alone."""
    folder, result = Output(path, {}).work, path / record
    if result.is_file() or not folder.is_dir():
        return State(DONE if result.is_file() else MISSING)
    found = State(RUNNING, owner) if (owner := _owner(folder)) else State(INTERRUPTED)
    with contextlib.suppress(CogError):  # an owner has removed the reason of an earlier failure
        found = State(FAILED, str(files.read_object(folder / FAILURE_FILE, largest=1 << 20).get("reason")))
    return State(DONE) if result.is_file() else found  # published in between


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the differences of two identities as ``key: old -> new``, nested keys joined by dots."""
    changes = []
    for key in {**stored, **wanted}:
        old, new = stored.get(key), wanted.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changes += differences(old, new, f"{prefix}{key}.")
        elif old != new:
            changes.append(f"{prefix}{key}: {old} -> {new}")
    return changes


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Lock a folder, which is made, in the block; yield False when another process keeps it for a second."""
    end = time.monotonic() + 1
    while (lock := _lock(folder)) is None and time.monotonic() < end:
        time.sleep(0.01)
    if lock is None:
        folder.mkdir(parents=True, exist_ok=True)  # where that fails, nobody keeps it
    try:
        yield lock is not None
    finally:
        if lock is not None:
            _held.discard(lock)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except (FileNotFoundError, FileExistsError):  # its last owner has just removed the folder
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = os.path.samestat(os.fstat(lock), os.stat(folder / _LOCK))
    except (BlockingIOError, FileNotFoundError):
        is_ours = False
    except OSError:  # a file system without locks
        is_ours = True
    if not is_ours:
        os.close(lock)
        return None
    with contextlib.suppress(OSError):  # a full disk: the name is for messages alone
        os.pwrite(lock, f"{socket.gethostname()}, process {os.getpid()}".ljust(80).encode(), 0)
    _held.add(lock)
    return lock


def _owner(folder: Path) -> str:
    """Return who keeps a folder locked, or ""; who asks does not disturb others who ask, and owners wait."""
    with contextlib.suppress(OSError), files.open_regular(folder / _LOCK) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return lock.read(80).decode("utf-8", "replace").strip() or "unknown"
    return ""


def _empty(folder: Path, pattern: str) -> None:
    """Remove what matches in a work folder; folders by a rename first: nobody publishes a part of one."""
    for path in [*folder.glob(pattern), *folder.glob("gone-*")]:
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path.rename(folder / f"gone-{secrets.token_hex(8)}"))
            elif path.name != _LOCK:
                path.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not supported for all folders
            raise
    finally:
        os.close(descriptor)
