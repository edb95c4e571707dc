"""Features are part of a run: other features are another run, and both splits are of one network."""

from __future__ import annotations

import json

import pytest
import tiny
import torch
from classifier_runs import command

from cog.commands import logreg
from cog.errors import CogError

MADE = {
    "model": "tiny_net", "checkpoint_sha256": "c" * 64, "loader_sha256": "d" * 64, "precision": "fp32",
    "preprocessing": {"resize": 224, "mean": [0.5, 0.5, 0.5]},
}  # fmt: skip


def describe(folder, **changes):
    (folder / "features.json").write_text(json.dumps(MADE | changes))


def scaled(folder, name="X_Y.pth"):
    data = torch.load(folder / name, weights_only=True)
    torch.save(data | {"X": 2 * data["X"]}, folder / name)


def one_value(folder):
    data = torch.load(folder / "X_Y.pth", weights_only=True)
    data["X"][7, 3] += 1.0
    torch.save(data, folder / "X_Y.pth")


@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (scaled, "sample_sha256: "),
        (one_value, "sample_sha256: "),
        (lambda folder: describe(folder, precision="tf32"), "precision: fp32 -> tf32"),
    ],
)
def test_a_run_on_other_features_is_another_run(feature_folders, tmp_path, split, change, says):
    for folder in feature_folders:
        describe(folder)
    logreg.main(command(feature_folders, tmp_path / "out"))
    before = tiny.snapshot(tmp_path / "out")
    assert logreg.main(command(feature_folders, tmp_path / "out")) == 0
    change(feature_folders[split])
    name = ("train", "test")[split]
    with pytest.raises(
        CogError, match=rf"holds a different run \(.*{name}_features\.{says}.*add --overwrite"
    ):
        logreg.main(command(feature_folders, tmp_path / "out"))
    assert tiny.snapshot(tmp_path / "out") == before
    logreg.main(command(feature_folders, tmp_path / "out", "--overwrite"))
    assert tiny.snapshot(tmp_path / "out") != before


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"checkpoint_sha256": "e" * 64}, "checkpoint_sha256: c+ -> e+"),
        (
            {"model": "other_net", "loader_sha256": None},
            "model: tiny_net -> other_net; loader_sha256: d+ -> None",
        ),
        ({"preprocessing": {"resize": 256, "mean": [0.5, 0.5, 0.5]}}, "preprocessing.resize: 224 -> 256"),
        (
            {"preprocessing": MADE["preprocessing"] | {"pooling": "mean"}},
            "preprocessing.pooling: None -> mean",
        ),
    ],
)
def test_splits_of_different_networks_are_refused(feature_folders, tmp_path, changes, says):
    train, test = feature_folders
    describe(train)
    describe(test, **changes)
    with pytest.raises(CogError, match=rf"were made differently \({says}\); extract both splits"):
        logreg.main(command(feature_folders, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_features_of_the_original_toolkit_say_nothing_of_their_network(feature_folders, tmp_path):
    describe(feature_folders[0])
    assert logreg.main(command(feature_folders, tmp_path / "out")) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("n_shared", "warns"), [(30, True), (10, True), (1, True), (0, False)])
def test_training_images_in_the_test_set_are_told(tmp_path, caplog, dtype, n_shared, warns):
    """All of them (a link, a copy), those of one class, a single one of 30."""
    parts = [tiny.make_xy(seed=seed) for seed in (0, 1)]
    parts[1][0][:n_shared] = parts[0][0][:n_shared]
    folders = [
        tiny.write_features(tmp_path / split, x.to(dtype), y)
        for split, (x, y) in zip(("train", "test"), parts, strict=True)
    ]
    logreg.main(command(folders, tmp_path / "out"))
    told = f"{n_shared} of 30 test features" in caplog.text and "are also training features" in caplog.text
    assert told == warns
