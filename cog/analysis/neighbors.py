"""Classifiers without training, on l2-normalized features: k nearest neighbors, and nearest class means.

Neighbors vote with the weights exp(cosine / T) (Wu et al. 2018; DINO).
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cog.analysis.base import ModelData, Outcome, analysis, blocks, n_zero_rows, resident
from cog.results.analysis_records import Number
from cog.results.labels import METRIC_LABELS
from cog.results.metric_info import PERCENT, Metric, declare

if TYPE_CHECKING:
    import torch

    from cog.features.feature_files import FeatureSet

logger = logging.getLogger(__name__)

#: T of the weights.
TEMPERATURE = 0.07

#: Numbers of test and training rows that are compared at a time: 64 MB of similarities.
_TEST_BLOCK, _TRAIN_BLOCK = 1024, 16384

_NEIGHBORS = re.compile(r"(?P<metric>top1|top5)_k(?P<k>\d{1,9})_weighted")
_MEANS = re.compile(r"(?P<metric>top1|top5)(?:_(?P<distance>[a-z]+))?")


class NeighborMetric(NamedTuple):
    """The parts of the name of a number of the k-nearest-neighbor analysis."""

    k: int
    metric: str


def neighbor_metric(quantity: str) -> NeighborMetric | None:
    """Return the parts of the name of a number of the k-nearest-neighbor analysis; None for other names."""
    match = _NEIGHBORS.fullmatch(quantity)
    return None if match is None else NeighborMetric(int(match["k"]), match["metric"])


def _knn_metric(_: str, quantity: str) -> Metric | None:
    name = neighbor_metric(quantity)
    if name is None:
        return None
    return Metric(
        group="knn",
        label=f"kNN, k={name.k}, weighted, {METRIC_LABELS[name.metric]}",
        unit=PERCENT,
        decimals=1,
        order=(1, name.metric, name.k),
    )


def _ncm_metric(_: str, quantity: str) -> Metric | None:
    match = _MEANS.fullmatch(quantity)
    if match is None:
        return None
    distance = f", {match['distance']}" if match["distance"] else ""
    return Metric(
        group="ncm",
        label=f"nearest class mean{distance}, {METRIC_LABELS[match['metric']]}",
        unit=PERCENT,
        decimals=1,
        order=(2, match["metric"], match["distance"] or ""),
    )


declare("knn", _knn_metric)
declare("ncm", _ncm_metric)


@analysis("knn", "k-nearest-neighbor classifiers", keys=("KNN_K",))
def knn(data: ModelData, device: torch.device, stage: Path) -> Outcome:
    """Return the accuracies of every k; None for a k above the number of training images."""
    train, test = data.both()
    ks = sorted(data.cfg.ANALYSIS.KNN_K)
    undefined = [k for k in ks if k > len(train)]
    if undefined:
        logger.warning(
            "%sthere are %d training images: k = %s is undefined",
            data.label,
            len(train),
            ", ".join(map(str, undefined)),
        )
    y, targets, details = _labels(data, train, test)
    values: dict[str, Number] = dict.fromkeys(f"{top}_k{k}_weighted" for k in ks for top in ("top1", "top5"))
    possible = [k for k in ks if k <= len(train)]
    if possible:
        index, similarity = nearest_rows(train.x, test.x, max(possible), device=device)
        for k in possible:
            top1, top5 = vote(index[:, :k], similarity[:, :k], y, targets)
            values[f"top1_k{k}_weighted"], values[f"top5_k{k}_weighted"] = top1, top5
    return Outcome(values, details=details)


def nearest_rows(
    train: torch.Tensor, test: torch.Tensor, k: int, *, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ``k`` most similar training rows of every test row, exactly, on the CPU.

    Args:
        train: l2-normalized, float32 ``(n, d)``.
        test: l2-normalized, float32 ``(m, d)``.
        k: number of neighbors, 1 to n.
        device: device of the computation.

    Returns:
        Row numbers, nearest first, int64 ``(m, k)``, and cosines, float32 ``(m, k)``.
    """
    import torch

    train = resident(train, device)
    parts = []
    for _, x in blocks(test, device, size=_TEST_BLOCK):
        best = torch.empty(len(x), 0, device=device)
        index = torch.empty(len(x), 0, dtype=torch.int64, device=device)
        for first, block in blocks(train, device, size=_TRAIN_BLOCK):
            near, columns = (x @ block.T).topk(min(k, len(block)), dim=1)
            best, order = torch.cat([best, near], dim=1).topk(min(k, best.shape[1] + near.shape[1]), dim=1)
            index = torch.cat([index, columns + first], dim=1).gather(1, order)
        parts.append((index.cpu(), best.cpu()))
    return torch.cat([index for index, _ in parts]), torch.cat([best for _, best in parts])


def vote(
    index: torch.Tensor,
    similarity: torch.Tensor,
    y: torch.Tensor,
    targets: torch.Tensor,
    temperature: float = TEMPERATURE,
) -> tuple[float, float]:
    """Return top-1 and top-5 accuracy in percent of the classes with the largest weights of their neighbors.

    Args:
        index: row numbers of the neighbors, int64 ``(m, k)``.
        similarity: their cosines, ``(m, k)``, nearest first.
        y: classes of the training rows, 0 to C - 1, int64 ``(n,)``.
        targets: classes of the test rows, int64 ``(m,)``.
        temperature: T of the weights exp(cosine / T).
    """
    import torch

    n_classes, hits = int(y.max()) + 1, []
    for rows, near, target in zip(
        *(part.split(_TEST_BLOCK) for part in (index, similarity, targets)), strict=True
    ):
        # Weights are divided by the largest weight of the row, because exp(1 / T) overflows for a small T.
        weights = ((near.double() - near[:, :1].double()) / temperature).exp()
        votes = torch.zeros(len(rows), n_classes, dtype=torch.float64).scatter_add_(1, y[rows], weights)
        most, classes = votes.topk(min(5, n_classes), dim=1)
        hits.append((classes == target[:, None]) & (most > 0))
    return accuracy(torch.cat(hits))


@analysis("ncm", "nearest-class-mean classifier, by cosine")
def ncm(data: ModelData, device: torch.device, stage: Path) -> Outcome:
    """Predict the class whose mean training feature has the highest cosine."""
    import torch

    train, test = data.both()
    y, targets, details = _labels(data, train, test)
    means = class_means(train.x, y, device=device)
    width = min(5, len(means))
    hits = []
    for first, x in blocks(test.x, device):
        best = (x.double() @ means.T).topk(width, dim=1).indices.cpu()
        hits.append(best == targets[first : first + len(x), None])
    top1, top5 = accuracy(torch.cat(hits))
    return Outcome({"top1_cosine": top1, "top5_cosine": top5}, details=details)


def class_means(x: torch.Tensor, y: torch.Tensor, *, device: torch.device) -> torch.Tensor:
    """Return the mean rows of every class, scaled to unit length, float64 ``(C, d)`` on the device.

    They are float64 because means of nearly equal features (of an untrained network) differ in their last digits only.

    Args:
        x: float32 ``(n, d)``.
        y: class of each row, 0 to C - 1, int64 ``(n,)``.
        device: device of the computation.
    """
    import torch

    from cog.features.feature_files import unit_rows

    sums = torch.zeros(int(y.max()) + 1, x.shape[1], dtype=torch.float64, device=device)
    for first, block in blocks(x, device, size=1024):
        here, members = y[first : first + len(block)].unique(return_inverse=True)
        # A matrix product is used because a sum by index has no fixed order on a GPU.
        onehot = torch.nn.functional.one_hot(members, len(here)).T.double()
        sums[here.to(device)] += onehot.to(device) @ block.double()
    return unit_rows(sums / torch.bincount(y).to(device)[:, None])


def _labels(
    data: ModelData, train: FeatureSet, test: FeatureSet
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Return the labels of both splits as indices of the training classes, and details of the features.

    Test images of classes without training features have the index -1, which is never predicted.
    """
    import torch

    labels, y = torch.unique(train.y, return_inverse=True)
    index = torch.searchsorted(labels, test.y.contiguous()).clamp(max=len(labels) - 1)
    targets = torch.where(labels[index] == test.y, index, -1)
    unseen = test.y[targets < 0].unique().tolist()
    if unseen:
        logger.warning(
            "%s%d classes of the test features have no training features (%s%s): their images count as errors",
            data.label,
            len(unseen),
            ", ".join(map(str, unseen[:5])),
            ", ..." if len(unseen) > 5 else "",
        )
    details = {
        "rows": {"train": len(train), "test": len(test)},
        "dim": train.x.shape[1],
        "classes": len(labels),
        "test_classes_without_training": unseen,
        "zero_vectors": n_zero_rows(test),
    }
    return y, targets, details


def accuracy(hits: torch.Tensor) -> tuple[float, float]:
    """Return top-1 and top-5 accuracy in percent; hits are bool ``(m, 5)``, best prediction first."""
    return 100.0 * float(hits[:, 0].double().mean()), 100.0 * float(hits.any(dim=1).double().mean())
