"""Preparation of extracted features for the training of classifiers.

The cap per class and the principal components depend on the data set alone and not on the seed of a run, so they are
computed once for all runs of a process.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from cog.errors import CogError
from cog.features import feature_files, pca
from cog.features.feature_files import FeatureSet
from cog.logreg.engine import Engine
from cog.logreg.matrix import Data
from cog.logreg.settings import Settings
from cog.runtime.memory import available_memory, exhaustion_explained
from cog.runtime.progress import size

logger = logging.getLogger(__name__)

#: Share of the available memory that features may take.
_USABLE = 0.9

#: Rows moved at a time.
_CHUNK = 4096


def prepare(train: FeatureSet, test: FeatureSet, engine: Engine, settings: Settings | None = None) -> Data:
    """Return features as a data set in the form that the engine reads.

    Args:
        train: training features, float32 ``(n, d)`` or rounded, normalized or not. **Taken over**: their memory
            may be rewritten.
        test: test features, float32 ``(m, d)``, also taken over.
        engine: engine of the training.
        settings: settings of the runs, for the cap per class, the principal components and their normalization; None:
            the features stay unchanged.

    Raises:
        CogError: features that do not fit together, too few principal components, rounded features that do not fit
            into memory as float32.
    """
    if mixed := feature_files.check_pair(train, test):
        logger.warning("%s", mixed)
    settings = settings or Settings(seed=0)
    max_per_class, pca_dim = settings.max_per_class, settings.pca_dim
    shape = train.x.shape
    preparation: dict[str, Any] = {}
    rows = projection = None
    if max_per_class:
        rows, n_short = feature_files.cap_per_class(train.y, max_per_class)
        logger.info("at most %d training images per class: %d of %d", max_per_class, len(rows), len(train))
        if n_short:
            logger.warning("%d classes have fewer than CLF.MAX_PER_CLASS %d images", n_short, max_per_class)
        preparation["max_per_class"] = {
            "n": max_per_class, "rows": len(rows), "of_rows": len(train), "smaller_classes": n_short,
        }  # fmt: skip
    if pca_dim:
        n, dim = train.x.shape
        action = f"computing the principal components of {train.name} ({n} x {dim})"
        with exhaustion_explained(action, "set CLF.PCA_DIM 0"):
            components = pca.timed_fit(train, pca_dim, rows=rows, device=engine.device)
            train = _project(train, components, settings, engine.device, rows)
            test = _project(test, components, settings, engine.device)
        preparation["pca"] = components.as_dict(pca_dim) | {"normalized": settings.normalizes_components}
        projection = components.tensors(pca_dim)
    elif rows is not None:
        train = _keep(train, rows)
    y, test_y, labels = feature_files.to_consecutive_labels(train.y, test.y)
    logger.info(
        "%s: %d x %d training and %d test features, %d classes, on %s in %s",
        train.name, *shape, len(test), len(labels), engine.device, engine.precision,
    )  # fmt: skip
    targets, test_y = y.to(engine.device), test_y.to(engine.device)
    return Data(engine.load(train), y, targets, engine.load(test), test_y, labels, projection, preparation)


def _project(
    features: FeatureSet,
    components: pca.Pca,
    settings: Settings,
    device: torch.device,
    rows: torch.Tensor | None = None,
) -> FeatureSet:
    """Return the projections of ``rows`` of the features (None: all) onto the first principal components."""
    dim, in_place = settings.pca_dim, features.norms is None
    y = features.y if rows is None else features.y[rows]
    if not in_place:
        _require_room(features, len(y), dim)
    x = pca.project(features, components, dim, rows=rows, in_place=in_place, device=device)
    if in_place and 4 * dim <= features.x.shape[1]:
        x = x.clone()  # frees the rest of the memory
    source = f"the principal components of {features.name}"
    feature_files.check_and_normalize_(x, source, normalize=settings.normalizes_components)
    return FeatureSet(x, y, features.name)


def _keep(train: FeatureSet, rows: torch.Tensor) -> FeatureSet:
    """Return ``rows`` (ascending), moved to the beginning of the memory; those of rounded features are converted."""
    if train.norms is not None:
        _require_room(train, len(rows), train.x.shape[1])
        x = torch.empty(len(rows), train.x.shape[1])
    else:
        x = train.x[: len(rows)]
    for start in range(0, len(rows), _CHUNK):
        part = rows[start : start + _CHUNK]
        x[start : start + _CHUNK] = train.rows(part)
    return FeatureSet(x, train.y[rows], train.name)


def _require_room(features: FeatureSet, n_rows: int, dim: int) -> None:
    n_bytes, available = 4 * n_rows * dim, available_memory()
    if available is not None and n_bytes > _USABLE * available:
        raise CogError(
            f"{n_rows} x {dim} features of {features.name} take {size(n_bytes)}, and {size(available)} of memory are "
            "available; lower CLF.PCA_DIM or CLF.MAX_PER_CLASS, or run this where there is more"
        )
