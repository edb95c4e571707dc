"""Models of timm, torchvision, open_clip and transformers by name: the libraries' own features."""

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
from hostile import Payload
from huggingface_hub.errors import LocalEntryNotFoundError
from marks import first_quick
from PIL import Image
from random_networks import randomize

import cog
from cog.data.pixels import normalizer, resize_and_crop, to_input
from cog.errors import CogError
from cog.models import libraries
from cog.models.choice import LIBRARIES, find_model
from cog.models.networks import T2TViT

#: Name and side of the images; those of torchvision also with the classifier. The first are quick.
NETWORKS = """
timm_test_resnet 64, timm_test_convnext 64, timm_test_vit 160, timm_mobilenetv3_small_050 64,
torchvision_mobilenet_v3_small 64 classifier.3, torchvision_shufflenet_v2_x0_5 64 fc, openclip_vit 32,
openclip_vit.quick 32, openclip_coca 32, openclip_rn 64, openclip_timm 160,
hf_vit 32, hf_vit_mae 32, hf_resnet 32, hf_clip 32,
timm_test_efficientnet 64, timm_test_vit3 160, timm_test_vit4 160, timm_test_byobnet 64, timm_levit_128s 224,
timm_eva02_tiny_patch14_224 224, timm_crossvit_9_240 240, timm_vit_small_patch14_reg4_dinov2 112,
torchvision_mnasnet0_5 64 classifier.1, torchvision_regnet_y_400mf 64 fc,
torchvision_densenet121 64 classifier, torchvision_swin_t 64 head, torchvision_inception_v3 96 fc,
torchvision_googlenet 64 fc, hf_deit 32, hf_beit 32, hf_dinov2 32, hf_dinov2_with_registers 32, hf_swin 32,
hf_convnext 32, hf_siglip 32
"""

_TEXT = {"context_length": 8, "vocab_size": 64, "width": 16, "heads": 2, "layers": 1}
_VIT = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}
_POOLED = {"attentional_pool": True, "attn_pooler_queries": 9, "attn_pooler_heads": 2, "output_tokens": True}
#: Image towers of open_clip.
OPEN_CLIP = {
    "vit": _VIT,
    "coca": _VIT | _POOLED,
    "rn": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None},
    "timm": {"image_size": 160, "timm_model_name": "test_vit", "timm_pool": "avg", "timm_proj": "linear"},
}

_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_SMALL = _SIZES | {"image_size": 32, "patch_size": 8}
_TEXT_HF = _SIZES | {"hidden_size": 16}
_SWIN = {"patch_size": 4, "embed_dim": 16, "depths": [1], "num_heads": [2], "window_size": 4}
_STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
#: Configurations of transformers by type of model; those of others are ``_SMALL``.
TRANSFORMERS = {
    "beit": _SMALL | {"use_relative_position_bias": True},
    "dinov2_with_registers": _SMALL | {"num_register_tokens": 2},
    "swin": _SWIN | {"image_size": 32},
    "convnext": _STAGES | {"image_size": 32},
    "resnet": _STAGES | {"embedding_size": 8},
    "clip": {"vision_config": _SMALL, "text_config": _TEXT_HF, "projection_dim": 24},
    "siglip": {"vision_config": _SMALL, "text_config": _TEXT_HF},
}
STATISTICS = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}
PROCESSOR = {
    **{"size": {"shortest_edge": 42}, "crop_size": {"height": 32, "width": 32}, "do_center_crop": True},
    **{"resample": 3, "image_processor_type": "CLIPImageProcessor", **STATISTICS},
}


@pytest.fixture(scope="module", autouse=True)
def small_models(tmp_path_factory):
    """Declare :data:`OPEN_CLIP`. The libraries, which take seconds to import, are imported here alone."""
    global open_clip, transformers
    open_clip, transformers = (pytest.importorskip(name) for name in ("open_clip", "transformers"))
    folder = tmp_path_factory.mktemp("open_clip")
    for name, vision in OPEN_CLIP.items():
        config = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": _TEXT}
        if name == "coca":
            config |= {"custom_text": True, "multimodal_cfg": {**_TEXT, "embed_cls": True}}
        (folder / f"{name}.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder)
    open_clip.pretrained._PRETRAINED["vit"] = {"quick": {"quick_gelu": True}}


def write(root: Path, name: str, state: object) -> Path:
    path = root.joinpath(*name.split("_", 1), "model.ckpt")
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path)
    return path


def load(name: str, root: Path, **options):
    """Load a model whose files lie below ``root``."""
    choice = find_model(name, root=root)
    return cog.load_backbone(name, choice.checkpoint, model_dir=choice.folder, **options)


def images(size: int) -> torch.Tensor:
    return torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(5)) * 2 - 1


def make_transformer(root: Path, kind: str):
    """Write configuration and weights of a small model ``hf_<kind>``, and return it."""
    config = transformers.AutoConfig.for_model(kind, **TRANSFORMERS.get(kind, _SMALL))
    model = randomize(transformers.AutoModel.from_config(config))
    model.save_pretrained(root / "hf" / kind)
    (root / "hf" / kind / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return model


def released(full: str, root: Path, x: torch.Tensor, head: str = "") -> torch.Tensor:
    """Write a file of a model with its classifier or text tower; return the features that its users take."""
    library, _, name = full.partition("_")
    if library == "timm":
        sized = {"img_size": x.shape[-1]} if "dinov2" in name else {}
        network = randomize(timm.create_model(name, **sized))
        write(root, full, network.state_dict())
        network.reset_classifier(0)
        return network(x)
    if library == "torchvision":
        inception = {"init_weights": False, "transform_input": True}
        extra = inception if name in ("inception_v3", "googlenet") else {}
        network, seen = randomize(torchvision.models.get_model(name, weights=None, **extra)), []
        network.get_submodule(head).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        network(x)
        write(root, full, network.state_dict())
        return seen[0]
    if library == "openclip":
        model, _, tag = name.partition(".")
        network = randomize(open_clip.create_model(model, pretrained=None, force_quick_gelu=tag == "quick"))
        write(root, full, network.state_dict())
        return network.encode_image(x, normalize=False)
    network = make_transformer(root, name)
    if name in ("clip", "siglip"):
        features = network.get_image_features(pixel_values=x)
        return getattr(features, "pooler_output", features)
    if name == "vit_mae":
        network.config.mask_ratio = network.embeddings.config.mask_ratio = 0.0
        return network(x, noise=torch.arange(16.0).expand(len(x), -1)).last_hidden_state[:, 0]
    return network(x).pooler_output.flatten(1)


@pytest.mark.parametrize("case", first_quick(15, map(str.strip, NETWORKS.split(","))))
def test_features_are_those_of_the_library(case, tmp_path):
    name, size, *head = case.split()
    x = images(int(size))
    expected = released(name, tmp_path, x, *head)
    backbone = load(name, tmp_path, image_size=int(size))
    assert torch.equal(backbone(x), expected) and expected.std(0).max() > 0
    assert torch.equal(backbone(x), expected)  # nothing is drawn at random
    assert backbone.feature_dim == expected.shape[1]
    assert not any("text" in key for key in backbone.state_dict())


@pytest.mark.parametrize("case", ["timm_test_resnet 64", "openclip_vit 32", "hf_vit 32"])
def test_files_must_fit(case, tmp_path):
    name, size = case.split()
    released(name, tmp_path, images(int(size)))
    state = load(name, tmp_path).network.state_dict()
    key = next(key for key in state if key.endswith("weight"))
    for changed, says in (({}, "missing"), ({key: torch.zeros(3)}, "of another shape|instead of")):
        write(tmp_path, name, {k: v for k, v in state.items() if k != key} | changed)
        with pytest.raises(CogError, match=rf"does not fit the architecture: .*({says}).*{key}"):
            load(name, tmp_path)


VITS = """
timm_test_vit 160 1, hf_dinov2_with_registers 32 3, hf_clip 32 1, hf_deit 32 2,
timm_vit_small_patch14_reg4_dinov2 112 5, timm_test_vit3 160 1, hf_pixio 32 8
"""


@pytest.mark.parametrize("case", first_quick(3, map(str.strip, VITS.split(","))))
def test_pooling_of_tokens(case, tmp_path):
    """Of the last blocks as DINOv2 is evaluated: the class tokens, normalized, one after the other."""
    name, size, n_prefix = case.split()[0], *map(int, case.split()[1:])
    library, _, kind = name.partition("_")
    if library == "hf":
        network, n = make_transformer(tmp_path, kind), 2
        network = getattr(network, "vision_model", network)
        blocks = max((m for m in network.modules() if isinstance(m, torch.nn.ModuleList)), key=len)
        norm = getattr(network, "post_layernorm", None) or network.layernorm
    else:
        network, n = randomize(timm.create_model(kind, num_classes=0, img_size=size)), 4
        write(tmp_path, name, network.state_dict())
        blocks, norm = network.blocks, network.norm
    seen: list[torch.Tensor] = []
    for block in blocks:
        block.register_forward_hook(lambda _, __, y: seen.append(y[0] if isinstance(y, tuple) else y))
    x = images(size)
    tokens = network(x).last_hidden_state if library == "hf" else network.forward_features(x)
    final = getattr(network, "fc_norm", torch.nn.Identity())
    cls, mean = final(tokens[:, 0]), final(tokens[:, n_prefix:].mean(1))
    poolings = {"cls": cls, "mean": mean, "cls+mean": torch.cat([cls, mean], 1)}
    poolings[f"last{n}"] = torch.cat([final(norm(tokens)[:, 0]) for tokens in seen[-n:]], 1)
    for pooling, expected in poolings.items():
        assert torch.equal(load(name, tmp_path, pooling=pooling, image_size=size)(x), expected)
    if len(blocks) < 12:
        with pytest.raises(CogError, match="POOLING last12 |last-n"):
            load(name, tmp_path, pooling="last12", image_size=size)(x)


@pytest.mark.slow
def test_pooling_of_the_tokens_of_the_papers_models(tmp_path):
    timms = timm.create_model("deit_small_distilled_patch16_224")
    own = {"deit_small_distilled": (timms, 2), "t2tvit_t14": (T2TViT(), 1)}
    x, path = images(224)[:1], tmp_path / "model.ckpt"
    for name, (network, n_prefix) in own.items():
        torch.save({"model": randomize(network).state_dict()}, path)
        tokens = network.forward_features(x)
        both = cog.load_backbone(name, path, pooling="cls+mean")
        assert torch.equal(both(x), torch.cat([tokens[:, 0], tokens[:, n_prefix:].mean(1)], 1))
        assert torch.equal(cog.load_backbone(name, path)(x), tokens[:, 0])
    with pytest.raises(CogError, match="POOLING mean: model dino_resnet50 gives no tokens; leave it out$"):
        cog.load_backbone("dino_resnet50", path, pooling="mean")


# ---- image sizes, and weights of the libraries


def test_position_embeddings_of_timm_are_resized(tmp_path):
    network = randomize(timm.create_model("test_vit", num_classes=0))
    write(tmp_path, "timm_test_vit", network.state_dict())
    larger = timm.create_model("test_vit", num_classes=0, img_size=96)
    larger.load_state_dict(timm.models.vision_transformer.checkpoint_filter_fn(network.state_dict(), larger))
    x, larger = images(96), larger.requires_grad_(False).eval()
    assert torch.equal(load("timm_test_vit", tmp_path, image_size=96)(x), larger(x))
    with pytest.raises(CogError, match=r"images of 100 x 100 pixels"):
        load("timm_test_vit", tmp_path, image_size=100)


@pytest.mark.parametrize("name", ["timm_test_resnet", "torchvision_shufflenet_v2_x0_5", "openclip_vit.mine"])
def test_own_weights_of_a_library_run_no_code(name, tmp_path, monkeypatch):
    """The file is in the library's cache; timm asks torch for everything in it, and gets weights alone."""
    file = tmp_path / "hub/checkpoints/shufflenetv2_x0.5-f707e7126e.pth"
    file.parent.mkdir(parents=True)

    def download(*_, filename, **__):
        if filename.endswith(".safetensors"):
            raise LocalEntryNotFoundError("there is a pickle alone")
        return str(file)

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr(timm.models._hub, "hf_hub_download", download)
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "vit", {"mine": {"url": "x/w.pt"}})
    monkeypatch.setattr(open_clip.factory, "download_pretrained", lambda *_, **__: str(file))
    makers = {"timm": timm.create_model, "torchvision": torchvision.models.get_model}
    library, _, model = name.removesuffix(".mine").partition("_")
    network = makers.get(library, open_clip.create_model)(model)
    torch.save(network.state_dict(), file)
    expected = getattr(network, "visual", network).state_dict()
    loaded = cog.load_backbone(name).network.state_dict()
    assert loaded and all(torch.equal(value, expected[key]) for key, value in loaded.items())
    torch.save({"state_dict": Payload(tmp_path / "marker")}, file)
    with pytest.raises(CogError, match="cannot be loaded") as error:
        cog.load_backbone(name)
    assert not (tmp_path / "marker").exists() and "\n" not in str(error.value)


def test_without_a_network(tmp_path, monkeypatch, caplog):
    def fail(*_, **__):
        raise OSError("no route to host\nmore")

    with pytest.raises(CogError, match=r"has no model .*timm_test_vit\.r160_in1k"):
        libraries.find("timm_test_vit.r161_in1k")
    assert tuple(libraries.LIBRARIES) == LIBRARIES
    other = write(tmp_path / "models", "timm_test_resnet", {})
    other = other.rename(other.with_suffix(".bin"))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "download_url_to_file", fail)
    monkeypatch.setattr(timm.models._hub, "hf_hub_download", fail)
    for name in ("torchvision_shufflenet_v2_x0_5", "timm_test_resnet"):
        with pytest.raises(CogError, match=r"no route to host\); .* save it as .*/model.ckpt$"):
            load(name, tmp_path / "models")
    assert f"timm_test_resnet: the library's own weights are taken, {other} is not read" in caplog.text


def test_a_classifier_of_transformers_gives_its_class_token(tmp_path):
    make_transformer(tmp_path, "vit")
    config = transformers.AutoConfig.for_model("vit", **_SMALL, num_labels=5)
    classifier = randomize(transformers.AutoModelForImageClassification.from_config(config))
    classifier.save_pretrained(tmp_path / "hf/vit")
    x = images(32)
    expected = classifier.vit(x).last_hidden_state[:, 0]
    assert torch.equal(load("hf_vit", tmp_path)(x), expected)  # not a pooler with random weights


@pytest.mark.parametrize(
    "file, content, says",
    [
        ("config.json", None, "without a network, save config.json"),
        ("preprocessor_config.json", None, "without a network, save config.json"),
        ("config.json", '{"model_type": "own", "auto_map": {"AutoConfig": "net.C"}}', "is not run"),
        ("config.json", '{"model_type": "vit", "hidden_size": "many"}', ""),
        ("preprocessor_config.json", '{"size": 32, "image_mean": [1]}', r"MEAN = \[1\] is not valid"),
        ("preprocessor_config.json", '{"image_processor_type": "MobileViTImageProcessor"}', "reverses the"),
    ],
)
def test_bad_files_of_transformers_run_no_code(file, content, says, tmp_path, monkeypatch):
    make_transformer(tmp_path, "vit")
    marker = tmp_path / "marker"
    (tmp_path / "hf/vit/net.py").write_text(f"open({str(marker)!r}, 'w')")
    (tmp_path / "hf/vit" / file).unlink()
    if content is not None:
        (tmp_path / "hf/vit" / file).write_text(content)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CogError, match=says) as error:
        load("hf_vit", tmp_path)
    assert not marker.exists() and "\n" not in str(error.value) and len(str(error.value)) < 900
    monkeypatch.setattr("transformers.__version__", "5.1.0")
    with pytest.raises(CogError, match=r"needs 'transformers>=5.2' \(found 5.1.0\); pip install 'transf"):
        load("hf_vit", tmp_path)


NOISE = np.random.default_rng(0).integers(0, 256, (11, 15, 3), dtype=np.uint8)
PHOTO = Image.fromarray(NOISE).resize((467, 335), Image.Resampling.BICUBIC)


def own_input(name: str, folder: Path) -> torch.Tensor:
    """Return the input that a library makes of the photo for a model."""
    title, _, name = name.partition("_")
    model, _, tag = name.partition(".")
    if title == "timm":
        config = timm.data.resolve_data_config({}, pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
        return timm.data.create_transform(**config, is_training=False)(PHOTO)
    if title == "torchvision":
        return torchvision.models.get_model_weights(model)[tag].transforms()(PHOTO)
    if title == "openclip":
        known = open_clip.pretrained.get_pretrained_cfg(model, tag)
        config = {key: known[key] for key in ("mean", "std", "interpolation", "resize_mode")}
        config = open_clip.transform.PreprocessCfg(size=224, **config)
        return open_clip.transform.image_transform_v2(config, False)(PHOTO)
    entries = PROCESSORS[name]
    (folder / "preprocessor_config.json").write_text(json.dumps(entries))
    transformers.AutoConfig.for_model("vit").save_pretrained(folder)
    kind = entries["image_processor_type"]
    processor = getattr(transformers, f"{kind}Pil", None) or getattr(transformers, kind)
    return processor(**entries)(PHOTO, return_tensors="pt")["pixel_values"][0]


def processor(kind: str, **entries) -> dict:
    return {"image_processor_type": f"{kind}ImageProcessor", **entries}


PROCESSORS = {
    "crop": PROCESSOR,
    "squash": processor("ViT", size={"height": 30, "width": 30}, resample=2, **STATISTICS),
    "small": processor("ConvNext", size={"shortest_edge": 28}, crop_pct=0.875, **STATISTICS),
    "large": processor("ConvNext", size={"shortest_edge": 384}, crop_pct=0.875, **STATISTICS),
    "pooled": PROCESSOR | processor("PoolFormer", crop_pct=0.9),
    "twice": processor("EfficientNet", size={"height": 30, "width": 30}, resample=3, **STATISTICS),
    "levit": PROCESSOR | processor("Levit"),
    "colors": PROCESSOR | processor("MobileViT", do_flip_channel_order=False),
    "plain": processor("Siglip", size={"height": 24, "width": 24}, resample=3, do_normalize=False),
}


@pytest.mark.parametrize(
    "name",
    [
        *(f"hf_{name}" for name in PROCESSORS),
        *(f"torchvision_{name}" for name in ("resnet50.IMAGENET1K_V2", "swin_v2_t.IMAGENET1K_V1")),
        *(f"timm_{name}" for name in ("resnet50.a1_in1k", "vit_base_patch16_siglip_224.webli")),
        *(f"openclip_{name}" for name in ("ViT-B-32.openai", "ViT-B-16-SigLIP.webli")),
    ],
)
def test_preprocessing_is_that_of_the_library(name, tmp_path):
    expected = own_input(name, tmp_path)
    pre = libraries.find(name, tmp_path).preprocess
    statistics = normalizer(pre.mean, pre.std, torch.device("cpu"))
    seen = to_input(torch.from_numpy(resize_and_crop(PHOTO, pre))[None], *statistics)[0]
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-5)
