"""The folder ``.resume/`` of an output folder, for unfinished work.

It contains the states from which the same command continues, and the identity of the work (settings, inputs, versions)
in ``identity.json``, so that no other command continues it. It is created in the first session and removed when the
result is in place, both under the lock of the output folder.
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

_N_BLOCKS, _BLOCK = 999, 4096


class ResumeFolder:
    """The unfinished work of an output folder: files with states, under names that the caller chooses.

    Args:
        output: the output folder.
        identity: identity of the work; values become those of JSON.

    Attributes:
        path: ``<output>/.resume``.
        lock: lock of the output folder, checked before changes; None: no check.
        versions: versions without which the work cannot be continued.
        replaces: whether the work is to replace a complete result.
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
        """Return the contents of ``identity.json``; None when there is no work to continue.

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
        """Return whether the folder contains states that would be lost with it, beside its description and its log."""
        try:
            names = os.listdir(self.path)
        except OSError:
            return False
        return any(name not in (IDENTITY_FILE, LOG_FILE) and not files.is_temporary(name) for name in names)

    def create(self) -> None:
        """Create the folder if it is missing; the identity of an existing folder was compared after the claim.

        Raises:
            LockedError: when another process holds the output folder by now.
            CogError: when the folder cannot be written.
        """
        if self.lock is not None:
            self.lock.require_held()
        if self.read() is not None:
            return
        self.discard()  # a folder without a valid description
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
        """Count a session, and return the contents of ``identity.json``, see :meth:`read`.

        Raises:
            CogError: when the folder was removed or cannot be written.
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
        """Return the path of a state in the folder; create the folder if needed, see :meth:`create`."""
        self.create()
        return self.path / name

    def existing(self, name: str) -> Path | None:
        """Return the path of a saved state, or None."""
        path = self.path / name
        return path if path.is_file() else None

    def state(self, name: str) -> StateFile:
        """Return a state of tensors in the folder; the folder is created when the state is saved."""
        return StateFile(self.path / name, create=self.create)

    def discard(self) -> None:
        """Remove the folder, atomically for readers: it first gets the name of a stage, which later starts remove.

        Raises:
            LockedError: when another process holds the output folder by now.
            CogError: when the folder cannot be removed.
        """
        if self.lock is not None:
            self.lock.require_held()
        aside = self.path.with_name(f"{STAGE_PREFIX}{secrets.token_hex(4)}")
        with os_errors_explained(f"cannot remove {self.path}"), contextlib.suppress(FileNotFoundError):
            os.rename(self.path, aside)
        shutil.rmtree(aside, ignore_errors=True)

    def remove(self) -> None:
        """Remove the folder if possible, when the result is in place or there is no progress to lose."""
        with contextlib.suppress(CogError):
            self.discard()


def sample_sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of the size and of 1,000 evenly spaced blocks of 4 KiB of a file.

    It distinguishes features of the same size without reading gigabytes.

    Raises:
        CogError: when the file cannot be read.
    """
    with os_errors_explained(f"cannot read {path}"), files.open_regular(path) as handle:
        size = os.fstat(handle.fileno()).st_size
        digest = hashlib.sha256(str(size).encode())
        for position in range(_N_BLOCKS + 1):
            handle.seek(max(0, size - _BLOCK) * position // _N_BLOCKS)
            digest.update(handle.read(_BLOCK))
    return digest.hexdigest()
