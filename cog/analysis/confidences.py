"""Confidences of saved classifiers on features, also on those of another data set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cog.errors import CogError

if TYPE_CHECKING:
    import torch

    from cog.analysis.saved_runs import SavedClassifier
    from cog.features.feature_files import FeatureSet

#: Number of rows whose logits are computed at a time.
_CHUNK = 4096


@dataclass(frozen=True, eq=False)
class Applied:
    """Confidences and predictions of classifiers for every row.

    Attributes:
        confidence: highest softmax probability p of each classifier and, in the last row, of the average of their
            probabilities, float64 ``(S + 1, n)``.
        predicted: class with that probability, int64 ``(S + 1, n)``.
        log_odds: log p - log(1 - p), which also orders probabilities that round to 1, float64 ``(S + 1, n)``.
    """

    confidence: np.ndarray
    predicted: np.ndarray
    log_odds: np.ndarray


def apply(
    features: FeatureSet,
    all_classifiers: Sequence[SavedClassifier],
    *,
    device: torch.device,
    source: str = "the test features",
) -> Applied:
    """Compute softmax confidences in chunks, with float32 logits and a float64 softmax.

    Args:
        features: features as in the file; every classifier normalizes them as in its training.
        all_classifiers: S classifiers of the same classes, on ``device``.
        device: device of the computation.
        source: name of the features in messages.

    Raises:
        CogError: the classifiers do not fit the features or each other.
    """
    import torch

    (n, dim), n_rows = features.x.shape, len(all_classifiers) + 1
    for classifier in all_classifiers:
        if classifier.feature_dim != dim:
            raise CogError(
                f"the classifier takes features of {classifier.feature_dim} dimensions, {source} have {dim}; both have "
                "to come from the same model"
            )
        if classifier.n_classes != all_classifiers[0].n_classes:
            raise CogError(
                f"the classifiers have {all_classifiers[0].n_classes} and {classifier.n_classes} classes; take seeds "
                "of one data set"
            )
    confidence, log_odds = np.empty((n_rows, n)), np.empty((n_rows, n))
    predicted = np.empty((n_rows, n), dtype=np.int64)
    with torch.inference_mode():
        for start in range(0, n, _CHUNK):
            stop = min(start + _CHUNK, n)
            part = features.rows(slice(start, stop)).float().to(device)
            total = torch.zeros((), dtype=torch.float64, device=device)
            for row, classifier in enumerate(all_classifiers):
                log_p = torch.log_softmax(classifier.logits(part).double(), dim=1)
                total = total + log_p.exp()
                best, classes = log_p.max(dim=1)
                predicted[row, start:stop] = classes.cpu().numpy()
                confidence[row, start:stop] = best.exp().cpu().numpy()
                others = log_p.scatter(1, classes[:, None], -math.inf).logsumexp(dim=1)
                log_odds[row, start:stop] = (best - others).cpu().numpy()
            best, classes = (total / len(all_classifiers)).max(dim=1)
            others = total.scatter(1, classes[:, None], 0.0).sum(dim=1) / len(all_classifiers)
            predicted[-1, start:stop] = classes.cpu().numpy()
            confidence[-1, start:stop] = best.cpu().numpy()
            log_odds[-1, start:stop] = (best.log() - others.log()).cpu().numpy()
    return Applied(confidence, predicted, log_odds)


def confident_rows(applied: Applied, row: int, *, threshold: float) -> np.ndarray:
    """Return the samples with confidences above ``threshold``, most confident first, equals in row order, int64."""
    rows = np.flatnonzero(applied.confidence[row] > threshold)
    return rows[np.argsort(-applied.log_odds[row][rows], kind="stable")]


def confident_anywhere(applied: Applied, n_seeds: np.ndarray) -> np.ndarray:
    """Return the samples with any confident classifier, int64, by the number of such classifiers, then mean log odds.

    The average of the probabilities is not used for sorting: classifiers of different seeds have different learning
    rates and weight decays, so the scale of their weights, and hence of their confidences, differs.

    Args:
        applied: confidences of S classifiers.
        n_seeds: number of confident classifiers of each sample, int64 ``(n,)``.
    """
    rows = np.flatnonzero(n_seeds)
    return rows[np.lexsort((-applied.log_odds[:-1, rows].mean(axis=0), -n_seeds[rows]))]
