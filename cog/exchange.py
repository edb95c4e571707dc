"""Results of many models as one small file, to be shared and merged: ``print_results.py --export`` and ``--import``.

The file is JSON, UTF-8, version 1 of this form::

    {
      "format": "imagenet-cog results",
      "version": 1,
      "label": "our lab",                     names the origin in tables; the reader takes the file's name if null
      "toolkit": "0.1.0",                     version that wrote it
      "written": "2026-01-01T00:00:00+00:00",
      "cells": [
        {
          "model": "sup_resnet50",            <title>_<architecture>
          "dataset": "cog_l1",
          "n_shot": 0,                        training images per class, 0 = all
          "source": null,                     origin when it is not the file's label, such as "paper v2"
          "top1": {"mean": 67.3, "std": 0.1}, percent; population standard deviation over seeds, null if not known
          "top5": null,                       null: not known
          "seeds": [22, 37],                  ascending; [] where only mean and deviation are known
          "missing_seeds": [45],              expected but absent
          "epochs": [100, 100],               of each seed; or []
          "top1_by_seed": [67.2, 67.4],       percent, of each seed; or [] - needed for paired comparisons
          "top5_by_seed": []
        }
      ]
    }

With numbers of other experiments the version is 2, and there is one list more (``cells`` may then be empty)::

      "measures": [
        {
          "model": "sup_resnet50",
          "dataset": "cog_l1",
          "experiment": "kmeans",             name of the analysis, or of the evaluation (logreg_pca256; accuracies
                                              of logreg itself are cells)
          "quantity": "ami",                  which of its numbers
          "n_shot": 0,                        training images per class of a classifier, 0 = all
          "source": null,
          "value": 0.53,                      in the unit of the quantity
          "std": 0.01,                        population standard deviation over seeds, null if there is none
          "seeds": [0, 1, 2],
          "missing_seeds": [],
          "by_seed": [0.53, 0.52, 0.54]       or []
        }
      ]

All entries of a cell or measure are there, in any order; no others are allowed (a later form has another version).
Numbers are written with all their digits, so that what is read equals what was written. Means (of accuracies of
classifiers) and deviations must follow from the values of the seeds where these are given. A file is read as what
it is, somebody's word: it can claim any accuracy, and tables name its label beside every number from it. It cannot
claim to be a run found on disk, nor a published number that differs from the published one.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import cog
from cog import files, measures, names, published
from cog.cells import RUNS, Cell, Score
from cog.errors import CogError
from cog.measures import Measure
from cog.record import now
from cog.run_reader import is_percentage

FORMAT = "imagenet-cog results"
VERSION = 1
VERSION_WITH_MEASURES = 2

# A cell of five seeds takes 600 bytes, a measure 300.
_LARGEST = 1 << 26
_MOST_CELLS = 200_000
_MOST_MEASURES = 400_000
_MOST_SEEDS = 1000
_LONGEST_LABEL = 80

_FILE_KEYS = {"format", "version", "label", "toolkit", "written", "cells"}
_CELL_KEYS = (
    "model",
    "dataset",
    "n_shot",
    "source",
    "top1",
    "top5",
    "seeds",
    "missing_seeds",
    "epochs",
    "top1_by_seed",
    "top5_by_seed",
)
_MEASURE_KEYS = (
    "model",
    "dataset",
    "experiment",
    "quantity",
    "n_shot",
    "source",
    "value",
    "std",
    "seeds",
    "missing_seeds",
    "by_seed",
)


@dataclass(frozen=True)
class Content:
    """What is in a results file, in its order."""

    cells: list[Cell]
    measures: list[Measure]


def check_label(label: str) -> str:
    """Return ``label`` when it can name the origin of results.

    Raises:
        ValueError: with what is expected, otherwise.
    """
    if not (label.strip() == label and label.isprintable() and 0 < len(label) <= _LONGEST_LABEL):
        raise ValueError(f"expected 1 to {_LONGEST_LABEL} printable characters without spaces around them")
    if label == RUNS:
        raise ValueError(f"{RUNS!r} is reserved for runs found on disk")
    return label


def dump(cells: Iterable[Cell], *, label: str | None = None, other_measures: Iterable[Measure] = ()) -> str:
    """Return the content of a results file.

    Args:
        cells: of any sources; those of runs found on disk get the label of the file when they are read.
        label: origin of the runs; None: the reader takes the file's name.
        other_measures: numbers of other experiments, likewise; without any, readers of version 1 can read the file.

    Raises:
        CogError: when a cell has a name that no reader would accept.
    """
    lines = []
    for cell in cells:
        values = _as_dict(cell)
        try:
            _cell(values, where="", default_source="?")
        except _Invalid as error:
            raise CogError(
                f"cannot export {cell.model or 'runs without a model name'}, {cell.dataset}: {error}"
            ) from None
        lines.append("    " + json.dumps(values))
    more = []
    for measure in other_measures:
        values = _measure_as_dict(measure)
        try:
            _measure(values, where="", default_source="?")
        except _Invalid as error:
            raise CogError(
                f"cannot export {measure.experiment} of {measure.model}, {measure.dataset}: {error}"
            ) from None
        more.append("    " + json.dumps(values))
    head = {
        "format": FORMAT,
        "version": VERSION_WITH_MEASURES if more else VERSION,
        "label": label,
        "toolkit": cog.__version__,
        "written": now(),
    }
    start = json.dumps(head, indent=2, ensure_ascii=True).removesuffix("\n}")
    parts = [start, f'  "cells": {_listed(lines)}']
    if more:
        parts.append(f'  "measures": {_listed(more)}')
    return ",\n".join(parts) + "\n}\n"


def _listed(lines: Sequence[str]) -> str:
    return "[\n" + ",\n".join(lines) + "\n  ]" if lines else "[]"


def _measure_as_dict(measure: Measure) -> dict[str, Any]:
    return {
        "model": measure.model,
        "dataset": measure.dataset,
        "experiment": measure.experiment,
        "quantity": measure.quantity,
        "n_shot": measure.n_shot,
        "source": None if measure.source == RUNS else measure.source,
        "value": measure.value,
        "std": measure.std,
        "seeds": list(measure.seeds),
        "missing_seeds": list(measure.missing_seeds),
        "by_seed": list(measure.by_seed),
    }


def _as_dict(cell: Cell) -> dict[str, Any]:
    return {
        "model": cell.model,
        "dataset": cell.dataset,
        "n_shot": cell.n_shot,
        "source": None if cell.source == RUNS else cell.source,
        "top1": _score_as_dict(cell.top1),
        "top5": None if cell.top5 is None else _score_as_dict(cell.top5),
        "seeds": list(cell.seeds),
        "missing_seeds": list(cell.missing_seeds),
        "epochs": list(cell.epochs),
        "top1_by_seed": list(cell.top1_by_seed),
        "top5_by_seed": list(cell.top5_by_seed),
    }


def _score_as_dict(score: Score) -> dict[str, float | None]:
    return {"mean": score.mean, "std": score.std}


def write(
    path: str | os.PathLike[str],
    cells: Iterable[Cell],
    *,
    label: str | None = None,
    other_measures: Iterable[Measure] = (),
) -> None:
    """Write a results file, whole or not at all; see :func:`dump`."""
    files.write_text(path, dump(cells, label=label, other_measures=other_measures))


def read(path: str | os.PathLike[str], *, flag: str = "--import") -> list[Cell]:
    """Return the cells of :func:`load`."""
    return load(path, flag=flag).cells


def load(path: str | os.PathLike[str], *, flag: str = "--import") -> Content:
    """Read and check a results file.

    Args:
        path: the file.
        flag: how the user gave it, for error messages.

    Returns:
        Its cells and measures; ``source`` is that of the cell, else the file's label, else the file's name without
        its ending.

    Raises:
        CogError: when it cannot be read, is not of this form, or holds what no results can be.
    """
    where = f"{flag} {path}"
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise CogError(f"{where} is not a regular file")
    path = files.require_file(path, flag)
    try:
        found = os.stat(path)
        if found.st_size > _LARGEST:
            raise CogError(f"{where} has {found.st_size} bytes, expected at most {_LARGEST}")
        content = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except OSError as error:
        raise CogError(f"cannot read {where}: {error.strerror or error}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        reason = str(error)[:200] or type(error).__name__
        raise CogError(f"{where} is not valid JSON ({reason}); expected a file of --export") from None
    try:
        return _file(content, name=path.stem)
    except _Invalid as error:
        raise CogError(f"{where}: {error}") from None


def merge(*groups: tuple[str, Sequence[Cell]]) -> list[Cell]:
    """Put cells of several files together.

    Args:
        groups: name of the file (for error messages) and its cells.

    Returns:
        All of them; those that are in several files and are the same, once.

    Raises:
        CogError: when two files disagree on a cell of the same model, data set, shots and source.
    """
    merged: dict[tuple[str, str, int, str], tuple[str, Cell]] = {}
    for name, cells in groups:
        for cell in cells:
            key = (cell.model, cell.dataset, cell.n_shot, cell.source)
            first, known = merged.setdefault(key, (name, cell))
            if known != cell:
                raise CogError(
                    f"{first} and {name} have different results of {cell.model} on {cell.dataset} (n_shot "
                    f"{cell.n_shot}) under the same label {cell.source!r}; change the entry 'label' of one of them"
                )
    return [cell for _, cell in merged.values()]


def merge_measures(*groups: tuple[str, Sequence[Measure]]) -> list[Measure]:
    """Put measures of several files together, as :func:`merge` does with cells.

    Raises:
        CogError: when two files disagree on the same number of the same source.
    """
    merged: dict[tuple[Any, ...], tuple[str, Measure]] = {}
    for name, found in groups:
        for measure in found:
            key = (measure.model, measure.dataset, measure.key, measure.source)
            first, known = merged.setdefault(key, (name, measure))
            if known != measure:
                raise CogError(
                    f"{first} and {name} have different numbers of {measure.experiment} {measure.quantity} of "
                    f"{measure.model} on {measure.dataset} under the same label {measure.source!r}; change the entry "
                    "'label' of one of them"
                )
    return [measure for _, measure in merged.values()]


class _Invalid(Exception):
    """What is wrong, and where in the file."""


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _file(content: Any, *, name: str) -> Content:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _Invalid(f'not a file of --export (expected an object with "format": "{FORMAT}")')
    version = content.get("version")
    if version not in (VERSION, VERSION_WITH_MEASURES) or type(version) is not int:
        raise _Invalid(
            f"version is {_short(version)}, expected {VERSION} or {VERSION_WITH_MEASURES}; read it with the toolkit "
            "that wrote it"
        )
    lists = {"cells"} if version == VERSION else {"cells", "measures"}
    _check_keys(content, _FILE_KEYS | lists, "the file", needed={"label"} | lists)
    label = content["label"]
    if label is None:
        label = "".join(character if character.isprintable() else "?" for character in name)[
            :_LONGEST_LABEL
        ].strip()
        label = label if label and label != RUNS and label not in published.SOURCES.values() else "imported"
    label = _label(label, "label")
    if label in published.SOURCES.values():
        raise _Invalid(f"label is {label!r}, which is reserved for published numbers")
    rows, more = content["cells"], content.get("measures", [])
    if not isinstance(rows, list) or not (rows or more):
        raise _Invalid("cells is not a list with anything in it")
    if len(rows) > _MOST_CELLS:
        raise _Invalid(f"{len(rows)} cells, expected at most {_MOST_CELLS}")
    if not isinstance(more, list) or len(more) > _MOST_MEASURES:
        raise _Invalid(f"measures is {_short(more)}, expected a list of at most {_MOST_MEASURES}")
    cells: list[Cell] = []
    seen: dict[tuple[str, str, int, str], int] = {}
    for index, row in enumerate(rows):
        cell = _cell(row, where=f"cells[{index}]", default_source=label)
        key = (cell.model, cell.dataset, cell.n_shot, cell.source)
        if key in seen:
            raise _Invalid(
                f"cells[{index}] and cells[{seen[key]}] are both {cell.model} on {cell.dataset} (n_shot {cell.n_shot})"
            )
        seen[key] = index
        cells.append(cell)
    _check_published(cells)
    found: dict[tuple[Any, ...], Measure] = {}
    for index, row in enumerate(more):
        measure = _measure(row, where=f"measures[{index}]", default_source=label)
        if (
            found.setdefault((measure.model, measure.dataset, measure.key, measure.source), measure)
            is not measure
        ):
            raise _Invalid(
                f"measures[{index}] is a second {measure.experiment} {measure.quantity} of {measure.model} on "
                f"{measure.dataset}"
            )
    _check_published_measures(found.values())
    return Content(cells, list(found.values()))


def _check_published_measures(claimed: Iterable[Measure]) -> None:
    genuine: dict[str, set[Measure]] = {}
    for measure in claimed:
        for version, source in published.SOURCES.items():
            if measure.source != source:
                continue
            if version not in genuine:
                genuine[version] = set(measures.of_paper(version))
            if measure not in genuine[version]:
                raise _Invalid(
                    f"{measure.experiment} {measure.quantity} of {measure.model} on {measure.dataset} is labelled "
                    f"{source!r} but is not the published number"
                )


def _check_published(cells: Sequence[Cell]) -> None:
    """Refuse what poses as a published number; the label alone would be believed."""
    for version, source in published.SOURCES.items():
        claimed = [cell for cell in cells if cell.source == source]
        if claimed:
            genuine = {(cell.model, cell.dataset, cell.n_shot): cell for cell in published.cells(version)}
            for cell in claimed:
                if genuine.get((cell.model, cell.dataset, cell.n_shot)) != cell:
                    raise _Invalid(
                        f"{cell.model} on {cell.dataset} (n_shot {cell.n_shot}) is labelled {source!r} but is not "
                        "the published number"
                    )


def _place(row: Any, keys: Sequence[str], *, where: str) -> tuple[str, str, str]:
    """Check the entries of an object, and return its model and data set, and how to name its entries."""
    if not isinstance(row, dict):
        raise _Invalid(f"{where} is {_short(row)}, expected an object")
    _check_keys(row, keys, where, needed=set(keys))
    dot = f"{where}." if where else ""
    model, dataset = row["model"], row["dataset"]
    if not (isinstance(model, str) and len(model) <= 255 and names.is_model_name(model)):
        raise _Invalid(f"{dot}model is {_short(model)}, expected <model_title>_<architecture_name>")
    if not (isinstance(dataset, str) and len(dataset) <= 255 and names.is_plain_name(dataset)):
        raise _Invalid(f"{dot}dataset is {_short(dataset)}, expected a data set name such as in1k")
    return model, dataset, dot


def _seeds(row: dict[str, Any], dot: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    seeds = _wholes(row["seeds"], f"{dot}seeds")
    missing = _wholes(row["missing_seeds"], f"{dot}missing_seeds")
    for name, values in (("seeds", seeds), ("missing_seeds", missing)):
        if list(values) != sorted(set(values)):
            raise _Invalid(f"{dot}{name} is not in ascending order, or has a seed twice")
    if set(seeds) & set(missing):
        raise _Invalid(f"{dot}missing_seeds names a seed that is there")
    return seeds, missing


def _measure(row: Any, *, where: str, default_source: str) -> Measure:
    model, dataset, dot = _place(row, _MEASURE_KEYS, where=where)
    for key in ("experiment", "quantity"):
        if not (isinstance(row[key], str) and len(row[key]) <= 255 and names.is_plain_name(row[key])):
            raise _Invalid(f"{dot}{key} is {_short(row[key])}, expected a name of letters, digits and ._+-")
    seeds, missing = _seeds(row, dot)
    std = None if row["std"] is None else _number(row["std"], f"{dot}std")
    if std is not None and std < 0:
        raise _Invalid(f"{dot}std is {_short(row['std'])}, expected a deviation")
    is_accuracy = measures.is_classifier(row["experiment"]) and row["quantity"] in ("top1", "top5")
    if is_accuracy and row["experiment"] == measures.LOGREG:
        raise _Invalid(
            f"{where or 'the measure'} is an accuracy of logistic regression, expected among cells"
        )
    value = (_percentage if is_accuracy else _number)(row["value"], f"{dot}value")
    by_seed = row["by_seed"]
    if not isinstance(by_seed, list) or len(by_seed) not in (0, len(seeds)):
        raise _Invalid(f"{dot}by_seed is {_short(by_seed)}, expected a number for each seed, or none")
    values = tuple(_number(item, f"{dot}by_seed[{index}]") for index, item in enumerate(by_seed))
    if std is not None and len(values) > 1:
        found = statistics.pstdev(values)
        if not math.isclose(std, found, rel_tol=1e-6, abs_tol=1e-6):
            raise _Invalid(f"{dot}by_seed does not have the population standard deviation that is given")
    # The value of an analysis need not be the mean: of k-means it is that of the best seed.
    if is_accuracy and values and not math.isclose(value, statistics.fmean(values), abs_tol=1e-6, rel_tol=0):
        raise _Invalid(f"{dot}by_seed does not have the mean that is given")
    return Measure(
        model=model,
        dataset=dataset,
        experiment=row["experiment"],
        quantity=row["quantity"],
        n_shot=_whole(row["n_shot"], f"{dot}n_shot"),
        value=value,
        std=std,
        seeds=seeds,
        missing_seeds=missing,
        by_seed=values,
        source=default_source if row["source"] is None else _label(row["source"], f"{dot}source"),
    )


def _cell(row: Any, *, where: str, default_source: str) -> Cell:
    model, dataset, dot = _place(row, _CELL_KEYS, where=where)
    n_shot = _whole(row["n_shot"], f"{dot}n_shot")
    epochs = _wholes(row["epochs"], f"{dot}epochs")
    seeds, missing = _seeds(row, dot)
    if epochs and (len(epochs) != len(seeds) or 0 in epochs):
        raise _Invalid(
            f"{dot}epochs has {len(epochs)} values, expected a positive one for each of {len(seeds)} seeds"
        )
    top1 = _score(row["top1"], f"{dot}top1")
    top5 = None if row["top5"] is None else _score(row["top5"], f"{dot}top5")
    by_seed = {}
    for metric, score in (("top1", top1), ("top5", top5)):
        by_seed[metric] = _by_seed(row[f"{metric}_by_seed"], score, len(seeds), f"{dot}{metric}_by_seed")
    return Cell(
        model=model,
        dataset=dataset,
        n_shot=n_shot,
        top1=top1,
        top5=top5,
        seeds=seeds,
        missing_seeds=missing,
        epochs=epochs,
        source=default_source if row["source"] is None else _label(row["source"], f"{dot}source"),
        top1_by_seed=by_seed["top1"],
        top5_by_seed=by_seed["top5"],
    )


def _check_keys(value: dict[str, Any], allowed: Iterable[str], where: str, *, needed: set[str]) -> None:
    unknown = [key for key in value if key not in set(allowed)]
    if unknown:
        raise _Invalid(f"{where or 'the cell'} has the unknown entry {_short(unknown[0])}")
    absent = sorted(needed - value.keys())
    if absent:
        raise _Invalid(f"{where or 'the cell'} has no entry {absent[0]!r}")


def _label(value: Any, where: str) -> str:
    try:
        if not isinstance(value, str):
            raise ValueError("expected text")
        return check_label(value)
    except ValueError as error:
        raise _Invalid(f"{where} is {_short(value)}: {error}") from None


def _score(value: Any, where: str) -> Score:
    if not isinstance(value, dict):
        raise _Invalid(f"{where} is {_short(value)}, expected an object with mean and std")
    _check_keys(value, ("mean", "std"), where, needed={"mean", "std"})
    std = value["std"]
    if std is not None:
        std = _number(std, f"{where}.std")
        if not 0 <= std <= 50.01:  # the most that percentages can deviate
            raise _Invalid(f"{where}.std is {_short(std)}, expected a deviation in percent")
    return Score(_percentage(value["mean"], f"{where}.mean"), std)


def _by_seed(value: Any, score: Score | None, n_seeds: int, where: str) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) not in (0, n_seeds):
        raise _Invalid(
            f"{where} is {_short(value)}, expected a list of as many numbers as there are seeds, or none"
        )
    values = tuple(_percentage(item, f"{where}[{index}]") for index, item in enumerate(value))
    if values:
        if score is None:
            raise _Invalid(f"{where} has values, but their mean is null")
        close = math.isclose(score.mean, statistics.fmean(values), abs_tol=1e-6, rel_tol=0) and (
            score.std is not None
            and math.isclose(score.std, statistics.pstdev(values), abs_tol=1e-6, rel_tol=0)
        )
        if not close:
            raise _Invalid(
                f"{where} does not have the mean and the population standard deviation that are given"
            )
    return values


def _percentage(value: Any, where: str) -> float:
    number = _number(value, where)
    if not is_percentage(number):
        raise _Invalid(f"{where} is {_short(value)}, expected a percentage")
    return number


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Invalid(f"{where} is {_short(value)}, expected a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _Invalid(f"{where} is {_short(value)}, expected a number")
    return number


def _whole(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise _Invalid(f"{where} is {_short(value)}, expected a whole number")
    return value


def _wholes(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MOST_SEEDS:
        raise _Invalid(f"{where} is {_short(value)}, expected a list of at most {_MOST_SEEDS} whole numbers")
    return tuple(_whole(item, f"{where}[{index}]") for index, item in enumerate(value))


def _short(value: Any) -> str:
    """Show a value of any size in a few characters."""
    if isinstance(value, dict | list):
        return f"a {'list' if isinstance(value, list) else 'object'} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return "a huge number"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
