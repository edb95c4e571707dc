"""Classifiers without training, on l2-normalized features: k nearest neighbors, and nearest class means.

Neighbors vote with the weights exp(cosine / T) (Wu et al. 2018; DINO).
"""

from __future__ import annotations

import logging

import torch

from cog.analysis.base import Data, analysis, resident
from cog.features.feature_files import FeatureSet, unit_rows
from cog.results.analysis_records import Number

logger = logging.getLogger(__name__)

#: T of the weights.
TEMPERATURE = 0.07

#: Numbers of test and training rows that are compared at a time: 64 MB of similarities.
_TEST_BLOCK, _TRAIN_BLOCK = 1024, 16384


@analysis("knn", "k-nearest-neighbor classifiers", keys=("KNN_K",))
def knn(data: Data) -> dict[str, Number]:
    """Return the accuracies, in percent, of every k; None for a k above the number of training images."""
    train, test = data.both()
    ks = sorted(data.cfg.ANALYSIS.KNN_K)
    y, targets = _labels(data, train, test)
    values: dict[str, Number] = dict.fromkeys(f"{top}_k{k}_weighted" for k in ks for top in ("top1", "top5"))
    possible = [k for k in ks if k <= len(train)]
    if possible < ks:
        logger.warning("%sk above the %d training images is undefined", data.label, len(train))
    if possible:
        index, similarity = nearest_rows(data, train.x, test.x, max(possible))
        for k in possible:
            both = vote(index[:, :k], similarity[:, :k], y, targets)
            values[f"top1_k{k}_weighted"], values[f"top5_k{k}_weighted"] = both
    return values


def nearest_rows(
    data: Data, train: torch.Tensor, test: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ``k`` most similar rows of ``train`` ``(n, d)`` for every row of ``test`` ``(m, d)``, on the CPU.

    Rows are l2-normalized, float32. The results are exact: row numbers, nearest first, int64 ``(m, k)``, and cosines,
    float32 ``(m, k)``.
    """
    train = resident(train, data.device)
    parts = []
    for _, x in data.blocks(test, size=_TEST_BLOCK):
        best = torch.empty(len(x), 0, device=data.device)
        index = torch.empty(len(x), 0, dtype=torch.int64, device=data.device)
        for first, block in data.blocks(train, size=_TRAIN_BLOCK):
            near, columns = (x @ block.T).topk(min(k, len(block)), dim=1)
            best, order = torch.cat([best, near], dim=1).topk(min(k, best.shape[1] + near.shape[1]), dim=1)
            index = torch.cat([index, columns + first], dim=1).gather(1, order)
        parts.append((index.cpu(), best.cpu()))
    return torch.cat([index for index, _ in parts]), torch.cat([best for _, best in parts])


def vote(
    index: torch.Tensor, similarity: torch.Tensor, y: torch.Tensor, targets: torch.Tensor
) -> tuple[float, float]:
    """Return top-1 and top-5 accuracy in percent of the classes with the largest weights of their neighbors.

    ``index`` and ``similarity`` are those of :func:`nearest_rows`, ``y`` ``(n,)`` the classes of the training rows, 0
    to C - 1, ``targets`` ``(m,)`` those of the test rows.
    """
    n_classes, hits = int(y.max()) + 1, []
    parts = (part.split(_TEST_BLOCK) for part in (index, similarity, targets))
    for rows, near, target in zip(*parts, strict=True):
        # Weights are divided by the largest weight of the row, because exp(1 / T) overflows for a small T.
        weights = ((near.double() - near[:, :1].double()) / TEMPERATURE).exp()
        votes = torch.zeros(len(rows), n_classes, dtype=torch.float64).scatter_add_(1, y[rows], weights)
        most, classes = votes.topk(min(5, n_classes), dim=1)
        hits.append((classes == target[:, None]) & (most > 0))
    return accuracy(torch.cat(hits))


@analysis("ncm", "nearest-class-mean classifier, by cosine")
def ncm(data: Data) -> dict[str, Number]:
    """Predict the class whose mean training feature has the highest cosine; accuracies are in percent.

    Means are float64: those of nearly equal features (of an untrained network) differ in their last digits only.
    """
    train, test = data.both()
    y, targets = _labels(data, train, test)
    means = unit_rows(data.sums(train.x, y, int(y.max()) + 1))
    hits = []
    for first, x in data.blocks(test.x):
        best = (x.double() @ means.T).topk(min(5, len(means)), dim=1).indices.cpu()
        hits.append(best == targets[first : first + len(x), None])
    top1, top5 = accuracy(torch.cat(hits))
    return {"top1_cosine": top1, "top5_cosine": top5}


def _labels(data: Data, train: FeatureSet, test: FeatureSet) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the labels of both splits as indices of the training classes; -1, never predicted, for other classes."""
    labels, y = torch.unique(train.y, return_inverse=True)
    index = torch.searchsorted(labels, test.y.contiguous()).clamp(max=len(labels) - 1)
    targets = torch.where(labels[index] == test.y, index, -1)
    if unseen := test.y[targets < 0].unique().tolist():
        logger.warning(
            "%s%d classes of the test features (label %d ...) have no training features: their images count as errors",
            data.label,
            len(unseen),
            unseen[0],
        )
    return y, targets


def accuracy(hits: torch.Tensor) -> tuple[float, float]:
    """Return top-1 and top-5 accuracy in percent; hits are bool ``(m, 5)``, best prediction first."""
    return 100.0 * float(hits[:, 0].double().mean()), 100.0 * float(hits.any(dim=1).double().mean())
