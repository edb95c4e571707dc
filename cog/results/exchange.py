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

With numbers of other experiments the version is 2, and there is one list more (``cells`` may then be empty). With
digests of lists of classes it is 3: ``counts`` has ``class_lists``, too, and measures may have ``counts``::

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

With right answers per concept it is 4: cells, and measures that are the top-1 accuracy of a classifier, may have
``concepts``, from which readers compute intervals over concepts. Numbers are encoded as in ``results.json``
(:mod:`cog.results.concept_counts`), by class index, and make the accuracy of each seed::

          "concepts": {
            "n_classes": 1000,
            "images_per_class": 50,           test images; one number where all classes have as many, else encoded
            "correct_per_class": ["MC4w...", "MS0x..."],      top-1, of each seed
            "image_list": "5e1f..."           SHA-256 of the list of test images, null where it is not known
          }

With what a model has seen in pretraining it is 5: cells and measures may have ``pretraining``, one of
:data:`cog.models.spec.PRETRAINING`. Where the entry is absent, the model's name tells it, or nothing; all entries of a
model and source that have it say the same::

          "pretraining": "IN-21K"

All entries of a cell (but for ``counts``, ``concepts`` and ``pretraining``) or measure are there, in any order; each
once, and no others are allowed (a later form has another version). Both are read as the same averages: a cell is two
numbers, a measure one. Numbers are written with all their digits, so that what is read equals what was written. Means
(of accuracies of classifiers) and deviations must follow from the values of the seeds where these are given. A file is
read as what it is, somebody's word: it can claim any accuracy, and tables name its label beside every number from it.
It cannot claim to be a run found on disk, nor a published number that differs from the published one.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import cog
from cog import constants
from cog.errors import CogError
from cog.models.spec import PRETRAINING
from cog.results import concept_counts, published, uncertainty
from cog.results.run_records import is_percentage
from cog.results.scores import LOGREG, RUNS, Counts, SeedAverage, is_classifier, is_protocol, mean_std
from cog.runtime import files
from cog.runtime.provenance import now

_T = TypeVar("_T")

FORMAT = "imagenet-cog results"

# A cell of five seeds takes 600 bytes, a measure 300; with the answers of 1,000 concepts 7 kB more.
_LARGEST = 1 << 27
_MOST_ENTRIES = 400_000
_MOST_SEEDS = 1000
_LONGEST_LABEL = 80

_METRICS = ("top1", "top5")
_COUNTS = tuple(Counts.__dataclass_fields__)
_DIGEST = re.compile("[0-9a-f]{64}")
_FILE_KEYS = ("format", "version", "label", "toolkit", "written")

#: Lists of a file, with the entries of what is in them.
LISTS = {
    "cells": (
        "model", "dataset", "n_shot", "source", "top1", "top5", "seeds", "missing_seeds", "epochs", "top1_by_seed",
        "top5_by_seed",
    ),
    "measures": (
        "model", "dataset", "experiment", "quantity", "n_shot", "source", "value", "std", "seeds", "missing_seeds",
        "by_seed",
    ),
}  # fmt: skip

#: Lists of each version.
VERSIONS = {1: ("cells",), **dict.fromkeys((2, 3, 4, 5), ("cells", "measures"))}

# The first version with digests of lists of classes, and with counts of measures.
_WITH_CLASS_LISTS = 3

# The first one with right answers per concept, and their entries.
_WITH_CONCEPTS = 4
_N_CLASSES = "n_classes"
_IMAGE_LIST = "image_list"
_CONCEPTS = (_N_CLASSES, concept_counts.IMAGES, concept_counts.CORRECT, _IMAGE_LIST)

# The first one with what models have seen.
_WITH_PRETRAINING = 5


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


#: A number in a file: evaluation and metric; value, std and by_seed; and what messages call these three.
_Stated = tuple[tuple[str, str], dict[str, Any], dict[str, str]]

# --- writing


def dump(averages: Iterable[SeedAverage], *, label: str | None = None) -> str:
    """Return the content of a results file.

    Args:
        averages: of any sources; those of runs found on disk get the label of the file when they are read. With
            accuracies of logistic regression alone, readers of version 1 can read the file.
        label: origin of the runs; None: the reader takes the file's name.

    Raises:
        CogError: when an average has a name that no reader would accept, or a top-5 is there without its top-1.
    """
    averages = list(averages)
    version = 1 if all(map(is_protocol, averages)) else 2
    if any(average.counts.class_lists for average in averages):
        version = _WITH_CLASS_LISTS
    if any(map(_shares_concepts, averages)):
        version = _WITH_CONCEPTS
    if any(average.pretraining for average in averages):
        version = _WITH_PRETRAINING
    groups: dict[tuple[Any, ...], list[SeedAverage]] = {}
    for number, average in enumerate(averages):
        # Both accuracies of a cell are one entry.
        place = (average.model, average.dataset, average.n_shot, average.source)
        groups.setdefault(place if is_protocol(average) else (number,), []).append(average)
    lines: dict[str, list[str]] = {"cells": [], "measures": []}
    for group in groups.values():
        kind = "cells" if is_protocol(group[0]) else "measures"
        entry = _entry(group, version)
        try:
            _read_entry(entry, kind, version, path="", label="?")
        except _Invalid as error:
            name = f"{group[0].model or 'runs without a model name'}, {group[0].dataset}"
            name = name if kind == "cells" else f"{group[0].evaluation} of {name}"
            raise CogError(f"cannot export {name}: {error}") from None
        lines[kind].append("    " + json.dumps(entry))
    head = {
        "format": FORMAT,
        "version": version,
        "label": label,
        "toolkit": cog.__version__,
        "written": now(),
    }
    parts = [json.dumps(head, indent=2, ensure_ascii=True).removesuffix("\n}")]
    for kind in VERSIONS[version]:
        listed = "[\n" + ",\n".join(lines[kind]) + "\n  ]" if lines[kind] else "[]"
        parts.append(f'  "{kind}": {listed}')
    return ",\n".join(parts) + "\n}\n"


def _entry(group: Sequence[SeedAverage], version: int) -> dict[str, Any]:
    """Return the entry of a file for both accuracies of a cell, or for another number."""
    first = group[0]
    values = {
        "model": first.model, "dataset": first.dataset, "experiment": first.evaluation, "quantity": first.metric,
        "n_shot": first.n_shot, "source": None if first.source == RUNS else first.source, "value": first.value,
        "std": first.std, "seeds": list(first.seeds), "missing_seeds": list(first.missing_seeds),
        "by_seed": list(first.by_seed), "epochs": list(first.epochs),
        **dict.fromkeys(_METRICS), **{f"{metric}_by_seed": [] for metric in _METRICS},
    }  # fmt: skip
    for average in group:
        values[average.metric] = {"mean": average.value, "std": average.std}
        values[f"{average.metric}_by_seed"] = list(average.by_seed)
    entry = {key: values[key] for key in LISTS["cells" if is_protocol(first) else "measures"]}
    if first.counts != Counts() and (is_protocol(first) or version >= _WITH_CLASS_LISTS):
        entry["counts"] = {key: list(getattr(first.counts, key)) for key in _counts_keys(version)}
    for average in filter(_shares_concepts, group):
        written = [concept_counts.write(run.correct, run.images_of_each) for run in average.concepts]
        entry["concepts"] = {
            _N_CLASSES: len(average.concepts[0].correct),
            concept_counts.IMAGES: written[0][concept_counts.IMAGES],
            concept_counts.CORRECT: [run[concept_counts.CORRECT] for run in written],
            _IMAGE_LIST: next(
                (run.image_list for run in average.concepts if _is_digest(run.image_list)), None
            ),
        }
    if first.pretraining is not None:
        entry["pretraining"] = first.pretraining
    return entry


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _shares_concepts(average: SeedAverage) -> bool:
    """Whether right answers per concept are known, all on the same images."""
    return uncertainty.same_images(average.concepts)


def write(path: str | os.PathLike[str], averages: Iterable[SeedAverage], *, label: str | None = None) -> None:
    """Write a results file, whole or not at all; see :func:`dump`."""
    files.write_text(path, dump(averages, label=label))


# --- reading


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
    name = f"{flag} {path}"
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise CogError(f"{name} is not a regular file")
    path = files.require_file(path, flag)
    try:
        size = os.stat(path).st_size
        if size > _LARGEST:
            raise CogError(f"{name} has {size} bytes, expected at most {_LARGEST}")
        content = json.loads(
            path.read_bytes(), parse_constant=_refuse_constant, object_pairs_hook=_without_repetition
        )
    except OSError as error:
        raise CogError(f"cannot read {name}: {error.strerror or error}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        reason = str(error)[:200] or type(error).__name__
        raise CogError(f"{name} is not valid JSON ({reason}); expected a file of --export") from None
    try:
        return _read_file(content, name=path.stem)
    except _Invalid as error:
        raise CogError(f"{name}: {error}") from None


def merge(*groups: tuple[str, Sequence[SeedAverage]]) -> list[SeedAverage]:
    """Put averages of several files together.

    Args:
        groups: name of the file (for error messages) and its averages.

    Returns:
        All of them; those that are in several files and are the same, once.

    Raises:
        CogError: when two files disagree on the same number of the same source, or on what a model has seen.
    """
    merged: dict[tuple[Any, ...], tuple[str, SeedAverage]] = {}
    seen: dict[tuple[str, str], tuple[str, str]] = {}
    for name, averages in groups:
        for average in averages:
            first, known = merged.setdefault(average.place, (name, average))
            if known != average:
                raise CogError(
                    f"{first} and {name} have different numbers of {_describe(average)} under the same label "
                    f"{average.source!r}; change the entry 'label' of one of them"
                )
            if known is not average:
                more = {
                    key: getattr(known, key) or getattr(average, key) for key in ("concepts", "pretraining")
                }
                merged[average.place] = (first, dataclasses.replace(known, **more))
            if average.pretraining is not None:
                model = average.model, average.source
                where, said = seen.setdefault(model, (name, average.pretraining))
                if said != average.pretraining:
                    raise CogError(
                        f"pretraining of {average.model} [{average.source}] is {said} in {where} and "
                        f"{average.pretraining} in {name}; correct one of them"
                    )
    return [average for _, average in merged.values()]


def _describe(average: SeedAverage) -> str:
    """Say which number an average is."""
    place = f"{average.model} on {average.dataset}"
    if is_protocol(average):
        return f"{place} (n_shot {average.n_shot})"
    return f"{average.evaluation} {average.metric} of {place}"


class _Invalid(Exception):
    """What is wrong, and where in the file."""


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; of an entry that is there twice readers take the first or the last, as they like."""
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"an object has the entry {_short(twice)} twice")
    return content


def _read_file(content: Any, *, name: str) -> list[SeedAverage]:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _Invalid(f'not a file of --export (expected an object with "format": "{FORMAT}")')
    version = content.get("version")
    if type(version) is not int or version not in VERSIONS:
        known = f"{min(VERSIONS)} to {max(VERSIONS)}"
        raise _Invalid(
            f"version is {_short(version)}, expected {known}; read it with the toolkit that wrote it"
        )
    kinds = VERSIONS[version]
    _check_keys(content, (*_FILE_KEYS, *kinds), "the file", needed=("label", *kinds))
    label = content["label"]
    if label is None:
        printable = "".join(character if character.isprintable() else "?" for character in name)
        label = printable[:_LONGEST_LABEL].strip()
        label = label if label and label != RUNS and label not in published.SOURCES.values() else "imported"
    label = _label(label, "label")
    if label in published.SOURCES.values():
        raise _Invalid(f"label is {label!r}, which is reserved for published numbers")
    averages: dict[tuple[Any, ...], SeedAverage] = {}
    places: dict[tuple[Any, ...], str] = {}
    for kind in kinds:
        entries = content[kind]
        if not isinstance(entries, list):
            raise _Invalid(f"{kind} is not a list with anything in it")
        if len(entries) > _MOST_ENTRIES:
            raise _Invalid(f"{len(entries)} {kind}, expected at most {_MOST_ENTRIES}")
        for index, entry in enumerate(entries):
            path = f"{kind}[{index}]"
            for average in _read_entry(entry, kind, version, path=path, label=label):
                place = average.place
                if places.setdefault(place, path) is not path:
                    raise _Invalid(f"{path} is a second {_describe(average)}; the first is {places[place]}")
                averages[place] = average
    if not averages:
        raise _Invalid("cells is not a list with anything in it")
    _check_published(averages.values())
    return list(averages.values())


def _check_published(averages: Iterable[SeedAverage]) -> None:
    """Refuse what poses as a published number; the label alone would be believed."""
    versions = {source: version for version, source in published.SOURCES.items()}
    genuine: dict[str, set[SeedAverage]] = {}
    for average in averages:
        if average.source in versions:
            if average.source not in genuine:
                genuine[average.source] = set(published.averages(versions[average.source]))
            if average not in genuine[average.source]:
                text = f"is labelled {average.source!r} but is not the published number"
                raise _Invalid(f"{_describe(average)} {text}")


def _read_entry(entry: Any, kind: str, version: int, *, path: str, label: str) -> list[SeedAverage]:
    """Check a cell or a measure, and return its averages.

    Args:
        entry: what the file holds.
        kind: key of ``LISTS``.
        version: of the file.
        path: what messages call the entry; "": nothing.
        label: source of entries that name none.
    """
    if not isinstance(entry, dict):
        raise _Invalid(f"{path} is {_short(entry)}, expected an object")
    is_cell = kind == "cells"
    keys = LISTS[kind]
    allowed = [*keys, *["counts"] * (is_cell or version >= _WITH_CLASS_LISTS)]
    allowed += ["concepts"] * (version >= _WITH_CONCEPTS) + ["pretraining"] * (version >= _WITH_PRETRAINING)
    _check_keys(entry, allowed, path, needed=keys)
    dot = f"{path}." if path else ""
    shared: dict[str, Any] = {
        "model": _name(entry, "model", dot, constants.is_model_name, "<model_title>_<architecture_name>"),
        "dataset": _name(entry, "dataset", dot, constants.is_plain_name, "a data set name such as in1k"),
        "n_shot": _whole(entry["n_shot"], f"{dot}n_shot"),
        "seeds": _ascending(entry["seeds"], f"{dot}seeds"),
        "missing_seeds": _ascending(entry["missing_seeds"], f"{dot}missing_seeds"),
        "source": label if entry["source"] is None else _label(entry["source"], f"{dot}source"),
    }
    if "counts" in entry:
        shared["counts"] = _counts(entry["counts"], f"{dot}counts", _counts_keys(version))
    if "pretraining" in entry:
        shared["pretraining"] = said = entry["pretraining"]
        if said not in PRETRAINING:
            raise _Invalid(f"{dot}pretraining is {_short(said)}, expected {', '.join(PRETRAINING)}")
    seeds = shared["seeds"]
    if not set(seeds).isdisjoint(shared["missing_seeds"]):
        raise _Invalid(f"{dot}missing_seeds names a seed that is there")
    if is_cell:
        shared["epochs"] = epochs = _wholes(entry["epochs"], f"{dot}epochs")
        if epochs and (len(epochs) != len(seeds) or 0 in epochs):
            raise _Invalid(
                f"{dot}epochs has {len(epochs)} values, expected a positive one for each of {len(seeds)} seeds"
            )
    numbers = _numbers_of_cell(entry, dot) if is_cell else iter([_number_of_measure(entry, path, dot)])
    first, *others = [_average(key, values, names, shared) for key, values, names in numbers]
    return [_with_concepts(first, entry, dot), *others]


def _number_of_measure(entry: dict[str, Any], path: str, dot: str) -> _Stated:
    """Return the number of a measure; arguments: see :func:`_read_entry`."""
    named = "a name of letters, digits and ._+-"
    evaluation, metric = (
        _name(entry, name, dot, constants.is_plain_name, named) for name in ("experiment", "quantity")
    )
    if evaluation == LOGREG and metric in _METRICS:
        raise _Invalid(f"{path or 'the measure'} is an accuracy of logistic regression, expected among cells")
    return (evaluation, metric), entry, {name: f"{dot}{name}" for name in ("value", "std", "by_seed")}


def _numbers_of_cell(entry: dict[str, Any], dot: str) -> Iterator[_Stated]:
    """Yield the accuracies of a cell in the form of measures: top-1, and top-5 where it is known."""
    for metric in _METRICS:
        score, name = entry[metric], f"{dot}{metric}"
        by_seed = entry[f"{metric}_by_seed"]
        if score is None and metric == "top5":
            if by_seed != []:
                raise _Invalid(f"{name}_by_seed has values, but their mean is null")
            continue
        if not isinstance(score, dict):
            raise _Invalid(f"{name} is {_short(score)}, expected an object with mean and std")
        _check_keys(score, ("mean", "std"), name, needed=("mean", "std"))
        values = {"value": score["mean"], "std": score["std"], "by_seed": by_seed}
        names = {"value": f"{name}.mean", "std": f"{name}.std", "by_seed": f"{name}_by_seed"}
        yield (LOGREG, metric), values, names


def _with_concepts(average: SeedAverage, entry: dict[str, Any], dot: str) -> SeedAverage:
    """Return the average of an entry with its right answers per concept, where it has some."""
    if "concepts" not in entry:
        return average
    concepts, name = entry["concepts"], f"{dot}concepts"
    if not isinstance(concepts, dict):
        raise _Invalid(f"{name} is {_short(concepts)}, expected an object with {', '.join(_CONCEPTS)}")
    _check_keys(concepts, _CONCEPTS, name, needed=_CONCEPTS)
    n_classes = _whole(concepts[_N_CLASSES], f"{name}.{_N_CLASSES}")
    runs, images = (concepts[key] for key in (concept_counts.CORRECT, concept_counts.IMAGES))
    if average.metric != "top1" or not (isinstance(runs, list) and len(runs) == len(average.by_seed) > 0):
        raise _Invalid(f"{name}.{concept_counts.CORRECT} is not a list with the top-1 answers of each seed")
    image_list = concepts[_IMAGE_LIST]
    if image_list is not None and not _is_digest(image_list):
        raise _Invalid(f"{name}.{_IMAGE_LIST} is {_short(image_list)}, expected a SHA-256 digest or null")
    counts = []
    for run, top1 in zip(runs, average.by_seed, strict=True):
        numbers = {concept_counts.CORRECT: run, concept_counts.IMAGES: images}
        try:
            read = concept_counts.read(numbers, n_classes=n_classes, top1=top1, image_list=image_list)
        except ValueError as error:
            raise _Invalid(f"{name} is wrong: {error}") from None
        counts += [read] if read is not None else []
    return dataclasses.replace(average, concepts=tuple(counts))


def _average(
    key: Sequence[str], values: dict[str, Any], names: dict[str, str], shared: dict[str, Any]
) -> SeedAverage:
    """Check a number, its deviation and its values by seed.

    Args:
        key: evaluation and metric.
        values: ``value``, ``std`` and ``by_seed``.
        names: what messages call these.
        shared: other fields of the average.
    """
    is_accuracy = is_classifier(key[0]) and key[1] in _METRICS
    check = _percentage if is_accuracy else _number
    value, std, by_seed = check(values["value"], names["value"]), values["std"], values["by_seed"]
    if std is not None:
        std = _number(std, names["std"])
        if not 0 <= std <= (50.01 if is_accuracy else math.inf):  # the most that percentages can deviate
            raise _Invalid(f"{names['std']} is {_short(std)}, expected a deviation")
    path = names["by_seed"]
    if not isinstance(by_seed, list) or len(by_seed) not in (0, len(shared["seeds"])):
        raise _Invalid(f"{path} is {_short(by_seed)}, expected a number for each seed, or none")
    # Nearly all are floats as they must be: the slower check is for the message, or for whole numbers.
    fine = all(type(item) is float and 0.0 <= item <= 100.0 for item in by_seed)
    numbers = tuple(by_seed) if fine else _each(check, by_seed, path)
    if numbers:
        mean, deviation = mean_std(numbers)
        # The value of an analysis need not be the mean: of k-means it is that of the best seed.
        if is_accuracy and not math.isclose(value, mean, abs_tol=1e-6, rel_tol=0):
            raise _Invalid(f"{path} does not have the mean that is given")
        stated = math.nan if std is None and is_accuracy and len(numbers) > 1 else std
        if stated is not None and not math.isclose(stated, deviation, abs_tol=1e-6, rel_tol=1e-6):
            raise _Invalid(f"{path} does not have the population standard deviation that is given")
    return SeedAverage(evaluation=key[0], metric=key[1], value=value, std=std, by_seed=numbers, **shared)


def _counts_keys(version: int) -> tuple[str, ...]:
    return _COUNTS if version >= _WITH_CLASS_LISTS else _COUNTS[:-1]


def _counts(value: Any, name: str, keys: Sequence[str]) -> Counts:
    if not isinstance(value, dict):
        raise _Invalid(f"{name} is {_short(value)}, expected an object with {', '.join(keys)}")
    _check_keys(value, keys, name, needed=keys)
    digests = value.get("class_lists", [])
    if not isinstance(digests, list) or not all(_is_digest(d) for d in digests):
        raise _Invalid(f"{name}.class_lists is {_short(digests)}, expected SHA-256 digests")
    if digests != sorted(set(digests)) or len(digests) > _MOST_SEEDS:
        raise _Invalid(f"{name}.class_lists is not in ascending order, has one twice, or has too many")
    counts = {key: _ascending(value[key], f"{name}.{key}") for key in keys if key != "class_lists"}
    if any(0 in numbers for numbers in counts.values()):
        raise _Invalid(f"{name} has a number of 0, expected positive ones")
    return Counts(**counts, class_lists=tuple(digests))


def _check_keys(value: dict[str, Any], allowed: Sequence[str], path: str, *, needed: Sequence[str]) -> None:
    for key in value:
        if key not in allowed:
            raise _Invalid(f"{path or 'the cell'} has the unknown entry {_short(key)}")
    for key in needed:
        if key not in value:
            raise _Invalid(f"{path or 'the cell'} has no entry {key!r}")


def _name(entry: dict[str, Any], key: str, dot: str, is_name: Callable[[str], bool], expected: str) -> str:
    value = entry[key]
    if not (isinstance(value, str) and len(value) <= 255 and is_name(value)):
        raise _Invalid(f"{dot}{key} is {_short(value)}, expected {expected}")
    return value


def _label(value: Any, path: str) -> str:
    try:
        if not isinstance(value, str):
            raise ValueError("expected text")
        return check_label(value)
    except ValueError as error:
        raise _Invalid(f"{path} is {_short(value)}: {error}") from None


def _percentage(value: Any, path: str) -> float:
    number = _number(value, path)
    if not is_percentage(number):
        raise _Invalid(f"{path} is {_short(value)}, expected a percentage")
    return number


def _number(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Invalid(f"{path} is {_short(value)}, expected a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _Invalid(f"{path} is {_short(value)}, expected a number")
    return number


def _whole(value: Any, path: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise _Invalid(f"{path} is {_short(value)}, expected a whole number")
    return value


def _wholes(value: Any, path: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MOST_SEEDS:
        raise _Invalid(f"{path} is {_short(value)}, expected a list of at most {_MOST_SEEDS} whole numbers")
    return _each(_whole, value, path)


def _ascending(value: Any, path: str) -> tuple[int, ...]:
    numbers = _wholes(value, path)
    if list(numbers) != sorted(set(numbers)):
        raise _Invalid(f"{path} is not in ascending order, or has a seed twice")
    return numbers


def _each(check: Callable[[Any, str], _T], values: Sequence[Any], path: str) -> tuple[_T, ...]:
    """Check the entries of a list; which one is wrong is written only when one is, since most of the time goes here."""
    try:
        return tuple([check(item, path) for item in values])
    except _Invalid:
        return tuple([check(item, f"{path}[{index}]") for index, item in enumerate(values)])


def _short(value: Any) -> str:
    """Show a value of any size in a few characters."""
    if isinstance(value, dict | list):
        return f"a {'list' if isinstance(value, list) else 'object'} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return "a huge number"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
