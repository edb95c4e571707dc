"""The life of an output folder, whatever is made in it: look, claim, continue, publish.

::

    if not folder.is_done():                     # a look, before anything is read
        with folder.claim() as claim:            # nobody else works on it now
            if not claim.is_done():              # another process may have been faster
                claim.begin()
                with claim.failures_noted():
                    ... claim.resume ...         # states that survive an interruption
                    with claim.publish() as stage:
                        ...                      # files that appear together

Each kind of result is a subclass of :class:`OutputFolder`, which says what its folder holds. :func:`read_state` tells
how far any output folder is.
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

#: Tells of a folder without a result that the last attempt ended with an error, and with which. An interruption (exit
#: code 75) is no failure, and a killed process leaves nothing but a stale lock.
FAILURE_FILE = ".failed.json"

DONE = "done"
RUNNING = "running"
FAILED = "failed"
#: Begun, not finished, nobody at work: the same command continues.
INTERRUPTED = "interrupted"
MISSING = "missing"


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
    return files.read_record(Path(folder) / FAILURE_FILE, Failure)


@dataclass(frozen=True)
class FolderState:
    """How far an output folder is.

    Attributes:
        state: ``DONE``, ``RUNNING``, ``FAILED``, ``INTERRUPTED`` or ``MISSING``.
        holder: the process at work there.
        failure: how the last attempt failed; also of a folder that an earlier attempt has completed.
        trace: name of an entry that a process leaves until it has finished.
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
    """Return how far an output folder is, by what lies in it.

    Args:
        folder: the output folder; may be missing.
        entries: the names in it, where they are known.
        complete: whether it holds a result.
        marked: whether that result has the file that is published last. One without (of the original toolkit) may as
            well be part of a publication that was cut off.
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
    """One folder that a command makes, whole or not at all.

    Args:
        path: the folder.
        identity: what makes two results the same: settings and inputs; values become those of JSON. None: of a
            folder that is only read.
        overwrite: whether another result, or the beginning of one, gives way.
        skip_complete: whether a result whose making is not known (of the original toolkit) is kept.

    Attributes:
        markers: files that tell readers that the result is complete; the first is put in place last.
        flag: how the user gave the folder, for messages.
        unfinished: message about unfinished work that is another one.
        damaged: message about unfinished work without a readable description; None: it is begun again.
        resume_kind: class of the folder of unfinished work.
        resume: the unfinished work in it; states are saved there while the folder is claimed.
    """

    markers: ClassVar[tuple[str, ...]]
    flag: ClassVar[str] = "--output_dir"
    unfinished: ClassVar[str] = (
        "{resume} holds the beginning of different work ({changed}); run that command again to finish it, or add "
        "--overwrite to discard it"
    )
    damaged: ClassVar[str | None] = "{path} holds unreadable leftovers; add --overwrite to discard them"
    resume_kind: ClassVar[type[ResumeFolder]] = ResumeFolder

    def __init__(
        self,
        path: str | os.PathLike[str],
        identity: Mapping[str, Any] | None = None,
        *,
        overwrite: bool = False,
        skip_complete: bool = False,
    ) -> None:
        self.path = Path(path)
        self.identity: dict[str, Any] = plain(identity or {})
        self.overwrite, self.skip_complete = overwrite, skip_complete
        self.resume = self.resume_kind(self.path, self.identity)

    # --- what a kind of result says

    @abc.abstractmethod
    def holds_result(self) -> bool:
        """Whether the result that is asked for is there, and is to be kept.

        Raises:
            CogError: when there is another result, and it is not to be overwritten.
        """

    def accept(self) -> bool:
        """Complete the result without any work, and say so, if that can be done; for whoever has claimed the folder."""
        return False

    def replaced(self) -> Sequence[str]:
        """Return the names in the folder that give way to a new result, beside those that it has itself."""
        return self.markers

    def compare(self, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
        """Return one ``key: old -> new`` per difference of two identities."""
        return differences(stored, wanted)

    def has_leftovers(self) -> bool:
        """Whether unfinished work outlived the result: its process was killed right after the publication."""
        return self.resume.path.is_dir()

    def needs_claim(self) -> bool:
        """Whether a claim is needed to say what the folder holds."""
        return atomic_dir.needs_recovery(self.path)

    def announce_done(self) -> None:
        """Say that nothing is to be done."""
        logger.info("%s is complete, skipped", self.path)

    # --- what all have in common

    def is_done(self) -> bool:
        """Whether nothing is to be done; a look before anything is read, after putting in order what the dead left.

        Raises:
            CogError: when another result is there, or unfinished work of another one, unless ``overwrite``.
            LockedError: when the folder was left in disorder, and another process is at work there.
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
        """Whether nothing would be done, as far as a look tells that changes nothing.

        Raises:
            CogError: see :meth:`is_done`.
        """
        kept = self.holds_result()
        if not kept:
            self.check_unfinished(self.identity)
        return kept

    def claim(self) -> FolderClaim:
        """Hold the lock of the folder, for a ``with`` statement; a publication that was begun is finished first.

        Raises:
            LockedError: when another live process holds it.
            CogError: when the folder cannot be created or written to.
        """
        return FolderClaim(self)

    def check_unfinished(
        self, identity: Mapping[str, Any], versions: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Return how unfinished work differs from what is asked for.

        Raises:
            CogError: when it does, something would be lost with it, and it is not to be overwritten.
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
            raise CogError(
                self.unfinished.format(path=self.path, resume=self.resume.path, changed="; ".join(changed))
            )
        return changed

    def require_writable(self) -> None:
        """Raise what a claim would, before long work; leaves nothing behind.

        Raises:
            CogError: when the folder cannot be created or written to.
        """
        with contextlib.suppress(LockedError), self.claim():
            pass


class FolderClaim(contextlib.AbstractContextManager["FolderClaim"]):
    """An output folder that nobody else works on, see :meth:`OutputFolder.claim`.

    Attributes:
        folder: the folder.
        lock: of the folder.
        resume: its unfinished work.
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
        """Give the lock back; a second time changes nothing."""
        self._releasing.close()

    def is_done(self) -> bool:
        """Whether nothing is to be done; removes what was left of finished work.

        Raises:
            CogError: see :meth:`OutputFolder.is_done`.
        """
        folder = self.folder
        kept = folder.holds_result()
        if not kept and not folder.accept():
            folder.check_unfinished(folder.identity)
            return False
        self.remove_leftovers()
        self._forget_failure()
        if kept:
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
        """Continue the unfinished work that is there, or discard it, when it is another one and may be.

        Args:
            more: what makes two beginnings the same beside the identity of the folder.
            versions: of packages and formats without which it cannot be continued.

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
        """Note an error of the block in the folder (if it exists), and forget the one of an earlier attempt.

        A lock of someone else, and an interruption, are not noted.

        Raises:
            LockedError: when someone else has the folder by now; also instead of an error that came after that.
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
        """Yield a hidden folder whose files appear together, the markers last, when the block succeeds.

        The log of unfinished work becomes that of the result.

        Raises:
            LockedError: when someone else has the folder by now; then nothing of it changes.
            CogError: when it cannot be written to.
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
