"""Feature files (``X_Y.pth``): written, read, checked and l2-normalized."""

import hashlib
import logging
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cog.constants import FEATURES_FILE, FEATURES_RECORD, IMAGE_PATHS_FILE
from cog.data.images import sampled_rows
from cog.errors import CogError
from cog.paths import features_file
from cog.runtime import files
from cog.runtime.safe_load import load_torch

logger = logging.getLogger(__name__)

_CHUNK_ROWS = 512  # they stay in the processor's cache between check and normalization: a level has 9 GB
_SHARED = 0.01  # of the test rows may be training rows: data sets have a few images twice
_SMALLEST_NORM = 1e-12  # smaller ones may have lost digits: squares do below 1e-38


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Features and labels of one split."""

    x: torch.Tensor  # features (n, d), float32, or as stored
    y: torch.Tensor  # labels (n,), int64, or as stored
    name: str  # <model>_<dataset>_<split>
    norms: torch.Tensor | None = None  # divisors of the rows, (n, 1), if x is kept in half precision
    class_list: str | None = None  # digest of the names of the classes; None: not known

    def __len__(self) -> int:
        return len(self.y)


def check_pair(train: FeatureSet, test: FeatureSet) -> str:
    """Refuse features whose labels or widths do not agree; return a warning about others that are no pair."""
    names = f"training features {train.name} and test features {test.name}"
    if None not in (train.class_list, test.class_list) and train.class_list != test.class_list:
        raise CogError(f"{names} are of different classes; extract both with the same class folders")
    widths = train.x.shape[1], test.x.shape[1]
    if widths[0] != widths[1]:
        raise CogError(f"{names} have {widths[0]} and {widths[1]} dimensions; extract both with one model")
    shared = int(torch.isin(_digests(test), _digests(train)).sum())
    if shared > _SHARED * len(test):
        same = f"{shared} of {len(test)} test features are training features"
        return f"{same}: do {names} have the same images?"
    origins = {features.name.rpartition("_")[0] for features in (train, test)} - {""}
    return f"{names} are not of one model and data set, as their names tell" if len(origins) > 1 else ""


def _digests(features: FeatureSet) -> torch.Tensor:
    """Return a number for the bits of the first 64 features of each row that has any but zeros."""
    x = features.x[:, :64].float()
    x = x if features.norms is None else (x / features.norms).float()
    weights = torch.randint(2**62, (x.shape[1],), generator=torch.Generator().manual_seed(0))
    sums = (x.contiguous().view(torch.int32).long() * weights).sum(1)  # whole numbers: in any order
    return sums[sums != 0]


def rows_digest(features: FeatureSet) -> str:
    """Return the SHA-256 of shape and type of features, and of sampled rows with their labels."""
    x, y = features.x, features.y
    digest, rows = hashlib.sha256(f"{tuple(x.shape)} {x.dtype}".encode()), sampled_rows(len(x))
    digest.update(x[rows].contiguous().view(torch.uint8).numpy().tobytes())
    digest.update(y[rows].long().numpy().tobytes())
    return digest.hexdigest()


def save(features: FeatureSet, path: str | os.PathLike[str]) -> None:
    """Write ``X_Y.pth`` (``X`` in its type, ``Y`` int64, ``name``), whole or not at all."""
    data = {"X": features.x.contiguous(), "Y": features.y.contiguous(), "name": features.name}
    with files.atomic_write(path) as handle:
        torch.save(data, handle)


def write(place: Path, features: FeatureSet, record: Mapping[str, Any], paths: Sequence[str]) -> None:
    """Write features into a folder, with their record, completed by a digest of the rows, and image paths."""
    if paths:
        files.write_text(place / IMAGE_PATHS_FILE, "".join(f"{path}\n" for path in paths))
    save(features, place / FEATURES_FILE)
    files.write_json(place / FEATURES_RECORD, {**record, "rows_sha256": rows_digest(features)})


def load(path: str | os.PathLike[str], *, normalize: bool = False, rounded: bool = False) -> FeatureSet:
    """Read ``X_Y.pth``, or that in a folder: labels int64, features float32, or 16 bits if ``rounded``."""
    path = features_file(path)
    stored, described = open_file(path), path.with_name(FEATURES_RECORD)
    record = files.read_object(described) if described.is_file() else {}
    if record.get("rows_sha256") not in (None, rows_digest(stored)):
        raise CogError(f"{path} is not what {FEATURES_RECORD} describes; remove it, and extract again")
    is_kept = rounded and stored.x.dtype in (torch.float16, torch.bfloat16)
    dtype = stored.x.dtype if is_kept else torch.float32
    # The only copy in memory, which is normalized in place.
    x = stored.x.detach().to(dtype, copy=True, memory_format=torch.contiguous_format)
    norms = check_and_normalize_(x, str(path), normalize=normalize, in_place=not is_kept)
    return FeatureSet(x, stored.y.long().clone(), stored.name, norms, record.get("class_list_sha256"))


def open_file(path: str | os.PathLike[str]) -> FeatureSet:
    """Map ``X_Y.pth``, also of the original toolkit, into memory, and check its form, not its values."""
    path = features_file(path)
    if not path.is_file():
        raise CogError(f"there are no features {path}; run extract_features.py, or check the path")
    try:
        data = load_torch(path, mmap=zipfile.is_zipfile(path))  # older containers cannot be mapped
    except CogError as error:
        raise type(error)(f"{error}; if it was made here, remove it, and extract again") from error
    found = [data.get(key) for key in "XY"] if isinstance(data, dict) else []
    tensors = [each for each in found if isinstance(each, torch.Tensor) and each.layout == torch.strided]
    if len(tensors) < 2 or any(each.is_nested or each.is_meta or each.is_quantized for each in tensors):
        raise CogError(f"{path} holds {type(data).__name__}, expected a dict with dense tensors X and Y")
    x, y = tensors
    if x.ndim != 2 or y.ndim != 1 or len(x) != len(y) or not 0 < x.nbytes <= x.untyped_storage().nbytes():
        shapes = f"X is {tuple(x.shape)} in {x.untyped_storage().nbytes()} bytes, Y {tuple(y.shape)}"
        raise CogError(f"{path}: {shapes}, expected (n, d) and (n,), n > 0, with every value stored")
    if not x.is_floating_point() or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise CogError(f"{path}: X is {x.dtype} and Y is {y.dtype}, expected float32 and int64")
    name = data.get("name")
    return FeatureSet(x, y, name if isinstance(name, str) else path.parent.name)


def row_divisors(x: torch.Tensor) -> torch.Tensor:
    """Return the l2 norm of every row ``(n, 1)``, 1 for zeros; float64 if squares are beyond float32."""
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    beyond = ((norms < _SMALLEST_NORM) | torch.isinf(norms))[:, 0]
    if x.dtype == torch.float32 and x[beyond].any():
        exact = torch.linalg.vector_norm(x[beyond], dim=1, keepdim=True, dtype=torch.float64)
        norms = norms.double().masked_scatter(beyond[:, None], exact)
    return norms.masked_fill(norms == 0, 1.0)


def unit_rows(x: torch.Tensor) -> torch.Tensor:
    """Return the rows of ``x`` ``(n, d)`` scaled to unit length, in its type; rows of zeros stay zero."""
    return (x / row_divisors(x)).to(x.dtype)


def check_and_normalize_(
    x: torch.Tensor, source: str, *, normalize: bool, in_place: bool = True
) -> torch.Tensor | None:
    """Refuse NaN and infinite features, and scale rows to unit length (paper Sec. 4.1) or return divisors."""
    bad: list[int] = []
    n_zero = 0
    kept: list[torch.Tensor] = []
    for start in range(0, len(x), _CHUNK_ROWS):
        chunk = x[start : start + _CHUNK_ROWS]
        divisors = row_divisors(chunk.float())
        bad += (start + (~torch.isfinite(divisors[:, 0])).nonzero()[:, 0]).tolist()
        n_zero += int((chunk == 0).all(1).sum())
        if not in_place:
            kept.append(divisors if normalize else torch.ones(len(chunk), 1))
        elif normalize:
            chunk /= divisors
    if bad:
        text = f"rows of X hold NaN or infinite values (such as row {bad[0]}); remove it, and extract again"
        raise CogError(f"{source}: {len(bad)} of {len(x)} {text}")
    if n_zero:
        logger.warning("%s: %d of %d rows of X are zeros, and stay zeros", source, n_zero, len(x))
    return None if in_place else torch.cat(kept)
