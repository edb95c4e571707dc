"""Networks and features in a notebook: the same bits as the scripts give."""

from __future__ import annotations

import dataclasses
import functools
import json

import numpy as np
import pytest
import tiny
import torch

import cog
from cog.commands import extract_features, logreg
from cog.data.wnids import class_list_digest
from cog.errors import CogError, FailedImagesError
from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.logreg import notebook
from cog.results.scores import Counts, Score

evaluate = functools.partial(cog.evaluate, device="cpu", n_trials=2, n_epochs=3)
QUICK_KEYS = ["CLF.N_TRIALS", "2", "CLF.N_EPOCHS", "3", "--device", "cpu"]
SMALL = ["FT_EXTRACT.IMAGE_RESIZE_SIZE", 18, "FT_EXTRACT.IMAGE_CROP_SIZE", 16]


@pytest.fixture
def backbone(tmp_path):
    loader = tiny.write_loader(tmp_path / "my_net.py")
    return cog.load_backbone("tiny_net", None, loader=f"{loader}:load_my_model")


def test_features_are_those_of_the_script(backbone, image_tree, tmp_path):
    extract_features.main(
        ["--model", "tiny_net", "--dataset", "birds", "--split", "train", "--images_root", str(image_tree),
         "--model_loader", f"{tmp_path / 'my_net.py'}:load_my_model", "--output_dir", str(tmp_path / "out"),
         "--device", "cpu", *map(str, SMALL), "FT_EXTRACT.N_WORKERS", "0"]
    )  # fmt: skip
    written = feature_files.load(tmp_path / "out")
    features = cog.extract_features(backbone, image_tree / "train", opts=SMALL, device="cpu")
    assert torch.equal(features.x, written.x) and torch.equal(features.y, written.y)
    assert features.x.dtype == torch.float32 and features.y.dtype == torch.int64
    assert features.name == "tiny_net_images_train"


def test_a_bare_module(image_tree):
    network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())
    features = cog.extract_features(network, image_tree / "test", device="cpu")
    assert features.x.shape == (9, 12) and features.name == "own_network_images_test"


def test_a_declared_preprocessing_is_used(image_tree, tmp_path):
    source = (
        "import torch\n\n\ndef load_my_model(init_args):\n"
        "    preprocess = {'image_size': 4, 'mean': [0, 0, 0], 'std': [1, 1, 1]}\n"
        "    return torch.nn.Flatten(), None, preprocess\n"
    )
    (tmp_path / "declares.py").write_text(source)
    network = cog.load_backbone("tiny_net", None, loader=f"{tmp_path / 'declares.py'}:load_my_model")
    features = cog.extract_features(network, image_tree / "test", device="cpu")
    assert features.x.shape == (9, 48) and features.x.min() >= 0 and features.x.max() <= 1


def test_failed_images_are_named(backbone, image_tree):
    (image_tree / "test/duck/duck_1.png").write_bytes(b"no image")
    message = "1 of 9 images could not be decoded, such as duck/duck_1.png"
    with pytest.raises(FailedImagesError, match=message):
        cog.extract_features(backbone, image_tree / "test", opts=SMALL, device="cpu")
    with pytest.raises(CogError, match="/absent does not exist"):
        cog.extract_features(backbone, "/absent", device="cpu")


def features(seed: int) -> FeatureSet:
    x, y = tiny.make_xy(n_per_class=20, dim=8, seed=seed, spread=2.0)
    return FeatureSet(x, y, "tiny_net_birds")


def test_accuracies_are_those_of_the_script(tmp_path):
    """All images and one shot, two seeds; the features that are given stay as they are."""
    train, test = features(0), features(1)
    for name, part in (("train", train), ("test", test)):
        (tmp_path / name).mkdir()
        feature_files.save(part, tmp_path / name / "X_Y.pth")
    before = train.x.clone()
    scores = evaluate(None, train, test, n_shots=[0, 1], seeds=[3, 4], dataset="birds")
    assert torch.equal(train.x, before)
    logreg.main(
        ["--train_features_dir", str(tmp_path / "train"), "--test_features_dir", str(tmp_path / "test"),
         "--output_dir", str(tmp_path / "eval"), "--seeds", "3", "4", "--n_shots", "0", "1", *QUICK_KEYS]
    )  # fmt: skip
    expected = []
    for n_shot, folder in ((0, "eval"), (1, "eval_N1")):
        for seed in (3, 4):
            final = json.loads((tmp_path / folder / f"seed-{seed}/results.json").read_text())["final"]
            place = "tiny_net_birds", "birds", "logreg", n_shot
            counts = Counts((3,), () if n_shot else (60,), (60,))
            expected += [
                Score(*place, metric, final[f"test_{metric}"], seed, counts=counts)
                for metric in ("top1", "top5")
            ]
    assert scores == expected
    files = (tmp_path / "train/X_Y.pth", tmp_path / "test/X_Y.pth")
    loaded = (feature_files.load(file, normalize=True) for file in files)
    for given in (files, loaded):
        again = evaluate(None, *given, seeds=[3], dataset="birds")
        assert [score.value for score in again] == [score.value for score in expected[:2]]
    table = cog.Results(scores).table("n_shots", "metric")
    assert "top-1" in table or "top1" in table


def test_scores_are_named_as_those_of_the_scripts(image_tree):
    train, test = features(0), features(1)
    (top1, _) = evaluate(None, train, test, seeds=[1], pca_dim=3, max_per_class=5)
    assert top1.evaluation == "logreg_pca3_max5"
    network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())
    folders = (image_tree / "train", image_tree / "test")
    (top1, _) = evaluate(network, *folders, seeds=[1], n_shots=1)
    assert (top1.model, top1.evaluation) == ("own_network", "logreg")
    classes = sorted(path.name for path in (image_tree / "train").iterdir())
    assert top1.counts.class_lists == (class_list_digest(classes),)


def test_features_of_a_folder_know_their_classes(tmp_path):
    files = [tmp_path / split / "X_Y.pth" for split in ("train", "test")]
    for file in files:
        file.parent.mkdir()
        feature_files.save(features(0), file)
        (file.parent / "features.json").write_text(json.dumps({"class_list_sha256": "a" * 64}))
    (top1, _) = evaluate(None, *files, seeds=[1])
    assert top1.counts.class_lists == ("a" * 64,)
    (files[1].parent / "features.json").write_text(json.dumps({"class_list_sha256": "b" * 64}))
    with pytest.raises(CogError, match="are of different classes, whose labels do not agree"):
        evaluate(None, *files, seeds=[1])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"opts": ["CLF.N_TRIALS", 2]}, "CLF.N_TRIALS in opts"),
        ({"opts": ["FT_EXTRACT.CROP", 2]}, "FT_EXTRACT.CROP"),
        ({"n_trails": 3}, "n_trails is not a setting of evaluate"),
        ({"opts": ["FT_EXTRACT.BATCH_SIZE"]}, "option FT_EXTRACT.BATCH_SIZE has no value"),
        ({"opts": {"FT_EXTRACT.BATCH_SIZE": 2}}, "opts: expected a list"),
        ({"opts": ["FT_EXTRACT.POOLING", "mean"]}, "give pooling= to cog.load_backbone"),
        ({"n_shots": -1}, "n_shots -1: expected"),
        ({"n_shots": True}, "n_shots True: expected"),
        ({"n_shots": "many"}, "n_shots 'many': expected .* or \"all\""),
        ({"n_shots": []}, "n_shots is empty"),
        ({"n_shots": [0, "all"]}, "n_shots has a value twice: 0, 0"),
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": [-1]}, "seeds -1: expected"),
        ({"seeds": ["1"]}, "seeds '1': expected"),
        ({"seeds": [1.5]}, "seeds 1.5: expected"),
        ({"classifier": "svm"}, "CLF.TYPE = 'svm' is not valid, expected logreg, mlp"),
        ({"precision": "junk"}, "CLF.PRECISION = 'junk' is not valid"),
        ({"val_frac": 0.0}, "CLF.VAL_PERC = 0.0 is not valid"),
        ({"lr_interval": (1, 0.1)}, r"CLF.LR_INTV = \(1, 0.1\) is not valid"),
        ({"n_epochs": 0}, "CLF.N_EPOCHS = 0 is not valid"),
        ({"n_epochs": 1.5}, r"CLF.N_EPOCHS = 1.5 \(from evaluate\(\)\) is a float"),
        ({"normalize": 1}, "CLF.NORM_FTS = 1 .* expected a bool"),
        ({"momentum": 5.0}, "^momentum = 5.0 is not valid"),
        ({"lr": 0.0, "wd": 0.0, "n_trials": 0}, "^lr = 0.0 is not valid, expected a positive"),
        ({"lr": 1.0, "wd": "0", "n_trials": 0}, "^wd = '0' is not valid"),
        ({"n_trials": 0}, "CLF.N_TRIALS 0 means no search: give both --lr and --wd"),
    ],
)
def test_what_is_not_understood(flags, words):
    with pytest.raises(CogError, match=words):
        cog.evaluate(None, features(0), features(1), **{"seeds": [1], "device": "cpu"} | flags)


def test_numbers_in_other_forms():
    parts = features(0), features(1)
    expected = evaluate(None, *parts, n_shots=[0, 1], seeds=[3])
    assert evaluate(None, *parts, n_shots=["all", np.int64(1)], seeds=np.array([3])) == expected
    assert evaluate(None, *parts, n_shots="all", seeds=3, batch_size=np.int64(1024)) == expected[:2]


@pytest.mark.parametrize("kind", ["mlp", "mlp_noact"])
def test_classifiers_have_the_defaults_of_the_script(feature_folders, tmp_path, kind):
    files = [folder / "X_Y.pth" for folder in feature_folders]
    values = {"classifier": kind, "mlp_hidden": 8, "wd_interval": (1e-6, 1e-5)}
    (top1, top5) = evaluate(None, *files, seeds=[3], n_shots=2, **values)
    own = ["CLF.TYPE", kind, "CLF.MLP_HIDDEN", "8", "CLF.WD_INTV", "(1e-6,1e-5)", "CLF.N_SHOT", "2"]
    logreg.main(
        ["--train_features_dir", str(feature_folders[0]), "--test_features_dir", str(feature_folders[1]),
         "--output_dir", str(tmp_path / "eval"), "EVAL.SEED", "3", *own, *QUICK_KEYS]
    )  # fmt: skip
    results = json.loads((tmp_path / "eval/results.json").read_text())
    assert (top1.value, top5.value) == (results["final"]["test_top1"], results["final"]["test_top5"])
    # Three easy classes have few accuracies: the settings are compared as well.
    settings = notebook._settings(values | {"n_trials": 2, "n_epochs": 3}, [])
    made = json.loads(json.dumps(dataclasses.asdict(settings)))
    expected = {key: results["identity"][key] for key in made if key not in ("seed", "n_shot")}
    assert {key: made[key] for key in expected} == expected


def test_the_model_in_features_json(feature_folders):
    (feature_folders[0] / "features.json").write_text(json.dumps({"model": "other_net_v2"}))
    (top1, _) = evaluate(None, *(folder / "X_Y.pth" for folder in feature_folders), seeds=[1])
    assert top1.model == "other_net_v2"


@pytest.mark.parametrize(
    ("opts", "words"),
    [
        (["FT_EXTRACT.POOLING", "mean"], "POOLING in opts: .* give pooling= to cog.load_backbone"),
        (["FT_EXTRACT.PREPROCESS", "model"], "PREPROCESS model: tiny_net declares no preprocessing"),
        ({"FT_EXTRACT.BATCH_SIZE": 2}, "opts: expected a list"),
        (["FT_EXTRACT.BATCH_SIZE"], "option FT_EXTRACT.BATCH_SIZE has no value"),
    ],
)
def test_options_that_an_extraction_cannot_use(backbone, image_tree, opts, words):
    with pytest.raises(CogError, match=words):
        cog.extract_features(backbone, image_tree / "train", opts=opts, device="cpu")


def test_pooling_is_chosen_at_loading(tmp_path):
    with pytest.raises(CogError, match="pooling 'max' is not known, expected one of default, cls, mean"):
        cog.load_backbone("tiny_net", None, loader=f"{tmp_path / 'absent.py'}:load_my_model", pooling="max")


def test_a_network_on_folders(backbone, image_tree):
    folders = (image_tree / "train", image_tree / "test")
    scores = evaluate(backbone, *folders, n_shots=1, seeds=[1], opts=SMALL)
    names = [(score.model, score.metric, score.n_shots) for score in scores]
    assert names == [("tiny_net", "top1", 1), ("tiny_net", "top5", 1)]
    with pytest.raises(CogError, match="has no backbone"):
        cog.evaluate(None, *folders)
