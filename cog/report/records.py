"""What the files beside the scores say: how features were made, which trials a search made, how training went.

Whoever wrote the folders decides what is in them: every entry may be missing, of another type, or hostile.
Nothing here raises for that; what cannot be used is None or empty, and shown as not recorded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cog import names, safe_load
from cog.errors import CogError
from cog.results import LOGS_FILE, METRICS, RESULTS_FILE, Run
from cog.values import number, text, whole

_FEATURES_METADATA = "features.json"

# A description has kilobytes; what is much larger is none, and would only fill the memory.
_MAX_BYTES = 8 << 20
_MAX_TRIALS = 1000
_MAX_EPOCHS = 10_000


@dataclass(frozen=True)
class Trial:
    """One pair of hyper-parameters of a search."""

    lr: float
    wd: float
    val_top1: float  # percent
    diverged: bool


@dataclass(frozen=True)
class Features:
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


def features_of(runs: Iterable[Run]) -> dict[tuple[str, str, str], Features]:
    """Read the descriptions of the features beside the runs.

    Args:
        runs: in folders of the layout; elsewhere the path that the run recorded is tried.

    Returns:
        By model, data set and split; absent where there is no readable description (features of the
        original toolkit).
    """
    found: dict[tuple[str, str, str], Features] = {}
    looked: set[tuple[str, str, str, str]] = set()
    for run in runs:
        for split in names.SPLITS:
            key = (run.model, run.dataset, split)
            recorded = getattr(run.details, f"{split}_features_file")
            places = [str(run.path.parent.parent / f"features_{split}")]
            if isinstance(recorded, str) and "\0" not in recorded:
                places.append(os.path.dirname(recorded))
            for place in places:
                if key not in found and (*key, place) not in looked:
                    looked.add((*key, place))
                    made = _read_features(Path(place), run.dataset, split)
                    if made is not None:
                        found[key] = made
    return found


def _read_features(folder: Path, dataset: str, split: str) -> Features | None:
    data = _read_json(folder / _FEATURES_METADATA)
    if data is None:
        return None
    is_published = data.get("checkpoint_is_published")
    versions = data.get("versions")
    return Features(
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


def trials_of(run: Run) -> tuple[Trial, ...]:
    """Read the trials of the search, in order; empty without a search or a readable record."""
    data = _read_json(run.path / RESULTS_FILE) or {}
    entries = data.get("trials")
    trials = []
    for entry in entries[:_MAX_TRIALS] if isinstance(entries, list) else ():
        if not isinstance(entry, dict):
            continue
        lr, wd, score = (number(entry.get(key)) for key in ("lr", "wd", "val_top1"))
        if lr is not None and wd is not None and score is not None and lr > 0 and wd >= 0:
            trials.append(Trial(lr, wd, min(max(score, 0.0), 100.0), entry.get("diverged") is True))
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
