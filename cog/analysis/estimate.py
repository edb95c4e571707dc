"""How much work analyses are, before anything is read. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# A repetition of k-means takes the time of so many products of all training rows with all centers: about 60 iterations,
# most of whose distances bounds make unnecessary, and the starting centers (tests/benchmarks/bench_analysis.py).
# Features without clusters take several times as long.
_KMEANS_PRODUCTS = 29

# Products in float64, which nearest class means take, by the time of those in float32.
_FLOAT64 = 2.0


@dataclass(frozen=True)
class FeatureSizes:
    """Sizes of the features of a data set.

    Attributes:
        n_train: training images.
        n_test: test images.
        n_classes: C.
        dim: dimensions.
    """

    n_train: int
    n_test: int
    n_classes: int
    dim: int


def label_free_flops(name: str, sizes: FeatureSizes, options: Any) -> float:
    """Return the floating-point operations of an analysis of ``--analysis all``, as far as they are matrix products.

    Args:
        name: of the analysis.
        sizes: sizes of the features.
        options: the configuration's ``ANALYSIS``.
    """
    k = options.KMEANS_K or sizes.n_classes
    return {
        "kmeans": 2.0 * sizes.dim * sizes.n_train * k * _KMEANS_PRODUCTS * len(options.KMEANS_SEEDS),
        "alignment": 1.0 * sizes.dim * sizes.n_test * sizes.n_test,
        "knn": 2.0 * sizes.dim * sizes.n_train * sizes.n_test,
        "ncm": _FLOAT64 * 2 * 2.0 * sizes.dim * sizes.n_test * sizes.n_classes,
    }[name]


def classifier_flops(n_rows: int, n_classes: int, dim: int, n_classifiers: int) -> float:
    """Return the floating-point operations of classifiers that are applied to features."""
    return 2.0 * dim * n_rows * n_classes * n_classifiers
