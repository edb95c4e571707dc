"""The levels file, ``cog_levels_mapping_file.pkl``."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Sequence

from cog.data.wnids import is_wnid
from cog.errors import CogError
from cog.runtime import files, safe_load

Levels = list[list[str]]


def read_levels(path: str | os.PathLike[str]) -> Levels:
    """Read a levels file: a pickle of a list of lists of wnids, level L1 first.

    Any number of levels of any sizes is accepted. The same concept may be in two levels (random
    draws overlap), but not twice in one level.
    """
    data = safe_load.load_pickle(path)
    if not isinstance(data, list | tuple) or not data:
        raise CogError(
            f"{path} holds {_shown(data)}, expected a list of levels, each a list of ids such as 'n02084071'"
        )
    return check_levels([_to_list(level) for level in data], source=str(path))


def write_levels(path: str | os.PathLike[str], levels: Sequence[Sequence[str]]) -> None:
    """Write ``levels``, ids by level, L1 first, atomically as a pickle of a plain list of lists of strings."""
    checked = check_levels([[str(wnid) for wnid in level] for level in levels], source="the levels")
    files.write_pickle(path, checked)


def check_levels(levels: Sequence[object], *, source: str) -> Levels:
    """Return ``levels`` when every one is a list of different noun ids."""
    checked: Levels = []
    for number, level in enumerate(levels, start=1):
        if not isinstance(level, list) or not level:
            raise CogError(f"{source}: level {number} is {_shown(level)}, expected a non-empty list of ids")
        for wnid in level:
            if not isinstance(wnid, str) or not is_wnid(wnid):
                raise CogError(
                    f"{source}: level {number} contains {reprlib.repr(wnid)}, expected ids such as 'n02084071'"
                )
        if len(set(level)) < len(level):
            twice = next(wnid for position, wnid in enumerate(level) if wnid in level[:position])
            raise CogError(f"{source}: level {number} lists {twice} twice, expected every concept once")
        checked.append(level)
    return checked


def _to_list(level: object) -> object:
    """Return a tuple or a numpy array of ids as a list; return other values unchanged."""
    if hasattr(level, "tolist"):
        level = level.tolist()
    return list(level) if isinstance(level, list | tuple) else level


def _shown(value: object) -> str:
    if isinstance(value, list | tuple | dict) and not value:
        return f"an empty {type(value).__name__}"
    return f"a {type(value).__name__}"
