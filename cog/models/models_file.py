"""``models.yaml``: a user's models in one file, one entry per name (docs/own-models.md)."""

import os
from pathlib import Path
from typing import Any

from cog import config
from cog.constants import GEOMETRIES, POOLINGS, PRETRAINING
from cog.errors import CogError
from cog.models.preprocessing import KEYS, check_keys, keys_of
from cog.paths import split_model_name

_KEYS = ("source", "loader", "checkpoint", "preprocess", "pooling", "pretraining")
_KNOWN = {"pooling": POOLINGS, "pretraining": PRETRAINING}


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the entries by name, unchecked; a CogError for a file that is no mapping."""
    return {str(name): entry for name, entry in config.read_yaml(path).items()}


def parse(path: str | os.PathLike[str], name: str, entry: Any) -> dict[str, Any]:
    """Return the checked values of an entry by key, with "cfg", the configuration keys that it sets."""
    place = f"{path}: {name}"
    split_model_name(name, flag=f"{path}:")
    if not isinstance(entry, dict | None):
        raise CogError(f"{place} is {type(entry).__name__}, expected keys such as {', '.join(_KEYS[:3])}")
    values = {key: value for key, value in (entry or {}).items() if value is not None}
    check_keys(values, _KEYS, place)
    for key, value in values.items():
        if key != "preprocess" and not (isinstance(value, str) and value.strip() and len(value) < 1000):
            raise CogError(f"{place}: {key} {value!r} is not text, expected a string")
        if key in _KNOWN and value not in _KNOWN[key]:
            raise CogError(f"{place}: {key} {value!r} is not known, expected {', '.join(_KNOWN[key])}")
    if "source" in values and "loader" in values:
        raise CogError(f"{place} has a source and a loader; give one of them")
    given = values.pop("preprocess", GEOMETRIES[0])
    cfg: dict[str, Any] = {"FT_EXTRACT.POOLING": values.pop("pooling", POOLINGS[0])}
    if isinstance(given, dict):
        cfg |= keys_of(given, place)
    elif given in GEOMETRIES:
        cfg["FT_EXTRACT.PREPROCESS"] = given
    else:
        raise CogError(f"{place}: preprocess {given!r}, expected {', '.join((*GEOMETRIES, *KEYS))}")
    try:
        config.get_cfg(entry_values=cfg, entry_source=str(path))
    except CogError as error:
        raise CogError(f"{place}: {error}") from None
    folder = Path(path).resolve().parent
    places = {key: str(folder / values[key]) for key in values.keys() & {"loader", "checkpoint"}}
    return values | places | {"cfg": cfg}
