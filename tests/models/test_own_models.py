"""Models of a user's own: what loaders may return, and models.yaml."""

import pytest
import torch

import cog
from cog import config
from cog.data.pixels import Preprocess
from cog.errors import CogError
from cog.models.choice import ModelChoice, find_model, preprocess_of

LOADER = (
    "import torch, torchvision, types\n\n"
    "STATISTICS = {'mean': [0.5] * 3, 'std': [0.5] * 3, 'interpolation': 'bilinear'}\n\n\n"
    "def load_my_model(init_args):\n"
)
GRAY = torch.arange(2 * 3 * 8 * 8).reshape(2, 3, 8, 8).float()
THIRD = "return torch.nn.Flatten(), None,"


@pytest.fixture
def write_loader(tmp_path):
    def write_(body: str) -> str:  # the value of its flag
        file = tmp_path / f"net{len(list(tmp_path.iterdir()))}.py"
        file.write_text(LOADER + "".join(f"    {line}\n" for line in body.splitlines()))
        return f"{file}:load_my_model"

    return write_


@pytest.fixture
def loads(write_loader):
    return lambda body, **options: cog.load_backbone("mine_net", None, loader=write_loader(body), **options)


def test_what_loaders_may_return(loads, tmp_path):
    (tmp_path / "beside.py").write_text("import torch\nnet = torch.nn.Flatten()\n")
    mean, given = GRAY.mean((2, 3)), "torch.nn.Flatten(), lambda x: {'pooler_output': x.mean((2, 3)), 'x': 1}"
    cases = {given: mean, "torch.nn.AdaptiveAvgPool2d(1)": mean, "__import__('beside').net": GRAY.flatten(1)}
    for returned, expected in cases.items():
        torch.testing.assert_close(loads(f"return {returned}")(GRAY), expected)


@pytest.mark.parametrize(
    "body, message",
    [
        ("return torch.nn.Flatten(), lambda x: x.flatten(2)", r"\(2, 3, 64\), .* FT_EXTRACT.POOLING cls"),
        ("return torch.nn.Identity()", r"\(2, 3, 8, 8\), expected \(2, D\); average the map: y.mean"),
        ("return torch.nn.Flatten(), lambda x: (x, x)", "returned tuple, .*such as lambda x: backbone"),
        ("return torch.nn.Flatten(), 'forward'", r"returned \(Flatten, str\), expected \(backbone, forw"),
        ("exit(0)", "failed with SystemExit"),
        (f"{THIRD} {{'image_sise': 16}}", "unknown key 'image_sise'; did you mean image_size?"),
        (f"{THIRD} {{'mean': [122.4, 127.5, 102]}}", r"such as \[0.48, 0.5, 0.4\], from 0 to 1"),
        (f"{THIRD} {{'input_size': (3, 16, 20)}}", r"\(16, 20\) is not square"),
        (f"{THIRD} {{'input_size': 16}}", r"'input_size': 16, .*expected \(3, 224, 224\)"),
        (f"{THIRD} torchvision.transforms.Compose([])", "Compose is not supported; give a dict"),
    ],
)
def test_what_loaders_may_not_return(body, message, loads):
    with pytest.raises(CogError, match=message) as error:
        loads(body)(GRAY)
    assert "\n" not in str(error.value) and "model mine_net" in str(error.value)


def test_a_forgotten_classifier_is_warned_of(loads, caplog):
    backbone = loads("return torch.nn.Flatten()")
    for backbone.feature_dim, warned in ((999, False), (1000, True)):
        ModelChoice("mine_net", "mine_net").summary(backbone, config.get_cfg())
        assert ("are they class scores" in caplog.text) is warned


def test_pooling_of_a_users_tokens(loads):
    """17 tokens are a class token and 4 x 4 patches, 16 the patches alone, 19 nobody can tell."""
    forward = "forward = lambda x: types.SimpleNamespace(last_hidden_state=x.flatten(1)[:, :%d, None])\n"
    forward += "net = torch.nn.Flatten()\n"
    own, tokens = f"{forward}return net, forward", GRAY.flatten(1)[:, :, None]
    for n, n_prefix in ((17, 1), (16, 0)):
        assert torch.equal(loads(own % n, pooling="mean")(GRAY), tokens[:, n_prefix:n].mean(1))
    assert torch.equal(loads(own % 17, pooling="cls")(GRAY), tokens[:, 0])
    with pytest.raises(CogError, match="attribute num_prefix_tokens"):
        loads(own % 19, pooling="mean")(GRAY)
    given = f"{forward}net.num_prefix_tokens = 3\nreturn net, forward"
    torch.testing.assert_close(loads(given % 19, pooling="mean")(GRAY), tokens[:, 3:19].mean(1))


@pytest.mark.parametrize("way", ["return net, None, declared", "net.preprocess = declared\nreturn net"])
def test_preprocessing_of_loaders(way, write_loader, tmp_path):
    declared = "{'image_size': 16, 'resize_size': 20, **STATISTICS}"
    loader = write_loader(f"net, declared = torch.nn.Flatten(), {declared}\n{way}")
    choice = find_model("mine_net", root=tmp_path, loader=loader)
    assert preprocess_of(choice.config()) == Preprocess(16, 16, (0.5,) * 3, (0.5,) * 3)
    keys = ["FT_EXTRACT.PREPROCESS", "model", "FT_EXTRACT.IMAGE_NORM.MEAN", "[0, 0, 0]"]
    assert preprocess_of(choice.config(keys)) == Preprocess(16, 20, (0, 0, 0), (0.5,) * 3, "bilinear")
    silent = find_model("mine_net", root=tmp_path, loader=write_loader("return torch.nn.Flatten()"))
    assert preprocess_of(silent.config()) == Preprocess()
    with pytest.raises(CogError, match="mine_net declares no preprocessing of its authors"):
        silent.config(keys)


def test_weights_that_a_loader_reads_by_itself_identify_its_network(write_loader, tmp_path):
    file, net = tmp_path / "weight.txt", "torch.nn.Linear(1, 1, bias=False)"
    loader = write_loader(f"net = {net}\nnet.weight.data[:] = float(open('{file}').read())\nreturn net")
    digests = []
    for weight in "112":
        file.write_text(weight)
        digests.append(find_model("mine_net", root=tmp_path, loader=loader).identity["checkpoint_sha256"])
    assert digests[0] == digests[1] != digests[2]


# ---- models.yaml

FILE = """
mine_small:
  source: torchvision_resnet18
  checkpoint: weights/small.pth
  preprocess: {image_size: 64, mean: [0.5, 0.5, 0.5], interpolation: bilinear}
  pretraining: web
mine_model: {source: torchvision_resnet18, preprocess: model}
mine_loaded: {loader: "nets/net.py:load_my_model", pooling: mean}
mine_bare: {pooling: mean}
mine_clip: {source: clip_resnet50}
mine_own: {source: clip_resnet50, checkpoint: weights/small.pth}
mine_same: {source: clip_resnet50, checkpoint: weights/small.pth, pretraining: IN-1K}
timm_resnet18: {pretraining: web}
"""


@pytest.fixture
def ask(tmp_path):
    """Write the file and what it names; return a function that finds a model of it."""
    (tmp_path / "models.yaml").write_text(FILE)
    for name in ("weights/small.pth", "nets/net.py", "mine/clip/model.ckpt", "clip/resnet50/model.ckpt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(f"{LOADER}    return torch.nn.Flatten()\n")
    places = {"root": tmp_path, "models_file": tmp_path / "models.yaml"}
    return lambda name, **options: find_model(name, **places, **options)


def test_entries(ask, tmp_path):
    small = ask("mine_small")
    assert preprocess_of(small.config()) == Preprocess(64, 64, (0.5,) * 3, interpolation="bilinear")
    assert preprocess_of(small.config(["FT_EXTRACT.IMAGE_NORM.MEAN", "[0, 0, 0]"])).mean == (0, 0, 0)
    assert small.checkpoint == tmp_path / "weights/small.pth" and small.source == "torchvision_resnet18"
    assert preprocess_of(ask("mine_model").config()) == Preprocess(224, 256, interpolation="bilinear")
    loaded = ask("mine_loaded")
    assert loaded.loader == f"{tmp_path}/nets/net.py:load_my_model"
    assert loaded.source == "net.py:load_my_model" and loaded.config().FT_EXTRACT.POOLING == "mean"
    larger = find_model("timm_test_vit").config(["FT_EXTRACT.IMAGE_RESIZE_SIZE", "180"])
    assert preprocess_of(larger).resize == 180 > preprocess_of(larger).size == 160
    unknown = {"mine_smal": "did you mean mine_small", "mine_bare": "mine_bare: --model 'mine_bare' is not"}
    for name, message in unknown.items():
        with pytest.raises(CogError, match=message):
            ask(name)
    small.checkpoint.unlink()
    with pytest.raises(CogError, match=r"models.yaml: checkpoint of mine_small: .* does not exist"):
        ask("mine_small")


def test_pretraining_is_that_of_the_file_then_of_the_row_then_unknown(ask):
    stated = {
        **{"mine_small": "web", "timm_resnet18": "web", "clip_resnet50": "web", "mine_clip": "web"},
        "timm_resnet50.a1_in1k": "unknown",  # a name proves nothing
        **{"mine_own": "unknown", "mine_same": "IN-1K", "mine_loaded": "unknown"},
    }
    assert {name: ask(name).pretraining for name in stated} == stated


@pytest.mark.parametrize(
    "entry, message",
    [
        ("{sorce: a}", "mine_net: unknown key 'sorce'; did you mean source?"),
        ("{preprocess: {size: 3}}", "unknown key 'size'; did you mean image_size|resize_size"),
        ("{preprocess: {mean: [2, 2, 255]}}", r"mine_net: .*MEAN = .*such as \[0.0078, 0.0078, 1.0\]"),
        ("{pooling: max}", "pooling 'max' is not known, expected default, cls, mean"),
        ("{source: a, loader: 'b:c'}", "has a source and a loader"),
        ("{loader: net.py}", "not of the form FILE.py:load_my_model"),
        ("!!python/object/apply:os.system [touch canary]", "could not determine a constructor"),
    ],
)
def test_bad_entries(entry, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.yaml").write_text(f"mine_net: {entry}\n")
    with pytest.raises(CogError, match=message) as error:
        find_model("mine_net", models_file="models.yaml")
    assert "\n" not in str(error.value) and not (tmp_path / "canary").exists()
