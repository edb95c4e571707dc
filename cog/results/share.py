"""Results of many models in one file to share and merge: ``print_results.py --export`` and ``--import``.

The file is JSON, UTF-8: the long table of :mod:`cog.results.frame` with a row on each line, without folders.
What is missing is left out::

    {
      "format": "imagenet-cog results",
      "version": 1,
      "label": "our lab",       name of the origin in tables; null: the name of the file
      "toolkit": "0.1.0",       version of the toolkit that wrote the file
      "written": "2026-01-01T00:00:00+00:00",
      "rows": [
        {"model": "sup_resnet50", "dataset": "cog_l1", "evaluation": "logreg", "n_shot": 0, "metric": "top1",
         "seed": 22,            or none, and "std": 0.1 of a mean over seeds
         "value": 67.2, "images": 50000, "data": "benchmark", "classes": "9d2a...", "protocol": "n_epochs 10",
         "features": "4b7e11c09a3d", "pretraining": "IN-1K",
         "source": "paper v2",  if different from the label of the file
         "correct": {           of a top-1 accuracy, as in results.json (cog.results.concept_counts)
           "n_classes": 1000, "correct_per_class": "MC4w...", "images_per_class": 50,
           "image_list": "5e1f..."}}  SHA-256 of the list of test images
      ]
    }

No number occurs twice, and other keys are errors (a later form has another version). Numbers have all their
digits. The accuracies in a file cannot be verified: tables show its label beside each of them. A file cannot
claim to contain runs found on disk, or published numbers other than the true ones.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

import cog
from cog import constants
from cog.errors import CogError
from cog.models.spec import PRETRAINING
from cog.results import concept_counts, published
from cog.results.concept_counts import ConceptCounts
from cog.results.fields import number, sha256, whole
from cog.results.frame import BENCHMARK, PLACE, RUNS, SCORES, UNKNOWN, is_classifier, scores_of
from cog.runtime import files
from cog.runtime.log import now

FORMAT, VERSION = "imagenet-cog results", 1

# A row takes 300 bytes, and 1.4 kB more with the right answers for 1,000 concepts.
_LARGEST = 1 << 28

# The squares of smaller numbers are finite.
_TOO_LARGE = 1e100


class _Invalid(Exception):
    """An error in a file; its message names the fault and its place."""


# --- checks of single entries

_PAPERS = tuple(published.SOURCES.values())


def _is_label(value: Any) -> bool:
    fine = isinstance(value, str) and value.strip() == value and value.isprintable() and value != RUNS
    return fine and 0 < len(value) <= 80


def _is_number(value: Any) -> bool:
    return number(value) is not None and abs(value) < _TOO_LARGE


def _is_whole(value: Any) -> bool:
    return whole(value) is not None and value < 1 << 63


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 255 and constants.is_plain_name(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 300 and value.isprintable()


#: Check of the value of an entry, and what is expected, by key.
Checks = Mapping[str, tuple[Callable[[Any], bool], str]]

_LABEL = (
    f"1 to 80 printable characters without spaces around them; {RUNS!r} and the papers' names are reserved"
)
_TEXT = (_is_text, "a text of at most 300 characters")
_WHOLE = (_is_whole, "a whole number")
_NAME = (_is_name, "a name of letters, digits and ._+-")
_DIGEST = (lambda value: sha256(value) is not None, "a SHA-256 digest")

_HEAD: Checks = {
    "format": (lambda value: value == FORMAT, FORMAT),
    "version": (lambda value: value == VERSION, str(VERSION)),
    "label": (lambda value: value is None or (_is_label(value) and value not in _PAPERS), _LABEL),
    "toolkit": (lambda value: True, ""),
    "written": (lambda value: True, ""),
    "rows": (lambda value: isinstance(value, list) and bool(value), "a list with anything in it"),
}
_ROW: Checks = {
    "source": (_is_label, _LABEL),
    "model": (lambda v: _is_name(v) and constants.is_model_name(v), "<model_title>_<architecture_name>"),
    **dict.fromkeys(("dataset", "evaluation", "metric"), _NAME),
    **dict.fromkeys(("n_shot", "seed", "images"), _WHOLE),
    "value": (_is_number, "a number"),
    "std": (lambda value: _is_number(value) and value >= 0, "a deviation"),
    "correct": (lambda value: isinstance(value, dict), "an object"),
    **dict.fromkeys(("data", "protocol"), _TEXT),
    "classes": _DIGEST,
    "features": (lambda v: isinstance(v, str) and re.fullmatch("[0-9a-f]{1,64}", v) is not None, "a digest"),
    "pretraining": (lambda value: value in PRETRAINING, ", ".join(PRETRAINING)),
}
_CORRECT: Checks = {
    "n_classes": _WHOLE,
    **dict.fromkeys((concept_counts.CORRECT, concept_counts.IMAGES), (lambda value: True, "")),
    "image_list": _DIGEST,
}
_WRITTEN = [name for name in SCORES if name in _ROW]


def _check(value: Any, checks: Checks, needed: Sequence[str], path: str = "") -> None:
    if not isinstance(value, dict):
        raise _Invalid(f"found {json.dumps(value)[:60]}, expected an object")
    if unknown := [key for key in value if key not in checks]:
        raise _Invalid(f"{path}unknown entry {json.dumps(unknown[0])[:60]}")
    if absent := [key for key in needed if key not in value]:
        raise _Invalid(f"{path}no entry {absent[0]!r}")
    for key, one in value.items():
        is_fine, expected = checks[key]
        if not is_fine(one):
            raise _Invalid(f"{path}{key} is {json.dumps(one)[:60]}, expected {expected}")


# --- writing


def write(path: str | os.PathLike[str], scores: pd.DataFrame, *, label: str | None = None) -> None:
    """Write scores of any sources to a file, whole or not at all.

    ``label`` is the source of the runs found on disk when the file is read; None: the name of the file then.

    Raises:
        CogError: the file cannot be written, or :func:`load` would refuse a row.
    """
    lines = []
    for row in scores[_WRITTEN].itertuples(index=False):
        entry = _entry(row._asdict())
        try:
            _read_row(entry, label="?")
        except _Invalid as error:
            raise CogError(f"cannot export {_describe(entry)}: {error}") from None
        lines.append("    " + json.dumps(entry))
    head = dict(zip(_HEAD, (FORMAT, VERSION, label, cog.__version__, now()), strict=False))
    text = json.dumps(head, indent=2).removesuffix("\n}")
    files.write_text(path, f'{text},\n  "rows": [\n' + ",\n".join(lines) + "\n  ]\n}\n")


def _entry(row: dict[str, Any]) -> dict[str, Any]:
    counts = row.pop("correct")
    entry = {
        name: value for name, value in row.items() if not pd.isna(value) and (name, value) != ("protocol", "")
    }
    entry |= {name: int(entry[name]) for name in ("n_shot", "seed", "images") if name in entry}
    if entry.get("source") == RUNS:
        del entry["source"]
    if counts is not None:
        written = concept_counts.write(counts.correct, counts.images_of_each)
        entry["correct"] = {"n_classes": len(counts.correct), **written}
        if sha256(counts.image_list):
            entry["correct"]["image_list"] = counts.image_list
    return entry


# --- reading


def load(path: str | os.PathLike[str], *, flag: str = "--import") -> pd.DataFrame:
    """Return the rows of a file, after checks.

    ``source`` is that of the row, else the label or the name of the file. Messages name the ``flag``.

    Raises:
        CogError: the file cannot be read, has another form, or contains impossible results.
    """
    path = files.require_file(path, flag)
    content = files.read_object(path, largest=_LARGEST)
    try:
        return scores_of(_read_file(content, name=path.stem))
    except _Invalid as error:
        raise CogError(f"{flag} {path}: {error}") from None


def merge(frames: Sequence[pd.DataFrame], names: Sequence[object] = ()) -> pd.DataFrame:
    """Return the rows of several files together; equal rows of several files are one.

    ``names`` are those of the files, for messages.

    Raises:
        CogError: two files disagree on a number of the same source.
    """
    together, place = pd.concat(frames, ignore_index=True), [*PLACE, "seed"]
    apart = together.drop_duplicates([name for name in _WRITTEN if name != "correct"])
    if (twice := apart.duplicated(place)).any():
        row = apart[twice].iloc[0].to_dict()
        raise CogError(
            f"{' and '.join(map(str, names))} have different numbers of {_describe(row)} under the same "
            f"label {row['source']!r}; change the entry 'label' of one of them"
        )
    return together.drop_duplicates(place, ignore_index=True)


def _describe(row: Mapping[str, Any]) -> str:
    seed, model = row.get("seed"), row["model"] or "runs without a model name"
    words = f"{row['evaluation']} {row['metric']} of {model} on {row['dataset']}"
    return f"{words} (n_shot {row['n_shot']}{'' if pd.isna(seed) else f', seed {seed}'})"


def _read_file(content: Any, *, name: str) -> list[dict[str, Any]]:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _Invalid(f'not a file of --export (expected an object with "format": "{FORMAT}")')
    _check(content, _HEAD, ("version", "label", "rows"))
    label = content["label"]
    if label is None:
        label = "".join(character if character.isprintable() else "?" for character in name)[:80].strip()
        label = label if _is_label(label) and label not in _PAPERS else "imported"
    genuine = {_number_of(row) for version in published.SOURCES for row in published.rows(version)}
    first: dict[tuple[Any, ...], int] = {}
    made = []
    for index, row in enumerate(content["rows"]):
        try:
            read = _read_row(row, label=label)
            *place, _, _ = _number_of(read)
            if first.setdefault(tuple(place), index) != index:
                raise _Invalid(f"a second {_describe(read)}; the first is rows[{first[tuple(place)]}]")
            if read["source"] in _PAPERS and _number_of(read) not in genuine:
                raise _Invalid(f"{_describe(read)} is not the published number of {read['source']!r}")
        except _Invalid as error:
            raise _Invalid(f"rows[{index}]: {error}") from None
        made.append(read)
    return made


def _number_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return (*(row[name] for name in PLACE), row.get("seed"), row["value"], row.get("std"))


def _read_row(row: Any, *, label: str) -> dict[str, Any]:
    """Return the row of a frame after checks; ``label`` is the source of a row without one."""
    _check(row, _ROW, ("model", "dataset", "evaluation", "n_shot", "metric", "value"))
    read = {"source": label, "data": UNKNOWN, "protocol": "", **row}
    is_accuracy = is_classifier(read["evaluation"]) and read["metric"] in ("top1", "top5")
    if is_accuracy and not -1e-3 <= read["value"] <= 100.001:
        raise _Invalid(f"value is {read['value']}, expected a percentage")
    if "std" in row and "seed" in row:
        raise _Invalid("std beside a seed: the deviation is that of a mean over seeds")
    counts = None if "correct" not in row else _read_counts(row["correct"], read)
    if read["data"] == BENCHMARK and counts is not None and len(counts.correct) != 1000:
        raise _Invalid(f"data is 'benchmark', and correct has {len(counts.correct)} classes")
    return {**read, "correct": counts}


def _read_counts(stated: dict[str, Any], row: dict[str, Any]) -> ConceptCounts | None:
    _check(stated, _CORRECT, ("n_classes", concept_counts.CORRECT, concept_counts.IMAGES), "correct.")
    if row["metric"] != "top1":
        raise _Invalid(f"correct beside {row['metric']}: only top-1 accuracies have it")
    image_list = stated.get("image_list")
    try:
        return concept_counts.read(
            stated, n_classes=stated["n_classes"], top1=row["value"], image_list=image_list
        )
    except ValueError as error:
        raise _Invalid(f"correct is wrong: {error}") from None
