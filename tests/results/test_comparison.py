"""Differences to a baseline: intervals against SciPy, wording, and where the order changes."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from cog.results import comparison
from cog.results.comparison import crossings, difference, within
from cog.results.scores import SeedAverage


def paired_cell(model, values, *, dataset="in1k", n_shot=0, seeds=None, source="runs"):
    seeds = tuple(seeds or range(len(values)))
    mean, std = float(np.mean(values)), float(np.std(values))
    return SeedAverage(
        model, dataset, "logreg", "top1", n_shot, mean, std, seeds, by_seed=tuple(values), source=source
    )


def mean_cell(model, mean, std, *, dataset="in1k", n_shot=0, source="paper v2"):
    return SeedAverage(model, dataset, "logreg", "top1", n_shot, mean, std, source=source)


@pytest.mark.parametrize("n", [2, 3, 5, 17])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_interval_equals_scipys_of_paired_differences(n, confidence):
    generator = np.random.default_rng(n)
    mine, theirs = generator.normal(60, 1, n), generator.normal(59, 1, n)
    found = difference(
        paired_cell("a_b", list(mine)), paired_cell("a_c", list(theirs)), confidence=confidence
    )
    expected = stats.ttest_rel(mine, theirs).confidence_interval(confidence)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert found.mean == pytest.approx(np.mean(mine - theirs)) and found.seeds == tuple(range(n))
    assert found.deviation == pytest.approx(np.std(mine - theirs, ddof=1))
    assert found.paired and found.sign == (found.low > 0) - (found.high < 0)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(0)
    n_covered = 0
    for _ in range(2000):
        d = generator.normal(0.7, 0.3, 5)
        found = difference(paired_cell("a_b", list(50 + d)), paired_cell("a_c", [50.0] * 5))
        n_covered += found.low <= 0.7 <= found.high
    assert 0.935 < n_covered / 2000 < 0.965


def test_pairing_is_by_seed_and_not_by_position():
    mine = paired_cell("a_b", [50.0, 60.0, 70.0], seeds=(1, 2, 3))
    theirs = paired_cell("a_c", [49.0, 59.0, 10.0], seeds=(1, 2, 9))
    found = difference(mine, theirs)
    assert found.seeds == (1, 2) and found.mean == 1.0 and (found.low, found.high) == (1.0, 1.0)
    assert found.reading == "higher"
    assert difference(theirs, mine).reading == "lower"


def test_words_claim_no_more_than_the_numbers():
    noisy = difference(paired_cell("a_b", [50.0, 51.0, 49.0]), paired_cell("a_c", [50.5, 49.0, 50.0]))
    assert noisy.sign == 0 and noisy.reading == "not told apart"
    one = difference(paired_cell("a_b", [90.0]), paired_cell("a_c", [10.0]))
    assert (one.low, one.sign, one.reading) == (None, 0, "one common seed, no interval")


def test_unpaired_uses_the_combined_deviation():
    mine = paired_cell("a_b", [75.0, 76.0])
    found = difference(mine, mean_cell("a_c", 74.0, 1.2))
    assert not found.paired and found.low is None and found.seeds == ()
    assert found.mean == 1.5 and found.deviation == pytest.approx(math.sqrt(0.5**2 + 1.2**2))
    assert found.reading == "higher, beyond deviations"
    assert difference(mine, mean_cell("a_c", 74.5, 1.2)).reading == "within deviations"
    assert difference(mine, mean_cell("a_c", 80.0, 1.2)).reading == "lower, beyond deviations"
    no_common = difference(mine, paired_cell("a_c", [70.0, 70.0], seeds=(8, 9)))
    assert not no_common.paired and no_common.sign == 1
    unknown = difference(mine, mean_cell("a_c", 10.0, None))
    assert (unknown.sign, unknown.deviation, unknown.reading) == (0, None, "deviation not known")


def test_rounding_of_published_means_is_no_difference():
    for one, other in (("paper v2", "paper v2"), ("paper v1", "paper v2")):
        found = difference(mean_cell("a_b", 75.9, 0.0, source=one), mean_cell("a_c", 75.8, 0.0, source=other))
        assert found.sign == 0 and found.rounding == pytest.approx(0.1)
    assert difference(mean_cell("a_b", 76.0, 0.0), mean_cell("a_c", 75.8, 0.0)).sign == 1
    own = difference(mean_cell("a_b", 75.84, 0.0, source="lab"), mean_cell("a_c", 75.8, 0.0))
    assert own.sign == 0 and own.rounding == 0.05
    assert (
        difference(mean_cell("a_b", 1.04, 0.0, source="lab"), mean_cell("a_c", 1.0, 0.0, source="lab")).sign
        == 1
    )


def test_within():
    assert within(75.9, 75.8, 0.05) and within(75.85, 75.8, 0.0)
    assert not within(75.86, 75.8, 0.0) and not within(75.8, 75.9, 0.04)
    assert within(75.8, 75.9, 0.1, rounding=0.0), "whatever 75.9 - 75.8 is in binary"


def test_cells_that_do_not_belong_together():
    with pytest.raises(ValueError, match="cog_l1"):
        difference(mean_cell("a_b", 1.0, 0.1), mean_cell("a_c", 1.0, 0.1, dataset="cog_l1"))
    with pytest.raises(ValueError, match="N=8"):
        difference(mean_cell("a_b", 1.0, 0.1), mean_cell("a_c", 1.0, 0.1, n_shot=8))
    top5 = dataclasses.replace(mean_cell("a_c", 1.0, 0.1), metric="top5")
    with pytest.raises(ValueError):
        difference(mean_cell("a_b", 1.0, 0.1), top5)


# --- crossings

PLACES = ("in1k", "cog_l1", "cog_l2", "cog_l3", "cog_l4", "cog_l5")


def over_levels(means, *, std=1.0, n_shot=0, model="a_b"):
    """Differences with these means; those within one standard deviation are not told."""
    return [
        difference(
            mean_cell(model, 50 + mean, std, dataset=place, n_shot=n_shot, source="lab"),
            mean_cell("a_c", 50.0, 0.0, dataset=place, n_shot=n_shot, source="lab"),
        )
        for place, mean in zip(PLACES, means)
    ]


def found(*means, **changes):
    return [
        (c.before, c.after, c.model_leads_after, (c.earliest, c.latest) if c.established else None)
        for c in crossings(over_levels(means, **changes))
    ]


def test_crossings():
    assert found(2, 3, 4, 5, 6, 7) == found(-2, -3) == found(0.5, 0.2) == found() == []
    assert found(-3, 3) == [("in1k", "cog_l1", True, ("in1k", "cog_l1"))]
    assert found(3, -3) == [("in1k", "cog_l1", False, ("in1k", "cog_l1"))]
    # Near the crossing the order is not told: it is somewhere between in1k and cog_l4.
    assert found(-3, -0.5, 0.5, 0.8, 4) == [("cog_l1", "cog_l2", True, ("in1k", "cog_l4"))]
    # Never told on one side: not established.
    assert found(-3, -0.5, 0.5) == [("cog_l1", "cog_l2", True, None)]
    assert found(-0.5, 3) == [("in1k", "cog_l1", True, None)]
    # What is told around a dip speaks against it.
    assert found(3, 3, -0.5, 3) == [("cog_l1", "cog_l2", False, None), ("cog_l2", "cog_l3", True, None)]
    assert found(3, -3, 3) == [
        ("in1k", "cog_l1", False, ("in1k", "cog_l1")),
        ("cog_l1", "cog_l2", True, ("cog_l1", "cog_l2")),
    ]


def test_exact_ties_are_no_change():
    assert found(0, 0, 0) == found(3, 0, 3) == found(0, 3) == []
    assert found(-3, 0, 3) == [("in1k", "cog_l2", True, ("in1k", "cog_l2"))]


def test_crossings_follow_the_order_of_the_levels_and_keep_models_apart():
    mixed = over_levels((-3, 3), n_shot=8)[::-1] + over_levels((3, -3), model="a_d") + over_levels((1, 1))
    found = crossings(mixed)
    assert [(c.model, c.n_shot, c.model_leads_after, c.baseline, c.source) for c in found] == [
        ("a_b", 8, True, "a_c", "lab"),
        ("a_d", 0, False, "a_c", "lab"),
    ]


def test_one_established_crossing_for_each_change_of_the_told_order():
    generator = np.random.default_rng(1)
    n_established = 0
    for _ in range(500):
        group = over_levels(generator.normal(0, 2, 6))
        result = crossings(group)
        told = [item.sign for item in group if item.sign]
        established = [c for c in result if c.established]
        assert len(established) == sum(a != b for a, b in itertools.pairwise(told))
        by_place = {item.dataset: item for item in group}
        for c in established:
            signs = by_place[c.earliest].sign, by_place[c.latest].sign
            assert signs == ((-1, 1) if c.model_leads_after else (1, -1))
            assert (by_place[c.after].mean > 0) == c.model_leads_after == (by_place[c.before].mean < 0)
            order = [PLACES.index(place) for place in (c.earliest, c.before, c.after, c.latest)]
            assert order == sorted(order)
        n_established += len(established)
    assert n_established > 200
    # To and fro where nothing is told is one crossing.
    assert found(-3, 0.5, -0.5, 0.5, 3) == [("in1k", "cog_l3", True, ("in1k", "cog_l4"))]
    assert [c[2:] for c in found(-0.5, 0.5, -0.5)] == [(True, None), (False, None)]


def test_confidence_is_what_the_text_says():
    assert comparison.CONFIDENCE == 0.95
    found = difference(paired_cell("a_b", [1.0, 2, 3, 4, 5]), paired_cell("a_c", [0.0] * 5))
    half = 2.7764451051977934 * math.sqrt(2.5 / 5)  # t as printed in tables
    assert (found.low, found.high) == pytest.approx((3 - half, 3 + half), rel=1e-9)
