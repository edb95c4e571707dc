"""The state of interrupted work in the resume folder of an analysis."""

from __future__ import annotations

import logging
from typing import Any

from cog.errors import CogError
from cog.runtime import files
from cog.runtime.resume_dir import ResumeFolder

logger = logging.getLogger(__name__)

#: Seconds between two saved states.
SAVE_SECONDS = 60.0


class StateFile:
    """A dictionary of tensors and numbers that survives the end of the process.

    Args:
        resume: the resume folder of the analysis.
        name: name of the file in it.
    """

    def __init__(self, resume: ResumeFolder, name: str) -> None:
        self._resume, self._name = resume, name

    def load(self) -> dict[str, Any] | None:
        """Return the state that was saved last; None where there is none, or only a damaged one (with a warning)."""
        from cog.runtime.safe_load import load_torch

        path = self._resume.existing(self._name)
        if path is None:
            return None
        try:
            state = load_torch(path)
        except CogError as error:
            logger.warning("%s; it is started over", error)
            return None
        return state if isinstance(state, dict) else None

    def save(self, state: dict[str, Any]) -> None:
        """Replace the saved state, atomically."""
        import torch

        with files.atomic_write(self._resume.file(self._name)) as handle:
            torch.save(state, handle)
