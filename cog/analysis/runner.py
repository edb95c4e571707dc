"""Execution of planned analyses: one data set after the other, its features read once."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cog.analysis.task import AnalysisContext, AnalysisOutcome, AnalysisRequest, AnalysisTask
from cog.results import analysis_records
from cog.results.analysis_records import AnalysisRecord
from cog.runtime import provenance, signals
from cog.runtime.fingerprint import plain
from cog.runtime.memory import exhaustion_explained

if TYPE_CHECKING:
    import torch

    from cog.features.feature_files import FeatureSet

logger = logging.getLogger(__name__)


class SharedFeatures:
    """The features of one data set, read when they are first used."""

    def __init__(self, request: AnalysisRequest) -> None:
        self._request = request
        self._loaded: dict[tuple[str, bool], FeatureSet] = {}

    def load(self, split: str, normalize: bool = True) -> FeatureSet:
        """Return the features of a split: l2-normalized, or as in the file.

        Raises:
            CogError: see :func:`cog.features.feature_files.load`.
        """
        from cog.features import feature_files
        from cog.features.folder import with_class_list

        key = (split, normalize)
        if key not in self._loaded:
            file = self._request.features_file(split)
            features = feature_files.load(file, normalize=normalize)
            self._loaded[key] = with_class_list(features, file)
        return self._loaded[key]


def execute(todo: Sequence[AnalysisTask], *, device: torch.device) -> None:
    """Compute all results, and publish and print each result as soon as it is finished.

    SIGTERM and SIGUSR1 end the work at a point where it can be continued.

    Raises:
        CogError: an analysis fails (earlier results stay).
        LockedError: another process has locked a folder.
        Interrupted: see :mod:`cog.runtime.signals`.
    """
    from cog.runtime.device import exact_float32

    with signals.deferred(), exact_float32():
        shared: SharedFeatures | None = None
        for position, task in enumerate(todo):
            signals.check(f"{position} of {len(todo)} analyses are done")
            if shared is None or task.request is not todo[position - 1].request:
                shared = None  # the features of one data set are freed before the next are read
                shared = SharedFeatures(task.request)
            _do(task, shared, device)


def _do(task: AnalysisTask, shared: SharedFeatures, device: torch.device) -> None:
    with task.folder.claim() as claim:
        if claim.is_done():  # another process has computed this result in the meantime
            return
        claim.begin()
        with claim.failures_noted(), claim.publish() as stage:
            with provenance.log_file(stage / "program.log"):
                start = time.monotonic()
                with exhaustion_explained(f"computing {task.name}", ""):
                    outcome = task.compute(
                        AnalysisContext(task.request, device, shared.load, claim.resume, stage, task.label)
                    )
                seconds = time.monotonic() - start
                record = _as_record(task, outcome, device=device, seconds=seconds)
            analysis_records.write(stage, record)
    summary = outcome.summary or _summary(record)
    print(f"{task.label}{task.name}: {summary}  ({task.folder.path})", flush=True)


def _as_record(
    task: AnalysisTask, outcome: AnalysisOutcome, *, device: torch.device, seconds: float
) -> AnalysisRecord:
    return AnalysisRecord(
        analysis=task.name,
        model=task.request.model,
        dataset=task.request.dataset,
        identity=task.folder.identity,
        values=plain(outcome.values),
        seeds=list(outcome.per_seed),
        per_seed=plain(outcome.per_seed),
        details=plain(outcome.details),
        versions=provenance.versions(task.packages),
        device=str(device),
        seconds=round(seconds, 3),
        finished=provenance.now(),
        folder=task.folder.path,
    )


def _summary(record: AnalysisRecord) -> str:
    return "  ".join(
        f"{name} {'undefined' if value is None else f'{value:.4g}'}" for name, value in record.values.items()
    )
