"""Results of many models in one small file for sharing and merging: ``print_results.py --export`` and ``--import``.

The file is JSON, UTF-8. An entry is one number, averaged over seeds (:class:`cog.results.scores.SeedAverage`). The
fields after ``value`` may be absent or null if they are empty or not known::

    {
      "format": "imagenet-cog results",
      "version": 1,
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
than the true ones.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import cog
from cog import constants
from cog.errors import CogError
from cog.models.spec import PRETRAINING
from cog.results import concept_counts, published, uncertainty
from cog.results.run_records import METRICS, is_percentage
from cog.results.scores import (
    RUNS,
    Counts,
    SeedAverage,
    is_classifier,
    is_protocol,
    mean_std,
)
from cog.runtime import files
from cog.runtime.json_fields import sha256, whole
from cog.runtime.provenance import now

FORMAT = "imagenet-cog results"
VERSION = 1

# An entry with five seeds takes 400 bytes, and 7 kB more with the right answers for 1,000 concepts.
_LARGEST = 1 << 27
_MOST_SEEDS = 1000
_LONGEST_LABEL = 80

# The squares of smaller numbers are finite.
_TOO_LARGE = 1e100

_HEAD = ("format", "version", "label", "toolkit", "written")
_CONCEPTS = ("n_classes", concept_counts.IMAGES, concept_counts.CORRECT, "image_list")
_COUNTS = tuple(field.name for field in dataclasses.fields(Counts))


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
        for field in dataclasses.fields(SeedAverage)
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
    """Read and check a results file; ``flag`` is the flag with which the user gave it, for messages.

    Returns:
        Averages in the order of the file; ``source`` is that of the entry, else the label or the name of the file.

    Raises:
        CogError: when the file cannot be read, has another form, or contains impossible results.
    """
    path = files.require_file(path, flag)
    content = files.read_json(path, "file of --export", largest=_LARGEST)
    try:
        return _read_file(content, name=path.stem)
    except _Invalid as error:
        raise CogError(f"{flag} {path}: {error}") from None


def merge(*groups: tuple[str, Sequence[SeedAverage]]) -> list[SeedAverage]:
    """Return the averages of several files together; equal averages of several files are one.

    Args:
        groups: pairs of the name of a file (for error messages) and its averages.

    Raises:
        CogError: when two files disagree on a number of the same source.
    """
    merged: dict[tuple[Any, ...], tuple[str, SeedAverage]] = {}
    for name, averages in groups:
        for average in averages:
            first, known = merged.setdefault(average.place, (name, average))
            if (known, known.pretraining) != (average, average.pretraining):
                raise CogError(
                    f"{first} and {name} have different numbers of {_describe(average)} under the same label "
                    f"{average.source!r}; change the entry 'label' of one of them"
                )
    return [average for _, average in merged.values()]


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
    _require(content.get("version") == VERSION, "version", content.get("version"), str(VERSION))
    _check_keys(content, (*_HEAD, "entries"), needed=("label", "entries"))
    label, entries = content["label"], content["entries"]
    if label is None:
        printable = "".join(character if character.isprintable() else "?" for character in name)
        label = printable[:_LONGEST_LABEL].strip()
        label = label if _is_label(label) and not _is_paper(label) else "imported"
    _require(_is_label(label) and not _is_paper(label), "label", label, _A_LABEL)
    _require(isinstance(entries, list) and bool(entries), "entries", entries, "a list with anything in it")
    averages: dict[tuple[Any, ...], tuple[int, SeedAverage]] = {}
    for index, entry in enumerate(entries):
        try:
            average = _read_entry(entry, label=label)
        except _Invalid as error:
            raise _Invalid(f"entries[{index}]: {error}") from None
        first, _ = averages.setdefault(average.place, (index, average))
        if first != index:
            raise _Invalid(
                f"entries[{index}] is a second {_describe(average)}; the first is entries[{first}]"
            )
    read = [average for _, average in averages.values()]
    genuine = {average for version in published.SOURCES for average in published.averages(version)}
    for average in read:
        if _is_paper(average.source) and average not in genuine:
            raise _Invalid(
                f"{_describe(average)} is labelled {average.source!r} but is not the published number"
            )
    return read


def _read_entry(entry: Any, *, label: str) -> SeedAverage:
    """Return the average of an entry after checking it; ``label`` is the source of an entry without one."""
    _require(isinstance(entry, dict), "the entry", entry, "an object")
    _check_keys(entry, _CHECKS, needed=_NEEDED)
    fields: dict[str, Any] = {}
    for key, value in entry.items():
        if value is not None or key in _NEEDED:
            is_fine, expected = _CHECKS[key]
            _require(is_fine(value), key, value, expected)
            fields[key] = tuple(value) if isinstance(value, list) else value
            if _NUMBER[0](value):
                fields[key] = int(value) if key == "n_shot" else float(value)
    concepts, counts = fields.pop("concepts", None), fields.pop("counts", {})
    average = SeedAverage(
        **{"source": label} | fields, counts=Counts(**{key: tuple(values) for key, values in counts.items()})
    )
    if not set(average.seeds).isdisjoint(average.missing_seeds):
        raise _Invalid("missing_seeds names a seed that is there")
    for key in ("epochs", "by_seed"):
        fine = len(getattr(average, key)) in (0, len(average.seeds))
        _require(fine, key, entry.get(key), "a number for each seed, or none")
    _check_values(average)
    return average if concepts is None else _with_concepts(average, concepts)


def _check_values(average: SeedAverage) -> None:
    """Check that accuracies are percentages, and that mean and deviation agree with the values of the seeds."""
    value, std, by_seed = average.value, average.std, average.by_seed
    is_accuracy = is_classifier(average.evaluation) and average.metric in METRICS
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


def _with_concepts(average: SeedAverage, concepts: dict[str, Any]) -> SeedAverage:
    """Return an average with its right answers per concept, which must agree with its accuracies."""
    _check_keys(concepts, _CONCEPTS, needed=_CONCEPTS, path="concepts: ")
    n_classes, images, runs, image_list = (concepts[key] for key in _CONCEPTS)
    _require(_is_whole(n_classes), "concepts.n_classes", n_classes, "a whole number")
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


# --- checks of one value


def _is_label(value: Any) -> bool:
    """Return whether a value can name the origin of results; ``runs`` are those found on disk."""
    fine = isinstance(value, str) and value.strip() == value and value.isprintable() and value != RUNS
    return fine and 0 < len(value) <= _LONGEST_LABEL


def _is_paper(label: str) -> bool:
    return label in published.SOURCES.values()


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -_TOO_LARGE < value < _TOO_LARGE  # false for NaN


def _is_whole(value: Any) -> bool:
    return whole(value) is not None and value < 1 << 63


def _list_of(is_fine: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) <= _MOST_SEEDS and all(map(is_fine, value))


def _is_positive(value: Any) -> bool:
    return _is_whole(value) and value > 0


def _is_ascending(value: Any) -> bool:
    return _list_of(_is_whole)(value) and value == sorted(set(value))


def _is_counts(value: Any) -> bool:
    if not isinstance(value, dict) or {*value} != {*_COUNTS}:
        return False
    *numbers, digests = (value[key] for key in _COUNTS)
    fine = all(_is_ascending(some) and 0 not in some for some in numbers)
    return (
        fine
        and _list_of(lambda digest: sha256(digest) is not None)(digests)
        and digests == sorted(set(digests))
    )


def _named(is_name: Callable[[str], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and len(value) <= 255 and is_name(value)


_A_LABEL = (
    f"1 to {_LONGEST_LABEL} printable characters without spaces around them; {RUNS!r} and the names of the papers are "
    "reserved"
)
_PLAIN = _named(constants.is_plain_name), "a name of letters, digits and ._+-"
_NUMBER = _is_number, "a number"
_SEEDS = _is_ascending, f"a list of at most {_MOST_SEEDS} seeds in ascending order, none of them twice"

#: Check of the value of an entry, and what is expected, by key; the keys are the fields of an average.
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model": (_named(constants.is_model_name), "<model_title>_<architecture_name>"),
    "dataset": _PLAIN,
    "evaluation": _PLAIN,
    "metric": _PLAIN,
    "n_shot": (_is_whole, "a whole number"),
    "value": _NUMBER,
    "std": _NUMBER,
    "seeds": _SEEDS,
    "missing_seeds": _SEEDS,
    "by_seed": (_list_of(_is_number), f"a list of at most {_MOST_SEEDS} numbers"),
    "source": (_is_label, _A_LABEL),
    "epochs": (_list_of(_is_positive), f"a list of at most {_MOST_SEEDS} positive numbers"),
    "counts": (
        _is_counts,
        f"an object with {', '.join(_COUNTS)}: ascending positive numbers, SHA-256 digests",
    ),
    "concepts": (lambda value: isinstance(value, dict), f"an object with {', '.join(_CONCEPTS)}"),
    "pretraining": (lambda value: value in PRETRAINING, ", ".join(PRETRAINING)),
}
_NEEDED = tuple(f.name for f in dataclasses.fields(SeedAverage) if f.default is dataclasses.MISSING)
