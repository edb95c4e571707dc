"""What a model has seen in pretraining: from its row in the zoo, or from the user's file, else unknown."""

from __future__ import annotations

import pytest

from cog.errors import CogError
from cog.models.pretraining import pretraining
from cog.models.request import ModelRequest
from cog.models.zoo import MODELS


def test_the_papers_models_on_web_data_and_no_others_have_seen_more():
    more = {name for name, spec in MODELS.items() if spec.pretraining != "IN-1K"} - {"clip_resnet50-trunk"}
    assert more == {name for name, spec in MODELS.items() if spec.category == "web-data"}
    assert pretraining("sup_resnet50") == "IN-1K" and pretraining("ssup_resnet50") == "IN-1K + other"
    assert pretraining("clip_resnet50") == pretraining("clip_resnet50-trunk") == "web"


def test_names_and_tags_of_libraries_say_nothing():
    for name in ("timm_resnet50.a1_in1k", "hf_facebook--dinov2-base", "mine_dinov2"):
        assert pretraining(name) == "unknown"


def test_what_the_users_file_says_comes_first(tmp_path):
    path = tmp_path / "models.yaml"
    path.write_text(
        "timm_resnet50.a1_in1k: {pretraining: web}\n"
        "mine_a: {source: clip_resnet50}\n"
        "mine_b: {source: clip_resnet50, pretraining: IN-1K}\n"
        "mine_own: {source: clip_resnet50, checkpoint: own.pth}\n"
        "mine_same: {source: clip_resnet50, checkpoint: own.pth, pretraining: web}\n"
        "mine_c: {loader: 'net.py:load'}\n"
        "mine_d: {pretrained: x}\n"
    )
    names = ("timm_resnet50.a1_in1k", "mine_a", "mine_b", "mine_c", "mine_e", "mine_own", "mine_same")
    wanted = ["web", "web", "IN-1K", "unknown", "unknown", "unknown", "web"]
    assert [pretraining(name, path) for name in names] == wanted
    for name, said in zip(names, wanted, strict=True):
        if name != "mine_e":
            request = ModelRequest(name, models_root_dir=str(tmp_path)).with_models_file(str(path))
            assert request.pretraining == said
    with pytest.raises(CogError, match="expected source, loader|did you mean pretraining"):
        pretraining("mine_d", path)
