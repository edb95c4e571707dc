"""Differences to a baseline: pairing, verdicts, wording."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from averages import counted_cell, paired_cell

from cog.results import uncertainty
from cog.results.comparison import difference, judge, within
from cog.results.scores import SeedAverage


def mean_cell(model, mean, std, *, dataset="in1k", n_shot=0, source="paper v2"):
    return SeedAverage(model, dataset, "logreg", "top1", n_shot, mean, std, source=source)


def test_pairing_is_by_seed_and_not_by_position():
    mine = paired_cell("a_b", [50.0, 60.0, 70.0], seeds=(1, 2, 3))
    theirs = paired_cell("a_c", [49.0, 59.0, 10.0], seeds=(1, 2, 9))
    found = difference(mine, theirs)
    assert found.seeds == (1, 2) and found.mean == 1.0 and found.deviation == 0.0
    generator = np.random.default_rng(0)
    a, b = generator.binomial(50, 0.6, (2, 4, 30))
    found = difference(
        counted_cell("a_b", a[:3], seeds=(1, 2, 3)), counted_cell("a_c", b[1:], seeds=(2, 3, 4))
    )
    same = difference(counted_cell("a_b", a[1:3]), counted_cell("a_c", b[1:3]))
    assert found.seeds == (2, 3) and (found.low, found.high, found.p) == (same.low, same.high, same.p)


def elsewhere_than(item, dataset):
    """The same difference on another data set."""
    return dataclasses.replace(item, average=dataclasses.replace(item.average, dataset=dataset))


def test_a_comparison_that_is_shown_twice_is_corrected_for_once():
    generator = np.random.default_rng(5)
    a, b, c = (
        counted_cell(name, x)
        for name, x in zip(("a_b", "a_c", "a_d"), generator.binomial(50, 0.6, (3, 5, 60)))
    )
    there, other = difference(a, b), difference(a, c)
    expected = uncertainty.holm([there.p, other.p])
    judged = judge([there, difference(b, a), other, difference(b, a)])
    assert [item.p_holm for item in judged] == pytest.approx(
        [expected[0], expected[0], expected[1], expected[0]]
    )
    elsewhere = elsewhere_than(there, "cog_l1")
    assert judge([there, elsewhere])[0].p_holm == pytest.approx(min(1, 2 * there.p))


def test_verdicts_are_after_holms_correction():
    generator = np.random.default_rng(2)
    base = generator.binomial(50, 0.5, (5, 60))
    clear, slight = base + 10, base + (generator.random((5, 60)) < 0.1)
    items = [
        difference(counted_cell("a_b", other, dataset=name), counted_cell("a_c", base, dataset=name))
        for name, other in (("in1k", clear), ("cog_l1", slight), ("cog_l2", base), ("cog_l3", base - 10))
    ]
    assert [item.reading for item in items] == ["cannot be told apart"] * 4, "nothing is told before judge()"
    judged = judge(items)
    assert [item.reading for item in judged][::3] == ["higher", "lower"] and judged[
        2
    ].reading == "cannot be told apart"
    assert [item.p_holm for item in judged] == uncertainty.holm([item.p for item in items])
    almost, told = (dataclasses.replace(judged[0], p_holm=p) for p in (0.05, 0.0499))
    assert (almost.sign, told.sign) == (0, 1)
    (alone,) = judge(items[1:2])
    assert alone.reading == "higher"
    many = judge([items[1], *(elsewhere_than(items[2], f"data{i}") for i in range(10**4))])
    assert many[0].low > 0 and many[0].reading == "cannot be told apart"


def test_without_counts_there_is_no_verdict():
    sure = judge([difference(paired_cell("a_b", [90.0] * 5), paired_cell("a_c", [10.0] * 5))])[0]
    assert (sure.mean, sure.deviation, sure.low, sure.p_holm, sure.sign) == (80.0, 0.0, None, None, 0)
    assert sure.reading == "not told: counts per concept are not known"
    half = judge([difference(counted_cell("a_b", [[40, 45]] * 2), paired_cell("a_c", [1.0, 1.0]))])[0]
    assert half.reading == sure.reading
    one = judge([difference(counted_cell("a_b", [[50] * 99]), counted_cell("a_c", [[0] * 99]))])[0]
    assert one.low > 90 and one.reading == "not told: one common seed" and one.sign == 0
    apart = difference(counted_cell("a_b", [[9, 9]], seeds=(1,)), counted_cell("a_c", [[9, 9]], seeds=(2,)))
    assert apart.seeds == () and apart.reading == "not told: no common seed"
    other = difference(counted_cell("a_b", [[9, 9]] * 2), counted_cell("a_c", [[9, 9]] * 2, images=49))
    assert other.low is None and other.reading == "not told: not the same test images"
    single = difference(counted_cell("a_b", [[9]] * 2), counted_cell("a_c", [[8]] * 2))
    assert single.reading == "not told: a single concept"


@pytest.mark.parametrize(
    ("other", "reading"), [("f0", "higher"), ("f1", "not told: not the same test images"), (None, "higher")]
)
def test_lists_of_test_images(other, reading):
    """As many images are not the same ones."""

    def on(image_list, cell):
        listed = (dataclasses.replace(counts, image_list=image_list) for counts in cell.concepts)
        return dataclasses.replace(cell, concepts=tuple(listed))

    cells = on("f0", counted_cell("a_b", [[50] * 99] * 2)), on(other, counted_cell("a_c", [[0] * 99] * 2))
    assert judge([difference(*cells)])[0].reading == reading


def test_unpaired_differences_have_the_combined_deviation():
    mine = paired_cell("a_b", [75.0, 76.0])
    found = difference(mine, mean_cell("a_c", 74.0, 1.2))
    assert found.low is None and found.seeds == () and found.sign == 0
    assert found.mean == 1.5 and found.deviation == pytest.approx(math.sqrt(0.5**2 + 1.2**2))
    unknown = difference(mine, mean_cell("a_c", 10.0, None))
    assert (unknown.sign, unknown.deviation) == (0, None)


def test_within():
    assert within(75.9, 75.8, 0.05) and within(75.85, 75.8, 0.0)
    assert not within(75.86, 75.8, 0.0) and not within(75.8, 75.9, 0.04)
    assert within(75.8, 75.95, 0.1), "whatever 75.95 - 75.8 is in binary"


def test_cells_that_do_not_belong_together():
    with pytest.raises(ValueError, match="cog_l1"):
        difference(mean_cell("a_b", 1.0, 0.1), mean_cell("a_c", 1.0, 0.1, dataset="cog_l1"))
    with pytest.raises(ValueError, match="N=8"):
        difference(mean_cell("a_b", 1.0, 0.1), mean_cell("a_c", 1.0, 0.1, n_shot=8))
    top5 = dataclasses.replace(mean_cell("a_c", 1.0, 0.1), metric="top5")
    with pytest.raises(ValueError):
        difference(mean_cell("a_b", 1.0, 0.1), top5)
