"""One data set and split, extracted by one process or by several, in one go or in many.

One process holds the lock of the output folder and publishes (it leads). Others, started with it, help: they wait for
its manifest in ``.resume/``, claim units of rows by lock files, and write their shards there. No process waits for
another one to come, and units of a process that dies are taken over.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from cog.data.pixels import can_decode
from cog.errors import CogError
from cog.features import feature_files, shards
from cog.features.extract import Extractor
from cog.features.folder import IDENTITY
from cog.features.plan import ExtractionPlan, ExtractJob
from cog.runtime import locks, provenance, signals
from cog.runtime.device import device_name
from cog.runtime.fingerprint import differences
from cog.runtime.output_folder import FolderClaim, read_state
from cog.runtime.progress import Progress

logger = logging.getLogger(__name__)

_FLAG = "--output_dir"

#: Seconds between two looks at what other processes do.
POLL_SECONDS = 0.5

#: How long a process waits for the one that leads to begin; it may have a million files to list.
LEADER_SECONDS = 1800.0

#: How long it waits while a process of another start is at work there: the own leader ends for that reason.
FOREIGN_SECONDS = 30.0

#: Rows of a unit at least; smaller ones would be more locking than work.
_LEAST_UNIT_ROWS = 64
_UNITS = 64

#: Times that finished ranges may turn out to be damaged before the storage is not trusted any more.
_MOST_REPAIRS = 3


def work_versions(plan: ExtractionPlan, *, device: torch.device, rows_per_pass: int) -> dict[str, Any]:
    """Return what has to agree, beside the identity of the features, for rows of several sessions to be put together.

    That is more than for finished features to be accepted: whatever changes their last bits, except for the model of
    the GPU.
    """
    packages = ("torch", "torchvision", "pillow")
    versions = provenance.versions(packages)
    return {
        "device": device.type,
        "images per forward pass": rows_per_pass,
        "compiled": plan.cfg.FT_EXTRACT.COMPILE,
    } | {package: versions[package] for package in packages}


def run(job: ExtractJob, extractor: Extractor, plan: ExtractionPlan, *, label: str) -> None:
    """Extract a job, as the leader or as a helper.

    Args:
        job: data set and split.
        extractor: the network.
        plan: settings.
        label: of the progress.

    Raises:
        Interrupted: when a signal asked to end, or the leader has ended.
        FailedImagesError: when more images failed than are allowed.
        LockedError: when another start is at work there.
        CogError: when something went wrong; finished rows are kept.
    """
    if plan.rank.leads:
        _lead(job, extractor, plan, label=label)
    else:
        _help(job, extractor, plan, label=label)


def _lead(job: ExtractJob, extractor: Extractor, plan: ExtractionPlan, *, label: str) -> None:
    with job.folder.claim() as claim, claim.failures_noted():
        if claim.is_done():
            return
        claim.begin(
            versions=work_versions(plan, device=extractor.device, rows_per_pass=extractor.rows_per_pass)
        )
        work = claim.resume
        assert isinstance(work, shards.Shards)
        manifest = _manifest(job, extractor, plan, leader=claim.lock.holder.token)
        work.begin(manifest, stale_reason=lambda shard: _readable_by_now(shard, job, plan))
        try:
            with _Worker(job, extractor, plan, work, label=label) as worker:
                merged = _complete(worker)
        except BaseException as error:
            work.scan()
            # Of several processes the others may be about to save their first rows.
            if not work.n_done() and (plan.rank.size == 1 or not isinstance(error, signals.Interrupted)):
                work.remove()
            raise
        _publish(job, merged, plan, claim)
        job.folder.require_complete()


def _manifest(job: ExtractJob, extractor: Extractor, plan: ExtractionPlan, *, leader: str) -> shards.Manifest:
    per_pass, n_rows = extractor.rows_per_pass, len(job.images)
    unit_rows = min(plan.cfg.FT_EXTRACT.SHARD_ROWS, max(_LEAST_UNIT_ROWS, n_rows // _UNITS))
    return shards.Manifest(
        work=secrets.token_hex(8),
        identity={key: value for key, value in job.folder.identity.items() if key in IDENTITY}
        | work_versions(plan, device=extractor.device, rows_per_pass=per_pass),
        n_rows=n_rows,
        unit_rows=-(-unit_rows // per_pass) * per_pass,
        n_threads=torch.get_num_threads() if extractor.device.type == "cpu" else 0,
        overwrites=plan.overwrite,
        group=plan.rank.group,
        leader=leader,
    )


def _readable_by_now(shard: shards.Shard, job: ExtractJob, plan: ExtractionPlan) -> str | None:
    """Return a message that names a failed image of a shard that can be decoded by now; None: there is none."""
    for row, _ in shard.failures:
        file = job.images.file(int(row))
        if can_decode(job.images.store, file, load_truncated=plan.cfg.FT_EXTRACT.LOAD_TRUNCATED_IMAGES):
            return f"{file} can be decoded now"
    return None


class _Worker(contextlib.ExitStack):
    """Computes and saves the rows of a job that no other process has claimed; for a ``with`` statement.

    Args:
        job: data set and split.
        extractor: the network.
        plan: settings.
        work: the shards.
        label: of the progress, which in the leader counts the images of all processes.
    """

    def __init__(
        self, job: ExtractJob, extractor: Extractor, plan: ExtractionPlan, work: shards.Shards, *, label: str
    ) -> None:
        super().__init__()
        self.job, self.shards, self.device = job, work, device_name(extractor.device)
        self._extractor, self._rank = extractor, plan.rank
        work.scan()
        self._n_before, n_rows = work.n_done(), work.manifest.n_rows
        self._n_others = 0  # rows of other processes that the progress counts
        self._held: deque[tuple[int, contextlib.ExitStack]] = deque()  # last row of a unit, its lock
        fx, leads = plan.cfg.FT_EXTRACT, plan.rank.leads
        self._recorder = shards.Recorder(
            work, device=self.device, max_rows=fx.SHARD_ROWS, max_seconds=fx.SHARD_SECONDS
        )
        self.enter_context(contextlib.closing(self._recorder))
        total = n_rows - self._n_before if leads else None
        self._progress = self.enter_context(Progress(total, label, bar=leads))
        self.enter_context(_threads(work.manifest.n_threads))

    def compute(self, *, may_go_on: Callable[[], bool] = lambda: True) -> None:
        """Compute the rows that can be claimed, and save them.

        Args:
            may_go_on: asked before each claim.

        Raises:
            Interrupted: when a signal asked to end; the rows that were computed are saved.
            CogError: when the network or the storage fails; rows are saved as far as possible.
        """
        recorder = self._recorder
        recorder.begin()
        stream = self._extractor.stream(self.job.images, self._ranges(may_go_on), stop=signals.requested)
        try:
            with contextlib.closing(stream):
                try:
                    for batch in stream:
                        recorder.add(batch)
                        self._progress.update(batch.n)
                        self._give_back(batch.stop)
                except CogError:
                    if not signals.requested():  # the signal has ended the decoding processes, too
                        with contextlib.suppress(CogError):
                            recorder.flush()
                            recorder.wait()
                        raise
                recorder.flush()
                recorder.wait()
        finally:
            while self._held:  # units that are not finished
                self._held.popleft()[1].close()
        self._check_signals()

    def wait(self) -> None:
        """Let a moment pass, and look at the work of the others."""
        self._check_signals()
        time.sleep(POLL_SECONDS)
        self._scan()

    def _check_signals(self) -> None:
        if signals.requested():
            self.shards.scan()
            n_done, n_rows = self.shards.n_done(), self.shards.manifest.n_rows
            signals.check(f"{n_done} of {n_rows} images of {self.job.label} are saved")

    def _scan(self) -> None:
        """Take note of finished ranges; the leader's progress counts those of other processes."""
        self.shards.scan()
        if self._rank.leads and self._rank.size > 1:
            n_others = self.shards.n_done() - self._n_before - self._recorder.n_rows
            if n_others > self._n_others:
                self._progress.update(n_others - self._n_others)
                self._n_others = n_others

    def _ranges(self, may_go_on: Callable[[], bool]) -> Iterator[tuple[int, int]]:
        """Yield ``(first, stop)`` of the rows to compute: all, or with several processes unit by unit.

        A unit stays claimed until :meth:`_give_back` is told its last row.
        """
        rank, work = self._rank, self.shards
        work.scan()
        if rank.size == 1:
            yield from work.gaps()
            return
        unit_rows, n_rows = work.manifest.unit_rows, work.manifest.n_rows
        n_units = -(-n_rows // unit_rows)
        for turn in range(n_units):
            unit = (turn + rank.number * n_units // rank.size) % n_units  # apart from each other
            first, stop = unit * unit_rows, min((unit + 1) * unit_rows, n_rows)
            if signals.requested() or not may_go_on():
                return
            self._scan()
            name = f"unit-{unit:05d}.lock"
            if not work.gaps(first, stop) or locks.live_holder(work.path, name=name):
                continue
            lock = contextlib.ExitStack()
            try:
                lock.enter_context(locks.locked(work.path, flag=_FLAG, name=name, create=False))
            except locks.LockedError:
                continue
            except CogError:
                if not may_go_on():  # everything is done, and the folder removed
                    return
                raise
            work.scan()  # it may have been finished just before
            gaps = work.gaps(first, stop)
            if not gaps:
                lock.close()
                continue
            self._held.append((gaps[-1][1], lock))
            yield from gaps

    def _give_back(self, row: int) -> None:
        """Save a unit, and give its lock back, when its last row is computed."""
        if self._held and self._held[0][0] == row:
            _, lock = self._held.popleft()
            self._recorder.flush(then=lock.close)


def _complete(worker: _Worker) -> shards.MergedShards:
    """Compute all rows, or wait for those that others compute, and return them."""
    job, work = worker.job, worker.shards
    if n_before := work.n_done():
        logger.info("%s: continues, %d of %d images are done", job.label, n_before, work.manifest.n_rows)
    others = {shard.device for shard in work.used()} - {worker.device}
    if others:
        logger.warning(
            "%s: the images that are done were computed on %s, the others are on %s: features may differ in their last "
            "bits", job.label, ", ".join(sorted(others)), worker.device,
        )  # fmt: skip
    for _ in range(_MOST_REPAIRS + 1):
        worker.compute()
        work.scan()
        while work.gaps():
            worker.wait()  # for units that others have claimed
            worker.compute()
            work.scan()
        merged = work.merge()
        if merged is not None:
            return merged
    raise CogError(f"the shards in {work.path} are damaged again and again; is the storage sound?")


def _publish(job: ExtractJob, merged: shards.MergedShards, plan: ExtractionPlan, claim: FolderClaim) -> None:
    images = job.images
    decoded = np.ones(len(images), dtype=bool)
    decoded[[row for row, _ in merged.failures]] = False
    rows = np.flatnonzero(decoded).tolist()
    rate = len(images) / max(merged.seconds, 1e-9)
    x = torch.from_numpy(merged.x)
    if x.dtype is torch.int16:
        x = x.view(torch.bfloat16)
    with claim.publish() as stage:
        job.folder.write(
            stage,
            feature_files.FeatureSet(
                x,
                torch.from_numpy(images.labels[rows]),
                f"{plan.model.model}_{images.dataset}_{images.split}",
            ),
            metadata={
                "n_rows": len(rows),
                "feature_dim": merged.x.shape[1],
                "device": ", ".join(merged.devices),
                "compiled": plan.cfg.FT_EXTRACT.COMPILE,
                "versions": provenance.versions(("torch", "torchvision", "pillow", "numpy")),
                "seconds": round(merged.seconds, 3),
                "images_per_second": round(rate, 1),
                "finished": provenance.now(),
            },
            image_paths=[images.file(row) for row in rows],
            failures=[(images.file(row), reason) for row, reason in merged.failures],
        )
    logger.info(
        "%s: %d x %d features, %d failed images, %.1f images/s",
        job.folder.path, *merged.x.shape, len(merged.failures), rate,
    )  # fmt: skip


# --- the other processes


def _help(job: ExtractJob, extractor: Extractor, plan: ExtractionPlan, *, label: str) -> None:
    leader = _Leader(job, plan)
    manifest = leader.wait(_manifest(job, extractor, plan, leader="").identity)
    if manifest is None:
        return
    work = shards.Shards(job.folder.path)
    work.manifest = manifest
    try:
        with _Worker(job, extractor, plan, work, label=label) as worker:
            while True:
                worker.compute(may_go_on=leader.is_there)
                if not leader.is_there():
                    break
                worker.wait()
    except signals.Interrupted:
        raise
    except CogError:  # it may be that the leader has ended and cleaned up
        signals.check(f"{job.label} is not complete")
        if leader.is_there():
            raise
    leader.require_published()


class _Leader:
    """The process that leads, as a helper sees it."""

    def __init__(self, job: ExtractJob, plan: ExtractionPlan) -> None:
        self._job = job
        self._plan = plan
        self._folder = job.folder.path
        self._manifest: shards.Manifest | None = None

    def wait(self, identity: dict[str, Any]) -> shards.Manifest | None:
        """Wait for the work to begin; None when it is done already.

        Raises:
            Interrupted: when a signal asked to end, or the leader came and went.
            LockedError: when another start is at work there.
            CogError: when the leader failed or does not come, or wants something else.
        """
        begin = time.monotonic()
        foreign_since = gone_since = None
        while True:
            signals.check(f"{self._job.label} is not begun")
            now = time.monotonic()
            if self._is_published():
                return None
            self._require_no_failure()
            manifest, holder = self._look()
            ours = manifest is not None and manifest.group == self._plan.rank.group
            leads = manifest is not None and holder is not None and holder.token == manifest.leader
            if manifest is not None and ours and leads:
                changed = differences(manifest.identity, identity)
                if changed:
                    raise CogError(f"this process sees other input than rank 0: {'; '.join(changed)}")
                self._manifest = manifest
                return manifest
            foreign_since = (foreign_since or now) if leads else None
            gone_since = (gone_since or now) if ours and not holder and self._plan.rank.is_unique else None
            if foreign_since and now - foreign_since > FOREIGN_SECONDS:
                raise locks.LockedError(f"{self._folder} is being written by {holder}; wait for it to end")
            if gone_since and now - gone_since > 10 * POLL_SECONDS:
                self._raise_gone()
            if now - begin > LEADER_SECONDS:
                raise CogError(
                    f"rank 0 has not begun with {self._job.label} for {LEADER_SECONDS / 60:.0f} minutes; if these "
                    "processes do not belong together, set COG_RANKS=0"
                )
            time.sleep(POLL_SECONDS / 5)

    def is_there(self) -> bool:
        """Whether the leader is alive and at work on what this process has joined."""
        joined, (manifest, holder) = self._manifest, self._look()
        if joined is None or manifest is None or holder is None:
            return False
        return (manifest.work, manifest.leader) == (
            joined.work,
            joined.leader,
        ) and holder.token == joined.leader

    def _look(self) -> tuple[shards.Manifest | None, locks.Holder | None]:
        """Return the manifest in the folder, and the process that holds its lock."""
        return shards.read_manifest(self._folder), read_state(self._folder, complete=False).holder

    def require_published(self) -> None:
        """Say how the leader ended.

        Raises:
            CogError: when it failed.
            Interrupted: when it was interrupted or killed.
        """
        if not self._is_published():
            self._require_no_failure()
            self._raise_gone()

    def _is_published(self) -> bool:
        """Whether there are features as wanted: of this start, or of an earlier one that are kept."""
        folder = self._job.folder
        try:
            stored = folder.metadata()
            if not stored or folder.compare(stored, folder.identity):
                return False
        except CogError:
            return False
        if folder.is_complete() and not self._plan.overwrite:
            return True
        # give or take a minute between the clocks of two machines
        return folder.is_finished() and self._is_recent(stored.get("finished"), tolerance=60)

    def _require_no_failure(self) -> None:
        failure = read_state(self._folder, complete=False).failure
        if failure is not None and self._is_recent(failure.when):
            raise CogError(f"rank 0 failed: {failure.message}")

    def _is_recent(self, when: object, *, tolerance: float = 0) -> bool:
        """Whether something happened after the start of this process."""
        try:
            happened = datetime.datetime.fromisoformat(str(when)).timestamp()
        except ValueError:
            return False
        return happened >= int(self._plan.since) - tolerance

    def _raise_gone(self) -> None:
        raise signals.Interrupted(
            f"rank 0 has ended before {self._job.label} was complete; what is done is saved, and the same command "
            "continues from here"
        )


@contextlib.contextmanager
def _threads(n_threads: int) -> Iterator[None]:
    """Compute with as many threads as the work was begun with, where the bits depend on it."""
    before = torch.get_num_threads()
    if n_threads in (0, before):
        yield
        return
    logger.info("continues with %d threads of PyTorch, as it was begun", n_threads)
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
