"""Results of analyses: ``<dataset>/analysis_<name>/results.json``, one JSON object each.

::

    {"status": "complete", "analysis": "kmeans", "model": ..., "dataset": ...,
     "identity": {...},                what makes two results the same: settings and features
     "values": {"ami": 0.53, ...},     headline numbers, flat; null where undefined
     "seeds": [0, 1, 2], "per_seed": {"0": {"ami": 0.52, ...}, ...},   where there is randomness
     "details": {...},                 whatever else is worth knowing
     "versions": {...}, "device": "cpu", "seconds": 12.3, "finished": "2021-10-11T12:00:00+00:00"}

Bulky data (assignments, per-class tables) lie beside it as CSV or npz and are named under ``details.files``. Nothing in
this module imports torch.
"""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cog import constants
from cog.errors import CogError
from cog.runtime import files
from cog.runtime.fingerprint import plain

RESULTS_FILE = "results.json"

Number = float | int | None


@dataclass(frozen=True)
class AnalysisRecord:
    """The result of one analysis of one data set.

    Attributes:
        analysis: the name in ``analysis_<name>``.
        model: ``<model_title>_<architecture_name>``, or None when it was not given.
        dataset: name of the data set, or None when it was not given.
        identity: what makes two results the same.
        values: headline numbers; None where undefined.
        seeds: of the repetitions, in order; empty where nothing is random.
        per_seed: values of each repetition, by the seed as text.
        details: whatever else is worth knowing.
        versions: of the packages that computed it.
        device: where it was computed.
        seconds: how long that took.
        finished: ISO 8601, UTC.
        folder: where it was read from; not written.
    """

    analysis: str
    model: str | None
    dataset: str | None
    identity: dict[str, Any]
    values: dict[str, Number]
    seeds: list[int] = field(default_factory=list)
    per_seed: dict[str, dict[str, Number]] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str | None] = field(default_factory=dict)
    device: str = "cpu"
    seconds: float = 0.0
    finished: str = ""
    folder: Path | None = None


@dataclass(frozen=True)
class RecordProblem:
    """A folder that holds no readable result.

    Attributes:
        folder: of the analysis.
        message: one line: what is wrong.
    """

    folder: Path
    message: str


def write(folder: str | os.PathLike[str], record: AnalysisRecord) -> None:
    """Write ``results.json`` atomically; numbers that are not finite become null.

    Raises:
        CogError: when it cannot be written.
    """
    data = {"status": "complete"} | {
        field_.name: getattr(record, field_.name)
        for field_ in dataclasses.fields(record)
        if field_.name != "folder"
    }
    files.write_json(Path(folder) / RESULTS_FILE, plain(data))


def read(folder: str | os.PathLike[str]) -> AnalysisRecord | RecordProblem:
    """Read the result in an ``analysis_<name>`` folder; never raises for what a file may hold."""
    folder = Path(folder)
    path = folder / RESULTS_FILE
    try:
        data = files.read_json(path)
    except CogError as error:
        return RecordProblem(folder, str(error))
    if not isinstance(data, dict):
        return RecordProblem(folder, f"{path} holds {type(data).__name__}, expected a JSON object")
    if data.get("status") != "complete":
        return RecordProblem(folder, f"{path} has status {data.get('status')!r}, expected 'complete'")
    name = data.get("analysis")
    if not isinstance(name, str) or not constants.is_plain_name(name):
        return RecordProblem(folder, f"{path} names no analysis")
    for key in ("identity", "values", "per_seed", "details", "versions"):
        if not isinstance(data.get(key, {}), dict):
            return RecordProblem(folder, f"{path}: {key} is no JSON object")
    seeds = data.get("seeds", [])
    if not isinstance(seeds, list) or any(type(seed) is not int for seed in seeds):
        return RecordProblem(folder, f"{path}: seeds is no list of whole numbers")
    per_seed = data.get("per_seed", {})
    tables = [data.get("values", {}), *per_seed.values()]
    if not all(isinstance(table, dict) and all(map(_is_number, table.values())) for table in tables):
        return RecordProblem(folder, f"{path}: values must be finite numbers or null")
    seconds = data.get("seconds", 0.0)
    return AnalysisRecord(
        analysis=name,
        model=_text(data.get("model")),
        dataset=_text(data.get("dataset")),
        identity=data.get("identity", {}),
        values=data.get("values", {}),
        seeds=seeds,
        per_seed=per_seed,
        details=data.get("details", {}),
        versions=data.get("versions", {}),
        device=_text(data.get("device")) or "",
        seconds=float(seconds) if seconds is not None and _is_number(seconds) else 0.0,
        finished=_text(data.get("finished")) or "",
        folder=folder,
    )


def _is_number(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
