"""Agreement of clusters with classes."""

from __future__ import annotations

import numpy as np


def agreement(classes: np.ndarray, clusters: np.ndarray) -> dict[str, float]:
    """Compare a clustering with the classes of the same samples.

    Args:
        classes: class of each sample, int ``(m,)``.
        clusters: cluster of each sample, int ``(m,)``.

    Returns:
        ``purity_v1``: mean over classes of the share of a class in the cluster that has most of it (Eq. 3 of the
        paper's first version, divided by the size of the classes, as its table requires); ``purity``: share of the
        samples that belong to the most frequent class of their cluster (the usual definition); ``ami``, ``nmi``,
        ``ari``: scikit-learn's adjusted mutual information, normalized mutual information (both with arithmetic means)
        and adjusted Rand index. All are at most 1, which is best. For a single class in a single cluster all are 1.
    """
    from sklearn import metrics

    table = np.asarray(metrics.cluster.contingency_matrix(classes, clusters))
    return {
        "purity_v1": float((table.max(axis=1) / table.sum(axis=1)).mean()),
        "purity": float(table.max(axis=0).sum() / table.sum()),
        "ami": float(metrics.adjusted_mutual_info_score(classes, clusters)),
        "nmi": float(metrics.normalized_mutual_info_score(classes, clusters)),
        "ari": float(metrics.adjusted_rand_score(classes, clusters)),
    }
