"""Pickles of DeepMind's BYOL: dill, protocol 2, with Haiku mappings of numpy arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cog.errors import CogError, UnsafeFileError
from cog.safe_load import UNREADABLE, RestrictedUnpickler, _Array, _array, finish


class _Record(dict[str, Any]):
    """Stands for an instance of a named tuple: field -> value."""

    fields: tuple[str, ...] = ()

    def __new__(cls, *values: Any) -> _Record:
        record = super().__new__(cls)
        record.update(zip(cls.fields, values, strict=True))
        return record

    def __setstate__(self, state: Any) -> None:
        """Ignore attributes: the fields are all there is."""


def _create_namedtuple(name: Any, fields: Any, module: Any, defaults: Any = None) -> type[_Record]:
    """Stand-in of dill's: a class that collects the fields."""
    if not all(isinstance(field, str) for field in fields):
        raise UnsafeFileError("a malformed named tuple")
    return type("_Record", (_Record,), {"fields": tuple(fields)})


def _create_array(constructor: Any, arguments: Any, state: Any, attributes: Any = None) -> _Array:
    """Stand-in of dill's: a numpy array."""
    if constructor is not _array:
        raise UnsafeFileError("an array of a foreign class")
    array = _array(*arguments)
    array.__setstate__(state)
    return array


def _mapping(content: Any = ()) -> dict[Any, Any]:
    """Stand-in of Haiku's immutable mappings, which are pickled as ``class(dict)``."""
    return dict(content)


_EXTRA: dict[tuple[str, str], Any] = {}
for _dill in ("dill._dill", "dill.dill"):  # the module moved in dill 0.2.8
    _EXTRA[_dill, "_create_namedtuple"] = _create_namedtuple
    _EXTRA[_dill, "_create_array"] = _create_array
for _name in ("FlatMapping", "frozendict"):  # renamed in August 2020
    _EXTRA["haiku._src.data_structures", _name] = _mapping


def _flat(tree: dict[Any, Any], prefix: str = "") -> dict[str, np.ndarray]:
    """Join the keys of nested dicts with slashes; leaves that are no arrays are left out."""
    flat: dict[str, np.ndarray] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}/")
        elif isinstance(value, np.ndarray):
            flat[f"{prefix}{key}"] = value
    return flat


def read(path: Path) -> Any:
    """Read such a pickle; neither dill nor Haiku nor JAX is needed.

    Returns:
        What was saved; an entry that is a tree of mappings and named tuples becomes one dict of its arrays, named
        by their path: ``{"experiment_state": {"online_params/res_net50/~/initial_conv/w": array, ...}, ...}``.

    Raises:
        UnsafeFileError: when it names anything that such a file does not need (the name is in the message).
        CogError: when it is damaged.
    """
    try:
        with open(path, "rb") as file:
            data = finish(RestrictedUnpickler(file, _EXTRA).load())
        if not isinstance(data, dict):
            return data
        return {key: _flat(value) if isinstance(value, dict) else value for key, value in data.items()}
    except UnsafeFileError as error:
        raise UnsafeFileError(
            f"refused to read {path}: it contains {error}; expected only named tuples and Haiku mappings of arrays"
        ) from None
    except OSError as error:
        raise CogError(f"cannot read {path}: {error.strerror or error}") from error
    except UNREADABLE as error:
        raise CogError(
            f"{path} is not a readable checkpoint ({type(error).__name__}: {error}); is the download complete?"
        ) from None
