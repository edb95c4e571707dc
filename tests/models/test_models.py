"""Declarations, accepted files, the command line, and what gets imported."""

from __future__ import annotations

import itertools
import json
import re

import hollow
import pytest
import tiny
import torch
from golden import rules
from marks import first_quick
from PIL import Image
from plain_pixels import plain_input

import cog
from cog import config
from cog.data.pixels import to_input
from cog.errors import CogError
from cog.models import table, top1
from cog.models.__main__ import main
from cog.models.backbone import build_network, load_network
from cog.models.formats import safetensors
from cog.models.request import ModelRequest
from cog.models.spec import CATEGORIES, PaperModel, Published
from cog.models.zoo import MODELS, get_spec

# ---- declarations ---------------------------------------------------------------------------------------


def test_the_models_of_the_paper():
    counts = {category: len(cog.list_models(category)) for category in CATEGORIES}
    assert counts == {
        "reference": 1,
        "architecture": 10,
        "self-supervision": 10,
        "regularization": 6,
        "web-data": 4,
        "other": 3,
    }


#: A network of each kind.
QUICK = ("sup_resnet50", "sup_inception-v3", "sup_vgg19", "deit_small_distilled", "nat_m4")


@pytest.mark.parametrize("name", first_quick(len(QUICK), sorted(MODELS, key=lambda name: name not in QUICK)))
class TestEveryModel:
    """Holds for each row: a new one is tested by being declared."""

    def test_the_row_is_complete(self, name):
        spec = get_spec(name)
        assert spec.label and spec.paper
        prefixes = {
            "reference": "ResNet50",
            "architecture": "a-",
            "self-supervision": "s-",
            "regularization": "r-",
            "other": ("t-ReX", "CLIP (trunk)"),
        }
        assert spec.label.startswith(prefixes.get(spec.category, "d-"))
        assert spec.url.startswith("https://")
        assert re.fullmatch(r"([0-9a-f]{8}|[0-9a-f]{64})?", spec.sha256)
        # torchvision, DeiT and the semi-supervised models name their files by their hash.
        named = re.search(r"-([0-9a-f]{8})\.pth$", spec.url)
        assert named is None or named[1] == spec.sha256

    def test_parameters_and_width_are_as_declared_and_as_in_the_paper(self, name):
        spec = get_spec(name)
        network = build_network(spec)
        count = sum(parameter.numel() for parameter in network.parameters())
        assert count == spec.parameters
        if spec.paper_parameters is None:
            assert name == "clip_resnet50" or spec.category == "other"
        elif round(count / 1e6, 1) != spec.paper_parameters:
            # The paper counts the auxiliary classifier, which features do not use; the row says so.
            assert name == "sup_inception-v3" and str(spec.paper_parameters) in spec.note
        size = spec.preprocess.crop
        # One image: the original NAT loader lost the batch axis then.
        y = network.eval()(torch.empty(1, 3, size, size, device="meta"))
        assert tuple(y.shape) == (1, spec.feature_dim)

    def test_a_released_classifier_has_1000_classes(self, name):
        accuracy = get_spec(name).published
        if accuracy is None:
            pytest.skip("no accuracy of a released classifier is declared")
        network = build_network(get_spec(name), classifier=True).eval()
        x = torch.empty(2, 3, accuracy.crop, accuracy.crop, device="meta")
        assert tuple(network(x).shape) == (2, 1000)

    def test_a_file_in_its_layout_loads(self, name, tmp_path):
        if name not in rules.load_index():
            pytest.skip("no schema of its file; test_models_golden.py writes one")
        if hollow.container(name) not in ("torch", "torchscript"):
            pytest.skip(
                "hollow files of this container have no shapes; test_models_golden.py loads full ones"
            )
        backbone = cog.load_backbone(name, hollow.write(name, tmp_path / "model.ckpt"))
        assert sum(p.numel() for p in backbone.parameters()) == get_spec(name).parameters


def test_unknown_rows_are_refused():
    with pytest.raises(CogError, match=r"did you mean mocov2_resnet50"):
        cog.load_backbone("mocov3_resnet50", "x")
    with pytest.raises(CogError, match="category 'own', expected reference"):
        PaperModel("a_b", "", "own", "", "torch.nn:Identity", 1, 0)
    with pytest.raises(CogError, match="feature_dim 0, expected 1 or more"):
        PaperModel("a_b", "", "reference", "", "torch.nn:Identity", 0, 0)


# ---- preprocessing --------------------------------------------------------------------------------------

IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def statistics(name, *opts):
    fx = config.get_cfg(model=get_spec(name), opts=opts).FT_EXTRACT
    assert fx.IMAGE_RESIZE_SIZE == fx.IMAGE_CROP_SIZE
    return list(fx.IMAGE_NORM.MEAN), list(fx.IMAGE_NORM.STD), fx.IMAGE_CROP_SIZE


def test_preprocessing_is_that_of_the_weights():
    clip = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    own = {
        "sup_inception-v3": ([0.5] * 3, [0.5] * 3, 299),
        "simclrv2_resnet50": ([0.0] * 3, [1.0] * 3, 224),
        "clip_resnet50": (*clip, 224),
        "clip_resnet50-trunk": (*clip, 224),
    }
    sizes = {"deit_base_distilled_384": 384, "efficientnet_b1": 240, "efficientnet_b4": 380}
    for name in MODELS:
        assert statistics(name) == own.get(name, (*IMAGENET, sizes.get(name, 224)))


def test_keys_override_the_model():
    mean, std, _ = statistics("clip_resnet50", "FT_EXTRACT.IMAGE_NORM.MEAN", "[0.1, 0.2, 0.3]")
    assert mean == [0.1, 0.2, 0.3] and std[0] == 0.26862954
    # A crop that fits the model's size though not the default one.
    assert statistics("efficientnet_b4", "FT_EXTRACT.IMAGE_CROP_SIZE", "380")[2] == 380


def test_a_checkpoint_in_parts_under_the_models_root(tmp_path):
    folder = tmp_path / "simclrv2" / "resnet50"
    folder.mkdir(parents=True)
    request = ModelRequest("simclrv2_resnet50", models_root_dir=str(tmp_path))
    with pytest.raises(CogError, match="there is no checkpoint"):
        assert request.paths
    hollow.write("simclrv2_resnet50", folder / "model.ckpt")
    assert request.checkpoint == folder / "model.ckpt"


# ---- accepted files ----------------------------------------------------------------------------


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


def test_parts_of_other_networks_do_no_harm(tmp_path):
    state = build_network(get_spec("sup_resnet50")).state_dict()
    state = {
        f"module.encoder_q.{key}": torch.zeros((), dtype=v.dtype).expand(v.shape) for key, v in state.items()
    }
    torch.save({"state_dict": state | {"module.queue": torch.zeros(3)}}, tmp_path / "model.ckpt")
    assert cog.load_backbone("mocov2_resnet50", tmp_path / "model.ckpt").feature_dim == 2048


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


# ---- command line and documents -------------------------------------------------------------------------


def test_list_is_the_table_of_the_page(capsys, repository):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out.strip()
    assert printed == table.markdown(MODELS.values())
    assert [line.split()[1] for line in printed.splitlines()[2:]] == list(MODELS)
    assert printed in (repository / "docs/models.md").read_text(encoding="utf-8")


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
    assert main(["check", str(tmp_path)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(MODELS)
    assert all(
        f"{n} {status}" in lines[-1] for n, status in ((2, "ok"), (1, "bad"), (len(MODELS) - 3, "absent"))
    )
    by_model = {line.split()[0]: line for line in lines[:-1]}
    assert "23.5M parameters fit" in by_model["dino_resnet50"]
    assert " bad " in by_model["swav_resnet50"] and "does not fit" in by_model["swav_resnet50"]
    assert main(["check", str(tmp_path), "nat_m4"]) == 0
    assert "features (2, 1536), rms " in capsys.readouterr().out
    assert main(["check", str(tmp_path), "clip_resnet50"]) == 2
    weights = torch.load(deep / "model.ckpt", weights_only=True)
    weights["first_conv.conv.weight"][0] = float("nan")
    torch.save(weights, deep / "model.ckpt")
    assert main(["check", str(tmp_path), "nat_m4"]) == 2 and "NaN" in capsys.readouterr().out


@pytest.mark.slow
def test_top1(tmp_path, capsys, monkeypatch):
    wnids = ("n01440764", "n02123045", "n15075141")  # labels 0, 281 and 999
    for wnid in wnids:
        for index in range(2):
            tiny.write_image(
                tmp_path / "val" / wnid / f"{index}.JPEG", size=(300, 280), seed=7 * wnids.index(wnid) + index
            )
    (tmp_path / "nat/m4").mkdir(parents=True)
    checkpoint = rules.write_checkpoint("nat_m4", "A", tmp_path / "nat/m4/model.ckpt")
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
    arguments = [str(tmp_path), "nat_m4", "--in1k_images_root", str(tmp_path), "--device", "cpu"]
    seen = []
    monkeypatch.setattr(top1, "to_input", lambda *a: seen.append(to_input(*a)) or seen[-1])
    assert main(["top1", *arguments]) == 0
    torch.testing.assert_close(seen[0], batch, rtol=0, atol=1e-5)
    assert "top-1 33.33 % on 6 images, published 80.50 % (difference -47.17)" in capsys.readouterr().out
    (tmp_path / "val" / wnids[0] / "2.JPEG").write_bytes(b"no image")
    with pytest.raises(CogError, match=r"cannot decode .*2\.JPEG"):
        main(["top1", *arguments])
    with pytest.raises(CogError, match="no published ImageNet-1K accuracy is known for dino_resnet50"):
        top1.measure(get_spec("dino_resnet50"), checkpoint, tmp_path, device=torch.device("cpu"))
    assert top1.verdict(spec, 80.2, 50_000).endswith(": as published")
    assert top1.verdict(spec, 79.9, 50_000).endswith("NOT as published")
    assert Published(1.0).crop == 224


def test_command_line_errors(capsys):
    for arguments in ([], ["list", "--format", "html"], ["fetch"], ["check"]):
        with pytest.raises(SystemExit) as done:
            main(arguments)
        said = capsys.readouterr().err
        assert (
            done.value.code == 2 and len(said.splitlines()) == 1 and said.startswith("python -m cog.models")
        )
    with pytest.raises(CogError, match="is not known"):
        main(["check", ".", "nothing_here"])
