"""The record of one run of a classifier, read from its seed folder.

``results.json`` is the record of a run. Runs of the original toolkit have none; their accuracies are those of
``logs.pkl``, which both toolkits write. Nothing is recomputed. This module imports no torch.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cog import constants, paths
from cog.errors import CogError, os_errors_explained
from cog.results import concept_counts
from cog.results.benchmark import data_of, unlike_protocol
from cog.results.concept_counts import ConceptCounts
from cog.results.fields import number, sha256, text, whole
from cog.runtime import files, safe_load

LOGS_FILE, RESULTS_FILE = "logs.pkl", "results.json"

#: Keys of the logged accuracies (percent, one value per epoch) by the name of the metric in tables.
METRICS = {"top1": "test/top1", "top5": "test/top5"}

# Accuracies computed in float32 may exceed 100 by rounding. In bytes; a record of 30 trials takes 8 kB.
_TOLERANCE_PERCENT, _LARGEST = 1e-3, 1 << 24

# A learning rate within this distance of the end, as a share of the logarithmic length of the interval, is at
# the edge.
_EDGE_SHARE = 0.02

_FINAL_FOLDER = re.compile(r"final(?:-lr-(?P<lr>[0-9.e+-]+)_wd-(?P<wd>[0-9.e+-]+))?[A-Za-z0-9._+-]*")
_USED = {split: f"{split}_features" for split in constants.SPLITS}

#: Descriptions of features by model, data set and split.
Features = dict[tuple[str, str, str], dict[str, Any]]


class Place(NamedTuple):
    """What the path of a seed folder implies."""

    model: str  # "" for a folder outside the layout, as the data set
    dataset: str
    evaluation: str  # EVAL.NAME with the suffixes of variants
    n_shot: int | None  # None outside the layout: the recorded number
    seed: int


@dataclass(frozen=True)
class Run:
    """One finished run of a classifier; what is not recorded (by the original toolkit) is None or empty."""

    model: str
    dataset: str
    evaluation: str
    n_shot: int  # training images per class, 0 = all
    seed: int
    folder: str  # the seed folder
    final: str  # its subfolder with logs.pkl, model and predictions
    top1: float  # percent, last epoch
    top5: float
    counts: ConceptCounts | None  # right answers per concept
    data: str  # as in cog.results.frame, and the next three
    classes: str | None
    protocol: str
    features: str | None
    n_test: int | None
    lr: float | None  # of the final training
    at_edge: bool  # whether lr is at the upper end of its interval
    diverged: bool
    settings: Mapping[str, Any]  # as recorded, without seed and shots; shared between runs
    used: Mapping[str, Mapping[str, Any]]  # recorded identity of the features by split
    versions: Mapping[str, Any]
    device: str | None
    precision: str | None
    finished: str  # time of the end, ISO 8601, UTC, or ""


def read_run(path: str, place: Place, features: Features, *, limit: int = 0) -> Run:
    """Return the run in a seed folder.

    The descriptions of its features are added to ``features``. ``limit`` is N of a root ``limit-<N>``, which
    becomes a part of ``data``; 0 elsewhere.

    Raises:
        CogError: the run is unfinished, ambiguous, or of another place, or its files cannot be read safely.
    """
    record = load_record(path)
    final, top1, top5 = _read_logs(path) if record is None else _final(record, place)
    record = record or {}
    identity, stated, rows = (_object(record.get(name)) for name in ("identity", "final", "rows"))
    content = {name: v for name, v in identity.items() if name not in ("seed", "n_shot", *_USED.values())}
    settings, protocol = _shared(json.dumps(content), place.evaluation)
    used = {split: _object(identity.get(name)) for split, name in _USED.items()}
    train, _ = (_features(path, place, split, record, features) for split in constants.SPLITS)
    n_classes, n_test, n_train = whole(record.get("n_classes")), whole(rows.get("test")), n_images(train)
    try:
        image_list = text(used["test"].get("image_list_sha256"))
        counts = concept_counts.read(stated, n_classes=n_classes, top1=top1, image_list=image_list)
    except ValueError as error:
        advice = f"run this again with --overwrite, or remove the entry {concept_counts.CORRECT}"
        raise CogError(f"{RESULTS_FILE} was changed ({error}); {advice}") from error
    n_shot = place.n_shot
    if n_shot is None:
        named = paths.parse_evaluation_folder(Path(os.path.abspath(path)).parent.name) or ("", 0)
        n_shot = record.get("n_shot", named[1])
    if n_train is None and not n_shot and "_max" not in place.evaluation:
        n_train = whole(rows.get("final_train"))
    classes = sha256(train.get("class_list_sha256"))
    data = data_of(place.dataset, n_classes=n_classes, n_train=n_train, n_test=n_test, classes=classes)
    match = _FINAL_FOLDER.fullmatch(final)
    try:
        lr = number(stated["lr"] if "lr" in stated else float((match and match["lr"]) or "nan"))
    except ValueError:  # of a name such as final-lr-1-1_wd-2
        lr = None
    return Run(
        *(place.model, place.dataset, place.evaluation, n_shot, place.seed, path, final, top1, top5, counts),
        data=f"limit-{limit}, {data}" if limit else data,
        classes=classes,
        protocol=protocol,
        features=features_digest(used),
        n_test=n_test,
        lr=lr,
        at_edge=at_upper_edge(lr, settings.get("lr_interval")),
        diverged=stated.get("diverged") is True,
        settings=settings,
        used=used,
        versions=_shared(json.dumps(_object(record.get("versions"))), "")[0],
        device=text(record.get("device")),
        precision=text(record.get("precision")),
        finished=text(record.get("finished")) or "",
    )


def load_record(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the contents of ``results.json`` of a run; None without it, as in runs of the original toolkit.

    Raises:
        CogError: the file cannot be read, or holds no object.
    """
    file = os.path.join(folder, RESULTS_FILE)
    return files.read_object(file, largest=_LARGEST) if os.path.lexists(file) else None


def _final(record: Mapping[str, Any], place: Place) -> tuple[str, float, float]:
    """Return the final folder and both accuracies (percent) of a record that belongs to its folder."""
    final = record.get("final")
    if not isinstance(final, dict):
        raise CogError(f"{RESULTS_FILE} does not describe a run (no entry 'final')")
    if record.get("status") != "complete":
        raise CogError(f"{RESULTS_FILE} says status {record.get('status')!r}, expected 'complete'")
    for key, expected in (("seed", place.seed), ("n_shot", place.n_shot)):
        if expected is not None and record.get(key, expected) != expected:
            raise CogError(f"{RESULTS_FILE} says {key} {record[key]!r}, the folder's name {expected}")
    if whole(record.get("n_shot", 0)) is None:
        raise CogError(f"{RESULTS_FILE} says n_shot {record['n_shot']!r}, expected a whole number")
    folder = final.get("folder")
    if not isinstance(folder, str) or _FINAL_FOLDER.fullmatch(folder) is None:
        raise CogError(f"{RESULTS_FILE} names the final folder {folder!r}, expected final-*")
    top1, top5 = (_percentage(final.get(f"test_{name}"), f"test_{name}", RESULTS_FILE) for name in METRICS)
    return folder, top1, top5


def _read_logs(path: str) -> tuple[str, float, float]:
    """Return final folder and last accuracies (percent) of a run of the original toolkit."""
    with os_errors_explained("cannot be read"):
        finals = [name for name in sorted(os.listdir(path)) if name.startswith("final")]
    finals = [name for name in finals if os.path.isdir(f"{path}/{name}")]
    if len(finals) > 1:
        finals = [name for name in finals if os.path.lexists(f"{path}/{name}/{LOGS_FILE}")]
    if not finals:
        raise CogError(f"no {RESULTS_FILE}, and no final-*/{LOGS_FILE}: the run is unfinished or failed")
    if len(finals) > 1:
        raise CogError(f"{len(finals)} final folders ({', '.join(finals)}); keep the one that counts")
    name = f"{finals[0]}/{LOGS_FILE}"
    logs = safe_load.load_pickle(f"{path}/{name}")
    if not isinstance(logs, dict):
        raise CogError(f"{name} holds {type(logs).__name__}, expected a dict of lists")
    (top1, n_top1), (top5, n_top5) = (_last_accuracy(logs, key, name) for key in METRICS.values())
    if n_top1 != n_top5:
        raise CogError(f"{name} has {n_top1} epochs of test/top1 but {n_top5} of test/top5")
    return finals[0], top1, top5


def _last_accuracy(logs: Mapping[Any, Any], key: str, name: str) -> tuple[float, int]:
    values: Any = logs.get(key)
    values = values.tolist() if hasattr(values, "tolist") else values  # numpy
    if not isinstance(values, list | tuple) or not values:
        raise CogError(f"{name} has no list {key} with the value of a finished epoch")
    last = values[-1].tolist() if hasattr(values[-1], "tolist") else values[-1]
    return _percentage(last, key, name), len(values)


def _percentage(value: Any, key: str, name: str) -> float:
    accuracy = number(value)
    if accuracy is None or not -_TOLERANCE_PERCENT <= accuracy <= 100 + _TOLERANCE_PERCENT:
        shown = value if isinstance(value, float) else type(value).__name__
        raise CogError(f"{name}: {key} is {shown}, expected a percentage")
    return accuracy


def _features(
    path: str, place: Place, split: str, record: Mapping[str, Any], known: Features
) -> Mapping[str, Any]:
    """Return the description of the features of a run: beside it, else at the recorded path, else empty."""
    key = place.model, place.dataset, split
    if key not in known or not place.model:
        beside = os.path.join(os.path.dirname(os.path.dirname(path)), f"features_{split}")
        recorded = text(record.get(_USED[split])) or ""
        tried = [beside, *([os.path.dirname(recorded)] if recorded and "\0" not in recorded else [])]
        known[key] = next(filter(None, map(read_features, tried)), {})
    return known[key]


def read_features(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the contents of ``features.json`` in a folder, and of its ``identity``; empty without it."""
    try:
        data = files.read_object(os.path.join(folder, "features.json"), largest=_LARGEST)
    except CogError:
        return {}
    return {**data, **_object(data.get("identity"))}


def n_images(described: Mapping[str, Any]) -> int | None:
    """Return the number of decoded images in a description of features; None if it is not recorded."""
    listed = whole(described.get("n_images"))
    return None if listed is None else listed - (whole(described.get("n_failed")) or 0)


def features_digest(used: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return a digest of the recorded features of a run: of their rows, else of all that is recorded."""
    if not all(used.values()):
        return None
    rows = [identity.get("rows_sha256") or identity.get("sample_sha256") for identity in used.values()]
    content = rows if None not in rows else list(used.values())
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


@functools.lru_cache(4096)
def _shared(content: str, evaluation: str) -> tuple[dict[str, Any], str]:
    """Return settings that equal records share, without nested ones, and their :func:`unlike_protocol`."""
    settings = {
        key: value
        for key, value in json.loads(content).items()
        if not isinstance(value, dict) and not (isinstance(value, list) and len(value) > 2)
    }
    return settings, unlike_protocol(settings, evaluation)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def at_upper_edge(value: float | None, interval: Any) -> bool:
    """Return whether ``value`` lies at the upper end of a recorded log-uniform interval."""
    ends = [number(end) or 0.0 for end in interval] if isinstance(interval, list) else []
    if value is None or value <= 0 or len(ends) != 2 or not 0 < ends[0] < ends[1]:
        return False
    return math.log(value / ends[0]) / math.log(ends[1] / ends[0]) >= 1 - _EDGE_SHARE
