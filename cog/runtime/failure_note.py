"""How the last attempt at an output folder ended, for whoever looks at a study from outside.

A folder that is complete says so by its own files. Of one that is not, ``.failed.json`` tells that the last attempt
ended with an error, and with which; an interruption (exit code 75) is no failure, and a killed process leaves nothing
but a stale lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from cog.errors import CogError
from cog.runtime import files, provenance
from cog.runtime.locks import Lock, LockedError
from cog.runtime.signals import Interrupted

FAILURE_FILE = ".failed.json"


@dataclass(frozen=True)
class Failure:
    """Why an attempt failed.

    Attributes:
        message: the error's one line.
        when: ISO 8601, UTC.
        host: machine.
        job: SLURM job (and array task), or "".
    """

    message: str
    when: str = ""
    host: str = ""
    job: str = ""

    def __str__(self) -> str:
        job = f", SLURM job {self.job}" if self.job else ""
        return f"{self.message} ({self.host}{job}, {self.when})" if self.when else self.message


def read_failure(folder: str | os.PathLike[str]) -> Failure | None:
    """Return how the last attempt at ``folder`` failed; None when it did not."""
    try:
        data = json.loads((Path(folder) / FAILURE_FILE).read_text(encoding="utf-8"))
        failure = Failure(**{key: data[key] for key in Failure.__dataclass_fields__})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return failure if all(isinstance(value, str) for value in asdict(failure).values()) else None


def forget(folder: str | os.PathLike[str]) -> None:
    """Remove the note of an earlier attempt."""
    with contextlib.suppress(OSError):
        (Path(folder) / FAILURE_FILE).unlink(missing_ok=True)


@contextlib.contextmanager
def failures_noted(lock: Lock) -> Iterator[None]:
    """Note an error of the block in the folder of ``lock`` (if it exists), and forget the one of an earlier attempt.

    A lock of someone else, and an interruption, are not noted.

    Raises:
        LockedError: instead of an error that came after the lock was lost: what it needed was someone else's by then.
    """
    forget(lock.path.parent)
    try:
        yield
    except (Interrupted, LockedError):
        raise
    except (CogError, OSError, MemoryError, RuntimeError) as error:
        try:
            lock.require_held()
        except LockedError as lost:
            raise lost from error
        text = " ".join(str(error).split()) or type(error).__name__
        job = os.environ.get("SLURM_ARRAY_JOB_ID", "")
        job = (
            f"{job}_{os.environ.get('SLURM_ARRAY_TASK_ID', '')}"
            if job
            else os.environ.get("SLURM_JOB_ID", "")
        )
        with contextlib.suppress(CogError, OSError):  # a full disk must not hide the error itself
            files.write_json(
                lock.path.with_name(FAILURE_FILE),
                asdict(Failure(text, provenance.now(), socket.gethostname(), job)),
            )
        raise
