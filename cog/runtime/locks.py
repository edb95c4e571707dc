"""Locks of output folders: one process at a time works on a folder.

The lock is a file ``.lock`` in the folder. It records its holder (host, process, start time) and is touched every few
seconds while that process lives. It is created by a hard link, which is atomic on network file systems too; neither a
daemon nor ``flock`` is needed (shared file systems are often mounted without the latter).

A lock is stale, and is taken over, in three cases:

* its process ran in this boot of this host and is gone (recognized by process number and start time);
* its process ran on another host, and did not touch it for :data:`STALE_SECONDS` by the clock of the file server;
* it belongs to an earlier start of the same SLURM job, which was requeued.

Every lock has a random token. The fate of the lock with token ``t`` is decided once, by the process that creates its
successor ``.lock.after-t`` (again by a hard link) while ``.lock`` still has that token: a process that takes the lock
over, or the holder that releases it. A process that saw a stale lock but was overtaken finds ``.lock`` changed after it
has created the successor, and starts again; no process moves or deletes a lock that may belong to another one by then.
When the deciding process dies too early, its successor file is a stale lock with a successor of its own.

A process that was considered dead may only have been suspended: :meth:`Lock.require_held` raises an error then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import secrets
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from cog.errors import CogError
from cog.runtime import files, provenance

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"

#: Seconds between two touches of a held lock.
TOUCH_SECONDS = 15.0

#: Seconds without a touch after which a lock of another host is stale: far above the delay of a touch by a file server
#: that hangs or caches attributes (60 s by default on NFS).
STALE_SECONDS = 300.0

#: Seconds after which an unreadable lock file is damaged, and not just being written.
DAMAGED_SECONDS = 10.0

#: Upper bound of the size of a lock file in bytes.
_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock.

    Attributes:
        host: name of the machine.
        pid: process number on that machine.
        started: start of the process in clock ticks since boot ("" without /proc).
        boot: id of the boot of the machine.
        since: time of the acquisition, ISO 8601, UTC.
        command: name of the script.
        job: SLURM job (and array task), or "".
        restarts: number of restarts of that job by SLURM.
        token: random text that distinguishes locks.
    """

    host: str
    pid: int
    started: str
    boot: str
    since: str
    command: str
    job: str
    restarts: int
    token: str

    def __str__(self) -> str:
        job = f", SLURM job {self.job}" if self.job else ""
        return f"{self.command} on {self.host}, process {self.pid}{job}, since {self.since}"


class LockedError(CogError):
    """Another live process works on the same output."""


class Lock:
    """A held lock, see :func:`locked`.

    Attributes:
        path: the lock file.
        holder: this process.
    """

    def __init__(self, path: Path, holder: Holder) -> None:
        self.path = path
        self.holder = holder
        self._released = threading.Event()
        self._toucher = threading.Thread(target=self._touch, name="cog-lock", daemon=True)
        self._toucher.start()

    def _touch(self) -> None:
        while not self._released.wait(TOUCH_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self.path)

    def require_held(self) -> None:
        """Raise an error when the lock was lost; to be called before a publication.

        When a process stands still for minutes (a suspended machine, a file server that hangs), another process may
        consider it dead and take over its lock.

        Raises:
            LockedError: when another process holds the lock now, or no process does.
        """
        chain = _chain(self.path)
        if chain and chain[-1].token == self.holder.token:
            return
        if chain and chain[-1].holder is not None:
            raise LockedError(
                f"{self.path} was taken over by {chain[-1].holder} while this process was suspended; nothing was "
                "written; leave the work to that process, or run the same command again when it has ended"
            )
        raise LockedError(
            f"{self.path} is gone: it was removed, or taken over by a process that has ended since, while this process "
            "was suspended; nothing was written; run the same command again"
        )

    def release(self) -> None:
        """Release the lock."""
        self._released.set()
        self._toucher.join()
        _release(self.path, self.holder)


@contextlib.contextmanager
def locked(
    folder: str | os.PathLike[str], *, flag: str, name: str = LOCK_FILE, create: bool = True
) -> Iterator[Lock]:
    """Hold the lock of an output folder, or of a part of it, during the block.

    The folder is created if needed (unless ``create`` is False), and removed again if it is empty at the end.

    Args:
        folder: output folder.
        flag: flag with which the user gave the folder, for messages.
        name: name of the lock file; parts of a folder that are written separately have locks of their own.
        create: whether to create a missing folder; otherwise it is an error.

    Raises:
        LockedError: when a live process holds the lock; the message names the process, its host and the time.
        CogError: when the folder cannot be created or written to.
    """
    folder = Path(folder)
    created: list[Path] = []
    try:
        for attempt in range(10):
            try:
                missing = [path for path in (*folder.parents[::-1], folder) if not os.path.lexists(path)]
                for path in missing if create else ():
                    with contextlib.suppress(FileExistsError):
                        path.mkdir()
                        created.append(path)
                lock = _acquire(folder, name)
                break
            except FileNotFoundError:  # another process created the folder and removed it again
                if attempt == 9 or not create:
                    raise
    except (OSError, LockedError) as error:
        for path in reversed(created):
            with contextlib.suppress(OSError):
                path.rmdir()
        if isinstance(error, LockedError):
            raise
        raise CogError(f"cannot write into {flag} {folder}: {error.strerror or error}") from error
    try:
        yield lock
    finally:
        lock.release()
        for path in reversed(created):
            with contextlib.suppress(OSError):
                path.rmdir()


def live_holder(folder: str | os.PathLike[str], *, name: str = LOCK_FILE) -> Holder | None:
    """Return the live process that holds the lock of ``folder``; None without a lock, or with a stale one."""
    chain = _chain(Path(folder) / name)
    if not chain or chain[-1].is_stale():
        return None
    return chain[-1].holder


@dataclass(frozen=True)
class _Entry:
    """A lock file at the time of reading.

    Attributes:
        path: the file.
        holder: process in the file; None when the file is damaged, or not yet written completely.
        token: token of the holder; for a damaged file, its inode number and modification time.
    """

    path: Path
    holder: Holder | None
    token: str

    def is_stale(self) -> bool:
        """Return whether the process of the lock is gone, or the file is damaged."""
        holder = self.holder
        if holder is None:
            return _age(self.path) > DAMAGED_SECONDS
        me = _this_process()
        if holder.job and holder.job == me.job and holder.restarts < me.restarts:
            return True
        # The same host with another boot is the machine after a restart, or another container with that host name. Such
        # a process cannot be seen from here, and counts as alive as long as it touches its lock.
        if (holder.host, holder.boot) == (me.host, me.boot):
            started = _start_of(holder.pid)
            if started is None or started:  # "": it is alive, and /proc hides the processes of other users
                return started is None or (bool(holder.started) and started != holder.started)
        # A time in the future is that of a server whose clock was wrong.
        return abs(_age(self.path)) > STALE_SECONDS


def _chain(path: Path) -> list[_Entry]:
    """Return the lock file and its successors, of which the last one is in force; empty without a lock."""
    chain: list[_Entry] = []
    here = path
    while (entry := _entry(here)) is not None and entry.token not in _tokens(chain):
        chain.append(entry)
        here = _successor(path, entry.token)
    return chain


def _entry(path: Path) -> _Entry | None:
    try:
        status = path.stat()
    except OSError:
        return None
    holder = None
    with contextlib.suppress(OSError), files.open_regular(path) as handle:
        holder = _parse(handle.read(_MOST_BYTES))
    return _Entry(path, holder, holder.token if holder else f"{status.st_ino:x}-{status.st_mtime_ns:x}")


def _tokens(chain: list[_Entry]) -> list[str]:
    return [entry.token for entry in chain]


def _successor(path: Path, token: str) -> Path:
    return path.with_name(f"{path.name}.after-{token}")


def _acquire(folder: Path, lock_file: str) -> Lock:
    path = folder / lock_file
    me = _this_process()
    record = _write_holder(path, me)
    try:
        deadline = time.monotonic() + DAMAGED_SECONDS + 10
        while time.monotonic() < deadline:
            if _link(record, path):
                _remove_stale(path, me)
                return Lock(path, me)
            chain = _chain(path)
            if not chain:  # released at this moment
                time.sleep(0.01)
                continue
            last = chain[-1]
            if not last.is_stale():
                if last.holder is None:
                    time.sleep(0.05)
                    continue
                raise LockedError(
                    f"{folder} is being written by {last.holder}; wait for it to end (its lock is {path})"
                )
            if _decide(path, chain, record, me):
                os.replace(record, path)  # from now on other processes find this lock at ``path``
                _remove_stale(path, me)
                if last.holder is not None:
                    logger.info("took over the lock of a process that has ended: %s", last.holder)
                return Lock(path, me)
        raise LockedError(
            f"{path} is taken by other processes again and again; too many processes want {folder}"
        )
    finally:
        with contextlib.suppress(OSError):
            record.unlink()


def _write_holder(path: Path, holder: Holder) -> Path:
    """Write the record of a process to a file beside the lock, which is then linked to the name of the lock."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.{_mark(os.getpid())}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            json.dump(asdict(holder), handle)
            handle.flush()
            os.fsync(handle.fileno())
        os.chmod(name, 0o644)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    return Path(name)


def _decide(path: Path, chain: list[_Entry], record: Path, me: Holder) -> bool:
    """Try to create the only successor of the last lock of ``chain``; return whether that has succeeded."""
    claim = _successor(path, chain[-1].token)
    if not _link(record, claim):
        return False
    # While the successor exists, no other process decides; but one may have decided before its creation.
    if _tokens(_chain(path)) == [*_tokens(chain), me.token]:
        return True
    with contextlib.suppress(OSError):
        claim.unlink()
    return False


def _release(path: Path, holder: Holder) -> None:
    chain = _chain(path)
    if _tokens(chain) != [holder.token]:
        return  # taken over, or gone
    successor = dataclasses.replace(holder, token=secrets.token_hex(16))
    try:
        record = _write_holder(path, successor)
    except OSError:  # a full disk: a lock that stays behind would be worse than a race
        with contextlib.suppress(OSError):
            path.unlink()
        return
    try:
        is_released = _decide(path, chain, record, successor)
    except OSError:  # a full disk, as above
        is_released = True
    if is_released:
        with contextlib.suppress(OSError):
            path.unlink()
            # The next process may have come already, and have removed this file: its lock is at ``path`` then.
            _successor(path, holder.token).unlink()
    with contextlib.suppress(OSError):
        record.unlink()


def _remove_stale(path: Path, me: Holder) -> None:
    """Remove the files of dead processes beside the lock, which this process holds."""
    with contextlib.suppress(OSError):
        for name in os.listdir(path.parent):
            if not name.startswith(f"{path.name}."):
                continue
            entry = _entry(path.with_name(name))
            if entry is None:
                continue
            decided = name.startswith(f"{path.name}.after-") and name != _successor(path, me.token).name
            if decided or entry.is_stale() or (entry.holder is None and _is_of_dead_process(name)):
                with contextlib.suppress(OSError):
                    entry.path.unlink()


def _link(source: Path, path: Path) -> bool:
    """Create ``path`` with the contents of ``source``; return False when ``path`` exists, else True."""
    try:
        os.link(source, path)
        return True
    except OSError as error:
        # The answer of a file server can be lost, and the repeated request fails because the first one succeeded.
        with contextlib.suppress(OSError):
            if os.path.samefile(source, path):
                return True
        if isinstance(error, FileExistsError):
            return False
        if isinstance(error, FileNotFoundError):
            raise
    # A file system without hard links (FAT, some FUSE mounts).
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(source.read_bytes())
    except OSError:
        path.unlink()
        raise
    return True


def _parse(content: bytes) -> Holder | None:
    """Return the holder in the first line of a lock file; None when the line is not a valid record.

    Earlier versions appended the record of a process that took over.
    """
    try:
        data = json.loads(content.partition(b"\n")[0])
        holder = Holder(**{field.name: data[field.name] for field in fields(Holder)})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    for name, value in asdict(holder).items():
        if type(value) is not (int if name in ("pid", "restarts") else str):
            return None
    # The token becomes part of a file name.
    is_valid = 0 <= holder.pid < 2**31 and re.fullmatch("[0-9a-z]{1,64}", holder.token)
    return holder if is_valid else None


def _age(path: Path) -> float:
    """Return the seconds since the last touch of ``path``, both times by the clock of its file server."""
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f"{path.name}.now.{_mark(os.getpid())}."
        ) as probe:
            now = os.stat(probe.name).st_mtime
    except OSError:  # no permission to write
        now = time.time()
    try:
        return now - path.stat().st_mtime
    except OSError:
        return 0.0


def _this_process() -> Holder:
    job = os.environ.get("SLURM_ARRAY_JOB_ID", "")
    job = f"{job}_{os.environ.get('SLURM_ARRAY_TASK_ID', '')}" if job else os.environ.get("SLURM_JOB_ID", "")
    restarts = os.environ.get("SLURM_RESTART_COUNT", "")
    return Holder(
        host=socket.gethostname(),
        pid=os.getpid(),
        started=_start_of(os.getpid()) or "",
        boot=_boot(),
        since=provenance.now(),
        command=os.path.basename(sys.argv[0]) or "python",
        job=job,
        restarts=int(restarts) if restarts.isdecimal() else 0,
        token=secrets.token_hex(16),
    )


def _start_of(pid: int) -> str | None:
    """Return the start of a process in clock ticks since boot ("" without /proc); None when no such process lives."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except (PermissionError, OverflowError):
        pass
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    entries = status.rpartition(")")[2].split()  # after the name of the program, which may have spaces
    return None if entries[0] == "Z" else entries[19]


def _mark(pid: int) -> str:
    """Return the mark of a process for the names of its temporary files, which are empty at first."""
    machine = hashlib.sha256(f"{socket.gethostname()} {_boot()}".encode()).hexdigest()[:8]
    return f"{machine}-{pid}"


def _is_of_dead_process(name: str) -> bool:
    """Return whether the name of a temporary file has the mark of a dead process of this machine."""
    match = re.search(r"\.[0-9a-f]{8}-([0-9]+)\.[^.]+$", name)
    if match is None or f".{_mark(int(match[1]))}." not in name:
        return False
    return _start_of(int(match[1])) is None


def _boot() -> str:
    """Return an id of this boot of the machine and of the process namespace of this container; "" without /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
