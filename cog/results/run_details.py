"""Entries of ``results.json`` of a run other than its accuracy: settings, features, trials, times."""

from __future__ import annotations

import marshal
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cog.results import ties
from cog.runtime.json_fields import number, text, whole

_PLAIN = frozenset({type(None), str, bool, int})

#: Summary of the trials, which replaces the list of trials in the index of an archive.
COUNTED = ("n_trials", "n_trials_tied", "n_trials_diverged", "best_val_top1")

_KEPT: dict[tuple[Any, bytes], Any] = {}
_MOST_KEPT = 1 << 12


@dataclass(frozen=True)
class Details:
    """Entries of ``results.json`` of a run other than its accuracy; all empty for runs of the original toolkit.

    Entries that are absent or of another type are empty or None: they are for display, and no number is computed from
    them.
    """

    #: The protocol's settings (Settings of cog.logreg.settings) as recorded: numbers, booleans, None, and lists of two
    #: numbers.
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: Recorded identity of the training features: bytes, checkpoint_sha256, image_list_sha256.
    train_features: Mapping[str, Any] = field(default_factory=dict)
    test_features: Mapping[str, Any] = field(default_factory=dict)  # the same for the test features
    train_features_file: str | None = None  # path of the training features during the run
    test_features_file: str | None = None  # path of the test features during the run
    n_classes: int | None = None
    #: Numbers of samples: search_train, search_val, final_train, test.
    rows: Mapping[str, int] = field(default_factory=dict)
    n_trials: int = 0  # recorded trials of the search
    n_trials_diverged: int = 0
    n_trials_tied: int = 0  # trials that are about as good as the best one (cog.results.ties)
    #: Accuracy on the held-out part, in percent, of the trial whose pair was used.
    best_val_top1: float | None = None
    seconds: float = 0.0  # duration of search and final training together
    versions: Mapping[str, str] = field(default_factory=dict)  # versions of Python packages
    device: str | None = None  # cpu, cuda:0, ...
    #: Precision of the products that was used in training, even if CLF.PRECISION asked for another one: bf16, fp32
    #: (search), bf16 (final training).
    precision: str | None = None
    finished: str | None = None  # time of the end, ISO 8601, UTC


#: Details of runs without a record; hundreds of thousands of runs share this object.
NO_DETAILS = Details()


def read_details(record: Mapping[str, Any]) -> Details:
    """Return the details in the content of ``results.json``, or in its entry in the index of an archive."""
    identity = _mapping(record.get("identity"))
    counted = _count_trials(record)
    return Details(
        settings=_shared(
            {key: value for key, value in identity.items() if type(value) is not dict}, _settings
        ),
        train_features=_shared(identity.get("train_features"), _plain),
        test_features=_shared(identity.get("test_features"), _plain),
        train_features_file=_interned(record.get("train_features")),
        test_features_file=_interned(record.get("test_features")),
        n_classes=whole(record.get("n_classes")),
        rows=_shared(record.get("rows"), _whole_numbers),
        n_trials=whole(counted.get("n_trials")) or 0,
        n_trials_tied=whole(counted.get("n_trials_tied")) or 0,
        n_trials_diverged=whole(counted.get("n_trials_diverged")) or 0,
        best_val_top1=number(counted.get("best_val_top1")),
        seconds=sum(max(number(value) or 0.0, 0.0) for value in _mapping(record.get("seconds")).values()),
        versions=_shared(record.get("versions"), texts),
        device=_interned(record.get("device")),
        precision=_interned(record.get("precision")),
        finished=text(record.get("finished")),
    )


def _count_trials(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the entries ``COUNTED`` of the trials of a record; without trials, the record, which may contain them."""
    recorded = record.get("trials")
    trials = [trial for trial in recorded if isinstance(trial, dict)] if isinstance(recorded, list) else []
    if not trials:
        return record
    best, diverged = record.get("best_trial"), [trial.get("diverged") is True for trial in trials]
    accuracies = [
        None if lost else number(trial.get("val_top1")) for trial, lost in zip(trials, diverged, strict=True)
    ]
    chosen = (trial for trial in reversed(trials) if type(best) is int and trial.get("number") == best)
    return {
        "n_trials": len(trials),
        "n_trials_tied": len(ties.tied([math.nan if value is None else value for value in accuracies])),
        "n_trials_diverged": sum(diverged),
        "best_val_top1": next(chosen, {}).get("val_top1"),
    }


def image_list_of_test(details: Details) -> str | None:
    """Return the SHA-256 of the list of test images of a run; None when it is not recorded."""
    return text(details.test_features.get("image_list_sha256"))


def _interned(value: Any) -> str | None:
    """Return a text as an object that hundreds of thousands of runs share; None for other values."""
    content = text(value)
    return content and sys.intern(content)


def _shared(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Return a converted entry of a record; equal entries of hundreds of thousands of runs share one object."""
    key = convert, marshal.dumps(value, 2)  # format 2 has equal bytes for equal values
    kept = _KEPT.get(key)
    if kept is None:
        kept = convert(value)
        if len(_KEPT) >= _MOST_KEPT:
            _KEPT.clear()
        _KEPT[key] = kept
    return kept


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) is float and math.isfinite(value))


def _plain(value: Any) -> dict[str, Any]:
    return {key: item for key, item in _mapping(value).items() if _is_plain(item)}


def _settings(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are plain values, or lists of at most two plain values."""
    return {
        key: value
        for key, value in identity.items()
        if _is_plain(value) or (isinstance(value, list) and len(value) <= 2 and all(map(_is_plain, value)))
    }


def _whole_numbers(value: Any) -> dict[str, int]:
    return {key: n for key, n in _mapping(value).items() if whole(n) is not None}


def texts(value: Any) -> dict[str, str]:
    """Return the texts in a JSON object by key; an empty dict for other values."""
    return {key: item for key, item in _mapping(value).items() if isinstance(item, str)}
