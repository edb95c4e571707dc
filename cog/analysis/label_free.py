"""Analyses of l2-normalized features alone: clusters, alignment and uniformity, neighbors, class means."""

import logging
import math

import numpy as np
import torch

from cog.analysis.base import AnalysisInput, analysis
from cog.errors import CogError
from cog.features.feature_files import FeatureSet, unit_rows
from cog.results.analysis_records import Number

logger = logging.getLogger(__name__)

#: Numbers of rows that are compared at a time: 16 MB of distances; 64 MB of similarities.
_PAIR_BLOCK, _TEST_BLOCK, _TRAIN_BLOCK = 2048, 1024, 16384

#: T of the weights exp(cosine / T) of neighbors (Wu et al. 2018; DINO).
TEMPERATURE = 0.07


@analysis("kmeans", keys=("KMEANS_K", "KMEANS_SEEDS"))
def kmeans(data: AnalysisInput) -> dict[str, Number]:
    """Cluster the training features, compare the clusters of the test images with classes (v1, Sec. 4.3.1).

    The numbers are those of the seed with the lowest inertia.
    """
    train, test = data.both()
    options = data.cfg.ANALYSIS
    k = options.KMEANS_K or len(train.y.unique())
    if k > len(train):
        found = f"{k} clusters need at least as many training images, found {len(train)}"
        raise CogError(f"{data.label}{found}; lower ANALYSIS.KMEANS_K")
    x, mean = data.resident(train.x), data.mean_row(train.x)
    for seed in options.KMEANS_SEEDS:
        centers, inertia = lloyd(data, x, starting_centers(x, k, seed, mean), mean)
        clusters, _ = nearest(data, test.x, centers, mean)
        data.per_seed[seed] = {"inertia": inertia, **agreement(test.y.numpy(), clusters.numpy())}
    data.details["k"] = k
    return dict(min(data.per_seed.values(), key=lambda values: values["inertia"] or 0.0))


def agreement(classes: np.ndarray, clusters: np.ndarray) -> dict[str, float]:
    """Compare a clustering with the classes of the same samples, both int ``(m,)``; 1 is the best value.

    ``purity_v1``: mean over classes of the share of a class in the cluster that has most of it (v1, Eq. 3, by
    the size of the class, as its table requires); ``purity``: share of the most frequent class of a cluster.
    """
    from sklearn import metrics  # takes a second

    table = np.asarray(metrics.cluster.contingency_matrix(classes, clusters))
    return {
        "purity_v1": float((table.max(axis=1) / table.sum(axis=1)).mean()),
        "purity": float(table.max(axis=0).sum() / table.sum()),
        "ami": float(metrics.adjusted_mutual_info_score(classes, clusters)),
        "nmi": float(metrics.normalized_mutual_info_score(classes, clusters)),
        "ari": float(metrics.adjusted_rand_score(classes, clusters)),
    }


def starting_centers(x: torch.Tensor, k: int, seed: int, mean: torch.Tensor) -> torch.Tensor:
    """Return the centers ``(k, d)`` of k-means++ (scikit-learn) on 100 k rows, both of the seed."""
    from sklearn.cluster import kmeans_plusplus

    sample = np.random.default_rng(seed).permutation(len(x))[: 100 * k]
    rows = x[torch.from_numpy(np.sort(sample)).to(x.device)].cpu() - mean.cpu()
    return torch.from_numpy(kmeans_plusplus(rows.numpy(), k, random_state=seed)[0]).to(mean.device) + mean


def lloyd(
    data: AnalysisInput, x: torch.Tensor, start: torch.Tensor, mean: torch.Tensor, *, tolerance: float = 1e-4
) -> tuple[torch.Tensor, float]:
    """Cluster rows ``(n, d)`` by Lloyd's algorithm; return centered centers ``(k, d)`` and inertia.

    It ends when centers move by less than ``tolerance`` relative to the variance of the rows, as in
    scikit-learn. A cluster that becomes empty gets the row that is farthest from its center.
    """
    centers, k = start - mean, len(start)
    squares = sum(float(block.double().square().sum()) for _, block in data.blocks(x, mean))
    for _ in range(300):
        labels, distances = nearest(data, x, centers, mean)
        counts = torch.bincount(labels, minlength=k)
        moved = data.sums(x, labels, k, mean) / counts.clamp(min=1).to(mean.device)[:, None]
        empty = (counts == 0).nonzero().squeeze(1)
        far = distances.sort(descending=True, stable=True).indices[: len(empty)]
        moved[empty.to(mean.device)] = (x[far.to(x.device)].to(mean.device) - mean).double()
        movement = float((moved.float() - centers).double().square().sum())
        centers = moved.float()
        if movement <= tolerance * squares / x.numel():
            break
    return centers, float(nearest(data, x, centers, mean)[1].double().sum())


def nearest(
    data: AnalysisInput, x: torch.Tensor, centers: torch.Tensor, mean: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nearest center of every row, int64 ``(n,)``, and its squared distance, on the CPU."""
    squares = centers.square().sum(dim=1)
    labels, distances = [], []
    for _, block in data.blocks(x, mean):
        least = torch.addmm(squares, block, centers.T, alpha=-2.0).min(dim=1)
        labels.append(least.indices.cpu())
        distances.append((least.values + block.square().sum(dim=1)).clamp(min=0.0).cpu())
    return torch.cat(labels), torch.cat(distances)


@analysis("alignment", splits=("test",))
def alignment_and_uniformity(data: AnalysisInput) -> dict[str, Number]:
    """Return alignment and uniformity (Wang and Isola 2020; v1 of the paper, Sec. 4.3.2) over all pairs.

    Positive pairs are images of the same class; None without pairs. v1 prints uniformity with a minus.
    """
    test = data.load("test")
    x, mean = data.resident(test.x), data.mean_row(test.x)
    aligned, uniform = alignment(data, x, test.y, mean), uniformity(data, x, mean)
    return {
        "alignment": aligned,
        "uniformity": uniform,
        "uniformity_v1": None if uniform is None else -uniform,
        "alignment_by_uniformity": aligned / -uniform if aligned is not None and uniform else None,
    }


def alignment(data: AnalysisInput, x: torch.Tensor, y: torch.Tensor, mean: torch.Tensor) -> float | None:
    """Return the mean over positive pairs of |x - y|^2 for features ``(n, d)`` of classes ``(n,)``.

    The sum over the pairs of m rows is m times the sum of |x|^2 minus the square of the sum of x.
    """
    labels, y, n = torch.unique(y, return_inverse=True, return_counts=True)
    squares = [block.double().square().sum(dim=1, keepdim=True) for _, block in data.blocks(x, mean)]
    of_class = data.sums(torch.cat(squares), y, len(labels))[:, 0] * n.to(data.device)
    total = float((of_class - data.sums(x, y, len(labels), mean).square().sum(dim=1)).sum())
    n_pairs = int((n * (n - 1) // 2).sum())
    return total / n_pairs if n_pairs else None


def uniformity(data: AnalysisInput, x: torch.Tensor, mean: torch.Tensor, *, t: float = 2.0) -> float | None:
    """Return the log of the mean over all pairs of exp(-t |x - y|^2); distances are float32, sums float64."""
    if len(x) < 2:
        return None
    logs = []  # logarithm of the sum of each block: exp(-t d^2) itself may underflow
    for i, a in data.blocks(x, mean, size=_PAIR_BLOCK):
        for j, b in data.blocks(x[i:], mean, size=_PAIR_BLOCK):
            exponents = torch.addmm(b.square().sum(dim=1), a, b.T, beta=-t, alpha=2.0 * t)
            exponents.sub_(t * a.square().sum(dim=1, keepdim=True)).clamp_(max=0.0)
            if j == 0:
                exponents.masked_fill_(torch.ones_like(exponents, dtype=torch.bool).tril_(), -torch.inf)
            logs.append(exponents.flatten().double().logsumexp(dim=0))
    return float(torch.stack(logs).logsumexp(dim=0)) - math.log(len(x) * (len(x) - 1) // 2)


@analysis("knn", keys=("KNN_K",))
def knn(data: AnalysisInput) -> dict[str, Number]:
    """Return the accuracies, in percent, of every k; None for a k above the number of training images."""
    train, test = data.both()
    y, targets = _labels(data, train, test)
    x_train, n_classes = data.resident(train.x), int(y.max()) + 1
    ks = sorted(data.cfg.ANALYSIS.KNN_K)
    hits: dict[int, list[torch.Tensor]] = {k: [] for k in ks if k <= len(train)}
    if len(hits) < len(ks):
        logger.warning("%sk above the %d training images is undefined", data.label, len(train))
    for start, x in data.blocks(test.x, size=_TEST_BLOCK) if hits else ():
        index, cosines = nearest_rows(data, x_train, x, max(hits))
        target = targets[start : start + len(x), None]
        # Weights are divided by the largest weight of the row, because exp(1 / T) overflows for a small T.
        weights = ((cosines.double() - cosines[:, :1].double()) / TEMPERATURE).exp()
        for k, of_k in hits.items():
            votes = torch.zeros(len(x), n_classes, dtype=torch.float64)
            votes.scatter_add_(1, y[index[:, :k]], weights[:, :k])
            most, classes = votes.topk(min(5, n_classes), dim=1)
            of_k.append((classes == target) & (most > 0))
    found = {k: _accuracies(hits[k]) if k in hits else (None, None) for k in ks}
    return {f"top{top}_k{k}_weighted": found[k][top == 5] for k in ks for top in (1, 5)}


def nearest_rows(
    data: AnalysisInput, train: torch.Tensor, x: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ``k`` most similar rows of ``train`` ``(n, d)`` for every row of ``x`` ``(m, d)``, exactly.

    Rows are l2-normalized. The result: row numbers, nearest first, and cosines, both ``(m, k)``, on the CPU.
    """
    best = torch.empty(len(x), 0, device=data.device)
    index = torch.empty(len(x), 0, dtype=torch.int64, device=data.device)
    for first, block in data.blocks(train, size=_TRAIN_BLOCK):
        near, columns = (x @ block.T).topk(min(k, len(block)), dim=1)
        best, order = torch.cat([best, near], dim=1).topk(min(k, best.shape[1] + near.shape[1]), dim=1)
        index = torch.cat([index, columns + first], dim=1).gather(1, order)
    return index.cpu(), best.cpu()


@analysis("ncm")
def ncm(data: AnalysisInput) -> dict[str, Number]:
    """Predict the class whose mean training feature has the highest cosine; accuracies are in percent."""
    train, test = data.both()
    y, targets = _labels(data, train, test)
    # In float64: means of nearly equal features (of an untrained network) differ in their last digits only.
    means = unit_rows(data.sums(train.x, y, int(y.max()) + 1))
    hits = []
    for first, x in data.blocks(test.x):
        best = (x.double() @ means.T).topk(min(5, len(means)), dim=1).indices.cpu()
        hits.append(best == targets[first : first + len(x), None])
    return dict(zip(("top1_cosine", "top5_cosine"), _accuracies(hits), strict=True))


def _labels(data: AnalysisInput, train: FeatureSet, test: FeatureSet) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the labels of both splits as indices of the training classes; -1, never predicted: others."""
    labels, y = torch.unique(train.y, return_inverse=True)
    index = torch.searchsorted(labels, test.y.contiguous()).clamp(max=len(labels) - 1)
    targets = torch.where(labels[index] == test.y, index, -1)
    if unseen := test.y[targets < 0].unique().tolist():
        found = f"{len(unseen)} classes of the test features (label {unseen[0]} ...)"
        logger.warning("%s%s have no training features: their images count as errors", data.label, found)
    return y, targets


def _accuracies(hits: list[torch.Tensor]) -> tuple[float, float]:
    """Return top-1 and top-5 accuracy in percent; hits are bool ``(m, 5)``, best prediction first."""
    rows = torch.cat(hits)
    return 100.0 * float(rows[:, 0].double().mean()), 100.0 * float(rows.any(dim=1).double().mean())
