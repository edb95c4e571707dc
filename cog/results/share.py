"""Results of many models in one file to share: ``print_results.py --export`` and ``--import``.

The file is JSON, UTF-8: ``format``, ``version``, ``toolkit``, ``written`` (ISO 8601), ``label`` (name of the
origin in tables; null: the name of the file), and ``rows``, those of :mod:`cog.results.frame`, one on each
line. What is missing is left out::

    {"model": "sup_resnet50", "dataset": "cog_l1", "evaluation": "logreg", "n_shot": 0, "metric": "top1",
     "seed": 22,            or none, and "std": 0.1 of a mean over seeds
     "value": 67.2, "images": 50000, "data": "benchmark", "classes": "9d2a...", "protocol": "n_epochs 10",
     "features": "4b7e11c09a3d", "pretraining": "IN-1K",
     "source": "paper v2",  if different from the label of the file
     "correct": {           of a top-1 accuracy, as in results.json (cog.results.concept_counts)
       "n_classes": 1000, "correct_per_class": "MC4w...", "images_per_class": 50,
       "image_list": "5e1f..."}}  SHA-256 for the test images

The accuracies in a file cannot be verified: tables show its label beside each of them. A file cannot claim to
contain runs found on disk, or published numbers other than the true ones.
"""

import functools
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

import cog
from cog import constants
from cog.errors import CogError, printable
from cog.paths import require_file
from cog.results import concept_counts, published
from cog.results.frame import BENCHMARK, PLACE, RUNS, SCORES, UNKNOWN, is_classifier, scores_of
from cog.results.records import number, sha256, whole
from cog.runtime import files
from cog.runtime.log import now

FORMAT, VERSION = "imagenet-cog results", 1

# In bytes: a row takes 300, and 1.4 kB more with the right answers for 1,000 concepts.
_LARGEST = 1 << 28

_PAPERS = tuple(published.SOURCES.values())


class _Invalid(Exception):
    """A fault of a row."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 300 and value.isprintable()


def _is_label(value: Any) -> bool:
    return _is_text(value) and 0 < len(value) <= 80 and value.strip() == value and value != RUNS


#: Entries of a row, and whether a value of each is possible.
_ROW: dict[str, Callable[[Any], bool]] = {
    "source": _is_label,
    "model": lambda value: _is_text(value) and constants.is_model_name(value),
    **dict.fromkeys(
        ("dataset", "evaluation", "metric", "features"),
        lambda value: _is_text(value) and constants.is_plain_name(value),
    ),
    **dict.fromkeys(("n_shot", "seed", "images"), lambda value: whole(value) is not None),
    "value": lambda value: number(value) is not None,
    "std": lambda value: number(value) is not None and value >= 0,
    "correct": lambda value: isinstance(value, dict),
    **dict.fromkeys(("data", "protocol"), _is_text),
    "classes": lambda value: sha256(value) is not None,
    "pretraining": lambda value: value in constants.PRETRAINING,
}
_WRITTEN = [name for name in SCORES if name in _ROW]


def write(path: str | os.PathLike[str], scores: pd.DataFrame, *, label: str | None = None) -> None:
    """Write scores of any sources to a file, or nothing and a CogError if :func:`load` would refuse a row.

    ``label`` is the source of the runs found on disk when the file is read; None: the name of the file then.
    """
    lines = []
    for row in scores[_WRITTEN].to_dict("records"):
        counts = row.pop("correct")
        entry = {name: v for name, v in row.items() if not pd.isna(v) and (name, v) != ("protocol", "")}
        entry |= {name: int(entry[name]) for name in ("n_shot", "seed", "images") if name in entry}
        if entry["source"] == RUNS:
            del entry["source"]
        if counts is not None:
            written = concept_counts.write(counts.correct, counts.images_of_each)
            listed = {"image_list": counts.image_list} if sha256(counts.image_list) else {}
            entry["correct"] = {"n_classes": len(counts.correct), **written, **listed}
        try:
            _read_row(entry, label="?")
        except _Invalid as error:
            raise CogError(f"cannot export {_describe(entry)}: {error}") from None
        lines.append("    " + json.dumps(entry))
    head = {"format": FORMAT, "version": VERSION, "toolkit": cog.__version__, "written": now()}
    text = json.dumps(head | {"label": label}, indent=2).removesuffix("\n}")
    files.write_text(path, f'{text},\n  "rows": [\n' + ",\n".join(lines) + "\n  ]\n}\n")


def load(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Return the rows of a file, after checks; ``source`` is that of the row, of the file, or its name."""
    path = require_file(path, "--import")
    content = files.read_object(path, largest=_LARGEST)
    if (content.get("format"), content.get("version")) != (FORMAT, VERSION):
        expected = f'expected "format": "{FORMAT}", "version": {VERSION}'
        raise CogError(f"--import {path} is not a file of --export ({expected})")
    label, rows = content.get("label"), content.get("rows")
    label = printable(path.stem) if label is None else label
    if not _is_label(label) or label in _PAPERS or not isinstance(rows, list) or not rows:
        wrong = f"label is {json.dumps(label)[:60]} ({RUNS!r} and the papers' names are reserved)"
        raise CogError(f"--import {path}: {wrong}, or there are no rows")
    made = []
    for index, row in enumerate(rows):
        try:
            made.append(_read_row(row, label=label))
        except _Invalid as error:
            raise CogError(f"--import {path}: rows[{index}]: {error}") from None
    frame = scores_of(made)
    if (twice := frame.duplicated([*PLACE, "seed"])).any():
        index = int(twice.argmax())
        raise CogError(f"--import {path}: rows[{index}]: a second {_describe(made[index])}")
    return frame


def _describe(row: Mapping[str, Any]) -> str:
    model, seed = row["model"] or "runs without a model name", row.get("seed")
    words = f"{row['evaluation']} {row['metric']} of {model} on {row['dataset']}"
    return f"{words} (n_shot {row['n_shot']}{'' if seed is None else f', seed {seed}'})"


@functools.cache
def _genuine() -> dict[tuple[Any, ...], tuple[float, float | None]]:
    rows = (row for version in published.SOURCES for row in published.rows(version))
    return {tuple(row[name] for name in PLACE): (row["value"], row["std"]) for row in rows}


def _read_row(row: Any, *, label: str) -> dict[str, Any]:
    """Return the row of a frame after checks; ``label`` is the source of a row without one."""
    if not isinstance(row, dict) or not row.keys() >= {*PLACE[1:], "value"}:
        raise _Invalid(f"found {json.dumps(row)[:60]}, expected an object with {', '.join(PLACE[1:])}, value")
    for key, value in row.items():
        if key not in _ROW or not _ROW[key](value):
            raise _Invalid(f"{json.dumps(key)[:60]}: {json.dumps(value)[:60]} is not possible")
    read = {"source": label, "data": UNKNOWN, "protocol": "", **row, "correct": None}
    is_accuracy = is_classifier(read["evaluation"]) and read["metric"] in ("top1", "top5")
    if is_accuracy and not -1e-3 <= read["value"] <= 100.001:
        raise _Invalid(f"value is {read['value']}, expected a percentage")
    if "std" in row and "seed" in row:
        raise _Invalid("std beside a seed: the deviation is that of a mean over seeds")
    known = _genuine().get(tuple(read[name] for name in PLACE))
    if read["source"] in _PAPERS and (known != (read["value"], row.get("std")) or "seed" in row):
        raise _Invalid(f"{_describe(read)} is not the published number of {read['source']!r}")
    if "correct" in row:
        stated, top1 = row["correct"], read["value"]
        n_classes, images = whole(stated.get("n_classes")), sha256(stated.get("image_list"))
        if read["metric"] != "top1" or (read["data"] == BENCHMARK and n_classes != 1000):
            raise _Invalid(f"correct has {n_classes} classes of {read['metric']}, data is {read['data']!r}")
        try:
            read["correct"] = concept_counts.read(stated, n_classes=n_classes, top1=top1, image_list=images)
        except ValueError as error:
            raise _Invalid(f"correct is wrong: {error}") from None
    return read
