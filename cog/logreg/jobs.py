"""Runs on the same features in one process, each into the folder that a call of its own would write.

A folder goes through these states: nothing; work in progress in ``.resume/`` (:mod:`cog.runtime.resume_dir`); a
complete run (``results.json``). The process that works on it holds its lock.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog.errors import CogError
from cog.logreg import run_folder
from cog.logreg.run_folder import RESULTS_FILE, RunFolder
from cog.logreg.settings import Settings
from cog.runtime import atomic_dir, provenance, signals
from cog.runtime.failure_note import failures_noted
from cog.runtime.locks import Lock, LockedError, locked
from cog.runtime.memory import exhaustion_explained
from cog.runtime.resume_dir import ResumeFolder, sample_sha256

if TYPE_CHECKING:
    from cog.logreg.engine import Data, Engine
    from cog.logreg.protocol import RunResult, Work

logger = logging.getLogger(__name__)

_FLAG = "--output_dir"

#: Changes when work in progress of an earlier version cannot be continued.
_FORMAT = 1


@dataclass(frozen=True)
class RunPlan:
    """One run of a study: what to do and where to.

    Attributes:
        settings: of the protocol.
        output: the seed folder.
        identity: what makes two runs the same.
        arguments: for ``arguments.json``: as if the run had been started alone.
        config_text: the configuration as YAML.
        metadata: further entries of ``results.json``.
    """

    settings: Settings
    output: Path
    identity: dict[str, Any]
    arguments: dict[str, Any]
    config_text: str
    metadata: dict[str, Any]


@dataclass(eq=False)
class Claim:
    """A run that this process has to do, and nobody else does.

    Attributes:
        plan: what to do.
        lock: of its folder.
        work: its work in progress.
        releasing: gives the lock back.
        starting: creates the folder of work in progress, see :func:`begin`.
        published: whether the result is in place, and the lock given back.
    """

    plan: RunPlan
    lock: Lock
    work: ResumeFolder
    releasing: contextlib.ExitStack
    starting: Callable[[], None] = lambda: None
    published: bool = False


def pending(
    plans: Sequence[RunPlan], *, skip_complete: bool, overwrite: bool, locked_here: bool = False
) -> list[RunPlan]:
    """Return the runs that have to be done; checks all folders before anything is computed.

    A complete run with the same settings and features is done, and its accuracies are printed. With ``overwrite`` it
    is done again, unless that is what an interrupted call with ``overwrite`` has just finished.

    Args:
        plans: what is asked for.
        skip_complete: keep runs of the original toolkit, whose settings are not known.
        overwrite: replace complete runs, and discard unfinished work of other settings.
        locked_here: whether this process has the locks of all folders.

    Raises:
        CogError: a folder that holds another run, finished or not, unless ``overwrite``.
        LockedError: a folder that was left in disorder and that another process works on.
    """
    if not locked_here:
        for plan in plans:
            if atomic_dir.needs_recovery(plan.output):
                with locked(plan.output, flag=_FLAG):
                    atomic_dir.recover(plan.output)
    continuing = overwrite and any(_replaces(plan) for plan in plans)
    todo = []
    for plan in plans:
        if _is_done(plan, skip_complete, overwrite=overwrite, continuing=continuing, locked_here=locked_here):
            continue
        found = ResumeFolder(plan.output).read()
        if found is not None and not overwrite:
            _refuse_other_work(plan, run_folder.compare(found["identity"], plan.identity))
        todo.append(plan)
    return todo


def _replaces(plan: RunPlan) -> bool:
    """Whether there is work in progress on this very run, to replace a complete one."""
    found = ResumeFolder(plan.output).read()
    return (
        found is not None and found["replaces"] and not run_folder.compare(found["identity"], plan.identity)
    )


def _is_done(
    plan: RunPlan, skip_complete: bool, *, overwrite: bool, continuing: bool, locked_here: bool
) -> bool:
    folder, work = RunFolder(plan.output), ResumeFolder(plan.output)
    try:
        results = folder.results()
    except CogError:
        if not overwrite:
            raise
        return False
    if results is None:
        if folder.is_complete() and skip_complete and not overwrite:  # of the original toolkit
            logger.info("%s is complete, skipped", plan.output)
            return True
        folder.check_free(overwrite=overwrite)
        return False
    found = work.read()
    # The result of this work in progress: the process ended between publishing it and tidying up.
    own = found is not None and found["started"] == results.get("started")
    changed = folder.differences(plan.identity)
    if not changed and (own or not overwrite or (continuing and found is None)):
        logger.info("%s is complete, skipped", plan.output)
        if work.path.is_dir() and (found is None or own or not found["replaces"]):
            _tidy_up(plan, work, locked_here=locked_here)
        _print_accuracies(results.get("final", {}), plan.output)
        return True
    if not overwrite:
        raise CogError(
            f"{plan.output} holds a different run ({'; '.join(changed)}); add --overwrite to replace it"
        )
    return False


def _tidy_up(plan: RunPlan, work: ResumeFolder, *, locked_here: bool) -> None:
    with contextlib.suppress(LockedError), contextlib.ExitStack() as stack:
        if not locked_here:
            stack.enter_context(locked(plan.output, flag=_FLAG))
        work.discard()
        logger.info("removed %s, left by a process that was killed when its run was complete", work.path)


def _print_accuracies(final: dict[str, Any], output: Path) -> None:
    values = [final.get(key) for key in ("test_top1", "test_top5")]
    if all(isinstance(value, float) for value in values):
        print(f"top-1: {values[0]:.2f}  top-5: {values[1]:.2f}  ({output})", flush=True)


def _refuse_other_work(plan: RunPlan, changed: Sequence[str]) -> None:
    if changed and ResumeFolder(plan.output).has_progress():
        raise CogError(
            f"{plan.output} holds unfinished work of a different run ({'; '.join(changed)}); add --overwrite to "
            "discard it"
        )


@contextlib.contextmanager
def claimed(plans: Sequence[RunPlan], *, skip_complete: bool, overwrite: bool) -> Iterator[list[Claim]]:
    """Hold the locks of the folders of some runs; yields those that still have to be done.

    Arguments as of :func:`pending`, which is asked again: another process may have finished a run in the meantime.

    Raises:
        LockedError: when another process works on one of them; then all locks are given back.
        CogError: see :func:`pending`; a folder that cannot be written to.
    """
    with contextlib.ExitStack() as stack:
        claims = []
        for plan in plans:
            releasing = stack.enter_context(contextlib.ExitStack())
            lock = releasing.enter_context(locked(plan.output, flag=_FLAG))
            atomic_dir.recover(plan.output)
            claims.append(Claim(plan, lock, ResumeFolder(plan.output), releasing))
        todo = pending(plans, skip_complete=skip_complete, overwrite=overwrite, locked_here=True)
        claims = [claim for claim in claims if any(claim.plan is plan for plan in todo)]
        try:
            yield claims
        finally:
            _drop_empty(claims)


def _drop_empty(claims: Sequence[Claim]) -> None:
    """Leave nothing behind where nothing was done.

    What an interrupted call with ``overwrite`` has still to replace stays marked, once there is something to continue.
    """
    begun = any(claim.published or claim.work.has_progress() for claim in claims)
    for claim in claims:
        one = None if claim.published else claim.work.read()
        if one is not None and not claim.work.has_progress() and not (one["replaces"] and begun):
            with contextlib.suppress(OSError):
                claim.work.discard()


def begin(claims: Sequence[Claim], *, device: str, precision: str, overwrite: bool) -> None:
    """Compare unfinished work with what is to be done now, before anything is computed.

    Args:
        claims: from :func:`claimed`.
        device: ``cpu`` or ``cuda``: other devices give other last bits.
        precision: of the products in training.
        overwrite: discard what is different.

    Raises:
        CogError: unfinished work of a different run, or of other versions, unless ``overwrite``.
    """
    samples: dict[str, str] = {}
    for claim in claims:
        identity = dict(claim.plan.identity)
        for split in ("train", "test"):
            file = claim.plan.metadata[f"{split}_features"]
            if file not in samples:
                samples[file] = sample_sha256(file)
            identity[f"{split}_features_sample"] = samples[file]
        identity |= {"device": device, "training_precision": precision}
        versions: dict[str, Any] = {"format": _FORMAT}
        versions |= {key: claim.plan.metadata["versions"].get(key) for key in ("torch", "optuna", "numpy")}
        found = claim.work.read()
        if found is not None:
            changed = run_folder.compare(found["identity"], identity)
            changed += [
                f"{key}: {found['versions'].get(key)} -> {value}"
                for key, value in versions.items()
                if found["versions"].get(key) != value
            ]
            if changed and not overwrite:
                _refuse_other_work(claim.plan, changed)
            if changed:
                claim.work.discard()
        replaces = overwrite and bool(RunFolder(claim.plan.output).existing())
        claim.starting = functools.partial(
            claim.work.create, identity=identity, versions=versions, replaces=replaces
        )
        if overwrite:
            claim.starting()


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
        work = Work(claims[position].work.path, print_freq, at_once == 1, before_epoch)
        place = f"run {position + 1} of {len(claims)}" if len(claims) > 1 else ""
        _execute_one(claims[position], data, engine, work, place)

    with exact_float32():  # once for all threads: it is a setting of the process
        SideBySide(do, len(claims), at_once, engine.device, alone).run()


def _execute_one(claim: Claim, data: Data, engine: Engine, work: Work, place: str) -> None:
    """Train and write a run."""
    from cog.logreg.protocol import LESS_MEMORY, run_protocol

    plan, label = claim.plan, claim.plan.settings.label
    what = f"training classifiers of {len(data.labels)} classes"
    claim.lock.require_held()
    with failures_noted(claim.lock), exhaustion_explained(what, LESS_MEMORY):
        claim.starting()
        session = claim.work.begin_session()
        with provenance.log_file(claim.work.log_file, label=label):
            if place:
                logger.info("%s%s: %s", label, place, plan.output)
            if session["sessions"] > 1:
                logger.info("%scontinuing, session %d", label, session["sessions"])
            result = run_protocol(data, plan.settings, engine, work)
        _publish(claim, result, session)
    claim.published = True
    claim.releasing.close()
    assert result.classifier.history is not None
    logs = result.classifier.history.logs
    final = {"test_top1": logs["test/top1"][-1], "test_top5": logs["test/top5"][-1]}
    _print_accuracies(final, plan.output)


def _publish(claim: Claim, result: RunResult, session: dict[str, Any]) -> None:
    """Put the result in place, then remove the work in progress."""
    plan, work = claim.plan, claim.work
    claim.lock.require_held()
    with atomic_dir.staged(plan.output, marker=RESULTS_FILE, flag=_FLAG) as stage:
        stage.replaces = RunFolder(plan.output).existing()
        run_folder.write(
            stage.path,
            result,
            settings=plan.settings,
            identity=plan.identity,
            arguments=plan.arguments,
            config_text=plan.config_text,
            metadata=plan.metadata
            | {
                "precision": result.precision,
                "started": session["started"],
                "finished": provenance.now(),
                "sessions": session["sessions"],
            },
        )
        try:
            shutil.copyfile(work.log_file, stage.path / work.log_file.name)
        except OSError as error:
            raise CogError(f"cannot write into {plan.output}: {error.strerror or error}") from error
        claim.lock.require_held()
    try:
        work.discard()
    except OSError as error:  # the next start does it
        logger.warning("cannot remove %s: %s", work.path, error.strerror or error)
