"""Feature files (``X_Y.pth``): written, read, checked and l2-normalized."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cog import constants
from cog.errors import CogError, UnsafeFileError
from cog.features.rows import rows_digest
from cog.paths import features_file
from cog.runtime import files, seeds
from cog.runtime.safe_load import load_torch

logger = logging.getLogger(__name__)

METADATA_FILE = "features.json"

#: Rows that are checked and normalized at a time; they stay in the processor's cache between the two.
_CHUNK_ROWS = 512

#: Share of the test rows that may be training rows without a warning: data sets have a few images twice.
_SHARED = 0.01

#: Types that take half the space (``FT_EXTRACT.SAVE_DTYPE``).
ROUNDED = (torch.float16, torch.bfloat16)

#: Norms below this value may have lost digits in float32, in which squares below 1e-38 lose digits.
_SMALLEST_NORM = 1e-12


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Features and labels of one split.

    Attributes:
        x: features ``(n, d)``, float32, or as stored.
        y: labels ``(n,)``, int64, or as stored.
        name: ``<model>_<dataset>_<split>``.
        norms: divisors of the rows, ``(n, 1)``, float32 or float64, if ``x`` is kept rounded; else None.
        class_list: digest of the names of the classes (:func:`cog.data.wnids.class_list_digest`); None: not known.
    """

    x: torch.Tensor
    y: torch.Tensor
    name: str
    norms: torch.Tensor | None = None
    class_list: str | None = None

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, which: slice | torch.Tensor) -> torch.Tensor:
        """Return rows of the features, divided by their norms; those of float64 norms are not rounded to float32."""
        x = self.x[which]
        return x if self.norms is None else x.float() / self.norms[which]


def check_pair(train: FeatureSet, test: FeatureSet) -> str:
    """Return a warning when test rows are training rows, or the names are not those of one model's splits, else "".

    Neither is an error: other test sets of the same classes, and the training accuracy, are valid uses.
    """
    if None not in (train.class_list, test.class_list) and train.class_list != test.class_list:
        raise CogError(
            f"training features {train.name} and test features {test.name} are of different classes, whose labels do "
            "not agree; extract both splits with the same class folders"
        )
    widths = train.x.shape[1], test.x.shape[1]
    if widths[0] != widths[1]:
        raise CogError(
            f"training features have {widths[0]} dimensions, test features {widths[1]}; extract both with the same "
            "model"
        )
    if (n := shared_rows(train, test)) > _SHARED * len(test):
        return (
            f"{n} of {len(test)} test features {test.name} are also training features {train.name}: if both splits "
            "have the same images, this is no test accuracy"
        )
    origins, splits = zip(*(features.name.rpartition("_")[::2] for features in (train, test)), strict=True)
    if not {*splits} <= {*constants.SPLITS} or (origins[0] == origins[1] and splits == constants.SPLITS):
        return ""
    return (
        f"training features are {train.name}, test features {test.name}: not the training and the test split of one "
        "model and data set, so the numbers mean something only if both have the same classes"
    )


def shared_rows(train: FeatureSet, test: FeatureSet) -> int:
    """Return the number of test rows that are also training rows, by the bits of their first 256 features.

    Rows of zeros do not count.
    """
    width = min(train.x.shape[1], 256)
    weights = torch.randint(2**62, (width,), generator=seeds.cpu_generator(0))

    def digests(features: FeatureSet) -> torch.Tensor:
        parts = []
        for start in range(0, len(features), _CHUNK_ROWS):
            rows = features.rows(slice(start, start + _CHUNK_ROWS))[:, :width].float().contiguous()
            # Sums of whole numbers do not depend on their order.
            parts.append((rows.view(torch.int32).long() * weights).sum(1))
        return torch.cat(parts)

    of_test = digests(test)
    return int((torch.isin(of_test, digests(train)) & (of_test != 0)).sum())


def save(features: FeatureSet, path: str | os.PathLike[str]) -> None:
    """Write ``X_Y.pth`` (``X`` in its type, ``Y`` int64, ``name``), whole or not at all."""
    data = {"X": features.x.contiguous(), "Y": features.y.contiguous(), "name": features.name}
    with files.atomic_write(path) as handle:
        torch.save(data, handle)


def load(path: str | os.PathLike[str], *, normalize: bool = False, rounded: bool = False) -> FeatureSet:
    """Read ``X_Y.pth``, written by this toolkit or by the original one.

    Args:
        path: the file, or the folder that holds it.
        normalize: whether to l2-normalize the rows.
        rounded: whether to keep float16 and bfloat16 features in their type, in half the memory.

    Returns:
        Features as float32 (rounded features keep their type), labels as int64.
    """
    path = features_file(path)
    stored = open_file(path, mapped=True)
    is_rounded = stored.x.dtype in ROUNDED
    if rounded or not is_rounded:  # else their conversion to float32 makes the only copy in memory
        stored = open_file(path)
    record = (
        files.read_object(path.with_name(METADATA_FILE)) if path.with_name(METADATA_FILE).is_file() else {}
    )
    if record.get("rows_sha256") not in (None, rows_digest(stored.x, stored.y)):
        raise CogError(
            f"{path} does not have the features that {METADATA_FILE} beside it describes; restore one of them, "
            "or extract the features again (--overwrite)"
        )
    as_stored = rounded and is_rounded and stored.x.is_contiguous()
    # Detached and contiguous: they are normalized in place.
    x = stored.x.detach() if as_stored else stored.x.detach().float().contiguous()
    norms = check_and_normalize_(x, str(path), normalize=normalize, in_place=not as_stored)
    return FeatureSet(x, stored.y.long(), stored.name, norms, record.get("class_list_sha256"))


def open_file(path: str | os.PathLike[str], *, mapped: bool = False) -> FeatureSet:
    """Open ``X_Y.pth`` and check its form, see :func:`load`; types are those of the file, values are not checked.

    ``mapped`` features are read from the file when they are used.
    """
    path = features_file(path)
    if not path.is_file():
        raise CogError(f"features {path} do not exist; run extract_features.py first, or check the path")
    data = _read(path, mapped)
    if not isinstance(data, dict) or not {"X", "Y"} <= set(data):
        content = ", ".join(map(str, list(data)[:5])) if isinstance(data, dict) else type(data).__name__
        raise CogError(f"{path} holds {content}, expected a dict with X and Y")
    x, y = data["X"], data["Y"]
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        raise CogError(f"{path}: X and Y must be tensors, found {type(x).__name__} and {type(y).__name__}")
    if any(t.layout != torch.strided or t.is_nested or t.is_meta or t.is_quantized for t in (x, y)):
        raise CogError(f"{path}: X and Y must be plain dense tensors")
    if x.ndim != 2 or y.ndim != 1 or len(x) != len(y):
        raise CogError(
            f"{path}: X has shape {tuple(x.shape)} and Y {tuple(y.shape)}, expected (n, d) and (n,) with equal n"
        )
    if x.numel() == 0:
        raise CogError(f"{path}: X has shape {tuple(x.shape)}: there is nothing in it")
    if not x.is_floating_point() or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise CogError(f"{path}: X is {x.dtype} and Y is {y.dtype}, expected float32 and int64")
    name = data.get("name")
    return FeatureSet(x, y, name if isinstance(name, str) else path.parent.name)


def _read(path: Path, mapped: bool) -> Any:
    if mapped:
        with contextlib.suppress(CogError):  # older containers cannot be mapped
            return load_torch(path, mmap=True)
    try:
        return load_torch(path)
    except UnsafeFileError:
        raise
    except CogError as error:
        raise CogError(f"{error} Features that were made here: extract them again (--overwrite)") from error


def row_norms(x: torch.Tensor) -> torch.Tensor:
    """Return the l2 norm of every row of ``x`` ``(n, d)``, as ``(n, 1)``, correct for all finite rows.

    The norms have the type of ``x``. When the squares of some float32 row leave the range of float32, all norms are
    float64; those of the other rows then keep their float32 values.
    """
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    beyond = ((norms < _SMALLEST_NORM) | torch.isinf(norms))[:, 0]
    if x.dtype == torch.float32 and beyond.any():
        exact = torch.linalg.vector_norm(x[beyond], dim=1, keepdim=True, dtype=torch.float64)
        if exact.any():  # rows of zeros alone need no float64
            norms = norms.double()
            norms[beyond] = exact
    return norms


def unit_rows(x: torch.Tensor) -> torch.Tensor:
    """Return the rows of ``x`` ``(n, d)`` scaled to unit length, in its type; rows of zeros stay zero."""
    return (x / _divisors(row_norms(x))).to(x.dtype)


def _divisors(norms: torch.Tensor) -> torch.Tensor:
    return norms.masked_fill(norms == 0, 1.0)


def check_and_normalize_(
    x: torch.Tensor, source: str, *, normalize: bool, in_place: bool = True
) -> torch.Tensor | None:
    """Refuse NaN and infinite features, and scale rows to unit length (zero rows stay zero; paper Sec. 4.1).

    Both are done in one pass over the memory and in place, because the features of a level take 9 GB.

    Args:
        x: features ``(n, d)``, float32 if ``in_place``.
        source: name of the features in messages.
        normalize: whether rows are scaled.
        in_place: whether ``x`` is changed.

    Returns:
        None with ``in_place``, else the divisors of the rows ``(n, 1)``, which are 1 without ``normalize``.
    """
    bad: list[int] = []
    n_zero = 0
    kept: list[torch.Tensor] = []
    for start in range(0, len(x), _CHUNK_ROWS):
        chunk = x[start : start + _CHUNK_ROWS]
        norms = row_norms(chunk.float())
        bad += [start + int(row) for row in (~torch.isfinite(norms[:, 0])).nonzero()]
        n_zero += int((norms == 0).sum())
        if not in_place:
            kept.append(_divisors(norms) if normalize else torch.ones(len(chunk), 1))
        elif normalize:
            chunk /= _divisors(norms)
    if bad:
        rows = ", ".join([*map(str, bad[:5]), *["..."][: len(bad) > 5]])
        raise CogError(
            f"{source}: {len(bad)} of {len(x)} rows of X hold NaN or infinite values (rows {rows}); extract these "
            "features again (--overwrite)"
        )
    if n_zero:
        facts = source, n_zero, len(x)
        logger.warning(
            "%s: %d of %d rows of X are all zeros, which have no direction; they stay zeros", *facts
        )
    return None if in_place else torch.cat(kept)
