"""k-means on the training features, compared with the classes of the test images (v1, Sec. 4.3.1, Table 6)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cog.analysis.base import ModelData, Outcome, analysis, blocks, mean_row, resident
from cog.errors import CogError
from cog.results.analysis_records import Number
from cog.results.metric_info import NONE, UNIT, Metric, declare
from cog.runtime import files

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

#: File with the centers of the best repetition and the clusters of the test images, beside results.json.
CLUSTERS_FILE = "clusters.npz"

#: Number of rows per cluster from which starting centers are drawn: k-means++ reads them k times.
_START_ROWS = 100

_NOTE = (
    "k-means: of several initializations the one with the lowest inertia; "
    "[ ]: the lowest and the highest value of all of them."
)

# Label of each metric, unit, and direction.
_METRICS = {
    "purity": ("purity, largest class of each cluster", UNIT, 1),
    "purity_v1": ("purity as in the paper's first version, largest cluster of each class", UNIT, 1),
    "ami": ("AMI", UNIT, 1),
    "nmi": ("NMI", UNIT, 1),
    "ari": ("ARI", UNIT, 1),
    "inertia": ("inertia", NONE, 0),
}

declare(
    "kmeans",
    {
        name: Metric(
            group="kmeans",
            label=f"k-means {label}",
            unit=unit,
            better=better,
            note=_NOTE,
            order=(3, place),
            shows_range=True,
        )
        for place, (name, (label, unit, better)) in enumerate(_METRICS.items())
    },
)


@analysis(
    "kmeans",
    "k-means clusters compared with the classes",
    keys=("KMEANS_K", "KMEANS_SEEDS", "KMEANS_ITERATIONS", "KMEANS_TOLERANCE"),
)
def kmeans(data: ModelData, device: torch.device, stage: Path) -> Outcome:
    """Cluster the training features with several seeds, and compare the clusters of the test images with their classes.

    The values are those of the seed with the lowest inertia.
    """
    train, test = data.both()
    options, classes = data.cfg.ANALYSIS, test.y.numpy()
    k = options.KMEANS_K or len(train.y.unique())
    if k > len(train):
        raise CogError(
            f"{data.label}{k} clusters need at least as many training images, found {len(train)}; lower "
            "ANALYSIS.KMEANS_K"
        )
    x, mean = resident(train.x, device), mean_row(train.x, device)
    limits = {"iterations": options.KMEANS_ITERATIONS, "tolerance": options.KMEANS_TOLERANCE}
    per_seed: dict[int, dict[str, Number]] = {}
    runs: dict[str, Any] = {}
    best = best_clusters = None
    for seed in options.KMEANS_SEEDS:
        run = lloyd(x, k, seed, mean=mean, device=device, **limits)
        clusters, _ = nearest(test.x, run.centers, mean=mean, device=device)
        per_seed[seed] = {"inertia": run.inertia, **agreement(classes, clusters.numpy())}
        runs[str(seed)] = {"iterations": run.iterations, "n_empty": run.n_empty}
        logger.info(
            "%sk-means of seed %d: inertia %.6g after %d iterations, %d empty clusters",
            data.label,
            seed,
            run.inertia,
            run.iterations,
            run.n_empty,
        )
        if best is None or run.inertia < per_seed[best]["inertia"]:  # type: ignore[operator]
            best, best_clusters = seed, (run.centers + mean, clusters)
    assert best is not None and best_clusters is not None
    centers, clusters = best_clusters
    with files.atomic_write(stage / CLUSTERS_FILE) as handle:
        np.savez(
            handle,
            centres=centers.cpu().numpy(),
            test_clusters=clusters.numpy().astype(np.int32),
            test_labels=classes,
        )
    details = {
        "k": k,
        "best_seed": best,
        "runs": runs,
        "rows": {"train": len(train), "test": len(test)},
        "dim": x.shape[1],
        "files": [CLUSTERS_FILE],
    }
    return Outcome(per_seed[best], per_seed, details)


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


@dataclass(frozen=True, eq=False)
class Clustering:
    """A clustering of rows.

    Attributes:
        centers: float32 ``(k, d)``, without the mean of the rows.
        inertia: sum of the squared distances of the rows to their centers.
        iterations: number of iterations.
        n_empty: number of clusters without a row: there are fewer different rows than clusters.
    """

    centers: torch.Tensor
    inertia: float
    iterations: int
    n_empty: int


def lloyd(
    x: torch.Tensor,
    k: int,
    seed: int,
    *,
    mean: torch.Tensor,
    device: torch.device,
    iterations: int = 300,
    tolerance: float = 1e-4,
    start: torch.Tensor | None = None,
) -> Clustering:
    """Cluster rows by Lloyd's algorithm, from the starting centers of k-means++ (scikit-learn) on a sample of rows.

    A cluster that becomes empty gets the row that is farthest from its center.

    Args:
        x: float32 ``(n, d)``, on any device.
        k: number of clusters.
        seed: seed of the sample and of the starting centers.
        mean: mean row, float32 ``(d,)`` on ``device``.
        device: device of the computation.
        iterations: largest number of iterations.
        tolerance: the algorithm ends when the centers move by less than this, relative to the variance of the rows
            (scikit-learn's tol), or not at all.
        start: starting centers, float32 ``(k, d)``; default: those of the seed.
    """
    import torch

    if start is None:
        from sklearn.cluster import kmeans_plusplus

        sample = np.random.default_rng(seed).permutation(len(x))[: _START_ROWS * k]
        rows = x[torch.from_numpy(np.sort(sample)).to(x.device)].cpu() - mean.cpu()
        start = torch.from_numpy(kmeans_plusplus(rows.numpy(), k, random_state=seed)[0]).to(device) + mean
    centers = start - mean
    variance = (
        sum(float(block.double().square().sum()) for _, block in blocks(x, device, shift=mean)) / x.numel()
    )
    n_done = 0
    while n_done < iterations:
        n_done += 1
        labels, distances = nearest(x, centers, mean=mean, device=device)
        counts = torch.bincount(labels, minlength=k)
        sums = _sums(x, labels, k, mean=mean, device=device)
        moved = (sums / counts.clamp(min=1).to(device)[:, None]).float()
        empty = (counts == 0).nonzero().squeeze(1)
        far = distances.sort(descending=True, stable=True).indices[: len(empty)]
        moved[empty.to(device)] = x[far.to(x.device)].to(device) - mean
        movement = float((moved - centers).double().square().sum())
        centers = moved
        if movement <= tolerance * variance:
            break
    labels, _ = nearest(x, centers, mean=mean, device=device)
    inertia = 0.0
    for first, block in blocks(x, device, shift=mean):
        of_rows = centers[labels[first : first + len(block)].to(device)]
        inertia += float((block - of_rows).double().square().sum())
    return Clustering(centers, inertia, n_done, k - len(labels.unique()))


def nearest(
    x: torch.Tensor, centers: torch.Tensor, *, mean: torch.Tensor, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nearest center of every row, int64 ``(n,)``, and its squared distance, float32 ``(n,)``, on the CPU.

    Args:
        x: float32 ``(n, d)``, on any device.
        centers: float32 ``(k, d)`` on ``device``, without the mean.
        mean: vector that is subtracted from the rows.
        device: device of the computation.
    """
    import torch

    squares = centers.square().sum(dim=1)
    labels, distances = [], []
    for _, block in blocks(x, device, shift=mean):
        least = torch.addmm(squares, block, centers.T, alpha=-2.0).min(dim=1)
        labels.append(least.indices.cpu())
        distances.append((least.values + block.square().sum(dim=1)).clamp(min=0.0).cpu())
    return torch.cat(labels), torch.cat(distances)


def _sums(
    x: torch.Tensor, labels: torch.Tensor, k: int, *, mean: torch.Tensor, device: torch.device
) -> torch.Tensor:
    """Return the sum of the rows of each cluster, float64 ``(k, d)``, the same in every run."""
    import torch

    sums = torch.zeros(k, x.shape[1], dtype=torch.float64, device=device)
    # On CUDA, sums by index have no fixed order by default. (use_deterministic_algorithms imports the compiler.)
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        for first, block in blocks(x, device, shift=mean):
            sums.index_add_(0, labels[first : first + len(block)].to(device), block.double())
    finally:
        torch.set_deterministic_debug_mode(before)
    return sums
