"""The analyses of features against independent definitions: scikit-learn, and loops over all pairs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from marks import first_quick

from cog.analysis import base, label_free
from cog.config import get_cfg
from cog.features.feature_files import FeatureSet

DATA = base.AnalysisInput(None, "", None, {}, torch.device("cpu"))


def clouds(n: int, d: int, n_classes: int, *, seed: int = 0, spread: float = 1.0) -> FeatureSet:
    """Unit vectors in overlapping clusters of a spectrum that falls, as features have it."""
    generator = torch.Generator().manual_seed(99)
    spectrum = torch.arange(1, d + 1).float() ** -0.5
    centers = torch.randn(n_classes, d, generator=generator) * spectrum
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % n_classes
    x = (centers[y] + spread * spectrum * torch.randn(n, d, generator=generator)).relu()
    return FeatureSet(torch.nn.functional.normalize(x), y, "clouds")


def fit(x: torch.Tensor, start: torch.Tensor, **options):
    """Cluster rows; return centers, inertia and the cluster of each row."""
    mean = DATA.mean_row(x)
    centers, inertia = label_free.lloyd(DATA, x, start, mean, **options)
    return centers + mean, inertia, label_free.nearest(DATA, x, centers, mean)[0]


def plain_lloyd(x: torch.Tensor, centers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Lloyd's algorithm as in a textbook, in float64, until no row moves."""
    x, centers = x.double(), centers.double()
    labels = torch.full((len(x),), -1)
    while not torch.equal(labels, new := torch.cdist(x, centers).argmin(dim=1)):
        labels = new
        centers = torch.stack([x[labels == c].mean(dim=0) for c in range(len(centers))])
    return centers, labels, float((x - centers[labels]).square().sum())


def test_kmeans_from_the_same_start_ends_where_a_textbook_and_scikit_learn_do(monkeypatch):
    from sklearn.cluster import KMeans

    monkeypatch.setattr(base.AnalysisInput.blocks, "__kwdefaults__", {"size": 700})
    x = clouds(3000, 64, 30, spread=0.8).x
    start = x[np.random.default_rng(0).choice(3000, 30, replace=False)]
    found, inertia, labels = fit(x, start, tolerance=0.0)
    centers, expected, of_expected = plain_lloyd(x, start)
    assert torch.equal(labels, expected) and inertia == pytest.approx(of_expected, rel=1e-6)
    np.testing.assert_allclose(found, centers, atol=1e-6)
    theirs = KMeans(30, init=start.double().numpy(), n_init=1).fit(x.double().numpy())
    _, inertia, labels = fit(x, start)
    assert inertia == pytest.approx(theirs.inertia_, rel=1e-6) and (labels.numpy() == theirs.labels_).all()


def test_kmeans_of_features_that_hardly_differ_keeps_its_digits():
    # an untrained network: everything within 1e-3 of one direction
    x = torch.nn.functional.normalize(torch.ones(64) + 0.004 * clouds(2000, 64, 5).x)
    _, inertia, labels = fit(x, x[:5], tolerance=0.0)
    _, expected, of_expected = plain_lloyd(x, x[:5])
    assert torch.equal(labels, expected) and inertia == pytest.approx(of_expected, rel=1e-5)


def test_empty_clusters_get_the_farthest_rows():
    x = torch.cat([torch.zeros(50, 4), 10 * torch.eye(4)]) + 0.01 * torch.randn(54, 4)
    _, _, labels = fit(x, torch.zeros(5, 4))
    assert sorted(labels.bincount().tolist()) == [1, 1, 1, 1, 50]


def test_purities_by_hand():
    #          cluster:  0  0  0  1  1  1  2  2
    classes = np.array([0, 0, 1, 1, 1, 0, 1, 1])
    found = label_free.agreement(classes, np.array([0, 0, 0, 1, 1, 1, 2, 2]))
    assert found["purity_v1"] == pytest.approx((2 / 3 + 2 / 5) / 2)
    assert found["purity"] == pytest.approx((2 + 2 + 2) / 8)
    assert set(label_free.agreement(classes, 7 - classes).values()) == {1.0}


@pytest.mark.parametrize("t", first_quick(1, [2.0, 0.5, 30.0]))
def test_alignment_and_uniformity_are_their_definitions(monkeypatch, t):
    monkeypatch.setattr(label_free, "_PAIR_BLOCK", 130)
    features = clouds(1000, 32, 7)
    mean, x = DATA.mean_row(features.x), features.x.double()
    squared = torch.pdist(x).square()
    i, j = np.triu_indices(len(x), 1)
    positive = features.y[i] == features.y[j]
    aligned = label_free.alignment(DATA, features.x, features.y, mean)
    assert aligned == pytest.approx(float(squared[positive].mean()), abs=1e-5)
    found = label_free.uniformity(DATA, features.x, mean, t=t)
    assert found == pytest.approx(float((-t * squared).exp().mean().log()), abs=1e-5)


def data_of(train: FeatureSet, test: FeatureSet, ks: list[int]) -> base.AnalysisInput:
    data = replace(DATA, cfg=get_cfg(opts=["ANALYSIS.KNN_K", str(ks)]))
    data._loaded.update({("train", True): train, ("test", True): test})
    return data


def test_neighbors_vote_as_in_scikit_learn(monkeypatch):
    from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

    monkeypatch.setattr(label_free, "_TRAIN_BLOCK", 500)
    monkeypatch.setattr(label_free, "_TEST_BLOCK", 150)
    train, test = clouds(1600, 40, 11), clouds(400, 40, 11, seed=1)
    index, similarity = label_free.nearest_rows(DATA, train.x, test.x, 200)
    cosines = test.x.double() @ train.x.double().T
    nearest = cosines.sort(dim=1, descending=True).values[:, :200]
    torch.testing.assert_close(similarity.double(), nearest, atol=1e-6, rtol=0)
    torch.testing.assert_close(cosines.gather(1, index), nearest, atol=1e-6, rtol=0)
    centroids = NearestCentroid().fit(train.x.double().numpy(), train.y.numpy())
    means = DATA.sums(train.x, train.y, 11) / train.y.bincount()[:, None]
    torch.testing.assert_close(means, torch.from_numpy(centroids.centroids_), atol=1e-9, rtol=0)
    ks = [1, 5, 20, 200]
    found = label_free.knn(data_of(train, test, ks))
    for k in ks:
        options = {"metric": "cosine", "algorithm": "brute", "weights": lambda d: np.exp((1.0 - d) / 0.07)}
        theirs = KNeighborsClassifier(k, **options)
        theirs.fit(train.x.double().numpy(), train.y.numpy())
        p = theirs.predict_proba(test.x.double().numpy())
        of_class = p[np.arange(400), test.y.numpy()]
        rank = (p > of_class[:, None]).sum(axis=1)
        top1 = 100 * (theirs.predict(test.x.double().numpy()) == test.y.numpy()).mean()
        assert found[f"top1_k{k}_weighted"] == pytest.approx(top1)
        assert found[f"top5_k{k}_weighted"] == pytest.approx(100 * ((rank < 5) & (of_class > 0)).mean())
