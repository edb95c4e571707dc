"""Models of open_clip and transformers by name, against the libraries' own features and preprocessing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
from hostile import Payload
from marks import first_quick, later
from PIL import Image
from random_networks import randomize
from test_libraries import images, load, write
from torchvision import transforms

import cog
from cog.data.pixels import Preprocess
from cog.errors import CogError
from cog.models import libraries
from cog.models.choice import find_model, preprocess_of

open_clip, transformers = later("open_clip"), later("transformers")

pytestmark = pytest.mark.usefixtures("quick_initial_values")
needs_open_clip = pytest.mark.skipif(
    open_clip is None, reason="open_clip is not installed (pip install '.[hub]')"
)
needs_transformers = pytest.mark.skipif(
    transformers is None, reason="transformers is not installed (pip install '.[hub]')"
)

TEXT = {"context_length": 8, "vocab_size": 64, "width": 16, "heads": 2, "layers": 1}
#: Image towers of open_clip, and side of their images.
_VIT = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}
_POOLED = {"attentional_pool": True, "attn_pooler_queries": 9, "attn_pooler_heads": 2, "output_tokens": True}
OPEN_CLIP = {
    "small-ViT": _VIT,
    "small-CoCa": _VIT | _POOLED,
    "small-RN": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None},
    "small-timm": {
        "image_size": 160,
        "timm_model_name": "test_vit",
        "timm_pool": "avg",
        "timm_proj": "linear",
    },
}
OPEN_CLIP_SLOW = {
    "ViT-B-32.openai": 224,
    "RN50.openai": 224,
    "ViT-B-16-SigLIP.webli": 224,
    "convnext_base.laion400m_s13b_b51k": 224,
    "EVA02-B-16.merged2b_s8b_b131k": 224,
}


@pytest.fixture(scope="module")
def small_models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("open_clip")
    for name, vision in OPEN_CLIP.items():
        config = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": TEXT}
        if name == "small-CoCa":
            config |= {"custom_text": True, "multimodal_cfg": {**TEXT, "embed_cls": True}}
        (folder / f"{name}.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder)


def encode(model, x):
    with torch.no_grad():
        return model.encode_image(x, normalize=False)


@needs_open_clip
@pytest.mark.parametrize("name", OPEN_CLIP)
def test_features_are_those_of_open_clip(name, small_models, tmp_path):
    model = randomize(open_clip.create_model(name, pretrained=None))
    path = write(tmp_path, f"openclip_{name}", model.state_dict())
    x = images(OPEN_CLIP[name]["image_size"])
    backbone = cog.load_backbone(f"openclip_{name}", path)
    with torch.no_grad():
        assert torch.equal(backbone(x), encode(model, x))
    assert backbone.feature_dim == 24 and not any("text" in key for key in backbone.state_dict())


@needs_open_clip
@pytest.mark.slow
@pytest.mark.parametrize("name", OPEN_CLIP_SLOW)
def test_features_of_released_architectures_are_those_of_open_clip(name, tmp_path):
    architecture, _, tag = name.partition(".")
    model = randomize(open_clip.create_model(architecture, pretrained=None, force_quick_gelu=tag == "openai"))
    path = write(tmp_path, f"openclip_{name}", model.state_dict())
    x = images(OPEN_CLIP_SLOW[name])
    with torch.no_grad():
        assert torch.equal(cog.load_backbone(f"openclip_{name}", path)(x), encode(model, x))


@needs_open_clip
def test_bare_towers_and_other_sizes_of_open_clip(small_models, tmp_path):
    model = randomize(open_clip.create_model("small-ViT", pretrained=None))
    bare = write(tmp_path, "openclip_small-ViT", model.visual.state_dict())
    larger = open_clip.create_model("small-ViT", pretrained=None, force_image_size=48)
    state = model.state_dict()
    open_clip.factory.resize_pos_embed(state, larger)
    larger.load_state_dict(state)
    x = images(48)
    with torch.no_grad():
        backbone = cog.load_backbone("openclip_small-ViT", bare, image_size=48)
        assert torch.equal(backbone(x), encode(larger.eval(), x))
    resnet = open_clip.create_model("small-RN", pretrained=None)  # open_clip does not resize its embedding
    with pytest.raises(CogError, match="are the weights for images of 64 pixels alone"):
        cog.load_backbone(
            "openclip_small-RN", write(tmp_path, "openclip_small-RN", resnet.state_dict()), image_size=96
        )


@needs_open_clip
def test_wrong_names_and_poolings_of_open_clip(small_models, tmp_path):
    with pytest.raises(CogError, match=r"did you mean .*openclip_ViT-B-32\.openai"):
        libraries.find("openclip_ViT-B-32.openia")
    with pytest.raises(CogError, match="no weights of openclip_ViT-B-32 to download"):
        cog.load_backbone("openclip_ViT-B-32")
    path = write(tmp_path, "openclip_small-RN", open_clip.create_model("small-RN").state_dict())
    with pytest.raises(CogError, match="POOLING cls: model openclip_small-RN gives no tokens"):
        cog.load_backbone("openclip_small-RN", path, pooling="cls")


@needs_open_clip
@pytest.mark.slow
def test_open_clips_own_weights(small_models, tmp_path, monkeypatch):
    """open_clip finds the file in its cache, and gets nothing but weights from it."""
    model = randomize(open_clip.create_model("small-ViT", pretrained=None))
    torch.save({"state_dict": model.state_dict()}, tmp_path / "weights.pt")
    entry = {"url": "https://example.org/weights.pt", "quick_gelu": True}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "small-ViT", {"mine": entry})
    monkeypatch.setattr(
        open_clip.factory, "download_pretrained", lambda *_, **__: str(tmp_path / "weights.pt")
    )
    backbone = cog.load_backbone("openclip_small-ViT.mine")
    assert "QuickGELU" in repr(backbone.network)
    assert torch.equal(backbone.network.class_embedding, model.visual.class_embedding)
    marker = tmp_path / "marker"
    torch.save({"state_dict": Payload(marker)}, tmp_path / "weights.pt")
    with pytest.raises(CogError, match="cannot be loaded"):
        cog.load_backbone("openclip_small-ViT.mine")
    assert not marker.exists()


# ---- transformers ---------------------------------------------------------------------------------------

_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SMALL = _SIZES | {"image_size": 32, "patch_size": 8}
TEXT_HF = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
#: Configuration of each model type.
TRANSFORMERS = {
    "vit": SMALL,
    "deit": SMALL,
    "beit": SMALL | {"use_relative_position_bias": True},
    "dinov2": SMALL,
    "dinov2_with_registers": SMALL | {"num_register_tokens": 2},
    "vit_mae": SMALL,
    "swin": {
        "image_size": 32,
        "patch_size": 4,
        "embed_dim": 16,
        "depths": [1],
        "num_heads": [2],
        "window_size": 4,
    },
    "convnext": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "image_size": 32},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
    "clip": {"vision_config": SMALL, "text_config": TEXT_HF, "projection_dim": 24},
    "siglip": {"vision_config": SMALL, "text_config": TEXT_HF},
}

STATISTICS = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}
PROCESSOR = {
    "size": {"shortest_edge": 42},
    "crop_size": {"height": 32, "width": 32},
    "do_center_crop": True,
    "resample": 3,
    "image_processor_type": "CLIPImageProcessor",
    **STATISTICS,
}


def make_transformer(root: Path, kind: str, name: str = "org--net"):
    """Write configuration and weights of a small model, and return it and the folder."""
    folder = root / "hf" / name
    config = transformers.AutoConfig.for_model(kind, **TRANSFORMERS[kind])
    model = randomize(transformers.AutoModel.from_config(config))
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return model, folder


def load_from(folder: Path, **options) -> torch.nn.Module:
    return cog.load_backbone("hf_org--net", folder / "model.safetensors", model_dir=folder, **options)


def own_features(model, kind: str, x: torch.Tensor) -> torch.Tensor:
    """Return the features as a user of transformers would take them."""
    with torch.no_grad():
        if kind in ("clip", "siglip"):
            features = model.get_image_features(pixel_values=x)
            return getattr(features, "pooler_output", features)
        if kind == "vit_mae":
            model.config.mask_ratio = model.embeddings.config.mask_ratio = 0.0
            return model(x, noise=torch.arange(16.0).expand(len(x), -1)).last_hidden_state[:, 0]
        return model(x).pooler_output.flatten(1)


@needs_transformers
@pytest.mark.parametrize(
    "kind",
    first_quick(4, sorted(TRANSFORMERS, key=lambda kind: kind not in ("vit", "vit_mae", "resnet", "clip"))),
)
def test_features_are_those_of_transformers(kind, tmp_path, capsys):
    model, _ = make_transformer(tmp_path, kind)
    capsys.readouterr()
    choice = find_model("hf_org--net", root=tmp_path)
    assert choice.checkpoint.name == "model.safetensors"
    cfg = choice.config()
    assert preprocess_of(cfg) == Preprocess(32, 32, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    backbone = choice.load("cpu", cfg)
    x = images(32)
    expected = own_features(model, kind, x)
    with torch.no_grad():
        assert torch.equal(backbone(x), expected) and expected.std(0).max() > 0
        assert torch.equal(backbone(x), expected)  # nothing is drawn at random
    assert not any("text" in name for name in backbone.state_dict())
    assert "Loading weights" not in capsys.readouterr().err


@needs_transformers
@pytest.mark.parametrize(
    ("kind", "n_prefix"), [("vit", 1), ("dinov2_with_registers", 3), ("clip", 1), ("deit", 2)]
)
def test_pooling_of_transformers_tokens(kind, n_prefix, tmp_path):
    model, folder = make_transformer(tmp_path, kind)
    x = images(32)
    with torch.no_grad():
        tokens = getattr(model, "vision_model", model)(x).last_hidden_state
        for pooling, expected in (("cls", tokens[:, 0]), ("mean", tokens[:, n_prefix:].mean(1))):
            assert torch.equal(load_from(folder, pooling=pooling)(x), expected)


@needs_transformers
@pytest.mark.parametrize("kind", first_quick(2, ["dinov2_with_registers", "clip", "vit"]))
def test_the_last_blocks_of_transformers_vits(kind, tmp_path):
    """As DINOv2 is evaluated; the outputs of the blocks are caught by hooks."""
    model, folder = make_transformer(tmp_path, kind)
    vision, seen = getattr(model, "vision_model", model), []
    blocks = max((m for m in vision.modules() if isinstance(m, torch.nn.ModuleList)), key=len)
    for block in blocks:
        block.register_forward_hook(
            lambda _, __, output: seen.append(output[0] if isinstance(output, tuple) else output)
        )
    norm = getattr(vision, "post_layernorm", None) or vision.layernorm
    x = images(32)
    with torch.no_grad():
        vision(pixel_values=x)
        expected = torch.cat([norm(tokens)[:, 0] for tokens in seen[-2:]], 1)
        assert torch.equal(load_from(folder, pooling="last2")(x), expected)
        with pytest.raises(CogError, match="does not give the tokens of 4 blocks"):
            load_from(folder, pooling="last4")


@needs_transformers
def test_a_classifier_of_transformers_gives_its_class_token(tmp_path):
    _, folder = make_transformer(tmp_path, "vit")
    config = transformers.AutoConfig.for_model("vit", **SMALL, num_labels=5)
    classifier = randomize(transformers.AutoModelForImageClassification.from_config(config))
    classifier.save_pretrained(folder)
    x = images(32)
    with torch.no_grad():
        expected = classifier.vit(x).last_hidden_state[:, 0]
        assert torch.equal(load_from(folder)(x), expected)  # not a pooler with random weights


@needs_transformers
def test_checkpoints_of_transformers_must_fit(tmp_path):
    model, folder = make_transformer(tmp_path, "vit")
    state = model.state_dict()
    torch.save({k: v for k, v in state.items() if k != "layernorm.weight"}, tmp_path / "less.pt")
    with pytest.raises(CogError, match=r"does not fit the architecture: .* 1 \(layernorm.weight\)"):
        cog.load_backbone("hf_org--net", tmp_path / "less.pt", model_dir=folder)
    torch.save(state | {"layernorm.weight": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(CogError, match="does not fit the architecture"):
        cog.load_backbone("hf_org--net", tmp_path / "other.pt", model_dir=folder)


@needs_transformers
@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json"])
def test_transformers_without_a_network(file, tmp_path, monkeypatch):
    _, folder = make_transformer(tmp_path, "vit")
    (folder / file).unlink()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CogError, match=f"{file} of org/net") as error:
        load("hf_org--net", tmp_path)
    assert "\n" not in str(error.value) and f"save it as {folder / file}" in str(error.value)


@needs_transformers
def test_code_of_a_repository_is_not_run(tmp_path):
    _, folder = make_transformer(tmp_path, "vit")
    marker = tmp_path / "marker"
    (folder / "net.py").write_text(f"open({str(marker)!r}, 'w')")
    auto = {"AutoConfig": "net.Config", "AutoModel": "net.Net"}
    (folder / "config.json").write_text(json.dumps({"model_type": "own_kind", "auto_map": auto}))
    with pytest.raises(CogError, match="code of the repository is not run") as error:
        load("hf_org--net", tmp_path)
    assert not marker.exists() and "\n" not in str(error.value)


@needs_transformers
@pytest.mark.parametrize(
    "file, content",
    [
        ("config.json", "[1]"),
        ("config.json", '{"model_type": "vit", "hidden_size": "many"}'),
        ("preprocessor_config.json", '{"size": "large"}'),
        ("preprocessor_config.json", '{"size": 32, "image_mean": [1]}'),
        ("preprocessor_config.json", '{"size": 32, "resample": 9}'),
    ],
)
def test_damaged_files_of_transformers(file, content, tmp_path):
    _, folder = make_transformer(tmp_path, "vit")
    (folder / file).write_text(content)
    with pytest.raises(CogError) as error:
        load("hf_org--net", tmp_path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


# ---- preprocessing --------------------------------------------------------------------------------------


def photo() -> Image.Image:
    """Return a smooth picture that is not square."""
    noise = np.random.default_rng(0).integers(0, 256, (11, 15, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((467, 335), Image.Resampling.BICUBIC)


def as_the_model_sees_it(name: str, folder: Path | None = None) -> torch.Tensor:
    pre = libraries.find(name, folder).preprocess
    size = (pre.resize, pre.resize) if pre.squash else pre.resize
    interpolation = transforms.InterpolationMode(pre.interpolation)
    steps = [transforms.Resize(size, interpolation), transforms.CenterCrop(pre.size), transforms.ToTensor()]
    return transforms.Compose([*steps, transforms.Normalize(pre.mean, pre.std)])(photo())


def own_transform(title: str, name: str):
    """Return the function with which a library makes the input of a model."""
    if title == "timm":
        config = timm.data.resolve_data_config({}, pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
        return timm.data.create_transform(**config, is_training=False)
    model, _, tag = name.partition(".")
    if title == "torchvision":
        return torchvision.models.get_model_weights(model)[tag].transforms()
    known = open_clip.pretrained.get_pretrained_cfg(model, tag)
    config = {key: known[key] for key in ("mean", "std", "interpolation", "resize_mode")}
    return open_clip.transform.image_transform_v2(
        open_clip.transform.PreprocessCfg(size=224, **config), False
    )


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("torchvision", "resnet50.IMAGENET1K_V1"),
        ("torchvision", "resnet50.IMAGENET1K_V2"),
        ("torchvision", "swin_v2_t.IMAGENET1K_V1"),
        ("timm", "resnet18.tv_in1k"),
        ("timm", "resnet50.a1_in1k"),
        ("timm", "vit_base_patch16_siglip_224.webli"),
        pytest.param("openclip", "ViT-B-32.openai", marks=needs_open_clip),
        pytest.param("openclip", "ViT-B-16-SigLIP.webli", marks=needs_open_clip),
    ],
)
def test_preprocessing_is_that_of_the_library(title, name):
    expected = own_transform(title, name)(photo())
    torch.testing.assert_close(as_the_model_sees_it(f"{title}_{name}"), expected, rtol=0, atol=1e-6)


@needs_transformers
@pytest.mark.parametrize(
    "kind, entries",
    [
        ("CLIPImageProcessor", PROCESSOR),
        ("ViTImageProcessor", {"size": {"height": 30, "width": 30}, "resample": 2, **STATISTICS}),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 28}, "crop_pct": 0.875, **STATISTICS}),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 384}, "crop_pct": 0.875, **STATISTICS}),
        ("SiglipImageProcessor", {"size": {"height": 24, "width": 24}, "resample": 3, "do_normalize": False}),
    ],
)
def test_preprocessing_is_that_of_transformers(kind, entries, tmp_path):
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(entries | {"image_processor_type": kind}))
    transformers.AutoConfig.for_model("vit").save_pretrained(tmp_path)
    processor = getattr(transformers, f"{kind}Pil", None) or getattr(transformers, kind)
    expected = processor(**entries)(photo(), return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(as_the_model_sees_it("hf_org--net", tmp_path), expected, rtol=0, atol=1e-5)
