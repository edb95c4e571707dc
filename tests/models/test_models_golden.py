"""All 31 models, from synthetic files in their authors' layouts to the features of their authors' code."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision
from golden import rules

import cog
from cog.models.checkpoint import load_paper_model
from cog.models.paper_models import MODELS, list_models
from cog.runtime.device import exact_float32

TOLERANCE = 1e-4

#: Models that are quick to write; the others are slow.
QUICK = ("nat_m4", "dino_resnet50")


def error(network, name: str, suffix: str = "", device: str = "cpu") -> float:
    """``max |f - g| / rms(g)`` of the features of a fixed input."""
    x = torch.from_numpy(rules.make_input(rules.load_index()[name]["input_size"], "A"))
    with torch.inference_mode(), exact_float32():
        features = network(x.to(device)).cpu().numpy()
    golden = rules.load_golden(name, "A", suffix)
    assert features.shape == golden.shape
    return float(np.abs(features - golden).max() / np.sqrt((golden**2).mean()))


def cases() -> list:
    listed = []
    for name in rules.load_index():
        for variant in (None, *rules.load_schema(name).get("variants", {})):
            marks = [] if name in QUICK and variant is None else [pytest.mark.slow]
            listed.append(pytest.param(name, variant, marks=marks, id=f"{name}-{variant or 'original'}"))
    return listed


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("name", "variant"), cases())
def test_golden_features(name, variant, tmp_path):
    path = rules.write_checkpoint(name, "A", tmp_path / "model.ckpt", variant)
    network = cog.load_backbone(name, path)
    assert error(network, name) < TOLERANCE
    assert network.feature_dim == rules.load_index()[name]["feature_dim"] == MODELS[name].dim
    if name == "clip_resnet50":
        trunk = cog.load_backbone("clip_resnet50-trunk", path)
        assert error(trunk, name, ".trunk") < TOLERANCE
    if name in ("simclrv2_resnet50", "byol_resnet50"):  # torchvision's names, in a file of torch.save
        state = load_paper_model(MODELS[name], path).state_dict()
        torch.save(state | {"fc.weight": torch.zeros(1000, 2048)}, tmp_path / "other.ckpt")
        assert error(cog.load_backbone(name, tmp_path / "other.ckpt"), name) < TOLERANCE


@pytest.mark.gpu
@pytest.mark.parametrize("name", QUICK)
def test_golden_features_on_a_gpu(name, tmp_path):
    network = cog.load_backbone(name, rules.write_checkpoint(name, "A", tmp_path / "model.ckpt"), "cuda")
    assert error(network, name, device="cuda") < 10 * TOLERANCE


def test_the_goldens_cover_the_declared_models():
    assert set(rules.load_index()) == MODELS.keys() - set(list_models("other"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trex_resnet50", "trexstar_resnet50"])
def test_later_models_are_bare_resnets(name, tmp_path):
    """As their authors' README loads them: torchvision's names, without fc."""
    network = torchvision.models.resnet50().eval()
    network.fc = torch.nn.Identity()
    torch.save(network.state_dict(), tmp_path / "model.ckpt")
    x = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(cog.load_backbone(name, tmp_path / "model.ckpt")(x), network(x))
