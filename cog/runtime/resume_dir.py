"""The folder ``.resume/`` of an output folder: work that is not finished.

It holds what a restart of the same command needs, and ``identity.json``: what the work is (settings, inputs, versions),
so that another command does not continue it. It is created with the first session and removed when the result is in
place. Both sides of it are under the lock of the output folder.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog.errors import CogError
from cog.runtime import files
from cog.runtime.fingerprint import differences, plain

if TYPE_CHECKING:
    from cog.runtime.locks import Lock

FOLDER = ".resume"
IDENTITY_FILE = "identity.json"
LOG_FILE = "program.log"

_N_BLOCKS, _BLOCK = 64, 4096

_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp")


class ResumeFolder:
    """The work in progress of one output folder.

    Args:
        output: the output folder.

    Attributes:
        path: ``<output>/.resume``.
    """

    def __init__(self, output: str | os.PathLike[str]) -> None:
        self.path = Path(output) / FOLDER

    @property
    def log_file(self) -> Path:
        """The log of all sessions."""
        return self.path / LOG_FILE

    def read(self) -> dict[str, Any] | None:
        """Return ``identity.json``; None when there is nothing to continue.

        Keys: ``identity``, ``versions``, ``started`` (ISO 8601), ``sessions``, ``replaces`` (whether a complete result
        is to be replaced).
        """
        try:
            data = files.read_json(self.path / IDENTITY_FILE)
        except CogError:
            return None
        keys = {"identity": dict, "versions": dict, "started": str, "sessions": int, "replaces": bool}
        ours = isinstance(data, dict) and all(isinstance(data.get(key), kind) for key, kind in keys.items())
        return data if ours else None

    def has_progress(self) -> bool:
        """Whether it holds more than its own description: something that would be lost with it."""
        try:
            names = os.listdir(self.path)
        except OSError:
            return False
        return any(name not in (IDENTITY_FILE, LOG_FILE) and not _TEMPORARY.fullmatch(name) for name in names)

    def create(self, *, identity: dict[str, Any], versions: dict[str, Any], replaces: bool) -> None:
        """Create it if it is not there; the caller has compared what is.

        Raises:
            CogError: when it cannot be written.
        """
        if self.read() is not None:
            return
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
        try:
            self.discard()
            self.path.mkdir()
        except OSError as error:
            raise CogError(f"cannot write {self.path}: {error.strerror or error}") from error
        files.write_json(
            self.path / IDENTITY_FILE,
            {
                "identity": identity,
                "versions": versions,
                "started": started,
                "sessions": 0,
                "replaces": replaces,
            },
        )

    def begin_session(self) -> dict[str, Any]:
        """Count a session, and return what :meth:`read` does.

        Raises:
            CogError: when it cannot be written.
        """
        found = self.read()
        if found is None:
            raise CogError(
                f"{self.path} was removed while this process was at work on it; run the same command again"
            )
        try:
            for name in os.listdir(self.path):
                if _TEMPORARY.fullmatch(name):  # of a process that was killed while it wrote
                    os.unlink(self.path / name)
        except OSError as error:
            raise CogError(f"cannot write {self.path}: {error.strerror or error}") from error
        found["sessions"] += 1
        files.write_json(self.path / IDENTITY_FILE, found)
        return found

    def discard(self) -> None:
        """Remove it; the description first, so that what a killed process leaves of it is taken for nothing.

        Raises:
            OSError: when it cannot be removed.
        """
        with contextlib.suppress(FileNotFoundError):
            (self.path / IDENTITY_FILE).unlink()
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path)


class SavedStates(ResumeFolder):
    """Work in progress that any session may continue: files with states, under names of the caller's choice.

    Args:
        output: the output folder.
        identity: of the work; values become those of JSON.
        lock: of the output folder, by whoever saves states.
    """

    def __init__(
        self, output: str | os.PathLike[str], identity: dict[str, Any], lock: Lock | None = None
    ) -> None:
        super().__init__(output)
        self._lock = lock
        self._identity: dict[str, Any] = plain(identity)

    def check(self) -> None:
        """Refuse what other work has left.

        Raises:
            CogError: naming the differences.
        """
        if not self.has_progress():
            return
        found = self.read()
        if found is None:
            raise CogError(f"{self.path} holds unreadable leftovers; add --overwrite to discard them")
        changed = differences(found["identity"], self._identity)
        if changed:
            raise CogError(
                f"{self.path} holds the beginning of different work ({'; '.join(changed)}); run that command again to "
                "finish it, or add --overwrite to discard it"
            )

    def file(self, name: str) -> Path:
        """Return the path of a state in the folder, which is created with its identity if needed.

        Raises:
            LockedError: when someone else has the output folder by now.
            CogError: when it cannot be created.
        """
        if self._lock is not None:
            self._lock.require_held()
        self.create(identity=self._identity, versions={}, replaces=False)
        return self.path / name

    def existing(self, name: str) -> Path | None:
        """Return the path of a state that was saved, or None."""
        path = self.path / name
        return path if path.is_file() else None

    def forget(self, name: str) -> None:
        """Remove a state that is not needed any more."""
        (self.path / name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Forget everything: the result is in place, or the work is discarded."""
        with contextlib.suppress(OSError):  # what is left of it is taken for nothing
            self.discard()


def sample_sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of the size and of 65 evenly spaced blocks of 4 KiB of a file.

    It tells other features of the same size apart without reading gigabytes.

    Raises:
        CogError: when the file cannot be read.
    """
    try:
        with open(path, "rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            digest = hashlib.sha256(str(size).encode())
            for position in range(_N_BLOCKS + 1):
                handle.seek(max(0, size - _BLOCK) * position // _N_BLOCKS)
                digest.update(handle.read(_BLOCK))
    except OSError as error:
        raise CogError(f"cannot read {path}: {error.strerror or error}") from error
    return digest.hexdigest()
