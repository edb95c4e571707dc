"""Predictions of classifiers without training (knn, ncm): the classes of every test image, best first."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from cog.analysis.rows import count_zero_rows

if TYPE_CHECKING:
    import torch

    from cog.features.feature_files import FeatureSet

logger = logging.getLogger(__name__)

#: Number of classes that every prediction ranks.
TOP = 5


def train_classes(
    train: FeatureSet, test: FeatureSet, label: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[int]]:
    """Return the classes of the training features, and the labels of both splits as indices into these classes.

    Args:
        train: training features.
        test: test features.
        label: prefix of the warning about test classes without training features.

    Returns:
        The training classes, ascending, int64 ``(C,)``; the class index of each training row, int64 ``(n,)``; the test
        labels, int64 ``(m,)``, where a number that no prediction equals replaces classes without training features;
        the list of these classes.
    """
    import torch

    labels, index = torch.unique(train.y, return_inverse=True)
    unseen = [int(y) for y in torch.unique(test.y) if not (labels == y).any()]
    if unseen:
        logger.warning(
            "%s%d classes of the test features have no training features (%s%s): their images count as errors",
            label, len(unseen), ", ".join(map(str, unseen[:5])), ", ..." if len(unseen) > 5 else "",
        )  # fmt: skip
    never = torch.iinfo(torch.int64).min
    return labels, index, torch.where(torch.isin(test.y, labels), test.y, never), unseen


def describe_classes(
    train: FeatureSet, test: FeatureSet, labels: torch.Tensor, unseen: list[int]
) -> dict[str, Any]:
    """Return the recorded details of the features and their classes."""
    return {
        "rows": {"train": len(train), "test": len(test)},
        "dim": train.x.shape[1],
        "classes": len(labels),
        "test_classes_without_training": unseen,
        "zero_vectors": count_zero_rows(test),
    }


def largest(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ``k`` largest values of every row and their columns; equal values are in the order of the columns."""
    if k == values.shape[1]:
        near, columns = values.sort(dim=1, descending=True, stable=True)
        return near, columns
    near, columns = values.topk(k + 1, dim=1)
    tied = (near[:, k - 1] == near[:, k]).nonzero().squeeze(1)  # topk selects any of equal values
    near, columns = near[:, :k], columns[:, :k]
    # The order of equal values in the result of topk is not defined either.
    columns, order = columns.sort(dim=1)
    near = near.gather(1, order)
    near, order = near.sort(dim=1, descending=True, stable=True)
    columns = columns.gather(1, order)
    if tied.numel():
        exact, full_order = values[tied].sort(dim=1, descending=True, stable=True)
        near[tied], columns[tied] = exact[:, :k], full_order[:, :k]
    return near, columns


def accuracy(ranked: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Return top-1 and top-5 accuracy in percent.

    Args:
        ranked: predicted classes, best first, -1 for none, int64 ``(m, 5)``.
        y: true classes, int64 ``(m,)``.
    """
    hits = ranked == y[:, None]
    return 100.0 * float(hits[:, 0].double().mean()), 100.0 * float(hits.any(dim=1).double().mean())
