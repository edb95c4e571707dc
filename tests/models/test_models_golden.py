"""All 31 models, from synthetic files in their authors' layouts to the features of their authors' code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import torchvision
from golden import containers, rules

import cog
from cog.models import networks
from cog.models.checkpoint import read_paper_model
from cog.models.paper_models import MODELS, list_models
from cog.runtime.device import exact_float32

TOLERANCE = 1e-4

#: One model per schema and container that is quick to write; the others are slow.
QUICK = ("nat_m4", "dino_resnet50")


def error(features: torch.Tensor, name: str, suffix: str = "", seed: str = "A") -> float:
    """``max |f - g| / rms(g)``."""
    golden = rules.load_golden(name, seed, suffix)
    assert tuple(features.shape) == golden.shape
    return float(np.abs(features.numpy() - golden).max() / np.sqrt((golden**2).mean()))


def run(network, name: str, seed: str = "A") -> torch.Tensor:
    x = torch.from_numpy(rules.make_input(rules.load_index()[name]["input_size"], seed))
    with torch.inference_mode():
        return network(x)


def cases() -> list:
    listed = []
    index = rules.load_index()
    for name in sorted(index, key=lambda name: index[name]["schema"]):
        for variant in (None, *rules.load_schema(name).get("variants", {})):
            marks = [] if name in QUICK and variant is None else [pytest.mark.slow]
            listed.append(pytest.param(name, variant, marks=marks, id=f"{name}-{variant or 'original'}"))
    return listed


#: Models whose file several tests need; the others' are removed when the next one is written.
KEPT = {"clip_resnet50", "sup_inception-v3", "simclrv2_resnet50", "byol_resnet50", "deit_small", *QUICK}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a function from a model (and container) to its checkpoint, written once per schema."""
    folder = tmp_path_factory.mktemp("golden")
    written: dict[tuple, object] = {}
    arrays: dict[str, dict] = {}

    def fill(schema, seed, group=None):
        """Keep the arrays of the last model: its containers hold the same."""
        tensors = schema["groups"][group or schema["weights_group"]]["tensors"]
        key = json.dumps([seed, schema.get("gain"), tensors])
        if key not in arrays:
            arrays[key] = rules.fill(schema, seed, group)
        return arrays[key]

    def write(name, container=None):
        index = rules.load_index()
        key = (index[name]["schema"], container)
        if key not in written:
            keep = {index[kept]["schema"] for kept in KEPT}
            for old in [old for old in written if old[0] not in keep or old[1]]:
                Path(written.pop(old)).unlink()
            path = folder / f"{key[0]}.{container}.ckpt"
            if not container:
                arrays.clear()
            with mock.patch.object(containers, "fill", fill):
                written[key] = rules.write_checkpoint(name, "A", path, container)
        return written[key]

    yield write
    shutil.rmtree(folder)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("name", "container"), cases())
def test_golden_features(name, container, files):
    network = cog.load_backbone(name, files(name, container))
    assert error(run(network, name), name) < TOLERANCE
    assert network.feature_dim == rules.load_index()[name]["feature_dim"] == MODELS[name].dim


@pytest.mark.gpu
@pytest.mark.parametrize("name", QUICK)
def test_golden_features_on_a_gpu(name, files):
    network = cog.load_backbone(name, files(name), "cuda")
    x = torch.from_numpy(rules.make_input(rules.load_index()[name]["input_size"], "A"))
    with torch.inference_mode(), exact_float32():
        assert error(network(x.cuda()).cpu(), name) < 10 * TOLERANCE


@pytest.mark.slow
def test_the_trunk_of_clip(files):
    network = cog.load_backbone("clip_resnet50-trunk", files("clip_resnet50"))
    assert error(run(network, "clip_resnet50"), "clip_resnet50", ".trunk") < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simclrv2_resnet50", "byol_resnet50"])
def test_torchvisions_names(name, files, tmp_path):
    """Only names and container differ from the authors' file."""
    state = read_paper_model(files(name), MODELS[name], networks.build(MODELS[name]))
    state |= {"fc.weight": torch.zeros(1000, 2048), "fc.bias": torch.zeros(1000)}
    torch.save(state, tmp_path / "model.ckpt")
    assert error(run(cog.load_backbone(name, tmp_path / "model.ckpt"), name), name) < TOLERANCE


def test_the_goldens_cover_the_declared_models():
    assert set(rules.load_index()) == MODELS.keys() - set(list_models("other"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trex_resnet50", "trexstar_resnet50"])
def test_later_models_are_bare_resnets(name, tmp_path):
    """As their authors' README loads them: torchvision's names, without fc."""
    network = torchvision.models.resnet50().eval()
    state = {key: value for key, value in network.state_dict().items() if not key.startswith("fc.")}
    torch.save(state, tmp_path / "model.ckpt")
    network.fc = torch.nn.Identity()
    x = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(cog.load_backbone(name, tmp_path / "model.ckpt")(x), network(x))
