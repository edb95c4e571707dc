"""A study does not take results of another network or of other settings for its own."""

import dataclasses
import functools
import json

import pytest

from cog import config
from cog.commands import study as command
from cog.errors import CogError
from cog.logreg.settings import from_config
from cog.models.choice import find_model
from cog.study import networks, units
from cog.study.units import Study


class World:
    """A root with the finished outputs of a model on a data set; the weights are never loaded."""

    def __init__(self, folder):
        model = "sup_resnet50"
        self.checkpoint = folder / "models/sup/resnet50/model.ckpt"
        self.checkpoint.parent.mkdir(parents=True)
        self.checkpoint.write_bytes(b"weights")
        self.study = Study(folder / "models", (model,), ("in1k",), seeds=(22, 37), n_shots=(0, 8))
        self.find = functools.partial(find_model, root=self.study.root)
        network = networks.describe(self.find, (), [model])[model]
        made = {split: {**network, "dataset": "in1k", "split": split} for split in ("train", "test")}
        features = {f"{split}_features": {**made[split], "rows_sha256": split} for split in made}
        for unit in units.survey(self.study):
            if unit.split:
                self.write(unit, {"identity": made[unit.split], "rows_sha256": unit.split})
                (self.study.folder(unit) / "X_Y.pth").write_bytes(b"rows")
            else:
                run = from_config(config.get_cfg(model_name=model), seed=unit.seed)
                run = dataclasses.asdict(dataclasses.replace(run, n_shot=unit.n_shot))
                self.write(unit, {"identity": {**run, **features}})

    def write(self, unit, record):
        folder = self.study.folder(unit)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ("features.json" if unit.split else "results.json")).write_text(json.dumps(record))

    def others(self, keys=""):
        opts = ((), keys.split()) if keys.startswith("CLF") else (keys.split(), ())
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
    unit = world.study.features("sup_resnet50", "in1k")[0]
    world.write(unit, world.study.record(unit) | {"rows_sha256": "other"})
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


def test_features_of_the_original_toolkit_and_of_a_network_that_is_gone_are_kept(world, caplog):
    for unit in world.study.features("sup_resnet50", "in1k"):
        (world.study.folder(unit) / "features.json").unlink()
    for unit in world.study.runs("sup_resnet50", "in1k"):
        rows = {f"{split}_features": {"rows_sha256": "x"} for split in ("train", "test")}
        world.write(unit, {"identity": world.study.record(unit)["identity"] | rows})
    assert world.others() == []
    world.checkpoint.unlink()
    assert world.others() == [] and "cannot be loaded: sup_resnet50" in caplog.text
    line = f"--models_root_dir {world.study.root} --dataset in1k --seeds 22 37 --n_shot 0 8 --dry_run --model"
    assert command.main([*line.split(), "sup_resnet50"]) == 0
    assert command.main([*line.split(), "sup_resnet50", "dino_resnet50"]) == 2  # without checkpoint


def test_the_root_of_a_limit_is_made(world, tmp_path, monkeypatch):
    monkeypatch.setattr(command.local, "run_here", lambda *args: 1 / 0)
    words = f"--models_root_dir {world.study.root}/limit-2 --log_dir {tmp_path} --dataset x --images_root /"
    with pytest.raises(ZeroDivisionError):
        command.main(words.split())


def test_names_and_patterns(tmp_path):
    for name in ("a/net", "a/other", "b/net", "no_model/x", "limit-2/a"):
        (tmp_path / name).mkdir(parents=True)
    file = tmp_path / "models.yaml"
    file.write_text("c_net: {}\n")
    choose = functools.partial(networks.choose, tmp_path, str(file))
    assert choose(None) == ("a_net", "a_other", "b_net", "c_net")
    assert choose(["timm_x", "*_net", "a_net"]) == ("timm_x", "a_net", "b_net", "c_net")
    for name in ("d_*", "no", "../x_y"):
        with pytest.raises(CogError, match="model"):
            choose([name])
