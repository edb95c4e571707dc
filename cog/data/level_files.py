"""The two level files: the concepts of each level, and the training and test images of each concept."""

import os
import pickle
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cog.constants import SPLITS
from cog.data.wnids import is_wnid
from cog.errors import CogError
from cog.runtime import files, safe_load

Levels = list[list[str]]
Split = dict[str, dict[str, np.ndarray]]

_LARGEST = 1 << 33  # bytes of a split file; the paper's 5000 concepts take 680 MB

# Names that are empty, of no file, absolute, or of a file outside of the root.
_ODD = re.compile(r"\A\Z|[\0\ud800-\udc7f\udd00-\udfff]|\A.:|(?:\A|[/\\])\.\.(?:[/\\]|\Z)")


def read_levels(path: str | os.PathLike[str]) -> Levels:
    """Read ``cog_levels_mapping_file.pkl``: a pickle of a list of lists of wnids, level L1 first."""
    data = safe_load.load_pickle(path)
    if not isinstance(data, list | tuple) or not data:
        raise CogError(f"{path} holds no list of levels, each a list of ids such as 'n02084071'")
    return _check_levels(data, str(path))


def write_levels(path: str | os.PathLike[str], levels: Sequence[Sequence[str]]) -> None:
    """Write ``levels``, ids by level, L1 first, as a pickle of a plain list of lists of strings."""
    with files.atomic_write(path) as handle:
        pickle.dump(_check_levels(levels, "the levels"), handle, protocol=4)


def _check_levels(levels: Iterable[Any], source: str) -> Levels:
    checked = [list(e) if isinstance(e, list | tuple) or np.ndim(e) == 1 else [] for e in levels]
    for number, level in enumerate(checked, start=1):
        seen = set[str]()
        for wnid in level or ["none"]:
            if not isinstance(wnid, str) or not is_wnid(wnid) or wnid in seen:
                raise CogError(f"{source}: level {number} has {reprlib.repr(wnid)}, expected different ids")
            seen.add(wnid)
    return [list(map(str, level)) for level in checked]


def read_split(path: str | os.PathLike[str], concepts: Iterable[str] | None = None) -> Split:
    """Read ``cog_concepts_split_file.pkl``: a pickle of ``wnid -> {"train": names, "test": names}``.

    Names are relative to the root of the images; leading slashes and backslashes are dropped. Only
    ``concepts`` (default: all) are checked and returned, as arrays ``(n,)``.
    """
    data = safe_load.load_pickle(path, largest=_LARGEST)
    if not isinstance(data, dict) or not data:
        raise CogError(f"{path} holds no dict from ids to {{'train': file names, 'test': file names}}")
    wanted = list(data if concepts is None else dict.fromkeys(concepts))
    if missing := [wnid for wnid in wanted if wnid not in data]:
        lacks = f"{len(missing):,} of {len(wanted):,} concepts ({missing[0]})"
        raise CogError(f"{path} has no images for {lacks}; the split and the levels must belong together")
    return {wnid: _check_concept(data[wnid], f"{path}: concept {wnid}") for wnid in wanted}


def write_split(path: str | os.PathLike[str], split: Mapping[str, Mapping[str, Any]]) -> None:
    """Write ``split`` atomically in the form that :func:`read_split` reads."""
    plain = {str(wnid): _check_concept(parts, f"concept {wnid}") for wnid, parts in split.items()}
    with files.atomic_write(path) as handle:
        pickler = pickle.Pickler(handle, protocol=4)
        # No memo of the written objects: it would hold a second copy of every array, 700 MB for the paper.
        pickler.fast = True
        pickler.dump(plain)


def _check_concept(parts: Any, place: str) -> dict[str, np.ndarray]:
    if not isinstance(parts, Mapping) or any(part not in parts for part in SPLITS):
        raise CogError(f"{place} has no 'train' and 'test' lists of file names")
    checked = {part: _names(parts[part], f"{place}, {part}") for part in SPLITS}
    if len({*checked["train"].tolist(), *checked["test"].tolist()}) < sum(map(len, checked.values())):
        raise CogError(f"{place} names the same image twice, expected every image once")
    return checked


def _names(names: Any, place: str) -> np.ndarray:
    given = names.tolist() if isinstance(names, np.ndarray) and names.ndim == 1 else names
    if not isinstance(given, list | tuple) or not given or not all(isinstance(name, str) for name in given):
        raise CogError(f"{place} is {reprlib.repr(given)}, expected a list or an array of file names")
    inside = [name.lstrip("/\\") for name in given]
    if odd := [name for name in inside if _ODD.search(name)]:
        raise CogError(f"{place} has {odd[0]!r}, expected file names inside the root of the images")
    return np.array(inside) if inside != given else np.asarray(names, np.str_)


def draw(names: Sequence[str], *, wnid: str, n_test: int, max_train: int, seed: int) -> dict[str, np.ndarray]:
    """Choose the test and training images of one concept, once for all experiments (paper, Sec. 4.1, A.4).

    The choice depends on the seed, the concept and the set of its images only; names are ascending. A smaller
    ``max_train`` keeps the test images, and a subset of the training images.
    """
    if len(names) <= n_test:
        raise CogError(f"concept {wnid} has {len(names)} images, expected at least {n_test + 1}")
    ordered = np.array(sorted(names))
    # Raw numbers, because NumPy never changes those of a bit generator, while its shuffles may change.
    raw = np.random.PCG64(np.random.SeedSequence([seed, int(wnid[1:])])).random_raw(len(ordered))
    order = np.argsort(np.asarray(raw, dtype=np.uint64), kind="stable")
    test, train = order[:n_test], order[n_test : n_test + max_train]
    return {"train": ordered[np.sort(train)], "test": ordered[np.sort(test)]}
