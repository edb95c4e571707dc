"""Life cycle of the output folders of all commands: check, claim, continue, publish.

::

    if not folder.is_done():                     # a check before inputs are read
        with folder.claim() as claim:            # no other process works on it now
            if not claim.is_done():              # another process may have been faster
                claim.begin()
                with claim.failures_noted():
                    ... claim.resume ...         # states that survive an interruption
                    with claim.publish() as stage:
                        ...                      # files that appear together

Each kind of result is a subclass of :class:`OutputFolder`, which defines the contents of its folder.
:func:`read_state` returns the progress of any output folder.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from cog.errors import CogError, os_errors_explained
from cog.runtime import atomic_dir, files, provenance, signals
from cog.runtime.fingerprint import differences, plain
from cog.runtime.locks import LOCK_FILE, Holder, LockedError, live_holder, locked
from cog.runtime.resume_dir import FOLDER, ResumeFolder

logger = logging.getLogger(__name__)

#: File in an output folder with the error that ended the last attempt. An interruption (exit code 75) is not a failure;
#: a killed process cannot write this file, and leaves a stale lock.
FAILURE_FILE = ".failed.json"

DONE = "done"
RUNNING = "running"
FAILED = "failed"
#: Begun, not finished, and without a process at work: the same command continues.
INTERRUPTED = "interrupted"
MISSING = "missing"


@dataclass(frozen=True)
class Failure:
    """Failure of an attempt at an output folder.

    Attributes:
        message: error in one line.
        when: time of the error, ISO 8601, UTC.
        host: name of the machine.
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
    """Return the failure of the last attempt at ``folder``; None when it did not fail."""
    return files.read_record(Path(folder) / FAILURE_FILE, Failure)


@dataclass(frozen=True)
class FolderState:
    """Progress of an output folder.

    Attributes:
        state: ``DONE``, ``RUNNING``, ``FAILED``, ``INTERRUPTED`` or ``MISSING``.
        holder: live process at work in the folder.
        failure: failure of the last attempt; also given when an earlier attempt has completed the folder.
        trace: name of an entry that stays in the folder until its work is finished.
    """

    state: str
    holder: Holder | None = None
    failure: Failure | None = None
    trace: str | None = None


def read_state(
    folder: str | os.PathLike[str],
    entries: Iterable[str] | None = None,
    *,
    complete: bool,
    marked: bool = True,
) -> FolderState:
    """Return the progress of an output folder, judged by its entries.

    Args:
        folder: the output folder; may be missing.
        entries: names of the entries; None: the folder is listed.
        complete: whether the folder holds a result.
        marked: whether that result has the file that is published last. A result without it (of the original toolkit)
            may also be part of a publication that was cut off.
    """
    if entries is None:
        try:
            entries = os.listdir(folder)
        except OSError:
            entries = ()
    names = sorted(entries)
    holder = live_holder(folder) if LOCK_FILE in names else None
    failure = None
    if FAILURE_FILE in names:
        failure = read_failure(folder) or Failure(f"{FAILURE_FILE} cannot be read")
    traces = [name for name in names if name == FOLDER or name.startswith(atomic_dir.STAGE_PREFIX)]
    if holder is not None:
        state = RUNNING
    elif complete and (marked or not traces):
        state = DONE
    elif failure is not None and not complete:
        state = FAILED
    else:
        traces += [LOCK_FILE] * (LOCK_FILE in names)
        state = INTERRUPTED if traces else MISSING
    return FolderState(state, holder, failure, next(iter(traces), None))


class OutputFolder(abc.ABC):
    """Output folder of a command, whose result appears complete or not at all.

    Args:
        path: the folder.
        identity: settings and inputs, which are equal for equal results; values become those of JSON. None: the
            folder is only read.
        overwrite: whether to replace another result or its unfinished work.

    Attributes:
        markers: files whose presence marks the result as complete; the first one is put in place last.
        flag: flag with which the user gave the folder, for messages.
        unfinished: message about unfinished work with another identity.
        damaged: message about unfinished work without a readable description; None: the work is begun again.
        resume_kind: class of the folder of unfinished work.
        resume: folder of unfinished work; states are saved there while the output folder is claimed.
    """

    markers: ClassVar[tuple[str, ...]]
    flag: ClassVar[str] = "--output_dir"
    unfinished: ClassVar[str] = (
        "{resume} holds the beginning of different work ({changed}); run that command again to finish it, or remove "
        "this folder to discard it (so does --overwrite, which also replaces complete results)"
    )
    damaged: ClassVar[str | None] = (
        "{path} holds unreadable leftovers; remove this folder (or add --overwrite, which also replaces complete "
        "results)"
    )
    resume_kind: ClassVar[type[ResumeFolder]] = ResumeFolder

    def __init__(
        self,
        path: str | os.PathLike[str],
        identity: Mapping[str, Any] | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path)
        self.identity: dict[str, Any] = plain(identity or {})
        self.overwrite = overwrite
        self.resume = self.resume_kind(self.path, self.identity)

    # --- defined by each kind of result

    @abc.abstractmethod
    def holds_result(self) -> bool:
        """Return whether the folder holds the requested result, and keeps it.

        Raises:
            CogError: when the folder holds another result, and it must not be overwritten.
        """

    def replaced(self) -> Sequence[str]:
        """Return the names in the folder that a new result deletes, beside the files that it replaces."""
        return self.markers

    def compare(self, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
        """Return the differences of two identities, each as ``key: old -> new``."""
        return differences(stored, wanted)

    def has_leftovers(self) -> bool:
        """Return whether unfinished work outlived the result: its process was killed right after the publication."""
        return self.resume.path.is_dir()

    def needs_claim(self) -> bool:
        """Return whether the contents of the folder can only be judged after a claim."""
        return atomic_dir.needs_recovery(self.path)

    def announce_done(self) -> None:
        """Log that the result is complete and no work is needed."""
        logger.info("%s is complete, skipped", self.path)

    # --- common to all kinds

    def is_done(self) -> bool:
        """Return whether no work is needed, before inputs are read; recover the folder first if a process died there.

        Raises:
            CogError: when the folder holds another result, or unfinished work of another one, unless ``overwrite``.
            LockedError: when the folder has to be recovered, and another process is at work there.
        """
        if self.needs_claim():
            with self.claim() as claim:
                return claim.is_done()
        if not self.would_skip():
            return False
        if self.has_leftovers():
            with contextlib.suppress(LockedError), self.claim() as claim:
                claim.remove_leftovers()
        self.announce_done()
        return True

    def would_skip(self) -> bool:
        """Return whether no work is needed, as far as a check shows that changes nothing.

        Raises:
            CogError: see :meth:`is_done`.
        """
        kept = self.holds_result()
        if not kept:
            self.check_unfinished(self.identity)
        return kept

    def claim(self) -> FolderClaim:
        """Acquire the lock of the folder for a ``with`` statement, and finish an interrupted publication.

        Raises:
            LockedError: when another live process holds the lock.
            CogError: when the folder cannot be created or written to.
        """
        return FolderClaim(self)

    def check_unfinished(
        self, identity: Mapping[str, Any], versions: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Return the differences between the unfinished work and the requested work.

        Raises:
            CogError: when they differ, the unfinished work has progress, and it must not be overwritten.
        """
        stored = self.resume.read()
        refused = self.resume.has_progress() and not self.overwrite
        if stored is None:
            if refused and self.damaged is not None:
                raise CogError(self.damaged.format(path=self.resume.path))
            return ["unreadable"] if self.resume.path.is_dir() else []
        old, new = stored["versions"], versions or {}
        changed = self.compare(stored["identity"], identity)
        changed += [f"{key}: {old.get(key)} -> {new[key]}" for key in new if old.get(key) != new[key]]
        if changed and refused:
            raise CogError(self.unfinished.format(resume=self.resume.path, changed="; ".join(changed)))
        return changed


class FolderClaim(contextlib.AbstractContextManager["FolderClaim"]):
    """An output folder on which no other process works, see :meth:`OutputFolder.claim`.

    Attributes:
        folder: the folder.
        lock: lock of the folder.
        resume: folder of its unfinished work.
        published: whether a result has been put in place.
    """

    def __init__(self, folder: OutputFolder) -> None:
        self.folder, self.published = folder, False
        with contextlib.ExitStack() as stack:
            self.lock = stack.enter_context(locked(folder.path, flag=folder.flag))
            atomic_dir.recover(folder.path)
            self._releasing = stack.pop_all()
        self.resume = folder.resume
        self.resume.lock = self.lock

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock; a second call has no effect."""
        self._releasing.close()

    def is_done(self) -> bool:
        """Return whether no work is needed; if so, remove the leftovers of the finished work.

        Raises:
            CogError: see :meth:`OutputFolder.is_done`.
        """
        folder = self.folder
        if not folder.holds_result():
            folder.check_unfinished(folder.identity)
            return False
        self.remove_leftovers()
        self._forget_failure()
        folder.announce_done()
        return True

    def remove_leftovers(self) -> None:
        """Remove unfinished work that outlived the result."""
        if self.folder.has_leftovers():
            self.resume.remove()
            logger.info(
                "removed %s, left by a process that was killed when its result was complete", self.resume.path
            )

    def begin(
        self, more: Mapping[str, Any] | None = None, *, versions: Mapping[str, Any] | None = None
    ) -> None:
        """Continue the unfinished work in the folder, or discard different work if that is allowed.

        Args:
            more: entries in the identity of unfinished work beside the identity of the folder.
            versions: versions of packages and formats without which the work cannot be continued.

        Raises:
            CogError: see :meth:`OutputFolder.check_unfinished`.
        """
        self.resume.identity = plain({**self.folder.identity, **(more or {})})
        self.resume.versions = dict(versions or {})
        changed = self.folder.check_unfinished(self.resume.identity, self.resume.versions)
        if changed:
            if self.resume.has_progress():
                log = logger.info if self.folder.overwrite else logger.warning
                log("discarded the beginning of work in %s (%s)", self.resume.path, "; ".join(changed))
            self.resume.discard()

    @contextlib.contextmanager
    def failures_noted(self) -> Iterator[None]:
        """Write an error of the block to :data:`FAILURE_FILE`, after removing the one of an earlier attempt.

        The lock of another process, and an interruption, are not written. The folder is not created for the file.

        Raises:
            LockedError: when another process holds the folder by now; also in place of a later error of the block.
        """
        self.lock.require_held()
        self._forget_failure()
        try:
            yield
        except (signals.Interrupted, LockedError):
            raise
        except (CogError, OSError, MemoryError, RuntimeError) as error:
            try:
                self.lock.require_held()
            except LockedError as lost:
                raise lost from error
            text = " ".join(str(error).split()) or type(error).__name__
            note = Failure(text, provenance.now(), self.lock.holder.host, self.lock.holder.job)
            with contextlib.suppress(CogError, OSError):  # a full disk must not hide the error itself
                files.write_json(self.folder.path / FAILURE_FILE, asdict(note))
            raise

    def _forget_failure(self) -> None:
        with contextlib.suppress(OSError):
            (self.folder.path / FAILURE_FILE).unlink(missing_ok=True)

    @contextlib.contextmanager
    def publish(self) -> Iterator[Path]:
        """Yield a hidden folder, and publish its files together, the markers last, when the block succeeds.

        The log of the unfinished work becomes the log of the result.

        Raises:
            LockedError: when another process holds the folder by now; the folder stays unchanged then.
            CogError: when the folder cannot be written to.
        """
        folder = self.folder
        with atomic_dir.staged(folder.path, markers=folder.markers, replaces=folder.replaced()) as stage:
            yield stage
            if self.resume.log_file.is_file():
                with os_errors_explained(f"cannot write into {folder.path}"):
                    shutil.copyfile(self.resume.log_file, stage / self.resume.log_file.name)
            self.lock.require_held()
        self.resume.remove()
        self.published = True
