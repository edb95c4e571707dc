"""Entries of ``results.json`` of a run other than its accuracy: settings, features, software, device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cog.runtime.json_fields import text, whole

_PLAIN = frozenset({type(None), str, bool, int})


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
    versions: Mapping[str, str] = field(default_factory=dict)  # versions of Python packages
    device: str | None = None  # cpu, cuda:0, ...
    #: Precision of the products that was used in training, even if CLF.PRECISION asked for another one: bf16, fp32
    #: (search), bf16 (final training).
    precision: str | None = None
    finished: str | None = None  # time of the end, ISO 8601, UTC


def read_details(record: Mapping[str, Any]) -> Details:
    """Return the details in the content of ``results.json``."""
    identity = _mapping(record.get("identity"))
    return Details(
        settings=_settings(identity),
        train_features=_plain(identity.get("train_features")),
        test_features=_plain(identity.get("test_features")),
        train_features_file=text(record.get("train_features")),
        test_features_file=text(record.get("test_features")),
        n_classes=whole(record.get("n_classes")),
        rows=_whole_numbers(record.get("rows")),
        versions=texts(record.get("versions")),
        device=text(record.get("device")),
        precision=text(record.get("precision")),
        finished=text(record.get("finished")),
    )


def image_list_of_test(details: Details) -> str | None:
    """Return the SHA-256 of the list of test images of a run; None when it is not recorded."""
    return text(details.test_features.get("image_list_sha256"))


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
