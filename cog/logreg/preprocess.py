"""What is done to the features of a data set before any run sees them: a cap per class, principal components.

Both depend on the data set alone and not on the seed of a run, so they are done once for all runs of a process.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from cog.errors import CogError
from cog.features import feature_files, pca
from cog.features.feature_files import FeatureSet
from cog.runtime.memory import available_memory, exhaustion_explained

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)

#: Share of the available memory that features may take.
_USABLE = 0.9

#: Rows moved at a time.
_CHUNK = 4096


@dataclass(frozen=True, eq=False)
class Prepared:
    """Features as a classifier sees them.

    Attributes:
        train: training features.
        test: test features.
        record: what was done to them, for results.json.
        projection: ``mean`` and ``components`` of the principal components (float32); None without.
    """

    train: FeatureSet
    test: FeatureSet
    record: dict[str, Any]
    projection: dict[str, torch.Tensor] | None


def prepare(
    train: FeatureSet,
    test: FeatureSet,
    *,
    clf: CfgNode,
    device: torch.device,
) -> Prepared:
    """Apply ``CLF.MAX_PER_CLASS`` and ``CLF.PCA_DIM``, in this order.

    Args:
        train: training features; with ``PCA_DIM`` not normalised. Their memory may be rewritten.
        test: test features, likewise.
        clf: ``CLF`` of the configuration.
        device: where to compute.

    Raises:
        CogError: more components than there are; features in a file whose part does not fit into memory.
    """
    pca_dim, max_per_class, normalize = clf.PCA_DIM, clf.MAX_PER_CLASS, clf.NORM_FTS
    record: dict[str, Any] = {}
    rows = None
    if max_per_class:
        rows, short = feature_files.cap_per_class(train.y, max_per_class)
        logger.info("at most %d training images per class: %d of %d", max_per_class, len(rows), len(train))
        if short:
            logger.warning("%d classes have fewer than CLF.MAX_PER_CLASS %d images", short, max_per_class)
        record["max_per_class"] = {
            "n": max_per_class,
            "rows": len(rows),
            "of_rows": len(train),
            "smaller_classes": short,
        }
    if not pca_dim:
        return Prepared(train if rows is None else _keep(train, rows), test, record, None)
    with _memory_explained(train):
        found = pca.timed_fit(train.x, pca_dim, rows=rows, device=device, source=train.name)
    record["pca"] = found.as_dict(pca_dim) | {"normalized": normalize}
    if train.x.shape[1] != test.x.shape[1]:
        return Prepared(train, test, record, None)  # refused when both are put together
    sets = []
    for one, kept in ((train, rows), (test, None)):
        in_place = one.norms is None
        n_rows = len(one) if kept is None else len(kept)
        if not in_place:
            _require_room(one, n_rows, pca_dim)
        with _memory_explained(one):
            x = pca.project(one.x, found, pca_dim, rows=kept, in_place=in_place, device=device)
        if in_place and 4 * pca_dim <= one.x.shape[1]:
            x = x.clone()  # gives back the rest
        feature_files.check_and_normalize_(x, f"the principal components of {one.name}", normalize=normalize)
        sets.append(FeatureSet(x, one.y if kept is None else one.y[kept], one.name))
    return Prepared(sets[0], sets[1], record, found.tensors(pca_dim))


def _memory_explained(one: FeatureSet) -> contextlib.AbstractContextManager[None]:
    what = f"computing the principal components of {one.name} ({len(one)} x {one.x.shape[1]})"
    return exhaustion_explained(what, "set CLF.PCA_DIM 0")


def _keep(train: FeatureSet, rows: torch.Tensor) -> FeatureSet:
    """Move the rows (ascending) to the beginning of the memory; of mapped features, into memory."""
    if train.norms is not None:
        _require_room(train, len(rows), train.x.shape[1])
        x = torch.empty(len(rows), train.x.shape[1])
    else:
        x = train.x[: len(rows)]
    for start in range(0, len(rows), _CHUNK):
        part = rows[start : start + _CHUNK]
        chunk = train.x[part]
        x[start : start + _CHUNK] = chunk if train.norms is None else chunk.float().div_(train.norms[part])
    return FeatureSet(x, train.y[rows], train.name)


def _require_room(one: FeatureSet, n_rows: int, dim: int) -> None:
    available = available_memory()
    if available is not None and 4 * n_rows * dim > _USABLE * available:
        raise CogError(
            f"{n_rows} x {dim} features of {one.name} take {4 * n_rows * dim / 1e9:.3g} GB, and {available / 1e9:.3g} "
            "GB of memory are available; lower CLF.PCA_DIM or CLF.MAX_PER_CLASS, or run this where there is more"
        )
