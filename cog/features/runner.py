"""Execution of the pending jobs of a plan: the network is loaded once, the jobs are done one after the other.

Of several processes started together, rank 0 claims the output folder, and publishes the rows that all processes have
saved; see :mod:`cog.features.sharing` for the others.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cog.data.loader import usable_workers
from cog.data.pixels import can_decode
from cog.errors import CogError, FailedImagesError
from cog.features import sharing
from cog.features.extract import Extractor, pass_sizes
from cog.features.feature_files import FeatureSet
from cog.features.folder import IDENTITY
from cog.features.plan import ExtractionPlan, ExtractJob
from cog.features.shards import Manifest, Shard, ShardWriter
from cog.runtime import provenance, signals
from cog.runtime.device import device_name, require_precision, resolve_device
from cog.runtime.output_folder import FolderClaim
from cog.runtime.progress import Progress

if TYPE_CHECKING:
    from cog.data.image_lists import ImageList

logger = logging.getLogger(__name__)

#: Largest difference of an image's features in two passes of a sound network, in terms of their root mean square.
_ROUNDING = 1e-4


def run(plan: ExtractionPlan, jobs: Sequence[ExtractJob]) -> None:
    """Extract the features of jobs.

    Args:
        plan: plan of the extraction.
        jobs: jobs of the plan that are not complete.
    """
    several = len(plan.jobs) > 1
    workers = usable_workers(plan.cfg.FT_EXTRACT.N_WORKERS)
    extractor = _load_extractor(plan, jobs, n_workers=workers)
    failed: list[tuple[ExtractJob, CogError]] = []
    for job in jobs:
        number = f"[{plan.jobs.index(job) + 1}/{len(plan.jobs)}] " if several else ""
        signals.check(f"{job.label} is not begun")
        if several and plan.rank.leads:
            print(f"{number}features of {plan.model.model}: {job.label}", flush=True)
        logger.info(
            "%s on %s: %d images of %d classes, %s, %s, %d workers",
            plan.model.model, job.label, len(job.images), len(job.images.classes), extractor.device,
            plan.cfg.FT_EXTRACT.PRECISION, workers,
        )  # fmt: skip
        try:
            extract(job, extractor, label=f"{number}{job.label}")
        except signals.Interrupted:
            raise
        except CogError as error:
            if not several:
                raise
            logger.error("%s: %s", job.label, error)
            failed.append((job, error))
    if failed:
        kind, todo = CogError, ""
        if all(isinstance(error, FailedImagesError) for _, error in failed):
            kind = FailedImagesError
            todo = " once these images are fixed or their loss is accepted (--allow_failures N)"
        raise kind(
            f"{len(failed)} of {len(jobs)} extractions failed ({', '.join(job.label for job, _ in failed)}), for the "
            f"reasons above; the others are complete, and the same command goes on from here{todo}"
        )


def _load_extractor(plan: ExtractionPlan, jobs: Sequence[ExtractJob], *, n_workers: int) -> Extractor:
    """Load the network, after checking that unfinished work of the jobs can be continued."""
    fx = plan.cfg.FT_EXTRACT
    device = resolve_device(plan.device, plan.rank)
    require_precision(device, "FT_EXTRACT.PRECISION", fx.PRECISION)
    _, rows_per_pass = pass_sizes(device, crop=fx.IMAGE_CROP_SIZE, batch_size=fx.BATCH_SIZE)
    for job in jobs if plan.rank.leads else ():
        job.folder.check_unfinished(job.folder.identity, _work_versions(device, rows_per_pass))
    extractor, summary = _extractor(plan, device, n_workers=n_workers)
    logger.info("%s", summary)
    return extractor


def _extractor(plan: ExtractionPlan, device: torch.device, *, n_workers: int) -> tuple[Extractor, str]:
    """Return the extractor, and a line about the input and output of the network."""
    backbone = plan.model.load(device, plan.cfg)
    if backbone.feature_dim is None:
        backbone.probe(plan.cfg.FT_EXTRACT.IMAGE_CROP_SIZE)
    extractor = Extractor.from_config(backbone, plan.cfg, device, n_workers=n_workers)
    return extractor, plan.model.summary(backbone, plan.cfg)


def try_network(plan: ExtractionPlan, images: ImageList) -> str:
    """Compute the features of the first image on the CPU, and return a line about them.

    The features are computed three times: twice beside black images, and once beside the next images.
    """
    extractor, summary = _extractor(plan, torch.device("cpu"), n_workers=0)
    features = extractor.extract(images, [(0, 1)])
    if features.failures:
        raise CogError(f"{images.file(0)} could not be decoded ({features.failures[0][1]})")
    x = features.x[0].float()
    rms = float(x.square().mean().sqrt())
    tried = f"{summary}; tried on {images.file(0)}:"
    if rms == 0:
        raise CogError(f"{tried} all features are 0; check the checkpoint and the loader")
    for n in (1, min(len(images), extractor.rows_per_pass)):
        other = extractor.extract(images, [(0, n)]).x[0].float()
        if float((other - x).abs().max()) > _ROUNDING * rms:
            raise CogError(
                f"{tried} features of the same image differ between two passes: the network is random or depends on "
                "the other images of a pass; is something in training mode?"
            )
    return f"{tried} features with a root mean square of {rms:.3g}"


# --- one data set and split


def extract(job: ExtractJob, extractor: Extractor, *, label: str) -> None:
    """Extract a data set and split, in one session or in several; rank 0 publishes the features."""
    if job.plan.rank.leads:
        _lead(job, extractor, label)
    else:
        _help(job, extractor, label)


def _lead(job: ExtractJob, extractor: Extractor, label: str) -> None:
    with job.folder.claim() as claim, claim.failures_noted():
        if claim.is_done():
            return
        claim.begin(versions=_work_versions(extractor.device, extractor.rows_per_pass))
        work = job.folder.resume
        manifest = _manifest(job, extractor, leader=claim.lock.holder.token)
        work.begin(manifest)
        for shard in work.used():
            if (file := _readable_by_now(shard, job)) is not None:
                work.drop(shard, f"{file} can be decoded now")
        try:
            x = _compute_all(job, extractor, label)
        except BaseException as error:
            work.scan()
            # Of several processes the others may be about to save their first rows.
            if not work.n_done() and (job.plan.rank.size == 1 or not isinstance(error, signals.Interrupted)):
                work.remove()
            raise
        _publish(x, job, extractor, claim)


def _help(job: ExtractJob, extractor: Extractor, label: str) -> None:
    manifest = sharing.wait_for_manifest(job, _manifest(job, extractor, leader="").identity)
    if manifest is None:
        return
    job.folder.resume.manifest = manifest

    def is_led() -> bool:
        return sharing.is_led(job.folder.path, manifest)

    try:
        with Progress(None, label, bar=False) as progress:
            while is_led():
                _compute(job, extractor, progress, may_go_on=is_led)
    except signals.Interrupted:
        raise
    except CogError:  # rank 0 may have ended and removed the shards
        signals.check(f"{job.label} is not complete")
        if is_led():
            raise
    sharing.require_published(job)


def _work_versions(device: torch.device, rows_per_pass: int) -> dict[str, Any]:
    """Return the entries, beside the identity of the features, that must agree for rows of several sessions.

    They cover what changes the last bits of features, except for the model of the GPU and the threads of a CPU.
    """
    packages = ("torch", "torchvision", "pillow")
    versions = provenance.versions(packages)
    return {"device": device.type, "images per forward pass": rows_per_pass} | {
        package: versions[package] for package in packages
    }


def _manifest(job: ExtractJob, extractor: Extractor, *, leader: str) -> Manifest:
    plan, per_pass = job.plan, extractor.rows_per_pass
    shard_rows = plan.cfg.FT_EXTRACT.SHARD_ROWS
    return Manifest(
        work=secrets.token_hex(8),
        identity={key: value for key, value in job.folder.identity.items() if key in IDENTITY}
        | _work_versions(extractor.device, per_pass),
        n_rows=len(job.images),
        unit_rows=sharing.rows_per_unit(len(job.images), shard_rows=shard_rows, rows_per_pass=per_pass),
        overwrites=plan.overwrite,
        group=plan.rank.group,
        leader=leader,
    )


def _readable_by_now(shard: Shard, job: ExtractJob) -> str | None:
    """Return a failed image of a shard that can be decoded by now; None without such an image."""
    load_truncated = job.plan.cfg.FT_EXTRACT.LOAD_TRUNCATED_IMAGES
    files = (job.images.file(int(row)) for row, _ in shard.failures)
    return next((f for f in files if can_decode(job.images.store, f, load_truncated=load_truncated)), None)


def _compute_all(job: ExtractJob, extractor: Extractor, label: str) -> np.ndarray:
    """Compute the rows, wait for the rows of other processes, and return all features, see :meth:`Shards.merge`."""
    work = job.folder.resume
    n_before, n_rows = work.n_done(), work.manifest.n_rows
    if n_before:
        logger.info("%s: continues, %d of %d images are done", job.label, n_before, n_rows)
    with Progress(n_rows - n_before, label) as progress:
        while work.gaps():
            _compute(job, extractor, progress)
    return work.merge()


def _compute(
    job: ExtractJob, extractor: Extractor, progress: Progress, *, may_go_on: Callable[[], bool] = lambda: True
) -> None:
    """Compute the rows that no other process has claimed, save them, and wait a moment for rows of other processes.

    ``may_go_on`` is called before each claim; when it returns False, the claims end.
    """
    work, rank = job.folder.resume, job.plan.rank
    with (
        sharing.Units(work, rank) as units,
        ShardWriter(work, max_rows=job.plan.cfg.FT_EXTRACT.SHARD_ROWS) as writer,
    ):
        work.scan()
        ranges = work.gaps() if rank.size == 1 else units.claim(may_go_on)
        with contextlib.closing(extractor.stream(job.images, ranges, stop=signals.requested)) as stream:
            for batch in stream:
                writer.add(batch)
                progress.update(batch.n)
                if rank.size > 1:
                    _count_others(job, progress)
    work.scan()
    _count_others(job, progress)
    signals.check(f"{work.n_done()} of {len(job.images)} images of {job.label} are saved")
    if work.gaps() or not rank.leads:
        time.sleep(sharing.POLL_SECONDS)
        work.scan()


def _count_others(job: ExtractJob, progress: Progress) -> None:
    """Add the saved rows of other processes to the progress of rank 0."""
    if progress.total is not None:
        n_left = len(job.images) - job.folder.resume.n_done()
        progress.update(max(0, progress.total - n_left - progress.done))


def _publish(merged: np.ndarray, job: ExtractJob, extractor: Extractor, claim: FolderClaim) -> None:
    """Publish the features of all shards and their description."""
    plan, images, shards = job.plan, job.images, job.folder.resume.used()
    x = torch.from_numpy(merged)
    if x.dtype is torch.int16:
        x = x.view(torch.bfloat16)
    failures = {int(row): str(reason) for shard in shards for row, reason in shard.failures}
    rows = [row for row in range(len(images)) if row not in failures]
    seconds = sum(shard.seconds for shard in shards)
    rate = len(images) / max(seconds, 1e-9)
    name = f"{plan.model.model}_{images.dataset}_{images.split}"
    logger.info(
        "%s: %d x %d features, %d failed images, %.1f images/s",
        job.folder.path,
        *x.shape,
        len(failures),
        rate,
    )
    job.folder.publish(
        claim,
        FeatureSet(x, torch.from_numpy(images.labels[rows]), name),
        metadata={
            "n_rows": len(rows),
            "feature_dim": x.shape[1],
            "device": device_name(extractor.device),
            "versions": provenance.versions(("torch", "torchvision", "pillow", "numpy")),
            "seconds": round(seconds, 3),
            "images_per_second": round(rate, 1),
            "finished": provenance.now(),
        },
        image_paths=[images.file(row) for row in rows],
        failures=[(images.file(row), reason) for row, reason in failures.items()],
    )
