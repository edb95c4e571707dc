"""What the files beside the scores say: how features were made, which trials a search made, how training went.

Whoever wrote the folders decides what is in them: every entry may be missing, of another type, or hostile.
Nothing here raises for that; what cannot be used is None or empty, and shown as not recorded.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cog import constants
from cog.errors import CogError
from cog.results.run_records import LOGS_FILE, METRICS, RESULTS_FILE, Run
from cog.runtime import files, safe_load
from cog.runtime.json_fields import number, text, whole

_FEATURES_METADATA = "features.json"

# A description has kilobytes; what is much larger is none, and would only fill the memory.
_MAX_BYTES = 8 << 20
_MAX_TRIALS = 1000
_MAX_EPOCHS = 10_000


#: Curves of logs.pkl, in the order of the columns of the CSV file.
CURVES = ("train/loss", "test/loss", "train/top1", "test/top1", "train/top5", "test/top5", "lr")

_NO_STUDY = "no trials: this run was written by the original toolkit, whose study.pkl cannot be read safely"


@dataclass(frozen=True)
class SearchTrial:
    """One pair that was tried; accuracies in percent, NaN where training diverged or nothing is recorded."""

    number: int
    lr: float
    wd: float
    val_top1: float
    diverged: bool
    pruned: bool
    seconds: float


@dataclass(frozen=True)
class SearchRecord:
    """What one run tells.

    Attributes:
        seed: of the run.
        trials: in the order they were tried; empty without a search or a record of it.
        lr: of the final training; NaN where unknown.
        wd: of the final training; NaN where unknown.
        lr_interval: searched, or None.
        wd_interval: searched, or None.
        curves: values per epoch, by the keys of ``CURVES`` that are there; NaN where not finite.
        missing: what is not there, in words.
    """

    seed: int
    trials: tuple[SearchTrial, ...]
    lr: float
    wd: float
    lr_interval: tuple[float, float] | None
    wd_interval: tuple[float, float] | None
    curves: dict[str, tuple[float, ...]]
    missing: tuple[str, ...] = ()

    @property
    def chosen(self) -> SearchTrial | None:
        """The trial whose pair the final training used."""
        return next((trial for trial in self.trials if (trial.lr, trial.wd) == (self.lr, self.wd)), None)

    def best_so_far(self) -> list[float]:
        """Return the highest validation accuracy after each trial; NaN until one succeeded."""
        best = math.nan
        found = []
        for trial in self.trials:
            if not (trial.diverged or trial.pruned) and not trial.val_top1 <= best:
                best = trial.val_top1
            found.append(best)
        return found


@dataclass(frozen=True)
class FeatureDescription:
    """How the features of one split were made; None where ``features.json`` does not say."""

    dataset: str
    split: str
    folder: Path
    n_images: int | None
    n_classes: int | None
    n_failed: int | None
    checkpoint_sha256: str | None
    checkpoint_is_published: bool | None
    loader: str | None
    profile: str | None
    variant: str | None
    precision: str | None
    preprocessing: str | None  # in one line
    image_list_sha256: str | None
    images_root: str | None
    device: str | None
    versions: Mapping[str, str]
    seconds: float | None
    images_per_second: float | None
    finished: str | None


def features_of(runs: Iterable[Run]) -> dict[tuple[str, str, str], FeatureDescription]:
    """Read the descriptions of the features beside the runs.

    Args:
        runs: in folders of the layout; elsewhere the path that the run recorded is tried.

    Returns:
        By model, data set and split; absent where there is no readable description (features of the
        original toolkit).
    """
    found: dict[tuple[str, str, str], FeatureDescription] = {}
    looked: set[tuple[str, str, str, str]] = set()
    for run in runs:
        beside = os.path.dirname(os.path.dirname(run.path))
        for split in constants.SPLITS:
            key = (run.model, run.dataset, split)
            recorded = getattr(run.details, f"{split}_features_file")
            places = [os.path.join(beside, f"features_{split}")]
            if isinstance(recorded, str) and "\0" not in recorded:
                places.append(os.path.dirname(recorded))
            for place in places:
                if key not in found and (*key, place) not in looked:
                    looked.add((*key, place))
                    made = _read_features(Path(place), run.dataset, split)
                    if made is not None:
                        found[key] = made
    return found


def _read_features(folder: Path, dataset: str, split: str) -> FeatureDescription | None:
    data = _read_json(folder / _FEATURES_METADATA)
    if data is None:
        return None
    is_published = data.get("checkpoint_is_published")
    versions = data.get("versions")
    return FeatureDescription(
        dataset=dataset,
        split=split,
        folder=folder,
        n_images=whole(data.get("n_images")),
        n_classes=whole(data.get("n_classes")),
        n_failed=whole(data.get("n_failed")),
        checkpoint_sha256=text(data.get("checkpoint_sha256")),
        checkpoint_is_published=is_published if isinstance(is_published, bool) else None,
        loader=text(data.get("loader")),
        profile=text(data.get("profile")),
        variant=text(data.get("variant")),
        precision=text(data.get("precision")),
        preprocessing=_preprocessing(data.get("preprocessing")),
        image_list_sha256=text(data.get("image_list_sha256")),
        images_root=text(data.get("images_root")),
        device=text(data.get("device")),
        versions={
            str(key): value
            for key, value in (versions.items() if isinstance(versions, dict) else ())
            if isinstance(value, str)
        },
        seconds=number(data.get("seconds")),
        images_per_second=number(data.get("images_per_second")),
        finished=text(data.get("finished")),
    )


def _preprocessing(data: Any) -> str | None:
    """Return ``resize 224, crop 224, ...``: every entry, so that two that differ read differently."""
    parts = []
    for key, value in data.items() if isinstance(data, dict) else ():
        shown = plain(value)
        if shown is not None and value is not False:
            name = str(key).replace("_", " ")
            parts.append(name if value is True else f"{name} {shown}")
    return "; ".join(parts) or None


def trials_of(run: Run) -> tuple[SearchTrial, ...]:
    """Read the trials of the search, in order; empty without a search or a readable record."""
    data = _read_json(run.path / RESULTS_FILE) or {}
    entries = data.get("trials")
    trials = []
    for index, entry in enumerate(entries[:_MAX_TRIALS] if isinstance(entries, list) else ()):
        if not isinstance(entry, dict):
            continue
        lr, wd, score = (number(entry.get(key)) for key in ("lr", "wd", "val_top1"))
        if lr is not None and wd is not None and score is not None and lr > 0 and wd >= 0:
            accuracy = min(max(score, 0.0), 100.0)
            diverged = entry.get("diverged") is True
            trials.append(SearchTrial(index, lr, wd, accuracy, diverged, False, math.nan))
    return tuple(trials)


def curve_of(run: Run) -> tuple[float, ...]:
    """Read the test top-1 accuracy (percent) after each epoch of the final training; empty when unreadable."""
    try:
        logs = safe_load.load_pickle(run.path / run.final_folder / LOGS_FILE)
    except CogError:
        return ()
    values: Any = logs.get(METRICS["top1"]) if isinstance(logs, dict) else None
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, list | tuple):
        return ()
    curve = [number(value.item() if hasattr(value, "item") else value) for value in values[:_MAX_EPOCHS]]
    return tuple(value for value in curve if value is not None and 0 <= value <= 101)


def outline(run: Run) -> SearchRecord:
    """Read a run's trials and test accuracy as far as they can be read; nothing is raised."""
    curve = curve_of(run)
    settings = run.details.settings
    return SearchRecord(
        seed=run.seed,
        trials=trials_of(run),
        lr=math.nan if run.lr is None else run.lr,
        wd=math.nan if run.wd is None else run.wd,
        lr_interval=_interval(settings.get("lr_interval")),
        wd_interval=_interval(settings.get("wd_interval")),
        curves={"test/top1": curve} if curve else {},
    )


def plain(value: Any) -> str | None:
    """Return a number, text, truth value, interval or list of numbers as it is shown; None for all else."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value or None
    if isinstance(value, list | tuple):
        parts = [plain(part) for part in value if not isinstance(part, list | tuple)]
        known = [part for part in parts if part is not None]
        return (" to " if len(known) == 2 else ", ").join(known) or None
    found = number(value)
    return None if found is None else f"{found:g}" if abs(found) < 1e6 else f"{found:.0f}"


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def read_search(run: Run) -> SearchRecord:
    """Read one run's trials and curves.

    Raises:
        CogError: when its files cannot be read, or hold something else.
    """
    record_file = run.path / RESULTS_FILE
    record = files.read_json(record_file) if record_file.is_file() else None
    if record is not None and not isinstance(record, dict):
        raise CogError(f"{record_file} holds {type(record).__name__}, expected a JSON object")
    missing: list[str] = []
    trials: tuple[SearchTrial, ...] = ()
    settings: dict[str, Any] = {}
    if record is None:
        missing.append(_NO_STUDY)
    else:
        settings = record["identity"] if isinstance(record.get("identity"), dict) else {}
        trials = _trials(record.get("trials"))
        if not trials:
            missing.append("no trials: the run was made without a search, or has no record of it")
    logs = safe_load.load_pickle(run.path / run.final_folder / LOGS_FILE)
    curves = {key: _floats(logs.get(key)) for key in CURVES} if isinstance(logs, dict) else {}
    curves = {key: values for key, values in curves.items() if values}
    absent = [key for key in CURVES if key not in curves]
    if absent:
        missing.append(f"no curve of {', '.join(absent)}")
    return SearchRecord(
        seed=run.seed,
        trials=trials,
        lr=math.nan if run.lr is None else run.lr,
        wd=math.nan if run.wd is None else run.wd,
        lr_interval=_interval(settings.get("lr_interval")),
        wd_interval=_interval(settings.get("wd_interval")),
        curves=curves,
        missing=tuple(missing),
    )


def _trials(recorded: Any) -> tuple[SearchTrial, ...]:
    """Read the trials of results.json; entries that are no trials are left out."""
    found = []
    for index, entry in enumerate(recorded if isinstance(recorded, list) else ()):
        if not isinstance(entry, dict):
            continue
        lr, wd = _float(entry.get("lr")), _float(entry.get("wd"))
        if math.isnan(lr) or math.isnan(wd):
            continue
        number = entry.get("number")
        diverged = entry.get("diverged") is True
        found.append(
            SearchTrial(
                number=number if isinstance(number, int) else index,
                lr=lr,
                wd=wd,
                val_top1=math.nan if diverged else _float(entry.get("val_top1")),
                diverged=diverged,
                pruned=entry.get("pruned") is True,
                seconds=_float(entry.get("seconds")),
            )
        )
    return tuple(found)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _floats(values: Any) -> tuple[float, ...]:
    if hasattr(values, "tolist"):  # numpy
        values = values.tolist()
    if not isinstance(values, list | tuple):
        return ()
    return tuple(_float(value.tolist() if hasattr(value, "tolist") else value) for value in values)


def _interval(value: Any) -> tuple[float, float] | None:
    ends = _floats(value)
    return (ends[0], ends[1]) if len(ends) == 2 and 0 < ends[0] < ends[1] else None
