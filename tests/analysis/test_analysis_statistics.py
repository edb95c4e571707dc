"""Rank correlation, its bootstrap and sign tests, against brute force and recorded numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from cog.analysis import statistics


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=30))
@settings(max_examples=100, deadline=None)
def test_spearman_is_that_of_scipy(pairs):
    x, y = np.array(pairs, float).T
    found = statistics.spearman(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(scipy_stats.spearmanr(x, y).statistic, abs=1e-12)


@pytest.mark.parametrize("strata", [None, "groups"])
def test_resamples_equal_brute_force(strata):
    """Every resample's rho is that of the points drawn, ranked again."""
    rng = np.random.default_rng(3)
    x, y = rng.integers(0, 6, 25).astype(float), rng.integers(0, 5, 25).astype(float)
    groups = None if strata is None else np.repeat([7, 2, 4], [10, 5, 10])
    found = statistics.resampled_spearman(x, y, n_resamples=400, strata=groups)
    # The same draws: of the points in the order of x, all at once.
    order = np.argsort(x, kind="stable")
    generator = np.random.default_rng(0)
    if groups is None:
        drawn = generator.integers(25, size=(400, 25))
    else:
        parts = [np.flatnonzero(groups[order] == g) for g in (2, 4, 7)]
        drawn = np.concatenate([p[generator.integers(len(p), size=(400, len(p)))] for p in parts], axis=1)
    expected = [scipy_stats.spearmanr(x[order][rows], y[order][rows]).statistic for rows in drawn]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_interval_covers_as_often_as_it_says():
    """Of 200 samples with a known correlation, about 95 % of the intervals hold it."""
    rng = np.random.default_rng(0)
    truth = 6 / math.pi * math.asin(0.6 / 2)  # Spearman's of a bivariate normal with correlation 0.6
    hits = 0
    for _ in range(200):
        x, noise = rng.standard_normal((2, 80))
        found = statistics.spearman_interval(x, 0.6 * x + 0.8 * noise, n_resamples=300)
        hits += found.low <= truth <= found.high
    assert 0.89 <= hits / 200 <= 0.99


@pytest.mark.parametrize(
    ("x", "y"), [([1.0, 1, 1], [1.0, 2, 3]), ([1.0, 2, 3], [5.0, 5, 5]), ([1.0], [2.0]), ([], [])]
)
def test_points_without_a_correlation_have_no_interval(x, y):
    found = statistics.spearman_interval(np.array(x), np.array(y), n_resamples=50)
    assert math.isnan(found.value) and math.isnan(found.low) and math.isnan(found.high)


def test_two_points_leave_only_resamples_that_are_defined():
    found = statistics.spearman_interval(np.array([1.0, 2]), np.array([1.0, 2]), n_resamples=400)
    assert (found.value, found.low, found.high) == pytest.approx(
        (1.0, 1.0, 1.0)
    ) and 100 < found.n_resamples < 300
    assert math.isnan(statistics.spearman_interval(np.arange(5.0), np.arange(5.0), n_resamples=0).low)


def test_numbers_are_those_of_earlier_versions():
    """Recorded before SciPy took the place of code of our own."""
    rng = np.random.default_rng(5)
    x = rng.integers(0, 40, 60) / 40.0
    y = np.round(x * 30 + rng.normal(0, 8, 60))
    strata = np.repeat([3, 1, 2], [25, 15, 20])
    whole = statistics.spearman_interval(x, y, n_resamples=5000)
    within = statistics.spearman_interval(x, y, n_resamples=5000, strata=strata)
    assert (whole.value, whole.low, whole.high) == pytest.approx(
        (0.8015219390431686, 0.667196054053637, 0.8783239427476924), rel=1e-12
    )
    assert (within.low, within.high) == pytest.approx((0.6709453257029295, 0.8760215194436269), rel=1e-12)
    pairs = [(9, 0), (31, 17), (300, 200), (0, 0), (25_000, 25_000)]
    assert [statistics.sign_test(*pair) for pair in pairs] == pytest.approx(
        [0.00390625, 0.05946337525377032, 8.940066542253267e-06, 1.0, 1.0], rel=1e-9
    )
    assert statistics.sign_test(30_000, 20_000) < 1e-300  # no overflow
    assert statistics.auroc(x[:20], y[:10] / 30) == pytest.approx(0.5525, rel=1e-12)


def test_auroc_is_the_share_of_ordered_pairs():
    rng = np.random.default_rng(0)
    high, low = rng.integers(0, 9, 60) + 0.0, rng.integers(0, 7, 45) + 0.0
    pairs = (high[:, None] > low).mean() + 0.5 * (high[:, None] == low).mean()
    assert statistics.auroc(high, low) == pytest.approx(pairs, abs=1e-12)
    assert statistics.auroc(np.array([np.inf, 2.0]), np.array([1.0])) == 1.0
    from sklearn import metrics

    theirs = metrics.roc_auc_score(np.r_[np.ones(60), np.zeros(45)], np.r_[high, low])
    assert statistics.auroc(high, low) == pytest.approx(theirs, abs=1e-12)
