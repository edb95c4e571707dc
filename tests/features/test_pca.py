"""Principal components against scikit-learn, and the cap on images per class."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import sklearn.decomposition
import torch

from cog.features import feature_files, pca
from cog.features.feature_files import FeatureSet


def cloud(n, dim, *, seed=0, offset=0.5):
    """Return anisotropic points around a center off the origin, float32 ``(n, dim)``."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(dim, dim, generator=torch.Generator().manual_seed(99)) / dim**0.5
    scales = torch.logspace(0, -1.5, dim)
    return (torch.randn(n, dim, generator=generator) * scales) @ mixing + offset


def of(x):
    return FeatureSet(x, torch.zeros(len(x), dtype=torch.int64), "cloud")


def angle(ours, theirs):
    """Largest principal angle between the spans of two sets of orthonormal rows, in radians.

    By its sine: the cosine of a small angle says nothing in float64 below 1e-8.
    """
    rest = theirs.T - ours.T @ (ours @ theirs.T)
    return float(np.arcsin(min(1.0, np.linalg.svd(rest, compute_uv=False)[0])))


@pytest.mark.parametrize("offset", [0.0, 0.5, 300.0])
@pytest.mark.parametrize(("n", "dim"), [(5000, 96), (300, 320), (40, 64)])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_equals_scikit_learns_full_svd(n, dim, offset, device):
    """Several chunks and blocks, more features than rows, and a large common offset."""
    x = cloud(n, dim, offset=offset)
    oracle = sklearn.decomposition.PCA(svd_solver="full").fit(x.double().numpy())
    found = pca.fit(of(x), device=torch.device(device))
    np.testing.assert_allclose(found.mean.numpy(), oracle.mean_, atol=1e-9 * max(1, offset))
    rank = min(n - 1, dim)
    assert found.rank == rank
    np.testing.assert_allclose(
        found.variances[:rank].numpy(), oracle.explained_variance_[:rank], rtol=1e-6, atol=1e-12
    )
    for d in (1, 8, 32, rank):
        assert angle(found.components[:d].numpy(), oracle.components_[:d]) < 1e-3
        assert found.explained(d) == pytest.approx(oracle.explained_variance_ratio_[:d].sum(), abs=1e-9)
    gaps = -np.diff(oracle.explained_variance_[:9]) / oracle.explained_variance_[0]
    assert gaps.min() > 1e-3  # so that single components are determined, signs included
    np.testing.assert_allclose(found.components[:8].numpy(), oracle.components_[:8], atol=1e-5)
    ours = pca.project(of(x), found, 8, device=torch.device(device)).numpy()
    np.testing.assert_allclose(ours, oracle.transform(x.double().numpy())[:, :8], atol=1e-4, rtol=1e-4)


def test_projection_in_place_is_the_same_and_takes_no_memory():
    x = cloud(5000, 48)
    found = pca.fit(of(x))
    rows = torch.arange(0, 5000, 2)
    for dim in (1, 7, 48):
        for chosen in (None, rows):
            copy = x.clone()
            inside = pca.project(of(copy), found, dim, rows=chosen, in_place=True)
            assert inside.data_ptr() == copy.data_ptr()
            assert torch.equal(inside, pca.project(of(x), found, dim, rows=chosen))


def test_the_sign_of_a_component_is_that_of_its_largest_entry():
    x = cloud(500, 12)
    for one in (pca.fit(of(x)), pca.fit(of(-x)), pca.fit(of(x[torch.randperm(500)]))):
        largest = one.components.gather(1, one.components.abs().argmax(1, keepdim=True))
        assert (largest > 0).all()
    assert torch.equal(pca.fit(of(x)).components, pca.fit(of(x.clone())).components)


def test_only_the_chosen_rows_count():
    x = cloud(5000, 16)
    rows = torch.arange(1, 5000, 3)
    part, whole = pca.fit(of(x), rows=rows), pca.fit(of(x[rows]))
    assert torch.equal(part.components, whole.components)
    assert part.n_rows == len(rows)


def test_peak_memory_is_bounded():
    """Of fitting and projecting together, beside the features themselves."""
    x = cloud(20000, 128)
    with torch.profiler.profile(profile_memory=True) as profile:
        found = pca.fit(of(x))
        pca.project(of(x), found, 64, in_place=True)
    level = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            level += event.nbytes()
            peak = max(peak, level)
    assert (
        0 < peak < 0.8 * x.nbytes
    )  # 2048 rows in float64 and a few squares of 128: 10 MB features, small chunks


# ------------------------------------------------------------------------------------------------------------
# Images per class


def test_smaller_caps_are_subsets_and_every_class_is_drawn_by_itself():
    y = torch.tensor([5] * 20 + [2] * 9 + [7] * 30 + [2] * 4)
    rows = {n: feature_files.cap_per_class(y, n) for n in (1, 4, 13, 20, 100)}
    chosen = [set(kept.tolist()) for kept, _ in rows.values()]
    assert all(small < large for small, large in itertools.pairwise(chosen))
    assert [short for _, short in rows.values()] == [0, 0, 0, 1, 3]
    for n, (kept, _) in rows.items():
        assert kept.tolist() == sorted(kept.tolist())
        assert [int((y[kept] == label).sum()) for label in (2, 5, 7)] == [min(n, 13), min(n, 20), min(n, 30)]
    shorter = y[1:]  # one image of class 5 is missing: the other classes keep theirs
    kept = feature_files.cap_per_class(shorter, 4)[0] + 1
    assert {r for r in kept.tolist() if y[r] != 5} == {r for r in rows[4][0].tolist() if y[r] != 5}


def test_the_choice_is_random():
    y = torch.zeros(1000, dtype=torch.int64)
    kept, _ = feature_files.cap_per_class(y, 500)
    assert abs(kept.double().mean().item() - 499.5) < 40  # sd of the mean of half of them is 9
    assert len(set(np.diff(kept.numpy()))) > 3
