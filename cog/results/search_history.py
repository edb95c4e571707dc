"""Descriptions of features, trials of searches and curves of training, from the files beside the scores.

Folders may come from other people: entries of another form than ours are taken as not recorded.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cog import constants
from cog.errors import CogError
from cog.results import run_records
from cog.results.run_details import texts
from cog.results.run_records import LOGS_FILE, Run
from cog.runtime import files, safe_load
from cog.runtime.json_fields import number, sha256, text, whole

_FEATURES_METADATA = "features.json"

# Greatest size of a description of features, which has kilobytes.
_MAX_BYTES = 8 << 20

#: Curves of logs.pkl, in the order of the columns of the CSV file.
CURVES = ("train/loss", "test/loss", "train/top1", "test/top1", "train/top5", "test/top5", "lr")


@dataclass(frozen=True)
class Trial:
    """A finished trial of a pair of hyper-parameters, as ``trials`` of ``results.json`` has it.

    Attributes:
        number: 0, 1, ...
        lr: learning rate.
        wd: weight decay.
        val_top1: accuracy on the held-out part in percent; of a diverged training, 0 in the search and NaN when read.
        diverged: whether a weight was no longer finite.
        seconds: duration, NaN if not recorded; the share of one trial when several were trained together.
    """

    number: int
    lr: float
    wd: float
    val_top1: float
    diverged: bool
    seconds: float


@dataclass(frozen=True)
class SearchRecord:
    """Search and training of one run."""

    seed: int
    trials: tuple[Trial, ...]  # in order; empty without a search or a record of it
    lr: float  # of the final training; NaN if unknown
    wd: float
    lr_interval: tuple[float, float] | None  # of the search
    wd_interval: tuple[float, float] | None
    curves: dict[str, tuple[float, ...]]  # values per epoch by the recorded ones of CURVES; NaN if not finite
    missing: tuple[str, ...] = ()  # descriptions of missing parts, in words

    @property
    def chosen(self) -> Trial | None:
        """The trial whose pair the final training used, or None."""
        return next((trial for trial in self.trials if (trial.lr, trial.wd) == (self.lr, self.wd)), None)

    def best_so_far(self) -> list[float]:
        """Return the highest validation accuracy after each trial; NaN until a trial has succeeded."""
        best = math.nan
        highest = []
        for trial in self.trials:
            if not trial.diverged and not trial.val_top1 <= best:
                best = trial.val_top1
            highest.append(best)
        return highest


@dataclass(frozen=True)
class FeatureDescription:
    """Description of the features of one split; None for entries that are missing in ``features.json``."""

    dataset: str
    split: str
    n_images: int | None
    n_classes: int | None
    n_failed: int | None
    checkpoint_sha256: str | None
    sample_sha256: str | None
    precision: str | None
    preprocessing: str | None  # in one line
    pretraining: str | None
    label: str | None
    group: str | None
    class_list_sha256: str | None
    device: str | None
    versions: Mapping[str, str]
    finished: str | None


def features_of(runs: Iterable[Run]) -> dict[tuple[str, str, str], FeatureDescription]:
    """Return the descriptions of the features of runs.

    Args:
        runs: runs with their features in folders of the layout, else at their recorded paths.

    Returns:
        Descriptions by model, data set and split; absent if there is no readable one (features of the original
        toolkit).
    """
    folders: dict[tuple[str, str, str], dict[str, None]] = {}  # in the order in which they are tried
    for run in runs:
        beside = os.path.dirname(os.path.dirname(run.folder))
        files = run.details.train_features_file, run.details.test_features_file
        for split, recorded in zip(constants.SPLITS, files, strict=True):
            tried = folders.setdefault((run.model, run.dataset, split), {})
            tried[os.path.join(beside, f"features_{split}")] = None
            if recorded is not None and "\0" not in recorded:
                tried[os.path.dirname(recorded)] = None
    features = {}
    for (model, dataset, split), tried in folders.items():
        read = (_read_features(folder, dataset, split) for folder in tried)
        if (made := next(filter(None, read), None)) is not None:
            features[model, dataset, split] = made
    return features


def _read_features(folder: str, dataset: str, split: str) -> FeatureDescription | None:
    try:
        path = Path(folder, _FEATURES_METADATA)
        data = files.read_object(path, "description of features", largest=_MAX_BYTES)
    except CogError:
        return None
    entries: dict[str, Any] = {key: whole(data.get(key)) for key in ("n_images", "n_classes", "n_failed")}
    words = ("checkpoint_sha256", "sample_sha256", "precision", "pretraining", "label", "group")
    entries |= {key: text(data.get(key)) for key in (*words, "device", "finished")}
    return FeatureDescription(
        dataset,
        split,
        **entries,
        class_list_sha256=sha256(data.get("class_list_sha256")),  # written to exported files
        preprocessing=_preprocessing(data.get("preprocessing")),
        versions=texts(data.get("versions")),
    )


def _preprocessing(data: Any) -> str | None:
    """Return ``resize 224; crop 224; ...`` with all entries except false ones: other preprocessing has other text."""
    parts = []
    for key, value in data.items() if isinstance(data, dict) else ():
        shown = plain(value)
        if shown is not None and value is not False:
            name = str(key).replace("_", " ")
            parts.append(name if value is True else f"{name} {shown}")
    return "; ".join(parts) or None


def plain(value: Any) -> str | None:
    """Return a number, text, truth value, interval or list as text for display; None for other values."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value or None
    if isinstance(value, list | tuple):
        parts = [plain(part) for part in value if not isinstance(part, list | tuple)]
        known = [part for part in parts if part is not None]
        return (" to " if len(known) == 2 else ", ").join(known) or None
    finite = number(value)
    return None if finite is None else f"{finite:g}" if abs(finite) < 1e6 else f"{finite:.0f}"


def read_search(run: Run) -> SearchRecord:
    """Return the trials and curves of a run, as far as its files have them.

    Raises:
        CogError: when its files cannot be read, or have other content.
    """
    record = run_records.load_record(run.path)
    logs = safe_load.load_pickle(run.path / run.final_folder / LOGS_FILE)
    recorded = (record or {}).get("trials")
    entries = enumerate(recorded if isinstance(recorded, list) else ())
    trials = [trial for index, entry in entries if (trial := _trial(index, entry)) is not None]
    missing: list[str] = []
    if record is None:
        missing.append("no trials: the study.pkl of the original toolkit cannot be read safely")
    elif not trials:
        missing.append("no trials: the run was made without a search, or has no record of it")
    logs = logs if isinstance(logs, dict) else {}
    curves = {key: values for key in CURVES if (values := _floats(logs.get(key)))}
    absent = [key for key in CURVES if key not in curves]
    if absent:
        missing.append(f"no curve of {', '.join(absent)}")
    return SearchRecord(
        seed=run.seed,
        trials=tuple(trials),
        lr=_float(run.lr),
        wd=_float(run.wd),
        lr_interval=interval(run.details.settings.get("lr_interval")),
        wd_interval=interval(run.details.settings.get("wd_interval")),
        curves=curves,
        missing=tuple(missing),
    )


def _trial(index: int, entry: Any) -> Trial | None:
    """Return the trial in an entry of ``trials`` of ``results.json``; None for an invalid entry."""
    entry = entry if isinstance(entry, dict) else {}
    lr, wd = number(entry.get("lr")), number(entry.get("wd"))
    if lr is None or wd is None:
        return None
    position, diverged = entry.get("number"), entry.get("diverged") is True
    return Trial(
        number=position if isinstance(position, int) else index,
        lr=lr,
        wd=wd,
        val_top1=math.nan if diverged else _float(entry.get("val_top1")),
        diverged=diverged,
        seconds=_float(entry.get("seconds")),
    )


def _float(value: Any) -> float:
    finite = number(value)
    return math.nan if finite is None else finite


def _floats(values: Any) -> tuple[float, ...]:
    if hasattr(values, "tolist"):  # numpy
        values = values.tolist()
    if not isinstance(values, list | tuple):
        return ()
    return tuple(_float(value.tolist() if hasattr(value, "tolist") else value) for value in values)


def interval(value: Any) -> tuple[float, float] | None:
    """Return the ends of a log-uniform interval as recorded in settings; None for other values."""
    ends = _floats(value)
    return (ends[0], ends[1]) if len(ends) == 2 and 0 < ends[0] < ends[1] else None
