"""A study does not take results of another network or of other settings for its own."""

from __future__ import annotations

import dataclasses
import json

import pytest

from cog import config
from cog.logreg.settings import from_config
from cog.study import identity, units
from cog.study.units import Study

LOADER = "def load_my_model(init_args):\n    raise ValueError('not to be run')\n"


class World:
    """A root with the finished outputs of a model on a data set; the weights are never loaded."""

    def __init__(self, folder, model="sup_resnet50", file=None, opts=()):
        self.checkpoint = folder / "models/sup/resnet50/model.ckpt"
        self.checkpoint.parent.mkdir(parents=True)
        self.checkpoint.write_bytes(b"weights")
        self.study = Study(folder / "models", (model,), ("in1k",), seeds=(22, 37), n_shots=(0, 8))
        self.networks = identity.Networks(str(self.study.root), None, file, opts)
        network = self.networks.describe(model)
        cfg = config.get_cfg(model_name=model)
        features = {}
        for unit in self.study.units():
            path = self.study.folder(unit)
            path.mkdir(parents=True)
            if unit.split:
                made = {**network, "dataset": "in1k", "split": unit.split}
                features[f"{unit.split}_features"] = {**made, "rows_sha256": unit.split}
                (path / "X_Y.pth").write_bytes(b"rows")
                (path / "features.json").write_text(json.dumps({"identity": made, "rows_sha256": unit.split}))
            else:
                run = from_config(cfg, seed=unit.seed)
                run = dataclasses.asdict(dataclasses.replace(run, n_shot=unit.n_shot))
                (path / "results.json").write_text(json.dumps({"identity": {**run, **features}}))

    def others(self, keys=""):
        """Return the lines about other results, and their number."""
        words = keys.split()
        is_extraction = keys.startswith("FT_EXTRACT")
        networks = dataclasses.replace(self.networks, opts=words if is_extraction else ())
        states = units.survey(self.study)
        other = identity.other_results(self.study, networks, states, [] if is_extraction else words)
        return identity.describe_others(other), len(other)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_what_the_study_would_make_is_not_another_result(world):
    assert world.others() == ([], 0)


def test_another_checkpoint_is_named_with_everything_made_of_it(world):
    world.checkpoint.write_bytes(b"trained again")
    (line,), n = world.others()
    assert n == 6 and line.startswith(
        "sup_resnet50 (2 features and 4 classifier runs on in1k): checkpoint_sha256: "
    )
    assert " -> " in line and "rows" not in line and len(line) < 150


def test_runs_of_features_that_were_extracted_again_are_others(world):
    path = world.study.folder(world.study.features("sup_resnet50", "in1k")[0]) / "features.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rows_sha256": "other"}))
    assert world.others() == (["sup_resnet50 (4 classifier runs on in1k): rows_sha256: train -> other"], 4)


@pytest.mark.parametrize(
    ("keys", "difference", "n"),
    [
        (
            "FT_EXTRACT.IMAGE_RESIZE_SIZE 128 FT_EXTRACT.IMAGE_CROP_SIZE 128",
            "preprocessing.size: 224 -> 128",
            6,
        ),
        ("FT_EXTRACT.IMAGE_NORM.MEAN [0.5,0.5,0.5]", "preprocessing.mean", 6),
        ("FT_EXTRACT.PRECISION fp16", "precision: fp32 -> fp16", 6),
        ("CLF.N_EPOCHS 50", "n_epochs: 100 -> 50", 4),
        ("CLF.N_TRIALS 3", "n_trials: 30 -> 3", 4),
        ("CLF.NORM_FTS False", "normalize: True -> False", 4),
    ],
)
def test_other_settings_are_named(world, keys, difference, n):
    (line,), found = world.others(keys)
    assert difference in line and found == n


def test_pooling_of_an_entry(tmp_path):
    file = tmp_path / "models.yaml"
    entry = f"mine_vit: {{source: timm_vit_tiny_patch16_224, checkpoint: {tmp_path}/models/sup/resnet50/model.ckpt, "
    file.write_text(entry + "pooling: cls}")
    world = World(tmp_path, "mine_vit", str(file))
    file.write_text(entry + "pooling: mean}")
    (line,), n = world.others()
    assert "pooling: cls -> mean" in line and n == 6


def test_loader_and_its_checkpoint(tmp_path):
    """The source of a loader belongs to the network; a loader that fails is told by its own task."""
    loader = tmp_path / "nets.py"
    loader.write_text("import torch\n\ndef load_my_model(init_args):\n    return torch.nn.Flatten(), None\n")
    entry = tmp_path / "models.yaml"
    entry.write_text(
        f"mine_net: {{loader: 'nets.py:load_my_model', checkpoint: {tmp_path}/models/sup/resnet50/model.ckpt}}"
    )
    world = World(tmp_path, "mine_net", str(entry))
    assert world.others() == ([], 0)
    loader.write_text(loader.read_text() + "# changed\n")
    world.checkpoint.write_bytes(b"trained again")
    (line,), n = world.others()
    assert "checkpoint_sha256" in line and "loader_sha256" in line and n == 6


def test_features_of_the_original_toolkit_are_taken_as_they_are(world):
    for unit in world.study.features("sup_resnet50", "in1k"):
        (world.study.folder(unit) / "features.json").unlink()
    for unit in world.study.runs("sup_resnet50", "in1k"):
        path = world.study.folder(unit) / "results.json"
        record = json.loads(path.read_text())
        record["identity"] |= {f"{split}_features": {"rows_sha256": "x"} for split in ("train", "test")}
        path.write_text(json.dumps(record))
    assert world.others() == ([], 0)


def test_results_of_a_network_that_is_gone_are_kept_and_told(world, caplog):
    world.checkpoint.unlink()
    assert world.others() == ([], 0)
    assert "cannot be loaded: sup_resnet50" in caplog.text
