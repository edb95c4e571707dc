"""Results of analyses: ``<dataset>/analysis_<name>/results.json``, one JSON object each.

::

    {"status": "complete", "analysis": "kmeans", "model": ..., "dataset": ...,
     "identity": {...},                settings and features; equal for two results of the same computation
     "values": {"ami": 0.53, ...},     headline numbers, flat; null where undefined
     "seeds": [0, 1, 2], "per_seed": {"0": {"ami": 0.52, ...}, ...},   of repetitions with randomness
     "details": {...},                 further information
     "versions": {...}, "device": "cpu", "seconds": 12.3, "finished": "2021-10-11T12:00:00+00:00"}

Bulky data (assignments, per-class tables) are files beside it. This module imports no torch.
"""

import os
import statistics
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from cog import constants
from cog.constants import RESULTS_FILE
from cog.errors import CogError
from cog.results.records import number
from cog.runtime import files

Number = float | int | None


@dataclass(frozen=True)
class AnalysisRecord:
    """The result of one analysis of one data set."""

    analysis: str  # name of the analysis, as in analysis_<name>
    model: str  # <model_title>_<architecture_name>
    dataset: str
    identity: dict[str, Any]
    values: dict[str, Number]
    seeds: list[int] = field(default_factory=list)
    per_seed: dict[str, dict[str, Number]] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str | None] = field(default_factory=dict)
    device: str = "cpu"
    seconds: float = 0.0
    finished: str = ""  # ISO 8601, UTC


def write(folder: str | os.PathLike[str], record: AnalysisRecord) -> None:
    """Write ``results.json`` atomically; numbers that are not finite become null."""
    files.write_json(Path(folder) / RESULTS_FILE, files.plain({"status": "complete", **vars(record)}))


def read(folder: str | os.PathLike[str]) -> AnalysisRecord:
    """Read the result in an ``analysis_<name>`` folder; without a readable one, a CogError names the file."""
    path = Path(folder) / RESULTS_FILE
    data = files.read_object(path)
    if data.get("status") != "complete":
        raise CogError(f"{path} has status {data.get('status')!r}, expected 'complete'")
    needed: dict[str, Any] = dict.fromkeys(("analysis", "model", "dataset")) | {"identity": {}, "values": {}}
    known = {one.name: data[one.name] for one in fields(AnalysisRecord) if one.name in data}
    record = AnalysisRecord(**needed | known)
    tables = [record.values, *(record.per_seed.values() if isinstance(record.per_seed, dict) else [None])]
    for table in tables:
        values = table.items() if isinstance(table, dict) else [("", "")]
        if odd := [name for name, n in values if n is not None and number(n) is None]:
            raise CogError(f"{path}: values and per_seed must be objects of finite numbers or null {odd[:1]}")
        if odd := [name for name, _ in values if not constants.is_plain_name(name)]:
            raise CogError(f"{path} has a value named {odd[0][:40]!r}, expected letters, digits and ._+-")
    return record


def rows(record: AnalysisRecord) -> list[dict[str, Any]]:
    """Return the headline numbers of an analysis as rows of :mod:`cog.results.frame`, without undefined ones.

    The deviation is the population standard deviation over the repetitions, whose range is in two rows more,
    ``<metric>_min`` and ``<metric>_max``. The number itself need not be their mean (k-means: the best one).
    """
    made: list[dict[str, Any]] = []
    for metric, value in record.values.items():
        known = [n for table in record.per_seed.values() if (n := number(table.get(metric))) is not None]
        numbers = {metric: value}
        if len(known) > 1:
            numbers |= {f"{metric}_min": min(known), f"{metric}_max": max(known)}
        for name, n in numbers.items() if value is not None else ():
            std = statistics.pstdev(known) if name == metric and len(known) > 1 else None
            made.append({"source": "runs", "n_shot": 0, "metric": name, "value": n, "std": std})
    return [{**row, "evaluation": record.analysis} for row in made]
