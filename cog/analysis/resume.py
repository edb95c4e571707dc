"""What long work leaves in ``.resume/`` of its output folder, so that the same command continues after any end.

::

    .resume/identity.json   of the work; another one is refused
    .resume/...             states, each replaced atomically
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from cog import files
from cog.analysis import records
from cog.errors import CogError

FOLDER = ".resume"
IDENTITY_FILE = "identity.json"


class ResumeFolder:
    """The hidden folder of unfinished work.

    Args:
        output: the output folder.
        identity: of the work, JSON values.
    """

    def __init__(self, output: str | os.PathLike[str], identity: dict[str, Any]) -> None:
        self.path = Path(output) / FOLDER
        self._identity = json.loads(json.dumps(records.plain(identity)))

    def check(self) -> None:
        """Refuse what other work has left.

        Raises:
            CogError: naming the differences.
        """
        if not self.path.is_dir() or not any(self.path.iterdir()):
            return
        try:
            stored = files.read_json(self.path / IDENTITY_FILE)
        except CogError:
            stored = None
        if not isinstance(stored, dict):
            raise CogError(f"{self.path} holds unreadable leftovers; add --overwrite to discard them")
        changed = records.differences(stored, self._identity)
        if changed:
            raise CogError(
                f"{self.path} holds the beginning of different work ({'; '.join(changed)}); run that command again to "
                "finish it, or add --overwrite to discard it"
            )

    def file(self, name: str) -> Path:
        """Return the path of a state in the folder, which is created with its identity if needed.

        Raises:
            CogError: when it cannot be created.
        """
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            raise CogError(f"cannot write into {self.path.parent}: {error.strerror or error}") from error
        if not (self.path / IDENTITY_FILE).exists():
            files.write_json(self.path / IDENTITY_FILE, self._identity)
        return self.path / name

    def existing(self, name: str) -> Path | None:
        """Return the path of a state that was saved, or None."""
        path = self.path / name
        return path if path.is_file() else None

    def discard(self, name: str) -> None:
        """Remove a state that is not needed any more."""
        (self.path / name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Forget everything: the result is in place, or the work is discarded."""
        shutil.rmtree(self.path, ignore_errors=True)
