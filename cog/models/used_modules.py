"""The modules that a user's forward function works with, also outside the network that it belongs to."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from typing import Any

from torch import nn


def used_modules(function: Any) -> list[nn.Module]:
    """Return the modules that a function refers to, without their submodules.

    They are found in the function's closure, default arguments and globals, in the object of a method, in the arguments
    of a ``functools.partial``, and in the lists, dicts and attributes of objects that are found in this way.
    """
    modules: list[nn.Module] = []
    seen: dict[int, Any] = {}
    todo = [function]
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, nn.Module):
            modules.append(value)
        else:
            todo += _parts(value)
    return modules


def _parts(value: Any) -> list[Any]:
    """Return what a value refers to directly."""
    if isinstance(value, types.FunctionType):
        parts = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                parts.append(cell.cell_contents)
        named = (value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__)
        return parts + [x for x in named if not _is_foreign(x, value)]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, list | tuple | set):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if inspect.isclass(value) or inspect.ismodule(value):
        return []
    return list(getattr(value, "__dict__", {}).values())


def _names(code: types.CodeType) -> set[str]:
    """Return the names of globals in a function, and in the functions and comprehensions inside it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _is_foreign(value: Any, user: types.FunctionType) -> bool:
    """Return whether a value is a function of another file, such as one of torch: a long way, to no module."""
    return isinstance(value, types.FunctionType) and value.__globals__ is not user.__globals__
