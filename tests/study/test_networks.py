"""A study does not take results of another network or of other settings for its own."""

from __future__ import annotations

import dataclasses
import functools
import json
import os

import pytest

from cog import config
from cog.errors import CogError
from cog.logreg.settings import from_config
from cog.models.choice import find_model
from cog.study import networks, units
from cog.study.units import Study


class World:
    """A root with the finished outputs of a model on a data set; the weights are never loaded."""

    def __init__(self, folder, model="sup_resnet50", file=None):
        self.checkpoint = folder / "models/sup/resnet50/model.ckpt"
        self.checkpoint.parent.mkdir(parents=True)
        self.checkpoint.write_bytes(b"weights")
        self.study = Study(folder / "models", (model,), ("in1k",), seeds=(22, 37), n_shots=(0, 8))
        self.find = functools.partial(find_model, root=self.study.root, models_file=file)
        network = networks.describe(self.find, (), [model])[model]
        features = {}
        for unit in units.survey(self.study):
            path = self.study.folder(unit)
            path.mkdir(parents=True)
            if unit.split:
                made = {**network, "dataset": "in1k", "split": unit.split}
                features[f"{unit.split}_features"] = {**made, "rows_sha256": unit.split}
                (path / "X_Y.pth").write_bytes(b"rows")
                (path / "features.json").write_text(json.dumps({"identity": made, "rows_sha256": unit.split}))
            else:
                cfg = config.get_cfg(model_name=model)
                run = from_config(cfg, seed=unit.seed)
                run = dataclasses.asdict(dataclasses.replace(run, n_shot=unit.n_shot))
                (path / "results.json").write_text(json.dumps({"identity": {**run, **features}}))

    def others(self, keys=""):
        """Return the lines about other results."""
        words = keys.split()
        opts = ((), words) if keys.startswith("CLF") else (words, ())
        states = units.survey(self.study)
        return units.reasons(networks.compared(self.study, states, self.find, *opts), "other")


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_another_checkpoint_is_named_with_everything_made_of_it(world):
    assert world.others() == []
    world.checkpoint.write_bytes(b"trained again")
    (line,) = world.others()
    assert line.startswith("features of sup_resnet50 on in1k train and 5 more: checkpoint_sha256: ")
    assert " -> " in line and "rows" not in line and len(line) < 150


def test_runs_of_features_that_were_extracted_again_are_others(world):
    path = world.study.folder(world.study.features("sup_resnet50", "in1k")[0]) / "features.json"
    path.write_text(path.read_text().replace('"rows_sha256": "train"', '"rows_sha256": "other"'))
    (line,) = world.others()
    assert "all images, seed 22 and 3 more: rows_sha256: train -> other" in line


@pytest.mark.parametrize(
    ("keys", "difference", "n"),
    [
        ("FT_EXTRACT.IMAGE_CROP_SIZE 128", "preprocessing.size: 224 -> 128", 6),
        ("FT_EXTRACT.PRECISION fp16", "precision: fp32 -> fp16", 6),
        ("CLF.N_EPOCHS 50", "n_epochs: 100 -> 50", 4),
    ],
)
def test_other_settings_are_named(world, keys, difference, n):
    (line,) = world.others(keys)
    assert difference in line and f" and {n - 1} more: " in line


def test_loader_pooling_and_checkpoint_of_an_entry(tmp_path):
    loader, file = tmp_path / "nets.py", tmp_path / "models.yaml"
    loader.write_text("import torch\n\ndef load_my_model(init_args):\n    return torch.nn.Flatten(), None\n")
    checkpoint = f"checkpoint: {tmp_path}/models/sup/resnet50/model.ckpt"
    file.write_text(f"mine_net: {{loader: 'nets.py:load_my_model', {checkpoint}}}")
    world = World(tmp_path, "mine_net", str(file))
    assert world.others() == []
    loader.write_text(loader.read_text() + "# changed\n")
    world.checkpoint.write_bytes(b"trained again")
    file.write_text(f"mine_net: {{loader: 'nets.py:load_my_model', pooling: mean, {checkpoint}}}")
    (line,) = world.others()
    assert all(key in line for key in ("checkpoint_sha256", "loader_sha256", "pooling: default -> mean"))


def test_features_of_the_original_toolkit_are_taken_as_they_are(world):
    for unit in world.study.features("sup_resnet50", "in1k"):
        (world.study.folder(unit) / "features.json").unlink()
    for unit in world.study.runs("sup_resnet50", "in1k"):
        path = world.study.folder(unit) / "results.json"
        record = json.loads(path.read_text())
        record["identity"] |= {f"{split}_features": {"rows_sha256": "x"} for split in ("train", "test")}
        path.write_text(json.dumps(record))
    assert world.others() == []


def test_results_of_a_network_that_is_gone_are_kept_and_told(world, caplog):
    world.checkpoint.unlink()
    assert world.others() == []
    assert "cannot be loaded: sup_resnet50" in caplog.text


def test_names_and_patterns(tmp_path):
    for name in ("a/net", "a/other", "b/net", "no_model/x", "limit-2/a"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "models.yaml").write_text("c_net: {}\n")
    file = str(tmp_path / "models.yaml")
    assert networks.choose(tmp_path, file, None) == ("a_net", "a_other", "b_net", "c_net")
    names = ("timm_x", "a_net", "b_net", "c_net")
    assert networks.choose(tmp_path, file, ["timm_x", "*_net", "a_net"]) == names
    for name in ("d_*", "no", "../x_y"):
        with pytest.raises(CogError, match="model"):
            networks.choose(tmp_path, None, [name])


def test_processes_that_crash_are_told_from_those_that_answer():
    found = networks.in_processes(lambda value: os._exit(9) if value == 2 else value, [1, 2, 3], 2)
    assert list(found) == [1, None, 3]
