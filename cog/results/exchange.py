"""Results of many models in one small file for sharing and merging: ``print_results.py --export`` and ``--import``.

The file is JSON, UTF-8. An entry is one number, averaged over seeds (:class:`cog.results.scores.SeedAverage`). The
fields after ``value`` may be absent or null if they are empty or not known::

    {
      "format": "imagenet-cog results",
      "version": 6,
      "label": "our lab",                     name of the origin in tables; null: the name of the file as it is read
      "toolkit": "0.1.0",                     version of the toolkit that wrote the file
      "written": "2026-01-01T00:00:00+00:00",
      "entries": [
        {
          "model": "sup_resnet50",            <title>_<architecture>
          "dataset": "cog_l1",
          "evaluation": "logreg",             classifier (logreg, mlp, logreg_pca256) or analysis (kmeans)
          "metric": "top1",                   metric of the classifier or analysis
          "n_shot": 0,                        training images per class of a classifier, 0 = all
          "value": 67.3,                      in the unit of the metric; accuracies in percent
          "std": 0.1,                         population standard deviation over seeds
          "seeds": [22, 37],                  ascending
          "missing_seeds": [45],              expected but absent
          "by_seed": [67.2, 67.4],            values of the seeds, needed for paired comparisons
          "source": "paper v2",               origin, if different from the label of the file
          "epochs": [100, 100],               number of epochs of each seed
          "counts": {                         numbers of classes and images; several if the runs disagree, [] if not
            "classes": [1000],                recorded; they decide on comparisons with published numbers, and without
            "train_images": [1281167],        the whole entry, tables call the results unverified
            "test_images": [50000],
            "class_lists": ["9d2a..."]        SHA-256 of the list of classes
          },
          "concepts": {                       right answers per concept of a top-1 accuracy, for intervals over concepts
            "n_classes": 1000,
            "images_per_class": 50,           encoded as in results.json (cog.results.concept_counts), by class index
            "correct_per_class": ["MC4w...", "MS0x..."],      of each seed; they must agree with its accuracy
            "image_list": "5e1f..."           SHA-256 of the list of test images, null when it is not known
          },
          "pretraining": "IN-21K"             pretraining data, one of cog.models.spec.PRETRAINING; absent: derived from
        }                                     the name; the same in all entries of a model and source
      ]
    }

The order of entries is arbitrary, no number occurs twice, and other keys are errors (a later form has another version).
Numbers are written with all their digits, so that reading returns them exactly. Means (of accuracies of classifiers)
and deviations must agree with the values of the seeds if these are given. The accuracies in a file cannot be verified:
tables show its label beside each of them. A file cannot claim to contain runs found on disk, or published numbers other
than the true ones. Files of versions 1 to 5 can be read as well (:func:`_upgraded`).
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import cog
from cog import constants
from cog.errors import CogError
from cog.models.spec import PRETRAINING
from cog.results import concept_counts, published, uncertainty
from cog.results.run_records import is_percentage
from cog.results.scores import (
    LOGREG,
    RUNS,
    Counts,
    SeedAverage,
    is_classifier,
    is_protocol,
    mean_std,
    without_single_std,
)
from cog.runtime import files, safe_load
from cog.runtime.json_fields import sha256, whole
from cog.runtime.provenance import now

_T = TypeVar("_T")

FORMAT = "imagenet-cog results"
VERSION = 6

# An entry with five seeds takes 400 bytes, and 7 kB more with the right answers for 1,000 concepts.
_LARGEST = 1 << 27
_MOST_ENTRIES = 400_000
_MOST_SEEDS = 1000
_LONGEST_LABEL = 80

# The squares of smaller numbers are finite.
_TOO_LARGE = 1e100

_METRICS = ("top1", "top5")
_HEAD = ("format", "version", "label", "toolkit", "written")
_CONCEPTS = ("n_classes", concept_counts.IMAGES, concept_counts.CORRECT, "image_list")


def check_label(label: str) -> str:
    """Return ``label`` when it can name the origin of results.

    Raises:
        ValueError: when it cannot, with the expected form.
    """
    if not (label.strip() == label and label.isprintable() and 0 < len(label) <= _LONGEST_LABEL):
        raise ValueError(f"expected 1 to {_LONGEST_LABEL} printable characters without spaces around them")
    if label == RUNS:
        raise ValueError(f"{RUNS!r} is reserved for runs found on disk")
    return label


# --- writing


def dump(averages: Iterable[SeedAverage], *, label: str | None = None) -> str:
    """Return the content of a results file.

    Args:
        averages: averages of any sources.
        label: source of the runs found on disk when the file is read; None: the name of the file at that time.

    Raises:
        CogError: when :func:`load` would refuse an average because of a name or a value.
    """
    lines = []
    for average in averages:
        entry = _entry(average)
        try:
            _read_entry(entry, label="?")
        except _Invalid as error:
            raise CogError(f"cannot export {_describe(average)}: {error}") from None
        lines.append("    " + json.dumps(entry))
    values = FORMAT, VERSION, label, cog.__version__, now()
    text = json.dumps(dict(zip(_HEAD, values, strict=True)), indent=2).removesuffix("\n}")
    return f'{text},\n  "entries": [\n' + ",\n".join(lines) + "\n  ]\n}\n"


def _entry(average: SeedAverage) -> dict[str, Any]:
    """Return the entry of a file for an average: its fields, without those that have their default values."""
    entry = {
        field.name: list(value) if isinstance(value, tuple) else value
        for field in _FIELDS
        if (value := getattr(average, field.name)) != field.default
    }
    if "counts" in entry:
        entry["counts"] = {key: list(values) for key, values in vars(average.counts).items()}
    if entry.pop("concepts", None) and uncertainty.same_images(average.concepts):
        written = [concept_counts.write(run.correct, run.images_of_each) for run in average.concepts]
        image_lists = (run.image_list for run in average.concepts if sha256(run.image_list))
        entry["concepts"] = {
            "n_classes": len(average.concepts[0].correct),
            concept_counts.IMAGES: written[0][concept_counts.IMAGES],
            concept_counts.CORRECT: [run[concept_counts.CORRECT] for run in written],
            "image_list": next(image_lists, None),
        }
    return entry


def write(path: str | os.PathLike[str], averages: Iterable[SeedAverage], *, label: str | None = None) -> None:
    """Write a results file, whole or not at all; see :func:`dump`."""
    files.write_text(path, dump(averages, label=label))


# --- reading


def load(path: str | os.PathLike[str], *, flag: str = "--import") -> list[SeedAverage]:
    """Read and check a results file.

    Args:
        path: the file.
        flag: flag with which the user gave the file, for error messages.

    Returns:
        Averages in the order of the file; ``source`` is that of the entry, else the label or the name of the file.

    Raises:
        CogError: when the file cannot be read, has another form, or contains impossible results.
    """
    path = files.require_file(path, flag)
    content = safe_load.read_json(path, "file of --export", largest=_LARGEST)
    try:
        return _read_file(content, name=path.stem)
    except _Invalid as error:
        raise CogError(f"{flag} {path}: {error}") from None


#: Fields that a file may lack and another file with the same number may add.
_ADDED = ("epochs", "concepts", "pretraining")


def merge(*groups: tuple[str, Sequence[SeedAverage]]) -> list[SeedAverage]:
    """Return the averages of several files together.

    Args:
        groups: pairs of the name of a file (for error messages) and its averages.

    Returns:
        All averages; equal averages of several files are one, with the fields that either of them has.

    Raises:
        CogError: when two files disagree on a number of the same source, or on the pretraining of a model.
    """
    merged: dict[tuple[Any, ...], tuple[str, SeedAverage]] = {}
    seen: dict[tuple[str, str], tuple[str, str]] = {}
    for name, averages in groups:
        for average in averages:
            first, known = merged.setdefault(average.place, (name, average))
            if known is not average:
                whole = _with_added(known, average)
                if whole != _with_added(average, known):
                    raise CogError(
                        f"{first} and {name} have different numbers of {_describe(average)} under the same label "
                        f"{average.source!r}; change the entry 'label' of one of them"
                    )
                merged[average.place] = (first, whole)
            if average.pretraining is not None:
                model = average.model, average.source
                earlier, stated = seen.setdefault(model, (name, average.pretraining))
                if stated != average.pretraining:
                    raise CogError(
                        f"pretraining of {average.model} [{average.source}] is {stated} in {earlier} and "
                        f"{average.pretraining} in {name}; correct one of them"
                    )
    return [average for _, average in merged.values()]


def _with_added(average: SeedAverage, other: SeedAverage) -> SeedAverage:
    """Return an average with the empty ones of the fields ``_ADDED`` taken from another average of the same number."""
    added = {key: getattr(average, key) or getattr(other, key) for key in _ADDED}
    return dataclasses.replace(average, **added)


def _describe(average: SeedAverage) -> str:
    """Return the place of an average in words."""
    place = f"{average.model or 'runs without a model name'} on {average.dataset}"
    if is_protocol(average):
        return f"{place} (n_shot {average.n_shot})"
    return f"{average.evaluation} {average.metric} of {place}"


class _Invalid(Exception):
    """An error in a file; its message names the fault and its place."""


def _read_file(content: Any, *, name: str) -> list[SeedAverage]:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _Invalid(f'not a file of --export (expected an object with "format": "{FORMAT}")')
    version = content.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise _Invalid(
            f"version is {_short(version)}, expected 1 to {VERSION}; read it with the toolkit that wrote it"
        )
    lists = ("entries",) if version == VERSION else ("cells", "measures")[:version]
    _check_keys(content, (*_HEAD, *lists), needed=("label", *lists))
    papers = published.SOURCES.values()
    label = content["label"]
    if label is None:
        printable = "".join(character if character.isprintable() else "?" for character in name)
        label = printable[:_LONGEST_LABEL].strip()
        label = label if label not in ("", RUNS, *papers) else "imported"
    _require(label not in papers, "label", label, "another one: it is reserved for published numbers")
    label = _label(label, "label")
    averages: dict[tuple[Any, ...], tuple[str, SeedAverage]] = {}
    for path, entry in _entries(content, lists):
        try:
            average = _read_entry(entry, label=label)
        except _Invalid as error:
            raise _Invalid(f"{path}: {error}") from None
        first, _ = averages.setdefault(average.place, (path, average))
        if first != path:
            raise _Invalid(f"{path} is a second {_describe(average)}; the first is {first}")
    _check_published([average for _, average in averages.values()])
    return without_single_std(average for _, average in averages.values())  # earlier versions wrote 0


def _entries(content: dict[str, Any], lists: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield pairs of the place of an entry, for messages, and the entry in the form of this version."""
    for name in lists:
        entries = content[name]
        if not isinstance(entries, list) or not any(content[other] for other in lists):
            raise _Invalid(f"{name} is not a list with anything in it")
        if len(entries) > _MOST_ENTRIES:
            raise _Invalid(f"{len(entries)} {name}, expected at most {_MOST_ENTRIES}")
        for index, entry in enumerate(entries):
            path = f"{name}[{index}]"
            if name == "entries" or not isinstance(entry, dict):
                yield path, entry
            else:
                yield from _upgraded(entry, name, path)


def _upgraded(entry: dict[str, Any], list_name: str, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the entries of this version that correspond to an entry of versions 1 to 5.

    These versions had two lists. A measure is an entry with the names ``experiment`` for ``evaluation`` and
    ``quantity`` for ``metric``. A cell has both accuracies of logistic regression: ``"top1": {"mean": 67.3, "std":
    0.1}``, ``"top1_by_seed": [...]``, ``"top5"`` (or null) and ``"top5_by_seed"``; its right answers per concept are
    those of top-1. Version 1 had only cells, 3 added lists of classes, 4 right answers per concept, 5 pretraining.
    """
    if list_name == "measures":
        new_names = {"experiment": "evaluation", "quantity": "metric"}
        yield path, {new_names.get(key, key): value for key, value in entry.items()}
        return
    for metric in _METRICS:
        shared, stated, by_seed = dict(entry), entry.get(metric), entry.get(f"{metric}_by_seed")
        for key in ("top1", "top5", "top1_by_seed", "top5_by_seed"):
            shared.pop(key, None)
        if metric == "top5":
            shared.pop("concepts", None)
            if stated is None and not by_seed:
                continue
        if not isinstance(stated, dict):
            raise _Invalid(f"{path}.{metric} is {_short(stated)}, expected an object with mean and std")
        values = {"value": stated.get("mean"), "std": stated.get("std"), "by_seed": by_seed}
        yield f"{path}.{metric}", {**shared, "evaluation": LOGREG, "metric": metric, **values}


def _check_published(averages: Sequence[SeedAverage]) -> None:
    """Refuse averages with the source of the paper that are not published numbers."""
    for version, source in published.SOURCES.items():
        labelled = [average for average in averages if average.source == source]
        genuine = set(published.averages(version)) if labelled else set()
        for average in labelled:
            if average not in genuine:
                text = f"is labelled {source!r} but is not the published number"
                raise _Invalid(f"{_describe(average)} {text}")


def _read_entry(entry: Any, *, label: str) -> SeedAverage:
    """Return the average of an entry after checking it; ``label`` is the source of an entry without one."""
    _require(isinstance(entry, dict), "the entry", entry, "an object")
    _check_keys(entry, _CHECKS, needed=_NEEDED)
    fields = {
        key: _CHECKS[key](value, key) for key, value in entry.items() if value is not None or key in _NEEDED
    }
    concepts = fields.pop("concepts", None)
    average = SeedAverage(**{"source": label} | fields)
    n_seeds = len(average.seeds)
    if not set(average.seeds).isdisjoint(average.missing_seeds):
        raise _Invalid("missing_seeds names a seed that is there")
    for key in ("epochs", "by_seed"):
        fine = len(getattr(average, key)) in (0, n_seeds)
        _require(fine, key, entry.get(key), "a number for each seed, or none")
    _require(0 not in average.epochs, "epochs", entry.get("epochs"), "positive numbers")
    _check_values(average)
    return average if concepts is None else _with_concepts(average, concepts)


def _check_values(average: SeedAverage) -> None:
    """Check that accuracies are percentages, and that mean and deviation agree with the values of the seeds."""
    value, std, by_seed = average.value, average.std, average.by_seed
    is_accuracy = is_classifier(average.evaluation) and average.metric in _METRICS
    if is_accuracy:
        for name, number in (("value", value), *(("by_seed", number) for number in by_seed)):
            _require(is_percentage(number), name, number, "a percentage")
    if std is not None:  # the deviation of percentages is at most 50
        _require(0 <= std <= (50.01 if is_accuracy else math.inf), "std", std, "a deviation")
    if by_seed:
        mean, deviation = mean_std(by_seed)
        # The value of an analysis need not be the mean: for k-means it is the value of the best seed.
        if is_accuracy and not math.isclose(value, mean, abs_tol=1e-6, rel_tol=0):
            raise _Invalid("by_seed does not have the mean that is given")
        stated = math.nan if std is None and is_accuracy and len(by_seed) > 1 else std
        if stated is not None and not math.isclose(stated, deviation, abs_tol=1e-6, rel_tol=1e-6):
            raise _Invalid("by_seed does not have the population standard deviation that is given")


def _with_concepts(average: SeedAverage, concepts: Any) -> SeedAverage:
    """Return an average with its right answers per concept, which must agree with its accuracies."""
    _require(isinstance(concepts, dict), "concepts", concepts, f"an object with {', '.join(_CONCEPTS)}")
    _check_keys(concepts, _CONCEPTS, needed=_CONCEPTS, path="concepts: ")
    n_classes, images, runs, image_list = (concepts[key] for key in _CONCEPTS)
    _whole(n_classes, "concepts.n_classes")
    if average.metric != "top1" or not (isinstance(runs, list) and len(runs) == len(average.by_seed) > 0):
        raise _Invalid(f"concepts.{concept_counts.CORRECT} is not a list with the top-1 answers of each seed")
    fine = image_list is None or sha256(image_list) is not None
    _require(fine, "concepts.image_list", image_list, "a SHA-256 digest or null")
    counts = []
    for run, top1 in zip(runs, average.by_seed, strict=True):
        final = {concept_counts.CORRECT: run, concept_counts.IMAGES: images}
        try:
            read = concept_counts.read(final, n_classes=n_classes, top1=top1, image_list=image_list)
        except ValueError as error:
            raise _Invalid(f"concepts is wrong: {error}") from None
        counts += [read] if read is not None else []
    return dataclasses.replace(average, concepts=tuple(counts))


def _check_keys(
    value: dict[str, Any], allowed: Iterable[str], *, needed: Iterable[str], path: str = ""
) -> None:
    if unknown := [key for key in value if key not in allowed]:
        raise _Invalid(f"{path}unknown entry {_short(unknown[0])}")
    if absent := [key for key in needed if key not in value]:
        raise _Invalid(f"{path}no entry {absent[0]!r}")


def _require(fine: bool, name: str, value: Any, expected: str) -> None:
    if not fine:
        raise _Invalid(f"{name} is {_short(value)}, expected {expected}")


def _short(value: Any) -> str:
    """Return a value of any size as a text of a few characters."""
    if isinstance(value, dict | list):
        return f"a {'list' if isinstance(value, list) else 'object'} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return "a huge number"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- checks of one value, with its name for messages; each returns the value in the form of an average


def _name(is_name: Callable[[str], bool], expected: str) -> Callable[[Any, str], str]:

    def check(value: Any, name: str) -> str:
        _require(isinstance(value, str) and len(value) <= 255 and is_name(value), name, value, expected)
        return value

    return check


def _label(value: Any, name: str) -> str:
    try:
        return check_label(value if isinstance(value, str) else "")
    except ValueError as error:
        raise _Invalid(f"{name} is {_short(value)}: {error}") from None


def _number(value: Any, name: str) -> float:
    fine = type(value) in (int, float) and -_TOO_LARGE < value < _TOO_LARGE  # false for NaN
    _require(fine, name, value, "a number")
    return float(value)


def _whole(value: Any, name: str) -> int:
    _require(whole(value) is not None and value < 1 << 63, name, value, "a whole number")
    return value


def _list_of(check: Callable[[Any, str], _T]) -> Callable[[Any, str], tuple[_T, ...]]:

    def check_all(value: Any, name: str) -> tuple[_T, ...]:
        fine = isinstance(value, list) and len(value) <= _MOST_SEEDS
        _require(fine, name, value, f"a list of at most {_MOST_SEEDS} numbers")
        return tuple([check(item, f"an item of {name}") for item in value])

    return check_all


_wholes = _list_of(_whole)


def _ascending(value: Any, name: str) -> tuple[int, ...]:
    numbers = _wholes(value, name)
    if list(numbers) != sorted(set(numbers)):
        raise _Invalid(f"{name} is not in ascending order, or has a seed twice")
    return numbers


def _counts(value: Any, name: str) -> Counts:
    *numbers, lists = (field.name for field in dataclasses.fields(Counts))
    _require(isinstance(value, dict), name, value, f"an object with {', '.join(numbers)} and {lists}")
    # Versions 1 and 2 have no lists of classes.
    _check_keys(value, (*numbers, lists), needed=numbers, path=f"{name}: ")
    digests = value.get(lists, [])
    fine = isinstance(digests, list) and all(map(sha256, digests)) and digests == sorted(set(digests))
    _require(fine and len(digests) <= _MOST_SEEDS, f"{name}.{lists}", digests, "ascending SHA-256 digests")
    counts = {key: _ascending(value[key], f"{name}.{key}") for key in numbers}
    if any(0 in several for several in counts.values()):
        raise _Invalid(f"{name} has a number of 0, expected positive ones")
    return Counts(**counts, class_lists=tuple(digests))


def _pretraining(value: Any, name: str) -> str:
    _require(value in PRETRAINING, name, value, ", ".join(PRETRAINING))
    return value


_plain_name = _name(constants.is_plain_name, "a name of letters, digits and ._+-")

#: Checks of the values of an entry by key; the keys are the fields of an average.
_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "model": _name(constants.is_model_name, "<model_title>_<architecture_name>"),
    "dataset": _name(constants.is_plain_name, "a data set name such as in1k"),
    "evaluation": _plain_name,
    "metric": _plain_name,
    "n_shot": _whole,
    "value": _number,
    "std": _number,
    "seeds": _ascending,
    "missing_seeds": _ascending,
    "by_seed": _list_of(_number),
    "source": _label,
    "epochs": _wholes,
    "counts": _counts,
    "concepts": lambda value, name: value,  # checked together with the accuracies
    "pretraining": _pretraining,
}
_FIELDS = dataclasses.fields(SeedAverage)
_NEEDED = tuple(field.name for field in _FIELDS if field.default is dataclasses.MISSING)
