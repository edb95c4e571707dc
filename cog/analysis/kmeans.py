"""k-means on the training features, compared with the classes of the test images (v1, Sec. 4.3.1, Table 6)."""

from __future__ import annotations

import numpy as np
import torch
from sklearn import metrics
from sklearn.cluster import kmeans_plusplus

from cog.analysis.base import Data, analysis, resident
from cog.errors import CogError
from cog.results.analysis_records import Number

#: Number of rows per cluster from which starting centers are drawn: k-means++ reads them k times.
_START_ROWS = 100


@analysis(
    "kmeans",
    "k-means clusters compared with the classes",
    keys=("KMEANS_K", "KMEANS_SEEDS"),
)
def kmeans(data: Data) -> dict[str, Number]:
    """Cluster the training features with several seeds, and compare the clusters of the test images with their classes.

    The numbers are those of the seed with the lowest inertia.
    """
    train, test = data.both()
    options = data.cfg.ANALYSIS
    k = options.KMEANS_K or len(train.y.unique())
    if k > len(train):
        raise CogError(
            f"{data.label}{k} clusters need at least as many training images, found {len(train)}; lower "
            "ANALYSIS.KMEANS_K"
        )
    x, mean = resident(train.x, data.device), data.mean_row(train.x)
    for seed in options.KMEANS_SEEDS:
        centers, inertia = lloyd(data, x, k, seed, mean=mean)
        clusters, _ = nearest(data, test.x, centers, mean=mean)
        data.per_seed[seed] = {"inertia": inertia, **agreement(test.y.numpy(), clusters.numpy())}
    data.details["k"] = k
    return min(data.per_seed.values(), key=lambda values: values["inertia"])  # type: ignore[arg-type,return-value]


def agreement(classes: np.ndarray, clusters: np.ndarray) -> dict[str, float]:
    """Compare a clustering with the classes of the same samples, both int ``(m,)``; 1 is the best value of each.

    ``purity_v1``: mean over classes of the share of a class in the cluster that has most of it (Eq. 3 of the paper's
    first version, divided by the size of the classes, as its table requires); ``purity``: share of the samples that
    belong to the most frequent class of their cluster (the usual definition); ``ami``, ``nmi``, ``ari``: scikit-learn's
    adjusted and normalized mutual information (with arithmetic means) and adjusted Rand index.
    """
    table = np.asarray(metrics.cluster.contingency_matrix(classes, clusters))
    return {
        "purity_v1": float((table.max(axis=1) / table.sum(axis=1)).mean()),
        "purity": float(table.max(axis=0).sum() / table.sum()),
        "ami": float(metrics.adjusted_mutual_info_score(classes, clusters)),
        "nmi": float(metrics.normalized_mutual_info_score(classes, clusters)),
        "ari": float(metrics.adjusted_rand_score(classes, clusters)),
    }


def lloyd(
    data: Data,
    x: torch.Tensor,
    k: int,
    seed: int,
    *,
    mean: torch.Tensor,
    iterations: int = 300,
    tolerance: float = 1e-4,
    start: torch.Tensor | None = None,
) -> tuple[torch.Tensor, float]:
    """Cluster rows, float32 ``(n, d)`` on any device, by Lloyd's algorithm into ``k`` clusters.

    It starts from ``start`` ``(k, d)``, by default the centers of k-means++ (scikit-learn) on a sample of rows, both of
    the seed, and ends when the centers move by less than ``tolerance`` relative to the variance of the rows
    (scikit-learn's tol). A cluster that becomes empty gets the row that is farthest from its center.

    Returns:
        Centers without the mean row, float32 ``(k, d)``; inertia, the sum of squared distances of the rows to them.
    """
    if start is None:
        sample = np.random.default_rng(seed).permutation(len(x))[: _START_ROWS * k]
        rows = x[torch.from_numpy(np.sort(sample)).to(x.device)].cpu() - mean.cpu()
        start = (
            torch.from_numpy(kmeans_plusplus(rows.numpy(), k, random_state=seed)[0]).to(mean.device) + mean
        )
    centers = start - mean
    squares = sum(float(block.double().square().sum()) for _, block in data.blocks(x, shift=mean))
    for _ in range(iterations):
        labels, distances = nearest(data, x, centers, mean=mean)
        counts = torch.bincount(labels, minlength=k)
        moved = data.sums(x, labels, k, mean) / counts.clamp(min=1).to(mean.device)[:, None]
        empty = (counts == 0).nonzero().squeeze(1)
        far = distances.sort(descending=True, stable=True).indices[: len(empty)]
        moved[empty.to(mean.device)] = (x[far.to(x.device)].to(mean.device) - mean).double()
        movement = float((moved.float() - centers).double().square().sum())
        centers = moved.float()
        if movement <= tolerance * squares / x.numel():
            break
    labels, _ = nearest(data, x, centers, mean=mean)
    inertia = 0.0
    for first, block in data.blocks(x, shift=mean):
        own = centers[labels[first : first + len(block)].to(mean.device)]
        inertia += float((block - own).double().square().sum())
    return centers, inertia


def nearest(
    data: Data, x: torch.Tensor, centers: torch.Tensor, *, mean: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nearest center of every row, int64 ``(n,)``, and its squared distance, float32, on the CPU."""
    squares = centers.square().sum(dim=1)
    labels, distances = [], []
    for _, block in data.blocks(x, shift=mean):
        least = torch.addmm(squares, block, centers.T, alpha=-2.0).min(dim=1)
        labels.append(least.indices.cpu())
        distances.append((least.values + block.square().sum(dim=1)).clamp(min=0.0).cpu())
    return torch.cat(labels), torch.cat(distances)
