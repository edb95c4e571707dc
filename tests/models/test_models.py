"""Declarations, profiles, accepted layouts and conversions, the command line, and what gets imported."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import re
import subprocess
import sys

import hollow
import pytest
import tiny
import torch
from golden import rules
from marks import first_quick
from PIL import Image
from plain_pixels import plain_input
from safetensors.torch import save_file

import cog
from cog import config
from cog.constants import PROFILES
from cog.data.pixels import to_input
from cog.errors import CogError
from cog.models import check, model_docs, rename, top1
from cog.models.__main__ import main
from cog.models.backbone import build_network, load_network
from cog.models.checkpoint import load_strictly, read_state_dict
from cog.models.formats import safetensors
from cog.models.request import ModelRequest
from cog.models.spec import CATEGORIES, ModelSpec, Network, Paper, Published, Unwrap
from cog.models.zoo import MODELS, get_spec

# ---- declarations ---------------------------------------------------------------------------------------


def test_the_models_of_the_paper():
    counts = {category: len(cog.list_models(category)) for category in CATEGORIES}
    assert counts == {
        "reference": 1, "architecture": 10, "self-supervision": 10, "regularization": 6, "web-data": 4,
        "first-version": 2, "later": 2,
    }  # fmt: skip


#: A network of each kind.
QUICK = ("sup_resnet50", "sup_inception-v3", "sup_vgg19", "deit_small_distilled", "nat_m4")


@pytest.mark.parametrize("name", first_quick(len(QUICK), sorted(MODELS, key=lambda name: name not in QUICK)))
class TestEveryModel:
    """Holds for each row: a new one is tested by being declared."""

    def test_the_row_is_complete(self, name):
        spec = get_spec(name)
        assert spec.paper.label and spec.paper.title and spec.release.sources
        prefixes = {
            "reference": "ResNet50",
            "architecture": "a-",
            "self-supervision": "s-",
            "regularization": "r-",
            "later": "t-ReX",
            "first-version": ("AlexNet", "VGG-16"),
        }
        assert spec.paper.label.startswith(prefixes.get(spec.paper.category, "d-"))
        for source in spec.release.sources:
            assert source.url.startswith("https://")
            assert re.fullmatch(r"([0-9a-f]{8}|[0-9a-f]{64})?", source.sha256)
            # torchvision, DeiT and the semi-supervised models name their files by their hash.
            named = re.search(r"-([0-9a-f]{8})\.pth$", source.url)
            assert named is None or named[1] == source.sha256

    def test_parameters_and_width_are_as_declared_and_as_in_the_paper(self, name):
        spec = get_spec(name)
        network = build_network(spec)
        count = sum(parameter.numel() for parameter in network.parameters())
        assert count == spec.network.parameters
        if spec.paper.parameters is None:
            assert name == "clip_resnet50" or spec.paper.category in ("later", "first-version")
        elif round(count / 1e6, 1) != spec.paper.parameters:
            # The paper counts the auxiliary classifier, which features do not use; the row says so.
            assert name == "sup_inception-v3" and str(spec.paper.parameters) in spec.note
        size = spec.preprocess.crop
        # One image: the original NAT loader lost the batch axis then.
        y = network.eval()(torch.empty(1, 3, size, size, device="meta"))
        assert tuple(y.shape) == (1, spec.feature_dim)

    def test_a_released_classifier_has_1000_classes(self, name):
        accuracy = get_spec(name).release.accuracy
        if accuracy is None:
            pytest.skip("no accuracy of a released classifier is declared")
        network = build_network(get_spec(name), classifier=True).eval()
        x = torch.empty(2, 3, accuracy.crop, accuracy.crop, device="meta")
        assert tuple(getattr(network, "classify", network)(x).shape) == (2, 1000)

    def test_profiles_and_variants_give_the_width_they_declare(self, name):
        spec = get_spec(name)
        for options in (*({"profile": p} for p in spec.profiles), *({"variant": v} for v in spec.variants)):
            changed = spec.resolve(**options)
            size = changed.preprocess.crop
            y = build_network(changed).eval()(torch.empty(1, 3, size, size, device="meta"))
            assert changed != spec and tuple(y.shape) == (1, changed.feature_dim)

    def test_a_file_in_its_layout_loads(self, name, tmp_path):
        if name not in rules.load_index():
            pytest.skip("no schema of its file; test_models_golden.py writes one")
        if hollow.container(name) not in ("torch", "torchscript"):
            pytest.skip(
                "hollow files of this container have no shapes; test_models_golden.py loads full ones"
            )
        backbone = cog.load_backbone(name, hollow.write(name, tmp_path / "model.ckpt"))
        assert sum(p.numel() for p in backbone.parameters()) == get_spec(name).network.parameters


def test_unknown_rows_are_refused():
    with pytest.raises(CogError, match=r"did you mean mocov2_resnet50"):
        cog.load_backbone("mocov3_resnet50", "x")
    with pytest.raises(CogError, match="category 'own', expected reference"):
        ModelSpec("a_b", Paper("", "own"), Network("torch.nn:Identity", 1))
    with pytest.raises(CogError, match="feature_dim 0, expected 1 or more"):
        ModelSpec("a_b", Paper("", "reference"), Network("torch.nn:Identity", 0))


# ---- profiles and variants ------------------------------------------------------------------------------


def statistics(name, *opts):
    fx = config.get_cfg(model=get_spec(name), opts=opts).FT_EXTRACT
    return list(fx.IMAGE_NORM.MEAN), list(fx.IMAGE_NORM.STD), fx.IMAGE_RESIZE_SIZE, fx.IMAGE_CROP_SIZE


IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@pytest.mark.parametrize(
    ("name", "mean", "std", "size"),
    [
        ("sup_inception-v3", [0.5] * 3, [0.5] * 3, 299),
        ("simclrv2_resnet50", [0.0] * 3, [1.0] * 3, 224),
        ("clip_resnet50", [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711], 224),
    ],
)
def test_profiles_where_weights_and_code_disagree(name, mean, std, size):
    assert statistics(name) == (mean, std, size, size)
    assert statistics(name, "FT_EXTRACT.PROFILE", "reference-code") == (*IMAGENET, size, size)


def test_all_other_models_are_the_same_in_both_profiles():
    differ = {name for name in MODELS if MODELS[name].resolve("reference-code") != MODELS[name]}
    assert differ == {"sup_inception-v3", "simclrv2_resnet50", "clip_resnet50"}
    sizes = {"deit_base_distilled_384": 384, "efficientnet_b1": 240, "efficientnet_b4": 380}
    for name, profile in itertools.product(set(MODELS) - differ, PROFILES):
        expected = (*IMAGENET, sizes.get(name, 224), sizes.get(name, 224))
        assert statistics(name, "FT_EXTRACT.PROFILE", profile) == expected


def test_the_command_line_overrides_the_profile(tmp_path):
    mean, std, *_ = statistics(
        "clip_resnet50",
        "FT_EXTRACT.PROFILE",
        "reference-code",
        "FT_EXTRACT.IMAGE_NORM.MEAN",
        "[0.1, 0.2, 0.3]",
    )
    assert (mean, std) == ([0.1, 0.2, 0.3], IMAGENET[1])
    # A crop that fits the model's size though not the default one.
    assert statistics("efficientnet_b4", "FT_EXTRACT.IMAGE_CROP_SIZE", "380")[3] == 380
    chosen = tmp_path / "mine.yaml"
    chosen.write_text("FT_EXTRACT: {PROFILE: reference-code}")
    cfg = config.get_cfg(model=get_spec("clip_resnet50"), config_file=chosen)
    assert list(cfg.FT_EXTRACT.IMAGE_NORM.MEAN) == IMAGENET[0]


def test_unknown_profiles_and_variants():
    with pytest.raises(CogError, match=f"expected {' or '.join(PROFILES)}"):
        statistics("clip_resnet50", "FT_EXTRACT.PROFILE", "author")
    assert statistics("sup_inception-v3", "FT_EXTRACT.VARIANT", "transform_input")[:2] == IMAGENET
    with pytest.raises(CogError, match="has no variant 'trunk'; it has transform_input"):
        statistics("sup_inception-v3", "FT_EXTRACT.VARIANT", "trunk")
    with pytest.raises(CogError, match="it has none"):
        cog.load_backbone("dino_resnet50", "x", variant="trunk")


@pytest.mark.slow
def test_recorded_with_the_features(extract, tmp_path):
    checkpoint = rules.write_checkpoint("nat_m4", "A", tmp_path / "model.ckpt")
    options = ("--ckpt_file", str(checkpoint))
    folder = extract("nat_m4", *options, "--strict_hash", "FT_EXTRACT.PROFILE", "reference-code")
    stored = json.loads((folder / "features.json").read_text())
    assert stored["profile"] == "reference-code" and stored["variant"] == ""
    assert stored["checkpoint_is_published"] is None and len(stored["checkpoint_sha256"]) == 64
    with pytest.raises(CogError, match="made differently"):
        extract("nat_m4", *options)


def test_a_checkpoint_in_parts_under_the_models_root(tmp_path):
    folder = tmp_path / "simclrv2" / "resnet50"
    folder.mkdir(parents=True)
    request = ModelRequest("simclrv2_resnet50", models_root_dir=str(tmp_path))
    with pytest.raises(CogError, match="there is no checkpoint"):
        assert request.paths
    hollow.write("simclrv2_resnet50", folder / "model.ckpt")
    assert request.checkpoint == folder / "model.ckpt"


# ---- layouts and conversions ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "prefix", "wrap"),
    first_quick(
        3,
        sorted(
            itertools.product(
                ("byol_resnet50", "sup_resnet50", "mixup_resnet50", "mocov2_resnet50"),
                ("", "module."),
                (None, "state_dict", "model"),
            ),
            key=lambda case: case[1:] not in (("", None), ("module.", "state_dict"), ("module.", "model")),
        ),
    ),
)
def test_plain_state_dicts(name, prefix, wrap, tmp_path):
    state = build_network(get_spec("sup_resnet50"), classifier=True).state_dict()
    state = {prefix + key: torch.zeros((), dtype=v.dtype).expand(v.shape) for key, v in state.items()}
    torch.save(state if wrap is None else {wrap: state, "epoch": 3}, tmp_path / "model.ckpt")
    network = cog.load_backbone(name, tmp_path / "model.ckpt")
    assert sum(p.numel() for p in network.parameters()) == 23_508_032


def test_the_lower_validation_error_decides_between_two_sets_of_weights(tmp_path):
    layout = get_spec("efficientnet_b1").layouts[0]
    for test_err, ema_err, expected in ((20.0, 19.0, 2.0), (19.0, 20.0, 1.0), (None, None, 1.0)):
        data = {"model_state": {"w": torch.ones(1)}, "ema_state": {"w": torch.ones(1) * 2}}
        if test_err is not None:
            data |= {"test_err": test_err, "ema_err": ema_err}
        torch.save(data, tmp_path / "model.ckpt")
        assert float(read_state_dict(tmp_path / "model.ckpt", [layout])["w"]) == expected


def test_other_parts_of_a_checkpoint_are_declared_not_ignored(tmp_path):
    state = {"a.w": torch.ones(1), "b.w": torch.ones(1), "c": torch.ones(1)}
    torch.save(state, tmp_path / "model.ckpt")
    with pytest.raises(CogError, match=r"unexpected 1 \(c\)"):
        read_state_dict(tmp_path / "model.ckpt", [Unwrap(prefix="a.", ignored_prefixes=("b.",))])
    kept = read_state_dict(tmp_path / "model.ckpt", [Unwrap(prefix="a.", ignored_prefixes=("b.", "c"))])
    assert list(kept) == ["w"]


def torchvision_names():
    return [k for k in build_network(get_spec("sup_resnet50")).state_dict() if "num_batches" not in k]


def test_names_of_the_simclr_conversion():
    def theirs(name):  # from torchvision's name to the position in the converter's nested Sequentials
        if name.startswith("conv1."):
            return name.replace("conv1.", "net.0.0.")
        if name.startswith("bn1."):
            return name.replace("bn1.", "net.0.1.0.")
        layer, block, module, *rest = name.split(".")
        where = f"net.{layer[5:]}.blocks.{block}."
        if module == "downsample":
            return where + ("projection.shortcut." if rest[0] == "0" else "projection.bn.0.") + rest[1]
        position = 2 * (int(module[-1]) - 1)
        return (
            where + (f"net.{position}." if module.startswith("conv") else f"net.{position + 1}.0.") + rest[0]
        )

    names = torchvision_names()
    assert rename.simclr_converted({theirs(name): name for name in names}) == {name: name for name in names}


def test_names_of_timms_clip():
    def theirs(name):
        name = re.sub(r"^(conv|bn)(\d)\.", r"stem.conv\2.\1.", name)
        match = re.match(r"layer(\d)\.(\d)\.(?:(conv|bn)(\d)|downsample\.(\d))\.(.*)", name)
        if match:
            stage, block, kind, index, position, leaf = match.groups()
            if kind:
                size = "kxk" if index == "2" else "1x1"
                return f"stages.{int(stage) - 1}.{block}.conv{index}_{size}.{kind}.{leaf}"
            return (
                f"stages.{int(stage) - 1}.{block}.shortcut.conv.{'conv' if position == '0' else 'bn'}.{leaf}"
            )
        name = name.replace("attnpool.positional_embedding", "head.pos_embed")
        name = re.sub(r"attnpool\.([qkv])_proj", r"head.\1", name)
        return name.replace("attnpool.c_proj", "head.proj")

    names = list(build_network(get_spec("clip_resnet50")).state_dict())
    assert rename.clip_timm({theirs(name): name for name in names}) == {name: name for name in names}


def test_clip_with_its_own_names_in_a_plain_file(tmp_path):
    # As open_clip re-releases it, with the text tower.
    schema = rules.load_schema("clip_resnet50")
    state = {key: torch.zeros(()).expand(shape) for key, shape, *_ in schema["groups"]["weights"]["tensors"]}
    del state["input_resolution"], state["context_length"], state["vocab_size"]
    torch.save(state, tmp_path / "model.ckpt")
    assert cog.load_backbone("clip_resnet50", tmp_path / "model.ckpt").feature_dim == 1024


def test_files_with_timms_names_load(tmp_path):
    vgg = build_network(get_spec("sup_vgg19"), classifier=True).state_dict()
    shapes = {key: tuple(value.shape) for key, value in vgg.items()}
    for ours, theirs in (
        ("classifier.0", "pre_logits.fc1"),
        ("classifier.3", "pre_logits.fc2"),
        ("classifier.6", "head.fc"),
    ):
        out, fan_in = shapes.pop(f"{ours}.weight")
        spatial = {"pre_logits.fc1": (512, 7, 7), "pre_logits.fc2": (4096, 1, 1)}.get(theirs, (fan_in,))
        shapes[f"{theirs}.weight"], shapes[f"{theirs}.bias"] = (out, *spatial), shapes.pop(f"{ours}.bias")
    torch.save({k: torch.zeros(()).expand(v) for k, v in shapes.items()}, tmp_path / "vgg.ckpt")
    assert cog.load_backbone("sup_vgg19", tmp_path / "vgg.ckpt").feature_dim == 4096


# ---- safetensors ----------------------------------------------------------------------------------------


_TWO_FLOATS = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}

#: What is wrong -> header (an object, or bytes that are no JSON) and number of data bytes.
HOSTILE_SAFETENSORS = {
    "cut": ({"a": _TWO_FLOATS}, 7),
    "more than its tensors": ({"a": _TWO_FLOATS}, 9),
    "overlap": ({"a": _TWO_FLOATS, "b": _TWO_FLOATS}, 8),
    "hole": ({"a": {**_TWO_FLOATS, "data_offsets": [4, 12]}}, 12),
    "negative offset": ({"a": {**_TWO_FLOATS, "data_offsets": [-8, 0]}}, 8),
    "huge shape": ({"a": {**_TWO_FLOATS, "shape": [2**40, 2**40]}}, 8),
    "shape that wraps around": ({"a": {**_TWO_FLOATS, "shape": [2**63, 2, 2]}}, 8),
    "huge empty shape": ({"a": {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}, 0),
    "unknown type": ({"a": {**_TWO_FLOATS, "dtype": "F9"}}, 8),
    "type that torch lacks": ({"a": {**_TWO_FLOATS, "dtype": "F4", "shape": [16]}}, 8),
    "no object": ([1], 8),
    "no tensor": ({"a": 1}, 0),
    "deep": (b'{"a":' + b"[" * 100_000, 0),
    "no text": (b'{"\xff":3}', 8),
    "many tensors": (
        {f"a{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(20_000)},
        0,
    ),
}


@pytest.mark.parametrize("kind", HOSTILE_SAFETENSORS)
def test_hostile_safetensors_end_in_one_line(kind, tmp_path):
    header, n_bytes = HOSTILE_SAFETENSORS[kind]
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "model.ckpt"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(n_bytes))
    with pytest.raises(CogError, match="is it complete") as error:
        safetensors.read(path)
    assert "\n" not in str(error.value)


#: What is wrong -> index of a checkpoint in several files, and what the message says.
HOSTILE_INDICES = {
    "above": ({"weight_map": {"a": "../elsewhere.safetensors"}}, "names '../elsewhere.safetensors', expected files"),
    "root": ({"weight_map": {"a": "/etc/passwd"}}, "expected files such as"),
    "pickle": ({"weight_map": {"a": "model.pth"}}, "expected files such as"),
    "number": ({"weight_map": {"a": 3}}, "expected files such as"),
    "absent": ({"weight_map": {"a": "none.safetensors"}}, "not beside it; get all parts"),
    "empty": ({"weight_map": {}}, "has no weight_map"),
    "list": ({"weight_map": ["part.safetensors"]}, "has no weight_map"),
    "no mapping": ([], "has no weight_map"),
    "less": ({"weight_map": {"a": "part.safetensors"}}, "does not hold the tensors"),
    "more": ({"weight_map": dict.fromkeys("abc", "part.safetensors")}, "(as c)"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE_INDICES)
def test_hostile_indices_end_in_one_line(kind, tmp_path):
    index, says = HOSTILE_INDICES[kind]
    save_file({"a": torch.ones(2), "b": torch.zeros(1)}, tmp_path / "part.safetensors")
    save_file({"a": torch.ones(2)}, tmp_path.parent / "elsewhere.safetensors")
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    with pytest.raises(CogError) as error:
        safetensors.read(path)
    assert says in str(error.value) and "\n" not in str(error.value)


# ---- command line and documents -------------------------------------------------------------------------


def test_list(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["model", *MODELS]
    assert main(["list", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["model"] for row in rows] == list(MODELS)
    assert [int(row["parameters"]) for row in rows] == [spec.network.parameters for spec in MODELS.values()]
    assert main(["list", "--format", "markdown", "--category", "web-data"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 4


def test_the_documents_have_not_drifted(repository):
    """Run `python -m cog.models docs --write` after a change of the declarations."""
    folder = repository / "prepare_models"
    expected = model_docs.generated()
    assert {path.name for path in folder.iterdir()} == {*expected, "README.md"}
    for name, text in expected.items():
        assert (folder / name).read_text(encoding="utf-8") == text
        assert not name.endswith(".sh") or (folder / name).stat().st_mode & 0o111
    assert main(["docs"]) == 0


def test_drift_is_seen(monkeypatch):
    network = dataclasses.replace(MODELS["nat_m4"].network, feature_dim=1)
    monkeypatch.setitem(MODELS, "nat_m4", dataclasses.replace(MODELS["nat_m4"], network=network))
    with pytest.raises(CogError, match=r"docs/models\.md, prepare_models/README\.md differ"):
        main(["docs"])


@pytest.mark.slow
def test_check(tmp_path, capsys):
    good = tmp_path / "dino" / "resnet50"
    bad = tmp_path / "swav" / "resnet50"
    deep = tmp_path / "nat" / "m4"
    for folder in (good, bad, deep):
        folder.mkdir(parents=True)
    hollow.write("dino_resnet50", good / "model.ckpt")
    hollow.write("nat_m4", bad / "model.ckpt")
    rules.write_checkpoint("nat_m4", "A", deep / "model.ckpt")
    assert main(["check", "--models_root_dir", str(tmp_path)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(MODELS) and lines[-1] == f"2 ok, 1 bad, {len(MODELS) - 3} absent"
    by_model = {line.split()[0]: line for line in lines[:-1]}
    assert "23.5M parameters fit" in by_model["dino_resnet50"]
    assert " bad " in by_model["swav_resnet50"] and "does not fit" in by_model["swav_resnet50"]
    assert main(["check", "--models_root_dir", str(tmp_path), "--model", "nat_m4", "--deep"]) == 0
    assert "features (2, 1536), rms " in capsys.readouterr().out
    assert main(["check", "--models_root_dir", str(tmp_path), "--model", "clip_resnet50"]) == 2
    weights = torch.load(deep / "model.ckpt", weights_only=True)
    weights["first_conv.conv.weight"][0] = float("nan")
    torch.save(weights, deep / "model.ckpt")
    (finding,) = check.check([get_spec("nat_m4")], tmp_path)
    assert finding.status == "bad" and "NaN" in finding.detail


@pytest.mark.slow
def test_top1(tmp_path, capsys, monkeypatch):
    wnids = ("n01440764", "n02123045", "n15075141")  # labels 0, 281 and 999
    for wnid in wnids:
        for index in range(2):
            tiny.write_image(
                tmp_path / "val" / wnid / f"{index}.JPEG", size=(300, 280), seed=7 * wnids.index(wnid) + index
            )
    checkpoint = rules.write_checkpoint("nat_m4", "A", tmp_path / "model.ckpt")
    spec = get_spec("nat_m4")
    network = load_network(spec, checkpoint, classifier=True).eval()
    statistics = {"mean": IMAGENET[0], "std": IMAGENET[1]}
    paths = [path for wnid in wnids for path in sorted((tmp_path / "val" / wnid).iterdir())]
    batch = torch.stack([plain_input(Image.open(p), resize=274, crop=240, **statistics) for p in paths])
    # Bias the classifier so that some images are right and others wrong.
    with torch.inference_mode():
        logits = network(batch)
    state = torch.load(checkpoint, weights_only=True)
    state["classifier.linear.bias"][281] += (logits.max(1).values - logits[:, 281]).max() + 1
    torch.save(state, checkpoint)
    arguments = [
        "top1", "--model", "nat_m4", "--ckpt_file", str(checkpoint), "--in1k_images_root", str(tmp_path),
    ]  # fmt: skip
    seen = []
    monkeypatch.setattr(top1, "to_input", lambda *a: seen.append(to_input(*a)) or seen[-1])
    assert main([*arguments, "--device", "cpu", "--n_workers", "0"]) == 0
    torch.testing.assert_close(seen[0], batch, rtol=0, atol=1e-5)
    assert "top-1 33.33 % on 6 images, published 80.50 % (difference -47.17)" in capsys.readouterr().out
    (tmp_path / "val" / wnids[0] / "2.JPEG").write_bytes(b"no image")
    for n_workers in ("0", "1"):
        with pytest.raises(CogError, match=r"cannot decode .*2\.JPEG"):
            main([*arguments, "--device", "cpu", "--n_workers", n_workers])
    with pytest.raises(CogError, match="no published ImageNet-1K accuracy is known for dino_resnet50"):
        main(["top1", "--model", "dino_resnet50", *arguments[3:]])
    assert top1.verdict(spec, 80.2, 50_000).endswith(": as published")
    assert top1.verdict(spec, 79.9, 50_000).endswith("NOT as published")
    assert Published(1.0).crop == 224


@pytest.mark.slow
def test_distilled_models_classify_with_both_heads():
    network = build_network(get_spec("deit_small_distilled"), classifier=True).to_empty(device="cpu").eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.02, generator=generator)
    x = torch.randn(1, 3, 224, 224, generator=generator)
    with torch.inference_mode():
        tokens = network.tokens(x)
        expected = (network.head(tokens[:, 0]) + network.head_dist(tokens[:, 1])) / 2
        assert torch.allclose(network.classify(x), expected)
        assert not torch.allclose(network(x), expected)


def test_command_line_errors(capsys):
    for arguments in ([], ["list", "--format", "html"], ["download", "--script", "no.sh", "x"], ["check"]):
        with pytest.raises(SystemExit) as done:
            main(arguments)
        said = capsys.readouterr().err
        assert (
            done.value.code == 2 and len(said.splitlines()) == 1 and said.startswith("python -m cog.models")
        )
    with pytest.raises(CogError, match="is not known"):
        main(["check", "--models_root_dir", ".", "--model", "nothing_here"])


# ---- imports --------------------------------------------------------------------------------------------

FOREIGN = ("tensorflow", "jax", "haiku", "dill", "timm", "clip", "open_clip", "safetensors", "pycls")


#: Given (model, file) pairs: loads each in a process of its own that has imported nothing but torch, and prints which
#: modules are there then.
LOADS = """
import ast, os, sys, torch
for name, path in ast.literal_eval(sys.argv[1]):
    if os.fork() == 0:
        import cog
        cog.load_backbone(name, path)
        print(name, *sys.modules, flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, name
"""


@pytest.mark.slow
def test_loading_one_model_imports_nothing_of_the_others(tmp_path):
    names = (
        "nat_m4", "deit_small", "t2tvit_t14", "efficientnet_b1", "clip_resnet50", "sup_vgg19", "byol_resnet50",
    )  # fmt: skip
    paths = {name: hollow.write(name, tmp_path / name) for name in names if name != "byol_resnet50"}
    paths["byol_resnet50"] = rules.write_checkpoint("byol_resnet50", "A", tmp_path / "byol_resnet50")
    given = repr([(name, str(path)) for name, path in paths.items()])
    done = subprocess.run([sys.executable, "-c", LOADS, given], capture_output=True, text=True, check=True)
    found = {name: set(modules) for name, *modules in map(str.split, done.stdout.splitlines())}
    assert list(found) == list(names)
    for name, modules in found.items():
        own = {get_spec(name).network.constructor.partition(":")[0]}
        own |= {"cog.models.arch.vit"} if name == "t2tvit_t14" else set()
        assert not modules & set(FOREIGN)
        assert {m for m in modules if m.startswith("cog.models.arch.")} == own - {"torchvision.models"}
        readers = {m.rpartition(".")[2] for m in modules if m.startswith("cog.models.formats.")}
        expected = {"clip_resnet50": {"torchscript", "errors"}, "byol_resnet50": {"haiku", "errors"}}
        assert readers == {"detect", *expected.get(name, set())}
        assert ("torchvision" in modules) == (name in ("sup_vgg19", "byol_resnet50"))


@pytest.mark.parametrize("weight", [torch.zeros(2, 2, device="meta"), torch.eye(2).to_sparse()])
def test_tensors_without_dense_data_are_refused(weight):
    module = torch.nn.Linear(2, 2)
    with pytest.raises(CogError, match="f: weight are sparse or without data"):
        load_strictly(module, {"weight": weight, "bias": torch.zeros(2)}, "f")
    load_strictly(module, {"weight": torch.eye(2), "bias": torch.zeros(2)}, "f")
    assert torch.equal(module.weight, torch.eye(2))
