"""Views as numbers: ranks, changes, differences with verdicts, numbers beside the published ones."""

import math
import statistics

import numpy as np
import pandas as pd
import pytest
import torch
from frames import means_of, rows

import cog
from cog.constants import DATASETS, SPLITS
from cog.errors import CogError
from cog.features.feature_files import FeatureSet
from cog.results import compare, published, uncertainty
from cog.results.frame import average


def binomial(seed, shape=(5, 60), p=0.6):
    return np.random.default_rng(seed).binomial(50, p, shape)


def against(mine, theirs):
    """Return the row of the difference of two groups of rows."""
    [row] = compare.relative_to(means_of(mine, theirs), theirs[0]["model"]).to_dict("records")
    return row


def test_differences_are_those_of_the_interval_over_concepts_and_common_seeds():
    a = rows("a_b", correct=binomial(1), seeds=range(5))
    b = rows("a_c", correct=binomial(2), seeds=range(1, 6))
    found, common = against(a, b), (a[1:], b[:-1])
    expected = uncertainty.difference(*([row["correct"] for row in some] for some in common))
    assert (found["low"], found["high"], found["p"]) == (expected.low, expected.high, expected.p)
    assert found["value"] == pytest.approx(expected.mean) and found["common_seeds"] == "1 2 3 4"
    differences = [one["value"] - other["value"] for one, other in zip(*common)]
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
    assert against(groups[1], groups[5])["reading"] == "higher"
    many = [rows(f"a_x{i}", correct=base, dataset="cog_l1") for i in range(100)]
    crowd = compare.relative_to(means_of(groups[1], groups[5], *many), "a_c").set_index("model").loc["a_b"]
    assert crowd["low"] > 0 and crowd["reading"] == "cannot be told apart"


@pytest.mark.parametrize(
    "mine, theirs, reason",
    [
        ({"values": [90.0] * 5}, {"values": [10.0] * 5}, "counts per concept are not known"),
        ({"correct": [[50] * 99]}, {"correct": [[0] * 99]}, "one common seed"),
        ({"correct": [[9, 9]], "seeds": (1,)}, {"correct": [[9, 9]], "seeds": (2,)}, "no common seed"),
        ({"correct": [[9, 9]] * 2}, {"correct": [[9, 9]] * 2, "images": 49}, "not the same test images"),
        ({"correct": [[9]] * 2}, {"correct": [[8]] * 2}, "a single concept"),
    ],
)
def test_no_verdict(mine, theirs, reason):
    found = against(rows("a_b", **mine), rows("a_c", **theirs))
    assert found["reading"] == f"no verdict: {reason}" and np.isnan(found["p_holm"])


def test_unlike_means_are_not_compared():
    """Clearly apart, on the same images: only the settings, or the data, are not alike."""
    a, b = (rows(name, correct=[[n] * 99] * 5) for name, n in (("a_b", 50), ("a_c", 0)))
    assert against([{**row, "features": "x"} for row in a], b)["reading"] == "higher"
    for changes in ({"protocol": "n_trials 3"}, {"data": "999 classes"}):
        found = against([{**row, **changes} for row in a], b)
        assert found["reading"].startswith("no verdict: not alike") and np.isnan(found["value"])
    a[1]["protocol"] = "n_epochs 3"  # seeds without a mean get no difference from their counts
    found = against(a, b)
    assert found["reading"] == "no verdict: its seeds are of other settings" and np.isnan(found["value"])


def test_ranks_among_the_published():
    ours = rows("a_b", [71.65], dataset="cog_l1", data="benchmark")  # shown as 71.7, as NAT-M4
    other = rows("a_c", [99.0], dataset="cog_l1", data="24 classes")
    view = compare.rank(means_of(ours, other, published.rows()))
    paper = view[view["source"] != "runs"]
    for (dataset, n_shot), part in paper.groupby(["dataset", "n_shot"]):
        expected = [sorted(part["value"], reverse=True).index(value) + 1 for value in part["value"]]
        assert part["rank_31"].tolist() == expected
        more = (part["value"] < 71.7) & ((dataset, n_shot) == ("cog_l1", 0))
        assert part["rank"].tolist() == (part["rank_31"] + more).tolist()
    view = view[view["n_shot"] == 0].set_index(["source", "model", "dataset"])
    mine, theirs = view.loc["runs", "a_b", "cog_l1"], view.loc["paper v2", "nat_m4", "cog_l1"]
    assert mine["rank"] == theirs["rank"] == mine["rank_31"]
    assert view.loc["runs", "a_c", "cog_l1"][["rank", "rank_31"]].isna().all(), "not the benchmark's data"
    alone = compare.rank(means_of(ours, rows("a_d", [71.66], dataset="cog_l1"))).set_index("model")
    assert alone["rank"].to_dict() == {"a_b": 2, "a_d": 1}, "not rounded without the paper"


def test_changes_since_in1k():
    a, b = binomial(1), binomial(2, p=0.4)
    means = means_of(rows("a_b", correct=a), rows("a_b", correct=b, dataset="cog_l5"))
    [row] = compare.drop(means).to_dict("records")
    [base, level], [s1, s2] = means["value"], means["std"]
    assert row["value"] == pytest.approx(100 * (level - base) / base) and row["in1k"] == base
    estimates = [uncertainty.accuracy([r["correct"] for r in rows("a_b", correct=c)]) for c in (b, a)]
    expected = uncertainty.change(*estimates)
    assert (row["low"], row["high"]) == (expected.low, expected.high)
    assert row["std"] == pytest.approx(100 * math.hypot(s2 / base, level * s1 / base**2))
    for odd in ({"protocol": "n_epochs 3"}, {"data": "24 classes"}):
        assert compare.drop(means_of(rows("a_b", [1.0], **odd), rows("a_b", [1.0], dataset="cog_l5"))).empty
    with pytest.raises(CogError, match="needs results on in1k"):
        compare.drop(means[1:])
    means = means_of(published.rows())
    value, view = means.set_index(["model", "dataset", "n_shot"])["value"], compare.drop(means)
    base = np.array([value[row.model, "in1k", row.n_shot] for row in view.itertuples()])
    assert view["value"].tolist() == pytest.approx((100 * (view["accuracy"] - base) / base).tolist())
    assert len(view) == 31 * 5 * 9


def test_beside_the_published():
    values = [[75.9 - 0.1, 75.9 + 0.1], [75.9], [70.0, 70.0]]
    groups = [rows("sup_resnet50", some, source=f"lab{i}", data="benchmark") for i, some in enumerate(values)]
    odd = rows("sup_resnet50", [75.8, 75.8], data="24 classes", source="lab3")
    means = means_of(*groups, odd, rows("a_b", [1.0]), published.rows())
    view = compare.beside_published(means).set_index("source")
    own = view[view["published"].notna()]
    assert own["within"].to_dict() == {"lab0": "yes", "lab1": "?", "lab2": "no"} and len(view) == len(means)
    assert own["difference"].round(6).to_dict() == {"lab0": 0.1, "lab1": 0.1, "lab2": -5.8}
    v1 = compare.beside_published(means, "v1").set_index("source")["within"].dropna().to_dict()
    assert v1 == {"lab0": "?", "lab1": "?", "lab2": "?"}, "the first version states no deviations"


def test_a_copy_is_not_told_apart_and_three_points_are():
    """1000 concepts of 50 images, five seeds, six data sets."""
    generator = np.random.default_rng(0)
    groups = []
    for dataset in DATASETS:
        concepts = generator.beta(4, 2, 1000)
        for model, shift in (("a_net", 0.0), ("a_copy", 0.0), ("a_worse", -0.03)):
            correct = generator.binomial(50, np.clip(concepts + shift, 0, 1), (5, 1000))
            groups.append(rows(model, correct=correct, dataset=dataset))
    told = compare.relative_to(means_of(*groups), "a_net").groupby("model")["reading"].agg(set).to_dict()
    assert told == {"a_copy": {"cannot be told apart"}, "a_worse": {"lower"}}


def evaluated(noise, model):
    """Scores of five seeds on features of 20 concepts of three data sets, to which noise is added."""
    scores, y = [], torch.arange(20).repeat_interleave(40)
    for number, dataset in enumerate(DATASETS[::2]):
        generator, other = torch.Generator().manual_seed(number), torch.Generator().manual_seed(99 + number)
        centers, parts = torch.randn(20, 32, generator=generator), []
        for split in SPLITS:
            x = centers[y] + 2 * torch.randn(len(y), 32, generator=generator)
            x += noise * torch.randn(x.shape, generator=other)
            parts.append(FeatureSet(x, y, f"{model}_{dataset}_{split}"))
        scores.append(cog.evaluate(None, *parts, dataset=dataset, device="cpu", n_trials=3, n_epochs=10))
    return pd.concat(scores).assign(model=model)


@pytest.mark.slow
def test_a_little_noise_is_not_told_and_a_lot_is():
    base = evaluated(0.0, "a_net")
    for noise, reading in ((0.2, "cannot be told apart"), (2.0, "lower")):
        scores = pd.concat([base, evaluated(noise, "noisy_net")])
        view = compare.relative_to(average(scores[scores["metric"] == "top1"]), "a_net")
        assert set(view["reading"]) == {reading} and view["low"].notna().all()
        assert (view["common_seeds"] == "22 37 45 77 93").all() and len(view) == 3
