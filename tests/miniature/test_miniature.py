"""The miniature: images that follow WordNet, one small network, one check of the known answer."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from PIL import Image

import cog
from cog.data.level_files import read_levels
from cog.errors import CogError
from cog.miniature import network, world
from cog.miniature.command import TRAINED, UNTRAINED, check, top1

SMALL = {"seed": 3, "n_train": 3, "n_test": 2}


@pytest.fixture
def small_world(tmp_path, wordnet, monkeypatch):
    """8 seen and 16 unseen concepts."""
    for families in ("SEEN_FAMILIES", "UNSEEN_FAMILIES"):
        monkeypatch.setattr(world, families, getattr(world, families)[:2])
    world.make_world(tmp_path / "world", wordnet, **SMALL)
    return tmp_path / "world"


@pytest.mark.filterwarnings("error")
def test_drawing_is_deterministic_varied_and_no_noise():
    looks = np.random.default_rng(0).standard_normal((3, len(world.TRAITS))) * [[1], [1], [6]]
    drawn = [world.draw(look, 8, np.random.default_rng(1)) for look in looks]
    for pictures in drawn:
        assert pictures.shape == (8, world.SIZE, world.SIZE, 3) and pictures.dtype == np.uint8
        gray = pictures.mean(axis=3)
        assert gray.std() > 5 and len({picture.tobytes() for picture in pictures}) == 8
        assert np.corrcoef(gray[:, :, 1:].ravel(), gray[:, :, :-1].ravel())[0, 1] > 0.7  # surfaces
    assert np.abs(drawn[0].astype(int) - drawn[1]).mean() > 5  # the same pose, another concept
    few, many = (world.concept_images("n00000007", looks[0], n, 0) for n in (3, 60))
    np.testing.assert_array_equal(few, many[:3])


@pytest.mark.slow
def test_an_interrupted_world_is_repeated_and_a_complete_one_kept(small_world, wordnet, tmp_path):
    folders = {"in1k/train": 8 * 3, "in1k/val": 8 * 2, "in21k": 16 * 5}
    assert {name: len(list(small_world.glob(f"{name}/*/*.JPEG"))) for name in folders} == folders
    before, again = tiny.snapshot(small_world), tmp_path / "again"
    shutil.copytree(small_world, again)
    (again / "world.json").rename(again / ".drawing")
    shutil.rmtree(again / "in21k")
    world.make_world(again, wordnet, **SMALL)
    assert tiny.snapshot(again) == before
    world.make_world(again, None, **SMALL)  # WordNet is not needed: nothing is drawn
    for settings, message in ((SMALL | {"seed": 4}, "other settings"), (SMALL, "other images")):
        with pytest.raises(CogError, match=message):
            world.make_world(again, wordnet, **settings)
        (again / "world.json").unlink(missing_ok=True)
    assert (again / "in21k").is_dir()


def test_training_is_deterministic_kept_and_loads_as_a_custom_model(small_world, tmp_path):
    loader = f"{network.__file__}:load_my_model"
    x = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    features = []
    for name, n_epochs in (("a/convnet", 2), ("b/convnet", 2), ("a/random", 0)):
        checkpoint = tmp_path / name / "model.ckpt"
        network.train_network(small_world / "in1k/train", checkpoint, n_epochs=n_epochs)
        backbone = cog.load_backbone(f"miniature_{checkpoint.parent.name}", checkpoint, loader=loader)
        with torch.no_grad():
            features.append(backbone(x).cpu())
    assert features[0].shape == (3, 64) and torch.equal(features[0], features[1])
    assert not torch.allclose(features[0], features[2])
    (tmp_path / "train/n0").mkdir(parents=True)
    (tmp_path / "train/n0/broken.JPEG").write_bytes(b"no image")
    network.train_network(tmp_path / "train", checkpoint)  # the existing network is kept
    with pytest.raises(CogError, match=r"broken\.JPEG"):
        network.train_network(tmp_path / "train", tmp_path / "x.ckpt")


GOOD = {"in1k": 80.0, "cog_l1": 70.0, "cog_l2": 72.0, "cog_l3": 66.0, "cog_l4": 60.0, "cog_l5": 61.0}


def means(model: str, n_shot: int, values: dict[str, float]) -> pd.DataFrame:
    rows = [(model, n_shot, dataset, "top1", value) for dataset, value in values.items()]
    return pd.DataFrame(rows, columns=["model", "n_shot", "dataset", "metric", "value"])


def test_expectations():
    for changed in ({}, {"in1k": 72.0}, {"cog_l5": 71.0}, {"cog_l4": 29.0}):  # L2, L1, the untrained one's
        trained = [means(TRAINED, 4, GOOD), means(TRAINED, 0, {**GOOD, **changed})]
        table = top1(pd.concat([means(UNTRAINED, 0, dict.fromkeys(GOOD, 30.0)), *trained]))
        assert list(table.index) == [(TRAINED, 0), (TRAINED, 4), (UNTRAINED, 0)]
        findings = check(table)
        assert len(findings) == 4 and sum(not holds for _, holds in findings) == len(changed)
    assert check(top1(means(UNTRAINED, 0, GOOD))) == []


@pytest.mark.slow
def test_quickstart(bash, tmp_path, wordnet):
    """Everything, on fewer images: levels are groups by distance, and results have the known answer."""
    words = [f"output_dir={tmp_path}", "shots=1", "seeds=22", "images_per_concept=20 10", "n_trials=2"]
    done = bash("quickstart.sh", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    screen = done.stdout[done.stdout.index("[5/5]") :].splitlines()
    assert len(screen) <= 24 and sum(line.startswith("as expected: ") for line in screen) == 4
    assert re.search(r"^trained network, 1 image +(\d+\.\d +){5}\d+\.\d$", "\n".join(screen), re.MULTILINE)
    levels = read_levels(tmp_path / "levels/cog_levels_mapping_file.pkl")
    rows = (world.SEEN_FAMILIES, *(world.UNSEEN_FAMILIES[k : k + 6] for k in range(0, 24, 6)))
    for level, families in zip(levels, rows, strict=True):
        assert len(level) == 24
        assert {wordnet.wnids[wordnet.parents[wordnet.node[w]][0]] for w in level} == {*families}
    with Image.open(tmp_path / "overview.png") as picture:
        assert picture.width == 24 * world.SIZE and picture.height > 12 * world.SIZE
    for name, n_runs in (("convnet", 12), ("random", 6)):
        models = tmp_path / "models/miniature" / name
        assert len(list(models.rglob("results.json"))) == n_runs
        features = json.loads((models / "cog_l5/features_test/features.json").read_text())
        assert features["identity"]["model"] == f"miniature_{name}"
        assert f"miniature_{name}" in (tmp_path / "report.html").read_text()
