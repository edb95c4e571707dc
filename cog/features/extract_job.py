"""One data set and split, extracted by one process or by several, in one go or in many.

One process holds the lock of the output folder and publishes (it leads). Others, started with it, help: they wait for
its manifest in ``.resume/``, claim units of rows by lock files, and write what they have done there. No process waits
for another one to come, and units of a process that dies are taken over.
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


def work_identity(
    job: ExtractJob, plan: ExtractionPlan, *, device: torch.device, rows_per_pass: int
) -> dict[str, Any]:
    """Return what has to agree for rows computed at different times to be put together.

    More than for finished features to be accepted: whatever changes their last bits, except for the model of the GPU.
    """
    identity = {key: job.identity[key] for key in IDENTITY if key in job.identity}
    versions = provenance.versions(("torch", "torchvision", "pillow"))
    return identity | {
        "device": device.type,
        "images per forward pass": rows_per_pass,
        "compiled": plan.cfg.FT_EXTRACT.COMPILE,
        **{package: versions[package] for package in ("torch", "torchvision", "pillow")},
    }


def run(job: ExtractJob, extractor: Extractor, plan: ExtractionPlan, *, label: str) -> None:
    """Extract a job, as the leader or as a helper.

    Args:
        job: what to do.
        extractor: the network.
        plan: says how.
        label: of the progress.

    Raises:
        Interrupted: when a signal asked to end, or the leader has ended.
        FailedImagesError: when more images failed than are allowed.
        LockedError: when another start is at work there.
        CogError: when something went wrong; what is done is kept.
    """
    if plan.rank.leads:
        _lead(job, extractor, plan, label=label)
    else:
        _help(job, extractor, plan, label=label)


def _lead(job: ExtractJob, extractor: Extractor, plan: ExtractionPlan, *, label: str) -> None:
    with job.folder.claim() as claim, claim.failures_noted():
        if claim.is_done():
            return
        manifest = _manifest(job, extractor, plan, leader=claim.lock.holder.token)
        work = shards.begin(
            job.folder.path,
            manifest,
            overwrite=plan.overwrite,
            stale_reason=lambda shard: _readable_by_now(shard, job, plan),
        )
        try:
            merged = _complete(_Work(job, extractor, plan, work, label=label))
        except BaseException as error:
            work.scan()
            # Of several processes the others may be about to save their first rows.
            if not work.n_done() and (plan.rank.size == 1 or not isinstance(error, signals.Interrupted)):
                claim.resume.remove()
            raise
        _publish(job, merged, plan, claim)
        job.folder.require_complete()


def _manifest(job: ExtractJob, extractor: Extractor, plan: ExtractionPlan, *, leader: str) -> shards.Manifest:
    per_pass = extractor.rows_per_pass
    n_rows = len(job.images)
    unit_rows = min(plan.cfg.FT_EXTRACT.SHARD_ROWS, max(_LEAST_UNIT_ROWS, n_rows // _UNITS))
    return shards.Manifest(
        work=secrets.token_hex(8),
        identity=work_identity(job, plan, device=extractor.device, rows_per_pass=per_pass),
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
        if can_decode(job.images.root / file, load_truncated=plan.cfg.FT_EXTRACT.LOAD_TRUNCATED_IMAGES):
            return f"{file} can be decoded now"
    return None


class _Work:
    """Computes rows of a job until there are none to claim."""

    def __init__(
        self,
        job: ExtractJob,
        extractor: Extractor,
        plan: ExtractionPlan,
        work: shards.Shards,
        *,
        label: str,
    ) -> None:
        self.job = job
        self.shards = work
        self.rank = plan.rank
        self.label = label
        self.device = _device_name(extractor.device)
        self._extractor = extractor
        self._plan = plan
        work.scan()
        self._done_before = {shard.name for shard in work.used()}
        self._others = 0  # rows of other processes that the progress knows of

    def n_done(self) -> int:
        """Return the number of finished rows, of all processes."""
        self.shards.scan()
        return self.shards.n_done()

    @contextlib.contextmanager
    def session(self) -> Iterator[_Session]:
        """Open what is needed to compute; on an error, what is computed is saved as far as possible."""
        total = self.shards.manifest.n_rows - self.n_done() if self.rank.leads else None
        recorder = shards.Recorder(
            self.shards,
            device=self.device,
            max_rows=self._plan.cfg.FT_EXTRACT.SHARD_ROWS,
            max_seconds=self._plan.cfg.FT_EXTRACT.SHARD_SECONDS,
        )
        with Progress(total, self.label, bar=self.rank.leads) as progress, contextlib.closing(recorder):
            with _threads(self.shards.manifest.n_threads):
                yield _Session(self, self._extractor, recorder, progress)

    def note_others(self, recorder: shards.Recorder, progress: Progress) -> None:
        """Count what other processes have finished."""
        if not self.rank.leads or self.rank.size == 1:
            return
        own = self._done_before | recorder.names
        others = sum(shard.stop - shard.first for shard in self.shards.used() if shard.name not in own)
        if others > self._others:
            progress.update(others - self._others)
            self._others = others


class _Session:
    """One or several passes over what is to be done."""

    def __init__(
        self, work: _Work, extractor: Extractor, recorder: shards.Recorder, progress: Progress
    ) -> None:
        self._work = work
        self._extractor = extractor
        self._recorder = recorder
        self._progress = progress

    def compute(self, *, may_go_on: Callable[[], bool] = lambda: True) -> None:
        """Compute what can be claimed, and save it.

        Args:
            may_go_on: asked before each claim.

        Raises:
            Interrupted: when a signal asked to end; what was computed is saved.
            CogError: when the network or the storage fails.
        """
        work, recorder = self._work, self._recorder
        recorder.begin()
        claims = _Claims(work, recorder, self._progress, may_go_on=may_go_on)
        stream = self._extractor.stream(work.job.images, claims.ranges(), stop=signals.requested)
        with contextlib.closing(claims), contextlib.closing(stream):
            try:
                for batch in stream:
                    recorder.add(batch)
                    self._progress.update(batch.n)
                    claims.advance(batch.first + batch.n)
            except CogError:
                if not signals.requested():  # the signal has ended the decoding processes, too
                    with contextlib.suppress(CogError):
                        recorder.flush()
                        recorder.wait()
                    raise
            recorder.flush()
            recorder.wait()
        self.check()

    def check(self) -> None:
        """End here if a signal asked for it.

        Raises:
            Interrupted: saying how much is saved.
        """
        if signals.requested():
            work = self._work
            signals.check(
                f"{work.n_done()} of {work.shards.manifest.n_rows} images of {work.job.label} are saved"
            )

    def wait(self) -> None:
        """Let a moment pass."""
        self.check()
        time.sleep(POLL_SECONDS)
        self._work.shards.scan()
        self._work.note_others(self._recorder, self._progress)


class _Claims:
    """Ranges of rows for this process to compute: all, or with several processes unit by unit."""

    def __init__(
        self,
        work: _Work,
        recorder: shards.Recorder,
        progress: Progress,
        *,
        may_go_on: Callable[[], bool],
    ) -> None:
        self._work = work
        self._recorder = recorder
        self._progress = progress
        self._may_go_on = may_go_on
        self._held: deque[tuple[int, contextlib.ExitStack]] = deque()  # last row of a unit, its lock

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield ``(first, stop)``; a unit stays claimed until :meth:`advance` has reached its end."""
        rank, work = self._work.rank, self._work.shards
        work.scan()
        if rank.size == 1:
            yield from work.gaps()
            return
        unit_rows, n_rows = work.manifest.unit_rows, work.manifest.n_rows
        n_units = -(-n_rows // unit_rows)
        for turn in range(n_units):
            unit = (turn + rank.number * n_units // rank.size) % n_units  # apart from each other
            first, stop = unit * unit_rows, min((unit + 1) * unit_rows, n_rows)
            if signals.requested() or not self._may_go_on():
                return
            work.scan()
            self._work.note_others(self._recorder, self._progress)
            name = f"unit-{unit:05d}.lock"
            if not work.gaps(first, stop) or locks.live_holder(work.path, name=name):
                continue
            lock = contextlib.ExitStack()
            try:
                lock.enter_context(locks.locked(work.path, flag=_FLAG, name=name, create=False))
            except locks.LockedError:
                continue
            except CogError:
                if not self._may_go_on():  # everything is done, and the folder removed
                    return
                raise
            work.scan()  # it may have been finished just before
            gaps = work.gaps(first, stop)
            if not gaps:
                lock.close()
                continue
            self._held.append((gaps[-1][1], lock))
            yield from gaps

    def advance(self, row: int) -> None:
        """Save and give back a unit, when its last row is computed."""
        if self._held and self._held[0][0] == row:
            _, lock = self._held.popleft()
            self._recorder.flush(then=lock.close)

    def close(self) -> None:
        """Give back the units that are not finished."""
        while self._held:
            self._held.popleft()[1].close()


def _complete(work: _Work) -> shards.MergedShards:
    """Compute all rows, or see to it that they are computed, and return them."""
    before, n_rows = work.n_done(), work.shards.manifest.n_rows
    if before:
        logger.info("%s: continues, %d of %d images are done", work.label, before, n_rows)
    others = {shard.device for shard in work.shards.used()} - {work.device}
    if others:
        logger.warning(
            "%s: the images that are done were computed on %s, the others are on %s: features may differ in their last "
            "bits", work.label, ", ".join(sorted(others)), work.device,
        )  # fmt: skip
    repairs = 0
    with work.session() as session:
        while True:
            session.compute()
            work.shards.scan()
            if work.shards.gaps():
                session.wait()  # for units that others have claimed
                continue
            merged = work.shards.merge()
            if merged is not None:
                return merged
            repairs += 1
            if repairs > _MOST_REPAIRS:
                raise CogError(
                    f"what is written into {work.shards.path} is damaged again and again; is the storage sound?"
                )


def _publish(job: ExtractJob, merged: shards.MergedShards, plan: ExtractionPlan, claim: FolderClaim) -> None:
    images = job.images
    decoded = np.ones(len(images), dtype=bool)
    decoded[[row for row, _ in merged.failures]] = False
    rows = np.flatnonzero(decoded).tolist()
    rate = len(images) / max(merged.seconds, 1e-9)
    with claim.publish() as stage:
        job.folder.write(
            stage,
            feature_files.FeatureSet(
                torch.from_numpy(merged.x),
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
    manifest = leader.wait(
        work_identity(job, plan, device=extractor.device, rows_per_pass=extractor.rows_per_pass)
    )
    if manifest is None:
        return
    work = _Work(job, extractor, plan, shards.Shards(job.folder.path / shards.FOLDER, manifest), label=label)
    try:
        with work.session() as session:
            while True:
                session.compute(may_go_on=leader.is_there)
                if not leader.is_there():
                    break
                session.wait()
    except signals.Interrupted:
        raise
    except CogError:  # it may be that the leader has ended and cleaned up
        signals.check(f"{job.label} is not complete")
        if leader.is_there():
            raise
    leader.require_published()


class _Leader:
    """What a helper sees of the process that leads."""

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
            manifest, holder = (
                shards.read_manifest(self._folder),
                read_state(self._folder, complete=False).holder,
            )
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
        assert self._manifest is not None
        manifest = shards.read_manifest(self._folder)
        if manifest is None or (manifest.work, manifest.leader) != (
            self._manifest.work,
            self._manifest.leader,
        ):
            return False
        holder = read_state(self._folder, complete=False).holder
        return holder is not None and holder.token == manifest.leader

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


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


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
