"""Recognition of published checkpoints by their SHA-256."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cog.errors import CogError
from cog.models.formats.detect import checkpoint_files
from cog.runtime import files

if TYPE_CHECKING:
    from cog.models.sources import LibraryModel
    from cog.models.spec import ModelSpec


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a checkpoint.

    For a checkpoint in several files (TensorFlow), this is the SHA-256 of the index followed by the data.

    Raises:
        CogError: the checkpoint is missing or cannot be read.
    """
    parts = checkpoint_files(path)
    if not parts:
        raise CogError(f"{path} does not exist or is not a file")
    return files.sha256(*parts)


def is_published(spec: ModelSpec | LibraryModel, digest: str) -> bool | None:
    """Return whether a checkpoint's SHA-256 is a declared one; None when no SHA-256 is declared."""
    known = spec.sha256_prefixes
    return any(digest.startswith(prefix) for prefix in known) if known else None


def abbreviated(prefix: str) -> str:
    """Return a SHA-256 for a message; known first digits end with an ellipsis."""
    return prefix if len(prefix) == 64 else f"{prefix}..."
