"""Models of a user's own: what loaders may return, and models.yaml."""

from __future__ import annotations

import pytest
import torch

import cog
from cog import config
from cog.data.pixels import Preprocess
from cog.errors import CogError
from cog.models import backbone as backbones
from cog.models.choice import ModelChoice, find_model, preprocess_of

LOADER = (
    "import torch, types\n\n"
    "STATISTICS = {'mean': [0.5] * 3, 'std': [0.5] * 3, 'interpolation': 'bilinear'}\n\n\n"
    "def load_my_model(init_args):\n"
)


@pytest.fixture
def write_loader(tmp_path):
    """Write a loader with this body, and return the value of its flag."""

    def write_(body: str) -> str:
        file = tmp_path / f"net{len(list(tmp_path.iterdir()))}.py"
        file.write_text(LOADER + "".join(f"    {line}\n" for line in body.splitlines()))
        return f"{file}:load_my_model"

    return write_


@pytest.fixture
def loads(write_loader):
    """Write a loader with this body and load it."""
    return lambda body, **options: cog.load_backbone("mine_net", None, loader=write_loader(body), **options)


GRAY = torch.arange(2 * 3 * 8 * 8).reshape(2, 3, 8, 8).float()


@pytest.mark.parametrize(
    "returned, expected",
    [
        ("torch.nn.Flatten()", GRAY.flatten(1)),
        ("(torch.nn.Flatten(), None)", GRAY.flatten(1)),
        ("(torch.nn.Flatten(), lambda x: {'pooler_output': x.mean((2, 3)), 'x': 1})", GRAY.mean((2, 3))),
        ("(torch.nn.Flatten(), lambda x: types.SimpleNamespace(logits=x[:, 0, 0]))", GRAY[:, 0, 0]),
        ("torch.nn.AdaptiveAvgPool2d(1)", GRAY.mean((2, 3))),
    ],
)
def test_what_loaders_may_return(returned, expected, loads):
    torch.testing.assert_close(loads(f"return {returned}")(GRAY), expected)


@pytest.mark.parametrize(
    "returned, message",
    [
        (
            "(torch.nn.Flatten(), lambda x: x.flatten(2))",
            r"\(2, 3, 64\), .* give FT_EXTRACT.POOLING cls, mean",
        ),
        ("torch.nn.Identity()", r"\(2, 3, 8, 8\), expected \(2, D\); average the map: y.mean"),
        ("(torch.nn.Flatten(), lambda x: (x, x))", r"returned tuple, .*such as lambda x: backbone\(x\)\[0\]"),
        ("(torch.nn.Flatten(), lambda x: {'a': x})", "returned dict with a, expected a tensor"),
        ("(torch.nn.Flatten(), 'forward')", r"returned \(Flatten, str\), expected \(backbone, forward\)"),
    ],
)
def test_what_loaders_may_not_return(returned, message, loads):
    with pytest.raises(CogError, match=message) as error:
        loads(f"return {returned}")(GRAY)
    assert "\n" not in str(error.value)


def test_a_loader_that_takes_no_argument(tmp_path):
    (tmp_path / "net.py").write_text("def load_net():\n    return None\n")
    with pytest.raises(CogError, match=r"failed with TypeError: load_net\(\) takes 0 positional arguments"):
        cog.load_backbone("mine_net", None, loader=f"{tmp_path}/net.py:load_net")


def test_pooling_of_a_users_tokens(loads):
    """17 tokens are a class token and 4 x 4 patches, 16 the patches alone, 19 nobody can tell."""
    forward = (
        "forward = lambda x: {'pooler_output': None, 'last_hidden_state': x.flatten(1)[:, :%d, None]}\n"
        "return torch.nn.Flatten(), forward"
    )
    for n, n_prefix in ((17, 1), (16, 0)):
        tokens = GRAY.flatten(1)[:, :n, None]
        assert torch.equal(loads(forward % n, pooling="mean")(GRAY), tokens[:, n_prefix:].mean(1))
    assert torch.equal(loads(forward % 17, pooling="cls")(GRAY), GRAY.flatten(1)[:, :1])
    with pytest.raises(CogError, match="attribute num_prefix_tokens"):
        loads(forward % 19, pooling="mean")(GRAY)
    own = (forward % 19).replace("torch.nn.Flatten()", "net")
    given = f"net = torch.nn.Flatten()\nnet.num_prefix_tokens = 3\n{own}"
    torch.testing.assert_close(
        loads(given, pooling="mean")(GRAY), GRAY.flatten(1)[:, 3:19].mean(1, keepdim=True)
    )
    with pytest.raises(
        CogError, match=r"tokens \(B, N, D\); model mine_net returned \(2, 192\); leave it out"
    ):
        loads("return torch.nn.Flatten()", pooling="mean")(GRAY)


DECLARED = {
    "dict": "{'image_size': 16, 'resize_size': 20, **STATISTICS}",
    "timm": "{'input_size': (3, 16, 16), 'crop_pct': 0.8, 'crop_mode': 'center', **STATISTICS}",
}


@pytest.mark.parametrize("way", ["third", "attribute"])
@pytest.mark.parametrize("form", DECLARED)
def test_preprocessing_of_loaders(form, way, write_loader, tmp_path):
    returned = (
        "return net, None, declared" if way == "third" else "net.preprocess = declared\nreturn net, None"
    )
    loader = write_loader(f"net, declared = torch.nn.Flatten(), {DECLARED[form]}\n{returned}")
    choice = find_model("mine_net", root=tmp_path, loader=loader)
    assert preprocess_of(choice.config()) == Preprocess(16, 16, (0.5,) * 3, (0.5,) * 3)
    pre = preprocess_of(
        choice.config(["FT_EXTRACT.PREPROCESS", "model", "FT_EXTRACT.IMAGE_NORM.MEAN", "[0, 0, 0]"])
    )
    assert pre == Preprocess(16, 20, (0, 0, 0), (0.5,) * 3, "bilinear")


def test_a_loader_that_declares_nothing(write_loader, tmp_path):
    choice = find_model("mine_net", root=tmp_path, loader=write_loader("return torch.nn.Flatten()"))
    assert preprocess_of(choice.config()) == Preprocess()
    with pytest.raises(CogError, match="mine_net declares no preprocessing of its authors"):
        choice.config(["FT_EXTRACT.PREPROCESS", "model"])


@pytest.mark.parametrize(
    "value, message",
    [
        ("{'image_sise': 16}", "unknown key 'image_sise'; did you mean image_size?"),
        ("{'image_size': 16, 'resize_size': 8}", "resize_size 8 cannot be used"),
        ("{'mean': [0.5, 0.5]}", r"mean \[0.5, 0.5\] cannot be used"),
        ("{'std': [0, 1, 1]}", r"std \[0, 1, 1\] cannot be used"),
        (
            "{'mean': [123.675, 116.28, 103.53]}",
            r"pixels are in \[0, 1\] here; divided by 255 it is \[0.485, 0.456, 0.406",
        ),
        ("{'std': (58.395, 57.12, 57.375)}", r"divided by 255 it is \[0.229, 0.224, 0.225\]"),
        ("{'interpolation': 'cubic'}", "interpolation 'cubic' cannot be used"),
        ("object()", "object is not supported; give a dict"),
        ("{'input_size': (3, 16, 20)}", r"\(16, 20\) is not square"),
        ("torchvision.transforms.Compose([])", "Compose is not supported; give a dict"),
    ],
)
def test_preprocessing_that_cannot_be_used(value, message, loads):
    with pytest.raises(CogError, match=message):
        loads(f"import torchvision\nreturn torch.nn.Flatten(), None, {value}")


def test_a_forgotten_classifier_is_warned_of(loads, caplog):
    backbone = loads("return torch.nn.Flatten()")
    choice = ModelChoice("mine_net", "mine_net")
    for n, warned in ((999, False), (1000, True)):
        backbone.feature_dim = n
        caplog.clear()
        choice.summary(backbone, config.get_cfg())
        assert ("remove it" in caplog.text) is warned
    caplog.clear()
    scores = loads("return torch.nn.Flatten(), lambda x: {'logits': x[:, 0, 0]}")
    backbones._warn_of_logits.cache_clear()
    scores(GRAY), scores(GRAY)
    assert caplog.text.count("class scores: remove its classifier") == 1


# ---- models.yaml ----------------------------------------------------------------------------------------

FILE = """
mine_small:
  source: torchvision_resnet18
  checkpoint: weights/small.pth
  preprocess: {image_size: 64, mean: [0.5, 0.5, 0.5], interpolation: bilinear}
  pretraining: web
  label: Small one
  group: ours
mine_model:
  source: torchvision_resnet18
  preprocess: model
mine_loaded:
  loader: nets/net.py:load_my_model
  pooling: mean
mine_broken:
  sorce: torchvision_resnet18
sup_resnet50:
  pretraining: IN-1K
"""


@pytest.fixture
def own_file(tmp_path):
    path = tmp_path / "models.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture
def ask(own_file):
    """Return a model of the file; its loader and its checkpoint exist."""

    def ask_(name: str, **options) -> ModelChoice:
        return find_model(name, root=own_file.parent, models_file=own_file, **options)

    return ask_


def make_files(own_file):
    for name, text in (
        ("weights/small.pth", "x"),
        ("nets/net.py", f"{LOADER}    return torch.nn.Flatten()\n"),
        ("sup/resnet50/model.ckpt", "x"),
    ):
        (own_file.parent / name).parent.mkdir(parents=True)
        (own_file.parent / name).write_text(text)


def test_files_of_an_entry_are_called_so(own_file, ask, tmp_path):
    with pytest.raises(CogError, match=r"models.yaml: checkpoint of mine_small: .*small.pth does not exist"):
        ask("mine_small")
    with pytest.raises(CogError, match=r"models.yaml: loader of mine_loaded: .*net.py does not exist"):
        ask("mine_loaded")
    with pytest.raises(CogError, match=r"^--ckpt_file .*other.pth does not exist"):
        ask("mine_small", checkpoint=tmp_path / "other.pth")


def test_entries(own_file, ask, tmp_path):
    make_files(own_file)
    small = ask("mine_small")
    assert preprocess_of(small.config()) == Preprocess(64, 64, (0.5,) * 3, interpolation="bilinear")
    assert preprocess_of(small.config(["FT_EXTRACT.IMAGE_NORM.MEAN", "[0, 0, 0]"])).mean == (0, 0, 0)
    assert small.checkpoint == tmp_path / "weights/small.pth" and small.source == "torchvision_resnet18"
    assert (small.label, small.group, small.pretraining) == ("Small one", "ours", "web")
    assert preprocess_of(ask("mine_model").config()) == Preprocess(224, 256, interpolation="bilinear")
    loaded = ask("mine_loaded")
    assert loaded.loader == f"{tmp_path}/nets/net.py:load_my_model"
    assert loaded.source == "net.py:load_my_model" and loaded.pretraining == "unknown"
    assert loaded.config().FT_EXTRACT.POOLING == "mean"
    assert ask("sup_resnet50").config().FT_EXTRACT.IMAGE_CROP_SIZE == 224
    other = ask("torchvision_resnet18")  # not in the file: as without it
    assert (other.label, other.pretraining, other.checkpoint) == (None, "unknown", None)
    with pytest.raises(CogError, match="mine_broken: unknown key 'sorce'; did you mean source"):
        ask("mine_broken")
    with pytest.raises(CogError, match="did you mean mine_small"):
        ask("mine_smal")


def test_pretraining_is_that_of_the_file_then_of_the_row_then_unknown(tmp_path):
    path = tmp_path / "models.yaml"
    path.write_text(
        "timm_resnet18: {pretraining: web}\nmine_a: {source: clip_resnet50}\n"
        "mine_b: {source: clip_resnet50, pretraining: IN-1K}\n"
        "mine_own: {source: clip_resnet50, checkpoint: own.pth}\n"
        "mine_same: {source: clip_resnet50, checkpoint: own.pth, pretraining: web}\n"
        "mine_c: {loader: 'net.py:f'}\n"
    )
    for name in ("own.pth", "net.py", "mine/a/model.ckpt", "mine/b/model.ckpt", "clip/resnet50/model.ckpt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    for name, stated in {
        "timm_resnet18": "web",
        "timm_resnet50.a1_in1k": "unknown",  # a name proves nothing
        "clip_resnet50": "web",
        "mine_a": "web",
        "mine_b": "IN-1K",
        "mine_own": "unknown",
        "mine_same": "web",
        "mine_c": "unknown",
    }.items():
        assert find_model(name, root=tmp_path, models_file=path).pretraining == stated


@pytest.mark.parametrize(
    "entry, message",
    [
        ("{sorce: a}", "mine_net: unknown key 'sorce'; did you mean source?"),
        ("{preprocess: {size: 3}}", "unknown key 'size'; did you mean image_size|resize_size"),
        ("{pooling: max}", "pooling 'max' is not known, expected default, cls, mean"),
        ("{pretraining: JFT}", "pretraining 'JFT' is not known, expected IN-1K, IN-21K"),
        ("{source: a, loader: 'b:c'}", "has a source and a loader"),
        ("{loader: net.py}", "not of the form FILE.py:load_my_model"),
        ("{label: 3}", "label 3 is not text, expected a string"),
        ("[1]", "is list, expected keys such as source"),
        ("{preprocess: mine}", "preprocess 'mine' is not known, expected protocol, model"),
        ("!!python/object/apply:os.system [touch canary]", "could not determine a constructor"),
    ],
)
def test_bad_entries(entry, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.yaml").write_text(f"mine_net: {entry}\n")
    with pytest.raises(CogError, match=message) as error:
        find_model("mine_net", models_file="models.yaml")
    assert "\n" not in str(error.value) and not (tmp_path / "canary").exists()


def test_entries_without_a_network(tmp_path):
    path = tmp_path / "models.yaml"
    path.write_text("mine_bare: {label: Mine}\nmine_renamed: {source: torchvision_resnet19}\n")
    for name, message in (
        ("mine_bare", "models.yaml: mine_bare has no source and no loader: "),
        ("mine_renamed", "did you mean torchvision_resnet18"),
    ):
        with pytest.raises(CogError, match=message):
            find_model(name, root=tmp_path, models_file=path).config()
