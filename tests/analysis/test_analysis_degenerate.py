"""Degenerate features: every case ends in one clear line, or in a documented result."""

from __future__ import annotations

import json
import logging
import math
import os
from pathlib import Path

import pytest
import tiny
import torch

from cog.commands.analyze_features import main
from cog.errors import CogError
from cog.results import analysis_records
from cog.results.analysis_records import AnalysisRecord

LABEL_FREE = ("kmeans", "alignment", "knn", "ncm")


def analyze(tmp_path: Path, train, test, *more: str, analysis: tuple[str, ...] = LABEL_FREE):
    """Analyse ``(x, y)`` pairs; returns the records by name."""
    flags, output = [], tmp_path / "out"
    for split, (x, y) in (("train", train), ("test", test)):
        flags += [f"--{split}_features_dir", str(tiny.write_features(tmp_path / f"features_{split}", x, y))]
    flags += ["--output_dir", str(output), "--device", "cpu", "--analysis", *analysis]
    main([*flags, "ANALYSIS.KMEANS_SEEDS", "[1, 2]", *more])
    found = {}
    for name in analysis:
        record = analysis_records.read(output / f"analysis_{name}")
        assert isinstance(record, AnalysisRecord), record
        text = (output / f"analysis_{name}/results.json").read_text()
        assert "NaN" not in text and "Infinity" not in text
        assert json.loads(text)["status"] == "complete"
        found[name] = record
    return found


@pytest.fixture
def clouds():
    """Thirty rows of three classes, X and Y."""
    return tiny.make_xy()


def with_value(value):
    """Return a change of one number of the features."""
    return lambda x, y: (x.index_put((torch.tensor(4), torch.tensor(2)), torch.tensor(value)), y)


NOT_FINITE = r"1 of 30 rows of X hold NaN or infinite values \(rows 4\)"
OTHER_DIMENSIONS = "training features have 8 dimensions, test features 7"


@pytest.mark.parametrize(
    ("split", "change", "message"),
    [
        ("train", with_value(math.nan), NOT_FINITE),
        ("train", with_value(math.inf), NOT_FINITE),
        ("train", lambda x, y: (x[:0], y[:0]), r"X has shape \(0, 8\): there is nothing in it"),
        ("test", lambda x, y: (x[:, :7], y), OTHER_DIMENSIONS),
    ],
    ids=["NaN", "infinite", "no rows", "other dimensions"],
)
@pytest.mark.parametrize("name", ["kmeans", "knn", "ncm"])
def test_features_that_are_refused(tmp_path, clouds, name, split, change, message):
    features = {"train": clouds, "test": clouds} | {split: change(*clouds)}
    with pytest.raises(CogError, match=message):
        analyze(tmp_path, features["train"], features["test"], analysis=(name,))


def test_more_clusters_than_images_are_refused(tmp_path, clouds):
    with pytest.raises(CogError, match="31 clusters need at least as many training images, found 30; lower"):
        analyze(tmp_path, clouds, clouds, "ANALYSIS.KMEANS_K", "31", analysis=("kmeans",))
    assert "failed.json" in os.listdir(tmp_path / "out/.analysis_kmeans.work")
    assert not (tmp_path / "out/analysis_kmeans").exists()


def test_a_class_with_one_test_image_makes_no_positive_pair(tmp_path, clouds):
    x, y = clouds
    found = analyze(tmp_path, (x, y), (x[:11], y[:11]))["alignment"]
    unit = torch.nn.functional.normalize(x[:10].double())
    assert found.values["alignment"] == pytest.approx(float(torch.pdist(unit).square().mean()))


def test_a_single_test_image_has_neither_alignment_nor_uniformity(tmp_path, clouds):
    x, y = clouds
    found = analyze(tmp_path, (x, y), (x[:1], y[:1]))
    assert set(found["alignment"].values.values()) == {None}
    assert found["ncm"].values["top1_cosine"] == 100.0


def test_all_features_are_equal(tmp_path):
    x, y = torch.ones(12, 4), torch.arange(12) % 3
    found = analyze(tmp_path, (x, y), (x, y), "ANALYSIS.KNN_K", "[1, 2, 12]")
    assert found["kmeans"].values["inertia"] == pytest.approx(0.0, abs=1e-20)
    assert found["kmeans"].values["purity_v1"] == 1.0  # every class lies in one cluster: the same one
    assert found["kmeans"].values["purity"] == pytest.approx(1 / 3)
    assert found["kmeans"].values["ami"] == found["kmeans"].values["ari"] == 0.0
    assert found["alignment"].values["alignment"] == pytest.approx(0.0, abs=1e-12)
    assert found["alignment"].values["uniformity"] == pytest.approx(0.0, abs=1e-12)
    assert found["alignment"].values["alignment_by_uniformity"] in (None, pytest.approx(0.0))
    # Every image is as near: one class is predicted for all.
    assert found["knn"].values["top1_k12_weighted"] == pytest.approx(100 / 3)
    assert found["ncm"].values["top1_cosine"] == pytest.approx(100 / 3)


def test_zero_vectors_stay_zero(tmp_path, clouds):
    x, y = clouds
    x[3] = 0.0
    x[17] = 0.0
    found = analyze(tmp_path, (x, y), (x, y), "ANALYSIS.KNN_K", "[1, 30]")
    assert all(math.isfinite(value) for record in found.values() for value in record.values.values())
    # a zero vector is at distance 1 from any unit vector
    assert found["alignment"].values["alignment"] < 2.0


def test_one_class(tmp_path):
    x, _ = tiny.make_xy()
    y = torch.zeros(30, dtype=torch.int64)
    found = analyze(tmp_path, (x, y), (x, y), "ANALYSIS.KNN_K", "[1, 5]")
    assert {found["kmeans"].values[name] for name in ("purity", "purity_v1", "ami", "nmi", "ari")} == {1.0}
    assert found["knn"].values["top1_k5_weighted"] == found["ncm"].values["top5_cosine"] == 100.0


def test_test_classes_without_training_images_count_as_errors(tmp_path, clouds):
    x, y = clouds
    found = analyze(tmp_path, (x[:20], y[:20]), (x, y), "ANALYSIS.KNN_K", "[1, 5]")
    for name, value in (found["knn"].values | found["ncm"].values).items():
        assert value <= 100 * 2 / 3 + 1e-9, name
    assert found["kmeans"].details["k"] == 2 and found["kmeans"].values["purity"] < 1.0


def test_labels_that_do_not_begin_at_zero(tmp_path, clouds):
    x, y = clouds
    plain = analyze(tmp_path / "plain", (x, y), (x, y), "ANALYSIS.KNN_K", "[1, 5]")
    shifted = analyze(tmp_path / "shifted", (x, 10 * y - 7), (x, 10 * y - 7), "ANALYSIS.KNN_K", "[1, 5]")
    for name in LABEL_FREE:
        assert plain[name].values == shifted[name].values, name


def test_more_neighbors_than_training_images_are_undefined(tmp_path, clouds, caplog):
    caplog.set_level(logging.WARNING, "cog")
    x, y = clouds
    found = analyze(tmp_path, (x, y), (x, y), analysis=("knn",))["knn"]
    assert "k above the 30 training images is undefined" in caplog.text
    assert found.values["top1_k20_weighted"] is not None
    assert {v for name, v in found.values.items() if "_k100_" in name or "_k200_" in name} == {None}
    found = analyze(tmp_path / "b", (x[:1], y[:1]), (x, y), "ANALYSIS.KNN_K", "[5]", analysis=("knn",))["knn"]
    assert set(found.values.values()) == {None} and "k above the 1 training images" in caplog.text
