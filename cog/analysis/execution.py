"""Doing the analyses that a command line asks for: one data set after the other, its features read once."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import interruption, record, staging
from cog.analysis import records
from cog.analysis.job import Job, Outcome, Request, Task
from cog.analysis.records import AnalysisRecord, RecordProblem
from cog.errors import CogError
from cog.feature_folder import FeatureFolder
from cog.identities import differences, plain
from cog.locks import LockedError, locked
from cog.resume_folder import SavedStates, sample_sha256
from cog.staging import require_writable, staged
from cog.unit_status import failures_noted

if TYPE_CHECKING:
    import torch

    from cog.features import FeatureSet

logger = logging.getLogger(__name__)

_OUTPUT_FLAG = "the output folder"


@dataclass(frozen=True)
class Work:
    """A task of a data set that has to be done.

    Attributes:
        request: of the data set.
        task: what to do.
        identity: what makes two results the same.
    """

    request: Request
    task: Task
    identity: dict[str, Any]

    @property
    def output(self) -> Path:
        """The folder of the result."""
        return self.request.output(self.task.name)

    @property
    def label(self) -> str:
        """Model and data set, for log lines."""
        words = [word for word in (self.request.model, self.request.dataset) if word]
        return f"[{' '.join(words)}] " if words else ""


def identify(request: Request, task: Task) -> dict[str, Any]:
    """Return what makes two results the same: the settings, and the features by size, origin and samples."""
    identity = dict(task.settings)
    for split in task.splits:
        identity[f"{split}_features"] = identify_features(request.features_file(split))
    result: dict[str, Any] = plain(identity)
    return result


def identify_features(file: Path) -> dict[str, Any]:
    """Return what tells the features of one file from others, without reading 9 GB."""
    made = FeatureFolder(file.parent).metadata() or {}
    return {
        "bytes": file.stat().st_size,
        "checkpoint_sha256": made.get("checkpoint_sha256"),
        "image_list_sha256": made.get("image_list_sha256"),
        "sample_sha256": sample_sha256(file),
    }


def pending(
    planned: Sequence[tuple[Request, Task]], *, overwrite: bool, skip_complete: bool = False
) -> list[Work]:
    """Return what has to be done; checks all input and output folders before anything is computed.

    Results that are complete and were made the same way are skipped, with or without ``skip_complete``.

    Raises:
        CogError: a folder that holds another result or the beginning of one, unless ``overwrite``; one that cannot be
            written to; features that are missing.
    """
    todo = []
    outputs: dict[Path, str] = {}
    for request, task in planned:
        work = Work(request, task, identify(request, task))
        if work.output in outputs:
            raise CogError(f"{outputs[work.output]} and {task.name} would both be written to {work.output}")
        outputs[work.output] = task.name
        if staging.leftovers(work.output):
            with locked(work.output, flag=_OUTPUT_FLAG):
                staging.tidy(work.output)
        if not overwrite and _is_done(work):
            _remove_resume(work)
            logger.info("%s is complete, skipped", work.output)
            continue
        if not overwrite:
            SavedStates(work.output, work.identity).check()
        todo.append(work)
    for work in todo:
        require_writable(work.output, flag=_OUTPUT_FLAG)
    return todo


def _is_done(work: Work) -> bool:
    """Whether the result is there.

    Raises:
        CogError: when another result is.
    """
    if not (work.output / records.RESULTS_FILE).exists():
        return False
    found = records.read(work.output)
    if isinstance(found, RecordProblem):
        raise CogError(f"{found.message}; add --overwrite to replace it")
    changed = differences(found.identity, work.identity)
    if changed:
        raise CogError(
            f"{work.output} holds a different result ({'; '.join(changed)}); add --overwrite to replace it"
        )
    return True


def _remove_resume(work: Work) -> None:
    """Remove the states of a process that died right after publication, unless someone is at work there."""
    states = SavedStates(work.output, work.identity)
    if states.path.is_dir():
        with contextlib.suppress(LockedError), locked(work.output, flag=_OUTPUT_FLAG):
            states.remove()


class SharedFeatures:
    """The features of one data set, read when they are first asked for."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._loaded: dict[tuple[str, bool], FeatureSet] = {}

    def load(self, split: str, normalize: bool = True) -> FeatureSet:
        """Return the features of a split: l2-normalised, or as they are in the file.

        Training features that do not fit into memory together with the test features stay in their file (``norms``
        then holds what rows have to be divided by).

        Raises:
            CogError: see :func:`cog.features.load`.
        """
        from cog import features
        from cog.logreg.plan import stays_in_file

        key = (split, normalize)
        if key not in self._loaded:
            file = self._request.features_file(split)
            mapped = False
            if split == "train" and not self._loaded:
                with_test = "test" in self._request.features and self._request.features["test"].exists()
                mapped = stays_in_file(file, self._request.features_file("test") if with_test else file)
            self._loaded[key] = features.load(file, normalize=normalize, mapped=mapped)
        return self._loaded[key]


def execute(todo: Sequence[Work], *, device: torch.device, overwrite: bool) -> list[AnalysisRecord]:
    """Do the work; each result is published the moment it is finished, and printed.

    SIGTERM and SIGUSR1 end the work where it can be continued.

    Returns:
        The records, in the order of ``todo``.

    Raises:
        CogError: of an analysis (the results before it stay); LockedError when another process has the folder.
        Interrupted: see :mod:`cog.interruption`.
    """
    from cog.device import exact_float32

    done: list[AnalysisRecord] = []
    with interruption.deferred(), exact_float32():
        shared: SharedFeatures | None = None
        for position, work in enumerate(todo):
            interruption.check(f"{position} of {len(todo)} analyses are done")
            if shared is None or work.request is not todo[position - 1].request:
                shared = None  # the features of the last data set go before the next ones come
                shared = SharedFeatures(work.request)
            done.append(_do(work, shared, device, overwrite=overwrite))
    return done


def _do(work: Work, shared: SharedFeatures, device: torch.device, *, overwrite: bool) -> AnalysisRecord:
    with locked(work.output, flag=_OUTPUT_FLAG) as lock, failures_noted(work.output):
        staging.tidy(work.output)
        if not overwrite and _is_done(work):  # by another process, while this one was busy with others
            found = records.read(work.output)
            assert isinstance(found, AnalysisRecord)
            logger.info("%s is complete, skipped", work.output)
            SavedStates(work.output, work.identity).remove()
            return found
        resume = SavedStates(work.output, work.identity)
        if overwrite:
            _discard_other_work(resume)
        else:
            resume.check()
        with contextlib.ExitStack() as stack:
            stage = stack.enter_context(staged(work.output, marker=records.RESULTS_FILE, flag=_OUTPUT_FLAG))
            stage.replaces = _files_of(work.output)
            with record.log_file(stage.path / "program.log"):
                start = time.monotonic()
                outcome = work.task.compute(
                    Job(work.request, device, shared.load, resume, stage.path, work.label)
                )
                seconds = time.monotonic() - start
                found = _as_record(work, outcome, device=device, seconds=seconds)
            records.write(stage.path, found)
            lock.require_held()
        resume.remove()
    print(f"{work.label}{work.task.name}: {outcome.summary or _summary(found)}  ({work.output})", flush=True)
    return found


def _as_record(work: Work, outcome: Outcome, *, device: torch.device, seconds: float) -> AnalysisRecord:
    return AnalysisRecord(
        analysis=work.task.name,
        model=work.request.model,
        dataset=work.request.dataset,
        identity=work.identity,
        values=plain(outcome.values),
        seeds=list(outcome.seeds),
        per_seed=plain(outcome.per_seed),
        details=plain(outcome.details),
        versions=record.versions(work.task.packages),
        device=str(device),
        seconds=round(seconds, 3),
        finished=record.now(),
        folder=work.output,
    )


def _summary(found: AnalysisRecord) -> str:
    return "  ".join(
        f"{name} {'undefined' if value is None else f'{value:.4g}'}" for name, value in found.values.items()
    )


def _discard_other_work(resume: SavedStates) -> None:
    try:
        resume.check()
    except CogError:
        logger.info("discarded the beginning of different work in %s", resume.path)
        resume.remove()


def _files_of(folder: Path) -> list[str]:
    """Return the files that the result in ``folder`` consists of: they are replaced together."""
    found = records.read(folder)
    named = found.details.get("files", []) if isinstance(found, AnalysisRecord) else []
    named = named if isinstance(named, list) else []
    return [
        name
        for name in named
        if isinstance(name, str) and Path(name).name == name and not name.startswith(".")
    ]
