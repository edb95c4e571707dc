"""Nearest-class-mean classifiers: a test image gets the class whose mean training feature is nearest.

On l2-normalised features, in two ways: ``euclidean`` compares with the means as they are (scikit-learn's
``NearestCentroid``), ``cosine`` with their directions. Of equally near classes the lower label is predicted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cog.analysis.neighbours import _largest
from cog.analysis.rows import SMALL_BLOCK, Rows

_TOP = 5


@dataclass(frozen=True)
class Means:
    """Mean feature of every class.

    Attributes:
        labels: int64 ``(C,)``, ascending.
        centres: float64 ``(C, d)``, on the device of the rows.
    """

    labels: torch.Tensor
    centres: torch.Tensor


def fit(train: Rows, y: torch.Tensor) -> Means:
    """Average the rows of every class, in float64.

    Args:
        train: ``(n, d)``.
        y: int64 ``(n,)``.
    """
    labels, index = torch.unique(y, return_inverse=True)
    sums = torch.zeros(len(labels), train.dim, dtype=torch.float64, device=train.device)
    for start, x in train.blocks(SMALL_BLOCK):
        here, members = index[start : start + len(x)].unique(return_inverse=True)
        # a matrix product, and no sum by index: on a GPU, the latter's order is not fixed
        onehot = torch.zeros(len(here), len(x), dtype=torch.float64)
        onehot[members, torch.arange(len(x))] = 1.0
        sums[here.to(sums.device)] += onehot.to(sums.device) @ x.double()
    counts = torch.bincount(index).to(sums.device)
    return Means(labels, sums / counts[:, None])


def predict(means: Means, test: Rows, *, metric: str) -> torch.Tensor:
    """Return the nearest classes of every test row, int64 ``(m, 5)`` on the CPU, best first, -1 where there is none.

    Args:
        means: of the classes.
        test: ``(m, d)``.
        metric: ``"cosine"`` or ``"euclidean"``.
    """
    # in float64: means of features that are all alike (of an untrained network) differ in their last digits only
    centres = means.centres
    offset = torch.zeros(len(centres), dtype=torch.float64, device=centres.device)
    if metric == "cosine":
        centres = torch.nn.functional.normalize(centres)
    else:
        offset = -0.5 * centres.square().sum(dim=1)
    width = min(_TOP, len(centres))
    ranked = []
    for _, x in test.blocks(SMALL_BLOCK):
        _, best = _largest(torch.addmm(offset, x.double(), centres.T), width)
        ranked.append(torch.nn.functional.pad(means.labels[best.cpu()], (0, _TOP - width), value=-1))
    return torch.cat(ranked)
