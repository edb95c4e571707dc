"""An extraction that several processes share: their claims of units of rows, and their view of rank 0.

Rank 0 holds the lock of the output folder and publishes the features. The other processes of the same start wait for
its manifest in ``.resume/``. All claim units of rows by lock files beside the manifest, and save their rows there. Rank
0 does not wait for the others to start, and the units of a process that dies are taken over.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cog.errors import CogError
from cog.features.plan import ExtractJob
from cog.features.shards import Manifest, Shards, read_manifest
from cog.runtime import locks, signals
from cog.runtime.fingerprint import differences
from cog.runtime.output_folder import read_state
from cog.runtime.ranks import Rank

#: Seconds between two looks at the progress of other processes.
POLL_SECONDS = 0.5

#: Seconds that a process waits for rank 0 to begin; rank 0 may have a million files to list.
LEADER_SECONDS = 1800.0

#: Seconds that a process waits while another start works in the folder, for which reason its own rank 0 ends, too, or
#: after its rank 0 has ended.
FOREIGN_SECONDS = 30.0

#: Least number of rows of a unit (smaller units would take longer to lock than to compute), and number of units.
_LEAST_UNIT_ROWS = 64
_UNITS = 64


def rows_per_unit(n_rows: int, *, shard_rows: int, rows_per_pass: int) -> int:
    """Return the number of rows of a unit, a multiple of the images per forward pass."""
    rows = min(shard_rows, max(_LEAST_UNIT_ROWS, n_rows // _UNITS))
    return -(-rows // rows_per_pass) * rows_per_pass


class Units(contextlib.AbstractContextManager["Units"]):
    """Claims of units of rows, each until its rows are saved; the end of the ``with`` block releases all."""

    def __init__(self, work: Shards, rank: Rank) -> None:
        self._work, self._rank = work, rank
        self._held: dict[tuple[int, int], contextlib.ExitStack] = {}

    def __exit__(self, *_: object) -> None:
        for lock in self._held.values():
            lock.close()

    def claim(self, may_go_on: Callable[[], bool]) -> Iterator[tuple[int, int]]:
        """Yield the ranges ``(first, stop)`` of rows that are not saved, one unit after the other."""
        work, size = self._work, self._work.manifest.unit_rows
        n_units = -(-work.manifest.n_rows // size)
        for turn in range(n_units):
            if signals.requested() or not may_go_on():
                return
            number = (turn + self._rank.number * n_units // self._rank.size) % n_units
            rows = number * size, min((number + 1) * size, work.manifest.n_rows)
            name = f"unit-{number:05d}.lock"
            work.scan()
            for saved in [held for held in self._held if not work.gaps(*held)]:
                self._held.pop(saved).close()
            if not work.gaps(*rows) or locks.live_holder(work.path, name=name):
                continue
            lock = contextlib.ExitStack()
            try:
                lock.enter_context(locks.locked(work.path, flag="--output_dir", name=name, create=False))
            except locks.LockedError:
                continue
            except CogError:
                if not may_go_on():  # the work is complete, and the folder removed
                    return
                raise
            self._held[rows] = lock
            work.scan()  # another process may have finished rows just before the claim
            yield from work.gaps(*rows)


def wait_for_manifest(job: ExtractJob, identity: dict[str, Any]) -> Manifest | None:
    """Wait for rank 0 to begin, and return the manifest of its work; None when the features are published already."""
    folder, rank = job.folder.path, job.plan.rank
    begin = last_without_problem = time.monotonic()
    while True:
        signals.check(f"{job.label} is not begun")
        now = time.monotonic()
        if _is_published(job):
            return None
        _require_no_failure(job)
        problem: CogError | None = None
        manifest = read_manifest(folder)
        is_ours = manifest is not None and manifest.group == rank.group
        if manifest is not None and is_led(folder, manifest):
            if not is_ours:
                problem = locks.LockedError(f"{folder} is being written by another start; wait for it to end")
            elif changed := differences(manifest.identity, identity):
                raise CogError(f"this process sees other input than rank 0: {'; '.join(changed)}")
            else:
                return manifest
        elif is_ours and rank.is_unique:
            problem = _gone(job)
        if problem is None:
            last_without_problem = now
        elif now - last_without_problem > FOREIGN_SECONDS:
            raise problem
        if now - begin > LEADER_SECONDS:
            raise CogError(
                f"rank 0 has not begun with {job.label} for {LEADER_SECONDS / 60:.0f} minutes; if these "
                "processes do not belong together, set COG_RANKS=0"
            )
        time.sleep(POLL_SECONDS / 5)


def is_led(folder: Path, joined: Manifest) -> bool:
    """Return whether the leader of the work with the manifest ``joined`` is alive and still leads it."""
    manifest, holder = read_manifest(folder), read_state(folder, complete=False).holder
    if manifest is None or holder is None:
        return False
    return (manifest.work, manifest.leader, holder.token) == (joined.work, joined.leader, joined.leader)


def require_published(job: ExtractJob) -> None:
    """Raise an error unless rank 0 has published the features."""
    if not _is_published(job):
        _require_no_failure(job)
        raise _gone(job)


def _is_published(job: ExtractJob) -> bool:
    """Return whether the folder has the requested features: of this start, or of an earlier start and to be kept."""
    folder = job.folder
    try:
        stored = folder.metadata()
        if not stored or folder.compare(stored, folder.identity):
            return False
    except CogError:
        return False
    if folder.is_complete() and not folder.overwrite:
        return True
    # give or take a minute between the clocks of two machines
    return folder.is_complete() and _is_recent(stored.get("finished"), job, tolerance=60)


def _require_no_failure(job: ExtractJob) -> None:
    failure = read_state(job.folder.path, complete=False).failure
    if failure is not None and _is_recent(failure.when, job):
        raise CogError(f"rank 0 failed: {failure.message}")


def _is_recent(when: object, job: ExtractJob, *, tolerance: float = 0) -> bool:
    """Return whether the time ``when`` (ISO 8601) lies after the start of this process, or ``tolerance`` s before."""
    try:
        happened = datetime.datetime.fromisoformat(str(when)).timestamp()
    except ValueError:
        return False
    return happened >= int(job.plan.since) - tolerance


def _gone(job: ExtractJob) -> signals.Interrupted:
    return signals.Interrupted(
        f"rank 0 has ended before {job.label} was complete; what is done is saved, and the same command "
        "continues from here"
    )
