"""States of unfinished work: tensors and plain values, in files that are replaced atomically at intervals."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cog.errors import CogError
from cog.runtime import files, signals

logger = logging.getLogger(__name__)

#: Seconds of work between two saves; SIGKILL may cost that much work.
SAVE_SECONDS = 120.0

#: Largest share of the time for saves, on any file system: after a slow save the next one comes later.
_MAX_SHARE = 0.005


class StateFile:
    """A dictionary of tensors, plain values, and dictionaries of these, that outlives the process.

    Args:
        path: the file.
        create: function that is called before a save; it creates the folder if needed, and may raise an error.
    """

    def __init__(self, path: Path, *, create: Callable[[], object] = lambda: None) -> None:
        self.path, self._create = path, create
        self._saved, self._interval = time.monotonic(), SAVE_SECONDS

    def load(self) -> dict[str, Any] | None:
        """Return the last saved state, on the CPU; None if there is none, or (with a warning) if it is damaged.

        Only tensors and plain values are unpickled. The interval to the next save starts here.
        """
        from cog.runtime.safe_load import load_torch

        self._saved, self._interval = time.monotonic(), SAVE_SECONDS
        if not self.path.is_file():
            return None
        try:
            state = load_torch(self.path)
        except CogError as error:
            logger.warning("%s; that part of the work starts again", error)
            return None
        return state if isinstance(state, dict) else None

    def due(self) -> bool:
        """Return whether to save now: every two minutes, and after a deferred signal."""
        return signals.requested() is not None or time.monotonic() - self._saved >= self._interval

    def save(self, state: dict[str, Any]) -> None:
        """Replace the saved state, atomically.

        Raises:
            CogError: when the file cannot be written.
        """
        import torch

        start = time.monotonic()
        self._create()
        with files.atomic_write(self.path) as handle:
            torch.save(state, handle)
        self._saved = time.monotonic()
        self._interval = max(SAVE_SECONDS, (self._saved - start) / _MAX_SHARE)

    def forget(self) -> None:
        """Remove the saved state, which is no longer needed."""
        self.path.unlink(missing_ok=True)
