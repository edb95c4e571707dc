"""Nearest-class-mean classifiers: the predicted class is that whose mean training feature is nearest.

Features are l2-normalized. There are two metrics: ``euclidean`` is the distance to the means (scikit-learn's
``NearestCentroid``), ``cosine`` compares their directions. Among equally near classes the lower label is predicted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cog.analysis.ranked_classes import TOP, accuracy, describe_classes, largest, train_classes
from cog.analysis.rows import SMALL_BLOCK, FeatureRows, load_both_splits
from cog.analysis.task import AnalysisContext, AnalysisOutcome, feature_analysis
from cog.results.analysis_records import Number
from cog.results.labels import METRIC_LABELS
from cog.results.metric_info import PERCENT, Metric, declare

if TYPE_CHECKING:
    import torch


_METRIC = re.compile(r"(?P<metric>top1|top5)(?:_(?P<distance>[a-z]+))?")


def _metric(_: str, quantity: str) -> Metric | None:
    match = _METRIC.fullmatch(quantity)
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


declare("ncm", _metric)


def _compute(settings: dict[str, Any], job: AnalysisContext) -> AnalysisOutcome:
    train, test = load_both_splits(job)
    labels, _, targets, unseen = train_classes(train, test, job.label)
    means = fit(FeatureRows(train, job.device), train.y)
    test_rows = FeatureRows(test, job.device)
    values: dict[str, Number] = {}
    for metric in ("cosine", "euclidean"):
        ranked = predict(means, test_rows, metric=metric)
        values[f"top1_{metric}"], values[f"top5_{metric}"] = accuracy(ranked, targets)
    return AnalysisOutcome(values, details=describe_classes(train, test, labels, unseen))


@dataclass(frozen=True)
class ClassMeans:
    """Mean feature of every class.

    Attributes:
        labels: labels of the classes, ascending, int64 ``(C,)``.
        centers: mean features, float64 ``(C, d)`` on the device of the rows.
    """

    labels: torch.Tensor
    centers: torch.Tensor


def fit(train: FeatureRows, y: torch.Tensor) -> ClassMeans:
    """Return the mean rows of every class, computed in float64.

    Args:
        train: training features ``(n, d)``.
        y: class of each row, int64 ``(n,)``.
    """
    import torch

    labels, index = torch.unique(y, return_inverse=True)
    sums = torch.zeros(len(labels), train.dim, dtype=torch.float64, device=train.device)
    for start, x in train.blocks(SMALL_BLOCK):
        here, members = index[start : start + len(x)].unique(return_inverse=True)
        # A matrix product is used because a sum by index has no fixed order on a GPU.
        onehot = torch.zeros(len(here), len(x), dtype=torch.float64)
        onehot[members, torch.arange(len(x))] = 1.0
        sums[here.to(sums.device)] += onehot.to(sums.device) @ x.double()
    counts = torch.bincount(index).to(sums.device)
    return ClassMeans(labels, sums / counts[:, None])


def predict(means: ClassMeans, test: FeatureRows, *, metric: str) -> torch.Tensor:
    """Return the nearest classes of every test row, int64 ``(m, 5)`` on the CPU, best first; -1 with fewer classes.

    Args:
        means: mean feature of every class.
        test: test features ``(m, d)``.
        metric: ``"cosine"`` or ``"euclidean"``.
    """
    import torch

    from cog.features.feature_files import unit_rows

    # Computed in float64: means of nearly equal features (of an untrained network) differ only in their last digits.
    centers = means.centers
    offset = torch.zeros(len(centers), dtype=torch.float64, device=centers.device)
    if metric == "cosine":
        centers = unit_rows(centers)
    else:
        offset = -0.5 * centers.square().sum(dim=1)
    width = min(TOP, len(centers))
    ranked = []
    for _, x in test.blocks(SMALL_BLOCK):
        _, best = largest(torch.addmm(offset, x.double(), centers.T), width)
        ranked.append(torch.nn.functional.pad(means.labels[best.cpu()], (0, TOP - width), value=-1))
    return torch.cat(ranked)


ANALYSIS = feature_analysis("ncm", "nearest-class-mean classifiers", _compute)
