"""Pickles of DeepMind's BYOL: dill, protocol 2, with Haiku mappings of numpy arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cog.errors import UnsafeFileError
from cog.models.formats.errors import errors_explained
from cog.runtime import files, safe_load


class _Record(safe_load.Instance, dict[str, Any]):
    """A stand-in for an instance of a named tuple: field -> value. Attributes other than the fields are dropped."""

    __slots__ = ()
    fields: tuple[str, ...] = ()

    def __new__(cls, *values: Any) -> _Record:
        made = super().__new__(cls)
        made.update(zip(cls.fields, values, strict=True))
        return made

    def __init__(self, *values: Any) -> None:
        """Keep the state that ``__new__`` has set, since a file may call either method."""


@functools.lru_cache(64)
def _record_of(fields: tuple[str, ...]) -> type[_Record]:
    return type("_Record", (_Record,), {"__slots__": (), "fields": fields})


def _create_namedtuple(name: Any, fields: Any, module: Any, defaults: Any = None) -> type[_Record]:
    """Return a class of records with the given fields, in place of dill's function."""
    if not isinstance(fields, list | tuple) or not all(isinstance(field, str) for field in fields):
        raise UnsafeFileError("a malformed named tuple")
    if len(fields) > _MAX_FIELDS:
        raise UnsafeFileError(f"a named tuple of {len(fields)} fields")
    return _record_of(tuple(fields))


def _create_array(
    constructor: Any, arguments: Any, state: Any, attributes: Any = None
) -> np.ndarray[Any, Any]:
    """Return a numpy array, in place of dill's function."""
    return safe_load.build_array(constructor, arguments, state)


def _mapping(content: Any) -> dict[Any, Any]:
    """Return a dict in place of Haiku's immutable mappings, which are pickled as ``class(dict)``."""
    if not isinstance(content, dict):
        raise UnsafeFileError("a malformed mapping")
    return content


_MAX_FIELDS = 100
_MAX_ENTRIES = 100_000

_NAMES: dict[tuple[str, str], Callable[..., Any]] = {}
for _dill in ("dill._dill", "dill.dill"):  # the module moved in dill 0.2.8
    _NAMES[_dill, "_create_namedtuple"] = _create_namedtuple
    _NAMES[_dill, "_create_array"] = _create_array
for _name in ("FlatMapping", "frozendict"):  # renamed in August 2020
    _NAMES["haiku._src.data_structures", _name] = _mapping


def _flat(tree: dict[Any, Any]) -> dict[str, np.ndarray]:
    """Join the keys of nested dicts with slashes; leaves that are no arrays are left out.

    Raises:
        ValueError: too many keys, because the dicts contain one another.
    """
    flat: dict[str, np.ndarray] = {}
    left = _MAX_ENTRIES

    def visit(node: dict[Any, Any], prefix: str) -> None:
        nonlocal left
        for key, value in node.items():
            left -= 1
            if left < 0:
                raise ValueError("mappings that contain one another")
            if isinstance(value, dict):
                visit(value, f"{prefix}{key}/")
            elif isinstance(value, np.ndarray):
                flat[f"{prefix}{key}"] = np.asarray(value)

    visit(tree, "")
    return flat


def read(path: Path) -> Any:
    """Read a pickle of BYOL; neither dill nor Haiku nor JAX is needed.

    Returns:
        The saved object; an entry that is a tree of mappings and named tuples becomes one dict of its arrays, named
        by their path: ``{"experiment_state": {"online_params/res_net50/~/initial_conv/w": array, ...}, ...}``.

    Raises:
        UnsafeFileError: the file names a class or function that BYOL's files do not need; the message has the name.
        CogError: the file is damaged.
    """
    with errors_explained(path, "checkpoint"):
        content = files.contents(path, "checkpoint")
        data = safe_load.unpickle(content, names=lambda module, name: _NAMES.get((module, name)))
        if not isinstance(data, dict):
            return data
        return {key: _flat(value) if isinstance(value, dict) else value for key, value in data.items()}
