"""The runs of one command: the pending ones, their locks, and the unfinished work of earlier calls.

The folder of a run is first empty, then has work in progress in ``.resume/`` (:mod:`cog.runtime.resume_dir`), then a
complete run (``results.json``). The process that works on the run holds the lock of the folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from cog.logreg.run_folder import RunPlan
from cog.runtime.output_folder import FolderClaim

#: The plan of a run that this process has to do, and the claim of its folder.
ClaimedRun = tuple[RunPlan, FolderClaim]


def pending(plans: Sequence[RunPlan]) -> list[RunPlan]:
    """Return the runs that are not complete, after a check of all folders.

    A complete run with the same settings and features is skipped, and its accuracies are printed. With ``--overwrite``
    it is done again, unless an interrupted call with ``--overwrite`` has just finished it.

    Raises:
        CogError: a folder that holds another run, finished or not, unless it is to be overwritten.
        LockedError: a folder that has to be recovered, and in which another process works.
    """
    _share_replacement(plans)
    return [plan for plan in plans if not plan.folder.is_done()]


def _share_replacement(plans: Sequence[RunPlan]) -> None:
    """Set ``continuing`` in all folders: whether the replacement of one of them was interrupted."""
    continuing = any(plan.folder.overwrite and plan.folder.is_replacing() for plan in plans)
    for plan in plans:
        plan.folder.continuing = continuing


@contextlib.contextmanager
def claimed(plans: Sequence[RunPlan]) -> Iterator[list[ClaimedRun]]:
    """Hold the locks of the folders of runs in the block, and yield the runs that are still to be done.

    Each folder is checked again, as by :func:`pending`: another process may have finished a run in the meantime. The
    folders of unfinished work without progress are removed at the end.

    Raises:
        LockedError: when another process works on one of the runs; all locks are released then.
        CogError: see :func:`pending`; a folder that cannot be written to.
    """
    with contextlib.ExitStack() as stack:
        runs = [(plan, stack.enter_context(plan.folder.claim())) for plan in plans]
        _share_replacement(plans)
        runs = [(plan, claim) for plan, claim in runs if not claim.is_done()]
        try:
            yield runs
        finally:
            any_begun = any(claim.published or claim.resume.has_progress() for _, claim in runs)
            for _, claim in runs:
                stored = None if claim.published else claim.resume.read()
                if stored is None or claim.resume.has_progress():
                    continue
                # A run that an interrupted call with --overwrite has still to replace stays marked, if any run of the
                # call has progress.
                if not (stored["replaces"] and any_begun):
                    claim.resume.remove()
