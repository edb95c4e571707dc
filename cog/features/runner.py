"""Extract what a plan has left to do: the network is loaded once, data sets and splits follow one after the other."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cog.data.loader import usable_workers
from cog.errors import CogError, FailedImagesError
from cog.features import extract_job, shards
from cog.features.extract import Extractor, pass_sizes
from cog.features.plan import ExtractionPlan, ExtractJob
from cog.runtime import locks, signals
from cog.runtime.device import require_precision, resolve_device
from cog.runtime.failure_note import failures_noted

logger = logging.getLogger(__name__)


def run(plan: ExtractionPlan, jobs: Sequence[ExtractJob]) -> None:
    """Extract the jobs that are not complete.

    Args:
        plan: says how.
        jobs: those of the plan.

    Raises:
        Interrupted: when a signal asked to end.
        CogError: at the first fault of a single job; of several, after all have been tried: a
            :class:`FailedImagesError` when only images failed.
    """
    several = len(jobs) > 1
    todo = [
        (f"[{number}/{len(jobs)}] " if several else "", job)
        for number, job in enumerate(jobs, 1)
        if not _is_done(plan, job)
    ]
    if not todo:
        return
    workers = usable_workers(plan.cfg.FT_EXTRACT.N_WORKERS)
    extractor = _load_extractor(plan, [job for _, job in todo], n_workers=workers)
    failed: list[tuple[ExtractJob, CogError]] = []
    for number, job in todo:
        signals.check(f"{job.label} is not begun")
        if several and plan.rank.leads:
            print(f"{number}features of {plan.model.model}: {job.label}", flush=True)
        logger.info(
            "%s on %s: %d images of %d classes, %s, %s, %d workers",
            plan.model.model, job.label, len(job.images), len(job.images.classes), extractor.device,
            plan.cfg.FT_EXTRACT.PRECISION, workers,
        )  # fmt: skip
        try:
            extract_job.run(job, extractor, plan, label=f"{number}{job.label}")
        except signals.Interrupted:
            raise
        except CogError as error:
            if not several:
                raise
            logger.error("%s: %s", job.label, error)
            failed.append((job, error))
    if failed:
        only_images = all(isinstance(error, FailedImagesError) for _, error in failed)
        raise (FailedImagesError if only_images else CogError)(
            f"{len(failed)} of {len(todo)} extractions failed ({', '.join(job.label for job, _ in failed)}), for the "
            "reasons above; the others are complete, and the same command goes on from here"
        )


def _is_done(plan: ExtractionPlan, job: ExtractJob) -> bool:
    """Whether the features of a job are complete, or become so without the network.

    Raises:
        LockedError: when another start is at work there.
        CogError: when there are features that were made differently.
    """
    path = job.folder.path
    if plan.rank.leads and extract_job.needs_finalizing(job):
        with locks.locked(path, flag="--output_dir") as lock, failures_noted(lock):
            return extract_job.finalize_existing(job, plan)
    if plan.is_complete(job):
        logger.info("%s is complete, skipped", job.folder.features_file)
        return True
    if plan.rank.leads and (holder := locks.live_holder(path)):
        raise locks.LockedError(f"{path} is being written by {holder}; wait for it to end")
    return False


def _load_extractor(plan: ExtractionPlan, jobs: list[ExtractJob], *, n_workers: int) -> Extractor:
    """Load the network, after checking that unfinished work of the jobs can be continued.

    Raises:
        CogError: no such device, unfinished work that was made differently, an unusable checkpoint.
    """
    fx = plan.cfg.FT_EXTRACT
    device = resolve_device(plan.device, plan.rank)
    require_precision(device, "FT_EXTRACT.PRECISION", fx.PRECISION)
    _, rows_per_pass = pass_sizes(device, crop=fx.IMAGE_CROP_SIZE, batch_size=fx.BATCH_SIZE)
    for job in jobs if plan.rank.leads else ():
        identity = extract_job.work_identity(job, plan, device=device, rows_per_pass=rows_per_pass)
        shards.check(job.folder.path, identity, overwrite=plan.overwrite)
    return Extractor(
        plan.model.load(device, plan.cfg),
        resize=fx.IMAGE_RESIZE_SIZE,
        crop=fx.IMAGE_CROP_SIZE,
        mean=fx.IMAGE_NORM.MEAN,
        std=fx.IMAGE_NORM.STD,
        device=device,
        batch_size=fx.BATCH_SIZE,
        n_workers=n_workers,
        precision=fx.PRECISION,
        compiled=fx.COMPILE,
        load_truncated=fx.LOAD_TRUNCATED_IMAGES,
        start_method=fx.WORKER_START_METHOD or None,
    )
