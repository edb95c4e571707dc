"""Output folders: a result appears by one rename; unfinished work lies beside it.

::

    seed-22/            the result: complete, or not there
    .seed-22.work/      unfinished work: lock, identity.json, saved states, program.log, failed.json; gone when done

The same command gives the same bits, so a result that two processes compute costs time and is never wrong: each
publishes a stage of its own. The lock only saves that time. It is the system's (``flock``), which releases it with its
process, however that ends; where a file system has none, work goes on without.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cog.errors import CogError, some
from cog.runtime import files, signals

#: Words of :class:`State`.
DONE, RUNNING, FAILED, INTERRUPTED, MISSING = "done", "running", "failed", "interrupted", "missing"

LOG_FILE, FAILURE_FILE = "program.log", "failed.json"
_LOCK, _NOTE, _STAGE = ".lock", "identity.json", "stage-"


class OutputError(CogError):
    """An output folder has another result, or files that are not a result."""


class BusyError(OutputError):
    """Another process works on the output."""


@dataclass(frozen=True)
class State:
    """The state of an output.

    Attributes:
        word: ``done``, ``running``, ``failed``, ``interrupted`` or ``missing``.
        detail: host and process of running work, the reason of failed work, else "".
    """

    word: str
    detail: str = ""


@dataclass(frozen=True)
class Output:
    """The place of a result, and what determines its content.

    Attributes:
        path: folder of the result.
        identity: what determines the result: settings, digests of the inputs. JSON must give it back equal (lists, no
            tuples).
        record: file of the result whose entry ``identity`` has the identity; the last file that a program writes.
        contents: patterns of the names that a result may have (``fnmatch``); ``overwrite`` replaces no folder with
            other files. Empty: any.
    """

    path: Path
    identity: Mapping[str, Any]
    record: str = "results.json"
    contents: tuple[str, ...] = ()

    @property
    def work(self) -> Path:
        """Folder of unfinished work."""
        return work_folder(self.path)

    def read(self) -> dict[str, Any] | None:
        """Return the record of the result; None without a result.

        Raises:
            CogError: the record cannot be read.
        """
        path = self.path / self.record
        return files.read_object(path) if os.path.lexists(path) else None

    def is_done(self, *, overwrite: bool = False) -> bool:
        """Return whether the result is there; with ``overwrite``, False where another one is to be replaced.

        Raises:
            OutputError: the folder has another result (the message names each difference), or unknown files.
            CogError: the record of the result cannot be read.
        """
        names = sorted(os.listdir(self.path)) if self.path.is_dir() else []
        foreign = [name for name in names if not any(fnmatch.fnmatch(name, each) for each in self.contents)]
        if overwrite and self.contents and foreign:
            raise OutputError(
                f"{self.path} has files of others ({some(foreign)}), not replaced; move them away"
            )
        try:
            record = self.read()
        except CogError as error:
            if overwrite:
                return False
            raise OutputError(f"{error}; add --overwrite to replace {self.path}") from error
        if record is None:
            if names and not overwrite:
                text = f"{self.path} has files ({some(names)}) and no {self.record}"
                raise OutputError(f"{text}; move them away, or add --overwrite to replace the folder")
            return False
        stored = record.get("identity")
        changed = differences(stored if isinstance(stored, dict) else {}, self.identity)
        if changed and not overwrite:
            raise OutputError(
                f"{self.path} has another result ({'; '.join(changed)}); add --overwrite to replace it"
            )
        return not changed

    def _is_done_equally(self) -> bool:
        try:
            return self.is_done()
        except CogError:
            return False

    @contextlib.contextmanager
    def claimed(self) -> Iterator[Work]:
        """Work on the output in the block.

        What the block leaves in the work folder is there again at the next start. A failure is noted there, with its
        reason. When another process has just finished the result, ``published`` of the yielded work is True, and
        nothing is left to do.

        Raises:
            BusyError: another process works on it.
        """
        # An observer holds the lock for a moment.
        with locked(self.work, patience=1.0) as is_owner:
            if not is_owner:
                raise BusyError(f"another process works on {self.path} ({owner(self.work)})")
            work = Work(self, published=self._is_done_equally())
            work.begin()
            try:
                yield work
                work.end()
            except FileNotFoundError:
                # Only without locks: another process has published the equal result, and cleared up.
                if not self._is_done_equally():
                    raise
            except (Exception, KeyboardInterrupt) as error:
                if not isinstance(error, signals.Interrupted | KeyboardInterrupt):
                    work.note_failure(error)
                raise

    def state(self) -> State:
        """Return the state of the output, whatever its identity is."""
        return state(self.path, self.record)


@dataclass
class Work:
    """Unfinished work on an output, in :attr:`folder`; made by :meth:`Output.claimed`."""

    output: Output
    published: bool = False

    @property
    def folder(self) -> Path:
        """Folder for states that the next start continues from."""
        return self.output.work

    def begin(self) -> None:
        """Keep the states of earlier work on the same result, and remove those of another."""
        note, identity = self.folder / _NOTE, dict(self.output.identity)
        (self.folder / FAILURE_FILE).unlink(missing_ok=True)
        try:
            is_continued = files.read_json(note) == identity
        except CogError:  # missing, or damaged by others
            is_continued = False
        if not is_continued:
            _empty(self.folder)
            files.write_json(note, identity)

    @contextlib.contextmanager
    def publish(self) -> Iterator[Path]:
        """Yield an empty folder, which becomes the result when the block succeeds; the log file moves into it.

        An old result stays until the new one is complete. Where another process was faster (possible only without
        locks), its result stays: it is equal.
        """
        stage, target = self.folder / f"{_STAGE}{secrets.token_hex(8)}", _real(self.output.path)
        stage.mkdir()
        yield stage
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(self.folder / LOG_FILE, stage / LOG_FILE)
        for path in [*stage.rglob("*"), stage]:
            _sync(path)
        try:
            stage.rename(target)  # fails when there is a result
        except OSError:
            if not self.output._is_done_equally():
                target.rename(self.folder / f"{_STAGE}old-{secrets.token_hex(8)}")
                stage.rename(target)
        _sync(target.parent)
        self.published = True

    def note_failure(self, error: BaseException) -> None:
        """Write the reason of a failure for :func:`state`; a full disk has none."""
        with contextlib.suppress(CogError, OSError):
            files.write_json(self.folder / FAILURE_FILE, {"reason": str(error) or type(error).__name__})

    def end(self) -> None:
        """Remove the work of a published result."""
        if self.published:
            _empty(self.folder)
            (self.folder / _LOCK).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # another process looks at it
                self.folder.rmdir()


def state(path: Path, record: str) -> State:
    """Return the state of an output folder, from files alone.

    Args:
        path: folder of the result.
        record: its last file, see :class:`Output`.
    """
    if (path / record).is_file():
        return State(DONE)
    folder = work_folder(path)
    if not folder.is_dir():
        return State(MISSING)
    try:
        with locked(folder, make=False) as is_free:
            if not is_free:
                return State(RUNNING, owner(folder))
    except OSError:  # somebody else's folder, or gone in between
        pass
    try:
        failure = files.read_object(folder / FAILURE_FILE, largest=1 << 20)
    except CogError:
        return State(DONE) if (path / record).is_file() else State(INTERRUPTED)
    return State(FAILED, str(failure.get("reason", "")))


def work_folder(path: Path) -> Path:
    """Return the folder of unfinished work on the result ``path``."""
    path = _real(path)
    return path.with_name(f".{path.name}.work")


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the differences of two identities, each as ``key: old -> new``, nested keys joined by dots."""
    changes = []
    for key in [*stored, *(key for key in wanted if key not in stored)]:
        old, new = stored.get(key), wanted.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changes += differences(old, new, f"{prefix}{key}.")
        elif old != new:
            changes.append(f"{prefix}{key}: {old} -> {new}")
    return changes


@contextlib.contextmanager
def locked(folder: Path, *, patience: float = 0.0, make: bool = True) -> Iterator[bool]:
    """Lock a folder in the block; yield False when another process keeps it locked, else True.

    Args:
        folder: made if it is missing, with ``make``.
        patience: seconds to try.
        make: False to look only: the owner of the lock is not written down.
    """
    end = time.monotonic() + patience
    while True:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(
                folder / _LOCK, os.O_RDWR | (os.O_CREAT if make else 0) | os.O_NOFOLLOW, 0o666
            )
        except FileNotFoundError:  # the folder has just been removed
            if not make:
                raise
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(folder / _LOCK)):
                break
        except BlockingIOError:
            os.close(descriptor)
            if time.monotonic() < end:
                time.sleep(0.01)
                continue
            yield False
            return
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                raise
            break
        os.close(descriptor)  # the last owner has removed the file in between
    try:
        if make:
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"{socket.gethostname()}, process {os.getpid()}".encode(), 0)
        yield True
    finally:
        os.close(descriptor)


def owner(folder: Path) -> str:
    """Return host and process of the last owner of a work folder, for messages."""
    try:
        return files.contents(folder / _LOCK, largest=1 << 12).decode("utf-8", "replace")
    except CogError:
        return "unknown host"


def _real(path: Path) -> Path:
    """Return the folder that a link means: users link features to another disk."""
    return path.resolve() if path.is_symlink() else path


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != _LOCK:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
