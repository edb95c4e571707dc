"""Results of analyses: ``<dataset>/analysis_<name>/results.json``, one JSON object each.

::

    {"status": "complete", "analysis": "kmeans", "model": ..., "dataset": ...,
     "identity": {...},                settings and features; equal for two results of the same computation
     "values": {"ami": 0.53, ...},     headline numbers, flat; null where undefined
     "seeds": [0, 1, 2], "per_seed": {"0": {"ami": 0.52, ...}, ...},   of repetitions with randomness
     "details": {...},                 further information
     "versions": {...}, "device": "cpu", "seconds": 12.3, "finished": "2021-10-11T12:00:00+00:00"}

Bulky data (assignments, per-class tables) are files beside it, CSV or npz, with their names in
``details.files``. This module imports no torch.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cog import constants
from cog.errors import CogError
from cog.results.fields import number, text
from cog.runtime import files
from cog.runtime.files import plain

RESULTS_FILE = "results.json"

Number = float | int | None


@dataclass(frozen=True)
class AnalysisRecord:
    """The result of one analysis of one data set."""

    analysis: str  # name of the analysis, as in analysis_<name>
    model: str | None  # <model_title>_<architecture_name>, or None when it was not given
    dataset: str | None  # name of the data set, or None when it was not given
    identity: dict[str, Any]  # settings and features; equal for two results of the same computation
    values: dict[str, Number]  # headline numbers; None for undefined ones
    #: Seeds of the repetitions, in order; empty for an analysis without randomness.
    seeds: list[int] = field(default_factory=list)
    #: Values of each repetition, by the seed as text.
    per_seed: dict[str, dict[str, Number]] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)  # further information
    versions: dict[str, str | None] = field(default_factory=dict)
    device: str = "cpu"
    seconds: float = 0.0
    finished: str = ""  # time of the end, ISO 8601, UTC
    folder: Path | None = None  # folder of the file that was read; not written


def write(folder: str | os.PathLike[str], record: AnalysisRecord) -> None:
    """Write ``results.json`` atomically; numbers that are not finite become null.

    Raises:
        CogError: when the file cannot be written.
    """
    data = {key: value for key, value in vars(record).items() if key != "folder"}
    files.write_json(Path(folder) / RESULTS_FILE, plain({"status": "complete", **data}))


def read(folder: str | os.PathLike[str]) -> AnalysisRecord:
    """Read the result in an ``analysis_<name>`` folder.

    Raises:
        CogError: when the folder has no readable result; one line that begins with the path of the file.
    """
    folder = Path(folder)
    path = folder / RESULTS_FILE
    data = files.read_object(path)
    if data.get("status") != "complete":
        raise CogError(f"{path} has status {data.get('status')!r}, expected 'complete'")
    name = data.get("analysis")
    if not isinstance(name, str) or not constants.is_plain_name(name):
        raise CogError(f"{path} names no analysis")
    objects = {key: data.get(key, {}) for key in ("identity", "values", "per_seed", "details", "versions")}
    for key, value in objects.items():
        if not isinstance(value, dict):
            raise CogError(f"{path}: {key} is no JSON object")
    seeds = data.get("seeds", [])
    if not isinstance(seeds, list) or any(type(seed) is not int for seed in seeds):
        raise CogError(f"{path}: seeds is no list of whole numbers")
    for table in (objects["values"], *objects["per_seed"].values()):
        if not isinstance(table, dict) or any(n is not None and number(n) is None for n in table.values()):
            raise CogError(f"{path}: values must be finite numbers or null")
        if odd := [key for key in table if not constants.is_plain_name(key)]:
            raise CogError(f"{path} has a value named {odd[0][:40]!r}, expected letters, digits and ._+-")
    return AnalysisRecord(
        analysis=name,
        model=text(data.get("model")),
        dataset=text(data.get("dataset")),
        seeds=seeds,
        device=text(data.get("device")) or "",
        seconds=number(data.get("seconds")) or 0.0,
        finished=text(data.get("finished")) or "",
        folder=folder,
        **objects,
    )


def rows(record: AnalysisRecord) -> list[dict[str, Any]]:
    """Return the headline numbers of an analysis as rows of :mod:`cog.results.frame`, without undefined ones.

    The deviation is the population standard deviation over the repetitions, whose range is in two rows more,
    ``<metric>_min`` and ``<metric>_max``. The number itself need not be their mean (k-means: the best
    repetition).
    """
    if not record.model or not record.dataset:
        return []
    folder = None if record.folder is None else str(record.folder)
    common = {
        "source": "runs",
        "model": record.model,
        "dataset": record.dataset,
        "n_shot": 0,
        "folder": folder,
    }
    made = []
    for metric, stated in record.values.items():
        if (value := number(stated)) is None:
            continue
        seeds = [number(record.per_seed.get(str(seed), {}).get(metric)) for seed in sorted(set(record.seeds))]
        known = [of_seed for of_seed in seeds if of_seed is not None]
        numbers = [(metric, value, statistics.pstdev(known) if len(known) > 1 else None)]
        if len(known) > 1:
            numbers += [(f"{metric}_min", min(known), None), (f"{metric}_max", max(known), None)]
        names = ("metric", "value", "std")
        made += [
            {**common, "evaluation": record.analysis, **dict(zip(names, row, strict=True))} for row in numbers
        ]
    return made
