"""The long table: means over seeds, what is averaged and what is not, order."""

from __future__ import annotations

import numpy as np
import pytest
from frames import means_of, rows, stated

from cog.results import benchmark, frame, uncertainty
from cog.results.benchmark import data_of, in1k_class_list


def test_mean_and_population_deviation_equal_numpy():
    generator = np.random.default_rng(0)
    for n in (2, 5, 17):
        values = generator.uniform(0, 100, n)
        [row] = means_of(rows("a_b", values.tolist())).to_dict("records")
        assert (row["value"], row["std"]) == pytest.approx((values.mean(), values.std(ddof=0)), rel=1e-12)
        assert (row["n_seeds"], row["values"]) == (n, dict(enumerate(values)))
    assert means_of(rows("a_b", [0.1, 0.1, 0.1])).loc[0, "std"] == 0


def test_one_seed_has_no_deviation_and_a_stated_mean_keeps_its_own():
    means = means_of(
        rows("a_b", [70.0]), stated("a_c", 60.0, 0.3, source="paper v2"), stated("a_d", 1.0, source="x")
    )
    found = means.set_index("model")
    assert (
        np.isnan(found.loc["a_b", "std"])
        and found.loc["a_c", "std"] == 0.3
        and np.isnan(found.loc["a_d", "std"])
    )
    assert found["n_seeds"].to_dict() == {"a_b": 1, "a_c": 0, "a_d": 0}
    assert not means["missing"].any()


@pytest.mark.parametrize(
    "evaluation, there, given, missing",
    [
        ("logreg", (22, 93), (), "37 45 77"),
        ("logreg", (22, 7), (), ""),
        ("logreg", (22, 37), (22, 5), "5"),
        ("finetune", (22,), (), ""),
    ],
)
def test_missing_seeds(evaluation, there, given, missing):
    means = means_of(rows("a_b", [70.0] * len(there), seeds=there, evaluation=evaluation), seeds=given)
    assert means["missing"].tolist() == [missing]


def test_seeds_of_other_models_of_the_same_kind_are_expected_too():
    means = means_of(
        rows("a_b", [1.0, 2.0], seeds=(1, 2)), rows("a_c", [1.0], seeds=(1,)), stated("a_d", 1.0)
    )
    assert means.set_index("model")["missing"].to_dict() == {"a_b": "", "a_c": "2", "a_d": ""}
    shared = means_of(rows("a_b", [1.0], seeds=(1,)), rows("a_b", [1.0], seeds=(2,), source="theirs"))
    assert shared["missing"].tolist() == ["", ""], "each source has its own seeds"


def test_the_interval_is_that_of_all_seeds_or_of_none():
    correct = np.random.default_rng(0).binomial(50, 0.6, (3, 40))
    full = rows("a_b", correct=correct)
    [row] = means_of(full).to_dict("records")
    assert (row["low"], row["high"]) == uncertainty.accuracy([one["correct"] for one in full]).interval
    half = [*full[:2], {**full[2], "correct": None}]
    published = stated(
        "a_b", 1.0, source="paper v2"
    )  # missing values beside objects must not count as counts
    assert means_of(half, published)["low"].isna().all()
    other = rows("a_b", correct=correct, images=60)[2]
    assert means_of([*full[:2], {**other, "seed": 2}])["low"].isna().all(), "other images"


@pytest.mark.parametrize(
    "changes, note",
    [
        ({"data": "24 classes"}, "its seeds are of other data"),
        ({"protocol": "n_epochs 10"}, "its seeds are of other settings"),
        ({"features": "b" * 12}, "its seeds are of other features"),
        ({"seed": 0}, "a seed is there twice"),
        ({"seed": None}, "a mean beside single seeds"),
        ({"data": "unknown", "features": None}, ""),  # not recorded
    ],
)
def test_seeds_that_are_not_alike_have_no_mean(changes, note):
    one, other = rows("a_b", [70.0, 72.0], data="benchmark", features="a" * 12)
    means = means_of([one, {**other, **changes}])
    assert means["note"].tolist() == [note] and means["value"].isna().tolist() == [note != ""]
    assert means["std"].isna().tolist() == [note != ""]


def test_two_lists_of_classes_under_one_name_are_other_data():
    here, there = (rows(m, [70.0], data="benchmark", classes=c * 64) for m, c in (("a_b", "a"), ("a_c", "b")))
    unknown = rows("a_d", [70.0], data="benchmark")
    found = means_of(here, there, unknown).set_index("model")["unlike"].to_dict()
    assert found == {"a_b": "list of classes aaaaaaaa", "a_c": "list of classes bbbbbbbb", "a_d": ""}
    assert means_of(here, unknown)["unlike"].tolist() == ["", ""]


def test_what_is_unlike_is_one_text():
    means = means_of(
        rows("a_b", [1.0], data="24 classes", protocol="n_trials 3"), rows("a_c", [1.0], data="unknown")
    )
    assert means["unlike"].tolist() == ["24 classes, n_trials 3", ""]
    assert frame.is_odd(means).tolist() == [True, False]
    assert not frame.is_odd(means[:1]).any(), "all alike"


@pytest.mark.parametrize(
    "dataset, counts, expected",
    [
        ("in1k", (1000, 1_281_167, 50_000), "benchmark"),
        ("in1k", (1000, 1_281_100, 49_990), "benchmark"),  # a few unreadable images
        ("in1k", (1000, 1_270_000, 50_000), "1,270,000 training images"),
        ("cog_l3", (1000, 1_100_000, 50_000), "benchmark"),
        ("cog_l3", (1000, None, 50_000), "benchmark"),
        ("cog_l3", (999, 730_000, 49_000), "999 classes, 730,000 training images, 49,000 test images"),
        ("cog_l3", (None, None, None), "unknown"),
        ("birds", (17, 340, 170), "17 classes, 340 training images, 170 test images"),
        ("birds", (None, None, None), "unknown"),
    ],
)
def test_data(dataset, counts, expected):
    names = ("n_classes", "n_train", "n_test")
    assert data_of(dataset, **dict(zip(names, counts))) == expected
    assert (benchmark.UNKNOWN, benchmark.BENCHMARK) == ("unknown", "benchmark")


def test_in1k_has_the_benchmarks_classes():
    full = {"n_classes": 1000, "n_train": 1_281_167, "n_test": 50_000}
    assert data_of("in1k", **full, classes=in1k_class_list()) == "benchmark"
    assert data_of("in1k", **full, classes="e" * 64) == "list of classes eeeeeeee"


def test_order_is_natural_and_puts_the_benchmark_first():
    expected = ["A_net birds", "b_net9 my9", "b_net10 in1k", "b_net10 cog_l10", "b_net10 my10"]
    places = [expected[k].split() for k in (3, 4, 2, 1, 0)]
    made = [row for model, dataset in places for row in rows(model, [1.0], dataset=dataset)]
    means = means_of(made)
    assert (means["model"] + " " + means["dataset"]).tolist() == expected
    assert frame.in_order(means, ["b_net10"])["model"].tolist()[0] == "b_net10"
    papers = means_of(made, stated("sup_resnet152", 1.0, source="paper v2"), rows("sup_resnet50", [1.0]))
    expected = ["sup_resnet50", "sup_resnet152", "A_net"]
    assert papers["model"].tolist()[:3] == expected, "the paper's order, then others"


def test_natural_key_sorts_any_names():
    names = ["x10", "x2", "x2y", "10", "9", "X3", "x", "x02", "²", "2x"]
    assert sorted(names, key=frame.natural_key) == [
        "2x",
        "9",
        "10",
        "x",
        "x02",
        "x2",
        "x2y",
        "X3",
        "x10",
        "²",
    ]
