"""All 31 models, from synthetic files in their authors' layouts to the features of their authors' code."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from golden import rules

import cog
from cog.extract import exact_float32
from cog.models import backbone as backbone_module
from cog.models.backbone import build_network
from cog.models.zoo import MODELS, get_spec

TOLERANCE = 1e-4

#: One model per schema and container that is quick to write; the others are slow.
QUICK = ("t2tvit_t14", "nat_m4", "efficientnet_b1", "deit_small_distilled", "dino_resnet50")


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
KEPT = {
    "clip_resnet50",
    "sup_inception-v3",
    "simclrv2_resnet50",
    "byol_resnet50",
    *QUICK,
    "mopro_resnet50",
    "sup_vgg19",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a function from a model (and container) to its checkpoint, written once per schema."""
    folder = tmp_path_factory.mktemp("golden")
    written: dict[tuple, object] = {}

    def write(name, container=None):
        index = rules.load_index()
        key = (index[name]["schema"], container)
        if key not in written:
            keep = {index[kept]["schema"] for kept in KEPT}
            for old in [old for old in written if old[0] not in keep or old[1]]:
                Path(written.pop(old)).unlink()
            path = folder / f"{key[0]}.{container}.ckpt"
            written[key] = rules.write_checkpoint(name, "A", path, container)
        return written[key]

    yield write
    shutil.rmtree(folder)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("name", "container"), cases())
def test_golden_features(name, container, files):
    network = cog.load_backbone(name, files(name, container))
    assert error(run(network, name), name) < TOLERANCE
    assert network.feature_dim == rules.load_index()[name]["feature_dim"] == get_spec(name).feature_dim


@pytest.mark.gpu
@pytest.mark.parametrize("name", QUICK)
def test_golden_features_on_a_gpu(name, files):
    network = cog.load_backbone(name, files(name), "cuda")
    x = torch.from_numpy(rules.make_input(rules.load_index()[name]["input_size"], "A"))
    with torch.inference_mode(), exact_float32():
        assert error(network(x.cuda()).cpu(), name) < 10 * TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "variant", "suffix"),
    [("clip_resnet50", "trunk", ".trunk"), ("sup_inception-v3", "transform_input", ".transform_input")],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_variants(name, variant, suffix, files):
    network = cog.load_backbone(name, files(name), variant=variant)
    assert error(run(network, name), name, suffix) < TOLERANCE


def test_the_goldens_cover_the_declared_models():
    assert set(rules.load_index()) == set(MODELS)


# ---- typical mistakes: each must be visible by far ------------------------------------------------------


def spoilt(files, name, change) -> float:
    """Error after ``change(network)`` has been done to a correctly loaded network."""
    backbone = cog.load_backbone(name, files(name))
    changed = change(backbone.network)
    return error(run(changed if callable(changed) else backbone, name), name)


def set_eps(kind, eps):
    def change(network):
        modules = [module for module in network.modules() if isinstance(module, kind)]
        assert modules and all(module.eps != eps for module in modules)
        for module in modules:
            module.eps = eps

    return change


def test_mean_of_class_and_distillation_token(files):
    name = "deit_small_distilled"
    assert spoilt(files, name, lambda n: lambda x: n.tokens(x)[:, :2].mean(1)) > 0.5
    assert spoilt(files, name, lambda n: lambda x: n.tokens(x)[:, 1]) > 0.5
    assert spoilt(files, name, lambda n: lambda x: n.tokens(x)[:, 0]) < TOLERANCE


def test_layer_norm_eps_and_gelu_of_deit(files, monkeypatch):
    name = "deit_small_distilled"
    assert spoilt(files, name, set_eps(torch.nn.LayerNorm, 1e-5)) > 10 * TOLERANCE
    gelu = torch.nn.functional.gelu
    monkeypatch.setattr("cog.models.arch.vit.F.gelu", lambda x: gelu(x, approximate="tanh"))
    assert spoilt(files, name, lambda n: None) > 3 * TOLERANCE


def test_channels_not_reversed(files):
    def change(network):
        conv = network.stem.conv
        conv.weight = torch.nn.Parameter(conv.weight.flip(1), requires_grad=False)

    assert spoilt(files, "efficientnet_b1", change) > 0.1
    assert spoilt(files, "efficientnet_b1", set_eps(torch.nn.BatchNorm2d, 1e-3)) > 0.01


def test_scales_and_position_embedding_of_t2t(files, monkeypatch):
    name = "t2tvit_t14"

    def token_scale(network):
        for block in (network.tokens_to_token.attention1, network.tokens_to_token.attention2):
            block.attn.scale = 64**-0.5

    assert spoilt(files, name, token_scale) > 0.1
    assert spoilt(files, name, lambda n: n.pos_embed.zero_()) > 0.1
    assert spoilt(files, name, set_eps(torch.nn.LayerNorm, 1e-6)) > 10 * TOLERANCE
    attend = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        "cog.models.arch.vit.F.scaled_dot_product_attention",
        lambda q, k, v, scale=None: attend(q, k, v, scale=scale or 384**-0.5),
    )
    assert spoilt(files, name, lambda n: None) > 0.1


def test_activations_of_nat(files, monkeypatch):
    name = "nat_m4"

    def sigmoid_gates(network):
        for module in list(network.modules()):
            if hasattr(module, "gate"):
                module.gate = torch.nn.Sigmoid()

    assert spoilt(files, name, sigmoid_gates) > 0.1
    assert spoilt(files, name, set_eps(torch.nn.BatchNorm2d, 1e-3)) > 0.01
    monkeypatch.setattr("cog.models.arch.nat.F.mish", torch.nn.functional.silu)
    assert spoilt(files, name, lambda n: None) > 0.1


@pytest.mark.slow
def test_skipped_keys_stride_and_momentum_encoder(files):
    name = "mopro_resnet50"

    def reset(module_name):
        def change(network):
            fresh = torch.nn.BatchNorm2d(network.get_submodule(module_name).num_features).eval()
            network.get_submodule(module_name).load_state_dict(fresh.state_dict())

        return change

    def stride_in_1x1(network):
        for layer in (network.layer2, network.layer3, network.layer4):
            layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)

    assert spoilt(files, name, reset("layer1.0.bn2")) > 0.01
    assert spoilt(files, name, lambda n: n.layer4[2].bn3.bias.zero_()) > 0.01
    assert spoilt(files, name, stride_in_1x1) > 0.1
    state = torch.load(files(name), weights_only=True)["state_dict"]
    momentum = {k.removeprefix("module.encoder_k."): v for k, v in state.items() if "encoder_k." in k}
    assert spoilt(files, name, lambda n: n.load_state_dict(momentum, strict=False)) > 1


@pytest.mark.slow
def test_padding_of_byol_and_simclr(files, monkeypatch):
    def with_args(name, **arch_args):
        spec = get_spec(name)
        monkeypatch.setattr(
            backbone_module,
            "get_spec",
            lambda _: type(spec)(**{**vars(spec), "arch_args": arch_args}),
        )
        return spoilt(files, name, lambda n: None)

    assert with_args("byol_resnet50") > 0.1
    assert with_args("byol_resnet50", convolutions="same") > 0.01
    assert with_args("byol_resnet50", max_pool="same") > 0.1
    assert with_args("byol_resnet50", convolutions="same", max_pool="same") < TOLERANCE
    assert with_args("simclrv2_resnet50", convolutions="same", max_pool="same") > 0.1
    assert with_args("simclrv2_resnet50") > 0.01


@pytest.mark.slow
def test_reference_code_pads_simclr_on_both_sides(files):
    network = cog.load_backbone("simclrv2_resnet50", files("simclrv2_resnet50"), profile="reference-code")
    off = error(run(network, "simclrv2_resnet50"), "simclrv2_resnet50")
    assert off == pytest.approx(8.14e-2, rel=0.02)  # the size of exactly this difference, see the notes


@pytest.mark.slow
def test_layer_of_vgg_and_eps_of_inception(files):
    def before_relu(network):
        network.classifier[4] = torch.nn.Identity()

    def fc6(network):
        network.classifier = network.classifier[:2]

    assert spoilt(files, "sup_vgg19", before_relu) > 1
    assert spoilt(files, "sup_vgg19", fc6) > 1
    assert spoilt(files, "sup_inception-v3", set_eps(torch.nn.BatchNorm2d, 1e-5)) > 0.01


# ---- sizes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(MODELS))
def test_parameters_and_width_are_as_declared_and_as_in_the_paper(name):
    spec = get_spec(name)
    network = build_network(spec)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count == spec.parameters
    if spec.paper_parameters is None:
        assert name == "clip_resnet50"
    elif round(count / 1e6, 1) != spec.paper_parameters:
        # The paper counts the auxiliary classifier, which features do not use; the row says so.
        assert name == "sup_inception-v3" and str(spec.paper_parameters) in spec.note
    size = spec.preprocess.crop
    for n_images in (1, 2):  # the original NAT loader lost the batch axis of single images
        y = network.eval()(torch.empty(n_images, 3, size, size, device="meta"))
        assert tuple(y.shape) == (n_images, spec.feature_dim)
    with_classifier = build_network(spec, classifier=True).eval()
    if spec.published is not None:
        logits = getattr(with_classifier, "classify", with_classifier)
        x = torch.empty(2, 3, spec.published.crop, spec.published.crop, device="meta")
        assert tuple(logits(x).shape) == (2, 1000)
