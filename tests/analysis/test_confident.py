"""confident: classifiers of one data set on the test images of another."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from analyzed_models import DIM, LEVEL, analyze, read, table, write_features, write_run

from cog import constants
from cog.analysis import base, classifiers, confident
from cog.config import get_cfg
from cog.errors import CogError
from cog.features import feature_files
from cog.paths import ModelDir

SEEN = ("n02084071", "n02121620", "n02374451", "n04037443")

#: The classifiers of in1k on the test images of cog_l1.
CONFIDENT = "--analysis confident --trained_on in1k --dataset cog_l1"


@pytest.fixture(autouse=True)
def _no_wordnet(monkeypatch, tmp_path):
    """Reading WordNet takes longer than everything else here; ids stand for names."""
    monkeypatch.setenv("COG_WORDNET_DIR", str(tmp_path / "no_wordnet"))


@pytest.fixture
def models(tmp_path) -> Path:
    root = tmp_path / "models"
    root.mkdir()
    return root


@pytest.fixture
def crossed(models):
    """Classifiers of in1k (two seeds) and test features of cog_l1 without runs."""
    write_features(models, "in1k", "test", SEEN)
    x, y = write_features(models, "cog_l1", "test", LEVEL["cog_l1"], n=40, seed=1)
    weights = [write_run(models, "in1k", seed=seed, n_classes=4, scale=12.0) for seed in (22, 37)]
    return models, x, y, weights


def softmax(x, weights):
    """The definition, in float64."""
    x = x.double() / x.double().norm(dim=1, keepdim=True)
    return [torch.softmax(x @ weight.double().T + bias.double(), dim=1).numpy() for weight, bias in weights]


def test_confident_equals_the_matrix_product(crossed):
    models, x, _, weights = crossed
    analyze(models, CONFIDENT)
    found = read(models, "cog_l1", "confident_in1k")
    probabilities = softmax(x, weights)
    shares = [100 * (p.max(1) > 0.99).mean() for p in probabilities]
    assert all(0 < share < 100 for share in shares) and found.seeds == [22, 37]
    assert [found.per_seed[seed]["confident_percent"] for seed in ("22", "37")] == pytest.approx(shares)
    assert found.values == {"confident_percent": pytest.approx(np.mean(shares))}
    rows = table(models, "cog_l1", "confident_in1k", "confident.csv")
    highest = np.max([p.max(1) for p in probabilities], axis=0)
    best = np.argmax([p.max(1) for p in probabilities], axis=0)
    expected = sorted(np.flatnonzero(highest > 0.99), key=lambda row: -highest[row])
    wnids = [LEVEL["cog_l1"][row // 40] for row in expected]
    assert [row["wnid"] for row in rows] == wnids
    images = [f"{wnid}/{wnid}_{row % 40}.JPEG" for wnid, row in zip(wnids, expected, strict=True)]
    assert [row["image"] for row in rows] == images
    predicted = [SEEN[probabilities[best[row]][row].argmax()] for row in expected]
    assert [row["predicted_wnid"] for row in rows] == predicted
    assert [int(row["seed"]) for row in rows] == [(22, 37)[best[row]] for row in expected]
    np.testing.assert_allclose([float(row["confidence"]) for row in rows], highest[expected], atol=1e-6)
    n_seeds = [sum(p[row].max() > 0.99 for p in probabilities) for row in expected]
    assert [int(row["n_seeds"]) for row in rows] == n_seeds and set(n_seeds) == {1, 2}


def test_confident_respects_normalization_and_hidden_layers(models):
    """What a run recorded about its input decides, and for runs that recorded nothing the configuration."""
    write_features(models, "in1k", "test", SEEN)
    x, _ = write_features(models, "cog_l1", "test", LEVEL["cog_l1"], n=40, seed=1)
    generator = torch.Generator().manual_seed(5)
    shapes = {"0.weight": (7, DIM), "0.bias": (7,), "2.weight": (4, 7), "2.bias": (4,)}
    layers = {name: 2 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    recorded = {"configuration": {"CLF.NORM_FTS": False, "CLF.TYPE": "mlp"}}
    options = {"seed": 1, "n_classes": 4}
    write_run(models, "in1k", **options, state=layers, folder="eval_mlp", record=recorded)
    weight, bias = write_run(models, "in1k", **options, folder="eval_raw", record={"configuration": None})
    hidden = torch.relu(x @ layers["0.weight"].T + layers["0.bias"])
    expected = {
        "confident_in1k_mlp": ("CLF.TYPE mlp", hidden @ layers["2.weight"].T + layers["2.bias"]),
        "confident_in1k_raw": ("EVAL.NAME raw CLF.NORM_FTS False", x @ weight.T + bias),
    }
    for name, (flags, logits) in expected.items():
        analyze(models, CONFIDENT, flags)
        confident = torch.softmax(logits.double(), dim=1).max(1).values > 0.99
        assert 0 < confident.sum() < 120
        share = read(models, "cog_l1", name).values["confident_percent"]
        assert share == pytest.approx(100 * float(confident.double().mean()))


def test_confidences_that_round_to_one_are_still_ordered(models):
    write_features(models, "in1k", "test", SEEN)
    x, _ = write_features(models, "cog_l1", "test", LEVEL["cog_l1"], n=20, seed=1)
    weight, bias = write_run(models, "in1k", seed=1, n_classes=4, scale=300.0)
    data = base.Data(None, None, None, {}, get_cfg(), {}, torch.device("cpu"))
    [run] = classifiers.find_runs(ModelDir(models, "my_net"), "in1k", data.cfg)
    before = x.clone()
    _, p, log_odds = confident.predict(data, x, classifiers.load_classifier(run, normalize=True))
    assert torch.equal(x, before), "other analyses of the same process use the same tensors"
    assert (p == 1.0).sum() > 10
    logits = torch.nn.functional.normalize(x) @ weight.T + bias
    best = logits.topk(2, dim=1).values
    gaps = (best[:, 0] - best[:, 1]).numpy()[np.argsort(-log_odds)]
    assert (np.diff(gaps) <= 1e-3).all()


def test_the_picture_shows_the_first_images(crossed, tmp_path, caplog):
    from PIL import Image

    models, *_ = crossed
    root = tmp_path / "in21k"
    tiny.write_class_folders(root, classes=LEVEL["cog_l1"], n_images=40)
    analyze(models, CONFIDENT)
    folder = models / "my/net/cog_l1/analysis_confident_in1k"
    assert not (folder / "confident.png").exists()  # features.json does not say where the images are
    first = table(models, "cog_l1", "confident_in1k", "confident.csv")[0]["image"]
    (root / first).write_bytes(b"no image")
    (models / "my/net/cog_l1/features_test/features.json").write_text(json.dumps({"images_root": str(root)}))
    analyze(models, CONFIDENT, "--overwrite")
    assert "1 of " in caplog.text and "images cannot be read" in caplog.text
    with Image.open(folder / "confident.png") as picture:
        assert picture.width > 800 and picture.height > 200 and len(picture.getcolors(1 << 20)) > 100


def test_labels_that_were_renumbered_in_training_keep_their_names(models):
    """A run on features with labels 3, 7, 9 has outputs 0..2; its record says which is which."""
    write_features(models, "odd", "test", SEEN)
    folder = models / "my/net/odd/features_test"
    y = torch.tensor([3, 7, 9, 11]).repeat_interleave(5)
    tiny.write_features(folder, torch.randn(20, DIM), y)
    write_features(models, "cog_l1", "test", LEVEL["cog_l1"])
    write_run(models, "odd", seed=1, n_classes=3, scale=30.0, record={"labels": [3, 9, 11]})
    analyze(models, "--analysis confident --trained_on odd --dataset cog_l1")
    rows = table(models, "cog_l1", "confident_odd", "confident.csv")
    assert rows and {row["predicted_wnid"] for row in rows} <= {SEEN[0], SEEN[2], SEEN[3]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"weight": torch.full((4, DIM), math.nan), "bias": torch.zeros(4)}, "diverged"),
        ({"weight": torch.zeros(4)}, "no linear layers"),
        ({"weight": torch.zeros(4, 2), "bias": torch.zeros(4)}, "takes features of 2 dimensions"),
        (pickle.dumps(print), "refused to read"),
        (None, "there is no"),
    ],
    ids=["diverged", "no layers", "dimensions", "harmful pickle", "missing"],
)
def test_confident_refuses_classifiers_that_do_not_fit(crossed, content, words):
    file = crossed[0] / "my/net/in1k/eval_logreg/seed-37/final-lr-1.0_wd-1e-06/model.pth"
    file.unlink()
    if isinstance(content, dict):
        torch.save({"model": content}, file)
    elif content is not None:
        file.write_bytes(content)
    assert_refused(crossed[0], CONFIDENT, words)


def test_confident_refuses_a_list_of_other_images(crossed):
    (crossed[0] / "my/net/cog_l1/features_test/image_paths.txt").write_text("one\n")
    assert_refused(crossed[0], CONFIDENT, "names 1 images")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--dataset cog_l1", "needs --trained_on"),
        ("--dataset cog_l1 --trained_on cog_l2", "there are no classifiers"),
        ("--dataset cog_l2 --trained_on in1k", "no test features"),
    ],
)
def test_confident_refuses_flags_that_name_nothing(crossed, flags, words):
    assert_refused(crossed[0], f"--analysis confident {flags}", words)


def assert_refused(models: Path, flags: str, words: str) -> None:
    """Assert that an analysis ends with a message and writes no result."""
    with pytest.raises(CogError) as error:
        analyze(models, flags)
    assert words in str(error.value) and error.value.exit_code == 2
    assert not list(models.rglob("analysis_*/results.json"))


def test_classifiers_of_another_network_are_refused(crossed):
    """What is known of it: the checkpoint of their features, and that of the test features."""
    models, *_ = crossed
    record = models / "my/net/in1k/eval_logreg/seed-22/results.json"
    data = json.loads(record.read_text())
    data["identity"] = {"train_features": {"model": "my_net", "checkpoint_sha256": "a" * 64}}
    record.write_text(json.dumps(data))

    def describe(split, checkpoint):
        folder = models / f"my/net/cog_l1/features_{split}"
        features = feature_files.open_file(folder)
        identity = {"model": "my_net", "checkpoint_sha256": checkpoint * 64}
        described = {"identity": identity, "rows_sha256": feature_files.rows_digest(features.x, features.y)}
        (folder / "features.json").write_text(json.dumps(described))

    describe("test", "a")
    analyze(models, CONFIDENT)
    describe("test", "b")
    with pytest.raises(CogError, match=r"made differently .*cog_l1 \(checkpoint_sha256: a+ -> b+\)"):
        analyze(models, CONFIDENT)
    write_features(models, "cog_l1", "train", LEVEL["cog_l1"], n=40, seed=2)
    describe("train", "a")
    with pytest.raises(CogError, match=r"features .* were made differently \(checkpoint_sha256: a+ -> b+\)"):
        analyze(models, "--analysis knn --dataset cog_l1")


def test_names_come_from_the_folders_of_images_or_from_the_ids_of_in1k(models):
    write_features(models, "own", "test", ("b", "a"), n=1)
    file = models / "my/net/own/features_test/X_Y.pth"
    assert classifiers.class_names(file, "own", 3) == ["b", "a", "class 2"]
    assert classifiers.class_names(None, "cog_l1", 2) == ["class 0", "class 1"]
    assert classifiers.class_names(None, constants.IN1K, 1000)[:2] == ["n01440764", "n01443537"]


@pytest.mark.parametrize("scale", [1e30, 1e-36])
def test_a_classifier_normalizes_rows_of_any_length(scale):
    logits = classifiers.SavedClassifier([(torch.eye(3), torch.zeros(3))]).logits(
        torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]]) * scale
    )
    torch.testing.assert_close(logits, torch.tensor([[0.6, 0.8, 0.0], [0.0, 0.0, 0.0]]))
