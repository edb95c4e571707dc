"""Networks and features in a notebook: the numbers of the scripts."""

import functools
import json

import numpy as np
import pytest
import tiny
import torch
from classifier_runs import command

import cog
from cog.commands import logreg
from cog.errors import CogError
from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.results import frame

evaluate = functools.partial(cog.evaluate, device="cpu", n_trials=3, n_epochs=4)


def features(seed):
    x, y = tiny.make_xy(n_per_class=20, dim=8, seed=seed, spread=2.0)
    return FeatureSet(x, y, f"tiny_net_birds_{'train' if seed == 0 else 'test'}")


def test_accuracies_are_those_of_the_script(tmp_path):
    """All images and one shot, two seeds; the features that are given stay as they are."""
    parts, folders = (features(0), features(1)), (tmp_path / "train", tmp_path / "test")
    for folder, part in zip(folders, parts, strict=True):
        folder.mkdir()
        feature_files.save(part, folder / "X_Y.pth")
    before = parts[0].x.clone()
    scores = evaluate(None, *parts, n_shot=[0, 1], seeds=[3, 4], dataset="birds")
    assert torch.equal(parts[0].x, before) and list(scores.columns) == frame.SCORES
    logreg.main(command(folders, tmp_path / "eval", "--seeds", "3", "4", "--n_shot", "0", "1"))
    for n_shot, folder in ((0, "eval"), (1, "eval_N1")):
        for seed in (3, 4):
            final = json.loads((tmp_path / folder / f"seed-{seed}/results.json").read_text())["final"]
            rows = scores[(scores.n_shot == n_shot) & (scores.seed == seed)].set_index("metric")
            assert rows.value.to_dict() == {name: final[f"test_{name}"] for name in ("top1", "top5")}
            assert sum(rows.correct["top1"].correct) / 60 == pytest.approx(final["test_top1"] / 100)
    assert set(scores.model) == {"tiny_net_birds_train"} and set(scores.images) == {60}
    assert set(scores.data[scores.n_shot == 1]) == {"3 classes, 60 test images"}
    assert (frame.average(scores).n_seeds == 2).all()
    files = [folder / "X_Y.pth" for folder in folders]
    again = evaluate(None, *files, seeds=np.array([3]), n_shot="all", batch_size=np.int64(1024))
    assert again.value.tolist() == scores.value[(scores.n_shot == 0) & (scores.seed == 3)].tolist()


def test_a_network_on_folders_of_images(image_tree):
    network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())
    folders = (image_tree / "train", image_tree / "test")
    scores = evaluate(network, *folders, seeds=[1], n_shot=1)
    assert scores.model.tolist() == ["own_network"] * 2 and scores.evaluation.tolist() == ["logreg"] * 2
    assert scores.classes.nunique() == 1
    with pytest.raises(CogError, match="needs a network .* not None"):
        cog.evaluate(None, *folders)
    next(folders[1].rglob("*.png")).write_bytes(b"")
    with pytest.raises(CogError, match="png could not be decoded .*; fix it"):
        cog.evaluate(network, *folders)


@pytest.mark.parametrize(("kind", "lr"), [("mlp", [1e-1, 1e2]), ("mlp_noact", [1e-2, 1e1])])
def test_networks_have_the_defaults_of_the_script(feature_folders, tmp_path, kind, lr):
    files = [folder / "X_Y.pth" for folder in feature_folders]
    values = {"classifier": kind, "mlp_hidden": 6, "wd_interval": (1e-6, 1e-5), "max_per_class": 5}
    scores = evaluate(None, *files, seeds=[3], n_shot=2, **values)
    own = ["CLF.TYPE", kind, "CLF.MLP_HIDDEN", "6", "CLF.WD_INTV", "(1e-6,1e-5)", "CLF.MAX_PER_CLASS", "5"]
    logreg.main(command(feature_folders, tmp_path / "eval", "EVAL.SEED", "3", "CLF.N_SHOT", "2", *own))
    record = json.loads((tmp_path / "eval/results.json").read_text())
    final, of = record["final"], record["identity"]
    assert scores.value.tolist() == [final["test_top1"], final["test_top5"]]
    assert set(scores.evaluation) == {f"{kind}_max5"} and of["classifier"] == kind
    assert (of["normalize"], of["lr_interval"]) == (False, lr)
    stored = torch.load(tmp_path / "eval" / final["folder"] / "model.pth", weights_only=True)["model"]
    assert [tuple(stored[f"{i}.weight"].shape) for i in (0, 2, 4)] == [(6, 8), (6, 6), (3, 6)]
    values |= {"lr_interval": (1e30, 1e30), "wd_interval": (1, 1)}
    scores = evaluate(None, *files, seeds=[3], **values | {"n_trials": 0})
    assert scores.protocol.str.endswith("training diverged").all()
    assert scores.data[0] == "3 classes, 30 training images, 30 test images", "not those below the cap"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"opts": ["CLF.N_TRIALS", 2]}, "CLF.N_TRIALS.* are those of the extraction"),
        ({"n_trails": 3}, "CLF.N_TRAILS.* evaluate"),
        ({"n_shot": -1}, "CLF.N_SHOT = -1 is not valid"),
        ({"seeds": []}, "without seeds"),
        ({"seeds": [1.5]}, "EVAL.SEED = 1.5 .* is of type float"),
        ({"momentum": 5.0}, "^momentum .* = 5.0 is not valid"),
    ],
)
def test_what_is_not_understood(flags, words):
    with pytest.raises(CogError, match=words):
        cog.evaluate(None, features(0), features(1), **{"seeds": [1], "device": "cpu"} | flags)
