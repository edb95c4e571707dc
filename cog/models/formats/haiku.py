"""Pickles of DeepMind's BYOL: dill, protocol 2, with Haiku mappings of numpy arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cog import safe_pickle
from cog.errors import CogError, UnsafeFileError


class _Record(safe_pickle.Instance, dict[str, Any]):
    """Stands for an instance of a named tuple: field -> value. Attributes are dropped: the fields are all."""


def _create_namedtuple(name: Any, fields: Any, module: Any, defaults: Any = None) -> safe_pickle.Constructor:
    """Stand-in of dill's: makes records with these fields."""
    if not isinstance(fields, list | tuple) or not all(isinstance(field, str) for field in fields):
        raise UnsafeFileError("a malformed named tuple")
    return safe_pickle.Constructor(lambda *values: _Record(zip(fields, values, strict=True)))


def _create_array(
    constructor: Any, arguments: Any, state: Any, attributes: Any = None
) -> np.ndarray[Any, Any]:
    """Stand-in of dill's: a numpy array."""
    return safe_pickle.build_array(constructor, arguments, state)


def _mapping(content: Any = ()) -> dict[Any, Any]:
    """Stand-in of Haiku's immutable mappings, which are pickled as ``class(dict)``."""
    return dict(content)


_NAMES: dict[tuple[str, str], safe_pickle.Constructor] = {}
for _dill in ("dill._dill", "dill.dill"):  # the module moved in dill 0.2.8
    _NAMES[_dill, "_create_namedtuple"] = safe_pickle.Constructor(_create_namedtuple)
    _NAMES[_dill, "_create_array"] = safe_pickle.Constructor(_create_array)
for _name in ("FlatMapping", "frozendict"):  # renamed in August 2020
    _NAMES["haiku._src.data_structures", _name] = safe_pickle.Constructor(_mapping)


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
            data = safe_pickle.load(file, names=lambda module, name: _NAMES.get((module, name)))
        if not isinstance(data, dict):
            return data
        return {key: _flat(value) if isinstance(value, dict) else value for key, value in data.items()}
    except UnsafeFileError as error:
        raise UnsafeFileError(
            f"refused to read {path}: it contains {error}; expected only named tuples and Haiku mappings of arrays"
        ) from None
    except OSError as error:
        raise CogError(f"cannot read {path}: {error.strerror or error}") from error
    except safe_pickle.MALFORMED as error:
        raise CogError(
            f"{path} is not a readable checkpoint ({type(error).__name__}: {error}); is the download complete?"
        ) from None
