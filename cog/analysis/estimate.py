"""Estimates of the operations of analyses, made before any file is read. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Time of a repetition of k-means, in products of all training rows with all centers: about 60 iterations, in which
# bounds make most distances unnecessary, and the starting centers (tests/benchmarks/bench_analysis.py).
# Features without clusters take several times as long.
_KMEANS_PRODUCTS = 29

# Time of products in float64, which nearest class means use, relative to those in float32.
_FLOAT64 = 2.0


@dataclass(frozen=True)
class FeatureSizes:
    """Sizes of the features of a data set.

    Attributes:
        n_train: number of training images.
        n_test: number of test images.
        n_classes: number of classes, C.
        dim: width of the features.
    """

    n_train: int
    n_test: int
    n_classes: int
    dim: int


def label_free_flops(name: str, sizes: FeatureSizes, options: Any) -> float:
    """Return the floating-point operations of the matrix products in an analysis of ``--analysis all``.

    Args:
        name: name of the analysis.
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
    """Return the floating-point operations of applying classifiers to features."""
    return 2.0 * dim * n_rows * n_classes * n_classifiers
