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
          "top5_by_seed": [],
          "counts": {                         numbers behind the runs, several where these disagree, [] where they do
            "classes": [1000],                not tell; they decide on comparisons with published numbers, and where
            "train_images": [1281167],        the whole entry is absent, tables call the results unverified
            "test_images": [50000]
          }
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

All entries of a cell (but for ``counts``) or measure are there, in any order; each once, and no others are allowed (a
later form has another version).
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
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import cog
from cog import constants
from cog.errors import CogError
from cog.results import published
from cog.results.run_records import is_percentage
from cog.results.scores import LOGREG, RUNS, Counts, SeedAverage, is_classifier, is_protocol, mean_std
from cog.runtime import files
from cog.runtime.provenance import now

_T = TypeVar("_T")

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
_COUNTS_KEYS = ("classes", "train_images", "test_images")
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


def dump(averages: Iterable[SeedAverage], *, label: str | None = None) -> str:
    """Return the content of a results file.

    Args:
        averages: of any sources; those of runs found on disk get the label of the file when they are read. With
            accuracies of logistic regression alone, readers of version 1 can read the file.
        label: origin of the runs; None: the reader takes the file's name.

    Raises:
        CogError: when an average has a name that no reader would accept, or a top-5 is there without its top-1.
    """
    cells: dict[tuple[Any, ...], dict[str, SeedAverage]] = {}
    more = []
    for average in averages:
        if is_protocol(average):
            place = (average.model, average.dataset, average.n_shot, average.source)
            cells.setdefault(place, {})[average.metric] = average
        else:
            what = f"{average.evaluation} of {average.model}, {average.dataset}"
            more.append(_checked(_measure_as_dict(average), _measure, what))
    lines = [
        _checked(_as_dict(pair), _cell, f"{place[0] or 'runs without a model name'}, {place[1]}")
        for place, pair in cells.items()
    ]
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


def _checked(values: dict[str, Any], check: Callable[..., Any], what: str) -> str:
    """Return the line of an entry once a reader would accept it."""
    try:
        check(values, where="", default_source="?")
    except _Invalid as error:
        raise CogError(f"cannot export {what}: {error}") from None
    return "    " + json.dumps(values)


def _listed(lines: Sequence[str]) -> str:
    return "[\n" + ",\n".join(lines) + "\n  ]" if lines else "[]"


def _measure_as_dict(average: SeedAverage) -> dict[str, Any]:
    return {
        "model": average.model,
        "dataset": average.dataset,
        "experiment": average.evaluation,
        "quantity": average.metric,
        "n_shot": average.n_shot,
        "source": None if average.source == RUNS else average.source,
        "value": average.value,
        "std": average.std,
        "seeds": list(average.seeds),
        "missing_seeds": list(average.missing_seeds),
        "by_seed": list(average.by_seed),
    }


def _as_dict(pair: dict[str, SeedAverage]) -> dict[str, Any]:
    top1, top5 = pair.get("top1"), pair.get("top5")
    one = top1 or top5
    assert one is not None
    counts = {key: list(getattr(one.counts, key)) for key in _COUNTS_KEYS}
    return {
        "model": one.model,
        "dataset": one.dataset,
        "n_shot": one.n_shot,
        "source": None if one.source == RUNS else one.source,
        "top1": None if top1 is None else {"mean": top1.value, "std": top1.std},
        "top5": None if top5 is None else {"mean": top5.value, "std": top5.std},
        "seeds": list(one.seeds),
        "missing_seeds": list(one.missing_seeds),
        "epochs": list(one.epochs),
        "top1_by_seed": [] if top1 is None else list(top1.by_seed),
        "top5_by_seed": [] if top5 is None else list(top5.by_seed),
        **({"counts": counts} if any(counts.values()) else {}),
    }


def write(path: str | os.PathLike[str], averages: Iterable[SeedAverage], *, label: str | None = None) -> None:
    """Write a results file, whole or not at all; see :func:`dump`."""
    files.write_text(path, dump(averages, label=label))


def load(path: str | os.PathLike[str], *, flag: str = "--import") -> list[SeedAverage]:
    """Read and check a results file.

    Args:
        path: the file.
        flag: how the user gave it, for error messages.

    Returns:
        Its averages, accuracies of logistic regression first; ``source`` is that of the entry, else the file's
        label, else the file's name without its ending.

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
        content = json.loads(
            path.read_bytes(), parse_constant=_refuse_constant, object_pairs_hook=_without_repetition
        )
    except OSError as error:
        raise CogError(f"cannot read {where}: {error.strerror or error}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        reason = str(error)[:200] or type(error).__name__
        raise CogError(f"{where} is not valid JSON ({reason}); expected a file of --export") from None
    try:
        return _file(content, name=path.stem)
    except _Invalid as error:
        raise CogError(f"{where}: {error}") from None


def merge(*groups: tuple[str, Sequence[SeedAverage]]) -> list[SeedAverage]:
    """Put averages of several files together.

    Args:
        groups: name of the file (for error messages) and its averages.

    Returns:
        All of them; those that are in several files and are the same, once.

    Raises:
        CogError: when two files disagree on the same number of the same source.
    """
    merged: dict[tuple[Any, ...], tuple[str, SeedAverage]] = {}
    for name, averages in groups:
        for one in averages:
            key = (one.model, one.dataset, one.key, one.source)
            first, known = merged.setdefault(key, (name, one))
            if known != one:
                raise CogError(
                    f"{first} and {name} have different {_what(one)} under the same label {one.source!r}; change the "
                    "entry 'label' of one of them"
                )
    return [one for _, one in merged.values()]


def _what(one: SeedAverage) -> str:
    """Say which number an average is."""
    if is_protocol(one):
        return f"results of {one.model} on {one.dataset} (n_shot {one.n_shot})"
    return f"numbers of {one.evaluation} {one.metric} of {one.model} on {one.dataset}"


class _Invalid(Exception):
    """What is wrong, and where in the file."""


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; of an entry that is there twice readers take the first or the last, as they like."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(
            f"an object has the entry {_short(next(k for k in keys if keys.count(k) > 1))} twice"
        )
    return found


def _file(content: Any, *, name: str) -> list[SeedAverage]:
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
    found: dict[tuple[Any, ...], SeedAverage] = {}
    places: dict[tuple[Any, ...], int] = {}
    for index, row in enumerate(rows):
        for average in _cell(row, where=f"cells[{index}]", default_source=label):
            key = (average.model, average.dataset, average.key, average.source)
            if places.setdefault(key, index) != index:
                raise _Invalid(
                    f"cells[{index}] and cells[{places[key]}] are both {average.model} on {average.dataset} (n_shot "
                    f"{average.n_shot})"
                )
            found[key] = average
    for index, row in enumerate(more):
        average = _measure(row, where=f"measures[{index}]", default_source=label)
        key = (average.model, average.dataset, average.key, average.source)
        if found.setdefault(key, average) is not average:
            raise _Invalid(
                f"measures[{index}] is a second {average.evaluation} {average.metric} of {average.model} on "
                f"{average.dataset}"
            )
    _check_published(found.values())
    return list(found.values())


def _check_published(averages: Iterable[SeedAverage]) -> None:
    """Refuse what poses as a published number; the label alone would be believed."""
    genuine: dict[str, set[SeedAverage]] = {}
    for one in averages:
        for version, source in published.SOURCES.items():
            if one.source != source:
                continue
            if version not in genuine:
                genuine[version] = set(published.averages(version))
            if one not in genuine[version]:
                what = f"{one.evaluation} {one.metric} of {one.model} on {one.dataset}"
                if is_protocol(one):
                    what = f"{one.model} on {one.dataset} (n_shot {one.n_shot})"
                raise _Invalid(f"{what} is labelled {source!r} but is not the published number")


def _place(
    row: Any, keys: Sequence[str], *, where: str, optional: Sequence[str] = ()
) -> tuple[str, str, str]:
    """Check the entries of an object, and return its model and data set, and how to name its entries."""
    if not isinstance(row, dict):
        raise _Invalid(f"{where} is {_short(row)}, expected an object")
    _check_keys(row, (*keys, *optional), where, needed=set(keys))
    dot = f"{where}." if where else ""
    model, dataset = row["model"], row["dataset"]
    if not (isinstance(model, str) and len(model) <= 255 and constants.is_model_name(model)):
        raise _Invalid(f"{dot}model is {_short(model)}, expected <model_title>_<architecture_name>")
    if not (isinstance(dataset, str) and len(dataset) <= 255 and constants.is_plain_name(dataset)):
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


def _measure(row: Any, *, where: str, default_source: str) -> SeedAverage:
    model, dataset, dot = _place(row, _MEASURE_KEYS, where=where)
    for key in ("experiment", "quantity"):
        if not (isinstance(row[key], str) and len(row[key]) <= 255 and constants.is_plain_name(row[key])):
            raise _Invalid(f"{dot}{key} is {_short(row[key])}, expected a name of letters, digits and ._+-")
    seeds, missing = _seeds(row, dot)
    std = None if row["std"] is None else _number(row["std"], f"{dot}std")
    if std is not None and std < 0:
        raise _Invalid(f"{dot}std is {_short(row['std'])}, expected a deviation")
    is_accuracy = is_classifier(row["experiment"]) and row["quantity"] in ("top1", "top5")
    if is_accuracy and row["experiment"] == LOGREG:
        raise _Invalid(
            f"{where or 'the measure'} is an accuracy of logistic regression, expected among cells"
        )
    value = (_percentage if is_accuracy else _number)(row["value"], f"{dot}value")
    by_seed = row["by_seed"]
    if not isinstance(by_seed, list) or len(by_seed) not in (0, len(seeds)):
        raise _Invalid(f"{dot}by_seed is {_short(by_seed)}, expected a number for each seed, or none")
    values = _each(_number, by_seed, f"{dot}by_seed")
    if std is not None and len(values) > 1:
        found = statistics.pstdev(values)
        if not math.isclose(std, found, rel_tol=1e-6, abs_tol=1e-6):
            raise _Invalid(f"{dot}by_seed does not have the population standard deviation that is given")
    # The value of an analysis need not be the mean: of k-means it is that of the best seed.
    if is_accuracy and values and not math.isclose(value, statistics.fmean(values), abs_tol=1e-6, rel_tol=0):
        raise _Invalid(f"{dot}by_seed does not have the mean that is given")
    return SeedAverage(
        model=model,
        dataset=dataset,
        evaluation=row["experiment"],
        metric=row["quantity"],
        n_shot=_whole(row["n_shot"], f"{dot}n_shot"),
        value=value,
        std=std,
        seeds=seeds,
        missing_seeds=missing,
        by_seed=values,
        source=default_source if row["source"] is None else _label(row["source"], f"{dot}source"),
    )


def _cell(row: Any, *, where: str, default_source: str) -> list[SeedAverage]:
    model, dataset, dot = _place(row, _CELL_KEYS, where=where, optional=("counts",))
    n_shot = _whole(row["n_shot"], f"{dot}n_shot")
    epochs = _wholes(row["epochs"], f"{dot}epochs")
    seeds, missing = _seeds(row, dot)
    if epochs and (len(epochs) != len(seeds) or 0 in epochs):
        raise _Invalid(
            f"{dot}epochs has {len(epochs)} values, expected a positive one for each of {len(seeds)} seeds"
        )
    scores = {"top1": _score(row["top1"], f"{dot}top1")}
    if row["top5"] is not None:
        scores["top5"] = _score(row["top5"], f"{dot}top5")
    by_seed = {
        metric: _by_seed(row[f"{metric}_by_seed"], scores.get(metric), len(seeds), f"{dot}{metric}_by_seed")
        for metric in ("top1", "top5")
    }
    source = default_source if row["source"] is None else _label(row["source"], f"{dot}source")
    counts = _counts(row["counts"], f"{dot}counts") if "counts" in row else Counts()
    return [
        SeedAverage(
            model, dataset, LOGREG, metric, n_shot, mean, std, seeds, missing, by_seed[metric], source, epochs,
            counts,
        )
        for metric, (mean, std) in scores.items()
    ]  # fmt: skip


def _counts(value: Any, where: str) -> Counts:
    if not isinstance(value, dict):
        raise _Invalid(f"{where} is {_short(value)}, expected an object with {', '.join(_COUNTS_KEYS)}")
    _check_keys(value, _COUNTS_KEYS, where, needed=set(_COUNTS_KEYS))
    found = {key: _wholes(value[key], f"{where}.{key}") for key in _COUNTS_KEYS}
    for key, numbers in found.items():
        if list(numbers) != sorted(set(numbers)) or 0 in numbers:
            raise _Invalid(f"{where}.{key} is not made of positive numbers in ascending order, each once")
    return Counts(**found)


def _check_keys(value: dict[str, Any], allowed: Iterable[str], where: str, *, needed: set[str]) -> None:
    unknown = sorted(value.keys() - set(allowed), key=str)
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


def _score(value: Any, where: str) -> tuple[float, float | None]:
    if not isinstance(value, dict):
        raise _Invalid(f"{where} is {_short(value)}, expected an object with mean and std")
    _check_keys(value, ("mean", "std"), where, needed={"mean", "std"})
    std = value["std"]
    if std is not None:
        std = _number(std, f"{where}.std")
        if not 0 <= std <= 50.01:  # the most that percentages can deviate
            raise _Invalid(f"{where}.std is {_short(std)}, expected a deviation in percent")
    return _percentage(value["mean"], f"{where}.mean"), std


def _by_seed(
    value: Any, score: tuple[float, float | None] | None, n_seeds: int, where: str
) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) not in (0, n_seeds):
        raise _Invalid(
            f"{where} is {_short(value)}, expected a list of as many numbers as there are seeds, or none"
        )
    # Nearly all are floats as they must be: the slower check is for the message, or for whole numbers.
    fine = all(type(item) is float and 0.0 <= item <= 100.0 for item in value)
    values = tuple(value) if fine else _each(_percentage, value, where)
    if values:
        if score is None:
            raise _Invalid(f"{where} has values, but their mean is null")
        mean, std = mean_std(values)
        close = math.isclose(score[0], mean, abs_tol=1e-6, rel_tol=0) and (
            score[1] is not None and math.isclose(score[1], std, abs_tol=1e-6, rel_tol=0)
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
    return _each(_whole, value, where)


def _each(check: Callable[[Any, str], _T], values: Sequence[Any], where: str) -> tuple[_T, ...]:
    """Check the entries of a list; which one is wrong is written only when one is, since most of the time goes here."""
    try:
        return tuple([check(item, where) for item in values])
    except _Invalid:
        return tuple([check(item, f"{where}[{index}]") for index, item in enumerate(values)])


def _short(value: Any) -> str:
    """Show a value of any size in a few characters."""
    if isinstance(value, dict | list):
        return f"a {'list' if isinstance(value, list) else 'object'} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return "a huge number"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
