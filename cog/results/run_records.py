"""Runs of classifiers, read from their seed folders, and averages of their scores over seeds.

``results.json`` is the record of a run: accuracies, settings, and the proof that the run is complete and belongs to its
folder. Runs of the original toolkit have none; their accuracies are those of ``logs.pkl``, which both toolkits write.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cog import paths
from cog.errors import CogError
from cog.results import concept_counts
from cog.results.concept_counts import ConceptCounts
from cog.results.run_details import Details, image_list_of_test, read_details
from cog.results.scores import (
    LOGREG,
    Counts,
    Score,
    SeedAverage,
    average,
    dataset_key,
    grouped,
    natural_key,
)
from cog.runtime import files, safe_load
from cog.runtime.atomic_dir import STAGE_PREFIX
from cog.runtime.json_fields import number, whole
from cog.runtime.output_folder import FAILED, INTERRUPTED, RUNNING, read_state

LOGS_FILE = "logs.pkl"
RESULTS_FILE = "results.json"

#: Keys of the logged accuracies (percent, one value per epoch) by the name of the metric in tables.
METRICS = {"top1": "test/top1", "top5": "test/top5"}

#: Reason for not counting a hidden folder.
LEFTOVER = "a hidden folder, probably of a run that is unfinished or was interrupted"

_OTHER_FEATURES = "trained on other features than {} beside it; train all on the same (logreg.py --overwrite)"

#: Entry of recorded features that differs for other features.
_SAMPLE = "sample_sha256"

_FINAL_FOLDER = re.compile(r"final-lr-(?P<lr>.+)_wd-(?P<wd>.+)")

# Accuracies computed in float32 may exceed 100 by rounding.
_TOLERANCE_PERCENT = 1e-3

# In bytes; a record of 30 trials takes 8 kB.
_LARGEST_RECORD = 1 << 24


class RunPlace(NamedTuple):
    """The facts that the path of a seed folder, or of the folder of an analysis, implies about the result in it."""

    model: str  # "" for a folder outside the layout
    dataset: str  # "" for a folder outside the layout
    n_shot: int | None  # None: the recorded number, else that in the name of the evaluation folder
    seed: int | None  # None for an analysis
    evaluation: str = LOGREG  # EVAL.NAME with the suffixes of variants, or the name of an analysis


@dataclass(frozen=True)
class Run:
    """One finished classifier run: one model, data set, number of shots and seed.

    ``details`` are further facts for reports, ``concepts`` the right answers per concept (None for runs of the original
    toolkit); equality ignores both.
    """

    model: str
    dataset: str
    n_shot: int  # training images per class, 0 = all
    seed: int
    top1: float  # percent, last epoch
    top5: float
    n_epochs: int  # planned; in the log for a run that does not record them
    lr: float | None  # of the final training; None if unknown
    wd: float | None
    diverged: bool  # as recorded; False for runs of the original toolkit
    folder: str  # the seed folder
    final_folder: str  # its subfolder with logs.pkl, model and predictions
    details: Details = field(default_factory=Details, compare=False, repr=False)
    evaluation: str = LOGREG  # EVAL.NAME with the suffixes of variants: logreg, mlp, logreg_pca256, ...
    concepts: ConceptCounts | None = field(default=None, compare=False, repr=False)

    @property
    def path(self) -> Path:
        """The seed folder as a path."""
        return Path(self.folder)


@dataclass(frozen=True)
class Problem:
    """A folder that was not counted, with the reason."""

    path: Path
    reason: str  # in one line
    state: str = ""  # RUNNING, INTERRUPTED or FAILED for an unfinished run

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def scores(runs: Iterable[Run]) -> list[Score]:
    """Return both accuracies of every run, in percent."""
    made = []
    for run in runs:
        n_train = run.details.rows.get("final_train") if run.n_shot == 0 else None
        known = (run.details.n_classes, n_train, run.details.rows.get("test"))
        counts = Counts(*(() if n is None else (n,) for n in known))  # type: ignore[arg-type]
        for metric, concepts in (("top1", run.concepts), ("top5", None)):
            place = run.model, run.dataset, run.evaluation, run.n_shot, metric, getattr(run, metric)
            made.append(Score(*place, run.seed, epochs=run.n_epochs, counts=counts, concepts=concepts))
    return made


def sort_key(run: Run) -> tuple[Any, ...]:
    """Return the sort key of a run: model (natural order), data set, number of shots, seed."""
    return natural_key(run.model), dataset_key(run.dataset), run.n_shot, run.seed


def average_runs(runs: Iterable[Run], seeds: Iterable[int] = ()) -> list[SeedAverage]:
    """Return the averages over seeds of the accuracies of each evaluation, model, data set and number of shots.

    Args:
        runs: runs of any evaluations; all runs count, even those with unexpected seeds.
        seeds: seeds that each average should have; empty: see :func:`cog.results.scores.average`.

    Returns:
        Two averages, top-1 and top-5, of each combination that has a run, in the order of :func:`sort_key`.
    """
    return average(scores(sorted(runs, key=sort_key)), seeds=seeds)


def with_same_features(runs: Iterable[Run]) -> tuple[list[Run], list[Problem]]:
    """Leave out runs on other features than most runs of their evaluation, model and data set have.

    Of equally many, those that finished last stay. Runs without a record of their features (of the original toolkit)
    stay, too.

    Returns:
        The runs to count, in their order, and a problem for each of the others.
    """

    def features(run: Run) -> tuple[Any, Any] | None:
        samples = run.details.train_features.get(_SAMPLE), run.details.test_features.get(_SAMPLE)
        return None if None in samples else samples

    counted: list[Run] = []
    problems: list[Problem] = []
    for group in grouped(runs, lambda run: (run.evaluation, run.model, run.dataset)).values():
        alike = grouped((run for run in group if features(run) is not None), features)
        ends = {of: max(run.details.finished or "" for run in same) for of, same in alike.items()}
        usual = max(alike, key=lambda of: (len(alike[of]), ends[of]), default=None)
        for run in group:
            if features(run) in (None, usual):
                counted.append(run)
            else:
                n = len(alike[usual])
                problems.append(Problem(run.path, _OTHER_FEATURES.format(f"{n} run{'s' * (n > 1)}")))
    return counted, problems


class UnfinishedError(CogError):
    """Error for an unfinished run or analysis; ``state`` is ``RUNNING``, ``INTERRUPTED`` or ``FAILED``."""

    def __init__(self, message: str, state: str) -> None:
        super().__init__(message)
        self.state = state


def read_run(path: str | os.PathLike[str], place: RunPlace, problems: list[Problem] | None = None) -> Run:
    """Return the run in a seed folder.

    A run of this toolkit is complete when ``results.json`` has the status ``complete`` (it is written last). A run of
    the original toolkit, without this file, is complete when its only ``final*/logs.pkl`` contains accuracies (any
    ``final*`` is read, since names of older folders lack the hyper-parameters).

    Args:
        path: the seed folder.
        place: facts that the path implies.
        problems: list to which leftovers inside the folder are added that do not make the run unusable.

    Raises:
        UnfinishedError: when the run has not finished.
        CogError: when the run is ambiguous, or its files cannot be read safely.
    """
    path = os.fspath(path)
    entries = _list(path)
    names = [name for name, _ in entries]
    finals = [name for name, is_dir in entries if name.startswith("final") and is_dir]
    stages = [name for name in names if name.startswith(STAGE_PREFIX)]
    record = _read_record(path, place) if RESULTS_FILE in names else None
    if record is None:
        check_finished(path, names, complete=bool(finals))
    elif stages and problems is not None and read_state(path, names, complete=True).holder is None:
        problems += [Problem(Path(path, name), LEFTOVER) for name in stages]
    final = _choose_final(path, finals, record)
    return _run(path, final, record, place)


def _read_last(path: str, final: str) -> tuple[float, float, int]:
    """Return both accuracies (percent) after the last epoch, and the number of epochs."""
    logs = safe_load.load_pickle(os.path.join(path, final, LOGS_FILE))
    name = f"{final}/{LOGS_FILE}"
    if not isinstance(logs, dict):
        raise CogError(f"{name} holds {type(logs).__name__}, expected a dict of lists")
    (top1, n_epochs), (top5, n_epochs_top5) = (_last_accuracy(logs, key, name) for key in METRICS.values())
    if n_epochs != n_epochs_top5:
        raise CogError(f"{name} has {n_epochs} epochs of test/top1 but {n_epochs_top5} of test/top5")
    return top1, top5, n_epochs


def _run(path: str, final: str, record: dict[str, Any] | None, place: RunPlace) -> Run:
    """Return the run with a record (None for the original toolkit), or with the accuracies of its logs."""
    details = Details() if record is None else read_details(record)
    recorded: dict[str, Any] = {} if record is None else record["final"]
    if recorded.keys().isdisjoint(("test_top1", "test_top5")):
        top1, top5, n_epochs = _read_last(path, final)
    else:
        top1, top5 = (
            _accuracy(recorded.get(f"test_{name}"), f"test_{name}", RESULTS_FILE) for name in METRICS
        )
        n_epochs = whole(details.settings.get("n_epochs")) or _read_last(path, final)[2]
    try:
        concepts = concept_counts.read(
            recorded, n_classes=details.n_classes, top1=top1, image_list=image_list_of_test(details)
        )
    except ValueError as error:
        raise CogError(
            f"{RESULTS_FILE} was changed ({error}); run this again with --overwrite, or remove the entry "
            f"{concept_counts.CORRECT}"
        ) from error
    if place.n_shot is None:
        _, named_shots = paths.parse_evaluation_folder(Path(os.path.abspath(path)).parent.name) or ("", 0)
        place = place._replace(n_shot=named_shots if record is None else record.get("n_shot", 0))
    pair = recorded if recorded.keys() >= {"lr", "wd"} else _hyper_parameters(final) | recorded
    return Run(
        **place._asdict(),
        top1=top1,
        top5=top5,
        n_epochs=n_epochs,
        lr=number(pair.get("lr")),
        wd=number(pair.get("wd")),
        diverged=recorded.get("diverged") is True,
        folder=path,
        final_folder=final,
        details=details,
        concepts=concepts,
    )


def check_finished(path: str | Path, entries: Sequence[str], *, complete: bool = False) -> None:
    """Check an output folder without a record for traces of a run that is in progress, failed or was interrupted.

    Args:
        path: output folder.
        entries: names in the folder.
        complete: whether the folder may be a result of the original toolkit, which failed later attempts leave
            unchanged.

    Raises:
        UnfinishedError: when there are such traces.
    """
    folder = read_state(path, entries, complete=complete, marked=False)
    reasons = {
        RUNNING: f"in progress: {folder.holder}",
        FAILED: f"failed: {folder.failure and folder.failure.message}",
        INTERRUPTED: f"{folder.trace} is there but no {RESULTS_FILE}: the run is unfinished or was interrupted",
    }
    if folder.state in reasons:
        raise UnfinishedError(reasons[folder.state], folder.state)


def _list(path: str) -> list[tuple[str, bool]]:
    """Return pairs of the names in a seed folder and whether they are folders, sorted."""
    try:
        with os.scandir(path) as entries:
            return sorted((entry.name, is_folder(entry)) for entry in entries)
    except FileNotFoundError:
        raise CogError("vanished while the results were read") from None
    except OSError as error:
        raise CogError(f"cannot be read: {error.strerror or error}") from error


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry of a folder is a folder; False for a link to a place without permission."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def load_record(folder: Path) -> dict[str, Any] | None:
    """Return the contents of ``results.json`` of a run; None without it, as in runs of the original toolkit."""
    file = folder / RESULTS_FILE
    return files.read_object(file, "record of a run") if file.is_file() else None


def _read_record(path: str, place: RunPlace) -> dict[str, Any]:
    """Return the content of ``results.json`` after checking that it belongs to its folder, which may be a copy."""
    file = os.path.join(path, RESULTS_FILE)
    record = files.read_json(file, "record of a run", largest=_LARGEST_RECORD)
    if not isinstance(record, dict) or not isinstance(record.get("final"), dict):
        raise CogError(f"{RESULTS_FILE} does not describe a run (no entry 'final')")
    if record.get("status") != "complete":
        raise CogError(f"{RESULTS_FILE} says status {record.get('status')!r}, expected 'complete'")
    for key, expected in (("seed", place.seed), ("n_shot", place.n_shot)):
        if expected is not None and record.get(key, expected) != expected:
            raise CogError(f"{RESULTS_FILE} says {key} {record[key]!r}, the folder's name {expected}")
    if whole(record.get("n_shot", 0)) is None:
        raise CogError(f"{RESULTS_FILE} says n_shot {record['n_shot']!r}, expected a whole number")
    return record


def _choose_final(path: str, finals: Sequence[str], record: Mapping[str, Any] | None) -> str:
    if record is not None:
        folder = record["final"].get("folder")
        if folder not in finals:
            raise CogError(f"{RESULTS_FILE} names the final folder {folder!r}, which is not there")
        return folder
    if len(finals) > 1:
        # Only folders with logs are candidates, as in the original toolkit.
        finals = [name for name in finals if Path(path, name, LOGS_FILE).is_file()]
    if not finals:
        raise CogError(f"no final-*/{LOGS_FILE}: the run is unfinished or failed")
    if len(finals) > 1:
        raise CogError(f"{len(finals)} final folders ({', '.join(finals)}); keep the one that counts")
    return finals[0]


def _last_accuracy(logs: Mapping[Any, Any], key: str, logs_name: str) -> tuple[float, int]:
    """Return the last value (percent) of the list ``logs[key]`` and its length."""
    values: Any = logs.get(key)
    if hasattr(values, "tolist"):  # numpy
        values = values.tolist()
    if not isinstance(values, list | tuple) or not values:
        raise CogError(f"{logs_name} has no list {key} with the value of a finished epoch")
    value = values[-1].tolist() if hasattr(values[-1], "tolist") else values[-1]
    return _accuracy(value, key, logs_name), len(values)


def _accuracy(value: Any, key: str, file: str) -> float:
    accuracy = number(value)
    if accuracy is None or not is_percentage(accuracy):
        shown = value if isinstance(value, float) else type(value).__name__
        raise CogError(f"{file}: {key} is {shown}, expected a percentage")
    return accuracy


def _hyper_parameters(final_folder: str) -> dict[str, Any]:
    """Return the learning rate and weight decay in the name of the folder of the final training, if any."""
    match = _FINAL_FOLDER.fullmatch(final_folder)
    pair = {}
    for key, text in match.groupdict().items() if match else ():
        with contextlib.suppress(ValueError):
            pair[key] = float(text)
    return pair


def is_percentage(value: float) -> bool:
    """Return whether ``value`` is in [0, 100], up to rounding; False for NaN."""
    return -_TOLERANCE_PERCENT <= value <= 100 + _TOLERANCE_PERCENT
