"""Models of timm and torchvision by name: their own features, and one line for everything else."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
from hostile import Payload
from marks import first_quick
from plain_pixels import plain_inputs
from random_networks import randomize
from safetensors.torch import save_file

import cog
from cog import constants
from cog.commands import extract_features
from cog.errors import CogError
from cog.models import libraries
from cog.models.backbone import Backbone
from cog.models.choice import find_model
from cog.models.networks import T2TViT

pytestmark = pytest.mark.usefixtures("quick_initial_values")

#: Name, and side of the images in pixels.
TIMM = {"test_resnet": 64, "test_convnext": 64, "test_vit": 160, "mobilenetv3_small_050": 64}
TIMM_SLOW = {
    "test_efficientnet": 64,
    "test_vit3": 160,
    "test_vit4": 160,
    "test_byobnet": 64,
    "convnext_atto": 64,
    "vit_tiny_patch16_224": 224,
    "eva02_tiny_patch14_224": 224,
    "swin_tiny_patch4_window7_224": 224,
    "swinv2_tiny_window8_256": 256,
    "vit_small_patch14_dinov2": 112,
    "vit_small_patch14_reg4_dinov2": 112,
    "vit_small_patch16_dinov3": 256,
    "vit_tiny_r_s16_p8_224": 224,  # a hybrid of convolutions and attention
    "levit_128s": 224,  # two classifiers
    "crossvit_9_240": 240,
    "deit3_small_patch16_224": 224,
    "beit_base_patch16_224": 224,
}

#: Classifier, and side of the images.
TORCHVISION = {"mobilenet_v3_small": ("classifier.3", 64), "shufflenet_v2_x0_5": ("fc", 64)}
TORCHVISION_SLOW = {
    "resnet18": ("fc", 64),
    "mnasnet0_5": ("classifier.1", 64),
    "regnet_y_400mf": ("fc", 64),
    "vit_b_32": ("heads.head", 224),
    "swin_t": ("head", 224),
    "convnext_tiny": ("classifier.2", 64),
    "densenet121": ("classifier", 64),
    "efficientnet_b0": ("classifier.1", 64),
    "inception_v3": ("fc", 299),
    "googlenet": ("fc", 224),
    "vgg11": ("classifier.6", 224),
    "maxvit_t": ("classifier.5", 224),
}


def cases(quick, slow):
    return [*quick, *(pytest.param(name, marks=pytest.mark.slow) for name in slow)]


def write(root: Path, name: str, state: object) -> Path:
    title, _, architecture = name.partition("_")
    path = root / title / architecture / "model.ckpt"
    path.parent.mkdir(parents=True)
    torch.save(state, path)
    return path


def load(name: str, root: Path, *opts: str) -> Backbone:
    """Load a model whose checkpoint lies below ``root``, as commands do."""
    choice = find_model(name, root=root)
    return choice.load("cpu", choice.config(opts))


def images(size: int) -> torch.Tensor:
    return torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(5)) * 2 - 1


@pytest.mark.parametrize("name", cases(TIMM, TIMM_SLOW))
def test_features_are_those_of_timm(name, tmp_path):
    size = (TIMM | TIMM_SLOW)[name]
    network = randomize(timm.create_model(name, **({"img_size": size} if "dinov2" in name else {})))
    path = write(tmp_path, f"timm_{name}", network.state_dict())
    network.reset_classifier(0)
    x = images(size)
    with torch.no_grad():
        expected = network(x)
        backbone = cog.load_backbone(f"timm_{name}", path, image_size=x.shape[-1])
        assert torch.equal(backbone(x), expected) and expected.std(0).max() > 0
    assert backbone.feature_dim == expected.shape[1]


@pytest.mark.parametrize("name", cases(TORCHVISION, TORCHVISION_SLOW))
def test_features_are_what_torchvisions_classifier_gets(name, tmp_path):
    head, size = (TORCHVISION | TORCHVISION_SLOW)[name]
    extra = {"init_weights": False, "transform_input": True} if name in ("inception_v3", "googlenet") else {}
    network = randomize(torchvision.models.get_model(name, weights=None, **extra))
    seen = []
    network.get_submodule(head).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = images(size)
    with torch.no_grad():
        network(x)
        path = write(tmp_path, f"torchvision_{name}", network.state_dict())
        backbone = cog.load_backbone(f"torchvision_{name}", path, image_size=size)
        assert torch.equal(backbone(x), seen[0]) and seen[0].std(0).max() > 0
    assert backbone.feature_dim == seen[0].shape[1]


def test_every_name_of_timm_can_name_a_folder():
    names = [*timm.list_models(), *timm.list_models(pretrained=True)]
    assert len(names) > 1000 and all(constants.is_model_name(f"timm_{name}") for name in names)


def named(prefix: str, state: dict) -> dict:
    return {prefix + name: value for name, value in state.items()}


def other(state: dict) -> dict:
    """Return weights that are not to be loaded."""
    return {name: value + 1 for name, value in state.items()}


#: Forms in which training scripts save weights, those with a second set of weights as averages.
WRAPPINGS = {
    "training": lambda state: {"state_dict": state, "epoch": 3},
    "no averages": lambda state: {"state_dict": state, "state_dict_ema": {}, "model_ema": None},
    "parallel": lambda state: named("module.", state),
    "compiled": lambda state: {"state_dict": named("_orig_mod.", state)},
    "parallel, compiled": lambda state: {"model": named("module._orig_mod.", state)},
    "compiled, parallel": lambda state: named("_orig_mod.module.", state),
    "Lightning": lambda state: {"state_dict": named("model.", state) | {"loss.weight": torch.zeros(3)}},
    "backbone and head": lambda state: {
        "model": {"state_dict": named("module.backbone.", state) | {"module.head.weight": torch.zeros(3, 3)}}
    },
    "averages of timm": lambda state: {"state_dict": other(state), "state_dict_ema": named("module.", state)},
    "averages of torchvision": lambda state: {
        "model": other(state),
        "model_ema": {"n_averaged": torch.tensor(5), **named("module.", state)},
    },
    "averages beside": lambda state: {"model": other(state), "ema": state, "opt": {}},
    "averages, compiled": lambda state: {
        "model": named("_orig_mod.", other(state)),
        "model_ema": named("module._orig_mod.", state),
    },
    "parts": lambda state: {"model": {"backbone": state, "head": {"weight": torch.zeros(3, 3)}}},
    "DINO": lambda state: {
        "student": named("module.backbone.", other(state)),
        "teacher": named("backbone.", state) | {"head.mlp.0.weight": torch.zeros(3, 3)},
    },
    "DINO in one": lambda state: {
        "state_dict": named("student.backbone.", other(state))
        | named("backbone.", other(state))
        | named("teacher.backbone.", state)
    },
    "without classifier": lambda state: {n: value for n, value in state.items() if not n.startswith("fc.")},
    "another classifier": lambda state: state | {"fc.weight": torch.zeros(7, 3), "fc.bias": torch.zeros(7)},
}


#: Those with averages in an entry beside one of other weights.
ANNOUNCED = {"averages of timm", "averages of torchvision", "averages beside", "averages, compiled"}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_files_of_training_scripts(wrapping, tmp_path, caplog):
    caplog.set_level("INFO", logger="cog")
    state = randomize(timm.create_model("test_resnet")).state_dict()
    path = write(tmp_path, "timm_test_resnet", WRAPPINGS[wrapping](state))
    loaded = cog.load_backbone("timm_test_resnet", path).network.state_dict()
    assert loaded and all(torch.equal(value, state[name]) for name, value in loaded.items())
    assert ("averaged weights" in caplog.text) == (wrapping in ANNOUNCED)


def test_a_file_with_unknown_names_is_refused_with_advice(tmp_path):
    state = timm.create_model("test_resnet").state_dict()
    path = write(tmp_path, "timm_test_resnet", {"state_dict": named("net.0.", state)})
    with pytest.raises(
        CogError, match=r"missing .*conv1.*unexpected .*net\.0\.conv1.*; rename them, or load"
    ):
        cog.load_backbone("timm_test_resnet", path)
    average = {"state_dict": state, "state_dict_ema": {"conv1.0.weight": state["conv1.0.weight"]}}
    with pytest.raises(CogError, match="missing"):  # not the other weights in its place
        cog.load_backbone("timm_test_resnet", write(tmp_path / "2", "timm_test_resnet", average))


@pytest.mark.parametrize(
    "edit, said",
    [
        (lambda state: state.pop("norm.weight"), r"missing 1 \(norm.weight\)"),
        (lambda state: state.update(extra=torch.zeros(3)), r"unexpected 1 \(extra\)"),
        (lambda state: state.update({"norm.weight": torch.zeros(3)}), r"norm.weight \(3,\) instead of"),
    ],
)
def test_checkpoints_must_fit(edit, said, tmp_path):
    state = timm.create_model("test_vit").state_dict()
    edit(state)
    with pytest.raises(CogError, match=f"does not fit the architecture: .*{said}"):
        cog.load_backbone("timm_test_vit", write(tmp_path, "timm_test_vit", state))


def test_pickles_of_numpy_arrays(tmp_path):
    state = randomize(torchvision.models.shufflenet_v2_x0_5()).state_dict()
    arrays = {name: value.numpy() for name, value in state.items()}
    arrays["conv1.0.weight"] = arrays["conv1.0.weight"].astype(">f4")
    path = tmp_path / "model.ckpt"
    path.write_bytes(pickle.dumps({"state_dict": arrays, "epoch": 3}))
    loaded = cog.load_backbone("torchvision_shufflenet_v2_x0_5", path).network.state_dict()
    assert loaded and all(torch.equal(value, state[name]) for name, value in loaded.items())
    arrays["conv1.0.weight"] = np.array(["a", "b"])
    path.write_bytes(pickle.dumps(arrays))
    with pytest.raises(CogError, match=r"conv1.0.weight is an array of <U1, expected numbers$"):
        cog.load_backbone("torchvision_shufflenet_v2_x0_5", path)


@pytest.mark.parametrize(
    "name, near",
    [
        ("timm_vit_base_patch14_dinov", "timm_vit_base_patch14_dinov2"),
        ("timm_test_vit.r161_in1k", "timm_test_vit.r160_in1k"),
        ("torchvision_resnt50", "torchvision_resnet50"),
        ("torchvision_resnet50.IMAGENET_V2", "torchvision_resnet50.IMAGENET1K_V2"),
        ("torchvision_fcn_resnet50", "torchvision_wide_resnet50_2"),  # segments
    ],
)
def test_wrong_names(name, near):
    with pytest.raises(CogError, match="has no model") as error:
        libraries.find(name)
    assert near in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", first_quick(1, ["test_vit", "test_vit3", "test_vit4"]))
def test_pooling_of_timms_tokens(name, tmp_path):
    network = randomize(timm.create_model(name, num_classes=0))
    path = write(tmp_path, f"timm_{name}", network.state_dict())
    assert network.num_prefix_tokens == 1
    x = images(160)
    with torch.no_grad():
        tokens = network.forward_features(x)
        mean = network.fc_norm(tokens[:, 1:].mean(1))
        assert torch.equal(cog.load_backbone(f"timm_{name}", path, pooling="mean")(x), mean)
        cls = network.fc_norm(tokens[:, 0])
        assert torch.equal(cog.load_backbone(f"timm_{name}", path, pooling="cls")(x), cls)
        assert torch.equal(
            cog.load_backbone(f"timm_{name}", path, pooling="cls+mean")(x), torch.cat([cls, mean], 1)
        )


@pytest.mark.slow
def test_pooling_of_the_tokens_of_the_papers_models(tmp_path):
    timms = timm.create_model("deit_small_distilled_patch16_224")
    own = {"deit_small_distilled": (timms, 2), "t2tvit_t14": (T2TViT(), 1)}
    x = images(224)
    for name, (network, n_prefix) in own.items():
        torch.save({"model": randomize(network).state_dict()}, tmp_path / "model.ckpt")
        with torch.no_grad():
            tokens = network.forward_features(x)
            both = cog.load_backbone(name, tmp_path / "model.ckpt", pooling="cls+mean")
            assert torch.equal(both(x), torch.cat([tokens[:, 0], tokens[:, n_prefix:].mean(1)], 1))
            assert both.feature_dim == 768
            assert torch.equal(cog.load_backbone(name, tmp_path / "model.ckpt")(x), tokens[:, 0])
    text = r"^FT_EXTRACT.POOLING mean: model dino_resnet50 gives no tokens; leave it out$"
    with pytest.raises(CogError, match=text):
        cog.load_backbone("dino_resnet50", tmp_path / "model.ckpt", pooling="mean")


@pytest.mark.parametrize(
    "name", first_quick(1, ["test_vit", "vit_small_patch14_reg4_dinov2", "deit_tiny_patch16_224"])
)
def test_the_last_blocks_of_timms_vits(name, tmp_path):
    """As DINOv2 is evaluated: the class tokens of the last blocks, normalized, one after the other."""
    size = {"test_vit": 160, "vit_small_patch14_reg4_dinov2": 112}.get(name, 224)
    network = randomize(timm.create_model(name, num_classes=0, img_size=size))
    path = write(tmp_path, f"timm_{name}", network.state_dict())
    seen = []
    for block in network.blocks:
        block.register_forward_hook(lambda _, __, output: seen.append(output))
    x = images(size)
    with torch.no_grad():
        network(x)
        expected = torch.cat([network.norm(tokens)[:, 0] for tokens in seen[-4:]], 1)
        backbone = cog.load_backbone(f"timm_{name}", path, image_size=size, pooling="last4")
        assert torch.equal(backbone(x), expected) and backbone.feature_dim == expected.shape[1]


@pytest.mark.parametrize(
    ("name", "pooling", "says"),
    [
        ("timm_test_resnet", "mean", "POOLING mean is for models that give tokens .* leave it out"),
        (
            "timm_test_convnext",
            "last4",
            "POOLING last4: ConvNeXt of timm does not give the tokens of 4 blocks",
        ),
        ("torchvision_shufflenet_v2_x0_5", "mean", "model torchvision_shufflenet_v2_x0_5 gives no tokens"),
    ],
)
def test_pooling_of_networks_without_tokens(name, pooling, says, tmp_path):
    library, _, model = name.partition("_")
    network = timm.create_model(model) if library == "timm" else torchvision.models.get_model(model)
    with pytest.raises(CogError, match=says):
        cog.load_backbone(name, write(tmp_path, name, network.state_dict()), pooling=pooling)


@pytest.mark.slow
def test_position_embeddings_of_timm_are_resized(tmp_path):
    network = randomize(timm.create_model("vit_tiny_patch16_224", num_classes=0))
    path = write(tmp_path, "timm_vit_tiny_patch16_224", network.state_dict())
    larger = timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=96)
    larger.load_state_dict(timm.models.vision_transformer.checkpoint_filter_fn(network.state_dict(), larger))
    x = images(96)
    with torch.no_grad():
        assert torch.equal(
            cog.load_backbone("timm_vit_tiny_patch16_224", path, image_size=96)(x), larger.eval()(x)
        )


def test_other_sizes_are_tried_before_extraction(tmp_path):
    path = write(tmp_path, "timm_test_vit", timm.create_model("test_vit").state_dict())
    assert load("timm_test_vit", tmp_path).feature_dim == 64
    with pytest.raises(CogError, match=r"images of 100 x 100 pixels"):
        load("timm_test_vit", tmp_path, "FT_EXTRACT.IMAGE_CROP_SIZE", "100")
    state = timm.create_model("test_vit").state_dict() | {"norm.weight": torch.zeros(3)}
    torch.save(state, path)
    with pytest.raises(CogError, match=r"norm.weight \(3,\) .* for images of 160 pixels alone"):
        cog.load_backbone("timm_test_vit", path, image_size=96)


# ---- weights of the libraries ---------------------------------------------------------------------------


def test_torchvisions_own_weights(tmp_path, monkeypatch):
    state = randomize(torchvision.models.resnet18()).state_dict()
    cached = tmp_path / "hub/checkpoints/resnet18-f37072fd.pth"
    cached.parent.mkdir(parents=True)
    torch.save(state, cached)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    network = cog.load_backbone("torchvision_resnet18", None).network
    assert torch.equal(network.conv1.weight, state["conv1.weight"])


def test_timms_own_weights(tmp_path, monkeypatch):
    state = randomize(timm.create_model("test_resnet")).state_dict()
    save_file(state, tmp_path / "model.safetensors")
    asked = []

    def download(repo_id, **_):
        asked.append(repo_id)
        return str(tmp_path / "model.safetensors")

    monkeypatch.setattr(timm.models._hub, "hf_hub_download", download)
    network = cog.load_backbone("timm_test_resnet").network
    assert asked == ["timm/test_resnet.r160_in1k"]
    assert torch.equal(network.conv1[0].weight, state["conv1.0.weight"])


@pytest.mark.parametrize("name", ["timm_test_resnet", "torchvision_resnet18"])
def test_a_librarys_own_file_runs_no_code(name, tmp_path, monkeypatch):
    """timm asks torch for everything in a pickle; here it gets weights alone."""
    marker = tmp_path / "marker"
    path = tmp_path / "hub/checkpoints/resnet18-f37072fd.pth"
    path.parent.mkdir(parents=True)
    torch.save({"state_dict": Payload(marker)}, path)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr(timm.models._hub, "hf_hub_download", lambda *_, **__: str(path))
    with pytest.raises(CogError, match="cannot be loaded") as error:
        cog.load_backbone(name)
    assert not marker.exists() and "\n" not in str(error.value)


def test_without_a_network(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("no route to host\nmore")

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "download_url_to_file", fail)
    monkeypatch.setattr(timm.models._hub, "hf_hub_download", fail)
    for name, link in (
        ("torchvision_resnet18", "https://download.pytorch.org/models/resnet18-f37072fd.pth"),
        ("timm_test_resnet", "https://huggingface.co/timm/test_resnet.r160_in1k"),
    ):
        with pytest.raises(CogError) as error:
            load(name, tmp_path)
        line = str(error.value)
        assert "no route to host" in line and "\n" not in line and link in line
        assert str(tmp_path / name.replace("_", "/", 1) / "model.ckpt") in line
    with pytest.raises(CogError, match=r"no weights of timm_test_maxvit .*timm/test_maxvit/model\.ckpt"):
        load("timm_test_maxvit", tmp_path)


# ---- extraction -----------------------------------------------------------------------------------------


def test_extraction_takes_the_librarys_preprocessing(image_tree, tmp_path, caplog):
    caplog.set_level("INFO", logger="cog")
    network = randomize(timm.create_model("test_vit"))
    write(tmp_path, "timm_test_vit.r160_in1k", network.state_dict())
    network.reset_classifier(0)
    arguments = f"--model timm_test_vit.r160_in1k --models_root_dir {tmp_path} --dataset birds --device cpu"
    command = [*arguments.split(), "--images_root", str(image_tree), "--split", "test"]
    assert extract_features.main([*command, "FT_EXTRACT.IMAGE_NORM.MEAN", "[0.4, 0.5, 0.6]"]) == 0
    folder = tmp_path / "timm/test_vit.r160_in1k/birds/features_test"
    assert "images of 160 pixels" in caplog.text and "std [0.5, 0.5, 0.5]; 64 features (pool" in caplog.text
    stored = torch.load(folder / "X_Y.pth", weights_only=True)
    statistics = {"mean": [0.4, 0.5, 0.6], "std": [0.5, 0.5, 0.5]}
    x = plain_inputs(folder, image_tree / "test", resize=160, crop=160, **statistics)
    with torch.no_grad():
        torch.testing.assert_close(stored["X"], network(x), rtol=1e-5, atol=1e-5)
