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
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog.errors import CogError, os_errors_explained
from cog.runtime import files
from cog.runtime.atomic_dir import STAGE_PREFIX
from cog.runtime.fingerprint import plain
from cog.runtime.state_file import StateFile

if TYPE_CHECKING:
    from cog.runtime.locks import Lock

FOLDER = ".resume"
IDENTITY_FILE = "identity.json"
LOG_FILE = "program.log"

_N_BLOCKS, _BLOCK = 64, 4096


class ResumeFolder:
    """The work in progress of one output folder: files with states, under names of the caller's choice.

    Args:
        output: the output folder.
        identity: what the work is; values become those of JSON.

    Attributes:
        path: ``<output>/.resume``.
        lock: of the output folder, by whoever changes anything in it.
        versions: without which the work cannot be continued.
        replaces: whether it is to replace a complete result.
    """

    def __init__(self, output: str | os.PathLike[str], identity: Mapping[str, Any] | None = None) -> None:
        self.path = Path(output) / FOLDER
        self.identity: dict[str, Any] = plain(identity or {})
        self.versions: dict[str, Any] = {}
        self.replaces = False
        self.lock: Lock | None = None

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
        return any(name not in (IDENTITY_FILE, LOG_FILE) and not files.is_temporary(name) for name in names)

    def create(self) -> None:
        """Create it if it is not there; whoever claims the output folder has compared what is.

        Raises:
            LockedError: when someone else has the output folder by now.
            CogError: when it cannot be written.
        """
        if self.lock is not None:
            self.lock.require_held()
        if self.read() is not None:
            return
        self.discard()  # what is left of a description
        with os_errors_explained(f"cannot write {self.path}"):
            self.path.mkdir()
        files.write_json(
            self.path / IDENTITY_FILE,
            {
                "identity": self.identity,
                "versions": self.versions,
                "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
                "sessions": 0,
                "replaces": self.replaces,
            },
        )

    def begin_session(self) -> dict[str, Any]:
        """Count a session, and return what :meth:`read` does.

        Raises:
            CogError: when it cannot be written.
        """
        data = self.read()
        if data is None:
            raise CogError(
                f"{self.path} was removed while this process was at work on it; run the same command again"
            )
        files.remove_temporary(self.path)
        data["sessions"] += 1
        files.write_json(self.path / IDENTITY_FILE, data)
        return data

    def file(self, name: str) -> Path:
        """Return the path of a state in the folder, which is created if needed, see :meth:`create`."""
        self.create()
        return self.path / name

    def existing(self, name: str) -> Path | None:
        """Return the path of a state that was saved, or None."""
        path = self.path / name
        return path if path.is_file() else None

    def state(self, name: str) -> StateFile:
        """Return a state of tensors in the folder, which is created when it is saved."""
        return StateFile(self.path / name, create=self.create)

    def discard(self) -> None:
        """Remove it, at once for whoever looks: later starts remove stages, whose name it gets first.

        Raises:
            LockedError: when someone else has the output folder by now.
            CogError: when it cannot be removed.
        """
        if self.lock is not None:
            self.lock.require_held()
        aside = self.path.with_name(f"{STAGE_PREFIX}{secrets.token_hex(4)}")
        with os_errors_explained(f"cannot remove {self.path}"), contextlib.suppress(FileNotFoundError):
            os.rename(self.path, aside)
        shutil.rmtree(aside, ignore_errors=True)

    def remove(self) -> None:
        """Forget everything, if possible: the result is in place, or there is nothing to be lost."""
        with contextlib.suppress(CogError):
            self.discard()


def sample_sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of the size and of 65 evenly spaced blocks of 4 KiB of a file.

    It tells other features of the same size apart without reading gigabytes.

    Raises:
        CogError: when the file cannot be read.
    """
    with os_errors_explained(f"cannot read {path}"), open(path, "rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        digest = hashlib.sha256(str(size).encode())
        for position in range(_N_BLOCKS + 1):
            handle.seek(max(0, size - _BLOCK) * position // _N_BLOCKS)
            digest.update(handle.read(_BLOCK))
    return digest.hexdigest()
