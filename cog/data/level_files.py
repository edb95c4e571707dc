"""The two level files: the concepts of each level, and the training and test images of each concept."""

from __future__ import annotations

import os
import pickle
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cog.data.wnids import is_wnid
from cog.errors import CogError
from cog.runtime import files, safe_load

Levels = list[list[str]]
Split = dict[str, dict[str, np.ndarray]]
PARTS = ("train", "test")

# Limit of the size of a split file in bytes; the paper's 5000 concepts take 680 MB.
_LARGEST = 1 << 33

# In names between line breaks: a name that may be absolute, leave the root, or be empty.
_ODD = re.compile(r"\n[/\\\n]|\.\.|\0|\n[A-Za-z]:")


def read_levels(path: str | os.PathLike[str]) -> Levels:
    """Read ``cog_levels_mapping_file.pkl``: a pickle of a list of lists of wnids, level L1 first.

    The same concept may be in two levels (random draws overlap), but not twice in one level.
    """
    data = safe_load.load_pickle(path)
    if not isinstance(data, list | tuple) or not data:
        raise CogError(
            f"{path} holds {_shown(data)}, expected a list of levels, each a list of ids such as 'n02084071'"
        )
    levels = [level.tolist() if isinstance(level, np.ndarray) else level for level in data]
    return check_levels(
        [list(level) if isinstance(level, tuple) else level for level in levels], source=str(path)
    )


def write_levels(path: str | os.PathLike[str], levels: Sequence[Sequence[str]]) -> None:
    """Write ``levels``, ids by level, L1 first, as a pickle of a plain list of lists of strings."""
    files.write_pickle(
        path, check_levels([[str(wnid) for wnid in level] for level in levels], source="the levels")
    )


def check_levels(levels: Sequence[Any], *, source: str) -> Levels:
    """Return ``levels`` when every one is a list of different noun ids."""
    for number, level in enumerate(levels, start=1):
        place = f"{source}: level {number}"
        if not isinstance(level, list) or not level:
            raise CogError(f"{place} is {_shown(level)}, expected a non-empty list of ids")
        for wnid in level:
            if not isinstance(wnid, str) or not is_wnid(wnid):
                raise CogError(f"{place} contains {reprlib.repr(wnid)}, expected ids such as 'n02084071'")
        if len(set(level)) < len(level):
            twice = next(wnid for position, wnid in enumerate(level) if wnid in level[:position])
            raise CogError(f"{place} lists {twice} twice, expected every concept once")
    return list(levels)


def _shown(value: object) -> str:
    empty = "an empty" if isinstance(value, list | tuple | dict) and not value else "a"
    return f"{empty} {type(value).__name__}"


def read_split(path: str | os.PathLike[str], concepts: Iterable[str] | None = None) -> Split:
    """Read ``cog_concepts_split_file.pkl``: a pickle of ``wnid -> {"train": names, "test": names}``.

    Names are relative to the root of the images, such as ``n02084071/n02084071_10.JPEG``; leading slashes and
    backslashes, which files of the original toolkit may have, are dropped. Only the requested ``concepts``
    (default: all) are checked, converted and kept, in their order: the file of the paper's 5000 concepts has
    680 MB.

    Returns:
        ``{wnid: {"train": array, "test": array}}``, arrays of ``str`` of shape ``(n,)``, possibly read-only.
    """
    data = safe_load.load_pickle(path, largest=_LARGEST)
    if not isinstance(data, dict) or not data:
        raise CogError(
            f"{path} holds {_shown(data)}, expected a split file: a dict from ids to {{'train': file names, "
            "'test': file names}"
        )
    wanted = list(data if concepts is None else dict.fromkeys(concepts))
    if missing := [wnid for wnid in wanted if wnid not in data]:
        lacks = f"no images for {len(missing):,} of {len(wanted):,} concepts, the first is {missing[0]}"
        raise CogError(f"{path} has {lacks}; the split and the levels must belong together")
    return {wnid: _check_concept(data[wnid], f"{path}: concept {wnid}") for wnid in wanted}


def write_split(path: str | os.PathLike[str], split: Mapping[str, Mapping[str, Any]]) -> None:
    """Write ``split`` atomically in the form that :func:`read_split` reads."""
    plain = {
        str(wnid): _check_concept(
            {part: np.asarray(parts[part], dtype=np.str_) for part in PARTS}, f"the split of concept {wnid}"
        )
        for wnid, parts in split.items()
    }
    with files.atomic_write(path) as handle:
        pickler = pickle.Pickler(handle, protocol=4)
        # No memo of the written objects: it would hold a second copy of every array, 700 MB for the paper.
        pickler.fast = True
        pickler.dump(plain)


def draw(names: Sequence[str], *, wnid: str, n_test: int, max_train: int, seed: int) -> dict[str, np.ndarray]:
    """Choose the test and training images of one concept, once for all experiments (paper, Sec. 4.1, A.4).

    The choice depends on the seed, the concept and the set of its images only: not on the order in which a
    file system lists them, nor on other concepts. A smaller ``max_train`` keeps a subset of the training
    images, and the test images.

    Returns:
        ``{"train": array, "test": array}`` of file names, each ascending.
    """
    if len(names) <= n_test:
        found = f"concept {wnid} has {len(names)} images, expected at least {n_test + 1}"
        raise CogError(f"{found}: {n_test} for testing and one for training")
    ordered = np.array(sorted(names))
    # Raw numbers, because NumPy never changes those of a bit generator, while its shuffles may change.
    raw = np.random.PCG64(np.random.SeedSequence([seed, int(wnid[1:])])).random_raw(len(ordered))
    order = np.argsort(np.asarray(raw, dtype=np.uint64), kind="stable")
    test, train = order[:n_test], order[n_test : n_test + max_train]
    return {"train": ordered[np.sort(train)], "test": ordered[np.sort(test)]}


def _check_concept(parts: Any, place: str) -> dict[str, np.ndarray]:
    if not isinstance(parts, dict) or any(part not in parts for part in PARTS):
        raise CogError(f"{place} has no 'train' and 'test' lists of file names")
    checked = {part: _names(parts[part], f"{place}, {part}") for part in PARTS}
    flat = [name for names in checked.values() for name in names.tolist()]
    if len(set(flat)) < len(flat):
        raise CogError(f"{place} names the same image twice, expected every image once")
    return checked


def _names(names: Any, place: str) -> np.ndarray:
    """Return ``names`` as an array of relative names, without a copy when they are one already."""
    if isinstance(names, list | tuple) or (isinstance(names, np.ndarray) and names.dtype == object):
        if any(not isinstance(name, str) for name in names):
            raise CogError(f"{place} contains something that is not a file name (a string)")
        names = np.array(list(names), dtype=np.str_)
    if not isinstance(names, np.ndarray) or names.dtype.kind != "U" or names.ndim != 1 or not len(names):
        found = f"an array of {names.dtype}" if isinstance(names, np.ndarray) else _shown(names)
        raise CogError(f"{place} is {found}, expected a list or an array of at least one file name")
    lines = "\n".join(names.tolist())
    try:
        os.fsencode(lines)
    except ValueError as error:  # lone surrogates
        raise CogError(f"{place} contains characters that no file name can have") from error
    is_odd = _ODD.search(f"\n{lines}\n")
    return np.array([_inside(name, place) for name in names.tolist()]) if is_odd else names


def _inside(name: str, place: str) -> str:
    inside = name.lstrip("/\\")
    if not inside or "\0" in inside or inside[1:2] == ":" or ".." in re.split(r"[/\\]", inside):
        raise CogError(f"{place} contains {name!r}, expected file names inside the root of the images")
    return inside
