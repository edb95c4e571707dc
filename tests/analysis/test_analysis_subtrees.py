"""Accuracy by subtree, and partial correlations, against definitions and SciPy."""

from __future__ import annotations

import math
from array import array

import numpy as np
import pytest
import tiny
import torch
from analyzed_models import LEVEL, analyze, read, table, write_features
from scipy import stats

from cog.analysis import subtrees
from cog.analysis.partial_correlation import intervals, partial_spearman, within_spearman
from cog.commands import print_results
from cog.errors import CogError
from cog.levels import wordnet
from cog.levels.wordnet import NounGraph
from cog.paths import ModelDir
from cog.results import uncertainty
from cog.results.concept_counts import ConceptCounts
from cog.results.metric_info import companion_of


def drawn(seed: int, n: int = 60):
    """Points with ties in four groups, and two other quantities."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 4, n)
    x = np.round(rng.normal(size=n) + group, 1)
    other, another = rng.integers(700, 760, n).astype(float), rng.normal(size=n)
    return x, np.round(0.5 * x - group + 0.02 * other + rng.normal(size=n), 1), group, other, another


def by_inverse(x, y, group, others):
    """The textbook's partial correlation: from the inverse of the covariance matrix of the ranks."""
    indicators = [(group == k).astype(float) for k in np.unique(group)[1:]]
    columns = [stats.rankdata(v) for v in (x, y, *others)] + indicators
    inverse = np.linalg.inv(np.cov(columns))
    return -inverse[0, 1] / math.sqrt(inverse[0, 0] * inverse[1, 1])


@pytest.mark.parametrize("seed", range(5))
def test_partial_correlation_by_the_inverse_matrix_and_by_residuals(seed):
    x, y, group, other, another = drawn(seed)
    for others in ([], [other], [other, another]):
        assert partial_spearman(x, y, group, others) == pytest.approx(
            by_inverse(x, y, group, others), abs=1e-10
        )
    design = np.stack([*((group == k).astype(float) for k in range(4)), stats.rankdata(other)], axis=1)
    left = [v - design @ np.linalg.pinv(design) @ v for v in (stats.rankdata(x), stats.rankdata(y))]
    assert partial_spearman(x, y, group, [other]) == pytest.approx(stats.pearsonr(*left).statistic, abs=1e-10)
    constant = np.full(len(x), 732.0)
    assert partial_spearman(x, y, group, [constant]) == pytest.approx(partial_spearman(x, y, group))
    alone = np.zeros(len(x), dtype=np.int64)
    assert partial_spearman(x, y, alone) == pytest.approx(stats.spearmanr(x, y).statistic)


def test_no_correlation_without_remaining_variance():
    x, y, group, other, _ = drawn(0)
    assert math.isnan(partial_spearman(group.astype(float), y, group))
    assert math.isnan(partial_spearman(x, other, group, [other]))
    assert math.isnan(partial_spearman(np.ones(60), y, group))
    assert math.isnan(partial_spearman(x, y, np.arange(60)))
    assert math.isnan(within_spearman(x, y, np.arange(60)))


def test_domain_alone_gives_a_plain_correlation_that_vanishes_within():
    """Two domains that differ in similarity and accuracy, with no relation inside either."""
    inside = np.array([(a, b) for a in range(5) for b in range(5)], dtype=float)
    x, y = np.concatenate([inside, inside + 10]).T
    group = np.repeat([0, 1], 25)
    assert stats.spearmanr(x, y).statistic > 0.7
    assert partial_spearman(x, y, group) == pytest.approx(0, abs=1e-12)
    assert within_spearman(x, y, group) == pytest.approx(0, abs=1e-12)


def test_correlation_within_groups_by_brute_force():
    x, y, group, _, _ = drawn(7)
    group = np.where(np.arange(60) < 3, 9, group)  # too small to count
    big = [k for k in range(10) if (group == k).sum() >= 10]
    rho = [stats.spearmanr(x[group == k], y[group == k]).statistic for k in big]
    assert within_spearman(x, y, group) == pytest.approx(
        np.average(rho, weights=[(group == k).sum() for k in big])
    )


def test_intervals_are_those_of_a_plain_bootstrap():
    x, y, group, _, _ = drawn(1)
    strata = np.repeat([0, 1], 30)

    def numbers(rows):
        assert (strata[rows] == strata).all() and len(rows) == 60
        return [partial_spearman(x[rows], y[rows], group[rows]), math.nan]

    (low, high), (nothing, _) = intervals(numbers, strata, n_resamples=300)
    rng = np.random.default_rng(0)
    values = []
    for _ in range(300):
        rows = np.concatenate([rng.integers(30, size=30), 30 + rng.integers(30, size=30)])
        values.append(partial_spearman(x[rows], y[rows], group[rows]))
    assert (low, high) == pytest.approx(np.quantile(values, [0.025, 0.975]).tolist()) and math.isnan(nothing)
    assert intervals(numbers, strata, n_resamples=0) == []


@pytest.fixture
def toy_wordnet(monkeypatch):
    """The first level lies below mammals; of the second one is a plant, one both mammal and food, one neither."""
    mammal, plant = "n01861778", "n00017222"
    first, second = LEVEL["cog_l1"], LEVEL["cog_l2"]
    roots = {wnid for ids in subtrees.SUBTREES.values() for wnid in ids}
    food = "n00021265"  # deeper here than mammals
    above = {wnid: [mammal] for wnid in first}
    above |= {second[0]: [plant], second[1]: [mammal, food], second[2]: [], food: [plant]}
    wnids = sorted({*roots, *above})
    graph = NounGraph(
        wnids=wnids,
        parents=[tuple(wnids.index(parent) for parent in above.get(wnid, ())) for wnid in wnids],
        lemmas=[(f"Word_{wnid}",) for wnid in wnids],
    )
    monkeypatch.setattr(wordnet, "load_wordnet", lambda _=None: graph)
    return graph


def test_accuracies_and_correlations_of_a_study(levels, toy_wordnet, capsys):
    root, table_, hits = levels
    for dataset, wnids in LEVEL.items():
        write_features(root, dataset, "train", wnids, n=4)
    flags = f"--levels_csv {table_} --n_resamples 20 --datasets cog_l1 cog_l2 cog_levels"
    analyze(root, "--analysis subtrees", flags)
    found = read(root, "cog_levels", "subtrees")
    one, two = (10 * np.mean(hits[dataset], axis=0) for dataset in LEVEL)
    expected = {"mammals": one.mean(), "plants": two[0], "food": two[1], "rest": two[2]}
    accuracies = {
        k.removeprefix("accuracy_"): v
        for k, v in found.values.items()
        if k.startswith("acc") and companion_of(k) is None
    }
    assert accuracies == pytest.approx(expected)
    mammals = [ConceptCounts(array("I", row), 10) for row in hits["cog_l1"]]
    interval = uncertainty.accuracy(mammals)
    ends = [found.values[f"accuracy_mammals_{end}"] for end in ("low", "high")]
    assert ends == pytest.approx([interval.low, interval.high])
    assert found.values["accuracy_food_low"] is None, "a single concept"
    assert found.values["n_concepts"] == 6 and found.values["n_subtrees"] == 4
    assert found.per_seed["37"]["accuracy_mammals"] == pytest.approx(10 * np.mean(hits["cog_l1"][1]))
    similarity, accuracy = np.array([0.9, 0.8, 0.8, 0.5, 0.4, 0.1]), np.concatenate([one, two])
    group = np.array([0, 0, 0, 1, 2, 3])
    given = partial_spearman(similarity, accuracy, group)
    assert found.values["spearman_given_subtree"] == pytest.approx(given)
    assert found.values["spearman_given_subtree_and_images"] == pytest.approx(given)
    assert found.values["spearman_within_subtrees"] is None  # no subtree has ten concepts
    assert found.details["spearman"] == pytest.approx(stats.spearmanr(similarity, accuracy).statistic)
    rows = {
        (row["dataset"], row["subtree"]): row for row in table(root, "cog_levels", "subtrees", "subtrees.csv")
    }
    assert rows["cog_l1", "mammals"] == rows["all", "mammals"] | {"dataset": "cog_l1"}
    row = rows["all", "mammals"]
    assert (row["concepts"], row["test_images"], row["mean_training_images"]) == ("3", "30", "4.0")
    assert float(row["standard_error"]) == pytest.approx(one.std(ddof=1) / math.sqrt(3), abs=1e-4)
    assert float(row["spearman"]) == pytest.approx(stats.spearmanr(similarity[:3], one).statistic, abs=1e-4)
    concepts = {row["wnid"]: row for row in table(root, "cog_levels", "subtrees", "concepts.csv")}
    assert concepts[LEVEL["cog_l2"][1]]["subtree"] == "food"
    assert "6 concepts in 4 subtrees; Spearman of similarity and accuracy" in capsys.readouterr().out


def test_without_similarities_or_training_features(levels, toy_wordnet, caplog):
    root, table_, _ = levels
    analyze(root, "--analysis", "subtrees", "--dataset", "cog_l1")
    assert not any("spearman" in key for key in read(root, "cog_l1", "subtrees").values)
    analyze(root, f"--analysis subtrees --levels_csv {table_} --n_resamples 0 --dataset cog_l2")
    found = read(root, "cog_l2", "subtrees")
    assert found.values["spearman_given_subtree_and_images"] is None
    assert "not corrected for the number of training images" in caplog.text


@pytest.mark.slow
def test_equal_similarities(levels, toy_wordnet, capsys):
    root, _, _ = levels
    levels_csv = root / "equal.csv"
    levels_csv.write_text("wnid,similarity,level\n" + "".join(f"{wnid},0.5,L1\n" for wnid in LEVEL["cog_l1"]))
    flags = ("--levels_csv", str(levels_csv), "--dataset", "cog_l1")
    analyze(root, "--analysis", "subtrees", *flags)
    out = capsys.readouterr().out
    assert (
        "3 concepts in 1 subtree; no correlation with similarity is defined: all similarities, or all accuracies"
        in out
    )
    assert "nan" not in out


def test_own_subtrees(levels, toy_wordnet, capsys):
    root, _, _ = levels
    plant, food = "n00017222", "n00021265"
    analyze(root, "--analysis", "subtrees", "--dataset", "cog_l2", "--subtrees", plant, food)
    capsys.readouterr()
    shown = []
    for flags in (["--analysis", "subtrees"], ["--by_subtree"]):
        print_results.main(["--models_root_dir", str(root), *flags])
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] and "subtrees" in shown[0]
    found = read(root, "cog_l2", "subtrees")
    assert found.details["concepts"] == {f"word_{plant}": 1, f"word_{food}": 1, "rest": 1}
    for roots, words in (("dog", "is not a noun id"), ("n99999999", "not a noun synset")):
        with pytest.raises(CogError, match=words):
            analyze(root, "--analysis", "subtrees", "--dataset", "cog_l1", "--subtrees", roots)


def test_few_shot_classifiers_see_no_more_images(tmp_path):
    from types import SimpleNamespace

    model_dir = ModelDir(tmp_path, "sup_small")
    folder = model_dir.features("cog_l1", "train")
    tiny.write_features(folder, torch.randn(9, 8), torch.tensor([0] * 2 + [1] * 7), name="x")
    request = SimpleNamespace(
        cfg=SimpleNamespace(CLF=SimpleNamespace(MAX_PER_CLASS=5, N_SHOT=0)),
        model_dir=model_dir,
    )
    data = SimpleNamespace(dataset="cog_l1", wnids=["a", "b"])
    assert subtrees.training_images(request, [data]) == {"a": 2, "b": 5}
    request.cfg.CLF.N_SHOT = 1
    assert subtrees.training_images(request, [data]) == {"a": 1, "b": 1}


def test_the_declared_roots_are_what_they_say(wordnet):
    names = {root: wordnet.name(wordnet.index(root)) for ids in subtrees.SUBTREES.values() for root in ids}
    assert [names[ids[0]] for ids in subtrees.SUBTREES.values()] == [
        "mammal.n.01", "bird.n.01", "animal.n.01", "plant.n.02", "food.n.01", "clothing.n.01", "structure.n.01",
        "conveyance.n.03", "device.n.01", "container.n.01", "furnishing.n.02", "artifact.n.01", "act.n.02",
    ]  # fmt: skip
    assert sorted(names[ids[1]] for ids in subtrees.SUBTREES.values() if len(ids) > 1) == [
        "covering.n.02", "food.n.02", "plant_part.n.01",
    ]  # fmt: skip
