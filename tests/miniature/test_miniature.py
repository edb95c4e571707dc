"""The miniature: images that follow WordNet, one small network, one check of the known answer."""

from __future__ import annotations

import hashlib
import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import cog
from cog.commands import build_levels
from cog.data.level_files import read_levels
from cog.errors import CogError
from cog.miniature import network, world
from cog.miniature.__main__ import TRAINED, UNTRAINED, check, top1

SMALL = {"seed": 3, "n_train": 3, "n_test": 2}


def digest(folder, but: str = "-"):
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(but))
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture(scope="module")
def small_world(tmp_path_factory, wordnet):
    folder = tmp_path_factory.mktemp("miniature")
    world.make_world(folder, wordnet, **SMALL)
    return folder


@pytest.mark.filterwarnings("error")
def test_drawing_is_deterministic_varied_and_no_noise():
    looks = [
        *np.random.default_rng(0).standard_normal((2, len(world.TRAITS))),
        np.full(len(world.TRAITS), 6.0),
    ]
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
    found = {
        name: len(list(small_world.glob(f"{name}/*/*.JPEG"))) for name in ("in1k/train", "in1k/val", "in21k")
    }
    assert found == {"in1k/train": 24 * 3, "in1k/val": 24 * 2, "in21k": 120 * 5}
    before, again = digest(small_world), tmp_path / "again"
    shutil.copytree(small_world, again)
    (again / "world.json").rename(again / ".drawing")
    shutil.rmtree(again / "in21k")
    world.make_world(again, wordnet, **SMALL)
    assert digest(again) == before
    world.make_world(again, None, **SMALL)  # WordNet is not needed: nothing is drawn
    with pytest.raises(CogError, match="other settings"):
        world.make_world(again, wordnet, **SMALL | {"seed": 4})
    (again / "world.json").unlink()
    with pytest.raises(CogError, match="other images"):
        world.make_world(again, wordnet, **SMALL)
    assert (again / "in21k").is_dir()


@pytest.mark.slow
def test_levels_are_the_groups_by_distance(small_world, wordnet, tmp_path):
    (tmp_path / "none.txt").write_text("")
    argv = f"--imagenet_images_root {small_world}/in21k --image_counts {small_world}/image_counts.csv"
    argv += (
        f" --level_size 24 --seen_wnids {small_world}/seen_wnids.txt --discarded_wnids {tmp_path}/none.txt"
    )
    argv += f" --output_dir {tmp_path}/levels LEVELS.MIN_IMAGES 5 LEVELS.N_TEST 2"
    assert build_levels.main(argv.split()) == 0
    levels = read_levels(tmp_path / "levels/cog_levels_mapping_file.pkl")
    rows = (world.SEEN_FAMILIES, *(world.UNSEEN_FAMILIES[k : k + 6] for k in range(0, 24, 6)))
    for level, families in zip(levels, rows, strict=True):
        assert len(level) == 24
        assert {wordnet.wnids[wordnet.parents[wordnet.node[w]][0]] for w in level} == set(families)
    world.write_overview(small_world, wordnet, levels)
    with Image.open(small_world / "overview.png") as picture:
        assert picture.width == 24 * world.SIZE and picture.height > 12 * world.SIZE


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("changed", "n_failed"),
    [
        ({}, 0),
        ({"in1k": 72.0}, 1),  # not above level 2
        ({"cog_l5": 71.0}, 1),  # above level 1
        ({"cog_l4": 29.0}, 1),  # below the untrained network
    ],
)
def test_expectations(changed, n_failed):
    trained = [means(TRAINED, 4, GOOD), means(TRAINED, 0, {**GOOD, **changed})]
    table = top1(pd.concat([means(UNTRAINED, 0, dict.fromkeys(GOOD, 30.0)), *trained]))
    assert list(table.index) == [(TRAINED, 0), (TRAINED, 4), (UNTRAINED, 0)]
    findings = check(table)
    assert len(findings) == 4 and sum(not holds for _, holds in findings) == n_failed
    assert check(top1(means(UNTRAINED, 0, GOOD))) == []


@pytest.mark.slow
def test_quickstart_runs_and_runs_again(bash, tmp_path, wordnet):
    """Everything, with the answer that is known, on fewer images; the second run only reads."""
    words = [f"output_dir={tmp_path}", "shots=1", "seeds=22", "images_per_concept=20 10", "n_trials=2"]
    first = bash("quickstart.sh", *words)
    assert first.returncode == 0, first.stdout + first.stderr
    screen = first.stdout[first.stdout.index("Top-1 accuracy of linear classifiers") :].splitlines()
    assert len(screen) <= 24 and sum(line.startswith("as expected: ") for line in screen) == 4
    assert re.search(r"^trained network, 1 image +(\d+\.\d +){5}\d+\.\d$", "\n".join(screen), re.MULTILINE)
    models = tmp_path / "models/miniature"
    assert len(list((models / "convnet").rglob("results.json"))) == 12
    features = json.loads((models / "convnet/cog_l5/features_test/features.json").read_text())
    assert features["identity"]["model"] == "miniature_convnet"
    assert "miniature_convnet" in (tmp_path / "report.html").read_text()
    before = digest(tmp_path / "models", but=".log")
    second = bash("quickstart.sh", *words)
    assert second.returncode == 0, second.stdout + second.stderr
    assert digest(tmp_path / "models", but=".log") == before
