"""The analyses of features against independent definitions: scikit-learn, and loops over all pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from marks import first_quick

from cog.analysis import alignment, kmeans, knn, lloyd, ncm, ranked_classes, seeding
from cog.analysis.rows import FeatureRows
from cog.features.feature_files import FeatureSet
from cog.runtime.state_file import StateFile

CPU = torch.device("cpu")


def clouds(n: int, d: int, n_classes: int, *, seed: int = 0, spread: float = 1.0) -> FeatureSet:
    """Unit vectors in overlapping clusters of a spectrum that falls, as features have it."""
    generator = torch.Generator().manual_seed(99)
    spectrum = torch.arange(1, d + 1).float() ** -0.5
    centers = torch.randn(n_classes, d, generator=generator) * spectrum
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % n_classes
    x = (centers[y] + spread * spectrum * torch.randn(n, d, generator=generator)).relu()
    return FeatureSet(torch.nn.functional.normalize(x), y, "clouds")


def rows_of(features: FeatureSet, *, centered: bool = False) -> FeatureRows:
    return FeatureRows(features, CPU, centered=centered)


def plain_lloyd(x: torch.Tensor, centers: torch.Tensor, iterations: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Lloyd's algorithm as in a textbook, in float64, until no row moves."""
    x, centers = x.double(), centers.double()
    labels = None
    for _ in range(iterations):
        new = torch.cdist(x, centers).argmin(dim=1)
        if labels is not None and bool((new == labels).all()):
            break
        labels = new
        centers = torch.stack([x[labels == c].mean(dim=0) for c in range(len(centers))])
    assert labels is not None
    return centers, labels


def inertia_of(x: torch.Tensor, centers: torch.Tensor, labels: torch.Tensor) -> float:
    return float((x.double() - centers.double()[labels]).square().sum())


# ------------------------------------------------------------------------------------------------------------
# k-means


@pytest.mark.parametrize(
    ("n", "dim", "k", "spread", "seed"),
    first_quick(
        2,
        [
            *[(3000, 64, 30, 0.8, seed) for seed in range(5)],
            *[(20_000, 128, 100, 0.8, seed) for seed in range(3)],
            *[(8000, 64, 1000, spread, 0) for spread in (0.4, 0.8, 2.0)],
        ],
    ),
)
def test_kmeans_from_the_same_start_ends_where_scikit_learn_does(n, dim, k, spread, seed):
    from sklearn import cluster

    features = clouds(n, dim, k, spread=spread)
    init = features.x[np.random.default_rng(seed).choice(n, k, replace=False)]
    ours = lloyd.fit(rows_of(features, centered=True), k, seed=0, centers=init)
    theirs = cluster.KMeans(k, init=init.double().numpy(), n_init=1).fit(features.x.double().numpy())
    # Rounding would choose another optimum from many a start: all rows have to agree in all iterations. The numbers of
    # clusters can differ where scikit-learn fills several empty ones, in an order of its partition.
    same = np.unique(np.stack([ours.labels.numpy(), theirs.labels_]), axis=1)
    assert same.shape[1] == len(np.unique(theirs.labels_)) == k
    assert ours.iterations == theirs.n_iter_
    assert ours.inertia == pytest.approx(theirs.inertia_, rel=1e-7)
    np.testing.assert_allclose(ours.centers.numpy(), theirs.cluster_centers_[same[1]], atol=1e-6)
    ours_found = kmeans.agreement(features.y.numpy(), ours.labels.numpy())
    for name, value in kmeans.agreement(features.y.numpy(), theirs.labels_).items():
        assert ours_found[name] == pytest.approx(value, abs=1e-12), name


@pytest.mark.parametrize("seed", range(3))
def test_an_outlier_does_not_make_other_centers_equally_near(seed):
    # differences of the rows are below the rounding of the outlier's distances, and above that of their own
    generator = torch.Generator().manual_seed(seed)
    x = 1.0 + 3e-4 * torch.randn(300, 16, generator=generator).double()
    x = torch.cat([x, torch.full((1, 16), -3e2).double()]).float()
    features = FeatureSet(x, torch.arange(301) % 7, "collapsed")
    init = x[[300, *range(6)]]
    rows = rows_of(features, centered=True)
    ours = lloyd.fit(rows, 7, seed=0, centers=init, tolerance=0.0)
    assert rows.shift is not None
    _, labels = plain_lloyd(x.double() - rows.shift, init.double() - rows.shift, 300)
    assert torch.equal(ours.labels, labels)


@pytest.mark.parametrize("seed", range(3))
def test_empty_clusters_get_the_rows_that_are_farthest_in_float64(seed):
    # all centers far from the rows: whose row is the farthest, float32 cannot tell
    x = 1.0 + 1e-4 * torch.randn(200, 8, generator=torch.Generator().manual_seed(seed))
    features = FeatureSet(x, torch.arange(200) % 4, "far away")
    init = 1e3 + torch.arange(4.0)[:, None].repeat(1, 8)
    rows = rows_of(features, centered=True)
    ours = lloyd.fit(rows, 4, seed=0, centers=init, max_iterations=1)
    assert rows.shift is not None
    farthest = (x.double() - init[0].double()).square().sum(dim=1).topk(3).indices
    means = torch.cat(
        [x[farthest].double(), (x.double().sum(dim=0) - x[farthest].double().sum(dim=0))[None] / 197]
    )
    found = torch.cdist(ours.centers.double(), means).min(dim=1)
    assert sorted(found.indices.tolist()) == [0, 1, 2, 3] and float(found.values.max()) < 1e-6


def test_test_rows_are_assigned_as_scikit_learn_does():
    from sklearn import cluster

    features, test = clouds(3000, 64, 30, spread=0.8), clouds(1000, 64, 30, seed=2)
    theirs = cluster.KMeans(30, init=features.x[:30].double().numpy(), n_init=1)
    theirs.fit(features.x.double().numpy())
    ours = lloyd.fit(rows_of(features, centered=True), 30, seed=0, centers=features.x[:30])
    assigned = kmeans.nearest_centers(rows_of(test), ours.centers).numpy()
    np.testing.assert_array_equal(assigned, theirs.predict(test.x.double().numpy()))


def test_a_state_of_another_version_is_not_continued(tmp_path):
    store = StateFile(tmp_path / "seed-0.pt")
    store.save({"centres": torch.zeros(5, 16), "iterations": 3})
    rows = rows_of(clouds(500, 16, 5), centered=True)
    ours = lloyd.fit(rows, 5, seed=0, store=store)
    assert torch.equal(ours.labels, lloyd.fit(rows, 5, seed=0).labels)


def test_equally_near_centers_leave_rows_where_they_are():
    # pairs of equal rows, and centers that coincide: nothing but ties
    x = torch.nn.functional.normalize(clouds(50, 16, 5).x).repeat(2, 1)
    features = FeatureSet(x, torch.arange(100) % 5, "pairs")
    init = x[[0, 0, 1, 1, 2, 2]]
    ours = lloyd.fit(rows_of(features, centered=True), 6, seed=0, centers=init, tolerance=0.0)
    assert ours.ended_by == "convergence"
    assert torch.equal(ours.labels[:50], ours.labels[50:])


def test_bounds_do_not_change_the_clusters(monkeypatch):
    monkeypatch.setattr(lloyd, "BLOCK", 700)  # several blocks, the last one shorter
    features = clouds(3000, 256, 32)
    init = features.x[:32]
    ours = lloyd.fit(rows_of(features, centered=True), 32, seed=0, centers=init, tolerance=0.0)
    centers, labels = plain_lloyd(features.x, init, 300)
    assert ours.ended_by == "convergence" and ours.iterations > 5
    assert ours.computed_frac < 0.8
    assert torch.equal(ours.labels, labels)
    assert ours.inertia == pytest.approx(inertia_of(features.x, centers, labels), rel=1e-6)


def test_kmeans_of_features_that_hardly_differ_keeps_its_digits():
    # an untrained network: everything within 1e-3 of one direction
    base = clouds(2000, 64, 5)
    x = torch.nn.functional.normalize(torch.ones(64) + 0.004 * base.x)
    features = FeatureSet(x, base.y, "same")
    init = x[:5]
    ours = lloyd.fit(rows_of(features, centered=True), 5, seed=0, centers=init, tolerance=0.0)
    centers, labels = plain_lloyd(x, init, 300)
    assert torch.equal(ours.labels, labels)
    assert ours.inertia == pytest.approx(inertia_of(x, centers, labels), rel=1e-6)


@pytest.mark.slow
def test_kmeans_starts_as_well_as_scikit_learn_does(monkeypatch):
    from sklearn import cluster

    features = clouds(4000, 64, 40, spread=0.6)
    theirs = [
        cluster.KMeans(40, n_init=1, random_state=s).fit(features.x.numpy()).inertia_ for s in range(12)
    ]
    rows = rows_of(features, centered=True)
    for work in (1e12, 0.0):  # k-means++ on all rows, and on the candidates of k-means||
        monkeypatch.setattr(seeding, "DIRECT_WORK", work)
        ours = [lloyd.fit(rows, 40, seed=s).inertia for s in range(12)]
        assert np.mean(ours) < 1.01 * np.mean(theirs)
        assert min(ours) >= 0.97 * min(theirs)


@pytest.mark.parametrize("work", [1e12, 0.0])
def test_starting_centers_find_small_clusters_far_away(monkeypatch, work):
    monkeypatch.setattr(seeding, "DIRECT_WORK", work)
    generator = torch.Generator().manual_seed(0)
    far = 10 * torch.eye(32)[:20].repeat_interleave(
        3, dim=0
    )  # 20 clusters of 3 rows at the end of 3000 others
    x = torch.cat([torch.zeros(3000, 32), far]) + 0.01 * torch.randn(3060, 32, generator=generator)
    rows = rows_of(FeatureSet(x, torch.zeros(3060, dtype=torch.int64), "far"), centered=True)
    result = lloyd.fit(rows, 21, seed=5)
    assert result.inertia == pytest.approx(float((x - x.round(decimals=0)).square().sum()), rel=0.05)


def test_kmeans_is_a_function_of_its_seed():
    features = clouds(1500, 48, 12)
    one, same, other = (lloyd.fit(rows_of(features, centered=True), 12, seed=s) for s in (1, 1, 2))
    assert torch.equal(one.centers, same.centers) and torch.equal(one.labels, same.labels)
    assert not torch.equal(one.centers, other.centers)


def test_kmeans_with_features_in_their_file_is_the_same():
    features = clouds(1500, 48, 12)
    scaled = features.x * torch.linspace(0.5, 2.0, 1500)[:, None]
    norms = scaled.norm(dim=1, keepdim=True)
    mapped = FeatureSet(scaled, features.y, "mapped", norms)
    memory = FeatureSet(scaled / norms, features.y, "memory")
    one, other = (lloyd.fit(rows_of(f, centered=True), 12, seed=3) for f in (mapped, memory))
    assert torch.equal(one.centers, other.centers) and one.inertia == other.inertia


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
    monkeypatch.setattr(alignment, "_BLOCK", 300)
    features = clouds(2000, 32, 7)
    rows = rows_of(features, centered=True)
    x = features.x.double().numpy()
    i, j = np.triu_indices(len(x), 1)
    squared = np.empty(len(i))
    for part in np.array_split(np.arange(len(i)), 50):
        squared[part] = ((x[i[part]] - x[j[part]]) ** 2).sum(axis=1)
    positive = features.y.numpy()[i] == features.y.numpy()[j]
    aligned = alignment.alignment(rows, features.y, alpha=alpha)
    assert aligned.n_pairs == positive.sum()
    assert aligned.value == pytest.approx((squared[positive] ** (alpha / 2)).mean(), abs=1e-5)
    of_class = positive & (features.y.numpy()[i] == 3)
    assert aligned.per_class[3] == pytest.approx((squared[of_class] ** (alpha / 2)).mean(), abs=1e-5)
    expected = np.log(np.exp(-t * squared).mean())
    assert alignment.uniformity(rows, t=t) == pytest.approx(expected, abs=1e-5)


def test_uniformity_does_not_underflow():
    x = torch.eye(64)  # all distances are the square root of 2
    rows = rows_of(FeatureSet(x, torch.arange(64), "eye"), centered=True)
    assert alignment.uniformity(rows, t=1000.0) == pytest.approx(-2000.0, rel=1e-5)


# ------------------------------------------------------------------------------------------------------------
# Neighbours and class means


@pytest.mark.parametrize("weights", ["uniform", "temperature"])
def test_neighbors_vote_as_in_scikit_learn(monkeypatch, weights):
    from sklearn import neighbors as sklearn_neighbors

    monkeypatch.setattr(knn, "_TRAIN_BLOCK", 500)
    monkeypatch.setattr(knn, "_TEST_BLOCK", 150)
    monkeypatch.setattr(knn, "_VOTE_BLOCK", 170)
    train, test = clouds(1600, 40, 11), clouds(400, 40, 11, seed=1)
    found = knn.find(rows_of(train), rows_of(test), 200)
    ks = [1, 5, 10, 20, 100, 200]
    ranked = knn.vote(found, train.y, ks, temperature=None if weights == "uniform" else 0.07)
    for k in ks:
        theirs = sklearn_neighbors.KNeighborsClassifier(
            k,
            metric="cosine",
            algorithm="brute",
            weights=weights if weights == "uniform" else lambda distance: np.exp((1.0 - distance) / 0.07),
        ).fit(train.x.double().numpy(), train.y.numpy())
        predicted = theirs.predict(test.x.double().numpy())
        assert (ranked[k][:, 0].numpy() == predicted).all(), k
        top1, _ = ranked_classes.accuracy(ranked[k], test.y)
        assert top1 == pytest.approx(100.0 * (predicted == test.y.numpy()).mean())
        probabilities = theirs.predict_proba(test.x.double().numpy())
        hits = [
            p[y] > 0 and (p > p[y]).sum() + (p[:y] == p[y]).sum() < 5
            for p, y in zip(probabilities, test.y.tolist(), strict=True)
        ]
        if weights == "uniform":  # sums of weights round differently there
            assert ranked_classes.accuracy(ranked[k], test.y)[1] == pytest.approx(100.0 * np.mean(hits))


def test_equal_neighbors_come_in_the_order_of_their_rows(monkeypatch):
    monkeypatch.setattr(knn, "_TRAIN_BLOCK", 16)
    train = torch.eye(4).repeat(20, 1)  # rows 0, 4, 8, ... are equal
    rows = rows_of(FeatureSet(train, torch.zeros(80, dtype=torch.int64), "equal"))
    found = knn.find(rows, rows_of(FeatureSet(torch.eye(4)[1:2], torch.zeros(1), "one")), 24)
    own = [4 * i + 1 for i in range(20)]
    assert found.index[0].tolist() == own + [0, 2, 3, 4]
    assert found.similarity[0].tolist() == [1.0] * 20 + [0.0] * 4


def test_the_largest_of_many_equal_values_are_the_first_ones():
    values = torch.randint(0, 5, (40, 5000), generator=torch.Generator().manual_seed(0)).float()
    for k in (1, 7, 700, 4999, 5000):
        near, where = ranked_classes.largest(values, k)
        expected = values.sort(dim=1, descending=True, stable=True)
        assert torch.equal(near, expected.values[:, :k]) and torch.equal(where, expected.indices[:, :k])


def test_equal_votes_go_to_the_lower_label():
    found = knn.NearestRows(torch.tensor([[0, 1, 2, 3]]), torch.tensor([[0.9, 0.8, 0.7, 0.6]]))
    ranked = knn.vote(found, torch.tensor([7, 2, 2, 7]), [1, 2, 4], temperature=None)
    assert [ranked[k][0].tolist() for k in (1, 2, 4)] == [[7, -1, -1, -1, -1]] + 2 * [[2, 7, -1, -1, -1]]
    near = knn.vote(found, torch.tensor([7, 2, 2, 7]), [2, 4], temperature=0.07)
    assert near[2][0, 0] == 7
    tiny = knn.vote(found, torch.tensor([7, 2, 2, 7]), [4], temperature=1e-4)
    assert tiny[4][0, 0] == 7  # exp(cosine / T) itself would overflow


@pytest.mark.parametrize("block", [64, 8192])
def test_class_means_are_scikit_learns_centroids(monkeypatch, block):
    from sklearn import neighbors as sklearn_neighbors

    monkeypatch.setattr(ncm, "SMALL_BLOCK", block)
    train, test = clouds(600, 24, 9, spread=2.0), clouds(500, 24, 9, seed=1, spread=2.0)
    labels = train.y * 3 + 2  # classes need not be 0, 1, 2, ...
    means = ncm.fit(rows_of(train), labels)
    theirs = sklearn_neighbors.NearestCentroid().fit(train.x.double().numpy(), labels.numpy())
    np.testing.assert_allclose(means.centers.numpy(), theirs.centroids_, atol=1e-6)
    ranked = ncm.predict(means, rows_of(test), metric="euclidean")
    assert (ranked[:, 0].numpy() == theirs.predict(test.x.double().numpy())).all()
    ranked = ncm.predict(means, rows_of(test), metric="cosine")
    directions = torch.nn.functional.normalize(torch.from_numpy(theirs.centroids_))
    expected = (test.x.double() @ directions.T).sort(dim=1, descending=True, stable=True).indices[:, :5]
    assert torch.equal(ranked, expected * 3 + 2)
