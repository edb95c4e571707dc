"""What a model has seen in pretraining, by its name."""

from __future__ import annotations

import pytest

from cog.errors import CogError
from cog.models.pretraining import pretraining
from cog.models.request import ModelRequest
from cog.models.spec import PRETRAINING
from cog.models.zoo import MODELS

#: As the releases of the weights say it.
KNOWN = {
    "timm_resnet50.a1_in1k": "IN-1K",
    "timm_vit_small_patch16_224.dino": "IN-1K",
    "timm_vit_base_patch16_224.mae": "IN-1K",
    "timm_hiera_tiny_224.mae_in1k_ft_in1k": "IN-1K",
    "torchvision_resnet50": "IN-1K",
    "torchvision_vit_b_16.IMAGENET1K_V1": "IN-1K",
    "hf_facebook--vit-mae-base": "IN-1K",
    "timm_vit_base_patch16_224.augreg2_in21k_ft_in1k": "IN-21K",
    "timm_convnext_base.fb_in22k": "IN-21K",
    "timm_vit_base_patch14_dinov2.lvd142m": "IN-21K",
    "timm_vit_small_patch16_dinov3.lvd1689m": "IN-21K",
    "timm_eva02_large_patch14_224.mim_m38m": "IN-21K",
    "timm_vit_base_patch16_clip_224.laion2b_ft_in12k_in1k": "IN-21K",
    "timm_tf_efficientnetv2_s.in21k": "IN-21K",
    "hf_facebook--dinov2-base": "IN-21K",
    "hf_google--vit-base-patch16-224-in21k": "IN-21K",
    "hf_microsoft--beit-base-patch16-224-pt22k-ft22k": "IN-21K",
    "hub_facebookresearch--dinov2.dinov2_vits14": "IN-21K",
    "timm_resnet50.fb_swsl_ig1b_ft_in1k": "IN-1K + other",
    "timm_resnet50.fb_ssl_yfcc100m_ft_in1k": "IN-1K + other",
    "timm_beitv2_base_patch16_224.in1k_ft_in1k": "IN-1K + other",
    "timm_edgenext_base.usi_in1k": "IN-1K + other",
    "timm_resnetv2_50x1_bit.goog_distilled_in1k": "IN-1K + other",
    "timm_tf_efficientnet_b0.ns_jft_in1k": "IN-1K + other",
    "timm_vit_base_patch16_clip_224.openai_ft_in1k": "IN-1K + other",
    "torchvision_vit_b_16.IMAGENET1K_SWAG_E2E_V1": "IN-1K + other",
    "timm_vit_base_patch16_siglip_224.webli": "web",
    "timm_vit_7b_patch16_dinov3.sat493m": "web",
    "timm_resnet50_clip.openai": "web",
    "openclip_ViT-B-32.laion2b_s34b_b79k": "web",
    "openclip_ViT-B-16.dfn2b": "web",
    "openclip_EVA02-B-16.merged2b_s8b_b131k": "web",
    "hf_google--siglip2-base-patch16-224": "web",
    "hf_openai--clip-vit-base-patch32": "web",
    "timm_vit_base_patch16_224": "unknown",  # the tag is timm's to choose
    "hf_org--net": "unknown",
    "hub_facebookresearch--dino.dino_vits16": "IN-1K",
    "hf_apple--mobilevitv2-1.0-imagenet1k-256": "IN-1K",
    # Instagram and YFCC-100M, whatever the repository is called.
    "hub_facebookresearch--semi-supervised-ImageNet1K-models.resnet50_swsl": "web",
    "hub_facebookresearch--semi-supervised-ImageNet1K-models.resnet50_ssl": "unknown",
    # Not the authors of MAE and DINO, and nobody says what the third saw before IN-1K.
    "hf_lab--vit-mae-of-cells": "unknown",
    "hub_checkout.dino_vits16": "unknown",
    "hf_lab--vit-base-finetuned-imagenet1k": "unknown",
    "mine_dinov2": "unknown",
    "sup_resnet50": "IN-1K",
    "mopro_resnet50": "web",
    "ssup_resnet50": "IN-1K + other",
    "swsup_resnet50": "IN-1K + other",
    "clip_resnet50": "web",
}


@pytest.mark.parametrize("name", KNOWN)
def test_names(name):
    assert pretraining(name) == KNOWN[name] and KNOWN[name] in PRETRAINING


def test_the_papers_models_on_web_data_and_no_others_have_seen_more():
    more = {name for name, spec in MODELS.items() if spec.pretraining != "IN-1K"}
    assert more == {name for name, spec in MODELS.items() if spec.paper.category == "web-data"}


def test_what_the_users_file_says_comes_first(tmp_path):
    path = tmp_path / "models.yaml"
    path.write_text(
        "timm_resnet50.a1_in1k: {pretraining: web}\n"
        "mine_a: {source: timm_convnext_base.fb_in22k}\n"
        "mine_b: {source: timm_convnext_base.fb_in22k, pretraining: IN-1K}\n"
        "mine_own: {source: timm_convnext_base.fb_in22k, checkpoint: own.pth}\n"
        "mine_same: {source: timm_convnext_base.fb_in22k, checkpoint: own.pth, pretraining: IN-21K}\n"
        "mine_c: {loader: 'net.py:load'}\n"
        "mine_d: {pretrained: x}\n"
    )
    names = ("timm_resnet50.a1_in1k", "mine_a", "mine_b", "mine_c", "mine_e", "mine_own", "mine_same")
    wanted = ["web", "IN-21K", "IN-1K", "unknown", "unknown", "unknown", "IN-21K"]
    assert [pretraining(name, path) for name in names] == wanted
    with pytest.raises(CogError, match="did you mean pretraining"):
        pretraining("mine_d", path)


def test_the_default_tag_of_timm_is_recorded():
    pytest.importorskip("timm")
    assert ModelRequest("timm_vit_base_patch16_224").pretraining == "IN-21K"
    assert ModelRequest("timm_vit_base_patch16_224", model_loader="a.py:b").pretraining == "unknown"


@pytest.mark.slow
def test_most_of_timms_weights_are_known():
    timm = pytest.importorskip("timm")
    names = timm.list_models(pretrained=True)
    unknown = [name for name in names if pretraining(f"timm_{name}") == "unknown"]
    assert len(unknown) < 0.06 * len(names), unknown
