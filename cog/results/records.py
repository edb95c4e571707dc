"""The record of one run of a classifier, read from its seed folder as rows of the long table.

It is ``results.json``. Runs of the original toolkit have none; ``logs.pkl`` and ``config.txt`` tell of them.
"""

import contextlib
import hashlib
import json
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cog import constants
from cog.constants import LOGS_FILE, RESULTS_FILE
from cog.errors import CogError, os_errors_explained
from cog.results import concept_counts
from cog.results.benchmark import PROTOCOL, data_of, unlike_protocol
from cog.results.frame import RUNS
from cog.runtime import files, safe_load

#: Keys of the logged accuracies (percent, one value per epoch) by the name of the metric in tables.
METRICS = {"top1": "test/top1", "top5": "test/top5"}

# Accuracies computed in float32 may exceed 100 by rounding. In bytes; a record of 30 trials takes 8 kB.
_TOLERANCE_PERCENT, _LARGEST = 1e-3, 1 << 24

#: Descriptions of features by model, data set and split.
Features = dict[tuple[str, str, str], dict[str, Any]]


class Place(NamedTuple):
    """What the path of a seed folder implies; outside the layout, "" or None."""

    model: str
    dataset: str
    evaluation: str
    n_shot: int | None
    seed: int


def read_run(path: str, place: Place, features: Features) -> list[dict[str, Any]]:
    """Return the rows of the run in a seed folder, top-1 and top-5, as in :mod:`cog.results.frame`.

    ``details`` of a row has what is recorded beside: ``final`` (subfolder with logs, model and predictions),
    ``lr``, ``diverged``, ``settings``, ``used`` (identity of the features by split),
    ``versions``, ``device``, ``precision``, ``finished`` (ISO 8601, UTC). Descriptions of the features are
    added to ``features``. An unfinished, ambiguous or unreadable run, or one of another place, is a CogError.
    """
    found = load_record(path)
    record, final, accuracies = _read_original(path) if found is None else _final(path, found, place)
    identity, stated, rows = (mapping(record.get(name)) for name in ("identity", "final", "rows"))
    used = {split: mapping(identity.get(f"{split}_features")) for split in constants.SPLITS}
    train, _ = (_describe(path, place, split, record, features) for split in constants.SPLITS)
    n_classes, n_test, n_train = whole(record.get("n_classes")), whole(rows.get("test")), n_images(train)
    listed = [used["test"].get(f"image_{name}") for name in ("list_sha256", "contents_crc32")]
    images = hashlib.sha256(json.dumps(listed).encode()).hexdigest() if text(listed[0]) else None
    try:
        counts = concept_counts.read(stated, n_classes=n_classes, top1=accuracies["top1"], image_list=images)
    except ValueError as error:
        raise CogError(f"{RESULTS_FILE} was changed ({error}); run this again with --overwrite") from error
    n_shot = (whole(record.get("n_shot")) or 0) if place.n_shot is None else place.n_shot
    if n_train is None and not n_shot and "_max" not in place.evaluation:
        n_train = whole(rows.get("final_train"))
    classes = sha256(train.get("class_list_sha256"))
    common = {
        **place._asdict(),
        "source": RUNS,
        "n_shot": n_shot,
        "images": n_test,
        "data": data_of(place.dataset, n_classes=n_classes, n_train=n_train, n_test=n_test, classes=classes),
        "classes": classes,
        "protocol": unlike_protocol(identity, place.evaluation, diverged=stated.get("diverged") is True),
        "features": features_digest(used),
        "folder": path,
        "details": {
            "final": final,
            "lr": number(stated.get("lr")),
            "diverged": stated.get("diverged") is True,
            "settings": identity,
            "used": used,
            "versions": mapping(record.get("versions")),
            **{name: text(record.get(name)) for name in ("device", "precision", "finished")},
        },
    }
    return [
        {**common, "metric": metric, "value": value, "correct": counts if metric == "top1" else None}
        for metric, value in accuracies.items()
    ]


def load_record(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the contents of ``results.json``; None without it, as in runs of the original toolkit."""
    file = os.path.join(folder, RESULTS_FILE)
    return files.read_object(file, largest=_LARGEST) if os.path.lexists(file) else None


def _final(path: str, record: dict[str, Any], place: Place) -> tuple[dict[str, Any], str, dict[str, float]]:
    final = record.get("final")
    if not isinstance(final, dict):
        raise CogError(f"{RESULTS_FILE} does not describe a run (no entry 'final')")
    if record.get("status") != "complete":
        raise CogError(f"{RESULTS_FILE} says status {record.get('status')!r}, expected 'complete'")
    for key in ("model", "dataset", "seed", "n_shot"):
        expected = getattr(place, key)
        for stated in (record, mapping(record.get("identity"))):
            if (said := stated.get(key)) is not None and expected not in (None, "", said):
                raise CogError(f"{RESULTS_FILE} says {key} {said!r}, the folder's name {expected}")
    folder = final.get("folder")
    if not isinstance(folder, str) or re.fullmatch(r"final[A-Za-z0-9._+-]*", folder) is None:
        raise CogError(f"{RESULTS_FILE} names the final folder {folder!r}, expected final-*")
    accuracies = {name: _percentage(final.get(f"test_{name}"), f"test_{name}") for name in METRICS}
    if os.path.isfile(logs := f"{path}/{folder}/{LOGS_FILE}"):
        content = files.contents(logs, _LARGEST)  # to unpickle it takes 20 times as long
        for name, value in accuracies.items():  # as the last number of a pickled list, or the only one
            if not any(struct.pack(">cdc", b"G", value, end) in content for end in (b"e", b"a")):
                raise CogError(f"{RESULTS_FILE} was changed: its {name} accuracy is not in {LOGS_FILE}")
    return record, folder, accuracies


def _read_original(path: str) -> tuple[dict[str, Any], str, dict[str, float]]:
    """Return what a record would tell of a run of the original toolkit, its final folder, the accuracies."""
    with os_errors_explained("cannot be read"):
        names = [name for name in sorted(os.listdir(path)) if name.startswith("final")]
    finals = [name for name in names if os.path.lexists(f"{path}/{name}/{LOGS_FILE}")]
    if len(finals) != 1:
        none = f"no {RESULTS_FILE}, and no final-*/{LOGS_FILE}: unfinished or failed"
        several = f"{len(finals)} final folders ({', '.join(finals)}); keep the one that counts"
        raise CogError(several if finals else none)
    name = f"{finals[0]}/{LOGS_FILE}"
    logs, last = safe_load.load_pickle(f"{path}/{name}"), {}
    for metric, key in METRICS.items():
        values = logs.get(key) if isinstance(logs, dict) else None
        if not isinstance(values, list) or not values:
            raise CogError(f"{name} has no list {key} with the value of a finished epoch")
        value = values[-1].item() if isinstance(values[-1], np.generic) else values[-1]
        last[metric] = _percentage(value, f"{name}: {key}")
    trained, n_epochs = logs.get("train/top1"), len(logs["test/top1"])
    # The last epoch is the first one whose loss is not finite; the curves of the training end before.
    diverged = isinstance(trained, list) and len(trained) < n_epochs
    settings: dict[str, Any] = {} if diverged else {"n_epochs": n_epochs}
    with contextlib.suppress(CogError, ValueError):
        lines = files.contents(f"{path}/config.txt", 1 << 16).decode().partition("CLF:")[2]
        lines = re.sub(r":\s+- (\S+)\s+- (\S+)", r": [\1, \2]", re.split(r"\n(?=\S)", lines)[0])
        stated = dict(re.findall(r"(?m)^ +(\w+): ([\w.+-]+|\[[^[\n]+)$", lines))
        known = {name: key[4:] for name, (_, key) in PROTOCOL.items() if key[4:] in stated}
        settings |= {name: json.loads(stated[key]) for name, key in known.items()}
    return {"identity": settings, "final": {"diverged": diverged}}, finals[0], last


def _percentage(value: Any, name: str) -> float:
    accuracy = number(value)
    if accuracy is None or not -_TOLERANCE_PERCENT <= accuracy <= 100 + _TOLERANCE_PERCENT:
        raise CogError(f"{name} is {str(value)[:40]}, expected a percentage")
    return accuracy


def _describe(path: str, place: Place, split: str, record: dict, known: Features) -> dict[str, Any]:
    """Return the description of the features of a run: beside it, else at the recorded path, else empty."""
    key = place.model, place.dataset, split
    if key not in known or not place.model:
        recorded = os.path.dirname(text(record.get(f"{split}_features")) or "")
        known[key] = read_features(f"{Path(path).parents[1]}/features_{split}") or read_features(recorded)
    return known[key]


def read_features(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the contents of ``features.json`` in a folder, and of its ``identity``; empty without it."""
    try:
        data = files.read_object(os.path.join(folder, constants.FEATURES_RECORD), largest=_LARGEST)
    except CogError:
        return {}
    return {**data, **mapping(data.get("identity"))}


def n_images(described: Mapping[str, Any]) -> int | None:
    """Return the number of decoded images in a description of features; None if it is not recorded."""
    listed = whole(described.get("n_images"))
    return None if listed is None else listed - (whole(described.get("n_failed")) or 0)


def features_digest(used: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return a digest of the recorded features of a run: of their rows, else of all that is recorded."""
    if not all(used.values()):
        return None
    rows = [identity.get("rows_sha256") for identity in used.values()]
    images = [identity.get("image_list_sha256") for identity in used.values()]  # rows are a sample
    content = [*rows, *images] if None not in rows else list(used.values())
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def text(value: Any) -> str | None:
    """Return ``value`` if it is a text, but not an empty one, else None."""
    return value if isinstance(value, str) and value else None


def sha256(value: Any) -> str | None:
    """Return ``value`` if it is a SHA-256 digest in lower-case hexadecimal digits, else None."""
    return value if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) else None


def whole(value: Any) -> int | None:
    """Return ``value`` if it is a whole number from 0 to 2 ** 63 - 1, else None."""
    return value if type(value) is int and 0 <= value < 1 << 63 else None


def number(value: Any) -> float | None:
    """Return ``value`` as a float if it is a finite number, else None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e100 else None  # its square is finite


def mapping(value: Any) -> dict[str, Any]:
    """Return ``value`` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}
