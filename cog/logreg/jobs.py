"""Runs on the same features in one process, each into the folder that a call of its own would write.

A folder goes through these states: nothing; work in progress in ``.resume/`` (:mod:`cog.runtime.resume_dir`); a
complete run (``results.json``). The process that works on it holds its lock.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cog.logreg import run_folder
from cog.logreg.run_folder import RunPlan
from cog.runtime import provenance, signals
from cog.runtime.memory import exhaustion_explained
from cog.runtime.output_folder import FolderClaim
from cog.runtime.resume_dir import sample_sha256

if TYPE_CHECKING:
    from cog.logreg.engine import Data, Engine
    from cog.logreg.protocol import Work

logger = logging.getLogger(__name__)

#: Changes when work in progress of an earlier version cannot be continued.
_FORMAT = 1


@dataclass(eq=False)
class Claim:
    """A run that this process has to do, and nobody else does.

    Attributes:
        plan: what to do.
        held: its folder.
        published: whether the result is in place, and the folder given back.
    """

    plan: RunPlan
    held: FolderClaim
    published: bool = False


def pending(plans: Sequence[RunPlan]) -> list[RunPlan]:
    """Return the runs that have to be done; checks all folders before anything is computed.

    A complete run with the same settings and features is done, and its accuracies are printed. With ``--overwrite`` it
    is done again, unless that is what an interrupted call with ``--overwrite`` has just finished.

    Raises:
        CogError: a folder that holds another run, finished or not, unless it is to be overwritten.
        LockedError: a folder that was left in disorder and that another process works on.
    """
    _share_replacement(plans)
    return [plan for plan in plans if not plan.folder.is_done()]


def _share_replacement(plans: Sequence[RunPlan]) -> None:
    """Tell all folders whether the replacement of one of them was interrupted."""
    continuing = any(plan.folder.overwrite and plan.folder.is_replacing() for plan in plans)
    for plan in plans:
        plan.folder.continuing = continuing


@contextlib.contextmanager
def claimed(plans: Sequence[RunPlan]) -> Iterator[list[Claim]]:
    """Hold the locks of the folders of some runs; yields those that still have to be done.

    Each folder is asked again, as by :func:`pending`: another process may have finished a run in the meantime.

    Raises:
        LockedError: when another process works on one of them; then all locks are given back.
        CogError: see :func:`pending`; a folder that cannot be written to.
    """
    with contextlib.ExitStack() as stack:
        claims = [Claim(plan, stack.enter_context(plan.folder.claim())) for plan in plans]
        _share_replacement(plans)
        claims = [claim for claim in claims if not claim.held.is_done()]
        try:
            yield claims
        finally:
            _drop_empty(claims)


def _drop_empty(claims: Sequence[Claim]) -> None:
    """Leave nothing behind where nothing was done.

    What an interrupted call with ``--overwrite`` has still to replace stays marked, once there is something to go on
    with.
    """
    begun = any(claim.published or claim.held.resume.has_progress() for claim in claims)
    for claim in claims:
        resume = claim.held.resume
        stored = None if claim.published else resume.read()
        if stored is not None and not resume.has_progress() and not (stored["replaces"] and begun):
            resume.remove()


def begin(claims: Sequence[Claim], *, device: str, precision: str) -> None:
    """Compare unfinished work with what is to be done now, before anything is computed.

    Args:
        claims: from :func:`claimed`.
        device: ``cpu`` or ``cuda``: other devices give other last bits.
        precision: of the products in training.

    Raises:
        CogError: unfinished work of a different run, or of other versions, unless it is to be overwritten.
    """
    samples: dict[str, str] = {}
    for claim in claims:
        more = {"device": device, "training_precision": precision}
        for split in ("train", "test"):
            file = claim.plan.metadata[f"{split}_features"]
            if file not in samples:
                samples[file] = sample_sha256(file)
            more[f"{split}_features_sample"] = samples[file]
        versions: dict[str, Any] = {"format": _FORMAT}
        versions |= {key: claim.plan.metadata["versions"].get(key) for key in ("torch", "optuna", "numpy")}
        claim.held.begin(more, versions=versions)
        folder = claim.plan.folder
        if folder.overwrite:
            claim.held.resume.replaces = bool(folder.replaced())
            claim.held.resume.create()


def execute(
    claims: Sequence[Claim],
    data: Data,
    engine: Engine,
    *,
    print_freq: int = 10,
    at_once: int = 1,
    alone: Sequence[int] = (),
) -> None:
    """Train and write all runs; each is published the moment it is finished.

    Prints the final accuracies of each. When one fails or the process is interrupted, the finished ones stay, and the
    others can be continued by the same call.

    Args:
        claims: from :func:`claimed`, after :func:`begin`.
        data: from :func:`cog.logreg.protocol.prepare`.
        engine: does the training.
        print_freq: epochs between log lines of the final training; 0 prints none.
        at_once: runs to do side by side, from :func:`cog.logreg.parallel.runs_at_once`.
        alone: positions of runs to do alone, from there.

    Raises:
        CogError: see :func:`cog.logreg.protocol.run_protocol`; folders that cannot be written to; not enough memory.
        Interrupted: when the process was asked to end.
    """
    from cog.logreg.parallel import SideBySide
    from cog.logreg.protocol import Work
    from cog.runtime.device import exact_float32

    def do(position: int, before_epoch: Callable[[], None]) -> None:
        if position:
            signals.check("what is finished is saved")
        work = Work(claims[position].held.resume.path, print_freq, at_once == 1, before_epoch)
        place = f"run {position + 1} of {len(claims)}" if len(claims) > 1 else ""
        _execute_one(claims[position], data, engine, work, place)

    with exact_float32():  # once for all threads: it is a setting of the process
        SideBySide(do, len(claims), at_once, engine.device, alone).run()


def _execute_one(claim: Claim, data: Data, engine: Engine, work: Work, place: str) -> None:
    """Train and write a run."""
    from cog.logreg.protocol import LESS_MEMORY, run_protocol

    plan, label = claim.plan, claim.plan.settings.label
    what = f"training classifiers of {len(data.labels)} classes"
    held = claim.held
    with held.failures_noted(), exhaustion_explained(what, LESS_MEMORY):
        held.resume.create()
        session = held.resume.begin_session()
        with provenance.log_file(held.resume.log_file, label=label):
            if place:
                logger.info("%s%s: %s", label, place, plan.folder.path)
            if session["sessions"] > 1:
                logger.info("%scontinuing, session %d", label, session["sessions"])
            result = run_protocol(data, plan.settings, engine, work)
        with held.publish() as stage:
            times = {
                "started": session["started"],
                "finished": provenance.now(),
                "sessions": session["sessions"],
            }
            final = run_folder.write(stage, result, plan, {"precision": result.precision} | times)
    claim.published = True
    held.release()
    run_folder.print_accuracies(final, plan.folder.path)
