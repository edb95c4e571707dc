"""Analyses of trained classifiers: cross-application, distance to the seen concepts, winners and losers."""

from __future__ import annotations

import csv
import dataclasses
import math
import pickle
import re
from array import array
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from analyzed_models import (
    DIM,
    LEVEL,
    analyze,
    predictions_with,
    read,
    table,
    write_features,
    write_levels_csv,
    write_run,
)
from result_folders import make_logs

from cog import analysis, constants
from cog.analysis import accuracy_vs_similarity, concepts, confidences, model_comparison, saved_runs
from cog.commands import analyze_features
from cog.errors import CogError
from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.logreg.sgd import TrainedClassifier
from cog.results import analysis_records, find, uncertainty
from cog.results.concept_counts import ConceptCounts

del analysis

SEEN = ("n02084071", "n02121620", "n02374451", "n04037443")


@pytest.fixture(autouse=True)
def _no_wordnet(monkeypatch, tmp_path):
    """Reading WordNet takes longer than everything else here; ids stand for names."""
    monkeypatch.setenv("COG_WORDNET_DIR", str(tmp_path / "no_wordnet"))


# --- cross-application


#: The classifiers of in1k on the test images of cog_l1.
CROSS = "--analysis cross --trained_on in1k --dataset cog_l1"


@pytest.fixture
def crossed(models):
    """Classifiers of in1k (two seeds) and test features of cog_l1 without runs."""
    write_features(models, "in1k", "test", SEEN)
    x, y = write_features(models, "cog_l1", "test", LEVEL["cog_l1"], n=40, seed=1)
    weights = [write_run(models, "in1k", seed=seed, n_classes=4) for seed in (22, 37)]
    return models, x, y, weights


def softmax(x, weights):
    """The definition, in float64."""
    x = x.double() / x.double().norm(dim=1, keepdim=True)
    return [torch.softmax(x @ weight.double().T + bias.double(), dim=1).numpy() for weight, bias in weights]


def test_cross_equals_the_matrix_product(crossed):
    models, x, _, weights = crossed
    analyze(models, CROSS, "--confidence 0.9")
    found = read(models, "cog_l1", "cross_in1k")
    probabilities = softmax(x, weights)
    for seed, p in zip((22, 37), probabilities, strict=True):
        rows = table(models, "cog_l1", "cross_in1k", f"confident_seed-{seed}.csv")
        expected = sorted(np.flatnonzero(p.max(1) > 0.9), key=lambda row: -p[row].max())
        wnids = [LEVEL["cog_l1"][r // 40] for r in expected]
        assert [row["wnid"] for row in rows] == wnids
        assert [row["image"] for row in rows] == [
            f"{wnid}/{wnid}_{r % 40}.JPEG" for wnid, r in zip(wnids, expected)
        ]
        assert [row["predicted_wnid"] for row in rows] == [SEEN[p[r].argmax()] for r in expected]
        np.testing.assert_allclose(
            [float(row["confidence"]) for row in rows], [p[r].max() for r in expected], atol=1e-6
        )
        assert found.per_seed[str(seed)]["confident_percent"] == pytest.approx(100 * len(expected) / 120)
        assert found.per_seed[str(seed)]["mean_confidence"] == pytest.approx(p.max(1).mean(), abs=1e-6)
        assert 0 < len(expected) < 120
        counts = [int(row[f"seed_{seed}"]) for row in table(models, "cog_l1", "cross_in1k", "histogram.csv")]
        assert (
            counts == np.histogram(p.max(1), bins=np.linspace(0, 1, 101))[0].tolist() and sum(counts) == 120
        )
    shares = [100 * (p.max(1) > 0.9).mean() for p in probabilities]
    assert found.values["confident_percent"] == pytest.approx(np.mean(shares))
    assert found.values["confident_percent_std"] == pytest.approx(np.std(shares))
    average = np.mean(probabilities, axis=0)
    assert found.values["confident_by_average_percent"] == pytest.approx(100 * (average.max(1) > 0.9).mean())
    anywhere = (probabilities[0].max(1) > 0.9) | (probabilities[1].max(1) > 0.9)
    assert found.values["confident_in_any_seed_percent"] == pytest.approx(100 * anywhere.mean())
    rows = table(models, "cog_l1", "cross_in1k", "confident.csv")
    assert len(rows) == anywhere.sum()
    counts = [int(row["n_seeds"]) for row in rows]
    assert counts == sorted(counts, reverse=True) and set(counts) == {1, 2}
    odds = [float(row["log_odds"]) for row in rows if row["n_seeds"] == "2"]
    assert odds == sorted(odds, reverse=True)
    both = (probabilities[0].max(1) > 0.9) & (probabilities[1].max(1) > 0.9)
    agree = both & (probabilities[0].argmax(1) == probabilities[1].argmax(1))
    assert found.values["confident_in_all_seeds_percent"] == pytest.approx(100 * both.mean())
    assert found.values["confident_as_the_same_class_percent"] == pytest.approx(100 * agree.mean())
    assert found.values["same_concept_percent"] is None and found.seeds == [22, 37]


def test_auroc_sets_own_test_images_against_the_others(crossed):
    from sklearn import metrics

    models, x, _, weights = crossed
    own, _ = write_features(models, "in1k", "test", SEEN, n=30, seed=3)
    analyze(models, CROSS, "--confidence 0.9")
    found = read(models, "cog_l1", "cross_in1k")
    is_own = np.r_[np.ones(len(own)), np.zeros(len(x))]
    expected = []
    for seed, ours, others in zip((22, 37), softmax(own, weights), softmax(x, weights), strict=True):
        confidence = np.r_[ours.max(1), others.max(1)]
        expected.append(100 * metrics.roc_auc_score(is_own, confidence))
        values = found.per_seed[str(seed)]
        assert values["auroc"] == pytest.approx(expected[-1], abs=1e-4)
        assert values["own_confident_percent"] == pytest.approx(100 * (ours.max(1) > 0.9).mean())
        log_odds = [np.sort(np.log(p.max(1) / (1 - p.max(1)))) for p in (ours, others)]
        middle = log_odds[0][len(own) // 2 - 1 : len(own) // 2 + 1].mean()
        assert values["above_own_median_percent"] == pytest.approx(100 * (log_odds[1] > middle).mean())
        assert values["own_mean_confidence"] == pytest.approx(ours.max(1).mean(), abs=1e-6)
    assert found.values["auroc"] == pytest.approx(np.mean(expected), abs=1e-4)


def test_the_calibrated_share_does_not_depend_on_the_scale_of_the_weights(models):
    """Two seeds with the same directions: the raw share follows the length of the weights."""
    write_features(models, "in1k", "test", SEEN, n=100)
    write_features(models, "cog_l1", "test", LEVEL["cog_l1"], n=100, seed=1)
    weight, bias = torch.randn(4, DIM, generator=torch.Generator().manual_seed(5)), torch.zeros(4)
    for seed, scale in ((22, 2.0), (37, 12.0)):
        write_run(models, "in1k", seed=seed, n_classes=4, state={"weight": scale * weight, "bias": bias})
    analyze(models, CROSS)
    small, large = (read(models, "cog_l1", "cross_in1k").per_seed[seed] for seed in ("22", "37"))
    assert large["confident_percent"] - small["confident_percent"] > 20
    assert abs(large["above_own_median_percent"] - small["above_own_median_percent"]) < 3


def test_without_own_test_features_there_is_no_auroc(crossed):
    models, *_ = crossed
    (models / "my/net/in1k/features_test/X_Y.pth").unlink()
    analyze(models, CROSS)
    found = read(models, "cog_l1", "cross_in1k")
    for name in ("auroc", "own_confident_percent", "above_own_median_percent"):
        assert found.values[name] is None
    assert found.values["mean_confidence"] is not None


def test_cross_respects_normalization_components_and_hidden_layers(models):
    """What a run recorded about its input decides, and for runs that recorded nothing the configuration."""
    write_features(models, "in1k", "test", SEEN)
    x, _ = write_features(models, "cog_l1", "test", LEVEL["cog_l1"], seed=1)
    generator = torch.Generator().manual_seed(5)
    mean, components = torch.randn(DIM, generator=generator), torch.randn(3, DIM, generator=generator)
    layers = {
        "0.weight": torch.randn(7, DIM, generator=generator), "0.bias": torch.randn(7, generator=generator),
        "2.weight": torch.randn(4, 7, generator=generator), "2.bias": torch.randn(4, generator=generator),
    }  # fmt: skip
    write_run(models, "in1k", seed=1, n_classes=4, state=layers, folder="eval_mlp",
              record={"configuration": {"CLF.NORM_FTS": False, "CLF.TYPE": "mlp"}})  # fmt: skip
    small = {"weight": torch.randn(4, 3, generator=generator), "bias": torch.randn(4, generator=generator)}
    write_run(models, "in1k", seed=1, n_classes=4, state=small, folder="eval_logreg_pca3")
    torch.save(
        {"mean": mean, "components": components},
        models / "my/net/in1k/eval_logreg_pca3/seed-1/final-lr-1.0_wd-1e-06/pca.pth",
    )
    weight, bias = write_run(
        models, "in1k", seed=1, n_classes=4, folder="eval_raw", record={"configuration": None}
    )
    expected = {
        "cross_in1k_mlp": (
            "CLF.TYPE mlp",
            torch.relu(x @ layers["0.weight"].T + layers["0.bias"]) @ layers["2.weight"].T + layers["2.bias"],
        ),
        "cross_in1k_pca3": (
            "CLF.PCA_DIM 3",
            torch.nn.functional.normalize((x - mean) @ components.T) @ small["weight"].T + small["bias"],
        ),
        "cross_in1k_raw": ("EVAL.NAME raw CLF.NORM_FTS False", x @ weight.T + bias),
    }
    for name, (options, logits) in expected.items():
        analyze(models, CROSS, "--confidence 0", options)
        confidence = torch.softmax(logits.double(), dim=1).max(1).values
        assert read(models, "cog_l1", name).values["mean_confidence"] == pytest.approx(
            float(confidence.mean()), abs=1e-6
        )


def test_confidences_that_round_to_one_are_still_ordered(models):
    write_features(models, "in1k", "test", SEEN)
    x, y = write_features(models, "cog_l1", "test", LEVEL["cog_l1"], n=20, seed=1)
    weight, bias = write_run(models, "in1k", seed=1, n_classes=4, scale=300.0)
    found = confidences.apply(FeatureSet(x, y, "x"), logreg_of_in1k(models), device=torch.device("cpu"))
    assert (found.confidence[0] == 1.0).sum() > 10
    rows = confidences.confident_rows(found, 0, threshold=0.99)
    logits = torch.nn.functional.normalize(x) @ weight.T + bias
    best = logits.topk(2, dim=1).values
    gaps = (best[:, 0] - best[:, 1]).numpy()[rows]
    assert (np.diff(gaps) <= 1e-3).all()


def test_contact_sheet_and_page_show_the_images(crossed, tmp_path):
    from PIL import Image

    models, *_ = crossed
    write_features(models, "cog_l1", "test", LEVEL["cog_l1"], n=4, seed=1)
    root = tmp_path / "in21k"
    tiny.write_class_folders(root, classes=LEVEL["cog_l1"], n_images=4)
    (root / f"{LEVEL['cog_l1'][0]}/{LEVEL['cog_l1'][0]}_3.JPEG").write_bytes(b"no image")
    flags = ("--confidence 0 --imagenet_images_root", str(root))
    analyze(models, CROSS, *flags, "--sheet_images 12")
    folder = models / "my/net/cog_l1/analysis_cross_in1k"
    found = read(models, "cog_l1", "cross_in1k")
    assert found.details["unreadable_on_sheet"] == 1
    with Image.open(folder / "sheet.png") as sheet:
        assert sheet.width > 800 and sheet.height > 350
        assert len(sheet.crop((8, 40, 152, 170)).getcolors(1 << 16)) > 100
    page = (folder / "sheet.html").read_text()
    assert page.count("<img ") == 11 and page.count("cannot be read") == 1
    assert "http" not in page.replace("http-equiv", "") and page.count("data:image/jpeg;base64,") == 11
    analyze(models, CROSS, *flags, "--sheet_images 3 --overwrite")
    assert (folder / "sheet.html").read_text().count("<figure>") == 3


def test_same_concept_is_told_where_both_sets_have_it(models):
    """A classifier on its own data set: confident predictions name the true concept as often as they are right."""
    x, y = write_features(models, "cog_l1", "test", LEVEL["cog_l1"], n=30)
    weight, bias = write_run(models, "cog_l1", seed=1, n_classes=3)
    analyze(models, "--analysis cross --trained_on cog_l1 --dataset cog_l1 --confidence 0.8")
    (p,) = softmax(x, [(weight, bias)])
    rows = p.max(1) > 0.8
    expected = 100 * (p.argmax(1) == y.numpy())[rows].mean()
    assert read(models, "cog_l1", "cross_cog_l1").values["same_concept_percent"] == pytest.approx(expected)


def test_cross_by_folders_alone(crossed, tmp_path):
    models, x, _, weights = crossed
    output = tmp_path / "out"
    assert analyze_features.main([
        "--analysis", "cross", "--test_features_dir", str(models / "my/net/cog_l1/features_test"),
        "--classifier_dir", str(models / "my/net/in1k/eval_logreg/seed-37"), "--output_dir", str(output),
        "--trained_features_dir", str(models / "my/net/in1k/features_test"), "--device", "cpu", "--confidence", "0.5",
    ]) == 0  # fmt: skip
    found = analysis_records.read(output / "analysis_cross_other")
    assert found.values["confident_percent"] == pytest.approx(
        100 * (softmax(x, weights[1:])[0].max(1) > 0.5).mean()
    )
    with open(output / "analysis_cross_other/confident.csv", newline="") as handle:
        assert {row["predicted_wnid"] for row in csv.DictReader(handle)} <= set(SEEN)


def test_labels_that_were_renumbered_in_training_keep_their_names(models):
    """A run on features with labels 3, 7, 9 has outputs 0..2; its record says which is which."""
    write_features(models, "odd", "test", SEEN)
    folder = models / "my/net/odd/features_test"
    y = torch.tensor([3, 7, 9, 11]).repeat_interleave(5)
    tiny.write_features(folder, torch.randn(20, DIM), y)
    write_features(models, "cog_l1", "test", LEVEL["cog_l1"])
    write_run(models, "odd", seed=1, n_classes=3, record={"labels": [3, 9, 11]})
    analyze(models, "--analysis cross --trained_on odd --dataset cog_l1 --confidence 0")
    rows = table(models, "cog_l1", "cross_odd", "confident.csv")
    assert {row["predicted_wnid"] for row in rows} <= {SEEN[0], SEEN[2], SEEN[3]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"weight": torch.full((4, DIM), math.nan), "bias": torch.zeros(4)}, "diverged"),
        ({"weight": torch.zeros(4)}, "no linear layers"),
        ({"weight": torch.zeros(4, 2), "bias": torch.zeros(4)}, "takes features of 2 dimensions"),
        ({"weight": torch.zeros(9, DIM), "bias": torch.zeros(9)}, "4 and 9 classes"),
        (pickle.dumps(print), "refused to read"),
        (None, "has no model.pth"),
    ],
    ids=["diverged", "no layers", "dimensions", "classes", "harmful pickle", "missing"],
)
def test_cross_refuses_classifiers_that_do_not_fit(crossed, content, words):
    file = crossed[0] / "my/net/in1k/eval_logreg/seed-37/final-lr-1.0_wd-1e-06/model.pth"
    file.unlink()
    if isinstance(content, dict):
        torch.save({"model": content}, file)
    elif content is not None:
        file.write_bytes(content)
    assert_refused(crossed[0], CROSS, words)


def test_cross_refuses_test_features_that_do_not_fit(crossed):
    paths = crossed[0] / "my/net/cog_l1/features_test/image_paths.txt"
    whole = paths.read_text()
    paths.write_text("one\n")
    assert_refused(crossed[0], CROSS, "names 1 images")
    paths.write_text(whole)
    tiny.write_features(crossed[0] / "my/net/in1k/features_test", torch.zeros(4, 3), torch.arange(4))
    assert_refused(crossed[0], CROSS, "in1k/features_test/X_Y.pth have 3; both")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--dataset cog_l1", "needs --trained_on"),
        ("--dataset cog_l1 --trained_on cog_l2", "there are no classifiers"),
        ("--dataset cog_l1 --trained_on in1k --run_seeds 5", "no run of seed 5; it has 22, 37"),
        ("--dataset cog_l2 --trained_on in1k", "no test features"),
        ("--dataset cog_l1 --trained_on in1k --imagenet_images_root /nowhere", "/nowhere"),
    ],
)
def test_cross_refuses_flags_that_name_nothing(crossed, flags, words):
    assert_refused(crossed[0], f"--analysis cross {flags}", words)


def assert_refused(models: Path, flags: str, words: str) -> None:
    """Assert that an analysis ends with a message and writes nothing but that it failed."""

    def contents():
        entries = tiny.snapshot(models / "my/net").items()
        return {name: of for name, of in entries if not re.search(r"analysis_\w+$|failed\.json$", name)}

    before = contents()
    with pytest.raises(CogError) as error:
        analyze(models, flags)
    assert words in str(error.value) and error.value.exit_code == 2
    assert contents() == before
    assert not list(models.rglob("analysis_*/results.json"))


def test_a_run_that_cannot_be_read_is_left_out_with_a_warning(crossed, caplog):
    models, *_ = crossed
    (models / "my/net/in1k/eval_logreg/seed-22/results.json").write_text("{")
    analyze(models, CROSS)
    assert read(models, "cog_l1", "cross_in1k").seeds == [37]
    with pytest.raises(CogError, match="seed-22 cannot be used"):
        analyze(models, CROSS, "--run_seeds 22")


# --- names of classes


def test_names_come_from_images_levels_or_ids(tmp_path):
    levels = tiny.write_levels_file(tmp_path / "levels.pkl", [("n00000002", "n00000001")])
    labels = np.array([0, 1])
    assert concepts.class_names("x", n_classes=2, image_paths=["b/1", "a/2"], labels=labels) == ["b", "a"]
    assert concepts.class_names("cog_l1", n_classes=2, levels_file=levels) == ["n00000001", "n00000002"]
    assert concepts.class_names("cog_l1", n_classes=2) == ["class 0", "class 1"]
    assert concepts.class_names(constants.IN1K, n_classes=1000)[:2] == ["n01440764", "n01443537"]
    with pytest.raises(CogError, match="cog_l1 has 2 concepts, and the features have 3"):
        concepts.class_names("cog_l1", n_classes=3, levels_file=levels)
    with pytest.raises(CogError, match="cog_l2 has no such level"):
        concepts.class_names("cog_l2", n_classes=3, levels_file=levels)
    with pytest.raises(CogError, match="two classes, a and b"):
        concepts.class_names("x", n_classes=1, image_paths=["a/1", "b/2"], labels=np.array([0, 0]))


def test_words_fall_back_to_ids(tmp_path, monkeypatch):
    monkeypatch.setenv("COG_WORDNET_DIR", str(tmp_path))
    assert concepts.Words()("n02084071") == "n02084071"
    with pytest.raises(CogError):
        concepts.Words(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no column"),
        ("rank,wnid,names,similarity,level\n", "has no rows"),
        ("wnid,similarity\nn1,0.5\n", "no column level"),
        ("wnid,similarity,level\nn00000001,,L1\n", "random levels have no similarities"),
        ("wnid,similarity,level\nn00000001,high,L1\n", "expected an id and a number"),
        ("wnid,similarity,level\ndog,0.5,L1\n", "expected an id and a number"),
        ("wnid,similarity,level\nn00000001,nan,L1\n", "expected an id and a number"),
        ("wnid,similarity,level\nn00000001,inf,L1\n", "expected an id and a number"),
        (
            "wnid,similarity,level\nn00000001,0.5,L1\nn00000001,0.6,L2\n",
            "line 3: n00000001 has similarity 0.6 here",
        ),
    ],
)
def test_tables_of_similarities_that_cannot_be_read(tmp_path, content, words):
    path = tmp_path / "levels.csv"
    path.write_text(content)
    with pytest.raises(CogError, match=words):
        concepts.read_levels_csv(path)


# --- distance


def test_distance_equals_scipy(levels):
    from scipy import stats as scipy_stats

    models, table_, hits = levels
    analyze(
        models,
        f"--analysis distance --levels_csv {table_} --n_resamples 500 --datasets cog_l1 cog_l2 cog_levels",
    )
    accuracy = {dataset: 10 * np.mean(right, axis=0) for dataset, right in hits.items()}
    similarity = {"cog_l1": [0.9, 0.8, 0.8], "cog_l2": [0.5, 0.4, 0.1]}
    for dataset in LEVEL:
        found = read(models, dataset, "distance")
        expected = scipy_stats.spearmanr(similarity[dataset], accuracy[dataset]).statistic
        assert found.values["spearman"] == pytest.approx(expected)
        assert found.values["mean_accuracy"] == pytest.approx(accuracy[dataset].mean())
        for position, seed in enumerate(("22", "37")):
            expected = scipy_stats.spearmanr(similarity[dataset], hits[dataset][position]).statistic
            assert found.per_seed[seed]["spearman"] == pytest.approx(expected)
    whole = read(models, "cog_levels", "distance")
    x, y = (np.concatenate([values[d] for d in LEVEL]) for values in (similarity, accuracy))
    assert whole.values["spearman"] == pytest.approx(scipy_stats.spearmanr(x, y).statistic)
    assert whole.values["spearman_low"] <= whole.values["spearman"] <= whole.values["spearman_high"]
    assert whole.values["n_concepts"] == 6 and whole.model == "my_net" and whole.dataset == "cog_levels"
    for end in ("", "_low", "_high"):
        assert (
            whole.values[f"spearman_cog_l2{end}"]
            == read(models, "cog_l2", "distance").values[f"spearman{end}"]
        )
    rows = table(models, "cog_levels", "distance", "concepts.csv")
    assert [float(row["similarity"]) for row in rows] == sorted(x, reverse=True)
    assert {row["wnid"]: float(row["accuracy"]) for row in rows} == dict(
        zip([*LEVEL["cog_l1"], *LEVEL["cog_l2"]], y, strict=True)
    )
    assert float(rows[0]["accuracy_seed_22"]) == 100.0 and float(rows[0]["accuracy_seed_37"]) == 90.0
    assert any(one.analysis == "distance" for one in find.find_all(models).analyses)


def test_mean_accuracies_have_the_intervals_of_tables(levels):
    """Over concepts and seeds; at the ends a tenth of six concepts is a single one, but for equal similarities."""
    models, table_, hits = levels
    analyze(models, f"--analysis distance --levels_csv {table_} --datasets cog_l1 cog_levels")
    right = np.concatenate([hits["cog_l1"], hits["cog_l2"]], axis=1)
    found = read(models, "cog_levels", "distance").values
    expected = uncertainty.accuracy([ConceptCounts(array("I", row.tolist()), 10) for row in right])
    assert found["mean_accuracy"] == pytest.approx(expected.mean)
    ends = [found[f"mean_accuracy_{end}"] for end in ("low", "high")]
    assert ends == pytest.approx([expected.low, expected.high])
    assert found["nearest_accuracy_low"] is None and found["farthest_accuracy_high"] is None
    farthest = read(models, "cog_l1", "distance").values  # two of three concepts share their similarity
    of_two = [ConceptCounts(array("I", row[1:]), 10) for row in hits["cog_l1"]]
    expected = uncertainty.accuracy(of_two)
    assert farthest["farthest_accuracy"] == pytest.approx(expected.mean)
    assert farthest["farthest_accuracy_low"] == pytest.approx(expected.low)


def test_intervals_of_levels_with_different_seeds_are_over_concepts():
    accuracy = np.array([[50.0, 60, 70, 80]])
    points = accuracy_vs_similarity.ConceptPoints(
        ["a"] * 4, list("wxyz"), np.arange(4.0), accuracy, accuracy[0] + 1, np.zeros(4), np.full(4, 50), [22]
    )
    inside = np.array([True, True, True, False])
    found = accuracy_vs_similarity.ends_of_mean(points, inside, "mean")
    expected = uncertainty.mean_accuracy(points.mean[None, :3], 150)
    assert found == {"mean_low": expected.low, "mean_high": expected.high}


def test_bins_never_divide_equal_similarities():
    similarity = np.array([0.9, 0.5, 0.5, 0.5, 0.5, 0.1, 0.1, 0.0])
    accuracy = np.array([80.0, 70, 60, 50, 40, 30, 20, 10])
    bins = accuracy_vs_similarity.binned(similarity, accuracy, n_bins=4)
    assert sum(one["n"] for one in bins) == 8
    assert [one["n"] for one in bins] == [5, 2, 1]
    assert bins[0]["accuracy"] == 60.0 and bins[2] == {
        "n": 1, "similarity_low": 0.0, "similarity_high": 0.0, "similarity": 0.0, "accuracy": 10.0,
        "standard_error": 0.0,
    }  # fmt: skip
    assert bins[0]["standard_error"] == pytest.approx(np.std(accuracy[:5], ddof=1) / math.sqrt(5))
    assert accuracy_vs_similarity.binned(np.ones(3), accuracy[:3], n_bins=10)[0]["n"] == 3


def test_averages_over_ties_by_brute_force():
    rng = np.random.default_rng(3)
    similarity, accuracy = rng.integers(0, 7, 40) / 10, rng.random(40)
    found = accuracy_vs_similarity.averaged_over_ties(similarity, accuracy)
    assert [row["similarity"] for row in found] == pytest.approx(
        sorted(set(similarity.tolist()), reverse=True)
    )
    for row in found:
        same = accuracy[np.isclose(similarity, row["similarity"])]
        assert row["n"] == len(same) and row["accuracy"] == pytest.approx(same.mean())
        assert row["standard_error"] == pytest.approx(
            same.std(ddof=1) / math.sqrt(len(same)) if len(same) > 1 else 0
        )


def test_distance_counts_ties_and_warns(levels, caplog):
    models, table_, _ = levels
    analyze(models, f"--analysis distance --levels_csv {table_} --datasets cog_l1 cog_levels")
    assert "cog_l1: 2 of 3 concepts share the similarity 0.8000 (2 different values)" in caplog.text
    found = read(models, "cog_levels", "distance")
    assert found.values["n_similarities"] == 5
    assert found.values["largest_tie_percent"] == pytest.approx(200 / 6)
    assert [(row["n_similarities"], row["largest_tie"]) for row in found.details["levels"]] == [
        (2, 2),
        (3, 1),
    ]
    rows = table(models, "cog_levels", "distance", "similarities.csv")
    assert [(row["n"], float(row["similarity"])) for row in rows] == [
        ("1", 0.9), ("2", 0.8), ("1", 0.5), ("1", 0.4), ("1", 0.1),
    ]  # fmt: skip
    assert float(rows[1]["accuracy"]) == pytest.approx(10 * np.mean([8, 9, 7, 6]))


def test_constant_similarity_and_wrong_everywhere_have_no_correlation(levels, tmp_path, capsys):
    models, _, _ = levels
    flat = write_levels_csv(tmp_path / "flat.csv", {wnid: 0.5 for wnids in LEVEL.values() for wnid in wnids})
    analyze(models, f"--analysis distance --levels_csv {flat} --dataset cog_l1")
    found = read(models, "cog_l1", "distance")
    assert found.values["spearman"] is None and found.values["spearman_low"] is None
    assert "similarities of all 3 concepts are equal" in capsys.readouterr().out
    write_run(models, "cog_l2", seed=1, hits=[0, 0, 0], folder="eval_wrong")
    falling = write_levels_csv(tmp_path / "f.csv", dict(zip(LEVEL["cog_l2"], [0.3, 0.2, 0.1], strict=True)))
    analyze(models, f"--analysis distance --levels_csv {falling} --dataset cog_l2 EVAL.NAME wrong")
    found = read(models, "cog_l2", "distance_wrong")
    assert found.values["spearman"] is None and found.values["mean_accuracy"] == 0.0
    assert "accuracies of all 3 concepts are equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--dataset cog_l1", "needs --levels_csv"),
        ("--dataset in1k --levels_csv {table}", "are the seen ones"),
        ("--dataset cog_l3 --levels_csv {table}", "there are no classifiers"),
        ("--dataset cog_l1 --levels_csv /nowhere.csv", "/nowhere.csv"),
        ("--dataset cog_levels --levels_csv {table} EVAL.NAME nothing", "has those of 0"),
        ("--dataset cog_l2 --levels_csv {part}", "no row for 3 concepts of cog_l2"),
    ],
)
def test_distance_refuses_flags_that_do_not_fit(levels, tmp_path, flags, words):
    models, table_, _ = levels
    part = write_levels_csv(tmp_path / "part.csv", dict.fromkeys(LEVEL["cog_l1"], 0.5))
    assert_refused(models, f"--analysis distance {flags.format(table=table_, part=part)}", words)


@pytest.mark.parametrize("spoiled", ["fewer images", "other labels", "no features", "no predicted classes"])
def test_distance_refuses_predictions_of_other_images(levels, spoiled):
    models, table_, _ = levels
    folder = models / "my/net/cog_l1/features_test"
    if spoiled == "fewer images":
        write_features(models, "cog_l1", "test", LEVEL["cog_l1"], n=9)
        words = "predicted 30 test images"
    elif spoiled == "other labels":
        tiny.write_features(folder, torch.randn(30, DIM), torch.arange(3).repeat_interleave(10).flip(0))
        (folder / "image_paths.txt").unlink()
        words = "was tested on other features"
    elif spoiled == "no features":
        (folder / "X_Y.pth").unlink()
        words = "no test features"
    else:
        path = models / "my/net/cog_l1/eval_logreg/seed-22/final-lr-1.0_wd-1e-06/preds.pkl"
        path.write_bytes(pickle.dumps([np.array([0.5, 0.1])]))
        words = "holds no list of predicted classes"
    assert_refused(models, f"--analysis distance --levels_csv {table_} --dataset cog_l1", words)


def test_runs_of_the_original_toolkit_count(levels):
    """No results.json, all epochs in preds.pkl, the other spelling of the seed folder."""
    models, table_, _ = levels
    before = models / "my/net/cog_l1/eval_logreg"
    for seed in (22, 37):
        run = before / f"seed-{seed}"
        (run / "results.json").unlink()
        path = run / "final-lr-1.0_wd-1e-06/preds.pkl"
        (last,) = pickle.loads(path.read_bytes())
        path.write_bytes(pickle.dumps([np.zeros_like(last), last]))
        run.rename(before / f"seed_{seed}")
    analyze(models, f"--analysis distance --levels_csv {table_} --dataset cog_l1")
    assert read(models, "cog_l1", "distance").values["mean_accuracy"] == pytest.approx(
        10 * np.mean([10, 8, 7, 9, 9, 6])
    )


# --- winners and losers


WINNERS = "--analysis winners --against other_net --dataset cog_l1"


@pytest.fixture
def rivals(models):
    """my_net against other_net on three concepts of 10 images, two seeds in common and one more of the other."""
    wnids = LEVEL["cog_l1"]
    for model in ("my/net", "other/net"):
        write_features(models, "cog_l1", "test", wnids, n=10, model=model)
    own = {22: [10, 5, 2], 37: [9, 5, 3]}
    other = {22: [1, 5, 6], 37: [2, 5, 5], 45: [2, 5, 7]}
    for model, runs in (("my/net", own), ("other/net", other)):
        for seed, hits in runs.items():
            write_run(models, "cog_l1", seed=seed, hits=hits, model=model)
    return models, own, other


def test_winners_equal_the_definition(rivals):
    models, own, other = rivals
    analyze(models, WINNERS)
    found = read(models, "cog_l1", "winners_other_net")
    a, b = (10 * np.array(list(runs.values()), float) for runs in (own, other))
    difference = a.mean(0) - b.mean(0)
    assert found.values["mean_difference"] == pytest.approx(difference.mean())
    assert (found.values["n_better"], found.values["n_worse"]) == (1, 1)
    assert found.seeds == [22, 37] and found.details["seeds_of_against"] == [22, 37, 45]
    rows = table(models, "cog_l1", "winners_other_net", "concepts.csv")
    assert [row["wnid"] for row in rows] == [LEVEL["cog_l1"][k] for k in (0, 1, 2)]
    assert [float(row["difference"]) for row in rows] == pytest.approx(difference[[0, 1, 2]], abs=1e-3)
    assert float(rows[0]["std_over_seeds"]) == pytest.approx(np.std([90.0, 70.0], ddof=1), abs=1e-3)
    # Images 1..9 (or 2..9) of the first concept are right under one model only, over seeds 10 - 2/3 of them.
    assert (rows[0]["images_ahead"], rows[0]["images_behind"]) == ("9", "0")
    assert float(rows[0]["p_sign_test"]) == pytest.approx(2 / 2**9, rel=1e-4)
    assert (rows[1]["images_ahead"], rows[1]["images_behind"], rows[1]["p_sign_test"]) == ("0", "0", "1")
    assert found.details["winners"][0]["wnid"] == LEVEL["cog_l1"][0]
    assert found.details["losers"][0]["wnid"] == LEVEL["cog_l1"][2]
    assert found.values["n_surely_better"] == 1 and found.values["n_surely_worse"] == 0
    assert found.per_seed["22"]["mean_difference"] == pytest.approx((a[0] - b[0]).mean())


def test_both_intervals_of_the_mean_difference(rivals):
    models, own, other = rivals
    analyze(models, WINNERS)
    apart = read(models, "cog_l1", "winners_other_net").values
    assert apart["mean_difference_low"] is None, "not the same seeds"
    analyze(models, WINNERS, "--run_seeds 22 37 --overwrite")
    found = read(models, "cog_l1", "winners_other_net").values
    a, b = ([ConceptCounts(array("I", runs[seed]), 10) for seed in (22, 37)] for runs in (own, other))
    expected = uncertainty.difference(a, b)
    for name in ("mean_difference", "mean_difference_of_these"):
        assert found[name] == pytest.approx(expected.mean)
    assert (found["mean_difference_low"], found["mean_difference_high"]) == pytest.approx(
        (expected.low, expected.high)
    )
    # Three concepts that differ by much: their images alone vary far less.
    assert expected.low < found["mean_difference_of_these_low"] < expected.mean
    assert expected.mean < found["mean_difference_of_these_high"] < expected.high


def test_one_seed_gives_mcnemars_test_and_no_deviation(rivals):
    from scipy import stats as scipy_stats

    models, *_ = rivals
    analyze(models, WINNERS, "--run_seeds 22")
    rows = {row["wnid"]: row for row in table(models, "cog_l1", "winners_other_net", "concepts.csv")}
    last = rows[LEVEL["cog_l1"][2]]
    assert last["std_over_seeds"] == "" and (last["images_ahead"], last["images_behind"]) == ("0", "4")
    assert float(last["p_sign_test"]) == pytest.approx(scipy_stats.binomtest(0, 4).pvalue)


def test_swapping_the_models_swaps_the_signs():
    labels = np.repeat(np.arange(4), 6)
    rng = np.random.default_rng(0)
    one, other = (
        accuracy_vs_similarity.Tested("x", [1, 2], list("abcd"), labels, rng.random((2, 24)) < share, None)
        for share in (0.8, 0.4)
    )
    there, back = model_comparison.compare(one, other), model_comparison.compare(other, one)
    np.testing.assert_allclose(there.difference, -back.difference)
    np.testing.assert_array_equal(there.p, back.p)
    np.testing.assert_array_equal(there.n_ahead, back.n_behind)
    same = model_comparison.compare(one, one)
    assert not same.difference.any() and (same.p == 1).all() and (same.std == 0).all()


def test_classes_without_test_images_are_left_out():
    labels = np.array([0, 0, 2, 2])
    correct = np.array([[True, True, False, True]])
    one = accuracy_vs_similarity.Tested("x", [1], list("abc"), labels, correct, None)
    assert np.isnan(one.accuracies()[0, 1]) and one.n_test().tolist() == [2, 0, 2]
    found = model_comparison.compare(one, one)
    assert np.isnan(found.rate[1]) and found.rate[0] == 1.0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("", "needs --against"),
        ("--against my_net", "is --model itself"),
        ("--against third_net", "there are no classifiers"),
        ("--against nonsense", "--against 'nonsense' is not a model name"),
        ("--against other_net --run_seeds 45", "no run of seed 45"),
    ],
)
def test_winners_refuse_flags_that_do_not_fit(rivals, flags, words):
    assert_refused(rivals[0], f"--analysis winners --dataset cog_l1 {flags}", words)


def test_winners_refuse_models_tested_on_other_images(rivals):
    path = rivals[0] / "other/net/cog_l1/features_test/image_paths.txt"
    path.write_text(path.read_text().replace("_0.JPEG", "_77.JPEG"))
    assert_refused(rivals[0], WINNERS, "the images differ (30 and 30 images of 3 and 3 concepts)")
    path.unlink()
    words = "class names of cog_l1 are not known for --against: its test features have no image_paths.txt"
    assert_refused(rivals[0], WINNERS, words)


def test_results_are_refused_when_inputs_changed(rivals):
    models, *_ = rivals
    analyze(models, WINNERS)
    folder = models / "my/net/cog_l1/analysis_winners_other_net"
    before = tiny.snapshot(folder)
    labels, predicted = predictions_with([3, 3, 3])
    path = models / "other/net/cog_l1/eval_logreg/seed-45/final-lr-1.0_wd-1e-06"
    (path / "preds.pkl").write_bytes(pickle.dumps([predicted]))
    (path / "logs.pkl").write_bytes(pickle.dumps(make_logs(100 * float((predicted == labels).mean()), 100.0)))
    with pytest.raises(CogError, match=r"predictions_against\.45.*--overwrite"):
        analyze(models, WINNERS)
    assert tiny.snapshot(folder) == before
    analyze(models, WINNERS, "--overwrite")
    assert tiny.snapshot(folder) != before


@pytest.mark.parametrize("scale", [1e30, 1e-36])
def test_a_classifier_normalizes_rows_of_any_length(scale):
    one = saved_runs.SavedClassifier(TrainedClassifier([(torch.eye(3), torch.zeros(3))]), normalize=True)
    logits = one.logits(torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]]) * scale)
    torch.testing.assert_close(logits, torch.tensor([[0.6, 0.8, 0.0], [0.0, 0.0, 0.0]]))


def logreg_of_in1k(models: Path) -> list[saved_runs.SavedClassifier]:
    runs = saved_runs.runs_in(models / "my/net/in1k/eval_logreg")
    return [saved_runs.load_classifier(run, normalize=True) for run in runs]


def test_features_stay_as_they_are(crossed):
    """Other analyses of the same process use the same tensors."""
    models, x, _, _ = crossed
    loaded = feature_files.load(models / "my/net/cog_l1/features_test")
    before = loaded.x.clone()
    confidences.apply(loaded, logreg_of_in1k(models), device=torch.device("cpu"))
    assert torch.equal(loaded.x, before) and torch.equal(x, before)


def test_mapped_features_are_divided_by_their_norms(crossed):
    models, x, _, _ = crossed
    found = [dataclasses.replace(one, normalize=False) for one in logreg_of_in1k(models)]
    norms = torch.arange(1.0, len(x) + 1)[:, None]
    one, other = (
        confidences.apply(FeatureSet(rows, torch.zeros(len(x)), "x", by), found, device=torch.device("cpu"))
        for rows, by in ((x, None), (x * norms, norms))
    )
    np.testing.assert_allclose(one.confidence, other.confidence, atol=1e-5)
