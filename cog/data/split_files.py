"""Training and test images of concepts: the split file, and new draws."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cog.errors import CogError
from cog.runtime import files, safe_load

Split = dict[str, dict[str, np.ndarray]]
PARTS = ("train", "test")

# Limit of the file's size in bytes; the paper's 5000 concepts take 680 MB.
_LARGEST = 1 << 33
# Limit of file systems.
_LONGEST_NAME = 4096

_DRIVE = re.compile(r"[A-Za-z]:")
# In names between line breaks: a name that may be absolute, leave the root, or be empty.
_ODD = re.compile(r"\n[/\\\n]|\.\.|\0|\n[A-Za-z]:")


def read_split(path: str | os.PathLike[str], concepts: Iterable[str] | None = None) -> Split:
    """Read a split file: a pickle of ``wnid -> {"train": names, "test": names}``.

    Names are relative to the root of the images, such as ``n02084071/n02084071_10.JPEG``; leading
    slashes and backslashes, which files of the original toolkit may have, are dropped. Only the requested
    concepts are checked, converted and kept: the file of the paper's 5000 concepts has 680 MB.

    Args:
        path: the split file.
        concepts: wnids to return, in this order (default: all of the file).

    Returns:
        ``{wnid: {"train": array, "test": array}}``, arrays of ``str`` of shape ``(n,)``, possibly read-only.
    """
    data = safe_load.load_pickle(path, largest=_LARGEST)
    if not isinstance(data, dict) or not data:
        raise CogError(
            f"{path} holds a {type(data).__name__}{' without entries' if data == {} else ''}, expected "
            "a split file: a dict from ids to {'train': file names, 'test': file names}"
        )
    wanted = list(data if concepts is None else dict.fromkeys(concepts))
    missing = [wnid for wnid in wanted if wnid not in data]
    if missing:
        raise CogError(
            f"{path} has no images for {len(missing):,} of {len(wanted):,} concepts, the first is "
            f"{missing[0]}; "
            "the split and the levels must belong together"
        )
    return {wnid: _check_concept(data[wnid], f"{path}: concept {wnid}") for wnid in wanted}


def write_split(path: str | os.PathLike[str], split: Mapping[str, Mapping[str, Any]]) -> None:
    """Write ``split`` atomically in the form that :func:`read_split` reads."""
    plain = {
        str(wnid): {part: np.asarray(parts[part], dtype=np.str_) for part in PARTS}
        for wnid, parts in split.items()
    }
    for wnid, parts in plain.items():
        _check_concept(parts, f"the split of concept {wnid}")
    with files.atomic_write(path) as handle:
        pickler = pickle.Pickler(handle, protocol=4)
        # No memo of the written objects: it would hold a second copy of every array, 700 MB for the paper's split.
        pickler.fast = True
        pickler.dump(plain)


def draw(names: Sequence[str], *, wnid: str, n_test: int, max_train: int, seed: int) -> dict[str, np.ndarray]:
    """Choose the test and training images of one concept, once for all experiments (paper, Sec. 4.1, A.4).

    The choice depends on the seed, the concept and the set of its images only: not on the order in which
    a file system lists them, nor on other concepts. A smaller ``max_train`` keeps a subset of the training
    images, and the test images.

    Args:
        names: file names, without repetition.
        wnid: id of the concept.
        n_test: number of test images.
        max_train: largest number of training images; up to it, all images that are not test images.
        seed: seed of the draw, at least 0.

    Returns:
        ``{"train": array, "test": array}``, each ascending.
    """
    if len(names) <= n_test:
        raise CogError(
            f"concept {wnid} has {len(names)} images, expected at least {n_test + 1}: {n_test} for "
            f"testing and one for training"
        )
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
    n_images = sum(len(names) for names in checked.values())
    if len(set().union(*(names.tolist() for names in checked.values()))) < n_images:
        raise CogError(
            f"{place} names the same image twice, expected every image once, for training or for testing"
        )
    return checked


def _names(names: Any, place: str) -> np.ndarray:
    """Return ``names`` as an array of relative names, without a copy when they are one already."""
    if isinstance(names, list | tuple) or (isinstance(names, np.ndarray) and names.dtype == object):
        if any(not isinstance(name, str) for name in names):
            raise CogError(f"{place} contains something that is not a file name (a string)")
        longest = max(map(len, names), default=0)
        if longest > _LONGEST_NAME:
            raise CogError(
                f"{place} contains a name of {longest:,} characters, expected at most {_LONGEST_NAME:,}"
            )
        names = np.array(list(names), dtype=np.str_)
    names = np.asarray(names) if isinstance(names, np.ndarray) else names
    if not isinstance(names, np.ndarray) or names.dtype.kind != "U" or names.ndim != 1:
        kind = f"array of {names.dtype}" if isinstance(names, np.ndarray) else type(names).__name__
        raise CogError(f"{place} is a {kind}, expected a list or an array of file names")
    if len(names) == 0:
        raise CogError(f"{place} is empty, expected at least one file name")
    try:
        lines = "\n".join(names.tolist())
        os.fsencode(lines)
    except ValueError as error:  # lone surrogates
        raise CogError(f"{place} contains characters that no file name can have") from error
    return (
        np.array([_relative(name, place) for name in names.tolist()])
        if _ODD.search(f"\n{lines}\n")
        else names
    )


def _relative(name: str, place: str) -> str:
    """Return ``name`` without leading separators."""
    inside = name.lstrip("/\\")
    if not inside or "\0" in inside or _DRIVE.match(inside) or ".." in re.split(r"[/\\]", inside):
        raise CogError(f"{place} contains {name!r}, expected file names inside the root of the images")
    return inside
