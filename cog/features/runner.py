"""Extract what a plan has left to do: the network is loaded once, data sets and splits follow one after the other."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from cog.data.loader import usable_workers
from cog.errors import CogError, FailedImagesError
from cog.features import extract_job
from cog.features.extract import Extractor, pass_sizes
from cog.features.plan import ExtractionPlan, ExtractJob
from cog.models.backbone import Backbone, probe
from cog.runtime import signals
from cog.runtime.device import require_precision, resolve_device

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from cog.data.image_lists import ImageList

logger = logging.getLogger(__name__)


def run(plan: ExtractionPlan, jobs: Sequence[ExtractJob]) -> None:
    """Extract jobs.

    Args:
        plan: says how.
        jobs: those of the plan that are not complete.

    Raises:
        Interrupted: when a signal asked to end.
        CogError: at the first fault of a single job; of several, after all have been tried: a
            :class:`FailedImagesError` when only images failed.
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
            f"{len(failed)} of {len(jobs)} extractions failed ({', '.join(job.label for job, _ in failed)}), for the "
            "reasons above; the others are complete, and the same command goes on from here"
        )


def _load_extractor(plan: ExtractionPlan, jobs: Sequence[ExtractJob], *, n_workers: int) -> Extractor:
    """Load the network, after checking that unfinished work of the jobs can be continued.

    Raises:
        CogError: no such device, unfinished work that was made differently, an unusable checkpoint.
    """
    fx = plan.cfg.FT_EXTRACT
    device = resolve_device(plan.device, plan.rank)
    require_precision(device, "FT_EXTRACT.PRECISION", fx.PRECISION)
    _, rows_per_pass = pass_sizes(device, crop=fx.IMAGE_CROP_SIZE, batch_size=fx.BATCH_SIZE)
    for job in jobs if plan.rank.leads else ():
        versions = extract_job.work_versions(plan, device=device, rows_per_pass=rows_per_pass)
        job.folder.check_unfinished(job.folder.identity, versions)
    extractor, summary = _extractor(plan, device, n_workers=n_workers)
    logger.info("%s", summary)
    return extractor


def try_network(plan: ExtractionPlan, images: ImageList) -> tuple[int, str]:
    """Compute the features of the first image of a list, on the CPU.

    Returns:
        Their number, and a line that describes them.

    Raises:
        CogError: the network cannot be loaded, or fails.
    """
    extractor, summary = _extractor(plan, torch.device("cpu"), n_workers=0, compiled=False)
    with contextlib.closing(extractor.stream(images, [(0, 1)])) as stream:
        features = next(stream)
    dim = features.x.shape[1]
    if features.failures:
        return dim, f"{summary}; {images.file(0)} could not be decoded ({features.failures[0][1]})"
    rms = float(features.x.float().square().mean().sqrt())
    return dim, f"{summary}; those of {images.file(0)} have a root mean square of {rms:.3g}"


def _extractor(
    plan: ExtractionPlan, device: torch.device, *, n_workers: int, compiled: bool | None = None
) -> tuple[Extractor, str]:
    """Return what runs the network, and a line about what the network sees and gives."""
    fx = plan.cfg.FT_EXTRACT
    backbone = plan.model.load(device, plan.cfg)
    if backbone.feature_dim is None:
        probe(backbone, fx.IMAGE_CROP_SIZE)
    extractor = make_extractor(backbone, plan.cfg, device, n_workers=n_workers, compiled=compiled)
    return extractor, plan.model.summary(backbone, plan.cfg)


def make_extractor(
    backbone: Backbone, cfg: CfgNode, device: torch.device, *, n_workers: int, compiled: bool | None = None
) -> Extractor:
    """Return an extractor for a network, as a configuration asks for it.

    Args:
        backbone: network on ``device``.
        cfg: the configuration.
        device: device of the network.
        n_workers: decoding threads (or processes).
        compiled: whether the network runs through ``torch.compile``; None: as configured.
    """
    fx = cfg.FT_EXTRACT
    return Extractor(
        backbone,
        resize=fx.IMAGE_RESIZE_SIZE,
        crop=fx.IMAGE_CROP_SIZE,
        mean=fx.IMAGE_NORM.MEAN,
        std=fx.IMAGE_NORM.STD,
        device=device,
        batch_size=fx.BATCH_SIZE,
        n_workers=n_workers,
        precision=fx.PRECISION,
        save_dtype=getattr(torch, fx.SAVE_DTYPE),
        compiled=fx.COMPILE if compiled is None else compiled,
        load_truncated=fx.LOAD_TRUNCATED_IMAGES,
        start_method=fx.WORKER_START_METHOD or None,
        interpolation=fx.IMAGE_INTERPOLATION,
        squash=fx.IMAGE_SQUASH,
    )
