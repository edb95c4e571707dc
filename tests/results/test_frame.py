"""The long table: means over seeds, what is averaged and what is not, order."""

import numpy as np
import pytest
from frames import means_of, rows, stated

from cog.results import frame, uncertainty
from cog.results.benchmark import data_of, in1k_class_list, unlike_protocol


def test_mean_and_population_deviation_equal_numpy():
    for n in (2, 5, 17):
        values = np.random.default_rng(n).uniform(0, 100, n)
        [row] = means_of(rows("a_b", values.tolist())).to_dict("records")
        assert (row["value"], row["std"]) == pytest.approx((values.mean(), values.std(ddof=0)), rel=1e-12)
        assert (row["n_seeds"], row["values"]) == (n, dict(enumerate(values)))
    assert means_of(rows("a_b", [0.1, 0.1, 0.1])).loc[0, "std"] == 0
    means = means_of(rows("a_b", [70.0]), stated("a_c", 60.0, 0.3, source="paper v2"), stated("a_d", 1.0))
    found = means.set_index("model")
    assert found["std"].fillna(-1).to_dict() == {"a_b": -1, "a_c": 0.3, "a_d": -1}  # one seed has none
    assert found["n_seeds"].to_dict() == {"a_b": 1, "a_c": 0, "a_d": 0} and not means["missing"].any()


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


def test_the_interval_is_that_of_all_seeds_or_of_none():
    full = rows("a_b", correct=np.random.default_rng(0).binomial(50, 0.6, (3, 40)))
    [row] = means_of(full).to_dict("records")
    expected = uncertainty.accuracy([one["correct"] for one in full])
    assert (row["low"], row["high"]) == (expected.low, expected.high)
    # Missing values beside objects must not count as counts.
    half = means_of([*full[:2], {**full[2], "correct": None}], stated("a_b", 1.0, source="paper v2"))
    assert half["low"].isna().all()


@pytest.mark.parametrize(
    "changes, note",
    [
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


def test_what_is_unlike_is_one_text():
    here, there = (rows(m, [70.0], data="benchmark", classes=c * 64) for m, c in (("a_b", "a"), ("a_c", "b")))
    means = means_of(here, there, rows("a_d", [70.0], data="benchmark"))
    assert means["unlike"].tolist() == ["list of classes aaaaaaaa", "list of classes bbbbbbbb", ""]
    means = means_of(rows("a_b", [1.0], data="24 classes", protocol="n_trials 3"), rows("a_c", [1.0]))
    assert means["unlike"].tolist() == ["24 classes, n_trials 3", ""]
    assert frame.is_odd(means).tolist() == [True, False] and not frame.is_odd(means[:1]).any()


@pytest.mark.parametrize(
    "dataset, counts, expected",
    [
        ("in1k", (1000, 1_281_167, 50_000, in1k_class_list()), "benchmark"),
        ("in1k", (1000, 1_281_167, 50_000, "e" * 64), "list of classes eeeeeeee"),
        ("cog_l3", (999, 730_000, 49_000), "999 classes, 730,000 training images, 49,000 test images"),
        ("cog_l3", (None, None, None), "unknown"),
        ("birds", (17, 340, 170), "17 classes, 340 training images, 170 test images"),
    ],
)
def test_data(dataset, counts, expected):
    assert data_of(dataset, **dict(zip(("n_classes", "n_train", "n_test", "classes"), counts))) == expected


@pytest.mark.parametrize(
    "settings, evaluation, expected",
    [
        ({"n_trials": 30, "lr_interval": [0.1, 100.0], "mlp_layers": 2, "precision": "bf16"}, "logreg", ""),
        ({"lr_interval": [0.1, 10.0], "n_trials": "\n"}, "logreg", r"n_trials \n, lr_interval 0.1 to 10"),
        ({"classifier": "mlp", "normalize": False, "mlp_hidden": 128}, "mlp", "mlp_hidden 128"),
        ({"lr": 0.01, "crop_scale": [0.08, 1.0], "momentum": 0.0}, "finetune", "momentum 0"),
    ],
)
def test_settings_that_are_not_the_papers(settings, evaluation, expected):
    assert unlike_protocol(settings, evaluation) == expected


def test_order_is_natural_and_puts_the_benchmark_first():
    expected = ["A_net birds", "b_net9 my9"]
    expected += [f"b_net10 {name}" for name in ("in1k", "in1k_blurred", "cog_l10", "my")]
    places = [name.split() for name in reversed(expected)]
    made = [row for model, dataset in places for row in rows(model, [1.0], dataset=dataset)]
    means = means_of(made)
    assert (means["model"] + " " + means["dataset"]).tolist() == expected
    assert frame.in_order(means, ["b_net10"])["model"].tolist()[0] == "b_net10"
    papers = means_of(made, stated("sup_resnet152", 1.0, source="paper v2"), rows("sup_resnet50", [1.0]))
    assert papers["model"].tolist()[:3] == ["sup_resnet50", "sup_resnet152", "A_net"]
