"""Execution of planned analyses: one data set after the other, its features read once."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cog.analysis.plan import OUTPUT_FLAG, PlannedWork, is_done
from cog.analysis.task import AnalysisContext, AnalysisOutcome, AnalysisRequest
from cog.errors import CogError
from cog.results import analysis_records
from cog.results.analysis_records import AnalysisRecord
from cog.runtime import atomic_dir, provenance, signals
from cog.runtime.atomic_dir import staged
from cog.runtime.failure_note import failures_noted
from cog.runtime.fingerprint import plain
from cog.runtime.locks import locked
from cog.runtime.memory import exhaustion_explained
from cog.runtime.resume_dir import SavedStates

if TYPE_CHECKING:
    import torch

    from cog.features.feature_files import FeatureSet

logger = logging.getLogger(__name__)


class SharedFeatures:
    """The features of one data set, read when they are first asked for."""

    def __init__(self, request: AnalysisRequest) -> None:
        self._request = request
        self._loaded: dict[tuple[str, bool], FeatureSet] = {}

    def load(self, split: str, normalize: bool = True) -> FeatureSet:
        """Return the features of a split: l2-normalized, or as they are in the file.

        Training features that do not fit into memory together with the test features stay in their file (``norms``
        then holds the divisors of the rows).

        Raises:
            CogError: see :func:`cog.features.feature_files.load`.
        """
        from cog.features import feature_files
        from cog.logreg.estimate import stays_in_file

        key = (split, normalize)
        if key not in self._loaded:
            file = self._request.features_file(split)
            mapped = False
            if split == "train" and not self._loaded:
                with_test = "test" in self._request.features and self._request.features["test"].exists()
                mapped = stays_in_file(file, self._request.features_file("test") if with_test else file)
            self._loaded[key] = feature_files.load(file, normalize=normalize, mapped=mapped)
        return self._loaded[key]


def execute(todo: Sequence[PlannedWork], *, device: torch.device, overwrite: bool) -> list[AnalysisRecord]:
    """Compute all results; each is published and printed as soon as it is finished.

    SIGTERM and SIGUSR1 end the work where it can be continued.

    Returns:
        The records, in the order of ``todo``.

    Raises:
        CogError: an error of an analysis (the results before it stay); LockedError when another process has the folder.
        Interrupted: see :mod:`cog.runtime.signals`.
    """
    from cog.runtime.device import exact_float32

    done: list[AnalysisRecord] = []
    with signals.deferred(), exact_float32():
        shared: SharedFeatures | None = None
        for position, work in enumerate(todo):
            signals.check(f"{position} of {len(todo)} analyses are done")
            if shared is None or work.request is not todo[position - 1].request:
                shared = None  # the features of the last data set go before the next ones come
                shared = SharedFeatures(work.request)
            done.append(_do(work, shared, device, overwrite=overwrite))
    return done


def _do(
    work: PlannedWork, shared: SharedFeatures, device: torch.device, *, overwrite: bool
) -> AnalysisRecord:
    with locked(work.output, flag=OUTPUT_FLAG) as lock, failures_noted(lock):
        atomic_dir.recover(work.output)
        if not overwrite and is_done(work):  # by another process, while this one was busy with others
            record = analysis_records.read(work.output)
            assert isinstance(record, AnalysisRecord)
            logger.info("%s is complete, skipped", work.output)
            SavedStates(work.output, work.identity).remove()
            return record
        resume = SavedStates(work.output, work.identity, lock)
        if overwrite:
            _discard_other_work(resume)
        else:
            resume.check()
        with contextlib.ExitStack() as stack:
            stage = stack.enter_context(
                staged(work.output, marker=analysis_records.RESULTS_FILE, flag=OUTPUT_FLAG)
            )
            stage.replaces = _files_of(work.output)
            with provenance.log_file(stage.path / "program.log"):
                start = time.monotonic()
                with exhaustion_explained(f"computing {work.task.name}", "end other programs that use it"):
                    outcome = work.task.compute(
                        AnalysisContext(work.request, device, shared.load, resume, stage.path, work.label)
                    )
                seconds = time.monotonic() - start
                record = _as_record(work, outcome, device=device, seconds=seconds)
            analysis_records.write(stage.path, record)
            lock.require_held()
        resume.remove()
    print(f"{work.label}{work.task.name}: {outcome.summary or _summary(record)}  ({work.output})", flush=True)
    return record


def _as_record(
    work: PlannedWork, outcome: AnalysisOutcome, *, device: torch.device, seconds: float
) -> AnalysisRecord:
    return AnalysisRecord(
        analysis=work.task.name,
        model=work.request.model,
        dataset=work.request.dataset,
        identity=work.identity,
        values=plain(outcome.values),
        seeds=list(outcome.seeds),
        per_seed=plain(outcome.per_seed),
        details=plain(outcome.details),
        versions=provenance.versions(work.task.packages),
        device=str(device),
        seconds=round(seconds, 3),
        finished=provenance.now(),
        folder=work.output,
    )


def _summary(record: AnalysisRecord) -> str:
    return "  ".join(
        f"{name} {'undefined' if value is None else f'{value:.4g}'}" for name, value in record.values.items()
    )


def _discard_other_work(resume: SavedStates) -> None:
    try:
        resume.check()
    except CogError:
        logger.info("discarded the beginning of different work in %s", resume.path)
        resume.remove()


def _files_of(folder: Path) -> list[str]:
    """Return the files that the result in ``folder`` consists of: they are replaced together."""
    record = analysis_records.read(folder)
    named = record.details.get("files", []) if isinstance(record, AnalysisRecord) else []
    named = named if isinstance(named, list) else []
    return [
        name
        for name in named
        if isinstance(name, str) and Path(name).name == name and not name.startswith(".")
    ]
