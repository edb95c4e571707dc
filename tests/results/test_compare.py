"""Views as numbers: ranks, changes, differences with verdicts, numbers beside the published ones."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from frames import means_of, rows, stated

from cog import constants
from cog.errors import CogError
from cog.results import compare, metrics, published, uncertainty

BENCHMARK = {"data": "benchmark"}


def binomial(seed, shape=(5, 60), p=0.6):
    return np.random.default_rng(seed).binomial(50, p, shape)


def against(mine, theirs, **more):
    """Return the row of the difference of two groups of rows."""
    [row] = compare.relative_to(means_of(mine, theirs), theirs[0]["model"]).to_dict("records")
    return row


# --- differences


def test_pairing_is_by_seed_and_not_by_position():
    found = against(
        rows("a_b", [50.0, 60.0, 70.0], seeds=(1, 2, 3)), rows("a_c", [49.0, 59.0, 10.0], seeds=(1, 2, 9))
    )
    assert (found["common_seeds"], found["value"], found["std"]) == ("1 2", 1.0, 0.0)
    a, b = binomial(0, (2, 4, 30))
    found = against(rows("a_b", correct=a[:3], seeds=(1, 2, 3)), rows("a_c", correct=b[1:], seeds=(2, 3, 4)))
    same = against(rows("a_b", correct=a[1:3]), rows("a_c", correct=b[1:3]))
    names = ("low", "high", "p", "value", "std")
    assert [found[name] for name in names] == [same[name] for name in names]


def test_differences_are_those_of_the_interval_over_concepts_and_seeds():
    a, b = (rows(name, correct=binomial(seed)) for name, seed in (("a_b", 1), ("a_c", 2)))
    found = against(a, b)
    expected = uncertainty.difference(*([row["correct"] for row in some] for some in (a, b)))
    assert (found["low"], found["high"], found["p"]) == (*expected.interval, expected.p)
    assert found["value"] == pytest.approx(expected.mean)
    differences = [one["value"] - other["value"] for one, other in zip(a, b)]
    assert found["std"] == pytest.approx(statistics.stdev(differences))


def test_verdicts_are_after_holms_correction():
    base = binomial(2, p=0.5)
    slight = base + (np.random.default_rng(3).random(base.shape) < 0.1)
    others = {"in1k": base + 10, "cog_l1": slight, "cog_l2": base, "cog_l3": base - 10}
    groups = [rows("a_b", correct=one, dataset=name) for name, one in others.items()]
    groups += [rows("a_c", correct=base, dataset=name) for name in others]
    view = compare.relative_to(means_of(*groups), "a_c")
    assert view["p_holm"].tolist() == uncertainty.holm(view["p"].tolist())
    readings = dict(zip(view["dataset"], view["reading"]))
    told = [readings[name] for name in ("in1k", "cog_l2", "cog_l3")]
    assert told == ["higher", "cannot be told apart", "lower"]
    [alone] = compare.relative_to(means_of(groups[1], groups[5]), "a_c")["reading"]
    assert alone == "higher"
    many = [rows(f"a_x{i}", correct=base, dataset="cog_l1") for i in range(100)]
    crowd = compare.relative_to(means_of(groups[1], groups[5], *many), "a_c").set_index("model").loc["a_b"]
    assert crowd["low"] > 0 and crowd["reading"] == "cannot be told apart"


@pytest.mark.parametrize(
    "mine, theirs, reason",
    [
        (rows("a_b", [90.0] * 5), rows("a_c", [10.0] * 5), "counts per concept are not known"),
        (rows("a_b", correct=[[40, 45]] * 2), rows("a_c", [1.0, 1.0]), "counts per concept are not known"),
        (rows("a_b", correct=[[50] * 99]), rows("a_c", correct=[[0] * 99]), "one common seed"),
        (
            rows("a_b", correct=[[9, 9]], seeds=(1,)),
            rows("a_c", correct=[[9, 9]], seeds=(2,)),
            "no common seed",
        ),
        (
            rows("a_b", correct=[[9, 9]] * 2),
            rows("a_c", correct=[[9, 9]] * 2, images=49),
            "not the same test images",
        ),
        (
            rows("a_b", correct=[[50] * 9] * 2, image_list="f0"),
            rows("a_c", correct=[[0] * 9] * 2, image_list="f1"),
            "not the same test images",
        ),
        (rows("a_b", correct=[[9]] * 2), rows("a_c", correct=[[8]] * 2), "a single concept"),
        (rows("a_b", [9.0] * 2), stated("a_c", 8.0, 0.1), "counts per concept are not known"),
    ],
)
def test_no_verdict(mine, theirs, reason):
    found = against(mine, theirs)
    assert found["reading"] == f"no verdict: {reason}" and np.isnan(found["p_holm"])


@pytest.mark.parametrize("changes", [{"protocol": "n_trials 3"}, {"data": "999 classes"}, {"features": "x"}])
def test_unlike_means_are_not_compared(changes):
    """Clearly apart, on the same images: only the settings, or the data, are not alike."""
    a, b = (rows(name, correct=[[n] * 99] * 5) for name, n in (("a_b", 50), ("a_c", 0)))
    assert against(a, b)["reading"] == "higher"
    found = against([{**row, **changes} for row in a], b)
    if "features" in changes:  # other models have other features
        assert found["reading"] == "higher"
    else:
        assert found["reading"].startswith("no verdict: not alike") and np.isnan(found["value"])


def test_seeds_without_a_mean_get_no_difference_from_their_counts():
    a, b = (rows(name, correct=[[n] * 99] * 3) for name, n in (("a_b", 50), ("a_c", 0)))
    a[1]["protocol"] = "n_epochs 3"
    found = against(a, b)
    assert found["reading"] == "no verdict: its seeds are of other settings" and np.isnan(found["value"])


def test_unpaired_differences_have_the_combined_deviation():
    found = against(rows("a_b", [75.0, 76.0]), stated("a_c", 74.0, 1.2))
    assert found["value"] == 1.5 and found["std"] == pytest.approx(math.sqrt(0.5**2 + 1.2**2))
    assert np.isnan(against(rows("a_b", [75.0, 76.0]), stated("a_c", 10.0))["std"])


def test_a_baseline_of_the_own_source_comes_first():
    base = [stated("a_c", value, source=source) for value, source in ((50.0, "runs"), (40.0, "lab"))]
    mine = [stated("a_b", 60.0, source=source) for source in ("runs", "lab", "paper v2")]
    view = compare.relative_to(means_of(*base, *mine), "a_c")
    assert dict(zip(view["source"], view["value"])) == {"runs": 10.0, "lab": 20.0, "paper v2": 10.0}
    with pytest.raises(CogError, match="--relative_to x_y"):
        compare.relative_to(means_of(*mine), "x_y")


# --- ranks


def test_ranks_with_ties_and_gaps():
    groups = [rows(f"m_{i}", [value]) for i, value in enumerate((50.0, 60.0, 60.0, 40.0))]
    groups += [rows("m_3", [1.0], dataset="cog_l1"), rows("m_0", [2.0], dataset="cog_l1")]
    view = compare.rank(means_of(*groups))
    assert {(r.model, r.dataset): (r.rank, r.mean_rank) for r in view.itertuples()} == {
        ("m_0", "in1k"): (3, 2.0),
        ("m_1", "in1k"): (1, 1.0),
        ("m_2", "in1k"): (1, 1.0),
        ("m_3", "in1k"): (4, 3.0),
        ("m_0", "cog_l1"): (1, 2.0),
        ("m_3", "cog_l1"): (2, 3.0),
    }
    assert list(dict.fromkeys(view["model"])) == ["m_0", "m_3", "m_1", "m_2"], "incomplete rows come last"


def test_ranks_among_the_published():
    ours = rows("a_b", [71.06], dataset="cog_l1", **BENCHMARK)  # DINO: 71.1
    other = rows("a_c", [99.0], dataset="cog_l1", data="24 classes")
    papers = [row for row in published.rows() if row["n_shot"] == 0]
    view = compare.rank(means_of(ours, other, papers)).set_index(["source", "model", "dataset"])
    mine, theirs = view.loc["runs", "a_b", "cog_l1"], view.loc["paper v2", "dino_resnet50", "cog_l1"]
    values = sorted((row["value"] for row in papers if row["dataset"] == "cog_l1"), reverse=True)
    assert mine["rank"] == theirs["rank"] == mine["rank_31"] == values.index(71.1) + 1
    odd = view.loc["runs", "a_c", "cog_l1"]
    assert np.isnan(odd["rank"]) and np.isnan(odd["rank_31"]), "not the benchmark's data"
    alone = compare.rank(means_of(ours, rows("a_d", [71.05], dataset="cog_l1"))).set_index("model")
    assert alone["rank"].to_dict() == {"a_b": 1, "a_d": 2}, "not rounded without the paper"


def test_every_published_rank():
    rows_ = published.rows()
    view = compare.rank(means_of(rows_))
    by_place = {}
    for row in rows_:
        by_place.setdefault((row["dataset"], row["n_shot"]), []).append(row["value"])
    for row in view.itertuples():
        values = by_place[row.dataset, row.n_shot]
        assert row.rank == sorted(values, reverse=True).index(row.value) + 1 == row.rank_31
    assert (view["n_ranked"] == 31).all()


# --- changes, derived numbers, the paper's


def test_changes_since_in1k():
    a, b = binomial(1), binomial(2, p=0.4)
    means = means_of(rows("a_b", correct=a), rows("a_b", correct=b, dataset="cog_l5"))
    [row] = compare.drop(means).to_dict("records")
    [base, level] = means["value"]
    assert row["value"] == pytest.approx(100 * (level - base) / base) and row["in1k"] == base
    estimates = [uncertainty.accuracy([r["correct"] for r in rows("a_b", correct=c)]) for c in (b, a)]
    assert (row["low"], row["high"]) == uncertainty.change(*estimates).interval
    s1, s2 = means["std"]
    assert row["std"] == pytest.approx(100 * math.hypot(s2 / base, level * s1 / base**2))
    with pytest.raises(CogError, match="needs results on in1k"):
        compare.drop(means[1:])
    unlike = means_of(rows("a_b", [1.0], protocol="n_epochs 3"), rows("a_b", [1.0], dataset="cog_l5"))
    assert compare.drop(unlike).empty


def test_every_published_drop():
    means = means_of(published.rows())
    value = means.set_index(["model", "dataset", "n_shot"])["value"]
    view = compare.drop(means)
    for row in view.itertuples():
        base = value[row.model, "in1k", row.n_shot]
        assert row.value == pytest.approx(
            100 * (value[row.model, row.dataset, row.n_shot] - base) / base, abs=1e-9
        )
    assert len(view) == 31 * 5 * 9


def test_derived_numbers():
    logreg, mlp, tuned = binomial(1), binomial(2, p=0.7), binomial(3, p=0.8)
    means = means_of(
        rows("a_b", correct=logreg, dataset="cog_l5"),
        rows("a_b", correct=mlp, dataset="cog_l5", evaluation="mlp"),
        rows("a_b", correct=tuned[:1], dataset="cog_l5", evaluation="finetune"),
        rows("a_b", [60.0]),
        rows("a_b", [59.0], dataset="in1k_blurred"),
        stated("a_b", 0.8, evaluation="alignment", metric="alignment"),
        stated("a_b", 0.6, evaluation="alignment", metric="alignment", dataset="cog_l1"),
    )
    found = compare.derived(means).set_index(["dataset", "evaluation", "metric"])
    value = {place: row["value"] for place, row in means.set_index(["dataset", "evaluation"]).iterrows()}
    base = value["cog_l5", "logreg"]
    relative = found.loc["cog_l5", "mlp", metrics.RELATIVE_TO_LOGREG]
    assert relative["value"] == pytest.approx(100 * (value["cog_l5", "mlp"] / base - 1))
    counts = [[row["correct"] for row in rows("a_b", correct=c)] for c in (mlp, logreg)]
    assert (relative["low"], relative["high"]) == uncertainty.relative_difference(*counts).interval
    frozen = found.loc["cog_l5", "finetune", metrics.LOGREG_RELATIVE]
    assert frozen["value"] == pytest.approx(100 * (base / value["cog_l5", "finetune"] - 1)) and np.isnan(
        frozen["low"]
    )
    assert found.loc["in1k_blurred", "logreg", metrics.POINTS_TO_IN1K]["value"] == -1.0
    ratio = f"alignment_{metrics.RATIO_TO_IN1K}"
    assert found.loc["cog_l1", "alignment", ratio]["value"] == pytest.approx(0.75)
    assert len(found) == len(means) + 5


def test_beside_the_published():
    values = [[75.9 - 0.1, 75.9 + 0.1], [75.9], [70.0, 70.0]]
    groups = [rows("sup_resnet50", some, source=f"lab{i}", **BENCHMARK) for i, some in enumerate(values)]
    odd = rows("sup_resnet50", [75.8, 75.8], data="24 classes", source="lab3")
    means = means_of(*groups, odd, rows("a_b", [1.0]), published.rows())
    view = compare.beside_published(means).set_index("source")
    own = view[view["published"].notna()]
    assert own["within"].to_dict() == {"lab0": "yes", "lab1": "?", "lab2": "no"}
    assert own["difference"].round(6).to_dict() == {"lab0": 0.1, "lab1": 0.1, "lab2": -5.8}
    v1 = compare.beside_published(means, "v1").set_index("source")["within"].dropna().to_dict()
    assert v1 == {"lab0": "?", "lab1": "?", "lab2": "?"}, "the first version states no deviations"
    assert len(view) == len(means) and constants.DATASETS[0] == "in1k"
