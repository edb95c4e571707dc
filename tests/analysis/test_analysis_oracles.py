"""The analyses of features against independent definitions: scikit-learn, and loops over all pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from marks import first_quick

from cog.analysis import alignment, base, kmeans, neighbors
from cog.features.feature_files import FeatureSet

DATA = base.Data(None, None, None, {}, None, {}, torch.device("cpu"))


def clouds(n: int, d: int, n_classes: int, *, seed: int = 0, spread: float = 1.0) -> FeatureSet:
    """Unit vectors in overlapping clusters of a spectrum that falls, as features have it."""
    generator = torch.Generator().manual_seed(99)
    spectrum = torch.arange(1, d + 1).float() ** -0.5
    centers = torch.randn(n_classes, d, generator=generator) * spectrum
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % n_classes
    x = (centers[y] + spread * spectrum * torch.randn(n, d, generator=generator)).relu()
    return FeatureSet(torch.nn.functional.normalize(x), y, "clouds")


def fit(x: torch.Tensor, k: int, seed: int = 0, **options) -> tuple[torch.Tensor, float, torch.Tensor]:
    """Cluster rows; return the centers, the inertia and the cluster of each row."""
    mean = DATA.mean_row(x)
    centers, inertia = kmeans.lloyd(DATA, x, k, seed, mean=mean, **options)
    return centers, inertia, kmeans.nearest(DATA, x, centers, mean=mean)[0]


def plain_lloyd(x: torch.Tensor, centers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Lloyd's algorithm as in a textbook, in float64, until no row moves."""
    x, centers = x.double(), centers.double()
    labels = torch.full((len(x),), -1)
    while not torch.equal(labels, new := torch.cdist(x, centers).argmin(dim=1)):
        labels = new
        centers = torch.stack([x[labels == c].mean(dim=0) for c in range(len(centers))])
    return centers, labels


# ------------------------------------------------------------------------------------------------------------
# k-means


@pytest.mark.parametrize("seed", range(3))
def test_kmeans_from_the_same_start_ends_where_a_textbook_and_scikit_learn_do(seed, monkeypatch):
    from sklearn import cluster

    monkeypatch.setattr(base.Data.blocks, "__kwdefaults__", {"shift": None, "size": 700})
    x = clouds(3000, 64, 30, spread=0.8).x
    start = x[np.random.default_rng(seed).choice(3000, 30, replace=False)]
    found, inertia, labels = fit(x, 30, start=start, tolerance=0.0)
    centers, expected = plain_lloyd(x, start)
    assert torch.equal(labels, expected)
    np.testing.assert_allclose(found + DATA.mean_row(x), centers, atol=1e-6)
    assert inertia == pytest.approx(float((x.double() - centers[expected]).square().sum()), rel=1e-6)
    theirs = cluster.KMeans(30, init=start.double().numpy(), n_init=1).fit(x.double().numpy())
    _, inertia, labels = fit(x, 30, start=start)
    assert inertia == pytest.approx(theirs.inertia_, rel=1e-6)
    assert (labels.numpy() == theirs.labels_).all()


def test_kmeans_of_features_that_hardly_differ_keeps_its_digits():
    # an untrained network: everything within 1e-3 of one direction
    x = torch.nn.functional.normalize(torch.ones(64) + 0.004 * clouds(2000, 64, 5).x)
    _, inertia, labels = fit(x, 5, start=x[:5], tolerance=0.0)
    centers, expected = plain_lloyd(x, x[:5])
    assert torch.equal(labels, expected)
    assert inertia == pytest.approx(float((x.double() - centers[expected]).square().sum()), rel=1e-5)


@pytest.mark.slow
def test_kmeans_starts_as_well_as_scikit_learn_does():
    from sklearn import cluster

    x = clouds(4000, 64, 40, spread=0.6).x
    theirs = [cluster.KMeans(40, n_init=1, random_state=s).fit(x.numpy()).inertia_ for s in range(12)]
    ours = [fit(x, 40, seed)[1] for seed in range(12)]
    assert np.mean(ours) < 1.01 * np.mean(theirs) and min(ours) >= 0.97 * min(theirs)


def test_empty_clusters_get_the_farthest_rows():
    x = torch.cat([torch.zeros(50, 4), 10 * torch.eye(4)]) + 0.01 * torch.randn(54, 4)
    _, _, labels = fit(x, 5, start=torch.zeros(5, 4))
    assert sorted(labels.bincount().tolist()) == [1, 1, 1, 1, 50]


def test_kmeans_is_a_function_of_its_seed():
    x = clouds(1500, 48, 12).x
    (first, inertia, _), (same, again, _), (other, *_) = (fit(x, 12, seed) for seed in (1, 1, 2))
    assert torch.equal(first, same) and inertia == again and not torch.equal(first, other)


def test_purities_by_hand():
    #          cluster:  0  0  0  1  1  1  2  2
    classes = np.array([0, 0, 1, 1, 1, 0, 1, 1])
    found = kmeans.agreement(classes, np.array([0, 0, 0, 1, 1, 1, 2, 2]))
    assert found["purity_v1"] == pytest.approx((2 / 3 + 2 / 5) / 2)
    assert found["purity"] == pytest.approx((2 + 2 + 2) / 8)


def test_agreement_ignores_the_numbers_of_clusters():
    classes = np.repeat(np.arange(4), 10)
    assert set(kmeans.agreement(classes, 7 - classes).values()) == {1.0}


# ------------------------------------------------------------------------------------------------------------
# Alignment and uniformity


@pytest.mark.parametrize(("alpha", "t"), first_quick(1, [(2.0, 2.0), (1.0, 0.5), (3.0, 30.0)]))
def test_alignment_and_uniformity_are_their_definitions(monkeypatch, alpha, t):
    monkeypatch.setattr(alignment, "_BLOCK", 130)
    features = clouds(1000, 32, 7)
    mean = DATA.mean_row(features.x)
    x = features.x.double().numpy()
    i, j = np.triu_indices(len(x), 1)
    squared = np.empty(len(i))
    for part in np.array_split(np.arange(len(i)), 50):
        squared[part] = ((x[i[part]] - x[j[part]]) ** 2).sum(axis=1)
    positive = features.y.numpy()[i] == features.y.numpy()[j]
    aligned = alignment.alignment(DATA, features.x, features.y, mean=mean, alpha=alpha)
    assert aligned == pytest.approx((squared[positive] ** (alpha / 2)).mean(), abs=1e-5)
    expected = np.log(np.exp(-t * squared).mean())
    assert alignment.uniformity(DATA, features.x, mean=mean, t=t) == pytest.approx(expected, abs=1e-5)


def test_uniformity_does_not_underflow():
    x = torch.eye(64)  # all distances are the square root of 2
    found = alignment.uniformity(DATA, x, mean=DATA.mean_row(x), t=1000.0)
    assert found == pytest.approx(-2000.0, rel=1e-5)


# ------------------------------------------------------------------------------------------------------------
# Neighbors and class means


def test_neighbors_vote_as_in_scikit_learn(monkeypatch):
    from sklearn import neighbors as sklearn_neighbors

    monkeypatch.setattr(neighbors, "_TRAIN_BLOCK", 500)
    monkeypatch.setattr(neighbors, "_TEST_BLOCK", 150)
    train, test = clouds(1600, 40, 11), clouds(400, 40, 11, seed=1)
    index, similarity = neighbors.nearest_rows(DATA, train.x, test.x, 200)
    cosines = test.x.double() @ train.x.double().T
    nearest = cosines.sort(dim=1, descending=True).values[:, :200]
    torch.testing.assert_close(similarity.double(), nearest, atol=1e-6, rtol=0)
    torch.testing.assert_close(cosines.gather(1, index), nearest, atol=1e-6, rtol=0)
    assert all(len(set(row)) == 200 for row in index.tolist())
    for k in (1, 5, 10, 20, 100, 200):
        theirs = sklearn_neighbors.KNeighborsClassifier(
            k,
            metric="cosine",
            algorithm="brute",
            weights=lambda distance: np.exp((1.0 - distance) / 0.07),
        ).fit(train.x.double().numpy(), train.y.numpy())
        p = theirs.predict_proba(test.x.double().numpy())
        of_class = p[np.arange(400), test.y.numpy()]
        rank = (p > of_class[:, None]).sum(axis=1)
        top1, top5 = neighbors.vote(index[:, :k], similarity[:, :k], train.y, test.y)
        assert top1 == pytest.approx(100 * (theirs.predict(test.x.double().numpy()) == test.y.numpy()).mean())
        assert top5 == pytest.approx(100 * ((rank < 5) & (of_class > 0)).mean())


def test_weights_of_a_small_temperature_do_not_overflow(monkeypatch):
    index, similarity = torch.tensor([[0, 1, 2, 3]]), torch.tensor([[0.9, 0.8, 0.7, 0.6]])
    y, target = torch.tensor([1, 0, 0, 1]), torch.tensor([1])
    assert neighbors.vote(index[:, :1], similarity[:, :1], y, 1 - target) == (0.0, 0.0), "no vote at all"
    for temperature in (1e-4, 0.07):
        monkeypatch.setattr(neighbors, "TEMPERATURE", temperature)
        assert neighbors.vote(index, similarity, y, target) == (100.0, 100.0)


def test_class_means_are_scikit_learns_centroids():
    from sklearn import neighbors as sklearn_neighbors

    train = clouds(3000, 24, 9, spread=2.0)
    theirs = sklearn_neighbors.NearestCentroid().fit(train.x.double().numpy(), train.y.numpy())
    means = DATA.sums(train.x, train.y, 9) / train.y.bincount()[:, None]
    torch.testing.assert_close(means, torch.from_numpy(theirs.centroids_), atol=1e-9, rtol=0)
