"""One process at a time per output folder.

The lock is a file ``.lock`` in the folder. It says who holds it (host, process, since when) and is touched every few
seconds while that process lives. Creating it is a hard link, which is atomic on network file systems too; no daemon and
no ``flock`` is needed (shared file systems are often mounted without the latter).

A lock is stale, and is taken over, when its process is gone: on the same host at once (by process number, start time
of the process and boot of the machine); with another host when it has not been touched for :data:`STALE_SECONDS` by the
file server's clock; and when it belongs to an earlier start of the same SLURM job, which has been requeued.

Every lock has a random token, and what becomes of the lock with token ``t`` is decided once, by who creates its
successor ``.lock.after-t`` (a hard link again) while ``.lock`` still has that token: a process that takes it over, or
the holder who gives it back. A process that saw a stale lock, and was overtaken, finds ``.lock`` changed after it has
created the successor, and starts again; nobody ever moves away, or deletes, a lock that may be someone else's by now.
When the one who decided dies before it is done, its successor file is a stale lock with a successor of its own.

A process that was taken for dead may only have stood still. Who takes over appends itself to the lock files that it
replaces: the late process has its own one open, and says who it was even when that one is done and gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
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
from cog.runtime import files

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"

#: Seconds between two touches of a lock that is held.
TOUCH_SECONDS = 15.0

#: A lock of another host that was not touched for so long belongs to a dead process. Far above what a file server
#: that hangs, or caches attributes (60 s by default on NFS), can delay a touch.
STALE_SECONDS = 300.0

#: A lock file that cannot be read for so long is damaged, and not just being written.
DAMAGED_SECONDS = 10.0

#: A lock file is shorter.
_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class Holder:
    """Who holds a lock.

    Attributes:
        host: name of the machine.
        pid: process number there.
        started: start of the process in clock ticks since boot ("" where /proc does not tell).
        boot: id of the boot of the machine.
        since: ISO 8601, UTC.
        command: name of the script.
        job: SLURM job (and array task), or "".
        restarts: how often SLURM has restarted that job.
        token: random; tells locks apart.
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
    """A lock that is held, see :func:`locked`.

    Attributes:
        path: the lock file.
        holder: this process.
    """

    def __init__(self, path: Path, holder: Holder) -> None:
        self.path = path
        self.holder = holder
        self._file = os.open(path, os.O_RDONLY)
        self._released = threading.Event()
        self._toucher = threading.Thread(target=self._touch, name="cog-lock", daemon=True)
        self._toucher.start()

    def _touch(self) -> None:
        while not self._released.wait(TOUCH_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self.path)

    def require_held(self) -> None:
        """Raise when the lock was lost: before anything is published.

        A process that stood still for minutes (a suspended machine, a file server that hung) may find that another one
        took it for dead.

        Raises:
            LockedError: when someone else has the lock now, or nobody.
        """
        chain = _chain(self.path)
        if chain and chain[-1].token == self.holder.token:
            return
        # What happened to it first is what counts; a file server forgets files that someone else has removed.
        with contextlib.suppress(OSError):
            os.lseek(self._file, 0, os.SEEK_SET)
            noted = _parse(os.read(self._file, _MOST_BYTES).partition(b"\n")[2])
            if noted is None and chain:
                noted = chain[-1].holder
            if noted is not None:
                raise LockedError(
                    f"{self.path} was taken over by {noted} while this process stood still; nothing was written; "
                    "leave the work to the other one, or run again when it has ended"
                )
        raise LockedError(
            f"{self.path} is gone: it was removed, or taken over by a process that has ended since, while this process "
            "stood still; nothing was written; run the same command again"
        )

    def release(self) -> None:
        """Give the lock back."""
        self._released.set()
        self._toucher.join()
        os.close(self._file)
        _give_back(self.path, self.holder)


@contextlib.contextmanager
def locked(
    folder: str | os.PathLike[str], *, flag: str, name: str = LOCK_FILE, create: bool = True
) -> Iterator[Lock]:
    """Hold the lock of an output folder, or of a part of it.

    The folder is created if needed (unless ``create`` is False), and removed again if it is empty in the end.

    Args:
        folder: output folder.
        flag: how the user gave it, for messages.
        name: of the lock file; parts of a folder that are worked on separately have locks of their own.
        create: False makes a missing folder an error.

    Raises:
        LockedError: when a live process holds it: who, where, since when.
        CogError: when the folder cannot be created or written to.
    """
    folder = Path(folder)
    created: list[Path] = []
    try:
        for attempt in range(10):
            try:
                for path in _missing(folder) if create else ():
                    with contextlib.suppress(FileExistsError):
                        path.mkdir()
                        created.append(path)
                lock = _acquire(folder, name)
                break
            except FileNotFoundError:  # another process, which had created the folder, removed it again
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
    """Return who holds the lock of ``folder``; None when nobody does, or only a dead process."""
    chain = _chain(Path(folder) / name)
    if not chain or chain[-1].is_stale():
        return None
    return chain[-1].holder


@dataclass(frozen=True)
class _Entry:
    """A lock file as it was found.

    Attributes:
        path: the file.
        holder: None when it is damaged, or not yet written completely.
        token: of the holder, or what tells a damaged file apart.
    """

    path: Path
    holder: Holder | None
    token: str

    def is_stale(self) -> bool:
        """Whether its process is gone."""
        if self.holder is None:
            return _age(self.path) > DAMAGED_SECONDS
        return _is_stale(self.path, self.holder)


def _chain(path: Path) -> list[_Entry]:
    """Return the lock and its successors; the last one has the lock. Empty: nobody has it."""
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
    holder = _read(path)
    return _Entry(path, holder, holder.token if holder else f"{status.st_ino:x}-{status.st_mtime_ns:x}")


def _tokens(chain: list[_Entry]) -> list[str]:
    return [entry.token for entry in chain]


def _successor(path: Path, token: str) -> Path:
    return path.with_name(f"{path.name}.after-{token}")


def _acquire(folder: Path, lock_file: str) -> Lock:
    path = folder / lock_file
    me = _this_process()
    own = _write_holder(path, me)
    try:
        deadline = time.monotonic() + DAMAGED_SECONDS + 10
        while time.monotonic() < deadline:
            if _link(own, path):
                _tidy(path, me)
                return Lock(path, me)
            chain = _chain(path)
            if not chain:  # given back in this moment
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
            if _decide(path, chain, own, me):
                for entry in chain:
                    _sign(entry, own)
                os.replace(own, path)  # from now on outsiders find it in its place
                _tidy(path, me)
                if last.holder is not None:
                    logger.info("took over the lock of a process that is gone: %s", last.holder)
                return Lock(path, me)
        raise LockedError(f"{path} changes hands all the time; too many processes want {folder}")
    finally:
        with contextlib.suppress(OSError):
            own.unlink()


def _write_holder(path: Path, holder: Holder) -> Path:
    """Write a file beside the lock, to be linked to its name."""
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


def _decide(path: Path, chain: list[_Entry], own: Path, me: Holder) -> bool:
    """Try to become the one successor of the last lock of ``chain``."""
    claim = _successor(path, chain[-1].token)
    if not _link(own, claim):
        return False
    # While the successor exists nobody else decides; but someone may have done so before it did.
    if _tokens(_chain(path)) == [*_tokens(chain), me.token]:
        return True
    with contextlib.suppress(OSError):
        claim.unlink()
    return False


def _sign(entry: _Entry, own: Path) -> None:
    """Append this process to a lock file that is taken over, for its holder, should it still live."""
    if entry.holder is not None:
        with contextlib.suppress(OSError):
            descriptor = os.open(entry.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
            try:
                os.write(descriptor, b"\n" + own.read_bytes())
            finally:
                os.close(descriptor)


def _give_back(path: Path, holder: Holder) -> None:
    chain = _chain(path)
    if _tokens(chain) != [holder.token]:
        return  # taken over, or gone
    try:
        own = _write_holder(path, dataclasses.replace(holder, token=secrets.token_hex(16)))
    except OSError:  # a full disk; a lock of our own that stayed would be worse than a race
        with contextlib.suppress(OSError):
            path.unlink()
        return
    with contextlib.suppress(OSError):
        claimed = _read(own)
        if claimed is not None and _decide(path, chain, own, claimed):
            path.unlink()
            _successor(path, holder.token).unlink()
    with contextlib.suppress(OSError):
        own.unlink()


def _tidy(path: Path, me: Holder) -> None:
    """Remove what dead processes left beside the lock, which is ours."""
    with contextlib.suppress(OSError):
        for name in os.listdir(path.parent):
            if not name.startswith(f"{path.name}."):
                continue
            entry = _entry(path.with_name(name))
            if entry is None:
                continue
            decided = name.startswith(f"{path.name}.after-") and name != _successor(path, me.token).name
            if decided or entry.is_stale() or (entry.holder is None and _is_of_the_dead(name)):
                with contextlib.suppress(OSError):
                    entry.path.unlink()


def _link(source: Path, path: Path) -> bool:
    """Create ``path`` with the contents of ``source``; False when it exists."""
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


def _read(path: Path) -> Holder | None:
    try:
        with files.open_regular(path) as handle:
            return _parse(handle.read(_MOST_BYTES))
    except OSError:
        return None


def _parse(content: bytes) -> Holder | None:
    """Return the holder that the first line of a lock file names; None when it is not one of ours."""
    try:
        data = json.loads(content.partition(b"\n")[0])
        holder = Holder(**{field.name: data[field.name] for field in fields(Holder)})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    values = asdict(holder)
    numbers = (values.pop("pid"), values.pop("restarts"))
    if not all(type(number) is int and 0 <= number < 2**31 for number in numbers):
        return None
    if not all(isinstance(text, str) for text in values.values()):
        return None
    # The token becomes part of a file's name.
    return holder if re.fullmatch("[0-9a-z]{1,64}", holder.token) else None


def _is_stale(path: Path, holder: Holder) -> bool:
    me = _this_process()
    if holder.job and holder.job == me.job and holder.restarts < me.restarts:
        return True
    # The same host with another boot is the machine after a restart, or another container of that name: a process that
    # cannot be seen from here is alive as long as it touches its lock.
    if (holder.host, holder.boot) == (me.host, me.boot):
        started = _start_of(holder.pid)
        return started is None or (bool(holder.started) and started != holder.started)
    return _age(path) > STALE_SECONDS


def _age(path: Path) -> float:
    """Return seconds since ``path`` was touched, both times by the clock of its file server."""
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f"{path.name}.now.{_mark(os.getpid())}."
        ) as probe:
            now = os.stat(probe.name).st_mtime
    except OSError:  # a reader without the right to write
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
        since=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=os.path.basename(sys.argv[0]) or "python",
        job=job,
        restarts=int(restarts) if restarts.isdecimal() else 0,
        token=secrets.token_hex(16),
    )


def _start_of(pid: int) -> str | None:
    """Return when a process of this machine started ("" where that is not told); None when there is none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except (PermissionError, OverflowError):
        pass
    try:
        fields_ = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return ""
    return None if fields_[0] == "Z" else fields_[19]


def _mark(pid: int) -> str:
    """Return what tells, in the name of a temporary file, whose it is, while it has no contents yet."""
    machine = hashlib.sha256(f"{socket.gethostname()} {_boot()}".encode()).hexdigest()[:8]
    return f"{machine}-{pid}"


def _is_of_the_dead(name: str) -> bool:
    """Whether a temporary file's name has the mark of a process of this machine that is gone."""
    match = re.search(r"\.[0-9a-f]{8}-([0-9]+)\.[^.]+$", name)
    if match is None or f".{_mark(int(match[1]))}." not in name:
        return False
    return _start_of(int(match[1])) is None


def _boot() -> str:
    """Return what tells this boot of this machine, and this container's processes, from others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _missing(folder: Path) -> list[Path]:
    missing = []
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = folder.parent
    return missing[::-1]
